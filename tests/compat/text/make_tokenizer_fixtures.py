#!/usr/bin/env python3
"""Trains the small tokenizers of tests/golden/tokenizers and writes what the reference makes of texts.

    python tests/compat/text/make_tokenizer_fixtures.py tests/golden/tokenizers
Needs the packages of requirements.txt. Each folder holds a tokenizer.json, a tokenizer_config.json
and goldens.json: {"cases": [{text, special, ids}], "decodes": [{ids, skip, text}]}.
"""
import json
import random
import sys
from pathlib import Path

from tokenizers import (AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers,
                        processors, trainers)

LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
          r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")

TRAINING = """
The heron stood in the shallow water and waited. It waited until the light had gone, and it didn't
move. "We'll come back tomorrow," said the boy, "and you'll see that it's there." They'd been there
before, in 1987 and in 2004, when the river was high: 12, 345, 6789 and 1000000 are numbers.
def heron(depth):
    if depth > 10:
        return {"bird": "heron", "depth": depth}
    return [heron(d) for d in range(depth)]
for (int i = 0; i < n; ++i) { sum += values[i]; }  // the sum of all values
SELECT name, depth FROM birds WHERE depth >= 3;
Der Reiher stand im seichten Wasser. Él esperó. Elle a attendu jusqu'à la nuit. Цапля стояла в воде.
鷺は浅い水の中に立っていた。水面は静かだった。苍鹭站在浅水里。 왜가리가 물속에 서 있었다.
😀 👩‍👩‍👧‍👦 🇫🇷 ❤️ and so on. The water, the water, the water and the heron.
"""

TEXTS = [
    "", " ", "  ", "a", "The heron", " The heron ", "the water's edge", "THEY'LL we'Ve I'M it's ''s",
    "'ſ 'S ſ'ſt", "1234567 12 3", "x=10;y==20", "a\nb\r\nc\n\n\nd", "   leading and trailing   ",
    "tab\tand\t\ttabs", "line\n   \n  indent\n", "\u00a0\u2003wide\u3000spaces\u0085next",
    "👩‍👩‍👧‍👦 and 🇫🇷 and ❤️‍🔥", "鷺は浅い水、苍鹭。", "왜가리가 물속에", "e\u0301 é \u0041\u030a Å ﬁ Ⅷ ½ ²",
    "\u0000\u0001\u001f\u007f", "\u200b\u200d\ufeff\u00ad", "क्षत्रिय हिन्दी", "السلام عليكم", "\U0001d54f\U00020000\U0010fffd",
    "<|user|>The heron<|end|>", "<|user|> the <|end|>  water<tool call>x</tool>", "<|use|><|user|",
    "fooword foo word-foo foo", "  <mask>  water", "ĠtheĊ Ġ", "<0x41>▁the ▁", "if (depth > 10) {\n        return;\n}",
    "caf\u00e9s cafe\u0301s", "don't can’t won`t", "a" * 70, "the " * 30, "\n" * 20 + " " * 33,
]


def added_tokens(tokenizer):
    tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False)
                                  for t in ("<|user|>", "<|end|>")])
    tokenizer.add_special_tokens([AddedToken("<mask>", special=True, normalized=False, lstrip=True,
                                             rstrip=True)])
    tokenizer.add_tokens([AddedToken("<tool call>", normalized=False), AddedToken("</tool>"),
                          AddedToken("foo", single_word=True, normalized=False)])


def byte_level():
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(LLAMA3), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=500, special_tokens=["<|begin|>"],
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
                                  show_progress=False)
    tokenizer.train_from_iterator(TRAINING.split("\n"), trainer)
    added_tokens(tokenizer)
    tokenizer.post_processor = processors.Sequence([
        processors.ByteLevel(trim_offsets=False),
        processors.TemplateProcessing(single="<|begin|> $A", pair="<|begin|> $A <|begin|> $B",
                                      special_tokens=[("<|begin|>", 0)])])
    return tokenizer, {"bos_token": "<|begin|>", "eos_token": {"content": "<|end|>"}}


def metaspace():
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"),
                                                 normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(),
                                           decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    specials = ["<unk>", "<s>", "</s>"] + [f"<0x{b:02X}>" for b in range(256)]
    trainer = trainers.BpeTrainer(vocab_size=700, special_tokens=specials, show_progress=False,
                                  max_token_length=12)
    tokenizer.train_from_iterator(TRAINING.replace("\n", " ").split(". "), trainer)
    saved = json.loads(tokenizer.to_str())  # byte tokens are part of the vocabulary, not added ones
    saved["added_tokens"] = [t for t in saved["added_tokens"] if not t["content"].startswith("<0x")]
    tokenizer = Tokenizer.from_str(json.dumps(saved))
    added_tokens(tokenizer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", pair="<s> $A </s> $B", special_tokens=[("<s>", 1), ("</s>", 2)])
    return tokenizer, {"bos_token": "<s>", "eos_token": "</s>"}


def goldens(tokenizer):
    rng = random.Random(5)
    cases = [{"text": text, "special": special,
              "ids": tokenizer.encode(text, add_special_tokens=special).ids}
             for text in TEXTS for special in (False, True)]
    decodes = []
    size = tokenizer.get_vocab_size()
    id_lists = [case["ids"] for case in cases[::3]]
    id_lists += [[rng.randrange(size) for _ in range(rng.randrange(1, 12))] for _ in range(60)]
    id_lists += [[rng.randrange(3, 259) for _ in range(rng.randrange(1, 6))] for _ in range(30)]
    for i, ids in enumerate(id_lists):
        skip = i % 2 == 0
        decodes.append({"ids": ids, "skip": skip,
                        "text": tokenizer.decode(ids, skip_special_tokens=skip)})
    return {"cases": cases, "decodes": decodes}


def rows(goldens):
    lines = lambda entries: ",\n".join(json.dumps(e, separators=(",", ":")) for e in entries)
    return '{"cases": [\n%s],\n"decodes": [\n%s]}\n' % (lines(goldens["cases"]),
                                                       lines(goldens["decodes"]))


def main():
    for name, make in (("byte_level", byte_level), ("metaspace", metaspace)):
        folder = Path(sys.argv[1]) / name
        folder.mkdir(parents=True, exist_ok=True)
        tokenizer, config = make()
        saved = json.loads(tokenizer.to_str())
        if name == "metaspace":  # both ways of writing merges
            saved["model"]["merges"] = [" ".join(m) for m in saved["model"]["merges"]]
        text = json.dumps(saved, ensure_ascii=False, separators=(",", ":"))
        (folder / "tokenizer.json").write_text(text)
        (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n")
        (folder / "goldens.json").write_text(rows(goldens(Tokenizer.from_str(text))))


main()
