#!/usr/bin/env python3
"""Makes tests/golden/media/videos: small videos of several containers and codecs, and what PyAV and transformers read of
them.

    pip install av==18.1.0 transformers==5.24.0 torch==2.15.0 torchvision==0.29.2 numpy pillow==11.3.0
    python3 tools/goldens/make_video_goldens.py tests/golden/media/videos

  videos.txt             NAME frames rate width height: of each file, frames counted by decoding them
  NAME.INDEX.png         that frame as PyAV converts it to RGB
  sampling.txt           MODEL total rate: indices that transformers' video processor of the model samples
  times.txt              rate | indices of frames | what Qwen3-VL's processor writes in front of each pair of them
  areas.txt              frames width height cap: width and height that Qwen3-VL's processor makes of them, of at least
                         65,536 pixels in all frames and at most 2,097,152; cap: at most 64 squares of 32 x 32 a frame
"""
import pathlib
import sys

import av
import numpy
from PIL import Image
from transformers.video_utils import VideoMetadata

# name, codec, pixel format, options, frames, rate, size
VIDEOS = [
    ("h264.mp4", "libx264", "yuv420p", {"bf": "2", "g": "12", "crf": "30"}, 40, 24, (64, 48)),
    ("odd.mkv", "libx264", "yuv444p", {"bf": "0", "crf": "32"}, 9, 5, (50, 34)),
    ("vp9.webm", "libvpx-vp9", "yuv420p", {"crf": "40", "b": "0", "cpu-used": "8"}, 30, 12, (64, 64)),
    ("mpeg4.avi", "mpeg4", "yuv420p", {"qscale": "9", "bf": "0"}, 20, 10, (48, 48)),
    ("mjpeg.mov", "mjpeg", "yuvj420p", {"q": "9"}, 6, 3, (48, 32)),
    ("mpeg2.ts", "mpeg2video", "yuv420p", {"bf": "0", "qscale": "9"}, 25, 25, (48, 48)),
    ("bt709.mp4", "libx264", "yuv420p", {"crf": "30"}, 8, 4, (64, 48)),
]


def frame(index, width, height):
    """A square that moves over a ramp of colours."""
    y, x = numpy.mgrid[0:height, 0:width]
    picture = numpy.stack([(x * 3 + index * 5) % 256, (y * 4) % 256, (x + y + index * 2) % 256], -1).astype(numpy.uint8)
    picture[8:20, (index * 2) % (width - 12):(index * 2) % (width - 12) + 12] = [255, 40, index * 6 % 256]
    return picture


def write(path, codec, pixels, options, count, rate, size):
    with av.open(str(path), "w") as out:
        stream = out.add_stream(codec, rate=rate, options=options)
        stream.width, stream.height, stream.pix_fmt = *size, pixels
        stream.codec_context.thread_count = 1
        if "709" in path.name:
            stream.codec_context.colorspace = 1
        for index in range(count):
            made = av.VideoFrame.from_ndarray(frame(index, *size), format="rgb24")
            if "709" in path.name:
                made = made.reformat(format=pixels, dst_colorspace="ITU709")
            out.mux(stream.encode(made.reformat(format=pixels) if made.format.name != pixels else made))
        out.mux(stream.encode())


def main():
    folder = pathlib.Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    lines = []
    for name, *made, size in VIDEOS:
        path = folder / name
        write(path, *made, size)
        with av.open(str(path)) as file:
            frames = [each for each in file.decode(video=0)]
            rate = float(file.streams.video[0].average_rate)
        lines.append(f"{name} {len(frames)} {rate:.6f} {size[0]} {size[1]}")
        for index in (0, len(frames) // 2, len(frames) - 1):
            space = dict(src_colorspace="ITU709") if "709" in name else {}
            pixels = frames[index].reformat(format="rgb24", **space).to_ndarray()
            Image.fromarray(pixels).save(folder / f"{name}.{index}.png", optimize=True)
    (folder / "videos.txt").write_text("\n".join(lines) + "\n")
    (folder / "sampling.txt").write_text("\n".join(sampled()) + "\n")
    (folder / "times.txt").write_text("\n".join(times()) + "\n")
    (folder / "areas.txt").write_text("\n".join(areas()) + "\n")


def sampled():
    from transformers.models.llava_next_video.video_processing_llava_next_video import LlavaNextVideoVideoProcessor
    from transformers.models.qwen2_vl.video_processing_qwen2_vl import Qwen2VLVideoProcessor
    from transformers.models.qwen3_vl.video_processing_qwen3_vl import Qwen3VLVideoProcessor
    models = {"qwen2_vl": (Qwen2VLVideoProcessor(), dict(fps=2)), "qwen3_vl": (Qwen3VLVideoProcessor(), dict(fps=2)),
              "llava_next_video": (LlavaNextVideoVideoProcessor(), dict(num_frames=32))}
    for name, (processor, how) in models.items():
        for total, rate in ((40, 24.0), (300, 29.97), (1000, 25.0), (64, 3.0), (33, 30.0), (2500, 1.0), (7200, 23.976)):
            if total < how.get("num_frames", 0):
                continue
            data = VideoMetadata(total_num_frames=total, fps=rate, duration=total / rate)
            indices = processor.sample_frames(metadata=data, **how)
            yield f"{name} {total} {rate}: " + " ".join(str(int(index)) for index in indices)


def times():
    from transformers.models.qwen3_vl.processing_qwen3_vl import Qwen3VLProcessor
    state = numpy.random.default_rng(25)
    for rate in (24.0, 29.97, 25.0, 3.6, 1.0, 60.0):
        for count in (1, 2, 5, 8, 33):
            indices = sorted(int(i) for i in state.choice(2000, count, replace=False))
            made = Qwen3VLProcessor._calculate_timestamps(None, list(indices), rate)
            yield " | ".join([str(rate), " ".join(map(str, indices)), "".join(f"<{time:.1f} seconds>" for time in made)])


def areas():
    from transformers.models.qwen3_vl.video_processing_qwen3_vl import smart_resize
    state = numpy.random.default_rng(26)
    least, most = 65536, 2097152
    for index in range(300):
        frames = int(state.integers(2, 40))
        width, height = (int(n) for n in state.integers(*((4, 80) if index % 3 == 0 else (20, 1000)), 2))
        cap = index % 2
        if max(width, height) > 150 * min(width, height):
            continue
        room = max(min(64 * 32 * 32, most // frames), int(least * 1.05)) * frames if cap else most
        high, wide = smart_resize(frames, height, width, factor=32, min_pixels=least, max_pixels=room)
        yield f"{frames} {width} {height} {cap}: {wide} {high}"


if __name__ == "__main__":
    main()
