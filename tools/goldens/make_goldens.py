#!/usr/bin/env python3
"""Makes tests/golden/models: tiny random models saved by transformers, and what transformers makes
of them.

    pip install torch==2.11.0 transformers==5.17.0 safetensors numpy
    python3 tools/goldens/make_goldens.py tests/golden/models

Each folder NAME holds what a real model's folder holds (config.json, generation_config.json,
safetensors) and reference.safetensors:
  prompt_I           [n] int32       random ids, several lengths
  logits_I           [n, vocab] f32  transformers, float32, eager attention, at every position
  greedy_prompt_I    [p] int32
  greedy_tokens_I    [64] int32      the largest logit each time
  greedy_margin_I    [64] f32        the best logit minus the second best
The reference always runs in float32 on the weights as the files hold them (rounded to bf16 or f16
where the files do). Weights are drawn wide (0.15 and more, biases and norms too), so that no part
of the model can be left out unseen.
"""
import json
import pathlib
import shutil
import sys

import numpy
import torch
import transformers
from safetensors.torch import save_file

PROMPT_LENGTHS = (1, 6, 17, 33)
GREEDY_PROMPT_LENGTHS = (3, 12)
NUM_GREEDY = 64
COMMON = dict(num_hidden_layers=3, max_position_embeddings=256, bos_token_id=1, eos_token_id=2,
              pad_token_id=0)


def models():
    """(name, config class, its arguments, dtype of the files, shard size or None, old style)"""
    T = transformers
    llama3 = dict(rope_type="llama3", rope_theta=10000.0, factor=8.0, low_freq_factor=1.0,
                  high_freq_factor=4.0, original_max_position_embeddings=32)
    yarn = dict(rope_type="yarn", rope_theta=10000.0, factor=4.0,
                original_max_position_embeddings=64)
    yield ("llama_tied_llama3", T.LlamaConfig,
           dict(vocab_size=200, hidden_size=64, intermediate_size=96, num_attention_heads=4,
                num_key_value_heads=2, tie_word_embeddings=True, rms_norm_eps=1e-5,
                rope_parameters=llama3), torch.bfloat16, None, True)
    yield ("llama_untied_bias", T.LlamaConfig,
           dict(vocab_size=203, hidden_size=32, intermediate_size=48, num_attention_heads=4,
                num_key_value_heads=1, tie_word_embeddings=False, rms_norm_eps=1e-5,
                attention_bias=True, mlp_bias=True,
                rope_parameters=dict(rope_type="linear", rope_theta=500.0, factor=2.5)),
           torch.float32, None, False)
    yield ("mistral_f16", T.MistralConfig,
           dict(vocab_size=160, hidden_size=32, intermediate_size=64, num_attention_heads=2,
                num_key_value_heads=2, head_dim=32, tie_word_embeddings=False, rms_norm_eps=1e-6,
                sliding_window=12, rope_parameters=dict(rope_type="default", rope_theta=1000.0)),
           torch.float16, None, False)
    yield ("qwen2_sharded", T.Qwen2Config,
           dict(vocab_size=200, hidden_size=64, intermediate_size=80, num_attention_heads=4,
                num_key_value_heads=2, tie_word_embeddings=False, rms_norm_eps=1e-6,
                rope_parameters=dict(rope_type="default", rope_theta=10000.0)),
           torch.bfloat16, "120KB", False)
    yield ("qwen2_f32", T.Qwen2Config,
           dict(vocab_size=128, hidden_size=32, intermediate_size=48, num_attention_heads=4,
                num_key_value_heads=2, tie_word_embeddings=True, rms_norm_eps=1e-6,
                use_sliding_window=True, sliding_window=10, max_window_layers=1,
                rope_parameters=yarn), torch.float32, None, True)
    yield ("qwen3_head_dim", T.Qwen3Config,
           dict(vocab_size=200, hidden_size=64, intermediate_size=64, num_attention_heads=4,
                num_key_value_heads=2, head_dim=32, tie_word_embeddings=True, rms_norm_eps=1e-6,
                rope_parameters=dict(rope_type="default", rope_theta=10000.0)),
           torch.bfloat16, None, False)


def draw_weights(model, generator):
    with torch.no_grad():
        for name, p in model.named_parameters():
            normal = torch.randn(p.shape, generator=generator)
            if name.endswith("norm.weight"):
                p.copy_(1.0 + 0.3 * normal)
            elif name.endswith("bias"):
                p.copy_(0.4 * normal)
            elif "embed_tokens" in name:
                p.copy_(0.3 * normal)
            else:
                p.copy_(0.15 * normal * (64.0 / p.shape[1]) ** 0.5)


def old_style(folder, rope):
    """Rewrites config.json the way that checkpoints before transformers 5 wrote it."""
    path = folder / "config.json"
    config = json.loads(path.read_text())
    del config["rope_parameters"]
    rope = dict(rope)
    config["rope_theta"] = rope.pop("rope_theta")
    config["rope_scaling"] = rope
    config["torch_dtype"] = config.pop("dtype")
    config["transformers_version"] = "4.45.0"
    path.write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")


def reference(model, generator, vocab):
    out = {}

    def ids(n):
        return torch.randint(3, vocab, (n,), generator=generator)

    with torch.no_grad():
        for i, n in enumerate(PROMPT_LENGTHS):
            prompt = ids(n)
            out[f"prompt_{i}"] = prompt.to(torch.int32)
            out[f"logits_{i}"] = model(prompt[None]).logits[0].float().contiguous()
        for i, n in enumerate(GREEDY_PROMPT_LENGTHS):
            prompt = ids(n)
            sequence, tokens, margins = prompt.tolist(), [], []
            for _ in range(NUM_GREEDY):
                logits = model(torch.tensor([sequence])).logits[0, -1].float()
                best = torch.topk(logits, 2).values
                tokens.append(int(torch.argmax(logits)))
                margins.append(float(best[0] - best[1]))
                sequence.append(tokens[-1])
            out[f"greedy_prompt_{i}"] = prompt.to(torch.int32)
            out[f"greedy_tokens_{i}"] = torch.tensor(tokens, dtype=torch.int32)
            out[f"greedy_margin_{i}"] = torch.tensor(margins, dtype=torch.float32)
    return out


def main():
    root = pathlib.Path(sys.argv[1])
    torch.set_num_threads(1)
    for seed, (name, config_class, args, dtype, shard, old) in enumerate(models()):
        folder = root / name
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        generator = torch.Generator().manual_seed(1000 + seed)
        config = config_class(**COMMON, **args)
        config._attn_implementation = "eager"
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
        draw_weights(model, generator)
        model = model.to(dtype)
        model.config.dtype = dtype
        model.save_pretrained(folder, **({"max_shard_size": shard} if shard else {}))
        if old:
            old_style(folder, args["rope_parameters"])
        # Read back what was saved, in float32: the reference sees the files, rounding included.
        model = transformers.AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.float32, attn_implementation="eager").eval()
        out = reference(model, generator, args["vocab_size"])
        save_file(out, folder / "reference.safetensors")
        for file in folder.iterdir():
            file.chmod(0o644)
        spread = numpy.concatenate([out[f"logits_{i}"].numpy().ravel()
                                    for i in range(len(PROMPT_LENGTHS))])
        margins = numpy.concatenate([out[f"greedy_margin_{i}"].numpy()
                                     for i in range(len(GREEDY_PROMPT_LENGTHS))])
        distinct = len({t for i in range(len(GREEDY_PROMPT_LENGTHS))
                        for t in out[f"greedy_tokens_{i}"].tolist()})
        size = sum(f.stat().st_size for f in folder.iterdir())
        print(f"{name}: {size} bytes, logits std {spread.std():.3f} range {numpy.ptp(spread):.2f}, "
              f"least margin {margins.min():.4f}, {distinct} greedy tokens differ")


if __name__ == "__main__":
    main()
