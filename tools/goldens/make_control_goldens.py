#!/usr/bin/env python3
"""Makes tests/golden/control: control vectors for models in tests/golden/models, and what transformers
answers when a forward hook adds them to what the layers leave.

    pip install torch==2.15.0 transformers==5.17.0 safetensors numpy
    python3 tools/goldens/make_control_goldens.py tests/golden

NAME.vector.safetensors: direction.N [hidden] f32, of all layers but the first
NAME.answers.safetensors, for case I:
  use_I      [3] float32       scale, first layer, last layer
  prompt_I   [p] int32
  tokens_I   [16] int32        the largest logit each time
  logprobs_I [16] float32      of these tokens
"""
import pathlib
import sys

import numpy
import torch
import transformers
from safetensors.numpy import load_file, save_file

MODELS = ("llama_tied_llama3", "gemma2", "gpt2", "qwen3_moe")
CASES = ((0.0, 0, 99), (1.0, 0, 99), (-1.5, 0, 99), (3.0, 1, 1))
NUM_OUTPUT = 16


def layers_of(model):
    return model.transformer.h if hasattr(model, "transformer") else model.model.layers


def steer(model, directions, scale, first, last):
    def hook_of(vector):
        def hook(_module, _inputs, output):
            if isinstance(output, tuple):
                return (output[0] + vector, *output[1:])
            return output + vector
        return hook
    return [layer.register_forward_hook(hook_of(scale * torch.tensor(directions[f"direction.{i}"])))
            for i, layer in enumerate(layers_of(model))
            if first <= i <= last and f"direction.{i}" in directions]


def answer(model, prompt):
    ids, tokens, logprobs = torch.tensor(prompt[None].astype(numpy.int64)), [], []
    for _ in range(NUM_OUTPUT):
        with torch.no_grad():
            row = torch.log_softmax(model(ids, use_cache=False).logits[0, -1].float(), -1)
        tokens.append(int(row.argmax()))
        logprobs.append(float(row.max()))
        ids = torch.cat([ids, torch.tensor([[tokens[-1]]])], dim=1)
    return numpy.array(tokens, numpy.int32), numpy.array(logprobs, numpy.float32)


def make(name, root, target):
    model = transformers.AutoModelForCausalLM.from_pretrained(
        root / "models" / name, dtype=torch.float32, attn_implementation="eager").eval()
    reference = load_file(root / "models" / name / "reference.safetensors")
    random = numpy.random.default_rng(len(name))
    hidden, count = model.config.hidden_size, model.config.num_hidden_layers
    with torch.no_grad():
        states = model(torch.tensor(reference["greedy_prompt_0"][None].astype(numpy.int64)),
                       output_hidden_states=True).hidden_states
    # As strong as a third of what the layer leaves.
    directions = {f"direction.{i}": (random.standard_normal(hidden) * float(states[i + 1].std()) / 3)
                  .astype(numpy.float32) for i in range(1, count)}
    save_file(directions, target / f"{name}.vector.safetensors")
    out = {}
    for i, (scale, first, last) in enumerate(CASES):
        prompt = reference[f"greedy_prompt_{i % 2}"].astype(numpy.int32)
        hooks = steer(model, directions, scale, first, last)
        out[f"use_{i}"] = numpy.array([scale, first, min(last, count - 1)], numpy.float32)
        out[f"prompt_{i}"] = prompt
        out[f"tokens_{i}"], out[f"logprobs_{i}"] = answer(model, prompt)
        for hook in hooks:
            hook.remove()
    save_file(out, target / f"{name}.answers.safetensors")


def main():
    root = pathlib.Path(sys.argv[1])
    target = root / "control"
    target.mkdir(parents=True, exist_ok=True)
    for name in MODELS:
        make(name, root, target)


if __name__ == "__main__":
    main()
