#!/usr/bin/env python3
"""Measures one engine under the work that bench/peers/compare gives to every engine.

    PYTHON bench/peers/measure.py --engine ENGINE --model FOLDER [--json FILE] [--arguments JSON]
                                  [--program PATH] [--device DEVICE] [--row NAME ...] [--shrink N]

ENGINE is vllm or sglang (imported by the Python that runs this script), espalier (the in-process engine of
`espalier_bench batches`, given by --program) or espalier-http (`espalier serve`, given by --program).
FOLDER needs a config.json only: the weights are dummies, and prompts are random token ids.

Each row is printed as a line of JSON when it is done, so that a failure keeps the rows before it. --json
writes all of them. Every row checks that the engine generated as many tokens as it should.
"""
import argparse
import http.client
import json
import os
import random
import socket
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass, replace

# The longest prompt and its answer fit, and so do the most requests at once of any row.
CONTEXT_TOKENS, REQUESTS_MAX = 16384, 256


@dataclass(frozen=True)
class Row:
    name: str
    kind: str  # decode | prefill | offline
    requests: int
    prompt: int  # tokens of a request, those of a shared prefix included
    output: int = 1
    repeats: int = 1
    groups: int = 0  # of requests that share a prefix; 0: nothing is shared
    shared: int = 0  # tokens of the prefix

    def shrunk(self, by):
        """The same row with about 1/by of the tokens, for a trial on a small machine."""
        if by == 1:
            return self
        groups = min(self.groups, 2)
        return replace(self, requests=2 * groups if groups else min(self.requests, 4), groups=groups,
                       prompt=max(self.prompt // by, 8), shared=self.shared // by,
                       output=max(self.output // by, 16) if self.output > 1 else 1, repeats=1)

    @property
    def unit(self):
        return "input tok/s" if self.kind == "prefill" else "output tok/s"


ROWS = [
    Row("one request", "decode", 1, 1024, 256, repeats=3),
    Row("16 requests", "decode", 16, 1024, 129, repeats=2),
    Row("64 requests", "decode", 64, 1024, 129),
    Row("128 requests", "decode", 128, 1024, 129),
    Row("256 requests", "decode", 256, 1024, 129),
    Row("prefill 8 x 2048", "prefill", 8, 2048, repeats=3),
    Row("prefill 1 x 8192", "prefill", 1, 8192, repeats=3),
    Row("offline 512 x 1000/1000", "offline", 512, 1000, 1000),
    Row("shared prefix 64 x 16", "offline", 1024, 2048 + 128, 256, groups=64, shared=2048),
]
COLD_START = "cold start"


def prompts_of(row, vocab, rng):
    """Random token ids, without the first eighth of the vocabulary, where special tokens often lie."""
    def draw(count):
        return rng.choices(range(vocab // 8, vocab), k=count)
    if not row.groups:
        return [draw(row.prompt) for _ in range(row.requests)]
    prompts = []
    for _ in range(row.groups):
        prefix = draw(row.shared)
        prompts += [prefix + draw(row.prompt - row.shared) for _ in range(row.requests // row.groups)]
    return prompts


# ---- engines ----
# Each has generate(prompts, max_new_tokens) -> (seconds, output tokens), flush() of the prefix cache, close(),
# `version` and `started`, the time.monotonic() at which its process began.

def own_start():
    """When this process began, before the interpreter and its imports were loaded."""
    with open("/proc/self/stat", encoding="ascii") as file:
        ticks = int(file.read().rsplit(")", 1)[1].split()[19])
    with open("/proc/uptime", encoding="ascii") as file:
        uptime = float(file.read().split()[0])
    return time.monotonic() - (uptime - ticks / os.sysconf("SC_CLK_TCK"))


def until_true(attempt, what, seconds=10):
    """An engine refuses to drop its cache until the step behind the last answer has ended."""
    deadline = time.monotonic() + seconds
    while not attempt():
        if time.monotonic() > deadline:
            raise RuntimeError(f"{what} failed for {seconds} s")
        time.sleep(0.01)


def spread_routing(model):
    """Draws the embedding and the routers anew, so that different tokens choose different experts: engines'
    dummy weights are so small that the routing of many rows may collapse to a few experts, whose bytes alone a
    decode step then reads. Returns how many experts of the first layer 16, 64 and 256 random tokens choose."""
    import torch
    parameters = dict(model.named_parameters())
    embedding = next(value for name, value in parameters.items() if name.endswith("embed_tokens.weight"))
    routers = [value for name, value in parameters.items() if name.endswith(".gate.weight")]
    for weights in [embedding, *routers]:  # routers may be quantised
        weights.data.copy_(torch.randn(weights.shape, device=weights.device).to(weights.dtype))
    tokens = torch.randint(0, embedding.shape[0], (256,), device=embedding.device)
    router = routers[0].data.float()
    if router.shape[0] == embedding.shape[1]:  # quantised matrices lie transposed
        router = router.T
    scores = embedding.data[tokens].float() @ router.T
    top_k = getattr(model.config, "num_experts_per_tok", 1)
    chosen = scores.topk(top_k, dim=-1).indices
    return [int(chosen[:rows].unique().numel()) for rows in (16, 64, 256)]


def has_experts(model):
    with open(os.path.join(model, "config.json"), encoding="utf-8") as file:
        config = json.load(file)
    return any(config.get(name) for name in ("num_experts", "n_routed_experts", "num_local_experts"))


class Vllm:
    """vLLM's LLM class. A mixture of experts gets spread routing."""

    def __init__(self, options):
        self.started = own_start()
        for name, value in {"VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1", "DO_NOT_TRACK": "1",
                            "VLLM_ALLOW_INSECURE_SERIALIZATION": "1"}.items():  # of spread_routing()
            os.environ.setdefault(name, value)
        import vllm
        self.version = vllm.__version__
        self.sampling = vllm.SamplingParams
        arguments = {"load_format": "dummy", "skip_tokenizer_init": True, "dtype": "bfloat16",
                     "gpu_memory_utilization": 0.9, "max_model_len": CONTEXT_TOKENS,
                     "max_num_seqs": REQUESTS_MAX, "enable_prefix_caching": True, "seed": 0}
        self.engine = vllm.LLM(model=options.model, **{**arguments, **options.arguments})
        if has_experts(options.model):
            print("experts that 16, 64 and 256 tokens choose:", self.engine.apply_model(spread_routing),
                  file=sys.stderr)

    def generate(self, prompts, max_new_tokens):
        sampling = self.sampling(temperature=0.0, max_tokens=max_new_tokens, ignore_eos=True,
                                 detokenize=False)
        requests = [{"prompt_token_ids": prompt} for prompt in prompts]
        start = time.perf_counter()
        outputs = self.engine.generate(requests, sampling, use_tqdm=False)
        return time.perf_counter() - start, sum(len(o.outputs[0].token_ids) for o in outputs)

    def flush(self):
        until_true(self.engine.reset_prefix_cache, "LLM.reset_prefix_cache()")

    def close(self):
        self.engine.llm_engine.engine_core.shutdown()


class Sglang:
    """SGLang's Engine class."""

    def __init__(self, options):
        self.started = own_start()
        for name, value in {"HF_HUB_OFFLINE": "1", "DO_NOT_TRACK": "1"}.items():
            os.environ.setdefault(name, value)
        import sglang
        self.version = sglang.__version__
        arguments = {"load_format": "dummy", "skip_tokenizer_init": True, "dtype": "bfloat16",
                     "mem_fraction_static": 0.88, "context_length": CONTEXT_TOKENS,
                     "max_running_requests": REQUESTS_MAX, "random_seed": 0, "log_level": "warning"}
        self.engine = sglang.Engine(model_path=options.model, **{**arguments, **options.arguments})

    def generate(self, prompts, max_new_tokens):
        sampling = {"temperature": 0, "max_new_tokens": max_new_tokens, "ignore_eos": True}
        start = time.perf_counter()
        outputs = self.engine.generate(input_ids=prompts, sampling_params=sampling)
        return time.perf_counter() - start, sum(o["meta_info"]["completion_tokens"] for o in outputs)

    def flush(self):
        until_true(lambda: self.engine.flush_cache().success, "Engine.flush_cache()")

    def close(self):
        self.engine.shutdown()


def espalier_flags(options):
    flags = {"model-path": options.model, "load-format": "dummy", "context-length": CONTEXT_TOKENS,
             "max-running-requests": REQUESTS_MAX, "log-level": "warning", "device": options.device}
    flags.update(options.arguments)
    return [word for name, value in flags.items() for word in ("--" + name.replace("_", "-"), str(value))]


class EngineFailed(Exception):
    """An engine's process ended or refused a command."""


class Espalier:
    """`espalier_bench batches`: Espalier's engine in a process that this one talks to in lines of JSON, which
    are written and parsed outside the time that the process measures."""

    def __init__(self, options):
        self.started, self.version = time.monotonic(), version_of(options.program)
        self.process = subprocess.Popen([options.program, "batches", *espalier_flags(options)], text=True,
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.read("ready")

    def read(self, key):
        line = self.process.stdout.readline()
        if not line:
            raise EngineFailed(f"espalier_bench batches ended with {self.process.wait()}")
        answer = json.loads(line)
        if key not in answer:
            raise EngineFailed(f"espalier_bench batches: {answer.get('error', line)}")
        return answer

    def ask(self, line, key):
        self.process.stdin.write(json.dumps(line) + "\n")
        self.process.stdin.flush()
        return self.read(key)

    def generate(self, prompts, max_new_tokens):
        answer = self.ask({"input_ids": prompts, "max_new_tokens": max_new_tokens}, "seconds")
        return answer["seconds"], answer["output_tokens"]

    def flush(self):
        until_true(lambda: self.ask({"flush_cache": True}, "flushed")["flushed"], "flush_cache")

    def close(self):
        self.process.stdin.close()
        if self.process.wait(60) != 0:
            raise EngineFailed(f"espalier_bench batches ended with {self.process.returncode}")


class EspalierHttp:
    """`espalier serve`, by one /generate request a batch. The time includes JSON and the transfer."""

    def __init__(self, options):
        self.started, self.version = time.monotonic(), version_of(options.program)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.process = subprocess.Popen([options.program, "serve", *espalier_flags(options),
                                         "--skip-tokenizer-init", "--port", str(self.port)])
        while not self.healthy():
            if self.process.poll() is not None:
                raise EngineFailed(f"espalier serve ended with {self.process.returncode}")
            time.sleep(0.01)

    def request(self, method, path, body=None, timeout=900):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        try:
            connection.request(method, path, body, {"Content-Type": "application/json"} if body else {})
            response = connection.getresponse()
            return response.status, response.read()
        finally:
            connection.close()

    def healthy(self):
        try:
            return self.request("GET", "/health", timeout=2)[0] == 200
        except OSError:
            return False

    def generate(self, prompts, max_new_tokens):
        body = json.dumps({"input_ids": prompts, "sampling_params": {
            "temperature": 0, "max_new_tokens": max_new_tokens, "ignore_eos": True}})
        start = time.perf_counter()
        status, text = self.request("POST", "/generate", body)
        seconds = time.perf_counter() - start
        if status != 200:
            raise EngineFailed(f"/generate answered {status}: {text[:300]!r}")
        return seconds, sum(len(o["output_ids"]) for o in json.loads(text))

    def flush(self):
        until_true(lambda: self.request("POST", "/flush_cache")[0] == 200, "/flush_cache")

    def close(self):
        self.process.terminate()
        self.process.wait(60)


ENGINES = {"vllm": Vllm, "sglang": Sglang, "espalier": Espalier, "espalier-http": EspalierHttp}


def version_of(program):
    """The version of the `espalier` that lies beside the program, or an empty string."""
    path = os.path.join(os.path.dirname(os.path.abspath(program)), "espalier")
    if not os.path.exists(path):
        return ""
    done = subprocess.run([path, "--version"], capture_output=True, text=True, check=True)
    return done.stdout.split()[-1]


# ---- measuring ----

class RowFailed(Exception):
    """A row that has no figure, though the engine can go on."""


NOISE = "a whole batch took no longer than its first tokens: other load disturbs the measurement"


class Bench:
    def __init__(self, engine, vocab):
        self.engine, self.vocab = engine, vocab
        self.rng = random.Random(1)  # no two rows or repeats draw the same prompt

    def generate(self, row, output):
        """Seconds of one batch."""
        seconds, tokens = self.engine.generate(prompts_of(row, self.vocab, self.rng), output)
        if tokens != row.requests * output:
            raise RowFailed(f"{tokens} tokens were generated, not {row.requests * output}")
        return seconds

    def cold_start(self):
        self.generate(Row(COLD_START, "decode", 1, 16), 1)
        return {"name": COLD_START, "unit": "s", "value": time.monotonic() - self.engine.started}

    def measure(self, row):
        # Short prompts compile and capture what a batch of this size needs.
        self.generate(replace(row, prompt=min(row.prompt, 16), groups=0,
                              requests=min(row.requests, REQUESTS_MAX)), 4)
        if row.kind == "prefill":
            self.generate(row, 1)
        seconds = []
        for _ in range(row.repeats):
            self.engine.flush()
            if row.kind == "decode":  # less the time to the first tokens of other prompts
                first = self.generate(row, 1)
                seconds.append(self.generate(row, row.output) - first)
            else:
                seconds.append(self.generate(row, row.output))
        tokens = {"decode": row.requests * (row.output - 1), "prefill": row.requests * row.prompt,
                  "offline": row.requests * row.output}[row.kind]
        if min(seconds) <= 0:
            raise RowFailed(NOISE)
        return {"name": row.name, "unit": row.unit, "value": tokens / statistics.median(seconds),
                "seconds": seconds, "requests": row.requests, "prompt": row.prompt, "output": row.output}


def vocab_of(model):
    with open(os.path.join(model, "config.json"), encoding="utf-8") as file:
        config = json.load(file)
    return config.get("text_config", config)["vocab_size"]


def run(engine, vocab, rows, report):
    """Measures the rows that can be measured; `report` gets each result."""
    bench = Bench(engine, vocab)
    report(bench.cold_start())
    for row in rows:
        try:
            report(bench.measure(row))
        except (RowFailed, ValueError) as error:  # the engine lives: the next row may succeed
            report({"name": row.name, "unit": row.unit, "error": str(error)})


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--engine", required=True, choices=ENGINES)
    parser.add_argument("--model", required=True, help="folder with a config.json")
    parser.add_argument("--json", help="write the result there")
    parser.add_argument("--arguments", type=json.loads, default={},
                        help="JSON object of the engine's own arguments, beside or in place of ours")
    parser.add_argument("--program", help="espalier_bench or espalier, of Espalier's engines")
    parser.add_argument("--device", default="cuda", help="of Espalier's engines")
    parser.add_argument("--row", action="append", choices=[row.name for row in ROWS], help="repeatable")
    parser.add_argument("--shrink", type=int, default=1, help="divide the work, for a trial")
    options = parser.parse_args()
    if options.engine.startswith("espalier") and not options.program:
        parser.error(f"--engine {options.engine} needs --program")
    rows = [row.shrunk(options.shrink) for row in ROWS if not options.row or row.name in options.row]
    result = {"engine": options.engine, "model": os.path.basename(os.path.abspath(options.model)),
              "arguments": options.arguments, "shrink": options.shrink, "rows": []}

    def report(row):
        result["rows"].append(row)
        print(json.dumps(row), flush=True)

    try:
        engine = ENGINES[options.engine](options)
    except EngineFailed as error:  # the engine's own message stands above
        sys.exit(str(error))
    result["version"] = engine.version
    print(json.dumps({"version": engine.version}), flush=True)
    try:
        run(engine, vocab_of(options.model), rows, report)
    finally:
        engine.close()
    if options.json:
        with open(options.json, "w", encoding="utf-8") as out:
            json.dump(result, out, indent=1)
            out.write("\n")


if __name__ == "__main__":  # vLLM and SGLang start processes that import this file again
    main()
