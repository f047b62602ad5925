"""A peer that needs no other engine: a Llama decode loop in PyTorch, one CUDA graph a step, keys and
values in a static cache. One JSON object on standard output."""
import json
import statistics
import sys

import torch
import torch.nn.functional as F

import roof

DEVICE = torch.device("cuda")


def matrix(outputs, inputs):
    return torch.randn(outputs, inputs, device=DEVICE, dtype=torch.bfloat16) * inputs ** -0.5


class Decoder:
    def __init__(self, shape):
        self.shape = shape
        self.layers = [{name: matrix(n, k) for name, n, k in shape.products()}
                       for _ in range(shape.layers)]
        self.embedding = matrix(shape.vocab, shape.hidden)
        self.head = matrix(shape.vocab, shape.hidden)
        self.norm = torch.ones(shape.hidden, device=DEVICE, dtype=torch.bfloat16)

    def rotate(self, x, cos, sin):
        a, b = x.chunk(2, dim=-1)
        return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)

    def step(self, tokens, cache, context, cos, sin):
        """tokens [batch]; cache: a (k, v) of [batch, kv_heads, length, head_dim] a layer."""
        s, batch = self.shape, tokens.shape[0]
        x = self.embedding[tokens]
        for layer, (keys, values) in zip(self.layers, cache):
            y = F.linear(F.rms_norm(x, (s.hidden,), self.norm), layer["qkv"])
            q, k, v = y.split((s.heads * s.head_dim, s.kv_heads * s.head_dim,
                               s.kv_heads * s.head_dim), dim=-1)
            q = self.rotate(q.view(batch, s.heads, 1, s.head_dim), cos, sin)
            k = self.rotate(k.view(batch, s.kv_heads, 1, s.head_dim), cos, sin)
            keys[:, :, context:context + 1] = k
            values[:, :, context:context + 1] = v.view(batch, s.kv_heads, 1, s.head_dim)
            y = F.scaled_dot_product_attention(q, keys[:, :, :context + 1],
                                               values[:, :, :context + 1], enable_gqa=True)
            x = x + F.linear(y.reshape(batch, -1), layer["o"])
            gate, up = F.linear(F.rms_norm(x, (s.hidden,), self.norm), layer["gate_up"]).chunk(2, -1)
            x = x + F.linear(F.silu(gate) * up, layer["down"])
        return F.linear(F.rms_norm(x, (s.hidden,), self.norm), self.head).argmax(-1)


@torch.inference_mode()
def decode_seconds(decoder, batch, context):
    s = decoder.shape
    cache = [tuple(torch.randn(batch, s.kv_heads, context + 1, s.head_dim, device=DEVICE,
                               dtype=torch.bfloat16) for _ in range(2)) for _ in range(s.layers)]
    tokens = torch.zeros(batch, dtype=torch.long, device=DEVICE)
    cos, sin = (torch.randn(s.head_dim // 2, device=DEVICE, dtype=torch.bfloat16) for _ in range(2))
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(2):
            decoder.step(tokens, cache, context, cos, sin)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        tokens.copy_(decoder.step(tokens, cache, context, cos, sin))
    times = []
    for _ in range(12):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) * 1e-3)
    return statistics.median(times)


def main():
    decoder = Decoder(roof.Shape.read(sys.argv[1]))
    rows = []
    for batch, context in ((1, 1024), (16, 1024), (128, 1024)):
        rows.append({"entries": batch, "context": context,
                     "step_seconds": decode_seconds(decoder, batch, context)})
    json.dump({"name": f"torch {torch.__version__} CUDA graph", "rows": rows}, sys.stdout)


if __name__ == "__main__":
    main()
