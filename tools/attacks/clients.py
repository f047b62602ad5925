"""Clients that behave badly: that leave at any moment, that do not read, that write a byte at a time. What
they held must be given back, and others must not wait."""
import json
import socket
import time

from common import Outcome, Target, request_bytes, run_threads

LEAVERS = 16  # at once
SLOW = 24
HEALTH_SECONDS_MAX = 1.0
GROWTH_MIB_MAX = 64
BODIES = [
    ("/generate", {"text": "Once upon a time", "stream": True, "sampling_params": {"max_new_tokens": 40, "n": 4}}),
    ("/generate", {"text": ["a", "b", "c"], "sampling_params": {"max_new_tokens": 30}}),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 30, "stream": True,
                              "logprobs": True, "top_logprobs": 5}),
    ("/generate", {"text": "a", "stream": True, "sampling_params": {"max_new_tokens": 60, "regex": "[a-z ]{20,90}"}}),
    ("/v1/responses", {"input": "hello", "max_output_tokens": 20, "stream": True}),
    ("/v1/completions", {"prompt": "hello " * 300, "max_tokens": 20, "logprobs": 3}),
]

LONG_STREAM = request_bytes("POST", "/generate", json.dumps(
    {"text": "a", "stream": True, "return_logprob": True, "top_logprobs_num": 200,
     "sampling_params": {"max_new_tokens": 400, "ignore_eos": True, "n": 4}}).encode())


def leave(target, rng):
    """Sends a request, or part of it, reads some of the answer, or none, and goes; often by a reset."""
    path, body = rng.choice(BODIES)
    data = request_bytes("POST", path, json.dumps(body).encode())
    if rng.random() < 0.3:
        data = data[:rng.randrange(len(data))]
    with socket.create_connection(("127.0.0.1", target.port), timeout=20) as connection:
        if rng.random() < 0.5:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")  # close sends a reset
        connection.sendall(data)
        time.sleep(rng.random() ** 3 * 0.3)
        if rng.random() < 0.5:
            connection.settimeout(0.3)
            try:
                connection.recv(rng.randint(1, 4096))
            except OSError:
                pass


def run_leavers(outcome, target, budget, cases):
    def work():
        while not budget.is_spent(outcome.cases) and outcome.cases < cases and target.is_alive():
            try:
                leave(target, budget.random)
            except OSError as error:
                outcome.fail("a connection is refused", repr(error))
            outcome.case()
    run_threads([work] * LEAVERS)


def expect_all_given_back(outcome, target, before):
    """Within 20 s nothing runs, and descriptors and memory are what they were."""
    ends = time.monotonic() + 20
    while time.monotonic() < ends:
        running = target.metric("sglang:num_running_reqs") + target.metric("sglang:num_queue_reqs")
        if running == 0 and target.num_descriptors() <= before["descriptors"] + 2:
            break
        time.sleep(0.2)
    else:
        outcome.fail("requests or descriptors outlive their clients",
                     f"{running} requests, {target.num_descriptors()} descriptors, {before['descriptors']} before")
    for account in ("bodies", "outputs"):
        if (held := target.metric(f"espalier:memory_{account}_bytes")) > 0:
            outcome.fail("an account of memory does not return to 0", f"{account}: {held:.0f} bytes")
    outcome.fact(f"RSS {before['memory']:.0f} -> {target.memory_mib():.0f} MiB")


def run_slow(outcome, target, budget):
    """Readers that do not read and writers of a byte at a time, while /health is asked."""
    connections = []
    for index in range(SLOW):
        connection = socket.socket()
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.settimeout(20)
        connection.connect(("127.0.0.1", target.port))
        connection.sendall(LONG_STREAM if index % 2 else LONG_STREAM[:-200])
        connections.append(connection)
        outcome.case()
    slowest, at = 0.0, len(LONG_STREAM) - 200
    ends = time.monotonic() + min(15.0, budget.left() + 5)
    while time.monotonic() < ends:
        for connection in connections[::2]:
            try:
                connection.sendall(LONG_STREAM[at:at + 1])
            except OSError:
                pass
        at += 1
        started = time.monotonic()
        if target.send("GET", "/health").status != 200:
            outcome.fail("/health is not 200 beside slow clients")
        slowest = max(slowest, time.monotonic() - started)
        time.sleep(0.1)
    for connection in connections:
        connection.close()
    if slowest > HEALTH_SECONDS_MAX:
        outcome.fail("/health waits for slow clients", f"{slowest:.2f} s")
    outcome.fact(f"/health beside {SLOW} slow clients at most {slowest * 1000:.0f} ms")


def run(budget):
    outcome = Outcome("clients")
    with Target("--write-timeout", "5", "--idle-timeout", "10", "--header-timeout", "5") as target:
        target.check(outcome, "start")
        before = {"descriptors": target.num_descriptors(), "memory": target.memory_mib()}
        run_leavers(outcome, target, budget, budget.cases - SLOW)
        run_slow(outcome, target, budget)
        expect_all_given_back(outcome, target, before)
        target.check(outcome, "clients that leave")
    return outcome
