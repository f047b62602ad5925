"""What the system does to a server: signals, a full disk, too few descriptors, too little address space."""
import os
import resource
import signal
import socket
import tempfile
import threading
import time

from common import Outcome, Target

GOOD = {"text": "Once upon a time", "sampling_params": {"max_new_tokens": 4}}
STREAM = {"text": "Once upon", "stream": True, "sampling_params": {"max_new_tokens": 150, "ignore_eos": True}}


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


def run(budget):
    outcome = Outcome("faults")
    signals(outcome)
    full_disk(outcome)
    few_descriptors(outcome)
    too_little_memory(outcome)
    return outcome
