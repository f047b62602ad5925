#!/usr/bin/env python3
"""Makes tests/golden/draft: a random EAGLE-3 draft head for one of the models of tests/golden/models,
and what tools/train_draft/head.py makes of it, in float32.

    pip install torch==2.15.0 transformers==5.23.0 safetensors numpy
    python3 tools/goldens/make_draft_goldens.py tests/golden

reference.safetensors:
  tokens      [n] int32
  logits_K    [rows, draft vocabulary] f32: of the K-th draft token, row p behind the tokens 0 to
              p + 1; tokens p + 2 to p + 1 + K stand for the draft tokens before it
Weights are drawn wide, norms too, so that no part can be left out unseen.
"""
import pathlib
import sys

import torch
import transformers
from safetensors.torch import save_file

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "train_draft"))
from head import DraftHead, target_layers  # noqa: E402

TARGET = "llama_tied_llama3"
NUM_TOKENS = 40
NUM_STEPS = 4


def config(vocab_size, hidden_size):
    return {"architectures": ["LlamaForCausalLMEagle3"], "model_type": "llama", "hidden_size": hidden_size, "intermediate_size": 48, "num_hidden_layers": 1,
            "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32, "hidden_act": "silu", "max_position_embeddings": 256, "rms_norm_eps": 1e-5,
            "rope_theta": 500.0, "tie_word_embeddings": False, "vocab_size": vocab_size, "draft_vocab_size": 70, "torch_dtype": "float32"}


def main():
    golden = pathlib.Path(sys.argv[1])
    torch.manual_seed(3)
    target = transformers.AutoModelForCausalLM.from_pretrained(golden / "models" / TARGET, dtype=torch.float32).eval()
    head = DraftHead(config(target.config.vocab_size, target.config.hidden_size))
    with torch.no_grad():
        for name, p in head.parameters_by_name.items():
            p.copy_(torch.randn(p.shape) * 0.2 + (1.0 if p.ndim == 1 else 0.0))
    draft_ids = torch.randperm(target.config.vocab_size)[: head.config["draft_vocab_size"]].sort().values
    tokens = torch.randint(target.config.vocab_size, (1, NUM_TOKENS))
    out = {"tokens": tokens[0].int()}
    with torch.no_grad():
        states = target(tokens, output_hidden_states=True).hidden_states
        layers = sorted(target_layers(head.config, target.config.num_hidden_layers))
        x = head.fuse(torch.cat([states[i] for i in layers], -1)[:, : NUM_TOKENS - NUM_STEPS])
        rows, cache = x.shape[1], []
        for step in range(NUM_STEPS):
            embedded = target.get_input_embeddings()(tokens[:, 1 + step : 1 + step + rows])
            x = head(x, embedded, torch.arange(step, step + rows), cache)
            out["logits_%d" % step] = head.logits(x)[0].contiguous()
    folder = golden / "draft" / TARGET
    head.save(folder, draft_ids, torch.float32)
    save_file(out, str(folder / "reference.safetensors"))


if __name__ == "__main__":
    main()
