"""What all sections of tools/attack share: budgets, outcomes, a server under attack, requests over raw
sockets. The standard library alone."""
import collections
import dataclasses
import json
import os
import random
import re
import resource
import signal
import socket
import sys
import threading
import time

ROOT = os.path.realpath(os.path.join(os.path.dirname(__file__), "..", ".."))
sys.path.insert(0, os.path.join(ROOT, "tests", "e2e"))
import harness  # noqa: E402  (found through the path above)

ANSWER_BYTES_MAX = 64 << 20
ANSWER_SECONDS_MAX = 30.0


@dataclasses.dataclass
class Budget:
    """How much a section may do: it ends at the first bound that it reaches."""
    seed: int
    seconds: float
    cases: int

    def __post_init__(self):
        self.random = random.Random(self.seed)
        self.ends = time.monotonic() + self.seconds

    def is_spent(self, cases_done=0):
        return time.monotonic() > self.ends or cases_done >= self.cases

    def left(self):
        return max(0.0, self.ends - time.monotonic())


class Outcome:
    """What a section found. Failures are grouped by kind, each with its first examples. Thread-safe."""
    EXAMPLES_MAX = 3

    def __init__(self, name):
        self.name, self.cases, self.seconds = name, 0, 0.0
        self.failures = collections.Counter()
        self.examples = collections.defaultdict(list)
        self.facts = []
        self._lock = threading.Lock()

    def case(self, count=1):
        with self._lock:
            self.cases += count

    def fail(self, kind, example=""):
        with self._lock:
            self.failures[kind] += 1
            if len(self.examples[kind]) < self.EXAMPLES_MAX:
                self.examples[kind].append(str(example)[:400])

    def fact(self, text):
        self.facts.append(text)


@dataclasses.dataclass
class Answer:
    """status is 0 where the connection ended without an answer, -1 where no answer came in time."""
    status: int
    headers: str
    body: bytes

    def text(self):
        return self.body.decode("utf-8", "replace")


def cores_of(variable):
    """The cores that an environment variable names ("0,1" or "2-15"); the empty set where it names none."""
    cores = set()
    for part in filter(None, os.environ.get(variable, "").split(",")):
        first, _, last = part.partition("-")
        cores.update(range(int(first), int(last or first) + 1))
    return cores


def limited(limits):
    """A function for a child process that sets resource limits, {RLIMIT_...: bytes or count}, and keeps it on the
    cores of tools/attack --server-cores."""
    def apply():
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        if cores := cores_of("ESPALIER_ATTACK_SERVER_CORES"):
            os.sched_setaffinity(0, cores)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        for which, value in limits.items():
            resource.setrlimit(which, (value, value))
    return apply


class Target(harness.Server):
    """A server with what an attack asks of it: memory, descriptors, life."""

    def __init__(self, *args, limits=None, env=None):
        super().__init__(*args, env=env, before_exec=limited(limits or {}))

    def is_alive(self):
        return self.process.poll() is None

    def memory_mib(self, key="VmRSS"):
        with open(f"/proc/{self.process.pid}/status", encoding="ascii") as f:
            return int(re.search(rf"{key}:\s*(\d+)", f.read()).group(1)) / 1024

    def thread_times(self):
        """{name: [seconds on a core, seconds ready to run but without one]} of the threads that live."""
        times = collections.defaultdict(lambda: [0.0, 0.0])
        folder = f"/proc/{self.process.pid}/task"
        for thread in os.listdir(folder):
            try:
                with open(f"{folder}/{thread}/comm", encoding="utf-8", errors="replace") as f:
                    name = f.read().strip()
                with open(f"{folder}/{thread}/schedstat", encoding="ascii") as f:
                    ran, waited = f.read().split()[:2]
            except OSError:
                continue  # it has ended meanwhile
            times[name][0] += int(ran) / 1e9
            times[name][1] += int(waited) / 1e9
        return times

    def num_descriptors(self):
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))

    def send(self, method, path, body=None, headers=(), timeout=ANSWER_SECONDS_MAX):
        """One request on a connection of its own; never raises."""
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        return exchange(self.port, request_bytes(method, path, data, headers), timeout)

    def check(self, outcome, after, generates=True):
        """Reports a server that died, or that no longer works."""
        if not self.is_alive():
            outcome.fail("process ended", f"status {self.process.returncode} after {after}: {self.output()[-300:]}")
            return False
        path = "/generate" if generates else "/encode"
        answer = self.send("POST", path, {"text": "Once", "sampling_params": {"max_new_tokens": 2}})
        if answer.status != 200:
            outcome.fail("server no longer answers", f"{answer.status} after {after}: {answer.text()[:200]}")
        return True


def request_bytes(method, path, data=None, headers=()):
    lines = [f"{method} {path} HTTP/1.1", "Host: localhost", "Connection: close"]
    lines += [f"{name}: {value}" for name, value in headers]
    if data is not None:
        lines += ["Content-Type: application/json", f"Content-Length: {len(data)}"]
    return ("\r\n".join(lines) + "\r\n\r\n").encode() + (data or b"")


def exchange(port, request, timeout=ANSWER_SECONDS_MAX):
    """Sends bytes and reads to the end of the connection, which the request asks to close."""
    received, ends = bytearray(), time.monotonic() + timeout
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=timeout) as connection:
            try:
                connection.sendall(request)
            except (BrokenPipeError, ConnectionResetError):
                pass  # the answer may have come before the body was read
            while len(received) < ANSWER_BYTES_MAX:
                connection.settimeout(max(0.001, ends - time.monotonic()))
                data = connection.recv(1 << 18)
                if not data:
                    break
                received += data
    except TimeoutError:
        return Answer(-1, "", bytes(received))
    except OSError:
        pass
    head, _, body = bytes(received).partition(b"\r\n\r\n")
    match = re.match(rb"HTTP/1\.1 (\d{3})", head)
    if match and re.search(rb"(?i)transfer-encoding: *chunked", head):
        body = joined_chunks(body)
    return Answer(int(match.group(1)) if match else 0, head.decode("latin1"), body)


def joined_chunks(data):
    out, at = bytearray(), 0
    while (end := data.find(b"\r\n", at)) >= 0:
        size = int(data[at:end].split(b";")[0] or b"0", 16)
        if size == 0:
            break
        out += data[end + 2:end + 2 + size]
        at = end + 2 + size + 2
    return bytes(out)


def run_threads(functions):
    """Runs all at once; an exception of one is raised here when all have ended."""
    raised = []

    def guarded(function):
        try:
            function()
        except Exception as error:  # noqa: BLE001  (it is raised again below)
            raised.append(error)
    threads = [threading.Thread(target=guarded, args=(f,), daemon=True) for f in functions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if raised:
        raise raised[0]


def percentile(values, share):
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))] if ordered else float("nan")
