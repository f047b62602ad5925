"""tiktoken encodings of rank files that lie on disk, by the name or the size of the file."""
import base64
import lzma

import tiktoken

GPT2 = r"""'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s"""
CL100K = (r"""'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+"""
          r"""|\s++$|\s*[\r\n]|\s+(?!\S)|\s""")
CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
TAIL = r"|\s*[\r\n]+|\s+(?!\S)|\s+"
LLAMA3 = CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*" + TAIL
QWEN = CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*" + TAIL
UPPER, LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
O200K = (rf"[^\r\n\p{{L}}\p{{N}}]?{UPPER}*{LOWER}+{CONTRACTIONS}?|[^\r\n\p{{L}}\p{{N}}]?{UPPER}+{LOWER}*"
         rf"{CONTRACTIONS}?" r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*" + TAIL)
# name: pattern, the special tokens that texts of the comparison hold, from the last rank on
KINDS = {
    "cl100k": (CL100K, {"<|endoftext|>": 1, "<|fim_prefix|>": 2, "<|fim_middle|>": 3,
                        "<|fim_suffix|>": 4, "<|endofprompt|>": 20}),
    "o200k": (O200K, {"<|endoftext|>": 1, "<|endofprompt|>": 20}),
    "llama": (LLAMA3, {"<|begin_of_text|>": 0, "<|end_of_text|>": 1, "<|start_header_id|>": 6,
                       "<|end_header_id|>": 7, "<|eom_id|>": 8, "<|eot_id|>": 9,
                       "<|python_tag|>": 10}),
    "qwen": (QWEN, {"<|endoftext|>": 0, "<|im_start|>": 1, "<|im_end|>": 2}),
    "gpt2": (GPT2, {"<|endoftext|>": 0}),
}
SIZES = {100256: "cl100k", 199998: "o200k", 128000: "llama", 151643: "qwen", 50256: "gpt2"}


def read_ranks(path):
    data = lzma.open(path).read() if path.endswith(".xz") else open(path, "rb").read()
    return {base64.b64decode(t): int(r) for t, r in (line.split() for line in data.splitlines() if line)}


def encoding_of(path, kind=None):
    ranks = read_ranks(path)
    name = kind or next((k for k in KINDS if k in path.rsplit("/", 1)[-1].lower()), None) or SIZES[len(ranks)]
    pattern, specials = KINDS[name]
    end = max(ranks.values()) + 1
    return tiktoken.Encoding(name, pat_str=pattern, mergeable_ranks=ranks,
                             special_tokens={t: end + i for t, i in specials.items()})
