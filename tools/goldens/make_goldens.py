#!/usr/bin/env python3
"""Makes tests/golden/models: tiny random models saved by transformers, and what transformers makes
of them.

    pip install torch==2.15.0 transformers==5.23.0 safetensors numpy
    python3 tools/goldens/make_goldens.py tests/golden/models            (all)
    python3 tools/goldens/make_goldens.py tests/golden/models gemma3 gpt2

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
    yield from families()


def families():
    """One tiny model for each family that is not a plain Llama, with every part of it in play."""
    T = transformers
    default = dict(rope_type="default", rope_theta=1000.0)
    small = dict(vocab_size=128, hidden_size=32, intermediate_size=48, num_attention_heads=4,
                 num_key_value_heads=2, rms_norm_eps=1e-6)
    plain = dict(small, rope_parameters=default)
    bf16 = (torch.bfloat16, None, False)
    yield ("mixtral", T.MixtralConfig,
           dict(plain, num_local_experts=4, num_experts_per_tok=2, sliding_window=14), *bf16)
    yield ("qwen2_moe", T.Qwen2MoeConfig,
           dict(plain, num_experts=6, num_experts_per_tok=3, moe_intermediate_size=16,
                shared_expert_intermediate_size=40, mlp_only_layers=[1]), *bf16)
    yield ("qwen3_moe", T.Qwen3MoeConfig,
           dict(plain, head_dim=16, num_experts=8, num_experts_per_tok=2, norm_topk_prob=True,
                moe_intermediate_size=16), *bf16)
    yield ("gemma", T.GemmaConfig, dict(plain, head_dim=16), *bf16)
    yield ("gemma2", T.Gemma2Config,
           dict(plain, head_dim=16, sliding_window=10, query_pre_attn_scalar=20,
                attn_logit_softcapping=3.0, final_logit_softcapping=5.0), *bf16)
    yield ("gemma3", T.Gemma3TextConfig,
           dict(small, head_dim=16, sliding_window=10, query_pre_attn_scalar=20,
                layer_types=["sliding_attention", "full_attention", "sliding_attention"],
                rope_parameters=dict(
                    full_attention=dict(rope_type="linear", factor=4.0, rope_theta=20000.0),
                    sliding_attention=dict(rope_type="default", rope_theta=500.0))), *bf16)
    # Pretrained for one token: the long factors hold for every sequence, as transformers chooses
    # them by its length.
    yield ("phi3_longrope", T.Phi3Config,
           dict(small, hidden_size=64, original_max_position_embeddings=1,
                rope_parameters=dict(rope_type="longrope", rope_theta=1000.0,
                                     partial_rotary_factor=0.75, attention_factor=1.19,
                                     original_max_position_embeddings=1,
                                     short_factor=[1.0, 1.1, 1.3, 1.6, 2.0, 2.5],
                                     long_factor=[1.0, 1.5, 3.0, 6.0, 9.0, 12.0])), *bf16)
    yield ("olmo2", T.Olmo2Config, plain, *bf16)
    yield ("granite", T.GraniteConfig,
           dict(plain, embedding_multiplier=3.0, residual_multiplier=0.6, logits_scaling=2.0,
                attention_multiplier=0.4, tie_word_embeddings=True), *bf16)
    yield ("smollm3", T.SmolLM3Config,
           dict(plain, no_rope_layers=[1, 0, 1], tie_word_embeddings=True), *bf16)
    yield ("gpt2", T.GPT2Config,
           dict(vocab_size=128, n_embd=32, n_layer=3, n_head=4, n_positions=256), *bf16)
    yield ("gpt_oss", T.GptOssConfig,
           dict(small, head_dim=16, num_local_experts=4, num_experts_per_tok=2, sliding_window=10,
                rope_parameters=dict(rope_type="yarn", rope_theta=1000.0, factor=4.0,
                                     beta_fast=32.0, beta_slow=1.0, truncate=False,
                                     original_max_position_embeddings=64)), *bf16)
    latent = dict(plain, num_key_value_heads=4, kv_lora_rank=24, qk_rope_head_dim=8,
                  qk_nope_head_dim=16, v_head_dim=12, n_shared_experts=2, num_experts_per_tok=2,
                  moe_intermediate_size=16, first_k_dense_replace=1, n_group=3, topk_group=2)
    yield ("deepseek_v2", T.DeepseekV2Config,
           dict(latent, q_lora_rank=None, n_routed_experts=6, routed_scaling_factor=1.5,
                topk_group=1,
                topk_method="group_limited_greedy"), *bf16)
    yield ("deepseek_v3", T.DeepseekV3Config,
           dict(latent, q_lora_rank=24, n_routed_experts=6, routed_scaling_factor=2.5,
                rope_parameters=dict(rope_type="yarn", rope_theta=1000.0, factor=4.0, mscale=0.8,
                                     mscale_all_dim=0.6, original_max_position_embeddings=64)),
           *bf16)
    # As the published files hold it: the experts in MXFP4.
    yield ("gpt_oss_mxfp4", T.GptOssConfig,
           dict(small, hidden_size=64, intermediate_size=32, head_dim=16, num_local_experts=4,
                num_experts_per_tok=2, sliding_window=10,
                rope_parameters=dict(rope_type="yarn", rope_theta=1000.0, factor=4.0,
                                     beta_fast=32.0, beta_slow=1.0, truncate=False,
                                     original_max_position_embeddings=64)), *bf16)
    yield ("glm4_moe", T.Glm4MoeConfig,
           dict(small, head_dim=16, attention_bias=True, use_qk_norm=True, n_routed_experts=6,
                n_shared_experts=1, num_experts_per_tok=2, moe_intermediate_size=16,
                first_k_dense_replace=1, n_group=3, topk_group=2, routed_scaling_factor=1.5,
                rope_parameters=dict(default, partial_rotary_factor=0.5)), *bf16)


def draw_weights(model, generator):
    with torch.no_grad():
        for name, p in model.named_parameters():
            normal = torch.randn(p.shape, generator=generator)
            gemma = model.config.model_type.startswith("gemma")  # norms lie around zero
            if name.endswith(("norm.weight", "ln_1.weight", "ln_2.weight", "ln_f.weight")):
                p.copy_((0.0 if gemma else 1.0) + 0.3 * normal)
            elif name.endswith("bias"):
                p.copy_(0.4 * normal)
            elif name.endswith("sinks"):
                p.copy_(2.0 * normal)
            elif "embed_tokens" in name or "wte" in name or "wpe" in name:
                p.copy_(0.3 * normal)
            else:
                inputs = p.shape[1] if p.dim() < 3 or "gpt" in model.config.model_type else p.shape[2]
                p.copy_(0.15 * normal * (64.0 / inputs) ** 0.5)
        for name, b in model.named_buffers():
            if name.endswith("e_score_correction_bias"):
                b.copy_(0.2 * torch.randn(b.shape, generator=generator))


def to_mxfp4(folder, generator):
    """Puts random MXFP4 blocks where the experts' matrices were, as gpt-oss is published: of
    [expert, out, in / 32, 16] bytes with two numbers each, and a scale 2^(byte - 127) a block."""
    from safetensors.torch import load_file
    path = folder / "model.safetensors"
    tensors = load_file(path)
    for name in [n for n in tensors if n.endswith(("gate_up_proj", "down_proj"))]:
        experts, inputs, outputs = tensors.pop(name).shape
        shape = (experts, outputs, inputs // 32)
        tensors[name + "_blocks"] = torch.randint(0, 256, (*shape, 16), generator=generator,
                                                  dtype=torch.uint8)
        tensors[name + "_scales"] = torch.randint(120, 125, shape, generator=generator,
                                                  dtype=torch.uint8)
    save_file(tensors, path, metadata={"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] = {
        "modules_to_not_convert": ["model.layers.*.self_attn", "model.layers.*.mlp.router",
                                   "model.embed_tokens", "lm_head"],
        "quant_method": "mxfp4"}
    (folder / "config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")


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
    if len(sys.argv) < 2 or sys.argv[1].startswith("-"):
        sys.exit(__doc__)
    root = pathlib.Path(sys.argv[1])
    torch.set_num_threads(1)
    wanted = sys.argv[2:]
    for index, (name, config_class, args, dtype, shard, old) in enumerate(models()):
        if wanted and name not in wanted:
            continue
        folder = root / name
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        generator = torch.Generator().manual_seed(1000 + index)
        common = COMMON
        if config_class is transformers.GPT2Config:  # its own names
            common = {k: v for k, v in COMMON.items() if "token_id" in k}
        config = config_class(**common, **args)
        config._attn_implementation = "eager"
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
        draw_weights(model, generator)
        model = model.to(dtype)
        model.config.dtype = dtype
        model.save_pretrained(folder, **({"max_shard_size": shard} if shard else {}))
        if old:
            old_style(folder, args["rope_parameters"])
        options = {}
        if name.endswith("mxfp4"):
            to_mxfp4(folder, generator)
            options["quantization_config"] = transformers.Mxfp4Config(dequantize=True)
        # Read back what was saved, in float32: the reference sees the files, rounding included.
        model = transformers.AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.float32, attn_implementation="eager", **options).eval()
        assert all(p.dtype == torch.float32 for p in model.parameters())
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
