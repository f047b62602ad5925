"""Every attack at once, under a limited address space, beside one good stream: the process lives, the stream's
tokens keep coming, /health answers, and memory stays below the sum of the limits."""
import collections
import functools
import json
import multiprocessing
import os
import random
import resource
import shutil
import socket
import tempfile
import time

from common import ROOT, Outcome, Target, exchange, percentile, request_bytes, run_threads
import clients
import fields
import grammars
import raw_http

ADDRESS_SPACE = 3200 << 20
SLOWDOWN_MAX = 3.0
HEALTH_SECONDS_MAX = 1.0
MEMORY_SLACK = 1.1
OTHER_BYTES = 200 << 20  # code, stacks, buffers of a step, kept parts of the heap
QUIET_SECONDS = 20.0
STREAM = {"text": "Once upon", "stream": True, "extra_key": "good", "sampling_params": {"max_new_tokens": 150, "ignore_eos": True}}
LOGPROBS = {"text": "a", "return_logprob": True, "top_logprobs_num": 4096,
            "sampling_params": {"n": 200, "max_new_tokens": 20, "ignore_eos": True}}
SAMPLES = {"text": "a b " * 300, "sampling_params": {"n": 64, "max_new_tokens": 60, "ignore_eos": True,
                                                     "stop_regex": ["(a|b)*c{1,9}zz"] * 20}}
LARGE = b'{"text":"' + b"a" * (60 << 20) + b'"}'
# As many at once as a small machine decodes in little more time than one.
LIMITS = ["--max-running-requests", "8", "--max-total-tokens", "200000", "--max-bodies-bytes", str(300 << 20),
          "--max-outputs-bytes", str(300 << 20), "--grammar-cache-bytes", str(200 << 20), "--write-timeout", "5"]


def send_fields(target, draws, timeout):
    case = next(draws.pairs)
    if case.path not in fields.ALONE:
        target.send(case.method, case.path, case.body.encode("utf-8", "surrogatepass"), timeout=timeout)


def send_grammar(target, draws, timeout):
    path, body, _ = next(draws.grammars)
    target.send("POST", path, body, timeout=timeout)


def send_prompt(target, draws, timeout):
    """4,000 to 8,000 tokens that no one has sent before, and few of an answer."""
    words = [draws.rng.choice("abcdefgh") for _ in range(draws.rng.randint(4000, 8000))]
    target.send("POST", "/generate", {"text": " ".join(words), "sampling_params": {"max_new_tokens": 4}}, timeout=timeout)


def send_raw(target, draws, _):
    raw_http.talk(target.port, [draws.rng.choice(raw_http.CASES)[1]], further=0.02)


def send_and_leave(target, draws, _):
    clients.leave(target, draws.rng)


def read_slowly(target, _, timeout):
    """Sends what has a large answer, and reads a byte now and then."""
    ends = time.monotonic() + min(10, timeout)
    with socket.create_connection(("127.0.0.1", target.port), timeout=1) as connection:
        connection.sendall(clients.LONG_STREAM)
        while time.monotonic() < ends and connection.recv(1):
            time.sleep(0.2)


def post(body):
    return lambda target, _, timeout: target.send("POST", "/generate", body, timeout=timeout)


# Name, what one client does again and again, and how many such clients there are.
ATTACKS = {
    "fields": (send_fields, 2), "grammars": (send_grammar, 2), "clients that leave": (send_and_leave, 2),
    "slow readers": (read_slowly, 2), "raw": (send_raw, 1), "large bodies": (post(LARGE), 2),
    "log-probabilities": (post(LOGPROBS), 2), "samples and stops": (post(SAMPLES), 1), "long prompts": (send_prompt, 2),
}


class Draws:
    """What one client sends next."""

    def __init__(self, target, seed):
        self.rng = random.Random(seed)
        self.pairs = fields.pairs(json.loads(target.get("/openapi.json")[2]), self.rng)
        self.grammars = grammars.bodies(self.rng)


def attack(target, ends, name, seed, counts):
    draws = Draws(target, seed)
    while (left := ends - time.monotonic()) > 0:
        try:
            ATTACKS[name][0](target, draws, max(0.1, min(20.0, left)))
        except OSError:
            time.sleep(0.01)  # a refused connection is an answer, too
        counts[name] += 1


def attack_in_processes(target, ends, seed):
    """Each kind in a process of its own, at a low priority: the attackers are other machines, and the good
    stream's times are not to be those of this interpreter. A function that awaits how often each attacked."""
    def work(name, pipe):
        os.nice(15)
        target.is_alive = lambda: True  # a process can ask this of its own children alone
        counts = collections.Counter()
        run_threads([functools.partial(attack, target, ends, name, f"{seed} {name} {i}", counts) for i in range(ATTACKS[name][1])])
        pipe.send(counts)
    results = [in_a_process(functools.partial(work, name)) for name in ATTACKS]
    return lambda: sum((result() or collections.Counter() for result in results), collections.Counter())


def health_in_a_process(target, ends):
    """A function that awaits the seconds that each /health took, and how many were not answered 200."""
    def work(pipe):
        seconds, wrong = [], collections.Counter()
        request = request_bytes("GET", "/health")
        while time.monotonic() < ends:
            started = time.monotonic()
            status = exchange(target.port, request).status
            seconds.append(time.monotonic() - started)
            if status != 200:
                wrong[status] += 1
            time.sleep(0.1)
        pipe.send((seconds, wrong))
    return in_a_process(work)


def in_a_process(work):
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=work, args=(theirs,), daemon=True)
    process.start()
    theirs.close()

    def result(timeout=90):
        try:
            return ours.recv() if ours.poll(timeout) else None
        except EOFError:
            return None
        finally:
            process.kill()
    return result


def with_long_context(folder):
    """A folder with the model that ships, made to take prompts of 16,384 tokens."""
    source = os.path.join(ROOT, "share", "default_model")
    for name in os.listdir(source):
        if name.endswith(".safetensors"):
            os.symlink(os.path.join(source, name), os.path.join(folder, name))
        elif os.path.isfile(os.path.join(source, name)):
            shutil.copy(os.path.join(source, name), folder)
    path = os.path.join(folder, "config.json")
    with open(path, encoding="utf-8") as f:
        config = json.load(f)
    with open(path, "w", encoding="utf-8") as f:
        json.dump({**config, "max_position_embeddings": 16384}, f)
    return folder


def stream_gaps(target, ends):
    """Seconds between the pieces of good streams, one after the other until the end; and how many were refused."""
    gaps, refused = [], collections.Counter()
    request = request_bytes("POST", "/generate", json.dumps(STREAM).encode())
    while time.monotonic() < ends and target.is_alive():
        try:
            with socket.create_connection(("127.0.0.1", target.port), timeout=30) as connection:
                connection.sendall(request)
                first = connection.recv(1 << 16)
                if not first.startswith(b"HTTP/1.1 200"):
                    refused[first[9:12].decode() or "closed"] += 1
                    time.sleep(0.05)
                    continue
                at = time.monotonic()
                while time.monotonic() < ends and connection.recv(1 << 16):
                    gaps.append(time.monotonic() - at)
                    at = time.monotonic()
        except OSError as error:
            refused[type(error).__name__] += 1
    return gaps, refused


def memory_bound_mib(target):
    """The sum of the limits, the KV cache and the weights as the server reports them, and some more."""
    total = OTHER_BYTES + (200 << 20)
    for account in ("bodies", "outputs", "responses"):
        total += target.metric(f"espalier:memory_{account}_bytes_limit")
    usage = json.loads(target.get("/server_info")[2])["internal_states"][0]["memory_usage"]
    return (total + (usage["kvcache"] + usage["weight"]) * (1 << 30)) * MEMORY_SLACK / (1 << 20)


class Rows:
    """The table of what was expected and what was found."""

    def __init__(self, outcome):
        self.outcome = outcome
        print(f"| {'what':<44} | {'found':>24} | {'bound':>10} |\n|{'-' * 46}|{'-' * 25}:|{'-' * 11}:|")

    def add(self, what, found, bound="", holds=True):
        print(f"| {what:<44} | {found:>24} | {bound:>10} |{'' if holds else ' FAILED'}", flush=True)
        if not holds:
            self.outcome.fail(what, f"{found}, bound {bound}")


def print_threads(before, after, seconds):
    """Where the server's threads had a core, and where they waited for one: the longest waits first."""
    rows = [(after[name][0] - before[name][0], after[name][1] - before[name][1], name) for name in after]
    print(f"| {'thread':<16} | {'% of a core':>11} | {'% waiting for one':>17} |\n|{'-' * 18}|{'-' * 12}:|{'-' * 18}:|")
    for ran, waited, name in sorted(rows, key=lambda row: -row[1])[:12]:
        print(f"| {name:<16} | {100 * ran / seconds:>11.1f} | {100 * waited / seconds:>17.1f} |", flush=True)


def report(outcome, target, quiet, gaps, refused, health):
    rows = Rows(outcome)
    rows.add("process", "lives")
    before, after = percentile(quiet, 0.99), percentile(gaps, 0.99)
    for name, values in (("quiet", quiet), ("loaded", gaps)):
        rows.add(f"inter-token {name}: tokens, p50, p99 in ms",
                 f"{len(values)}, {percentile(values, 0.5) * 1000:.2f}, {percentile(values, 0.99) * 1000:.2f}")
    rows.add("inter-token p99, loaded over quiet", f"{after / before:.2f}", f"{SLOWDOWN_MAX:.1f}", after <= SLOWDOWN_MAX * before)
    rows.add("good streams refused", f"{dict(refused)}")
    seconds, wrong = health or ([], {"no answer": 1})
    rows.add("/health: p50, p99 in ms", f"{percentile(seconds, 0.5) * 1000:.1f}, {percentile(seconds, 0.99) * 1000:.1f}")
    rows.add("/health: longest, s", f"{max(seconds, default=0):.3f}", f"{HEALTH_SECONDS_MAX:.1f}", max(seconds, default=0) < HEALTH_SECONDS_MAX)
    rows.add("/health: not 200", f"{dict(wrong)}", "{}", not wrong)
    peak, bound = target.memory_mib("VmHWM"), memory_bound_mib(target)
    rows.add("resident maximum, MiB; sum of limits + 10 %", f"{peak:.0f}", f"{bound:.0f}", peak <= bound)
    outcome.fact(f"p99 {before * 1000:.1f} -> {after * 1000:.1f} ms, /health at most {max(seconds, default=0):.2f} s, "
                 f"peak {peak:.0f} of {bound:.0f} MiB")


def run(budget):
    outcome = Outcome("together")
    seconds = max(10.0, budget.left())
    with tempfile.TemporaryDirectory() as folder, \
            Target("--model-path", with_long_context(folder), "--fair-share", "tenant", *LIMITS,
                   limits={resource.RLIMIT_AS: ADDRESS_SPACE}) as target:
        stream_gaps(target, time.monotonic() + 2)  # the first steps build what later ones find
        quiet, _ = stream_gaps(target, time.monotonic() + min(QUIET_SECONDS, seconds / 5))
        started, threads = time.monotonic(), target.thread_times()
        ends = started + seconds
        attacks = attack_in_processes(target, ends, budget.seed)
        health = health_in_a_process(target, ends)
        gaps, refused = stream_gaps(target, ends)
        seconds_of_health, counts = health(), attacks()
        outcome.case(sum(counts.values()))
        print(", ".join(f"{count} x {name}" for name, count in counts.items()))
        if not target.is_alive():
            outcome.fail("ended when all attacks came at once", f"{target.process.returncode}: {target.output()[-300:]}")
            return outcome
        print_threads(threads, target.thread_times(), time.monotonic() - started)
        report(outcome, target, quiet, gaps, refused, seconds_of_health)
        time.sleep(1)
        target.check(outcome, "all attacks")
    return outcome
