#!/usr/bin/env python3
"""Makes tests/golden/beams: what transformers' beam search finds with the model that ships and with
models in tests/golden/models. Log-probabilities are those behind bans (renormalize_logits).

    pip install torch==2.15.0 transformers==5.17.0 safetensors numpy
    python3 tools/goldens/make_beam_goldens.py tests/golden

NAME.safetensors, for case I:
  prompt_I  [p] int32
  options_I [6] float32        num_beams, answers, max_new_tokens, length_penalty,
                               early_stopping (0 false, 1 true, 2 "never"), min_new_tokens
  stops_I   [s] int32          token ids that end an answer; there are no others
  tokens_I  [n, longest] int32 the answers, the best first, -1 behind their ends
  scores_I  [n] float32        sequences_scores
"""
import pathlib
import sys

import numpy
import torch
import transformers
from safetensors.numpy import load_file, save_file

MODELS = ("llama_tied_llama3", "gemma2", "qwen3_moe")
# num_beams, answers, max_new_tokens, length_penalty, early_stopping, min_new_tokens, stops
CASES = ((4, 4, 24, 1.0, False, 0, 0), (2, 1, 12, 1.0, False, 0, 0), (3, 2, 20, 0.0, "never", 0, 2),
         (5, 3, 20, 2.0, True, 0, 3), (8, 8, 16, 0.5, "never", 0, 1), (4, 2, 20, -1.0, False, 6, 2),
         (2, 2, 1, 1.0, False, 0, 1), (6, 6, 30, 1.0, "never", 0, 4))
EARLY = {False: 0, True: 1, "never": 2}


def load(folder):
    model = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager")
    model.generation_config = transformers.GenerationConfig()
    return model.eval()


def inputs(prompt):
    """With a mask, for the padding's id may be one of the prompt."""
    ids = torch.tensor(prompt[None].astype(numpy.int64))
    return dict(input_ids=ids, attention_mask=torch.ones_like(ids))


def likely_tokens(model, prompt, count):
    """Tokens that beams reach early, so that some of them end."""
    with torch.no_grad():
        found = model.generate(**inputs(prompt), num_beams=4, num_return_sequences=4, max_new_tokens=8,
                               do_sample=False, pad_token_id=0)
    tokens = found[:, len(prompt) + 2:].flatten().tolist()
    return list(dict.fromkeys(tokens))[:count]


def answers(model, prompt, case, stops):
    beams, count, length, penalty, early, least, _ = case
    with torch.no_grad():
        found = model.generate(
            **inputs(prompt), num_beams=beams, do_sample=False, num_return_sequences=count,
            max_new_tokens=length, min_new_tokens=least or None,
            length_penalty=penalty, early_stopping=early, eos_token_id=stops or None,
            pad_token_id=0, renormalize_logits=True, return_dict_in_generate=True, output_scores=True)
    tokens = found.sequences[:, len(prompt):].numpy().astype(numpy.int32)
    for row in tokens:
        ends = [i for i, token in enumerate(row) if token in stops and i >= least]
        if ends:
            row[ends[0] + 1:] = -1
    return tokens, found.sequences_scores.numpy().astype(numpy.float32)


def make(model, prompts, target):
    out = {}
    for i, case in enumerate(CASES):
        prompt = prompts[i % len(prompts)].astype(numpy.int32)
        stops = likely_tokens(model, prompt, case[-1])
        tokens, scores = answers(model, prompt, case, stops)
        out[f"prompt_{i}"] = prompt
        out[f"options_{i}"] = numpy.array([*case[:4], EARLY[case[4]], case[5]], numpy.float32)
        out[f"stops_{i}"] = numpy.array(stops, numpy.int32)
        out[f"tokens_{i}"], out[f"scores_{i}"] = tokens, scores
    save_file(out, target)


def main():
    root = pathlib.Path(sys.argv[1])
    target = root / "beams"
    target.mkdir(parents=True, exist_ok=True)
    for name in MODELS:
        reference = load_file(root / "models" / name / "reference.safetensors")
        prompts = [reference[k] for k in sorted(reference) if k.startswith("greedy_prompt_")]
        make(load(root / "models" / name), prompts, target / f"{name}.safetensors")
    folder = root.parents[1] / "share" / "default_model"
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    texts = ("Once upon a time", "The little dog", "Question: What is the name of the cat?\nAnswer:")
    prompts = [numpy.array(tokenizer(text)["input_ids"], numpy.int32) for text in texts]
    make(load(folder), prompts, target / "default_model.safetensors")


if __name__ == "__main__":
    main()
