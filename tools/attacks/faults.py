"""What the system does to a server: signals, a full disk, too few descriptors, too little address space;
and all attacks at once beside one good stream, whose tokens must keep coming."""
import collections
import functools
import json
import multiprocessing
import os
import random
import resource
import signal
import socket
import tempfile
import threading
import time

from common import Outcome, Target, percentile, request_bytes, run_threads
import clients
import fields
import grammars

ADDRESS_SPACE = 3200 << 20
SLOWDOWN_MAX = 3.0
MEMORY_SLACK = 1.1
OTHER_BYTES = 200 << 20  # code, stacks, buffers of a step, kept parts of the heap
GOOD = {"text": "Once upon a time", "sampling_params": {"max_new_tokens": 4}}
STREAM = {"text": "Once upon", "stream": True, "extra_key": "good", "sampling_params": {"max_new_tokens": 150, "ignore_eos": True}}


def expect_good(outcome, target, after):
    answer = target.send("POST", "/generate", GOOD)
    if answer.status != 200:
        outcome.fail("a good request is not answered", f"{answer.status} after {after}: {answer.text()[:150]}")


def signals(outcome):
    """SIGTERM and SIGINT end it with 0, also under load; others change nothing (SIGHUP ends a program whose
    terminal is gone, and is left out)."""
    for number in (signal.SIGTERM, signal.SIGINT):
        outcome.case()
        with Target("--drain-timeout", "2") as target:
            loads = [threading.Thread(target=target.send, args=("POST", "/generate", STREAM), daemon=True) for _ in range(8)]
            for load in loads:
                load.start()
            time.sleep(0.3)
            status = target.stop(number)
            if status != 0:
                outcome.fail(f"ended with {status} at {signal.Signals(number).name}", target.output()[-200:])
    with Target() as target:
        for number in (signal.SIGPIPE, signal.SIGCHLD, signal.SIGWINCH, signal.SIGCONT, signal.SIGURG):
            outcome.case()
            target.process.send_signal(number)
            time.sleep(0.05)
            if not target.is_alive():
                return outcome.fail(f"ended by {signal.Signals(number).name}")
        target.process.send_signal(signal.SIGSTOP)
        time.sleep(0.5)
        target.process.send_signal(signal.SIGCONT)
        expect_good(outcome, target, "signals")


class LoggingTarget(Target):
    """A server whose log cannot be read, so its port is found among the sockets that it listens on."""

    def _wait_for_port(self):
        ends = time.monotonic() + 60
        while time.monotonic() < ends and self.process.poll() is None:
            if port := listening_port(self.process.pid):
                return port
            time.sleep(0.05)
        raise RuntimeError(f"the server ended with {self.process.poll()}")


def listening_port(pid):
    """Of the TCP socket that a process listens on; None before it does."""
    folder = f"/proc/{pid}/fd"
    links = {os.readlink(os.path.join(folder, fd)) for fd in os.listdir(folder)}
    with open("/proc/net/tcp", encoding="ascii") as f:
        for line in f.readlines()[1:]:
            parts = line.split()
            if parts[3] == "0A" and f"socket:[{parts[9]}]" in links:
                return int(parts[1].split(":")[1], 16)
    return None


def full_disk(outcome):
    """A log that cannot be written stops nothing: a file at its largest size (SIGXFSZ), and /dev/full."""
    with tempfile.TemporaryDirectory() as folder:
        for name, limits in (("file size limit", {resource.RLIMIT_FSIZE: 3000}), ("/dev/full", {})):
            outcome.case()
            path = "/dev/full" if name == "/dev/full" else os.path.join(folder, "log")
            try:
                with open(path, "w", encoding="utf-8") as log, redirected_output(log), LoggingTarget("--log-requests", limits=limits) as target:
                    for _ in range(60):
                        expect_good(outcome, target, name)
                    if not target.is_alive():
                        outcome.fail("ended by a full disk", f"{name}: {target.process.returncode}")
            except RuntimeError as error:
                outcome.fail("does not start with a full disk", f"{name}: {error}")


class redirected_output:
    """Makes the temporary file that a harness server logs to this one."""

    def __init__(self, log):
        self.log = log

    def __enter__(self):
        self.before = tempfile.TemporaryFile
        tempfile.TemporaryFile = lambda *_, **__: os.fdopen(os.dup(self.log.fileno()), "w")

    def __exit__(self, *_):
        tempfile.TemporaryFile = self.before


def few_descriptors(outcome):
    """More connections than descriptors: the process lives, and answers when they are gone."""
    outcome.case()
    with Target(limits={resource.RLIMIT_NOFILE: 64}) as target:
        held = []
        for _ in range(150):
            connection = socket.socket()
            connection.settimeout(1)
            held.append(connection)
            try:
                connection.connect(("127.0.0.1", target.port))
                connection.sendall(b"GET /health HTTP/1.1\r\n")
            except OSError:
                pass
        time.sleep(0.5)
        if not target.is_alive():
            return outcome.fail("ended without descriptors", target.output()[-300:])
        for connection in held:
            connection.close()
        time.sleep(0.5)
        expect_good(outcome, target, "too few descriptors")
        used = cpu_seconds(target)
        time.sleep(1)
        if cpu_seconds(target) - used > 0.5:
            outcome.fail("busy without work after too few descriptors")


def cpu_seconds(target):
    with open(f"/proc/{target.process.pid}/stat", encoding="ascii") as f:
        parts = f.read().rpartition(")")[2].split()
    return (int(parts[11]) + int(parts[12])) / os.sysconf("SC_CLK_TCK")


def too_little_memory(outcome):
    """Start under limits that are too small: an error that says so, never a signal."""
    for mib in (64, 200, 400, 1000, 2000):
        outcome.case()
        try:
            with Target(limits={resource.RLIMIT_AS: mib << 20}) as target:
                expect_good(outcome, target, f"{mib} MiB")
        except RuntimeError as error:
            status = int(str(error).split("ended with ")[1].split(":")[0])
            if status < 0 or "rror" not in str(error) and "memory" not in str(error):
                outcome.fail("a start without memory is not explained", f"{mib} MiB: {str(error)[:300]}")


def hostile_work(target, budget_ends, kind, seed):
    """One client that attacks until the end."""
    rng = random.Random(seed)
    document = json.loads(target.get("/openapi.json")[2])
    pairs, makers = fields.pairs(document, rng), grammars.bodies(rng)
    logprobs = {"text": "a", "return_logprob": True, "top_logprobs_num": 4096,
                "sampling_params": {"n": 200, "max_new_tokens": 20, "ignore_eos": True}}
    while time.monotonic() < budget_ends and target.is_alive():
        left = max(0.1, min(20.0, budget_ends - time.monotonic()))
        if kind == "fields":
            case = next(pairs)
            if case.path not in fields.ALONE:
                target.send(case.method, case.path, case.body.encode("utf-8", "surrogatepass"), timeout=left)
        elif kind == "grammars":
            path, body, _ = next(makers)
            target.send("POST", path, body, timeout=left)
        elif kind == "clients":
            try:
                clients.leave(target, rng)
            except OSError:
                pass
        elif kind == "bodies":
            target.send("POST", "/generate", b'{"text":"' + b"a" * (60 << 20) + b'"}', timeout=left)
        elif kind == "logprobs":
            target.send("POST", "/generate", logprobs, timeout=left)
        elif kind == "samples":
            target.send("POST", "/generate", {"text": "a b " * 300, "sampling_params": {
                "n": 64, "max_new_tokens": 60, "ignore_eos": True, "stop_regex": ["(a|b)*c{1,9}zz"] * 20}}, timeout=left)


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


def attack_in_a_process(target, kinds, ends, seed):
    """All kinds at once in a process of its own, at a low priority: the attackers are other machines, and the
    good stream's times are not to be those of this interpreter."""
    def work():
        os.nice(15)
        target.is_alive = lambda: True  # a process can ask this of its own children alone
        run_threads([functools.partial(hostile_work, target, ends, kind, f"{seed} {i}") for i, kind in enumerate(kinds)])
    process = multiprocessing.get_context("fork").Process(target=work, daemon=True)
    process.start()
    return process


def sum_of_limits(target):
    total = OTHER_BYTES
    for account in ("bodies", "outputs", "responses"):
        total += target.metric(f"espalier:memory_{account}_bytes_limit")
    return total


def all_at_once(outcome, budget):
    """Every attack at once under a limited address space, beside a good stream."""
    seconds = max(10.0, budget.left())
    # As many at once as a small machine decodes in little more time than one.
    limits = ["--max-running-requests", "8", "--max-bodies-bytes", str(300 << 20), "--max-outputs-bytes", str(300 << 20), "--grammar-cache-bytes", str(200 << 20)]
    with Target("--fair-share", "tenant", "--max-total-tokens", "200000", *limits,
                limits={resource.RLIMIT_AS: ADDRESS_SPACE}) as target:
        quiet, _ = stream_gaps(target, time.monotonic() + min(8.0, seconds / 5))
        ends = time.monotonic() + seconds
        kinds = ["fields", "fields", "grammars", "grammars", "clients", "clients", "bodies", "bodies", "logprobs", "logprobs", "samples"]
        attackers = attack_in_a_process(target, kinds, ends, budget.seed)
        gaps, refused = stream_gaps(target, ends)
        attackers.join(60)
        attackers.kill()
        outcome.case(len(kinds))
        if not target.is_alive():
            return outcome.fail("ended when all attacks came at once", f"{target.process.returncode}: {target.output()[-300:]}")
        bound = (sum_of_limits(target) + (200 << 20) + kv_bytes(target)) * MEMORY_SLACK / (1 << 20)
        before, after = percentile(quiet, 0.99) * 1000, percentile(gaps, 0.99) * 1000
        outcome.fact(f"all at once for {seconds:.0f} s: inter-token p99 {before:.1f} ms quiet, {after:.1f} ms beside ({len(gaps)} tokens, "
                     f"refused {dict(refused)}), peak {target.memory_mib('VmHWM'):.0f} of {bound:.0f} MiB")
        if after > SLOWDOWN_MAX * before:
            outcome.fail("the good stream is slowed down", f"p99 {before:.1f} -> {after:.1f} ms")
        if target.memory_mib("VmHWM") > bound:
            outcome.fail("more memory than the limits", f"{target.memory_mib('VmHWM'):.0f} > {bound:.0f} MiB")
        time.sleep(1)
        expect_good(outcome, target, "all attacks")


def kv_bytes(target):
    """Of the KV cache and the weights, as the server reports them."""
    usage = json.loads(target.get("/server_info")[2])["internal_states"][0]["memory_usage"]
    return (usage["kvcache"] + usage["weight"]) * (1 << 30)


def run(budget):
    outcome = Outcome("faults")
    signals(outcome)
    full_disk(outcome)
    few_descriptors(outcome)
    too_little_memory(outcome)
    all_at_once(outcome, budget)
    return outcome
