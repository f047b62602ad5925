"""A model that computes what another one does, with outliers in its weights and activations.

    python3 -B bench/outlier_model.py share/default_model /tmp/outliers --factor 8 --share 0.02

Of each norm's channels some are multiplied by the factor, and the columns of the matrices that read them
divided; of as many others the other way round. So do the rows of up_proj with the columns of down_proj. The
factor is a power of two, so no number is rounded and the function stays the same: what a format then loses is due to
outliers alone. For Llama's names in bfloat16 (safetensors).
"""
import argparse
import json
import os
import random
import shutil
import struct


class Tensors:
    """The tensors of a folder's safetensors files, changed in place and written to another folder."""

    def __init__(self, folder):
        self.files = {}
        self.places = {}
        for name in sorted(os.listdir(folder)):
            if not name.endswith(".safetensors"):
                continue
            with open(os.path.join(folder, name), "rb") as file:
                size = struct.unpack("<Q", file.read(8))[0]
                header = file.read(size)
                self.files[name] = (header, bytearray(file.read()))
            for tensor, fields in json.loads(header).items():
                if tensor != "__metadata__":
                    self.places[tensor] = (name, fields)

    def scale(self, tensor, index, exponent, columns):
        """Multiplies a row of the tensor, or a column, by 2^exponent."""
        name, fields = self.places[tensor]
        if fields["dtype"] != "BF16":
            raise SystemExit(f"{tensor} is {fields['dtype']}; BF16 is changed")
        data, shape = self.files[name][1], fields["shape"]
        width = shape[-1]
        begin = fields["data_offsets"][0]
        if columns:
            places = [row * width + index for row in range(shape[0])] if len(shape) == 2 else [index]
        else:
            places = range(index * width, (index + 1) * width)
        for place in places:
            at = begin + 2 * place
            bits = data[at] | data[at + 1] << 8
            field = bits >> 7 & 255
            if field == 0:  # zero, or so small that it does not count
                continue
            bits = bits & 0x807F | (field + exponent) << 7
            data[at], data[at + 1] = bits & 255, bits >> 8

    def write(self, folder):
        for name, (header, data) in self.files.items():
            with open(os.path.join(folder, name), "wb") as file:
                file.write(struct.pack("<Q", len(header)) + header + data)


def pick(rng, count, share):
    """Two lists of channels: those of large activations, those of large weights."""
    each = max(1, int(count * share / 2))
    channels = rng.sample(range(count), 2 * each)
    return [(channel, 1) for channel in channels[:each]] + [(channel, -1) for channel in channels[each:]]


def add_outliers(tensors, config, exponent, share, seed):
    rng = random.Random(seed)
    for layer in range(config["num_hidden_layers"]):
        prefix = f"model.layers.{layer}."
        for norm, matrices in (("input_layernorm", ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")),
                               ("post_attention_layernorm", ("mlp.gate_proj", "mlp.up_proj"))):
            for channel, sign in pick(rng, config["hidden_size"], share):
                tensors.scale(f"{prefix}{norm}.weight", channel, sign * exponent, True)
                for matrix in matrices:
                    tensors.scale(f"{prefix}{matrix}.weight", channel, -sign * exponent, True)
        for channel, sign in pick(rng, config["intermediate_size"], share):
            tensors.scale(f"{prefix}mlp.up_proj.weight", channel, sign * exponent, False)
            tensors.scale(f"{prefix}mlp.down_proj.weight", channel, -sign * exponent, True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("result")
    parser.add_argument("--factor", type=int, default=8, help="a power of two")
    parser.add_argument("--share", type=float, default=0.02, help="of the channels")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    exponent = args.factor.bit_length() - 1
    if args.factor != 1 << exponent:
        parser.error(f"--factor {args.factor}: give a power of two")
    shutil.copytree(args.model, args.result)
    with open(os.path.join(args.model, "config.json"), encoding="utf-8") as file:
        config = json.load(file)
    tensors = Tensors(args.model)
    add_outliers(tensors, config, exponent, args.share, args.seed)
    tensors.write(args.result)


if __name__ == "__main__":
    main()
