#!/usr/bin/env python3
"""Makes tests/golden/media: small pictures in every format that src/media reads, what Pillow makes of
them, what Pillow's resize makes of a drawn picture, and what transformers' CLIP processor makes of it.

    pip install pillow==11.3.0 transformers==5.23.0 torch==2.15.0 torchvision==0.29.2 numpy
    python3 tools/goldens/make_media_goldens.py tests/golden/media

  pictures/NAME.EXT, pictures/NAME.ppm   a picture, and its pixels (P6) after exif_transpose and
                                         convert("RGB"); of 16-bit grey the high bytes
  resize.txt   FILTER WIDTH HEIGHT NEW_WIDTH NEW_HEIGHT HASH: of the drawn picture of that size
  pixels.txt   WIDTH HEIGHT EDGE CROP then 24 values, at indices that drawn_index() names, of CLIP's
               pixel values, and the largest difference between transformers' two back ends
Pillow 11 resizes rows first, as torchvision does; Pillow 13 begins with columns for some shapes, so its
results differ by rounding. A drawn picture is a function of its size (drawn()), which the tests repeat. HASH is FNV-1a, 64 bits.
"""
import pathlib
import sys

import numpy
from PIL import Image, ImageOps

MEAN, STD = [0.48145466, 0.4578275, 0.40821073], [0.26862954, 0.26130258, 0.27577711]


def drawn(width, height):
    """Smooth ramps with edges and noise; every byte value and sharp contrasts occur."""
    y, x, c = numpy.meshgrid(numpy.arange(height), numpy.arange(width), numpy.arange(3), indexing="ij")
    noise = (x * 2654435761 + y * 40503 + c * 97) % 4294967296 // 65536 % 64
    ramp = (x * (c + 2) + y * 3) % 256
    edge = numpy.where((x // 5 + y // 7 + c) % 4 == 0, 255, 0)
    return numpy.where((x + y) % 9 < 3, edge, (ramp + noise) % 256).astype(numpy.uint8)


def fnv(data):
    value = 0xCBF29CE484222325
    for byte in data:
        value = (value ^ byte) * 0x100000001B3 & 0xFFFFFFFFFFFFFFFF
    return f"{value:016x}"


def pictures(folder):
    folder.mkdir(parents=True, exist_ok=True)
    base = Image.fromarray(drawn(23, 17))
    alpha = numpy.dstack([drawn(23, 17), drawn(23, 17)[:, :, 0]])
    rgba, grey = Image.fromarray(alpha, "RGBA"), base.convert("L")
    grey16 = Image.fromarray((drawn(23, 17)[:, :, 0].astype(numpy.uint16) * 251))
    palette = base.quantize(13)
    saved = [("rgb.jpg", base, dict(quality=90)), ("progressive.jpg", base, dict(progressive=True)),
             ("sampled.jpg", base, dict(quality=70, subsampling=2)), ("grey.jpg", grey, {}),
             ("cmyk.jpg", base.convert("CMYK"), {}),
             ("rgb.png", base, {}), ("rgba.png", rgba, {}), ("grey.png", grey, {}),
             ("grey16.png", grey16, {}), ("bit.png", base.convert("1"), {}), ("palette.png", palette, {}),
             ("transparent.png", palette, dict(transparency=3)),
             ("lossy.webp", base, dict(quality=80)), ("lossless.webp", base, dict(lossless=True)),
             ("alpha.webp", rgba, dict(lossless=True, exact=True)),
             ("palette.gif", palette, dict(interlace=0)), ("interlaced.gif", palette, dict(interlace=1)),
             ("rgb.bmp", base, {}), ("palette.bmp", palette, {}), ("bit.bmp", base.convert("1"), {}),
             ("rgba.bmp", rgba, {})]
    for orientation in (3, 5, 6, 8):
        exif = Image.Exif()
        exif[0x0112] = orientation
        saved.append((f"turned{orientation}.jpg", base, dict(quality=95, exif=exif)))
    for name, image, options in saved:
        image.save(folder / name, **options)
    # Several frames: the first one counts.
    base.quantize(16).save(folder / "frames.gif", save_all=True, append_images=[base.rotate(90).quantize(16)])
    # Adam7, which Pillow reads and does not write, is left to libpng's own tests.
    for path in sorted(folder.iterdir()):
        if path.suffix == ".ppm":
            continue
        opened = ImageOps.exif_transpose(Image.open(path))
        if opened.mode.startswith("I"):  # convert() would clip 16 bits at 255, which shows white
            opened = Image.fromarray((numpy.asarray(opened).astype(numpy.uint16) >> 8).astype(numpy.uint8))
        opened = opened.convert("RGB")
        opened.save(path.with_name(path.name + ".ppm"))


SIZES = [(1, 1, 3, 5), (7, 5, 7, 5), (7, 5, 14, 10), (7, 5, 3, 2), (64, 48, 33, 21), (33, 21, 64, 48), (64, 48, 64, 11),
         (64, 48, 11, 48), (100, 3, 9, 27), (3, 100, 27, 9), (257, 129, 224, 112), (200, 300, 24, 36), (500, 2, 336, 1),
         (336, 336, 336, 335), (31, 17, 336, 184)]


def resized(path):
    lines = []
    sizes = list(SIZES)
    state = numpy.random.default_rng(25)
    for _ in range(45):
        sizes.append(tuple(int(n) for n in state.integers(1, 160, 4)))
    for name, filter in (("bilinear", Image.Resampling.BILINEAR), ("bicubic", Image.Resampling.BICUBIC)):
        for width, height, new_width, new_height in sizes:
            out = Image.fromarray(drawn(width, height)).resize((new_width, new_height), filter)
            lines.append(f"{name} {width} {height} {new_width} {new_height} {fnv(out.tobytes())}")
    path.write_text("\n".join(lines) + "\n")


def pixel_values(path):
    from transformers import CLIPImageProcessor
    from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil
    lines = []
    for width, height, edge, crop in [(64, 48, 28, 28), (48, 64, 28, 28), (31, 100, 42, 42), (640, 480, 336, 336),
                                      (5, 9, 56, 56), (333, 251, 224, 224), (57, 57, 56, 42), (40, 60, 28, 56)]:
        made = []
        for kind in (CLIPImageProcessorPil, CLIPImageProcessor):
            processor = kind(size={"shortest_edge": edge}, crop_size={"height": crop, "width": crop})
            made.append(numpy.asarray(processor(Image.fromarray(drawn(width, height)),
                                                return_tensors="np")["pixel_values"][0]))
        values = made[0 if crop <= edge else 1].reshape(-1)  # the two pad differently
        apart = float(numpy.abs(made[0] - made[1]).max()) if crop <= edge else 0.0
        picked = [f"{values[drawn_index(i, values.size)]:.9g}" for i in range(24)]
        lines.append(f"{width} {height} {edge} {crop} {' '.join(picked)} {apart:.6g}")
    path.write_text("\n".join(lines) + "\n")


def drawn_index(i, size):
    return (i * 2654435761 + 12345) % size


def main():
    folder = pathlib.Path(sys.argv[1])
    pictures(folder / "pictures")
    resized(folder / "resize.txt")
    pixel_values(folder / "pixels.txt")


if __name__ == "__main__":
    main()
