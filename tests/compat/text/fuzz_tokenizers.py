#!/usr/bin/env python3
"""Compares our tokenizers with the `tokenizers` package on random texts and ids.

    ninja -C build/release text_tokenize
    python tests/compat/text/fuzz_tokenizers.py build/release/text_tokenize COUNT SEED FILE...
FILE: a tokenizer.json. COUNT texts and a tenth as many lists of ids for each. Exits 1 when any
differ. Characters that Unicode 16 does not assign are left out. Needs the packages of
requirements.txt.
"""
import json
import random
import subprocess
import sys
from pathlib import Path

from tokenizers import Tokenizer

PIECES = """the The THE HELLO camelCase don't we'LL I'm ' '' 's 'S 'ſ 1 12 1234 ½ Ⅷ ² ! ?! / // {} ... <| |>
<|eot_id|> <|user|> <mask> <tool call> foo </tool> é e\u0301 \u0301 中文 あ 안녕 ا ل ع क् क्ष ไทย ǅ ʰ ª 👩\u200d👧 🇫🇷 ❤\ufe0f \u200b \u200d \ufeff
▁ Ġ <0x41> \u00a0 \u3000 \u0085 \u2028 \u180e \u1680 \t \n \r\n \n\n \0 \x07 \x7f def return self. // /* */ http://a.b/c?d=e&f İ ß ﬁ Å Å ｶﾞ ㌀""".split(" ")
PIECES += [" ", "  ", "   ", "\n", "\n ", " \n", "a", "s"]
RANGES = [(0, 0x7F), (0xA0, 0x24F), (0x300, 0x36F), (0x370, 0x52F), (0x590, 0x6FF), (0x900, 0xD7F),
          (0x1E00, 0x2BFF), (0x3000, 0x30FF), (0x4E00, 0x9FFF), (0xAC00, 0xD7A3), (0xF900, 0xFFFD),
          (0x10000, 0x1FFFF), (0x20000, 0x2A6DF), (0xE0000, 0xE01EF)]


def random_text(rng):
    out = []
    for _ in range(rng.randrange(1, 40)):
        kind = rng.randrange(10)
        if kind < 6:
            out.append(rng.choice(PIECES))
        elif kind < 8:
            out.append(chr(rng.randint(*rng.choice(RANGES))))
        elif kind == 8:
            out.append(rng.choice(PIECES) * rng.randrange(2, 40))
        else:
            out.append("".join(rng.choice("abcdefghijklmnopqrstuvwxyz ") for _ in range(12)))
    return "".join(out)


def ours(tool, path, requests):
    lines = "".join(json.dumps(r) + "\n" for r in requests)
    done = subprocess.run([tool, path], input=lines, capture_output=True, text=True, check=True)
    return [json.loads(line) for line in done.stdout.split("\n") if line]


def main():
    tool, count, seed = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    total = 0
    for path in sys.argv[4:]:
        rng = random.Random(seed)
        reference = Tokenizer.from_file(path)
        size = reference.get_vocab_size()
        requests = [{"text": random_text(rng), "special": rng.random() < 0.5} for _ in range(count)]
        requests += [{"ids": [rng.randrange(size) for _ in range(rng.randrange(1, 12))],
                      "skip": rng.random() < 0.5} for _ in range(count // 10)]
        differences = 0
        for request, answer in zip(requests, ours(tool, path, requests), strict=True):
            if "text" in request:
                expected = reference.encode(request["text"],
                                            add_special_tokens=request["special"]).ids
            else:
                expected = reference.decode(request["ids"], skip_special_tokens=request["skip"])
            if answer != expected:
                differences += 1
                if differences <= 5:
                    print("DIFFERENT", json.dumps(request), "\n  ours     ", answer,
                          "\n  reference", expected)
        print(f"{path}: {len(requests)} cases, {differences} differences (seed {seed})", flush=True)
        total += differences
    sys.exit(1 if total else 0)


main()
