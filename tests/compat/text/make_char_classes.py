#!/usr/bin/env python3
"""Writes src/text/unicode/char_classes.inc: the classes of characters that tokenizers split by.

The classes are asked of the regular expressions of the `tokenizers` package (Oniguruma, Unicode
16.0), so that our hand-written splitters cut where the reference cuts, whatever Unicode version the
system's libraries have. Run with the versions of requirements.txt:
    python tests/compat/text/make_char_classes.py > src/text/unicode/char_classes.inc
"""
from tokenizers import Regex, pre_tokenizers

SCALARS = [c for c in range(0x110000) if not 0xD800 <= c <= 0xDFFF]
CLASSES = [("kUpper", r"[\p{Lu}\p{Lt}]"), ("kLower", r"\p{Ll}"), ("kOtherLetter", r"[\p{Lm}\p{Lo}]"),
           ("kMark", r"\p{M}"), ("kDecimal", r"\p{Nd}"), ("kOtherNumber", r"[\p{Nl}\p{No}]"),
           ("kPunctuation", r"\p{P}"), ("kSpace", r"\s")]


def members(pattern):
    split = pre_tokenizers.Split(Regex(pattern), "removed", invert=True)
    found = set()
    for i in range(0, len(SCALARS), 4096):
        for piece, _ in split.pre_tokenize_str("".join(map(chr, SCALARS[i:i + 4096]))):
            found.update(map(ord, piece))
    return found


def main():
    of = {}
    for name, pattern in CLASSES:
        for code in members(pattern):
            assert code not in of, hex(code)
            of[code] = name
    rows, previous = [], "kOther"
    for code in range(0x110000):
        name = of.get(code, "kOther")
        if name != previous:
            rows.append(f"{{0x{code:X}, {name}}}")
            previous = name
    print("// Written by tests/compat/text/make_char_classes.py: {first code point, class}, each up")
    print("// to the next row. Unicode 16.0.")
    line = ""
    for row in rows:
        if len(line) + len(row) + 2 > 99:
            print(line.rstrip())
            line = ""
        line += row + ", "
    print(line.rstrip())


main()
