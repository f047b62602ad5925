#!/usr/bin/env python3
"""Makes a tokenizer.json of a tiktoken rank file, for comparisons with real vocabularies.

    python tests/compat/text/tiktoken_to_json.py llama3 llama3_128k.tiktoken.xz tokenizer.json
"""
import base64
import json
import lzma
import sys

CL = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}%s| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
U, L = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
S = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
P = r"[^\r\n\p{L}\p{N}]?"
O200K = P + U + "*" + L + "+" + S + "|" + P + U + "+" + L + "*" + S + r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
TEKKEN = P + U + "*" + L + "+|" + P + U + "+" + L + r"*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
PATTERNS = {"llama3": CL % "{1,3}", "qwen": CL % "", "o200k": O200K, "tekken": TEKKEN, "gpt2": GPT2}


def alphabet():
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    chars, n = {b: chr(b) for b in printable}, 0
    for b in range(256):
        if b not in chars:
            chars[b] = chr(256 + n)
            n += 1
    return chars


def parts_of(ranks, token, rank):
    """The two tokens whose merge makes `token`: byte-pair encoding with the ranks below its own."""
    parts = [token[i:i + 1] for i in range(len(token))]
    while len(parts) > 2:
        pairs = [(ranks.get(parts[i] + parts[i + 1], rank), i) for i in range(len(parts) - 1)]
        best, i = min(pairs)
        if best >= rank:
            return None
        parts[i:i + 2] = [parts[i] + parts[i + 1]]
    return parts


def convert(kind, rank_file):
    data = lzma.open(rank_file).read() if rank_file.endswith(".xz") else open(rank_file, "rb").read()
    ranks = {}
    for line in data.splitlines():
        if line:
            token, rank = line.split()
            ranks[base64.b64decode(token)] = int(rank)
    spell = alphabet()
    string = lambda token: "".join(spell[b] for b in token)
    merges = []
    for token, rank in sorted(ranks.items(), key=lambda item: item[1]):
        if len(token) > 1 and (parts := parts_of(ranks, token, rank)):
            merges.append([string(p) for p in parts])
    end = max(ranks.values()) + 1
    added = [{"id": end + i, "content": t, "single_word": False, "lstrip": False, "rstrip": False,
              "normalized": False, "special": True}
             for i, t in enumerate(["<|begin_of_text|>", "<|eot_id|>", "<|im_start|>", "<|im_end|>"])]
    return {"version": "1.0", "truncation": None, "padding": None, "added_tokens": added,
            "normalizer": {"type": "NFC"} if kind == "qwen" else None,
            "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
                {"type": "Split", "pattern": {"Regex": PATTERNS[kind]}, "behavior": "Isolated",
                 "invert": False},
                {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True,
                 "use_regex": False}]},
            "post_processor": None,
            "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True,
                        "use_regex": True},
            "model": {"type": "BPE", "dropout": None, "unk_token": None,
                      "continuing_subword_prefix": None, "end_of_word_suffix": None,
                      "fuse_unk": False, "byte_fallback": False, "ignore_merges": kind == "llama3",
                      "vocab": {string(t): r for t, r in ranks.items()}, "merges": merges}}


if __name__ == "__main__":
    with open(sys.argv[3], "w") as out:
        json.dump(convert(sys.argv[1], sys.argv[2]), out, ensure_ascii=False)
