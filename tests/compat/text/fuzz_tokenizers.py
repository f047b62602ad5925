#!/usr/bin/env python3
"""Compares our tokenizers with `tokenizers`, `tiktoken` and `sentencepiece` on random texts and ids.

    ninja -C build/release text_tokenize
    python tests/compat/text/fuzz_tokenizers.py build/release/text_tokenize COUNT SEED FILE...
FILE: a tokenizer.json, a .tiktoken rank file, a SentencePiece .model, or GGUF=REFERENCE with one of
those as the reference; GGUFs are read by build/release/espalier in the tool's place, a line a text.
COUNT texts and a tenth as many lists of ids for each. Exits 1 when any differ.
Characters that Unicode 16 does not assign are left out. Where the reference takes bytes, some texts
are no valid UTF-8. Needs the packages of requirements.txt.
"""
import json
import random
import re
import subprocess
import sys
import threading

PIECES = """the The THE HELLO camelCase don't we'LL I'm ' '' 's 'S 'ſ 1 12 1234 ½ Ⅷ ² ! ?! / // {} ... <| |>
<|eot_id|> <|user|> <|endoftext|> <mask> <tool call> foo </tool> é e\u0301 \u0301 中文 あ 안녕 ا ل ع क् क्ष ไทย ǅ ʰ ª 👩\u200d👧 🇫🇷 ❤\ufe0f \u200b \u200d \ufeff
▁ Ġ <0x41> <unk> <s> </s> ##ing ing \u00a0 \u3000 \u0085 \u2028 \u180e \u1680 \t \n \r\n \n\n \0 \x07 \x7f def return self. // /* */ http://a.b/c?d=e&f İ ß ﬁ Å Å ｶﾞ ㌀
\ufdfa ｆｕｌｌ ％ ™ ① ㎏ ï Ǻ Σ ς heron water Reiher цапля 鷺 [MASK] [UNK] do not n't .""".split(" ")
PIECES += [" ", "  ", "   ", "\n", "\n ", " \n", "a", "s"]
RANGES = [(0, 0x7F), (0x80, 0x24F), (0x300, 0x36F), (0x370, 0x52F), (0x590, 0x6FF), (0x900, 0xD7F),
          (0x1E00, 0x2BFF), (0x3000, 0x30FF), (0x4E00, 0x9FFF), (0xAC00, 0xD7A3), (0xF900, 0xFFFD),
          (0x10000, 0x1FFFF), (0x20000, 0x2A6DF), (0xE0000, 0xE01EF), (0x1100, 0x11FF),
          (0xE000, 0xF8FF), (0x30000, 0xDFFFF), (0xF0000, 0xFFFFD), (0x100000, 0x10FFFD)]
BATCH = 20_000


def random_text(rng):
    out = []
    for _ in range(rng.randrange(1, 24)):
        kind = rng.randrange(20)
        if kind < 12:
            out.append(rng.choice(PIECES))
        elif kind < 16:
            out.append(chr(rng.randint(*rng.choice(RANGES))))
        elif kind == 16:
            longest = 40 if rng.random() < 0.98 else 3000
            out.append(rng.choice(PIECES) * rng.randrange(2, longest))
        elif kind == 17:
            out.append("".join(chr(rng.randint(*rng.choice(RANGES)))
                               for _ in range(rng.randrange(1, 12))))
        else:
            out.append("".join(rng.choice("abcdefghijklmnopqrstuvwxyz ") for _ in range(12)))
    return "".join(out)


def broken_bytes(rng):
    data = bytearray(random_text(rng).encode())
    for _ in range(rng.randrange(1, 6)):
        at = rng.randrange(len(data) + 1)
        data[at:at + rng.randrange(3)] = bytes(rng.randrange(256) for _ in range(rng.randrange(3)))
    return bytes(data)


class HuggingFace:
    takes_bytes = False

    def __init__(self, path):
        from tokenizers import Tokenizer
        self.tokenizer = Tokenizer.from_file(path)
        self.size = self.tokenizer.get_vocab_size()

    def encode(self, texts, special):
        return [e.ids for e in self.tokenizer.encode_batch_fast(texts, add_special_tokens=special)]

    def decode(self, ids, skip):
        return self.tokenizer.decode(ids, skip_special_tokens=skip)

    def typed(self, text, pair, most):
        if most:
            self.tokenizer.enable_truncation(most)
        encoded = self.tokenizer.encode(text, pair)
        self.tokenizer.no_truncation()
        return [encoded.ids, encoded.type_ids]


class Tiktoken:
    takes_bytes = False

    def __init__(self, path):
        from tiktoken_reference import encoding_of
        self.encoding = encoding_of(path)
        ranks, specials = self.encoding._mergeable_ranks, self.encoding._special_tokens
        self.ids = sorted([*ranks.values(), *specials.values()])
        self.size = None

    def encode(self, texts, special):
        return self.encoding.encode_batch(texts, num_threads=1, allowed_special="all")

    def decode(self, ids, skip):
        return self.encoding.decode(ids)


class SentencePiece:
    takes_bytes = True

    def __init__(self, path):
        import sentencepiece
        self.processor = sentencepiece.SentencePieceProcessor(model_file=path)
        self.size = self.processor.get_piece_size()

    def encode(self, texts, special):
        return self.processor.encode(texts)

    def decode(self, ids, skip):
        return self.processor.decode(ids)


def reference_of(path):
    if path.endswith(".json"):
        return HuggingFace(path)
    return Tiktoken(path) if path.endswith(".tiktoken") else SentencePiece(path)


def make_requests(rng, reference, count):
    requests = []
    # What tiktoken and SentencePiece add of their own is nothing.
    may_add, may_skip = isinstance(reference, HuggingFace), isinstance(reference, HuggingFace)
    for _ in range(count):
        special = may_add and rng.random() < 0.5
        if reference.takes_bytes and rng.random() < 0.1:
            requests.append({"hex": broken_bytes(rng).hex(), "special": special})
        else:
            requests.append({"text": random_text(rng), "special": special})
    for _ in range(count // 5 if may_add else 0):
        requests.append({"text": random_text(rng), "max": rng.choice((0, 5, 8, 13, 40)),
                         "pair": random_text(rng) if rng.random() < 0.8 else None})
    for _ in range(count // 10):
        size = rng.randrange(1, 12)
        ids = ([rng.randrange(reference.size) for _ in range(size)] if reference.size
               else rng.choices(reference.ids, k=size))
        skip = rng.random() < 0.5 if may_skip else not isinstance(reference, Tiktoken)
        requests.append({"ids": ids, "skip": skip})
    return requests


def expected_answers(reference, requests):
    answers = [None] * len(requests)
    for special in (False, True):
        chosen = [i for i, r in enumerate(requests) if r.get("special") is special]
        texts = [requests[i]["text"] if "text" in requests[i] else bytes.fromhex(requests[i]["hex"])
                 for i in chosen]
        for i, ids in zip(chosen, reference.encode(texts, special), strict=True):
            answers[i] = ids
    for i, request in enumerate(requests):
        if "pair" in request:
            answers[i] = reference.typed(request["text"], request["pair"], request["max"])
        elif "ids" in request:
            answers[i] = reference.decode(request["ids"], request["skip"])
    return answers


class Ours:
    def __init__(self, tool, path):
        self.process = subprocess.Popen([tool, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def answer(self, requests):
        lines = "".join(json.dumps(r) + "\n" for r in requests).encode()

        def write():
            self.process.stdin.write(lines)
            self.process.stdin.flush()
        writer = threading.Thread(target=write)
        writer.start()
        answers = [json.loads(self.process.stdout.readline()) for _ in requests]
        writer.join()
        return answers


class OursOfGguf:
    """A vocabulary within a GGUF, by `espalier tokenize`."""

    def __init__(self, tool, path):
        self.command = [tool, "tokenize", "--tokenizer", path, "--lines", "--json"]

    def lines(self, flags, inputs):
        text = "".join(line + "\n" for line in inputs).encode()
        done = subprocess.run([*self.command, *flags], input=text, capture_output=True, check=True)
        return iter([json.loads(line) for line in done.stdout.decode().split("\n")[:-1]])

    def answer(self, requests):
        ids = self.lines(["--no-special"], [r["text"] for r in requests if "text" in r])
        decoded = {skip: self.lines(["--decode"] + ["--no-special"] * skip,
                                    [" ".join(map(str, r["ids"])) for r in requests
                                     if r.get("skip") == skip])
                   for skip in (False, True)}
        return [next(ids) if "text" in r else next(decoded[r["skip"]]) for r in requests]


def for_gguf(request):
    """A text of one line without control tokens: a GGUF's are found, a bare .model's are not."""
    if "text" not in request:
        return request
    text = re.sub("</?s>|<unk>|[^\\S ]+", " ", request["text"])
    return request | {"text": text, "special": False}


def compare(tool, argument, count, seed):
    """Cases and differences of one file; the first few differences are printed."""
    path, _, other = argument.partition("=")
    rng = random.Random(seed)
    reference = reference_of(other or path)
    in_gguf, differences, compared = path.endswith(".gguf"), 0, 0
    ours = OursOfGguf(tool, path) if in_gguf else Ours(tool, path)
    reference.takes_bytes &= not in_gguf
    for begin in range(0, count, BATCH):
        requests = make_requests(rng, reference, min(BATCH, count - begin))
        if in_gguf:
            requests = [for_gguf(request) for request in requests if "pair" not in request]
        for request, answer, expected in zip(requests, ours.answer(requests),
                                             expected_answers(reference, requests), strict=True):
            compared += 1
            if answer != expected:
                differences += 1
                if differences <= 5:
                    print("DIFFERENT", json.dumps(request), "\n  ours     ", answer,
                          "\n  reference", expected)
    return compared, differences


def main():
    tool, count, seed = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    total = 0
    for argument in sys.argv[4:]:
        compared, differences = compare(tool, argument, count, seed)
        print(f"{argument}: {compared} cases, {differences} differences (seed {seed})", flush=True)
        total += differences
    sys.exit(1 if total else 0)


if __name__ == "__main__":
    main()
