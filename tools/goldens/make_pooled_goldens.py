#!/usr/bin/env python3
"""Makes tests/golden/pooled: tiny random models that make a vector of a text (embedding, classes,
reward), as their folders lie on the hub, and what transformers makes of them.

    pip install torch==2.11.0 transformers==5.23.0 safetensors numpy
    python3 tools/goldens/make_pooled_goldens.py tests/golden/pooled

Beside the model reference.safetensors: prompt_I [n] int32 random ids, vector_I [size] float32 as
transformers makes it in float32, eager attention, from the weights as the files hold them.
"""
import json
import pathlib
import shutil
import sys

import torch
import transformers
from safetensors.torch import load_file, save_file

from make_goldens import COMMON, PROMPT_LENGTHS, draw_weights

T = transformers
VOCAB = 128
SMALL = dict(vocab_size=VOCAB, hidden_size=32, intermediate_size=48, num_attention_heads=4,
             num_key_value_heads=2, rms_norm_eps=1e-6,
             rope_parameters=dict(rope_type="default", rope_theta=1000.0))


class RewardModel(torch.nn.Module):
    """Qwen2ForRewardModel, as Qwen 2.5 Math RM ships it beside its weights."""

    def __init__(self, config):
        super().__init__()
        self.config = config
        self.model = T.Qwen2Model(config)
        self.score = torch.nn.Sequential(
            torch.nn.Linear(config.hidden_size, config.hidden_size), torch.nn.ReLU(),
            torch.nn.Linear(config.hidden_size, 1))


def last(hidden):
    return hidden[-1]


def mean(hidden):
    return hidden.mean(0)


def unit(vector):
    return torch.nn.functional.normalize(vector, dim=0)


def write_modules(folder, mode, normalize):
    modules = [dict(idx=0, name="0", path="", type="sentence_transformers.models.Transformer"),
               dict(idx=1, name="1", path="1_Pooling", type="sentence_transformers.models.Pooling")]
    if normalize:
        modules.append(dict(idx=2, name="2", path="2_Normalize",
                            type="sentence_transformers.models.Normalize"))
    (folder / "modules.json").write_text(json.dumps(modules, indent=2) + "\n")
    (folder / "1_Pooling").mkdir()
    config = dict(word_embedding_dimension=32, include_prompt=True)
    for name in ("cls_token", "mean_tokens", "max_tokens", "mean_sqrt_len_tokens",
                 "weightedmean_tokens", "lasttoken"):
        config[f"pooling_mode_{name}"] = name == mode
    (folder / "1_Pooling/config.json").write_text(json.dumps(config, indent=2) + "\n")


def set_architecture(folder, name):
    path = folder / "config.json"
    config = json.loads(path.read_text())
    config["architectures"] = [name]
    path.write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")


def save(model, folder, dtype):
    model = model.to(dtype)
    model.config.dtype = dtype
    model.config.save_pretrained(folder)
    tensors = {k: v.contiguous() for k, v in model.state_dict().items()}
    save_file(tensors, folder / "model.safetensors", metadata=dict(format="pt"))


def read(model, folder):
    """A new one: the old one's rotary frequencies were rounded with its weights."""
    config = model.config
    config.dtype = torch.float32
    model = type(model)(config)
    model.load_state_dict({k: v.float() for k, v in
                           load_file(folder / "model.safetensors").items()})
    return model.eval()


def models():
    """(name, model, dtype of the files, what to do with the folder, prompt -> vector)"""
    bf16 = torch.bfloat16
    # Qwen 3 Embedding says that it is Qwen3ForCausalLM and holds the bare model's tensors.
    qwen3 = T.Qwen3Model(T.Qwen3Config(**COMMON, **SMALL, head_dim=16))

    def as_qwen3(folder):
        set_architecture(folder, "Qwen3ForCausalLM")
        write_modules(folder, "lasttoken", True)
    yield ("qwen3_embedding", qwen3, bf16, as_qwen3,
           lambda m, ids: unit(last(m(ids).last_hidden_state[0])))

    mistral = T.MistralModel(T.MistralConfig(**COMMON, **SMALL, sliding_window=14))

    def as_mistral(folder):
        set_architecture(folder, "MistralModel")
        write_modules(folder, "mean_tokens", False)
    yield ("mistral_mean", mistral, torch.float16, as_mistral,
           lambda m, ids: mean(m(ids).last_hidden_state[0]))

    classes = T.LlamaForSequenceClassification(T.LlamaConfig(
        **COMMON, **SMALL, id2label={0: "calm", 1: "glad", 2: "wild"},
        label2id={"calm": 0, "glad": 1, "wild": 2}))
    yield ("llama_classes", classes, torch.float32,
           lambda f: set_architecture(f, "LlamaForSequenceClassification"),
           lambda m, ids: m(ids).logits[0])

    reward = RewardModel(T.Qwen2Config(**COMMON, **SMALL))
    yield ("qwen2_reward", reward, bf16, lambda f: set_architecture(f, "Qwen2ForRewardModel"),
           lambda m, ids: m.score(last(m.model(ids).last_hidden_state[0])))


def main():
    if len(sys.argv) != 2 or sys.argv[1].startswith("-"):
        sys.exit(__doc__)
    root = pathlib.Path(sys.argv[1])
    torch.set_num_threads(1)
    for index, (name, model, dtype, finish, vector) in enumerate(models()):
        folder = root / name
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        generator = torch.Generator().manual_seed(2000 + index)
        model.config._attn_implementation = "eager"
        draw_weights(model, generator)
        save(model, folder, dtype)
        finish(folder)
        model = read(model, folder)
        out = {}
        with torch.no_grad():
            for i, n in enumerate(PROMPT_LENGTHS):
                ids = torch.randint(3, VOCAB, (n,), generator=generator)
                out[f"prompt_{i}"] = ids.to(torch.int32)
                out[f"vector_{i}"] = vector(model, ids[None]).float().contiguous()
        save_file(out, folder / "reference.safetensors")
        for file in folder.iterdir():
            file.chmod(0o755 if file.is_dir() else 0o644)
        size = sum(f.stat().st_size for f in folder.rglob("*"))
        print(f"{name}: {size} bytes, {out['vector_3'][:4].tolist()}")


if __name__ == "__main__":
    main()
