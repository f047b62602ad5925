#!/usr/bin/env python3
"""Times our tokenizers beside `tokenizers`, `tiktoken` and `sentencepiece` on 10 MB of mixed text.

    ninja -C build/release text_tokenize
    taskset -c 0 python tests/compat/text/speed.py build/release/text_tokenize [KIND=FILE ...]
KIND is hf (a tokenizer.json), tiktoken (a rank file; its name says which pattern) or sp (a .model).
All run on one thread, in turn, three rounds; the best of each counts, in the thread's own time, and
the ids must be equal.
The text: this Python's library (code and prose), gsm8k where it is found, and sentences in fourteen
languages whose words are drawn anew from a seed. Needs the packages of requirements.txt.
"""
import json
import lzma
import os
import random
import subprocess
import sys
import sysconfig
import tempfile
import time
from pathlib import Path

from corpus import SENTENCES

os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["RAYON_NUM_THREADS"] = "1"

SIZE = 10_000_000
ROUNDS = 3


def mixed_text():
    rng = random.Random(7)
    library = Path(sysconfig.get_paths()["stdlib"])
    parts, size = [], 0
    for path in sorted(library.glob("*.py")) + sorted(library.glob("pydoc_data/*.py")):
        parts.append(path.read_text(encoding="utf-8", errors="replace"))
    data = Path(os.environ.get("ESPALIER_DATA", "../shared/data")) / "gsm8k_test.jsonl.xz"
    if data.exists():
        rows = [json.loads(line) for line in lzma.open(data, "rt")]
        parts += ["\n\n".join(r["question"] + "\n" + r["answer"] for r in rows)]
    pieces = [p[i:i + 4000] for p in parts for i in range(0, len(p), 4000)]
    words = [s.split(" ") for s in SENTENCES]
    out = []
    while size < SIZE:
        if rng.random() < 0.7:
            piece = rng.choice(pieces)
        else:
            some = rng.choice(words)
            piece = " ".join(rng.choice(some) for _ in range(120)) + ".\n"
        out.append(piece)
        size += len(piece.encode())
    return "".join(out)


def best_of(encode, text):
    times, ids = [], None
    for _ in range(ROUNDS):
        start = time.thread_time()
        ids = encode(text)
        times.append(time.thread_time() - start)
    return min(times), ids


def reference(kind, path):
    if kind == "hf":
        from tokenizers import Tokenizer
        tokenizer = Tokenizer.from_file(path)
        return "tokenizers", lambda text: tokenizer.encode(text, add_special_tokens=False).ids
    if kind == "tiktoken":
        from tiktoken_reference import encoding_of
        encoding = encoding_of(path)
        return "tiktoken", lambda text: encoding.encode(text, allowed_special="all")
    import sentencepiece
    processor = sentencepiece.SentencePieceProcessor(model_file=path)
    return "sentencepiece", processor.encode


def measure(tool, kind, path, text):
    """The tool's report, the reference's name and seconds, and whether the ids are equal."""
    name, encode = reference(kind, path)
    with tempfile.NamedTemporaryFile("w", encoding="utf-8", suffix=".txt") as file:
        file.write(text)
        file.flush()
        report = json.loads(subprocess.run([tool, path, "--time", file.name, str(ROUNDS)],
                                           capture_output=True, text=True, check=True).stdout)
    seconds, ids = best_of(encode, text)
    return report, name, seconds, ids == report["ids"]


def main():
    tool, text = sys.argv[1], mixed_text()
    size = len(text.encode())
    for argument in sys.argv[2:]:
        kind, path = argument.split("=", 1)
        report, name, seconds, same = measure(tool, kind, path, text)
        print(f"{path}: {size / 1e6:.1f} MB, {len(report['ids'])} tokens, "
              f"{'equal' if same else 'DIFFERENT'}; ours {size / report['seconds'] / 1e6:.1f} MB/s "
              f"(first round {size / report['first_seconds'] / 1e6:.1f}), {name} "
              f"{size / seconds / 1e6:.1f} MB/s, ratio {seconds / report['seconds']:.2f}; loaded in "
              f"{report['load_ms']:.0f} ms", flush=True)


if __name__ == "__main__":
    main()
