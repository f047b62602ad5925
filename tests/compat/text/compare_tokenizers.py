#!/usr/bin/env python3
"""One run, one table: our tokenizers beside `tokenizers`, `tiktoken` and `sentencepiece`, compared on
random texts and ids (fuzz_tokenizers.py) and on 10 MB of mixed text, which both are timed on (speed.py).

    ninja -C build/release text_tokenize
    taskset -c 0 python tests/compat/text/compare_tokenizers.py build/release/text_tokenize COUNT SEED FILE...
FILE: a tokenizer.json, a .tiktoken rank file or a SentencePiece .model. COUNT random texts and a tenth
as many lists of ids for each. Exits 1 when any differ. Needs the packages of requirements.txt.
"""
import sys
from pathlib import Path

import fuzz_tokenizers
import speed

KINDS = {".json": "hf", ".tiktoken": "tiktoken", ".model": "sp"}
# What is asked for, by reference.
ASKED = {"tokenizers": "5", "tiktoken": "3", "sentencepiece": ""}


def main():
    tool, count, seed = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    text, failed = speed.mixed_text(), False
    size = len(text.encode()) / 1e6
    print("| tokenizer | reference | cases | differences | 10 MB of text | ours, MB/s | reference, MB/s "
          "| ratio (asked) | loaded in, ms (of processor time) |\n|---|---|---|---|---|---|---|---|---|",
          flush=True)
    for path in sys.argv[4:]:
        compared, differences = fuzz_tokenizers.compare(tool, path, count, seed)
        report, name, seconds, same = speed.measure(tool, KINDS[Path(path).suffix], path, text)
        ratio = f"{seconds / report['seconds']:.2f}" + (f" ({ASKED[name]})" if ASKED[name] else "")
        label = Path(path).name if Path(path).name != "tokenizer.json" else "/".join(
            Path(path).parts[-2:])
        print(f"| {label} | {name} | {compared} | {differences} | {'equal' if same else 'DIFFERENT'} "
              f"| {size / report['seconds']:.1f} | {size / seconds:.1f} | {ratio} "
              f"| {report['load_ms']:.0f} ({report['load_cpu_ms']:.0f}) |", flush=True)
        failed |= differences > 0 or not same
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
