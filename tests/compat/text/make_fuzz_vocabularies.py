#!/usr/bin/env python3
"""Trains small vocabularies of every kind for fuzz_tokenizers.py, too large for the repository.

    python tests/compat/text/make_fuzz_vocabularies.py FOLDER [SENTENCEPIECE_MODEL ...]
Writes SentencePiece models (Unigram, BPE, words, characters; with and without byte fallback, dummy
prefix, user-defined symbols, NFKC) and tokenizer.json files (Unigram as converted from SentencePiece,
WordPiece as BERT has it, BPE). Further models are converted to tokenizer.json as Llama's is.
Needs the packages of requirements.txt.
"""
import base64
import io
import json
import struct
import sys
from pathlib import Path

import sentencepiece
from tokenizers import (AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers,
                        processors, trainers)

from corpus import SENTENCES, TRAINING

LINES = [line for line in TRAINING.split("\n") + SENTENCES if line] * 4


def fields(data):
    """(number, value) of a protocol buffer's fields."""
    i = 0

    def varint():
        nonlocal i
        value = shift = 0
        while True:
            byte = data[i]
            i += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value
    while i < len(data):
        tag = varint()
        if tag & 7 == 0:
            yield tag >> 3, varint()
        elif tag & 7 == 2:
            size = varint()
            i += size
            yield tag >> 3, data[i - size:i]
        else:
            size = 8 if tag & 7 == 1 else 4
            i += size
            yield tag >> 3, data[i - size:i]


def read_model(data):
    pieces, charsmap = [], b""
    for number, value in fields(data):
        if number == 1:
            piece = dict(fields(value))
            pieces.append((piece[1].decode(), struct.unpack("<f", piece[2])[0], piece.get(3, 1)))
        if number == 3:
            charsmap = dict(fields(value)).get(2, b"")
    return pieces, charsmap


def train(path, **options):
    out = io.BytesIO()
    settings = {"vocab_size": 900, "hard_vocab_limit": False, "character_coverage": 0.98,
                "minloglevel": 2, "num_threads": 1} | options
    sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter(LINES), model_writer=out,
                                             **settings)
    path.write_bytes(out.getvalue())


def unigram_json(model_path, byte_fallback, prepend):
    """As transformers converts a T5 or XLM-R."""
    pieces, charsmap = read_model(model_path.read_bytes())
    unk = next(i for i, p in enumerate(pieces) if p[2] == 2)
    tokenizer = Tokenizer(models.Unigram([(t, s) for t, s, _ in pieces], unk,
                                         byte_fallback=byte_fallback))
    steps = [normalizers.Precompiled(charsmap)] if charsmap else []
    tokenizer.normalizer = normalizers.Sequence(steps + [normalizers.Replace(" ", "▁")] if not steps
                                                else steps)
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme=prepend)
    tokenizer.decoder = decoders.Metaspace(replacement="▁", prepend_scheme=prepend)
    if byte_fallback:
        tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(),
                                               decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    tokenizer.add_special_tokens([t for t, _, kind in pieces if kind in (2, 3)])
    tokenizer.add_tokens([AddedToken("<tool call>", normalized=False), AddedToken("</tool>")])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="$A </s>", pair="$A </s> $B </s>", special_tokens=[("</s>", 2)])
    return tokenizer


def llama_json(model_path):
    """As transformers converts a Llama: BPE without a pre-tokeniser."""
    pieces, _ = read_model(Path(model_path).read_bytes())
    ids = {t: i for i, (t, _, _) in enumerate(pieces)}
    merges = []
    for text, score, _ in pieces:
        splits = [(text[:i], text[i:]) for i in range(1, len(text))
                  if text[:i] in ids and text[i:] in ids]
        merges += [(-score, ids[a], ids[b], a, b) for a, b in splits]
    merges.sort()
    tokenizer = Tokenizer(models.BPE(ids, [(a, b) for *_, a, b in merges], unk_token="<unk>",
                                     fuse_unk=True, byte_fallback=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"),
                                                 normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(),
                                           decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    tokenizer.add_special_tokens([AddedToken(t, normalized=False, special=True)
                                  for t, _, kind in pieces if kind in (2, 3)])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A <s> $B", special_tokens=[("<s>", 1)])
    return tokenizer


def word_piece(lowercase):
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]", max_input_chars_per_word=40))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=lowercase)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece(cleanup=lowercase)
    trainer = trainers.WordPieceTrainer(vocab_size=900, show_progress=False, special_tokens=[
        "[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"])
    tokenizer.train_from_iterator(LINES, trainer)
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    return tokenizer


def word_level():
    tokenizer = Tokenizer(models.WordLevel(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase()])
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(),
                                                       pre_tokenizers.Punctuation()])
    tokenizer.train_from_iterator(LINES, trainers.WordLevelTrainer(
        vocab_size=400, show_progress=False, special_tokens=["[UNK]", "[PAD]"]))
    return tokenizer


def affixed_bpe():
    """As CLIP has it: a suffix ends each word."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", end_of_word_suffix="</w>"))
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFD(), normalizers.StripAccents(),
                                                 normalizers.Lowercase()])
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.decoder = decoders.BPEDecoder(suffix="</w>")
    tokenizer.train_from_iterator(LINES, trainers.BpeTrainer(
        vocab_size=600, show_progress=False, special_tokens=["<unk>"], end_of_word_suffix="</w>"))
    return tokenizer


def main():
    if len(sys.argv) < 2 or sys.argv[1].startswith("-"):
        sys.exit(__doc__)
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    symbols = {"user_defined_symbols": ["<tool call>", "foo", "fo", "def return"]}
    nfkc = {"normalization_rule_name": "nmt_nfkc"}
    identity = {"normalization_rule_name": "identity", "remove_extra_whitespaces": False}
    train(folder / "unigram_nfkc.model", **nfkc)
    train(folder / "unigram_bytes.model", byte_fallback=True, **identity, **symbols)
    train(folder / "unigram_casefold.model", normalization_rule_name="nmt_nfkc_cf", **symbols)
    train(folder / "unigram_plain.model", add_dummy_prefix=False, **identity)
    train(folder / "bpe_nfkc.model", model_type="bpe", **nfkc, **symbols)
    train(folder / "bpe_bytes.model", model_type="bpe", byte_fallback=True, **identity, **symbols,
          split_digits=True, allow_whitespace_only_pieces=True)
    train(folder / "bpe_suffix.model", model_type="bpe", treat_whitespace_as_suffix=True)
    train(folder / "bpe_across.model", model_type="bpe", split_by_whitespace=False,
          byte_fallback=True)
    train(folder / "char.model", model_type="char", **symbols)
    train(folder / "word.model", model_type="word")
    made = {"unigram": unigram_json(folder / "unigram_nfkc.model", False, "always"),
            "unigram_bytes": unigram_json(folder / "unigram_bytes.model", True, "first"),
            "word_piece": word_piece(True), "word_piece_cased": word_piece(False),
            "word_level": word_level(), "affixed_bpe": affixed_bpe()}
    for path in sys.argv[2:]:
        made["llama_" + Path(path).name.replace(".", "_")] = llama_json(path)
    for name, tokenizer in made.items():
        tokenizer.save(str(folder / f"{name}.json"))


if __name__ == "__main__":
    main()
