"""Makes a small Llama as a GGUF file: a byte-level vocabulary, weights from a seed, and the chat template
that is asked for."""
import random
import struct

STRING, UINT32, FLOAT32, BOOL, INT32, ARRAY = 8, 4, 6, 7, 5, 9
PACKED = {UINT32: "<I", FLOAT32: "<f", BOOL: "<?", INT32: "<i"}
HIDDEN, HEADS, INNER, LAYERS, CONTEXT = 32, 4, 64, 2, 512
SPECIAL = ["<s>", "</s>", "<|user|>", "<|assistant|>"]


def byte_alphabet():
    """GPT-2's letter for each byte."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    return {**{b: chr(b) for b in printable}, **{b: chr(256 + i) for i, b in enumerate(others)}}


def packed_string(text):
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def packed(kind, value):
    return packed_string(value) if kind == STRING else struct.pack(PACKED[kind], value)


def entry(key, kind, value):
    head = packed_string(key)
    if not isinstance(value, list):
        return head + struct.pack("<I", kind) + packed(kind, value)
    return (head + struct.pack("<IIQ", ARRAY, kind, len(value)) +
            b"".join(packed(kind, item) for item in value))


def tensors(num_tokens, rng):
    """(name, rows first, values)."""
    def matrix(name, rows, columns):
        return name, (rows, columns), [rng.gauss(0, 0.3) for _ in range(rows * columns)]

    def norm(name):
        return name, (HIDDEN,), [rng.uniform(0.5, 1.5) for _ in range(HIDDEN)]
    yield matrix("token_embd.weight", num_tokens, HIDDEN)
    for layer in range(LAYERS):
        for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
            yield matrix(f"blk.{layer}.{name}.weight", HIDDEN, HIDDEN)
        yield matrix(f"blk.{layer}.ffn_gate.weight", INNER, HIDDEN)
        yield matrix(f"blk.{layer}.ffn_up.weight", INNER, HIDDEN)
        yield matrix(f"blk.{layer}.ffn_down.weight", HIDDEN, INNER)
        yield norm(f"blk.{layer}.attn_norm.weight")
        yield norm(f"blk.{layer}.ffn_norm.weight")
    yield norm("output_norm.weight")
    yield matrix("output.weight", num_tokens, HIDDEN)


def write_gguf(path, chat_template=None):
    tokens = [letter for _, letter in sorted(byte_alphabet().items())] + SPECIAL
    fields = [("general.architecture", STRING, "llama"), ("llama.block_count", UINT32, LAYERS),
              ("llama.context_length", UINT32, CONTEXT), ("llama.embedding_length", UINT32, HIDDEN),
              ("llama.feed_forward_length", UINT32, INNER), ("llama.attention.head_count", UINT32, HEADS),
              ("llama.attention.layer_norm_rms_epsilon", FLOAT32, 1e-5),
              ("llama.rope.freq_base", FLOAT32, 10000.0),
              ("tokenizer.ggml.model", STRING, "gpt2"), ("tokenizer.ggml.pre", STRING, "gpt-2"),
              ("tokenizer.ggml.tokens", STRING, tokens), ("tokenizer.ggml.merges", STRING, []),
              ("tokenizer.ggml.token_type", INT32, [1] * 256 + [3] * len(SPECIAL)),
              ("tokenizer.ggml.bos_token_id", UINT32, 256), ("tokenizer.ggml.eos_token_id", UINT32, 257),
              ("tokenizer.ggml.add_bos_token", BOOL, False)]
    if chat_template is not None:
        fields.append(("tokenizer.chat_template", STRING, chat_template))
    heads, data, count = b"", b"", 0
    for name, shape, values in tensors(len(tokens), random.Random(7)):
        heads += packed_string(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *reversed(shape), 0, len(data))
        data += struct.pack(f"<{len(values)}f", *values)
        data += b"\0" * (-len(data) % 32)
        count += 1
    head = b"GGUF" + struct.pack("<IQQ", 3, count, len(fields)) + b"".join(entry(*f) for f in fields) + heads
    with open(path, "wb") as f:
        f.write(head + b"\0" * (-len(head) % 32) + data)
