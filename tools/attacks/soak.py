"""Good and hostile requests mixed for a long time: memory, descriptors and threads must not grow once the
server is warm, good requests must be answered, and no figure of /metrics may be negative."""
import json
import os
import random
import time

from common import Outcome, Target, run_threads
import clients
import fields
import grammars

CLIENTS = 6
WARM_SHARE = 0.4  # of the time, before memory is measured first
GROWTH_MAX = 0.15
GOOD = [("/generate", {"text": "Once upon a time", "sampling_params": {"max_new_tokens": 12}}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 8}),
        ("/v1/completions", {"prompt": ["a", "b"], "max_tokens": 4, "n": 2, "logprobs": 2}),
        ("/tokenize", {"prompt": "hello world"}),
        ("/generate", {"text": "x", "sampling_params": {"max_new_tokens": 20, "json_schema": '{"type":"object"}'}})]


def hostile(target, rng, documents):
    kind = rng.random()
    if kind < 0.5:
        case = next(documents)
        if case.path not in fields.ALONE:
            target.send(case.method, case.path, case.body.encode("utf-8", "surrogatepass"))
    elif kind < 0.8:
        try:
            clients.leave(target, rng)
        except OSError:
            pass
    else:
        path, body, _ = next(grammars.bodies(rng))
        target.send("POST", path, body)


def check_metrics(target, outcome):
    for line in target.get("/metrics")[2].splitlines():
        if not line.startswith("#") and float(line.rsplit(" ", 1)[1]) < 0:
            outcome.fail("a negative figure in /metrics", line)


def state_of(target):
    return {"MiB": target.memory_mib(), "descriptors": target.num_descriptors(),
            "threads": len(os.listdir(f"/proc/{target.process.pid}/task"))}


def run(budget):
    outcome = Outcome("soak")
    with Target("--context-length", "256", "--max-total-tokens", "4096", "--grammar-cache-bytes", str(32 << 20)) as target:
        document = json.loads(target.get("/openapi.json")[2])

        def work(seed, until):
            rng = random.Random(seed)
            documents = fields.pairs(document, rng)
            while time.monotonic() < until and outcome.cases < budget.cases and target.is_alive():
                outcome.case()
                if rng.random() < 0.02:
                    check_metrics(target, outcome)
                if rng.random() < 0.5:
                    hostile(target, rng, documents)
                    continue
                path, body = rng.choice(GOOD)
                answer = target.send("POST", path, body)
                if answer.status not in (200, 503):
                    outcome.fail(f"status {answer.status} of a good request", f"{path} {answer.text()[:200]}")

        def phase(name, until):
            run_threads([lambda i=i: work(f"{budget.seed} {name} {i}", until) for i in range(CLIENTS)])
            time.sleep(1)
        started = time.monotonic()
        phase("warm", started + budget.seconds * WARM_SHARE)
        before = state_of(target) if target.is_alive() else {}
        phase("long", budget.ends)
        if target.check(outcome, "the soak"):
            after = state_of(target)
            for name, value in after.items():
                if value > before[name] * (1 + GROWTH_MAX) + 4:
                    outcome.fail(f"{name} grew", f"{before[name]:.0f} -> {value:.0f}")
            outcome.fact(", ".join(f"{name} {before[name]:.0f} -> {after[name]:.0f}" for name in after))
    return outcome
