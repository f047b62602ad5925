#!/usr/bin/env python3
"""Makes tests/golden/mtp: tiny random models with a layer for multi-token prediction (MTP) in their
checkpoints, named as the published ones, and what transformers and the layer below make of them.

    pip install torch==2.15.0 transformers==5.24.0 safetensors numpy
    python3 tools/goldens/make_mtp_goldens.py tests/golden

Each folder NAME holds what a model's folder holds and reference.safetensors, in float32:
  tokens         [n] int32
  target_logits  [n, vocab] f32  of the model
  logits_K       [rows, vocab] f32: of the K-th draft token, row p behind the tokens 0 to p + 1;
                 tokens p + 2 to p + 1 + K stand for the draft tokens before it
`mimo_right` has a layer that is always right: the model's next token is a function of the last one
alone, and the layer is that function.

The layer is made as one more layer of the model by transformers, which draws and saves it; what
stands around it is computed here:
    x = project(cat(norm(embedding of token p + 1), norm(state of p)))    in the family's order
    state of p + 1 = norm(layer(x)); logits = the model's head of that
The model's state is what its layers return, behind its final norm in GLM-4.5 and DeepSeek-V3.
"""
import json
import pathlib
import shutil
import sys
import tempfile

import torch
import transformers
from safetensors.torch import load_file, save_file

from make_goldens import COMMON, draw_weights

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "train_draft"))
from head import rms_norm  # noqa: E402

NUM_TOKENS = 40
NUM_STEPS = 4
NUM_LAYERS = COMMON["num_hidden_layers"]
SMALL = dict(COMMON, vocab_size=128, hidden_size=32, intermediate_size=48, num_attention_heads=4,
             num_key_value_heads=2, head_dim=16, rms_norm_eps=1e-5, tie_word_embeddings=False)
ROPE = dict(rope_type="default", rope_theta=1000.0)

# Of each family: where the layer's tensors lie, and its four parts beside the block.
MIMO = dict(prefix="model.mtp_layers.0.", embedded="token_layernorm", state="hidden_layernorm", project="input_proj", last="final_layernorm")
GLM = dict(prefix=f"model.layers.{NUM_LAYERS}.", embedded="enorm", state="hnorm", project="eh_proj", last="shared_head.norm")


def families():
    """(name, names of the layer, state first, state behind the final norm, class of the configuration, its arguments)"""
    mimo = dict(SMALL, rope_parameters=ROPE)
    yield "mimo", MIMO, True, False, transformers.Qwen2Config, mimo
    yield "mimo_right", MIMO, True, False, transformers.Qwen2Config, mimo
    yield ("glm4_moe", GLM, False, True, transformers.Glm4MoeConfig,
           dict(SMALL, attention_bias=True, use_qk_norm=True, n_routed_experts=6, n_shared_experts=1, num_experts_per_tok=2, moe_intermediate_size=16,
                first_k_dense_replace=1, n_group=3, topk_group=2, routed_scaling_factor=1.5, rope_parameters=dict(ROPE, partial_rotary_factor=0.5)))
    latent = {key: value for key, value in SMALL.items() if key != "head_dim"}
    yield ("deepseek_v3", GLM, False, True, transformers.DeepseekV3Config,
           dict(latent, num_key_value_heads=4, q_lora_rank=24, kv_lora_rank=24, qk_rope_head_dim=8, qk_nope_head_dim=16, v_head_dim=12, n_routed_experts=6,
                n_shared_experts=2, num_experts_per_tok=2, moe_intermediate_size=16, first_k_dense_replace=1, n_group=3, topk_group=2, routed_scaling_factor=2.5,
                rope_parameters=dict(rope_type="yarn", rope_theta=1000.0, factor=4.0, mscale=0.8, mscale_all_dim=0.6, original_max_position_embeddings=64)))


def draw_parts(names, hidden, generator):
    """What stands around the layer."""
    parts = {names[k]: 1.0 + 0.3 * torch.randn(hidden, generator=generator) for k in ("embedded", "state", "last")}
    parts[names["project"]] = 0.2 * torch.randn(hidden, 2 * hidden, generator=generator)
    return parts


def make_right(model, names, parts):
    """Layers add nothing, and the projection passes the embedding on: the first half of its inputs is the state."""
    hidden = model.config.hidden_size
    with torch.no_grad():
        for layer in model.model.layers:
            layer.self_attn.o_proj.weight.zero_()
            layer.mlp.down_proj.weight.zero_()
        parts[names["embedded"]] = torch.ones(hidden)
        parts[names["last"]] = model.model.norm.weight.float().clone()
        parts[names["project"]] = torch.cat((torch.zeros(hidden, hidden), torch.eye(hidden)), 1)


class Layer:
    """The layer behind its projection, for all rows of a text at once: each row has draft tokens of its own."""

    def __init__(self, model):
        self.block = model.model.layers[NUM_LAYERS]
        self.rotary = model.model.rotary_emb
        self.family = sys.modules[type(self.block).__module__]
        self.cache = []

    def heads(self, x, cos, sin):
        """q, k, v: [rows, heads, tokens, head_dim]"""
        a = self.block.self_attn
        split = lambda y: y.view(*x.shape[:2], -1, a.head_dim)  # noqa: E731
        q, k, v = split(a.q_proj(x)), split(a.k_proj(x)), split(a.v_proj(x)).transpose(1, 2)
        if hasattr(a, "q_norm"):
            q, k = a.q_norm(q), a.k_norm(k)
        q, k = self.family.apply_rotary_pos_emb(q.transpose(1, 2), k.transpose(1, 2), cos, sin)
        group = q.shape[1] // k.shape[1]
        return q, k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)

    def heads_of_latents(self, x, cos, sin):
        a, (n, t, _) = self.block.self_attn, x.shape
        q = a.q_b_proj(a.q_a_layernorm(a.q_a_proj(x))).view(n, t, a.num_heads, -1).transpose(1, 2)
        latent, k_turned = a.kv_a_proj_with_mqa(x).split([a.kv_lora_rank, a.qk_rope_head_dim], -1)
        kv = a.kv_b_proj(a.kv_a_layernorm(latent)).view(n, t, a.num_heads, -1).transpose(1, 2)
        k, v = kv.split([a.qk_nope_head_dim, a.v_head_dim], -1)
        q_pass, q_turned = q.split([a.qk_nope_head_dim, a.qk_rope_head_dim], -1)
        q_turned, k_turned = self.family.apply_rotary_pos_emb_interleave(q_turned, k_turned[:, None], cos, sin)
        return torch.cat((q_pass, q_turned), -1), torch.cat((k, k_turned.expand(-1, a.num_heads, -1, -1)), -1), v

    def attention(self, x, begin):
        a, (n, t, _) = self.block.self_attn, x.shape
        cos, sin = self.rotary(x, torch.arange(begin, begin + t)[None])
        q, k, v = self.heads_of_latents(x, cos, sin) if hasattr(a, "kv_b_proj") else self.heads(x, cos, sin)
        self.cache.append((k, v))
        (first_k, first_v), scale = self.cache[0], a.scaling
        later = torch.ones(t, t, dtype=torch.bool).triu(1)
        scores = ((q @ first_k.transpose(-1, -2)) * scale).masked_fill(later, float("-inf"))
        # A row's draft tokens see the text, and the draft tokens of that row.
        own = [(q * k).sum(-1, keepdim=True) * scale for k, _ in self.cache[1:]]
        weights = torch.cat([scores, *own], -1).softmax(-1)
        attended = weights[..., :t] @ first_v
        for i, (_, v) in enumerate(self.cache[1:]):
            attended = attended + weights[..., t + i, None] * v
        return a.o_proj(attended.transpose(1, 2).reshape(n, t, -1))

    def __call__(self, x, begin):
        x = x + self.attention(self.block.input_layernorm(x), begin)
        return x + self.block.mlp(self.block.post_attention_layernorm(x))


def reference(model, names, parts, state_first, normed):
    epsilon, embed = model.config.rms_norm_eps, model.get_input_embeddings()
    tokens = torch.randint(3, model.config.vocab_size, (1, NUM_TOKENS), generator=torch.Generator().manual_seed(17))
    layer, rows, out = Layer(model), NUM_TOKENS - NUM_STEPS, {"tokens": tokens[0].int()}
    with torch.no_grad():
        state = model(tokens, output_hidden_states=True).hidden_states[NUM_LAYERS]
        out["target_logits"] = model.lm_head(model.model.norm(state))[0].contiguous()
        state = (model.model.norm(state) if normed else state)[:, :rows]
        for step in range(NUM_STEPS):
            embedded = rms_norm(embed(tokens[:, 1 + step : 1 + step + rows]), parts[names["embedded"]], epsilon)
            state = rms_norm(state, parts[names["state"]], epsilon)
            both = (state, embedded) if state_first else (embedded, state)
            x = torch.nn.functional.linear(torch.cat(both, -1), parts[names["project"]])
            state = rms_norm(layer(x, step), parts[names["last"]], epsilon)
            out[f"logits_{step}"] = model.lm_head(state)[0].contiguous()
    return out


def main():
    root = pathlib.Path(sys.argv[1]) / "mtp"
    torch.set_num_threads(1)
    for index, (name, names, state_first, normed, config_class, args) in enumerate(families()):
        generator = torch.Generator().manual_seed(2000 + index)
        config = config_class(**dict(args, num_hidden_layers=NUM_LAYERS + 1))
        config._attn_implementation = "eager"
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
        draw_weights(model, generator)
        parts = draw_parts(names, config.hidden_size, generator)
        if name == "mimo_right":
            make_right(model, names, parts)
        parts = {key: value.bfloat16() for key, value in parts.items()}
        folder = root / name
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        with tempfile.TemporaryDirectory() as saved:
            model.to(torch.bfloat16).save_pretrained(saved)
            tensors = load_file(pathlib.Path(saved) / "model.safetensors")
            fields = json.loads((pathlib.Path(saved) / "config.json").read_text())
            model = transformers.AutoModelForCausalLM.from_pretrained(saved, dtype=torch.float32, attn_implementation="eager").eval()
        own = f"model.layers.{NUM_LAYERS}."
        tensors = {key.replace(own, names["prefix"]): value for key, value in tensors.items()}
        tensors.update({f"{names['prefix']}{key}.weight": value for key, value in parts.items()})
        fields.update(num_hidden_layers=NUM_LAYERS, num_nextn_predict_layers=1)
        if names is MIMO:
            fields.update(architectures=["MiMoForCausalLM"], model_type="mimo", head_dim=args["head_dim"])
            fields.pop("layer_types", None)
        else:  # the published checkpoints repeat the model's
            tensors[own + "embed_tokens.weight"] = tensors["model.embed_tokens.weight"].clone()
            tensors[own + "shared_head.head.weight"] = tensors["lm_head.weight"].clone()
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
        (folder / "config.json").write_text(json.dumps(fields, indent=2, sort_keys=True) + "\n")
        save_file(reference(model, names, {key: value.float() for key, value in parts.items()}, state_first, normed), folder / "reference.safetensors")
        for file in folder.iterdir():
            file.chmod(0o644)
        print(name, sum(f.stat().st_size for f in folder.iterdir()), "bytes")


if __name__ == "__main__":
    main()
