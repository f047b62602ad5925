"""An EAGLE-3 draft head in PyTorch: the reference that tools/goldens compares the engine with, and what train.py trains.

A row stands for position p of a text. It reads what the target made of position p (the states in front of three of its
layers, carried to the hidden size by `fc`; behind a draft token the head's own state instead) and the embedding of the
token at p + 1, and predicts the token at p + 2 among the tokens of the draft vocabulary.

    x = fc(states)                                   or the state that the row before returned
    y = x + attention(cat(norm(embedding), norm(x)))
    state = y + mlp(norm(y))
    logits = lm_head(norm(state))
"""

import json
import pathlib

import torch
import torch.nn.functional as F


def rms_norm(x, weight, epsilon):
    y = x.float()
    y = y * torch.rsqrt(y.square().mean(-1, keepdim=True) + epsilon)
    return (y * weight.float()).to(x.dtype)


def rotate(x, positions, theta):
    """x: [rows, heads, tokens, head_dim]; the halves of head_dim turn against each other. positions: [tokens]"""
    half = x.shape[-1] // 2
    frequencies = theta ** (-torch.arange(half, device=x.device).float() / half)
    angles = positions.float()[:, None] * frequencies
    cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    a, b = x.chunk(2, -1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)


def target_layers(config, num_layers):
    """The target's layers in front of which its states are taken."""
    chosen = config.get("eagle_config", {}).get("eagle_aux_hidden_state_layer_ids")
    return sorted([i + 1 for i in chosen] if chosen else [2, num_layers // 2, num_layers - 3])


class DraftHead(torch.nn.Module):
    """The names of its parameters are those of the files."""

    def __init__(self, config):
        super().__init__()
        self.config = config
        hidden, ffn = config["hidden_size"], config["intermediate_size"]
        self.heads, self.kv_heads, self.head_dim = (config[k] for k in ("num_attention_heads", "num_key_value_heads", "head_dim"))
        self.theta, self.epsilon = config.get("rope_theta", 10000.0), config["rms_norm_eps"]
        shapes = {
            "fc": (hidden, 3 * hidden),
            "midlayer.self_attn.q_proj": (self.heads * self.head_dim, 2 * hidden),
            "midlayer.self_attn.k_proj": (self.kv_heads * self.head_dim, 2 * hidden),
            "midlayer.self_attn.v_proj": (self.kv_heads * self.head_dim, 2 * hidden),
            "midlayer.self_attn.o_proj": (hidden, self.heads * self.head_dim),
            "midlayer.mlp.gate_proj": (ffn, hidden),
            "midlayer.mlp.up_proj": (ffn, hidden),
            "midlayer.mlp.down_proj": (hidden, ffn),
            "lm_head": (config["draft_vocab_size"], hidden),
        }
        norms = ("midlayer.input_layernorm", "midlayer.hidden_norm", "midlayer.post_attention_layernorm", "norm")
        self.parameters_by_name = torch.nn.ParameterDict()
        for name, shape in shapes.items():
            self.parameters_by_name[name.replace(".", "/")] = torch.nn.Parameter(torch.randn(shape) * shape[1] ** -0.5)
        for name in norms:
            self.parameters_by_name[name.replace(".", "/")] = torch.nn.Parameter(torch.ones(hidden))

    def weight(self, name):
        return self.parameters_by_name[name.replace(".", "/")]

    def matmul(self, x, name):
        return F.linear(x, self.weight(name).to(x.dtype))

    def fuse(self, states):
        """states: [rows, tokens, 3 * hidden] -> [rows, tokens, hidden]"""
        return self.matmul(states, "fc")

    def forward(self, x, embedded, positions, cache):
        """x, embedded: [rows, tokens, hidden]; cache: the keys and values of earlier calls for the same rows, extended by this one. The first
        call's keys are seen causally; of a later call's each token sees its own alone, which stand behind it in its own draft."""
        n, t, _ = x.shape
        norm = lambda y, name: rms_norm(y, self.weight(name), self.epsilon)  # noqa: E731
        y = torch.cat((norm(embedded, "midlayer.input_layernorm"), norm(x, "midlayer.hidden_norm")), -1)
        split = lambda z, heads: z.view(n, t, heads, self.head_dim).transpose(1, 2)  # noqa: E731
        q = rotate(split(self.matmul(y, "midlayer.self_attn.q_proj"), self.heads), positions, self.theta)
        k = rotate(split(self.matmul(y, "midlayer.self_attn.k_proj"), self.kv_heads), positions, self.theta)
        v = split(self.matmul(y, "midlayer.self_attn.v_proj"), self.kv_heads)
        group = self.heads // self.kv_heads
        cache.append((k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)))
        scale = self.head_dim**-0.5
        first_k, first_v = cache[0]
        scores = (q @ first_k.transpose(-1, -2)) * scale
        hidden_from = torch.ones(t, t, dtype=torch.bool, device=x.device).triu(1)
        scores = scores.masked_fill(hidden_from, float("-inf"))
        own = [(q * k).sum(-1, keepdim=True) * scale for k, _ in cache[1:]]
        weights = torch.cat([scores, *own], -1).float().softmax(-1).to(x.dtype)
        attended = weights[..., :t] @ first_v
        for i, (_, v) in enumerate(cache[1:]):
            attended = attended + weights[..., t + i, None] * v
        x = x + self.matmul(attended.transpose(1, 2).reshape(n, t, -1), "midlayer.self_attn.o_proj")
        y = norm(x, "midlayer.post_attention_layernorm")
        y = F.silu(self.matmul(y, "midlayer.mlp.gate_proj")) * self.matmul(y, "midlayer.mlp.up_proj")
        return x + self.matmul(y, "midlayer.mlp.down_proj")

    def logits(self, x):
        return self.matmul(rms_norm(x, self.weight("norm"), self.epsilon), "lm_head")

    def save(self, folder, draft_ids, dtype):
        """Writes config.json and model.safetensors. draft_ids: [draft vocabulary], rising: the target's ids of the draft vocabulary."""
        from safetensors.torch import save_file

        folder = pathlib.Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        tensors = {k.replace("/", ".") + ".weight": v.detach().to(dtype).cpu().contiguous() for k, v in self.parameters_by_name.items()}
        draft_ids = draft_ids.cpu().long()
        tensors["d2t"] = draft_ids - torch.arange(len(draft_ids))
        tensors["t2d"] = torch.zeros(self.config["vocab_size"], dtype=torch.bool)
        tensors["t2d"][draft_ids] = True
        save_file(tensors, str(folder / "model.safetensors"), metadata={"format": "pt"})
        (folder / "config.json").write_text(json.dumps(self.config, indent=2) + "\n")
