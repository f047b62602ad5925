#!/usr/bin/env python3
"""What prompts of other callers cost a stream, and what protecting it costs them: the gaps between the tokens of
one stream alone and beside clients that send prompts of 4,000 to 8,000 tokens, by --mixed-step-ratio, and the
prompt tokens a second. On a CPU, with the model that ships.

    bench/mixed_steps.py [--binary PATH] [--seconds 20] [--clients 2] [--ratios 0,2] [--threads N]
"""
import argparse
import json
import os
import random
import sys
import tempfile
import threading
import time

ROOT = os.path.realpath(os.path.join(os.path.dirname(__file__), ".."))
sys.path.insert(0, os.path.join(ROOT, "tools", "attacks"))


def send_prompts(target, ends, seed, done):
    """One prompt after the other, none of which has a cached prefix; appends (seconds, tokens) of each."""
    rng = random.Random(seed)
    while (left := ends - time.monotonic()) > 0:
        words = " ".join(rng.choice("abcdefgh") for _ in range(rng.randint(4000, 8000)))
        started = time.monotonic()
        answer = target.send("POST", "/generate", {"text": words, "sampling_params": {"max_new_tokens": 4}}, timeout=max(0.1, left))
        if answer.status == 200:
            done.append((time.monotonic() - started, json.loads(answer.body)["meta_info"]["prompt_tokens"]))


def prompts_beside(target, seconds, num_clients, streams):
    """(prompts done, gaps of the stream beside them, seconds)."""
    import together
    started, done = time.monotonic(), []
    ends = started + seconds
    clients = [threading.Thread(target=send_prompts, args=(target, ends, f"{started} {i}", done)) for i in range(num_clients)]
    for client in clients:
        client.start()
    gaps = together.stream_gaps(target, ends)[0] if streams else []
    for client in clients:
        client.join()
    return done, gaps, time.monotonic() - started


def measure(ratio, arguments):
    import common
    import together
    flags = ["--mixed-step-ratio", str(ratio), "--max-total-tokens", "200000"]
    if arguments.threads:
        flags += ["--num-threads", str(arguments.threads)]
    with tempfile.TemporaryDirectory() as folder, \
            common.Target("--model-path", together.with_long_context(folder), "--disable-radix-cache", "--fair-share", "tenant", *flags) as target:
        together.stream_gaps(target, time.monotonic() + 2)
        quiet, _ = together.stream_gaps(target, time.monotonic() + arguments.seconds / 2)
        done, gaps, seconds = prompts_beside(target, arguments.seconds, arguments.clients, streams=True)
        alone, _, seconds_alone = prompts_beside(target, arguments.seconds / 2, arguments.clients, streams=False)

    def row(values):
        return " | ".join(f"{common.percentile(values, share) * 1000:.2f}" for share in (0.5, 0.99, 1))

    def rate(prompts, length):
        return sum(tokens for _, tokens in prompts) / length
    print(f"| {ratio:g} | {row(quiet)} | {row(gaps)} | {common.percentile(gaps, 0.99) / common.percentile(quiet, 0.99):.2f} | "
          f"{len(gaps) / seconds:.0f} | {rate(done, seconds):.0f} | {rate(alone, seconds_alone):.0f} |", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", help="the program to measure (ESPALIER_BINARY, build/release/espalier)")
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--clients", type=int, default=2)
    parser.add_argument("--ratios", default="0,2")
    parser.add_argument("--threads", type=int)
    arguments = parser.parse_args()
    if arguments.binary:
        os.environ["ESPALIER_BINARY"] = os.path.abspath(arguments.binary)
    os.environ.setdefault("ESPALIER_SHARE", os.path.join(ROOT, "share"))
    print("| ratio | quiet ms: p50 | p99 | max | beside prompts: p50 | p99 | max | p99 ratio | stream tokens/s | "
          "prompt tokens/s | without a stream |\n|---|---|---|---|---|---|---|---|---|---|---|")
    for ratio in arguments.ratios.split(","):
        measure(float(ratio), arguments)


if __name__ == "__main__":
    main()
