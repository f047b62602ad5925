#!/usr/bin/env python3
"""Masks of the same schemas on the same vocabulary by xgrammar, llguidance and Espalier: time to first
mask, time of each mask and commit, and what is judged right.

    tests/compat/grammar_peers.py --schemas FILE.jsonl[.xz] --vocab FILE.tiktoken[.xz] [--stride N]
        [--only NAME] [--json FILE]

The peers need `pip install xgrammar==0.2.8 llguidance==1.9.1 tiktoken`; one that is not installed is left
out. Every engine has a process of its own. All follow the valid instances, tokenised canonically: a mask,
then the commit of the token that comes, by the thread's processor time (compilation by the process's), on a
grammar that has just been compiled (cold) and once more (warm); each call of a peer is one through its Python
bindings; what two empty calls and reading the clock take is shown. Verdicts are of all instances. A schema that takes a peer more
than --seconds of processor time, or ends its process, counts as declined. Espalier's times are those of
`espalier_bench grammar --replays 1`, properties in the schema's order as the peers have them; its verdicts
those of `espalier grammar conformance`, whose grammars take them in any."""
import argparse
import base64
import json
import lzma
import os
import select
import subprocess
import sys
import tempfile
import time

ROOT = os.path.realpath(os.path.join(os.path.dirname(__file__), "..", ".."))
SPLIT = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
         r"|\s*[\r\n]+|\s+(?!\S)|\s+")


def opened(path):
    return lzma.open(path) if path.endswith(".xz") else open(path, "rb")


def read_ranks(path):
    ranks = {}
    with opened(path) as f:
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
        self.tokenizer = llguidance.LLTokenizer(wrapped, n_vocab=len(tokens),
                                                slices=llguidance.LLTokenizer.json_slices())
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


def judge(engine, case, encode, eos):
    start = time.process_time()
    try:
        grammar = engine.compile(json.dumps(case["schema"]))
        engine.fill(engine.begin(grammar))
    except Exception:  # pylint: disable=broad-except  # whatever they throw, they decline
        return {"verdict": "declined"}
    out = {"verdict": "right", "first_ms": (time.process_time() - start) * 1e3, "cold": [], "warm": []}
    for times in (out["cold"], out["warm"]):
        for test in case["tests"]:
            matcher, accepted = engine.begin(grammar), True
            for token in encode(json.dumps(test["data"], ensure_ascii=False)):
                start = time.thread_time()
                engine.fill(matcher)
                accepted = engine.accept(matcher, token)
                if test["valid"]:
                    times.append(round((time.thread_time() - start) * 1e6, 2))
                if not accepted:
                    break
            accepted = bool(accepted and engine.may_end(matcher, eos))
            if times is out["cold"] and accepted != test["valid"]:
                if accepted:
                    out["verdict"] = "invalid_accepted"
                elif out["verdict"] == "right":
                    out["verdict"] = "valid_rejected"
    return out


def serve(kind, vocab):
    """The process of one peer: a case a line in, what came of it a line out."""
    import tiktoken
    ranks = read_ranks(vocab)
    eos = max(ranks.values()) + 1
    tokens = [b""] * (eos + 1)
    for token, rank in ranks.items():
        tokens[rank] = token
    tokens[eos] = b"<|end|>"
    encoding = tiktoken.Encoding("vocab", pat_str=SPLIT, mergeable_ranks=ranks, special_tokens={})
    engine = kind(tokens, eos)
    results, sys.stdout = sys.stdout, sys.stderr  # what peers print is no result
    print("ready", file=results, flush=True)
    for line in sys.stdin:
        print(json.dumps(judge(engine, json.loads(line), encoding.encode_ordinary, eos)), file=results, flush=True)


class Peer:
    """A process that answers in time, or is ended and begun anew."""

    def __init__(self, name, vocab, seconds):
        self.command = [sys.executable, os.path.realpath(__file__), "--serve", name, "--vocab", vocab]
        self.seconds = seconds
        self.start()

    def start(self):
        self.process = subprocess.Popen(self.command, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        stderr=subprocess.DEVNULL)
        self.ready = self.process.stdout.readline().strip() == b"ready"

    def cpu_seconds(self):
        with open(f"/proc/{self.process.pid}/stat", encoding="utf-8") as f:
            fields = f.read().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def ask(self, case):
        try:
            self.process.stdin.write(json.dumps(case).encode() + b"\n")
            self.process.stdin.flush()
            used = self.cpu_seconds()
            while self.cpu_seconds() - used < self.seconds and self.process.poll() is None:
                if select.select([self.process.stdout], [], [], 1)[0]:
                    line = self.process.stdout.readline()
                    if line:
                        return json.loads(line)
                    break
        except BrokenPipeError:
            pass
        self.process.kill()
        self.process.wait()
        self.start()
        return {"verdict": "declined", "ended": True}


def run_peer(name, cases, vocab, seconds):
    peer = Peer(name, vocab, seconds)
    if not peer.ready:
        return None
    first, cold, warm = [], [], []
    tally = {"total": 0, "right": 0, "valid_rejected": 0, "invalid_accepted": 0, "declined": 0, "ended": 0}
    for case in cases:
        answer = peer.ask(case)
        tally["total"] += 1
        tally[answer["verdict"]] += 1
        tally["ended"] += answer.get("ended", False)
        if "first_ms" in answer:
            first.append(answer["first_ms"])
            cold += answer["cold"]
            warm += answer["warm"]
        if tally["total"] % 20 == 0:
            print(f"{name}: {tally}", file=sys.stderr, flush=True)
    peer.process.kill()
    return {**tally, "first_mask_ms": percentiles(first), "mask_cold_us": percentiles(cold),
            "mask_warm_us": percentiles(warm)}


def run_espalier(binary, cases, vocab):
    with tempfile.TemporaryDirectory() as folder:
        file, out = os.path.join(folder, "cases.jsonl"), os.path.join(folder, "out.json")
        plain = os.path.join(folder, "vocab.tiktoken")
        with opened(vocab) as packed, open(plain, "wb") as f:
            f.write(packed.read())
        with open(file, "w", encoding="utf-8") as f:
            for case in cases:
                f.write(json.dumps(case) + "\n")
        bench = os.path.join(os.path.dirname(binary), "espalier_bench")
        subprocess.run([bench, "grammar", "--schemas", file, "--vocab", plain, "--replays", "1",
                        "--json", out], check=True, stdout=subprocess.DEVNULL)
        judged = subprocess.run([binary, "grammar", "conformance", "--schemas", file, "--json"],
                                check=True, capture_output=True, text=True).stdout
        with open(out, encoding="utf-8") as f:
            times = json.load(f)
    tally = json.loads(judged)
    return {**{k: tally[k] for k in ("total", "right", "valid_rejected", "invalid_accepted", "declined")},
            "ended": 0, "first_mask_ms": times["first_mask_ms"], "mask_cold_us": times["mask_cold_us"],
            "mask_warm_us": times["mask_warm_us"]}


def call_us():
    """What two calls of nothing cost, as a mask and a commit do besides their work."""
    def nothing(_):
        return None
    times = []
    for _ in range(1000):
        start = time.thread_time()
        nothing(0)
        nothing(0)
        times.append((time.thread_time() - start) * 1e6)
    return sorted(times)[len(times) // 2]


def main():
    peers = {kind.name: kind for kind in (XGrammar, LlGuidance)}
    parser = argparse.ArgumentParser()
    parser.add_argument("--schemas")
    parser.add_argument("--vocab", required=True)
    parser.add_argument("--stride", type=int, default=1, help="every so many schemas")
    parser.add_argument("--seconds", type=float, default=20, help="of processor time that a schema may take a peer")
    parser.add_argument("--only", help="espalier, xgrammar or llguidance")
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    parser.add_argument("--json")
    parser.add_argument("--espalier", default=os.path.join(ROOT, "build/release/espalier"))
    args = parser.parse_args()
    if args.serve:
        serve(peers[args.serve], args.vocab)
        return
    with opened(args.schemas) as f:
        cases = [json.loads(line) for i, line in enumerate(f) if i % args.stride == 0]
    results = {}
    for name in ("espalier", *peers):
        if args.only not in (None, name):
            continue
        if name == "espalier":
            results[name] = run_espalier(args.espalier, cases, args.vocab)
        else:
            results[name] = run_peer(name, cases, args.vocab, args.seconds)
        if results[name] is None:
            print(f"{name} is left out: it is not installed", file=sys.stderr)
            del results[name]
    print(f"{len(cases)} schemas, {os.path.basename(args.vocab)}; p50 / p99 / p99.9 / max; a call of nothing "
          f"and its timing take {call_us():.1f} us")
    for name, r in results.items():
        f, c, w = r["first_mask_ms"], r["mask_cold_us"], r["mask_warm_us"]
        print(f"{name:<11} first mask, ms {f['p50']:.2f} / {f['p99']:.1f} / {f['p999']:.1f} / {f['max']:.1f}")
        for state, m in (("cold", c), ("warm", w)):
            print(f"{'':<11} mask {state}, us {m['p50']:.1f} / {m['p99']:.1f} / {m['p999']:.0f} / {m['max']:.0f}")
        print(f"{'':<11} right {100 * r['right'] / max(r['total'], 1):.1f} %, {r['valid_rejected']} valid rejected, "
              f"{r['invalid_accepted']} invalid accepted, {r['declined']} declined ({r['ended']} of them took more "
              f"than {args.seconds:g} s or ended the process)")
    if args.json:
        with open(args.json, "w", encoding="utf-8") as f:
            json.dump(results, f, indent=1)


if __name__ == "__main__":
    main()
