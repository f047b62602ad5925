"""Requests below the level of a client library: smuggling, split and broken requests, heads that are too
long. A case has the statuses that are right and whether the connection must end; then good requests are
split at random places, and good ones have random bytes changed."""
import functools
import random
import re
import socket
import time

from common import Outcome, Target, run_threads

THREADS = 8
GOOD = b'{"text":"a","sampling_params":{"max_new_tokens":1}}'
CHUNKED = b"POST /generate HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
SECOND = b"GET /smuggled HTTP/1.1\r\nHost: localhost\r\n\r\n"


def head(*lines, start=b"POST /generate HTTP/1.1"):
    return b"\r\n".join([start, b"Host: localhost", *lines]) + b"\r\n\r\n"


def with_length(length, body=GOOD, *lines):
    return head(b"Content-Length: " + length, *lines) + body


def chunk(data, size=None):
    return (b"%x" % len(data) if size is None else size) + b"\r\n" + data + b"\r\n"


SIZE = b"%d" % len(GOOD)
OK, BAD = {200}, {400}
# Name, what is sent, the statuses of which the first answer must be one, whether the connection must close.
CASES = [
    ("plain", with_length(SIZE), OK, False),
    ("chunked", CHUNKED + chunk(GOOD) + b"0\r\n\r\n", OK, False),
    ("chunks of one byte", CHUNKED + b"".join(chunk(GOOD[i:i + 1]) for i in range(len(GOOD))) + b"0\r\n\r\n", OK, False),
    ("chunk extension", CHUNKED + chunk(GOOD, b"%x;a=b" % len(GOOD)) + b"0\r\n\r\n", OK, False),
    ("trailer", CHUNKED + chunk(GOOD) + b"0\r\nX-A: b\r\n\r\n", OK, False),
    ("two requests at once", with_length(SIZE) * 2, OK, False),
    ("both lengths", head(b"Content-Length: 4", b"Transfer-Encoding: chunked") + chunk(GOOD) + b"0\r\n\r\n" + SECOND, BAD, True),
    ("two different lengths", head(b"Content-Length: " + SIZE, b"Content-Length: 0") + GOOD, BAD, True),
    ("list of lengths", with_length(SIZE + b", 3"), BAD, True),
    ("signed length", with_length(b"+" + SIZE), BAD, True),
    ("negative length", with_length(b"-1"), BAD, True),
    ("hexadecimal length", with_length(b"0x" + SIZE), BAD, True),
    ("length with a space", with_length(b"5 1"), BAD, True),
    ("empty length", with_length(b""), BAD, True),
    ("length beyond 64 bits", with_length(b"99999999999999999999999"), {400, 413}, True),
    ("length beyond the bound", with_length(b"9000000000"), {413}, True),
    ("space before the colon", head(b"Content-Length : 0") + SECOND, BAD, True),
    ("folded header", with_length(SIZE, GOOD, b"X-A: b\r\n c"), {200, 400}, False),
    ("header without a colon", head(b"X-A") + SECOND, BAD, True),
    ("empty header name", head(b": a") + SECOND, BAD, True),
    ("zero byte in a header", head(b"X-A: a\x00b") + SECOND, BAD, True),
    ("bare carriage return", head(b"X-A: a\rb") + SECOND, BAD, True),
    ("bare line feeds", b"GET /health HTTP/1.1\nHost: localhost\n\n", {200, 400, 505}, False),
    ("chunk size is no number", CHUNKED + chunk(GOOD, b"zz") + SECOND, BAD, True),
    ("chunk size is signed", CHUNKED + chunk(GOOD, b"-1") + SECOND, BAD, True),
    ("chunk size of 64 bits", CHUNKED + chunk(GOOD, b"f" * 16) + SECOND, {400, 413}, True),
    ("chunk size beyond 64 bits", CHUNKED + chunk(GOOD, b"1" + b"0" * 16), {400, 413}, True),
    ("chunk longer than its size", CHUNKED + b"3\r\n" + GOOD + b"\r\n0\r\n\r\n", BAD, True),
    ("endless chunk size", CHUNKED + b"0" * 200_000, BAD, True),
    ("endless chunk extension", CHUNKED + b"1;" + b"a" * 200_000, BAD, True),
    ("key in a trailer", CHUNKED + chunk(GOOD) + b"0\r\nContent-Length: 5\r\n\r\n", {200, 400}, False),
    ("no host", b"GET /health HTTP/1.1\r\n\r\n", BAD, True),
    ("two hosts", b"GET /health HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", BAD, True),
    ("broken host", b"GET /health HTTP/1.1\r\nHost: a b\r\n\r\n", {400, 403}, True),
    ("no version", b"GET /health\r\n\r\n", {400, 505}, True),
    ("version 9.9", b"GET /health HTTP/9.9\r\nHost: localhost\r\n\r\n", {400, 505}, True),
    ("version 2 preface", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", {400, 505}, True),
    ("unknown method", head(start=b"BREW /generate HTTP/1.1"), {400, 405, 501}, False),
    ("method of 10,000 letters", head(start=b"A" * 10_000 + b" / HTTP/1.1"), {400, 405, 431, 501}, False),
    ("path of 100,000 letters", head(start=b"GET /" + b"a" * 100_000 + b" HTTP/1.1"), {400, 404, 414, 431}, False),
    ("path with control bytes", head(start=b"GET /\x01\x02 HTTP/1.1"), {400, 404}, False),
    ("path with a broken escape", head(start=b"GET /%zz%f HTTP/1.1"), {400, 404}, False),
    ("path that climbs", head(start=b"GET /../../../etc/passwd HTTP/1.1"), {400, 404}, False),
    ("absolute path", head(start=b"GET http://other/health HTTP/1.1"), {200, 400, 403, 404, 421}, False),
    ("one header of 1 MB", head(b"X-A: " + b"a" * (1 << 20)), {431, 400}, True),
    ("20,000 headers", head(*[b"X-%d: a" % i for i in range(20_000)]), {431, 400}, True),
    ("unknown expectation", with_length(SIZE, GOOD, b"Expect: 200-ok"), {417}, False),
    ("websocket upgrade", head(b"Upgrade: websocket", b"Connection: Upgrade", start=b"GET /generate HTTP/1.1"),
     {400, 405, 426, 501}, False),
    ("TLS hello", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(range(200)), {400}, True),
    ("bytes without meaning", bytes(range(256)) * 4 + b"\r\n\r\n", {400}, True),
    ("body that is not gzip", with_length(SIZE, GOOD, b"Content-Encoding: gzip"), {200, 400, 415}, False),
] + [(f"transfer coding {coding.decode()!r}", head(b"Transfer-Encoding: " + coding) + chunk(GOOD) + b"0\r\n\r\n" + SECOND,
      {400, 501}, True) for coding in (b"xchunked", b"identity", b"chunked, identity", b"chunked, chunked", b"gzip", b"",
                                       b"chunked,", b"\x0bchunked", b"chunked;a=b", b"gzip, chunked")]


def talk(port, pieces, pause=0.0, first=5.0, further=0.15):
    """(received, whether the server closed): until `first` seconds pass without an answer, or `further`
    seconds without more of it. The client's end stays open, for a server takes its end for an abort."""
    received = b""
    with socket.create_connection(("127.0.0.1", port), timeout=first) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            for piece in pieces:
                connection.sendall(piece)
                time.sleep(pause)
        except OSError:
            pass  # an answer may have come before all was read
        try:
            while data := connection.recv(1 << 16):
                received += data
                connection.settimeout(further)
        except TimeoutError:
            return received, False
        except OSError:
            pass
        return received, True


def statuses(received):
    return [int(s) for s in re.findall(rb"HTTP/1\.1 (\d{3}) ", received) if s != b"100"]


def run_case(outcome, target, case):
    name, data, right, closes = case
    outcome.case()
    received, closed = talk(target.port, [data])
    found = statuses(received)
    if closes and not closed:
        outcome.fail("connection left open after a refusal", name)
    if not found or found[0] not in right:
        outcome.fail("wrong status", f"{name}: {found} for {sorted(right)}, {received[:150]!r}")
    if closes and (len(found) != 1 or b"smuggled" in received):
        outcome.fail("bytes after a refused request are read as a request", f"{name}: {found}")


def run_split(outcome, target, rng):
    """A good request cut at random places has the answer of the whole."""
    outcome.case()
    data = rng.choice([CASES[0][1], CASES[1][1], CASES[2][1], CASES[5][1]])
    cuts = sorted(rng.sample(range(1, len(data)), min(len(data) - 1, rng.randint(1, 12))))
    pieces = [data[a:b] for a, b in zip([0, *cuts], [*cuts, len(data)])]
    found = statuses(talk(target.port, pieces, pause=0.0005)[0])
    if not found or set(found) != {200}:
        outcome.fail("a split request is refused", f"cuts {cuts} of {data[:60]!r}: {found}")


def run_changed(outcome, target, rng):
    """Random bytes changed: an answer below 500, or the end of the connection."""
    outcome.case()
    data = bytearray(rng.choice(CASES)[1][:4000])
    for _ in range(rng.randint(1, 6)):
        at = rng.randrange(len(data))
        data[at:at + rng.randint(0, 3)] = bytes(rng.randrange(256) for _ in range(rng.randint(0, 3)))
    received, closed = talk(target.port, [bytes(data)], further=0.02)
    if not received and not closed:
        outcome.fail("a broken request has no answer", bytes(data[:200]))
    if any(status == 500 for status in statuses(received)):
        outcome.fail("a broken request is answered 500", f"{bytes(data[:200])} {received[:200]}")


def run(budget):
    outcome = Outcome("raw HTTP")
    with Target("--header-timeout", "1", "--idle-timeout", "1", "--context-length", "64") as target:
        for case in CASES:
            run_case(outcome, target, case)

        def work(seed):
            rng = random.Random(seed)
            while not budget.is_spent(outcome.cases) and target.is_alive():
                rng.choice([run_split, run_changed])(outcome, target, rng)
        run_threads([functools.partial(work, f"{budget.seed} {i}") for i in range(THREADS)])
        target.check(outcome, "raw HTTP")
    outcome.fact(f"{len(CASES)} named cases, the rest split or changed")
    return outcome
