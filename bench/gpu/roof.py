"""The serial roof of a decoder's work on a device: the sum over its operations of
max(bytes / read rate, operations / matrix rate at that shape), nothing overlapped.

Weights are read once for each step, keys and values once for each entry (or once for each group that
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


EXPERTS = ["num_experts", "n_routed_experts", "num_local_experts"]  # names of a config's number of experts
MXFP4_BYTES = (4 + 8 / 32) / 8  # a weight of 4 bits with its share of a scale of 8 bits for 32


class FamilyShape:
    """The same of families with experts, latent attention or windows: what a step reads and computes."""

    def __init__(self, config):
        self.hidden, self.vocab = config["hidden_size"], config["vocab_size"]
        self.heads = config["num_attention_heads"]
        layers = config["num_hidden_layers"]
        self.latent = config.get("kv_lora_rank")
        if self.latent:
            self.nope, self.rope = config["qk_nope_head_dim"], config["qk_rope_head_dim"]
            self.value = config["v_head_dim"]
            queries = self.heads * (self.nope + self.rope)
            rank = config.get("q_lora_rank")
            attention = [(rank, self.hidden), (queries, rank)] if rank else [(queries, self.hidden)]
            attention += [
                (self.latent + self.rope, self.hidden),
                (self.heads * (self.nope + self.value), self.latent),
                (self.hidden, self.heads * self.value)]
            self.kv_numbers = layers * (self.latent + self.rope)
            # Of a query and a key, as the keys and values are made of the latents once.
            pair = self.heads * (self.nope + self.rope + self.value)
        else:
            dim = config.get("head_dim") or self.hidden // self.heads
            q, kv = self.heads * dim, config["num_key_value_heads"] * dim
            attention = [(q + 2 * kv, self.hidden), (self.hidden, q)]
            self.kv_numbers = layers * 2 * kv
            pair = 2 * self.heads * dim
        self.pair_operations = 2 * layers * pair
        self.window, self.windowed = config.get("sliding_window"), 0
        if self.window:
            self.windowed = config.get("layer_types", []).count("sliding_attention") / layers
        self.num_experts = next((config[name] for name in EXPERTS if config.get(name)), 0)
        self.num_chosen = config.get("num_experts_per_tok", 0)
        dense = layers if not self.num_experts else config.get("first_k_dense_replace", 0)
        self.dense = attention * layers + self.mlp(config["intermediate_size"]) * dense
        self.expert, self.expert_layers, self.expert_bytes = [], layers - dense, 2
        if self.num_experts:
            ffn = config.get("moe_intermediate_size", config["intermediate_size"])
            self.expert = self.mlp(ffn)
            if config.get("quantization_config", {}).get("quant_method") == "mxfp4":
                self.expert_bytes = MXFP4_BYTES
            self.dense += [(self.num_experts, self.hidden)] * self.expert_layers
            self.dense += self.mlp(ffn * config.get("n_shared_experts", 0)) * self.expert_layers

    @staticmethod
    def read(folder):
        with open(os.path.join(folder, "config.json"), encoding="utf-8") as file:
            return FamilyShape(json.load(file))

    def mlp(self, ffn):
        return [(2 * ffn, self.hidden), (self.hidden, ffn)] if ffn else []

    def experts_read(self, rows):
        """Of a layer, where each row chooses with equal odds."""
        if not self.num_experts:
            return 0
        return self.num_experts * (1 - (1 - self.num_chosen / self.num_experts) ** rows)

    def products_seconds(self, device, rows, logit_rows):
        rate = device.matrix_rate("gate_up", rows)

        def seconds(size, read, done, weight_bytes=2):
            return max(weight_bytes * size * read / device.read_rate, 2 * size * done / rate)
        total = sum(seconds(n * k, 1, rows) for n, k in self.dense)
        total += self.expert_layers * sum(
            seconds(n * k, self.experts_read(rows), rows * self.num_chosen, self.expert_bytes)
            for n, k in self.expert)
        return total + seconds(self.vocab * self.hidden, 1, logit_rows)

    def decode_seconds(self, device, entries, kv_tokens_read):
        """`entries` of the same context; a layer with a window reads no more of it than that."""
        seen = kv_tokens_read
        if self.windowed:
            within = min(kv_tokens_read, entries * self.window)
            seen = self.windowed * within + (1 - self.windowed) * kv_tokens_read
        return (self.products_seconds(device, entries, entries) +
                2 * self.kv_numbers * seen / device.read_rate)

    def prefill_seconds(self, device, tokens):
        """One prompt, whole."""
        pairs = tokens * (tokens + 1) / 2
        if self.windowed:
            beyond = max(0, tokens - self.window)
            pairs -= self.windowed * beyond * (beyond + 1) / 2
        return (self.products_seconds(device, tokens, 1) +
                self.pair_operations * pairs / device.attention_rate)


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


def entries_of(row):
    """The batch entries of a decode row. Results kept before November 2026 call them lanes."""
    return row["entries"] if "entries" in row else row["lanes"]


def decode_seconds(shape, device, entries, kv_tokens_read):
    """One step: `entries` tokens, `kv_tokens_read` cached tokens read in all."""
    attention = kv_tokens_read * shape.kv_bytes_per_token() / device.read_rate
    return products_seconds(shape, device, entries, entries) + attention


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
