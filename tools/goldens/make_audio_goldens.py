#!/usr/bin/env python3
"""Makes tests/golden/media/sounds and mel.txt: short sounds in every format that src/media reads, and what
transformers' WhisperFeatureExtractor makes of a drawn sound.

    pip install transformers==5.24.0 soundfile==0.14.0 numpy==2.4.6
    python3 tools/goldens/make_audio_goldens.py tests/golden/media

  sounds/NAME.EXT   a quarter of a second of the drawn sound
  mel.txt           MELS SAMPLES then 256 values, at indices that drawn_index() names, of the features of
                    the first SAMPLES samples of the drawn sound at 16 kHz, padded to 30 s with silence
A drawn sound is a function of its length (drawn_sound()), which the tests repeat. The features are those
of transformers' NumPy path, which computes in double; its torch path, in float32, differs more from it.
"""
import pathlib
import sys

import numpy
import soundfile
from transformers import WhisperFeatureExtractor

PICKED = 256


def drawn_sound(count):
    """Whole numbers of 16 bits: a triangle wave, a chirp and noise."""
    n = numpy.arange(count, dtype=numpy.int64)
    wave = (abs((n * 37) % 4000 - 2000) - 1000) * 8
    chirp = (abs((n * n // 64) % 3000 - 1500) - 750) * 10
    noise = (n * 2654435761 % 4294967296) // 65536 % 512 - 256
    return (wave + chirp + noise).astype(numpy.int16)


def drawn_index(i, count):
    return (i * 2654435761 + 12345) % count


def sounds(folder):
    folder.mkdir(parents=True, exist_ok=True)
    mono = drawn_sound(4000)
    stereo, real = numpy.stack([mono, mono[::-1]], axis=1), mono / 32768
    for name, data, rate, options in [
            ("pcm16.wav", mono, 16000, dict(subtype="PCM_16")), ("pcm8.wav", mono, 16000, dict(subtype="PCM_U8")),
            ("pcm24.wav", stereo, 16000, dict(subtype="PCM_24")), ("pcm32.wav", mono, 16000, dict(subtype="PCM_32")),
            ("float.wav", real, 16000, dict(subtype="FLOAT")), ("double.wav", real, 16000, dict(subtype="DOUBLE")),
            ("extensible.wav", stereo, 44100, dict(format="WAVEX", subtype="PCM_16")),
            ("mono.flac", mono, 16000, {}), ("stereo.flac", stereo, 44100, {}),
            ("vorbis.ogg", mono, 16000, dict(subtype="VORBIS")), ("opus.ogg", mono, 16000, dict(subtype="OPUS")),
            ("layer3.mp3", mono, 16000, {})]:
        soundfile.write(folder / name, data, rate, **options)


def features(mels, count):
    extractor = WhisperFeatureExtractor(feature_size=mels)
    samples = numpy.zeros(extractor.n_samples, dtype=numpy.float32)
    samples[:count] = drawn_sound(count).astype(numpy.float32) / 32768
    exact = extractor._np_extract_fbank_features(samples[None], "cpu")[0]
    given = extractor(samples[:count], sampling_rate=16000, return_tensors="np").input_features[0]
    print(f"{mels} mels: torch differs from NumPy by {abs(exact - given).max():.1e}")
    return exact


def main():
    out = pathlib.Path(sys.argv[1])
    sounds(out / "sounds")
    lines = []
    for mels, count in ((80, 480000), (80, 83521), (128, 200001)):
        values = features(mels, count).reshape(-1)
        picked = [values[drawn_index(i, len(values))] for i in range(PICKED)]
        lines.append(" ".join([f"{mels} {count}"] + [f"{value:.9g}" for value in picked]))
    (out / "mel.txt").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
