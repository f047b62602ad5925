"""The model: an encoder of SigLIP's shape, a projector and a small Llama, with the tensors' names that transformers' LLaVA has."""
import torch
import torch.nn.functional as F

from scene_rows import PATCH, ROWS, SIDE

VISION = {"hidden_size": 192, "intermediate_size": 512, "num_hidden_layers": 5, "num_attention_heads": 3}
TEXT = {"hidden_size": 192, "intermediate_size": 448, "num_hidden_layers": 4, "num_attention_heads": 3, "num_key_value_heads": 1, "head_dim": 64}
VISION_EPS, TEXT_EPS, THETA, POSITIONS = 1e-6, 1e-5, 10000.0, 1024


def matrix(rows, columns, std=0.02):
    return torch.nn.Parameter(torch.randn(rows, columns) * std)


def vector(size, value=0.0):
    return torch.nn.Parameter(torch.full((size,), value))


def linear(x, weight, bias=None):
    return F.linear(x, weight.to(x.dtype), None if bias is None else bias.to(x.dtype))


class VisionBlock(torch.nn.Module):
    NAMES = {"self_attn.q_proj": "q", "self_attn.k_proj": "k", "self_attn.v_proj": "v", "self_attn.out_proj": "o", "mlp.fc1": "up", "mlp.fc2": "down",
             "layer_norm1": "norm1", "layer_norm2": "norm2"}

    def __init__(self, hidden_size, intermediate_size, num_hidden_layers, num_attention_heads):
        super().__init__()
        d, f, small = hidden_size, intermediate_size, 0.02 / (2 * num_hidden_layers) ** 0.5
        self.heads = num_attention_heads
        self.q, self.k, self.v, self.o = matrix(d, d), matrix(d, d), matrix(d, d), matrix(d, d, small)
        self.up, self.down = matrix(f, d), matrix(d, f, small)
        self.norm1, self.norm2 = vector(d, 1.0), vector(d, 1.0)
        for name in ("q", "k", "v", "o", "down", "norm1", "norm2"):
            setattr(self, name + "_bias", vector(d))
        self.up_bias = vector(f)

    def normed(self, x, name):
        weight, bias = getattr(self, name), getattr(self, name + "_bias")
        return F.layer_norm(x.float(), (x.shape[-1],), weight, bias, VISION_EPS).to(x.dtype)

    def forward(self, x):
        n, t, d = x.shape
        y = self.normed(x, "norm1")
        q, k, v = (linear(y, getattr(self, m), getattr(self, m + "_bias")).view(n, t, self.heads, -1).transpose(1, 2) for m in "qkv")
        y = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(n, t, d)
        x = x + linear(y, self.o, self.o_bias)
        y = F.gelu(linear(self.normed(x, "norm2"), self.up, self.up_bias), approximate="tanh")
        return x + linear(y, self.down, self.down_bias)


class Encoder(torch.nn.Module):
    def __init__(self):
        super().__init__()
        d = VISION["hidden_size"]
        self.patch, self.patch_bias = matrix(d, 3 * PATCH * PATCH), vector(d)
        self.position = matrix(ROWS, d)
        self.blocks = torch.nn.ModuleList(VisionBlock(**VISION) for _ in range(VISION["num_hidden_layers"]))

    def forward(self, pixels, dtype):
        """pixels [n, 3, SIDE, SIDE], normalised to -1 to 1; the last layer's rows [n, patches, d]."""
        n, side = pixels.shape[0], SIDE // PATCH
        cut = pixels.reshape(n, 3, side, PATCH, side, PATCH).permute(0, 2, 4, 1, 3, 5).reshape(n, side * side, -1).to(dtype)
        x = linear(cut, self.patch, self.patch_bias) + self.position.to(dtype)
        for block in self.blocks:
            x = block(x)
        return x


def norm(x, weight):
    y = x.float()
    return (y * torch.rsqrt(y.square().mean(-1, keepdim=True) + TEXT_EPS) * weight).to(x.dtype)


def rotate(x, cos, sin):
    a, b = x.chunk(2, -1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)


class TextBlock(torch.nn.Module):
    NAMES = {"self_attn.q_proj": "q", "self_attn.k_proj": "k", "self_attn.v_proj": "v", "self_attn.o_proj": "o", "mlp.gate_proj": "gate", "mlp.up_proj": "up",
             "mlp.down_proj": "down", "input_layernorm": "norm1", "post_attention_layernorm": "norm2"}

    def __init__(self, hidden_size, intermediate_size, num_hidden_layers, num_attention_heads, num_key_value_heads, head_dim):
        super().__init__()
        d, f, small = hidden_size, intermediate_size, 0.02 / (2 * num_hidden_layers) ** 0.5
        self.heads, self.kv, self.hd = num_attention_heads, num_key_value_heads, head_dim
        self.q, self.k, self.v = matrix(self.heads * head_dim, d), matrix(self.kv * head_dim, d), matrix(self.kv * head_dim, d)
        self.o, self.gate, self.up, self.down = matrix(d, self.heads * head_dim, small), matrix(f, d), matrix(f, d), matrix(d, f, small)
        self.norm1, self.norm2 = vector(d, 1.0), vector(d, 1.0)

    def forward(self, x, cos, sin):
        n, t, d = x.shape
        y = norm(x, self.norm1)
        q = linear(y, self.q).view(n, t, self.heads, self.hd).transpose(1, 2)
        k = linear(y, self.k).view(n, t, self.kv, self.hd).transpose(1, 2)
        v = linear(y, self.v).view(n, t, self.kv, self.hd).transpose(1, 2)
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        k, v = (m[:, :, None].expand(n, self.kv, self.heads // self.kv, t, self.hd).reshape(n, self.heads, t, self.hd) for m in (k, v))
        x = x + linear(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(n, t, -1), self.o)
        y = norm(x, self.norm2)
        return x + linear(F.silu(linear(y, self.gate)) * linear(y, self.up), self.down)


class Seeing(torch.nn.Module):
    def __init__(self, vocab_size, placeholder):
        super().__init__()
        d = TEXT["hidden_size"]
        self.placeholder = placeholder
        self.encoder = Encoder()
        self.first, self.first_bias = matrix(d, VISION["hidden_size"], 0.06), vector(d)
        self.second, self.second_bias = matrix(d, d, 0.06), vector(d)
        self.embedding = torch.nn.Parameter(torch.randn(vocab_size, d) * 0.02)
        self.blocks = torch.nn.ModuleList(TextBlock(**TEXT) for _ in range(TEXT["num_hidden_layers"]))
        self.norm = vector(d, 1.0)
        self.register_buffer("frequencies", THETA ** (-torch.arange(0, TEXT["head_dim"], 2).float() / TEXT["head_dim"]), persistent=False)

    def decode(self, tokens, features):
        """The normed states [n, t, d] of tokens, whose placeholders stand for the rows of features in order."""
        dtype = features.dtype
        rows = linear(F.gelu(linear(features, self.first, self.first_bias)), self.second, self.second_bias)
        seen = tokens == self.placeholder
        index = (seen.cumsum(1) - 1).clamp(0, rows.shape[1] - 1)
        shown = rows.gather(1, index[..., None].expand(-1, -1, rows.shape[2]))
        x = torch.where(seen[..., None], shown, F.embedding(tokens, self.embedding).to(dtype))
        angles = torch.outer(torch.arange(tokens.shape[1], device=tokens.device).float(), self.frequencies)
        cos, sin = angles.cos().to(dtype), angles.sin().to(dtype)
        for block in self.blocks:
            x = block(x, cos, sin)
        return norm(x, self.norm)

    def logits(self, states):
        return linear(states, self.embedding).float()


def named_tensors(model):
    """transformers' name of each parameter, with the shape that it has there."""
    names = {"model.language_model.embed_tokens.weight": model.embedding, "model.language_model.norm.weight": model.norm}
    tower = "model.vision_tower."
    encoder = model.encoder
    names[tower + "embeddings.patch_embedding.weight"] = encoder.patch.view(-1, 3, PATCH, PATCH)
    names[tower + "embeddings.patch_embedding.bias"] = encoder.patch_bias
    names[tower + "embeddings.position_embedding.weight"] = encoder.position
    for part in ("first", "second"):
        place = f"model.multi_modal_projector.linear_{1 if part == 'first' else 2}"
        names[place + ".weight"], names[place + ".bias"] = getattr(model, part), getattr(model, part + "_bias")
    for i, block in enumerate(encoder.blocks):
        for theirs, ours in block.NAMES.items():
            place = f"{tower}encoder.layers.{i}.{theirs}"
            names[place + ".weight"], names[place + ".bias"] = getattr(block, ours), getattr(block, ours + "_bias")
    for i, block in enumerate(model.blocks):
        for theirs, ours in block.NAMES.items():
            names[f"model.language_model.layers.{i}.{theirs}.weight"] = getattr(block, ours)
    return names
