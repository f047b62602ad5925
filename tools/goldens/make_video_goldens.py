#!/usr/bin/env python3
"""Makes tests/golden/media/videos: small videos of several containers and codecs, and what PyAV and transformers read of
them.

    pip install av==18.1.0 transformers==5.24.0 torch==2.15.0 torchvision==0.29.2 numpy pillow==11.3.0
    python3 tools/goldens/make_video_goldens.py tests/golden/media/videos

  videos.txt             NAME frames rate width height: of each file, frames counted by decoding them
  NAME.INDEX.png         that frame as PyAV converts it to RGB
  sampling.txt           MODEL total rate: indices that transformers' video processor of the model samples
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


if __name__ == "__main__":
    main()
