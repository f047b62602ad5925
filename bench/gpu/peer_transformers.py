"""A peer that needs no other engine: transformers' own Llama with random weights, as its documentation
calls it (a dynamic cache, its default attention). One JSON object on standard output."""
import json
import statistics
import sys
import time

import torch
import transformers

DEVICE = torch.device("cuda")


def make_model(folder):
    config = transformers.AutoConfig.from_pretrained(folder)
    with DEVICE:  # weights are drawn there
        return transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).eval()


def seconds(run):
    torch.cuda.synchronize()
    start = time.perf_counter()
    run()
    torch.cuda.synchronize()
    return time.perf_counter() - start


@torch.inference_mode()
def decode_seconds(model, entries, context, steps=16):
    """Of a step: what `steps` further tokens cost."""
    prompt = torch.randint(0, model.config.vocab_size, (entries, context), device=DEVICE)
    out = model(prompt, use_cache=True, logits_to_keep=1)
    cache, token = out.past_key_values, out.logits[:, -1].argmax(-1, keepdim=True)
    times = []
    for _ in range(steps):
        def step():
            nonlocal token
            token = model(token, past_key_values=cache, use_cache=True).logits[:, -1].argmax(
                -1, keepdim=True)
        times.append(seconds(step))
    return statistics.median(times)


@torch.inference_mode()
def prefill_seconds(model, tokens):
    prompt = torch.randint(0, model.config.vocab_size, (1, tokens), device=DEVICE)
    return statistics.median(
        seconds(lambda: model(prompt, use_cache=True, logits_to_keep=1)) for _ in range(3))


def main():
    model = make_model(sys.argv[1])
    rows = [{"entries": entries, "context": context, "step_seconds": decode_seconds(model, entries, context)}
            for entries, context in ((1, 1024), (16, 1024))]
    json.dump({"name": f"transformers {transformers.__version__}", "rows": rows,
               "prefill": [{"tokens": 8192, "seconds": prefill_seconds(model, 8192)}]}, sys.stdout)


if __name__ == "__main__":
    main()
