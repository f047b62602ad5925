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

from corpus import TRAINING
from make_fuzz_vocabularies import read_model

LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
          r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")

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


def unigram():
    """As converted from a SentencePiece model with a normaliser of its own."""
    pieces, charsmap = read_model(trained_sentencepiece("unigram", MODELS["unigram"]))
    tokenizer = Tokenizer(models.Unigram([(t, s) for t, s, _ in pieces], 0))
    tokenizer.normalizer = normalizers.Precompiled(charsmap)
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    tokenizer.decoder = decoders.Metaspace(prepend_scheme="always")
    tokenizer.add_special_tokens(["<unk>", "<s>", "</s>"])
    added_tokens(tokenizer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="$A </s>", pair="$A </s> $B </s>", special_tokens=[("</s>", 2)])
    return tokenizer, {"eos_token": "</s>"}


def word_piece():
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]", max_input_chars_per_word=40))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.train_from_iterator(TRAINING.split("\n"), trainers.WordPieceTrainer(
        vocab_size=500, show_progress=False, special_tokens=["[UNK]", "[CLS]", "[SEP]"]))
    added_tokens(tokenizer)
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 2), ("[CLS]", 1))
    return tokenizer, {}


# SentencePiece models: what each is for, and how it is trained.
CHARSMAP = "41\t61\n42\t62\ne9\t65 301\n2160\t49\n2161\t49 49\nff21\t41\n61 30a\te5\n3000\t20\na0\t20\n9\t20\na\t20\nd a\t20\nad\t\n"
SYMBOLS = ["<tool call>", "foo", "fo"]
MODELS = {
    "unigram": {"remove_extra_whitespaces": True, "rules": CHARSMAP},
    "unigram_bytes": {"byte_fallback": True, "user_defined_symbols": SYMBOLS,
                      "remove_extra_whitespaces": False},
    "bpe_bytes": {"model_type": "bpe", "byte_fallback": True, "user_defined_symbols": SYMBOLS,
                  "remove_extra_whitespaces": False, "split_digits": True},
    "bpe": {"model_type": "bpe", "rules": CHARSMAP},
    "bpe_suffix": {"model_type": "bpe", "treat_whitespace_as_suffix": True},
    "char": {"model_type": "char", "user_defined_symbols": SYMBOLS},
    "word": {"model_type": "word", "add_dummy_prefix": False},
}


def trained_sentencepiece(name, options):
    import io
    import tempfile

    import sentencepiece
    out = io.BytesIO()
    settings = {"vocab_size": 420, "hard_vocab_limit": False, "character_coverage": 0.98,
                "minloglevel": 2, "num_threads": 1, "normalization_rule_name": "identity"}
    settings |= {k: v for k, v in options.items() if k != "rules"}
    with tempfile.NamedTemporaryFile("w", suffix=".tsv") as rules:
        if "rules" in options:
            rules.write(options["rules"])
            rules.flush()
            del settings["normalization_rule_name"]
            settings["normalization_rule_tsv"] = rules.name
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter([line for line in TRAINING.split("\n") if line] * 3),
            model_writer=out, **settings)
    return out.getvalue()


def ties_model():
    """A Unigram with two cuts of "abc" whose scores are nearly equal."""
    from sentencepiece import sentencepiece_model_pb2
    model = sentencepiece_model_pb2.ModelProto()
    for text, score, kind in (("<unk>", 0, 2), ("<s>", 0, 3), ("</s>", 0, 3), ("▁a", -6.4932256, 1),
                              ("bc", -7.254762, 1), ("▁ab", -6.4956126, 1), ("c", -7.2497587, 1),
                              ("▁", -20, 1), ("a", -20, 1), ("b", -20, 1)):
        piece = model.pieces.add()
        piece.piece, piece.score, piece.type = text, score, kind
    trainer, normalizer = model.trainer_spec, model.normalizer_spec
    trainer.model_type, trainer.vocab_size = 1, len(model.pieces)
    trainer.unk_id, trainer.bos_id, trainer.eos_id = 0, 1, 2
    normalizer.name = "identity"
    normalizer.add_dummy_prefix = normalizer.remove_extra_whitespaces = True
    normalizer.escape_whitespaces = True
    return model.SerializeToString()


def sentencepiece_goldens(data):
    import sentencepiece
    processor = sentencepiece.SentencePieceProcessor(model_proto=data)
    rng = random.Random(5)
    cases = [{"text": text, "special": False, "ids": processor.encode(text)} for text in TEXTS]
    size = processor.get_piece_size()
    id_lists = [case["ids"] for case in cases[::3]]
    id_lists += [[rng.randrange(size) for _ in range(rng.randrange(1, 12))] for _ in range(60)]
    return {"cases": cases, "decodes": [{"ids": ids, "skip": True, "text": processor.decode(ids)}
                                        for ids in id_lists]}


def tiktoken_files(folder):
    """A rank file of bytes and what the byte-level fixture learned, read with each of the patterns."""
    import base64

    import tiktoken_reference
    saved = json.loads(byte_level()[0].to_str())
    spelled = {v: k for k, v in zip([*range(33, 127), *range(161, 173), *range(174, 256)],
                                    map(chr, [*range(33, 127), *range(161, 173), *range(174, 256)]))}
    spelled.update({chr(256 + n): b for n, b in enumerate(
        b for b in range(256) if b not in spelled.values())})
    tokens = [bytes([b]) for b in range(256)]
    tokens += [bytes(spelled[c] for c in a + b) for a, b in saved["model"]["merges"]]
    text = b"".join(base64.b64encode(t) + b" %d\n" % i for i, t in enumerate(dict.fromkeys(tokens)))
    for kind in tiktoken_reference.KINDS:
        path = folder / "ranks.tiktoken"
        path.write_bytes(text)
        encoding = tiktoken_reference.encoding_of(str(path), kind)
        rng = random.Random(5)
        ids = [*encoding._mergeable_ranks.values(), *encoding._special_tokens.values()]
        texts = TEXTS + ["a \n ", "\n\n  ", "x<|endoftext|> y<|end_of_text|>\n"]
        cases = [{"text": t, "special": False, "ids": encoding.encode(t, allowed_special="all")}
                 for t in texts]
        decodes = [{"ids": (chosen := rng.choices(ids, k=8)), "skip": False,
                    "text": encoding.decode(chosen)} for _ in range(40)]
        (folder / f"{kind}.json").write_text(rows({"cases": cases, "decodes": decodes}))


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


def pairs(tokenizer):
    """Texts alone and in pairs, with types, cut to some lengths (0: whole)."""
    texts = ["", "the heron", "Reiher 鷺 don't", "water " * 9, "[UNK] a\tb"]
    cases = []
    for first in texts:
        for second in [None, *texts]:
            for most in (0, 3, 4, 9, 12):
                tokenizer.no_truncation()
                if most:
                    tokenizer.enable_truncation(most)
                encoded = tokenizer.encode(first, second)
                cases.append({"text": first, "pair": second, "max": most, "ids": encoded.ids,
                              "types": encoded.type_ids})
    return cases


def main():
    if len(sys.argv) != 2 or sys.argv[1].startswith("-"):
        sys.exit(__doc__)
    for name, options in MODELS.items():
        folder = Path(sys.argv[1]) / "sentencepiece"
        folder.mkdir(parents=True, exist_ok=True)
        data = trained_sentencepiece(name, options)
        (folder / f"{name}.model").write_bytes(data)
        (folder / f"{name}.json").write_text(rows(sentencepiece_goldens(data)))
    (Path(sys.argv[1]) / "sentencepiece" / "ties.model").write_bytes(ties_model())
    folder = Path(sys.argv[1]) / "tiktoken"
    folder.mkdir(parents=True, exist_ok=True)
    tiktoken_files(folder)
    for name, make in (("byte_level", byte_level), ("metaspace", metaspace), ("unigram", unigram),
                       ("word_piece", word_piece)):
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
        (folder / "pairs.json").write_text("[\n" + ",\n".join(
            json.dumps(case, ensure_ascii=False) for case in pairs(Tokenizer.from_str(text))) + "\n]\n")


main()
