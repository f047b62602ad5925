#!/usr/bin/env python3
"""Writes tests/golden/checkpoint/*.safetensors: random blocks of each GGUF type and what the `gguf`
package makes of them; random numbers and the blocks that it makes of them; FP8 numbers as torch reads them; a GPTQ and an AWQ matrix, unpacked as AutoGPTQ
and AutoAWQ unpack them.

    python tests/compat/checkpoint/make_block_goldens.py tests/golden/checkpoint
Needs gguf==0.19.0, numpy, safetensors, torch.
"""
import sys
from pathlib import Path

import numpy as np
import torch
from gguf import GGMLQuantizationType as T
from gguf import quants
from gguf.constants import GGML_QUANT_SIZES
from safetensors.numpy import save_file

TYPES = [T.F16, T.BF16, T.Q4_0, T.Q4_1, T.Q5_0, T.Q5_1, T.Q8_0, T.Q2_K, T.Q3_K, T.Q4_K, T.Q5_K,
         T.Q6_K, T.IQ4_NL, T.IQ4_XS, T.MXFP4]
# Where the f16 scales of a block lie: random bits there would mostly be huge or no numbers.
HALVES = {T.Q4_0: [0], T.Q4_1: [0, 2], T.Q5_0: [0], T.Q5_1: [0, 2], T.Q8_0: [0], T.Q2_K: [80, 82],
          T.Q3_K: [108], T.Q4_K: [0, 2], T.Q5_K: [0, 2], T.Q6_K: [208], T.IQ4_NL: [0], T.IQ4_XS: [0]}


def blocks_of(kind, rng):
    elements, size = GGML_QUANT_SIZES[kind]
    count = 3 if elements == 256 else 96 if elements == 1 else 8
    data = rng.integers(0, 256, (count, size), dtype=np.uint8)
    for at in HALVES.get(kind, []):
        scale = rng.normal(0, 0.1, count).astype(np.float16)
        scale[0] = np.float16(6e-8)  # a subnormal
        data[:, at:at + 2] = scale.reshape(-1, 1).view(np.uint8)
    if kind == T.MXFP4:
        data[:, 0] = [0, 1, 2, 100, 127, 128, 140, 254]
    if elements == 1:
        data = rng.normal(0, 1, count).astype(np.float16).reshape(-1, 1).view(np.uint8)
    return data


def encoded():
    """Rows of many sizes: around zero, beside it, equal ones, tiny ones, and zeros."""
    rng = np.random.default_rng(10)
    rows = [rng.normal(0, 10.0 ** rng.integers(-4, 3), 32) for _ in range(24)]
    rows += [rng.normal(5, 0.5, 32) for _ in range(4)] + [rng.integers(-9, 9, 32) / 4 for _ in range(4)]
    rows += [np.full(32, -0.75), np.zeros(32), np.linspace(-1, 1, 32), rng.normal(0, 1e-9, 32)]
    values = np.array(rows, dtype=np.float32)
    tensors = {"values": values.reshape(-1)}
    for kind in (T.F16, T.BF16, T.Q8_0, T.Q5_1, T.Q5_0, T.Q4_1, T.Q4_0):
        tensors[f"{kind.name}.blocks"] = np.ascontiguousarray(quants.quantize(values, kind)).view(np.uint8).reshape(-1)
    return tensors


def gptq(rng, bits):
    out_features, in_features, groups, per = 16, 32, 4, 32 // bits
    q = rng.integers(0, 1 << bits, (in_features, out_features), dtype=np.uint32)
    zeros = rng.integers(0, (1 << bits) - 1, (groups, out_features), dtype=np.uint32)
    scales = rng.normal(0, 0.1, (groups, out_features)).astype(np.float16)
    g_idx = rng.permutation(np.repeat(np.arange(groups), in_features // groups)).astype(np.int32)
    qweight = np.zeros((in_features // per, out_features), np.uint32)
    qzeros = np.zeros((groups, out_features // per), np.uint32)
    for i in range(per):
        qweight |= q[i::per] << (bits * i)
        qzeros |= zeros[:, i::per] << (bits * i)
    weight = scales[g_idx].astype(np.float32) * (q.astype(np.int32)
                                                 - zeros[g_idx].astype(np.int32) - 1)
    return {"qweight": qweight.view(np.int32), "qzeros": qzeros.view(np.int32), "scales": scales,
            "g_idx": g_idx}, np.ascontiguousarray(weight.T.astype(np.float32))


def awq(rng):
    out_features, in_features, groups = 16, 32, 4
    order = [0, 2, 4, 6, 1, 3, 5, 7]
    q = rng.integers(0, 16, (in_features, out_features), dtype=np.uint32)
    zeros = rng.integers(0, 16, (groups, out_features), dtype=np.uint32)
    scales = rng.normal(0, 0.1, (groups, out_features)).astype(np.float16)

    def pack(values):
        packed = np.zeros((values.shape[0], out_features // 8), np.uint32)
        for i, column in enumerate(order):
            packed |= values[:, column::8] << (4 * i)
        return packed.view(np.int32)
    group = np.arange(in_features) // (in_features // groups)
    weight = scales[group].astype(np.float32) * (q.astype(np.int32) - zeros[group].astype(np.int32))
    return {"qweight": pack(q), "qzeros": pack(zeros), "scales": scales}, np.ascontiguousarray(
        weight.T.astype(np.float32))


def main():
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(9)
    tensors = {}
    for kind in TYPES:
        data = blocks_of(kind, rng)
        tensors[f"{kind.name}.blocks"] = data.reshape(-1)
        tensors[f"{kind.name}.values"] = quants.dequantize(data, kind).astype(np.float32).reshape(-1)
    save_file(tensors, folder / "blocks.safetensors")
    save_file(encoded(), folder / "encoded.safetensors")

    every = torch.arange(256, dtype=torch.uint8)
    for name in ("e4m3fn", "e5m2", "e8m0fnu"):
        values = every.view(getattr(torch, f"float8_{name}")).to(torch.float32)
        tensors[name] = values.numpy()
    save_file({n: tensors[n] for n in ("e4m3fn", "e5m2", "e8m0fnu")}, folder / "fp8.safetensors")
    for bits in (4, 8):
        parts, weight = gptq(rng, bits)
        save_file({f"x.{n}": t for n, t in parts.items()}, folder / f"gptq{bits}.safetensors")
        save_file({"x.weight": weight}, folder / f"gptq{bits}_values.safetensors")
    parts, weight = awq(rng)
    save_file({f"x.{n}": t for n, t in parts.items()}, folder / "awq.safetensors")
    save_file({"x.weight": weight}, folder / "awq_values.safetensors")


main()
