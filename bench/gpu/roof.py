"""The serial roof of a decoder's work on a device: the sum over its operations of
max(bytes / read rate, operations / matrix rate at that shape), nothing overlapped.

Weights are read once for each step, keys and values once for each lane (or once for each group that
shares them); activations are not counted. roof_test.py holds the numbers against a shape worked out by
hand.
"""
import json
import os


class Shape:
    """What a config.json says of sizes."""

    def __init__(self, config):
        self.layers = config["num_hidden_layers"]
        self.hidden = config["hidden_size"]
        self.ffn = config["intermediate_size"]
        self.heads = config["num_attention_heads"]
        self.kv_heads = config.get("num_key_value_heads", self.heads)
        self.head_dim = config.get("head_dim") or self.hidden // self.heads
        self.vocab = config["vocab_size"]
        self.weight_bytes = 2

    @staticmethod
    def read(folder):
        with open(os.path.join(folder, "config.json"), encoding="utf-8") as file:
            return Shape(json.load(file))

    def products(self):
        """(name, outputs, inputs) of a layer's matrix products."""
        q, kv = self.heads * self.head_dim, self.kv_heads * self.head_dim
        return [("qkv", q + 2 * kv, self.hidden), ("o", self.hidden, q),
                ("gate_up", 2 * self.ffn, self.hidden), ("down", self.hidden, self.ffn)]

    def streamed_bytes(self):
        """Weights that one step reads: all but the embedding, of which it takes single rows."""
        layer = sum(n * k for _, n, k in self.products())
        return self.weight_bytes * (self.layers * layer + self.vocab * self.hidden)

    def kv_bytes_per_token(self):
        return 2 * self.layers * self.kv_heads * self.head_dim * 2


class Device:
    """Ceilings: bytes a second, and operations a second of products of (rows, outputs, inputs)."""

    def __init__(self, read_rate, matrix_rate, attention_rate):
        self.read_rate = read_rate
        self.matrix_rate = matrix_rate          # a function of (name, rows)
        self.attention_rate = attention_rate    # of long prefills


def matrix_rate(measured):
    """The function of (name, rows) that Device takes, from rates measured at some numbers of rows
    ({name: {rows: operations a second}}). Below 512 rows it is the rate at 512: a library that reads
    weights slower than the memory gives them must not lower the roof of few rows."""
    def rate(name, rows):
        known = sorted(measured[name].items())
        above = [r for n, r in known if n >= 512] or [known[-1][1]]
        if rows <= 512:
            return above[0]
        return max([r for n, r in known if 512 <= n <= rows] or above[:1])
    return rate


def product_seconds(shape, device, name, outputs, inputs, rows):
    bytes_read = shape.weight_bytes * outputs * inputs
    return max(bytes_read / device.read_rate,
               2 * rows * outputs * inputs / device.matrix_rate(name, rows))


def products_seconds(shape, device, rows, logit_rows):
    layer = sum(product_seconds(shape, device, *product, rows) for product in shape.products())
    head = product_seconds(shape, device, "head", shape.vocab, shape.hidden, logit_rows)
    return shape.layers * layer + (head if logit_rows else 0)


def decode_seconds(shape, device, lanes, kv_tokens_read):
    """One step: `lanes` tokens, `kv_tokens_read` cached tokens read in all."""
    attention = kv_tokens_read * shape.kv_bytes_per_token() / device.read_rate
    return products_seconds(shape, device, lanes, lanes) + attention


def prefill_seconds(shape, device, tokens, prefix=0):
    """One prompt's `tokens` after `prefix` cached ones; logits of the last alone."""
    pairs = tokens * prefix + tokens * (tokens + 1) / 2
    operations = 4 * pairs * shape.heads * shape.head_dim * shape.layers
    cached = prefix * shape.kv_bytes_per_token() / device.read_rate
    return (products_seconds(shape, device, tokens, 1) +
            max(operations / device.attention_rate, cached))


def offline_seconds(shape, device, requests, batch, input_tokens, output_tokens,
                    groups=0, shared_tokens=0):
    """All prompts prefilled, then decoded in full batches, each request's tokens one by one. With
    groups, a prefix is prefilled once for each, and read once for each group in a step."""
    rounds = requests / batch
    own = input_tokens - (shared_tokens if groups else 0)
    # Prefills share steps: products run at the rate of the fullest.
    chunk = max(1, 8192 // own)
    prefill = requests / chunk * products_seconds(shape, device, chunk * own, chunk)
    pairs = own * (own + 1) / 2 + (own * shared_tokens if groups else 0)
    prefill += requests * 4 * pairs * shape.heads * shape.head_dim * shape.layers / device.attention_rate
    if groups:
        prefill += groups * prefill_seconds(shape, device, shared_tokens)
    decode = 0.0
    for i in range(output_tokens - 1):
        kv = batch * (own + i)
        kv += shared_tokens * groups * batch / requests if groups else 0
        decode += decode_seconds(shape, device, batch, kv)
    return prefill + rounds * decode
