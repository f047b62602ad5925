#!/usr/bin/env python3
"""Makes tests/golden/insides: hidden states of models in tests/golden/models, and what
transformers' processor of repeated n-grams bans.

    pip install torch==2.15.0 transformers==5.17.0 safetensors numpy
    python3 tools/goldens/make_insides_goldens.py tests/golden

hidden_states/NAME.safetensors:
  prompt   [p] int32                      a prompt of the model's own golden
  output   [8] int32                      the largest logit each time
  states   [layers + 1, p + 7, hidden] f32  of the prompt and of all output tokens but the last:
                                          embeddings, behind each layer, behind the final norm
no_repeat_ngram.safetensors, for case I:
  tokens_I [n] int32, banned_I [vocab] int32; size_I [1] int32
  and for each model NAME of hidden_states and size N in 2, 3:
  NAME.N   [40] int32                     greedy tokens with no_repeat_ngram_size N
"""
import pathlib
import sys

import numpy
import torch
import transformers
from safetensors.numpy import load_file, save_file

MODELS = ("llama_tied_llama3", "gemma2", "gpt2")
NUM_OUTPUT, NUM_BANNED_OUTPUT = 8, 40


def load(folder):
    model = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager")
    return model.eval()


def states_of(model, reference):
    prompt = reference["greedy_prompt_1"].astype(numpy.int32)
    output = reference["greedy_tokens_1"][:NUM_OUTPUT].astype(numpy.int32)
    ids = torch.tensor(numpy.concatenate([prompt, output[:-1]])[None].astype(numpy.int64))
    with torch.no_grad():
        out = model(ids, output_hidden_states=True, use_cache=False)
    assert [int(row.argmax()) for row in out.logits[0, len(prompt) - 1:]] == output.tolist()
    return dict(prompt=prompt, output=output,
                states=numpy.stack([s[0].numpy() for s in out.hidden_states]))


def greedy_without_repeats(model, prompt, size):
    processor = transformers.NoRepeatNGramLogitsProcessor(size)
    ids = torch.tensor(prompt[None].astype(numpy.int64))
    for _ in range(NUM_BANNED_OUTPUT):
        with torch.no_grad():
            scores = processor(ids, model(ids, use_cache=False).logits[:, -1])
        ids = torch.cat([ids, scores.argmax(-1, keepdim=True)], dim=1)
    return ids[0, len(prompt):].numpy().astype(numpy.int32)


def banned_cases(out):
    random = numpy.random.default_rng(11)
    vocab = 24
    for case, (size, length) in enumerate([(1, 5), (2, 1), (2, 40), (3, 2), (3, 200), (4, 300), (5, 3)]):
        tokens = random.integers(0, 4 if size > 2 else vocab, length)
        if size == 4:
            tokens[-3:] = tokens[10:13]
        scores = transformers.NoRepeatNGramLogitsProcessor(size)(
            torch.tensor(tokens[None].astype(numpy.int64)), torch.zeros(1, vocab))
        out[f"tokens_{case}"] = tokens.astype(numpy.int32)
        out[f"size_{case}"] = numpy.array([size], numpy.int32)
        out[f"banned_{case}"] = torch.isinf(scores[0]).numpy().astype(numpy.int32)


def main():
    root = pathlib.Path(sys.argv[1])
    target = root / "insides" / "hidden_states"
    target.mkdir(parents=True, exist_ok=True)
    ngrams = {}
    banned_cases(ngrams)
    for name in MODELS:
        model = load(root / "models" / name)
        made = states_of(model, load_file(root / "models" / name / "reference.safetensors"))
        save_file(made, target / f"{name}.safetensors")
        for size in (2, 3):
            ngrams[f"{name}.{size}"] = greedy_without_repeats(model, made["prompt"], size)
    save_file(ngrams, root / "insides" / "no_repeat_ngram.safetensors")


if __name__ == "__main__":
    main()
