"""What this GPU can do at most, measured with PyTorch: one JSON object on standard output."""
import json
import statistics
import sys

import torch
import torch.nn.functional as F

import roof

DEVICE = torch.device("cuda")


def seconds(run, repeats=9, inner=1):
    for _ in range(3):
        run()
    times = []
    for _ in range(repeats):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        for _ in range(inner):
            run()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) * 1e-3 / inner)
    return statistics.median(times)


def memory_rates():
    source = torch.randn(1 << 30, device=DEVICE, dtype=torch.bfloat16)  # 2 GiB
    target = torch.empty_like(source)
    size = source.numel() * 2
    read = size / seconds(lambda: torch.sum(source))
    copy = 2 * size / seconds(lambda: target.copy_(source))
    return read, copy


def matrix_rates(shape, rows_list):
    """Operations a second of each product at each number of rows; two weights take turns, so that
    neither stays in the cache."""
    rates = {}
    for name, outputs, inputs in shape.products() + [("head", shape.vocab, shape.hidden)]:
        copies = max(2, (256 << 20) // (2 * outputs * inputs))
        weights = [torch.randn(outputs, inputs, device=DEVICE, dtype=torch.bfloat16)
                   for _ in range(copies)]
        for rows in rows_list:
            if name == "head" and rows > 1024:
                continue
            x = torch.randn(rows, inputs, device=DEVICE, dtype=torch.bfloat16)
            graph = torch.cuda.CUDAGraph()
            for weight in weights:
                F.linear(x, weight)
            with torch.cuda.graph(graph):
                for weight in weights:
                    F.linear(x, weight)
            time = seconds(graph.replay, repeats=5) / copies
            rates.setdefault(name, {})[rows] = 2 * rows * outputs * inputs / time
        del weights
        torch.cuda.empty_cache()
    return rates


def attention_rate(shape, tokens):
    q = torch.randn(1, shape.heads, tokens, shape.head_dim, device=DEVICE, dtype=torch.bfloat16)
    k, v = (torch.randn_like(q) for _ in range(2))
    best = None
    for backend in (torch.nn.attention.SDPBackend.CUDNN_ATTENTION,
                    torch.nn.attention.SDPBackend.FLASH_ATTENTION):
        try:
            with torch.nn.attention.sdpa_kernel(backend):
                time = seconds(lambda: F.scaled_dot_product_attention(q, k, v, is_causal=True))
        except RuntimeError:
            continue
        best = time if best is None else min(best, time)
    return 4 * shape.heads * shape.head_dim * tokens * (tokens + 1) / 2 / best


def empty_graph_seconds():
    x = torch.zeros(1, device=DEVICE)
    graph = torch.cuda.CUDAGraph()
    x.add_(1)
    with torch.cuda.graph(graph):
        x.add_(1)
    return seconds(graph.replay, repeats=9, inner=200)


def main():
    shape = roof.Shape.read(sys.argv[1])
    quick = "--quick" in sys.argv
    rows = [1, 16, 128, 512, 8192] if quick else [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 2048, 8192]
    read, copy = memory_rates()
    json.dump({"device": torch.cuda.get_device_name(), "torch": torch.__version__,
               "read_bytes_per_second": read, "copy_bytes_per_second": copy,
               "matrix": matrix_rates(shape, rows),
               "attention_16k": attention_rate(shape, 16384),
               "graph_replay_seconds": empty_graph_seconds()}, sys.stdout)


if __name__ == "__main__":
    main()
