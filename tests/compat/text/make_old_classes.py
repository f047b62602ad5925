#!/usr/bin/env python3
"""Writes src/text/unicode/old_classes.inc: sets of characters as Hugging Face's tokenizers has them.

    python tests/compat/text/make_old_classes.py > src/text/unicode/old_classes.inc
Some of its steps use tables of Unicode 8 and 9, whatever is newer elsewhere. Each set is asked of the
package itself, a character at a time. Needs the packages of requirements.txt.
"""
import unicodedata

from tokenizers import __version__, normalizers, pre_tokenizers

CODES = [c for c in range(0x110000) if not 0xD800 <= c < 0xE000]
CLEAN = normalizers.BertNormalizer(clean_text=True, handle_chinese_chars=False, strip_accents=False,
                                   lowercase=False)
ACCENTS = normalizers.BertNormalizer(clean_text=False, handle_chinese_chars=False,
                                     strip_accents=True, lowercase=False)
STRIP, NFD, NFKD = normalizers.StripAccents(), normalizers.NFD(), normalizers.NFKD()
PUNCTUATION = pre_tokenizers.Punctuation()


def disappears(normalizer, code):
    return normalizer.normalize_str("a" + chr(code) + "b") == "ab"


def is_punctuation(code):
    return code > 127 and len(PUNCTUATION.pre_tokenize_str("a" + chr(code) + "b")) == 3


def is_combining(code):
    own = NFD.normalize_str(chr(code))
    return (NFD.normalize_str("a" + chr(code) + "\u0334") == "a\u0334" + own
            or NFD.normalize_str("a\u0301" + chr(code)) == "a" + own + "\u0301")


def is_late(code):
    """Decomposes in newer Unicode, and not there."""
    text = chr(code)
    newer = unicodedata.normalize("NFKD", text) != text or 0x1E030 <= code <= 0x1E06D
    return newer and NFKD.normalize_str(text) == text


SETS = {"kOldOther": lambda c: disappears(CLEAN, c),  # Cc, Cf, Co but \t \n \r; U+FFFD
        "kOldNonspacing": lambda c: disappears(ACCENTS, c),  # Mn
        "kOldMarks": lambda c: disappears(STRIP, c),  # M
        "kOldPunctuation": is_punctuation,  # P beyond ASCII
        "kOldCombining": is_combining,  # canonical combining class above 0
        "kLateDecomposing": is_late}

print(f"// Made by tests/compat/text/make_old_classes.py with tokenizers {__version__}. Do not edit.")
for name, holds in SETS.items():
    ranges = []
    for code in filter(holds, CODES):
        if ranges and code == ranges[-1][1] + 1:
            ranges[-1][1] = code
        else:
            ranges.append([code, code])
    print(f"constexpr CodeRange {name}Ranges[] = {{")
    line = "   "
    for first, last in ranges:
        entry = f" {{0x{first:X}, 0x{last:X}}},"
        if len(line) + len(entry) > 100:
            print(line)
            line = "   "
        line += entry
    print(line + "\n};")
