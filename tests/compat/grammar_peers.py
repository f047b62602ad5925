#!/usr/bin/env python3
"""Masks of the same schemas on the same vocabulary by xgrammar, llguidance and Espalier: time to first
mask, time of each mask and commit, and what is judged right.

    tests/compat/grammar_peers.py --schemas FILE.jsonl --vocab FILE.tiktoken [--stride N] [--json FILE]

The peers need `pip install xgrammar==0.2.8 llguidance==1.9.1 tiktoken`; one that is not installed is left
out. Each engine follows every instance, tokenised canonically: a mask, then the commit of the token that
comes, by one thread's processor time; Espalier's times are those of `espalier bench grammar` (the least of
one replay, cold), its verdicts those of `espalier grammar conformance`."""
import argparse
import base64
import json
import os
import subprocess
import sys
import tempfile
import time

ROOT = os.path.realpath(os.path.join(os.path.dirname(__file__), "..", ".."))
SPLIT = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
         r"|\s*[\r\n]+|\s+(?!\S)|\s+")


def read_ranks(path):
    ranks = {}
    with open(path, "rb") as f:
        for line in f:
            token, rank = line.split()
            ranks[base64.b64decode(token)] = int(rank)
    return ranks


class XGrammar:
    name = "xgrammar"

    def __init__(self, tokens, eos):
        import xgrammar
        self.xg = xgrammar
        info = xgrammar.TokenizerInfo(tokens, vocab_type=xgrammar.VocabType.RAW, stop_token_ids=[eos])
        self.compiler = xgrammar.GrammarCompiler(info, max_threads=1, cache_enabled=False)
        self.mask = xgrammar.allocate_token_bitmask(1, len(tokens))

    def compile(self, schema):
        return self.compiler.compile_json_schema(schema, strict_mode=False)

    def begin(self, grammar):
        return self.xg.GrammarMatcher(grammar, terminate_without_stop_token=False)

    def fill(self, matcher):
        matcher.fill_next_token_bitmask(self.mask)

    def accept(self, matcher, token):
        return matcher.accept_token(token)

    def may_end(self, matcher, eos):
        return matcher.accept_token(eos)


class LlGuidance:
    name = "llguidance"

    def __init__(self, tokens, eos):
        import llguidance
        import numpy

        class Vocabulary:
            eos_token_id, bos_token_id, unk_token_id = eos, None, None
            special_token_ids = [eos]

            def __init__(self):
                self.tokens = tokens

            def __call__(self, text):
                return []

        wrapped = llguidance.TokenizerWrapper(Vocabulary())
        self.ll = llguidance
        self.tokenizer = llguidance.LLTokenizer(wrapped, n_vocab=len(tokens))
        self.mask = numpy.zeros((len(tokens) + 31) // 32, dtype=numpy.int32)

    def compile(self, schema):
        matcher = self.ll.LLMatcher(self.tokenizer, self.ll.LLMatcher.grammar_from_json_schema(schema))
        if matcher.get_error():
            raise ValueError(matcher.get_error())
        return matcher

    def begin(self, grammar):
        return grammar.deep_copy()

    def fill(self, matcher):
        matcher.unsafe_compute_mask_ptr(self.mask.ctypes.data, self.mask.nbytes)

    def accept(self, matcher, token):
        return matcher.consume_token(token)

    def may_end(self, matcher, eos):
        return matcher.is_accepting()


def percentiles(values):
    values = sorted(values) or [0.0]
    at = [values[int(q * (len(values) - 1))] for q in (0.5, 0.99, 0.999)]
    return {"p50": at[0], "p99": at[1], "p999": at[2], "max": values[-1], "count": len(values)}


def run(engine, cases, encode, eos):
    first, masks = [], []
    tally = {"total": 0, "right": 0, "valid_rejected": 0, "invalid_accepted": 0, "declined": 0}
    for case in cases:
        tally["total"] += 1
        start = time.thread_time()
        try:
            grammar = engine.compile(json.dumps(case["schema"]))
            engine.fill(engine.begin(grammar))
        except Exception:  # pylint: disable=broad-except  # whatever they throw, they decline
            tally["declined"] += 1
            continue
        first.append((time.thread_time() - start) * 1e3)
        verdict = "right"
        for test in case["tests"]:
            matcher, accepted = engine.begin(grammar), True
            for token in encode(json.dumps(test["data"], ensure_ascii=False)):
                start = time.thread_time()
                engine.fill(matcher)
                accepted = engine.accept(matcher, token)
                masks.append((time.thread_time() - start) * 1e6)
                if not accepted:
                    break
            accepted = accepted and engine.may_end(matcher, eos)
            if accepted != test["valid"]:
                verdict = "invalid_accepted" if accepted else (
                    verdict if verdict == "invalid_accepted" else "valid_rejected")
        tally[verdict] += 1
    return {**tally, "first_mask_ms": percentiles(first), "mask_us": percentiles(masks)}


def run_espalier(binary, cases, vocab):
    with tempfile.TemporaryDirectory() as folder:
        file, out = os.path.join(folder, "cases.jsonl"), os.path.join(folder, "out.json")
        with open(file, "w", encoding="utf-8") as f:
            for case in cases:
                f.write(json.dumps(case) + "\n")
        subprocess.run([binary, "bench", "grammar", "--schemas", file, "--vocab", vocab, "--replays", "1",
                        "--json", out], check=True, stdout=subprocess.DEVNULL)
        judged = subprocess.run([binary, "grammar", "conformance", "--schemas", file, "--json"],
                                check=True, capture_output=True, text=True).stdout
        with open(out, encoding="utf-8") as f:
            times = json.load(f)
    tally = json.loads(judged)
    return {**{k: tally[k] for k in ("total", "right", "valid_rejected", "invalid_accepted", "declined")},
            "first_mask_ms": times["first_mask_ms"], "mask_us": times["mask_cold_us"]}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--schemas", required=True)
    parser.add_argument("--vocab", required=True)
    parser.add_argument("--stride", type=int, default=1)
    parser.add_argument("--json")
    parser.add_argument("--espalier", default=os.path.join(ROOT, "build/release/espalier"))
    args = parser.parse_args()
    with open(args.schemas, encoding="utf-8") as f:
        cases = [json.loads(line) for i, line in enumerate(f) if i % args.stride == 0]
    ranks = read_ranks(args.vocab)
    eos = max(ranks.values()) + 1
    tokens = [b""] * (eos + 1)
    for token, rank in ranks.items():
        tokens[rank] = token
    tokens[eos] = b"<|end|>"
    results = {"espalier": run_espalier(args.espalier, cases, args.vocab)}
    try:
        import tiktoken
        encoding = tiktoken.Encoding("vocab", pat_str=SPLIT, mergeable_ranks=ranks, special_tokens={})
        for kind in (XGrammar, LlGuidance):
            try:
                engine = kind(tokens, eos)
            except ImportError as failure:
                print(f"{kind.name} is left out: {failure}", file=sys.stderr)
                continue
            results[kind.name] = run(engine, cases, encoding.encode_ordinary, eos)
    except ImportError as failure:
        print(f"no peers: {failure}", file=sys.stderr)
    print(f"{len(cases)} schemas, {eos + 1} tokens; p50 / p99 / p99.9 / max")
    for name, r in results.items():
        f, m = r["first_mask_ms"], r["mask_us"]
        print(f"{name:<11} first mask, ms {f['p50']:.2f} / {f['p99']:.1f} / {f['p999']:.1f} / {f['max']:.1f}"
              f"   mask, us {m['p50']:.1f} / {m['p99']:.0f} / {m['p999']:.0f} / {m['max']:.0f}"
              f"   right {100 * r['right'] / max(r['total'], 1):.1f} %, {r['valid_rejected']} valid rejected, "
              f"{r['invalid_accepted']} invalid accepted, {r['declined']} declined")
    if args.json:
        with open(args.json, "w", encoding="utf-8") as f:
            json.dump(results, f, indent=1)


if __name__ == "__main__":
    main()
