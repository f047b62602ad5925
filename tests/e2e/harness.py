"""Starts the built binary and talks to it, with the standard library alone. Used by the end-to-end
tests, by tests/compat and by bench/."""
import http.client
import json
import os
import re
import signal
import subprocess
import tempfile
import time

ROOT = os.path.realpath(os.path.join(os.path.dirname(__file__), "..", ".."))
BINARY = os.environ.get("ESPALIER_BINARY") or os.path.join(ROOT, "build", "release", "espalier")
BENCH_BINARY = os.environ.get("ESPALIER_BENCH_BINARY") or os.path.join(ROOT, "build", "release", "espalier_bench")
# A sanitizer makes everything slower; waiting longer costs nothing where all is well.
PATIENCE_S = float(os.environ.get("ESPALIER_TEST_PATIENCE_S", "120"))


def clean_environment(extra=None):
    """The environment without settings of whoever runs the tests, but for where the model lies."""
    kept = {"ESPALIER_MODEL_PATH", "ESPALIER_SHARE"}
    env = {k: v for k, v in os.environ.items() if not k.startswith("ESPALIER_") or k in kept}
    env.update(extra or {})
    return env


def run(*args, stdin="", env=None, timeout=PATIENCE_S):
    """Runs a command of the binary to its end."""
    return subprocess.run([BINARY, *args], input=stdin, capture_output=True, text=True,
                          env=clean_environment(env), timeout=timeout, check=False)


def run_bench(*args, timeout=PATIENCE_S):
    """Runs a benchmark of bench/commands to its end."""
    return subprocess.run([BENCH_BINARY, *args], stdin=subprocess.DEVNULL, capture_output=True, text=True,
                          env=clean_environment(), timeout=timeout, check=False)


class Server:
    """`espalier serve` on `port` of 127.0.0.1 (0: a free one); a context manager. `before_exec` runs in the child."""
    COMMAND = "serve"

    def __init__(self, *args, env=None, before_exec=None, port=0):
        self.log = tempfile.TemporaryFile("w+")
        self.started = time.monotonic()
        self.process = subprocess.Popen(
            [BINARY, self.COMMAND, "--port", str(port), *args], env=clean_environment(env),
            stdin=subprocess.DEVNULL, stdout=self.log, stderr=self.log,
            preexec_fn=before_exec or (lambda: signal.signal(signal.SIGINT, signal.SIG_DFL)))
        try:
            self.port = self._wait_for_port()
        except BaseException:
            self.process.kill()
            self.process.wait()
            raise

    def _wait_for_port(self):
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            match = re.search(r"ready url=https?://[^ ]*:(\d+)", self.output())
            if match:
                return int(match.group(1))
            if self.process.poll() is not None:
                raise RuntimeError(f"the server ended with {self.process.returncode}:\n{self.output()}")
            time.sleep(0.005)
        raise RuntimeError(f"the server is not ready after {PATIENCE_S} s:\n{self.output()}")

    def output(self):
        with open(f"/proc/self/fd/{self.log.fileno()}", encoding="utf-8", errors="replace") as f:
            return f.read()

    def connect(self, timeout=PATIENCE_S):
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)

    def request(self, method, path, body=None, headers=None):
        """(status, headers, body as text)."""
        connection = self.connect()
        try:
            data = body if body is None or isinstance(body, (str, bytes)) else json.dumps(body)
            connection.request(method, path, data,
                               {"Content-Type": "application/json", **(headers or {})})
            answer = connection.getresponse()
            return answer.status, answer.headers, answer.read().decode()
        finally:
            connection.close()

    def get(self, path, headers=None):
        return self.request("GET", path, headers=headers)

    def post(self, path, body, headers=None):
        """The parsed answer; an error status is an AssertionError."""
        status, _, text = self.request("POST", path, body, headers)
        if status != 200:
            raise AssertionError(f"POST {path}: HTTP {status}: {text}")
        return json.loads(text)

    def stream(self, path, body):
        """Yields the data of each event, "[DONE]" as None at the end."""
        connection = self.connect()
        connection.request("POST", path, json.dumps({**body, "stream": True}),
                           {"Content-Type": "application/json"})
        answer = connection.getresponse()
        if answer.status != 200:
            raise AssertionError(f"POST {path}: HTTP {answer.status}: {answer.read().decode()}")
        try:
            for line in answer:
                if line.startswith(b"data: "):
                    data = line[6:].strip()
                    yield None if data == b"[DONE]" else json.loads(data)
        finally:
            connection.close()

    def metric(self, name):
        """The value of a metric without labels, or the sum over its labels."""
        total, found = 0.0, False
        for line in self.get("/metrics")[2].splitlines():
            match = re.match(rf"{re.escape(name)}(?:\{{[^}}]*\}})? (\S+)$", line)
            if match:
                total, found = total + float(match.group(1)), True
        if not found:
            raise AssertionError(f"/metrics has no {name}")
        return total

    def stop(self, signal_number=signal.SIGTERM):
        """The exit status."""
        if self.process.poll() is None:
            self.process.send_signal(signal_number)
        return self.process.wait(timeout=PATIENCE_S)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        self.log.close()


def wait_until(condition, what, timeout=PATIENCE_S):
    """Polls; a failure says what did not come true."""
    deadline = time.monotonic() + timeout
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {timeout} s: {what}")
        time.sleep(0.01)
