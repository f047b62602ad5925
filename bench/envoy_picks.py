#!/usr/bin/env python3
"""What a pick of the endpoint picker (`espalier route --ext-proc`) costs: h2load (Debian: nghttp2-client) makes calls as
Envoy does, each with a request's head and a body of 4 KB, and the router's processor time is divided by their number.
Bodies are those of several prompts, each from a process of its own."""
import argparse
import json
import os
import pathlib
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "tests" / "e2e"))
import harness  # noqa: E402


def field(number, content):
    """A field of bytes in protobuf's wire format."""
    size, out = len(content), bytes([number << 3 | 2])
    while size > 127:
        out, size = out + bytes([size & 127 | 128]), size >> 7
    return out + bytes([size]) + content


def framed(message):
    return b"\0" + len(message).to_bytes(4, "big") + message


def call_of(prompt, num_bytes):
    """The messages of one call: head, with the mode FULL_DUPLEX_STREAMED, and body."""
    headers = {":method": "POST", ":path": "/v1/completions", ":authority": "localhost", "content-type": "application/json",
               "user-agent": "bench", "x-request-id": "0123456789abcdef", "x-forwarded-proto": "http"}
    head = b"".join(field(1, field(1, k.encode()) + field(3, v.encode())) for k, v in headers.items())
    text = f"prompt {prompt}: " + f"{prompt} tells of rivers and hills, " * num_bytes
    body = json.dumps({"model": "", "max_tokens": 1, "prompt": ""})
    body = json.dumps({"model": "", "max_tokens": 1, "prompt": text[:num_bytes - len(body)]}).encode()
    return framed(field(2, field(1, head)) + field(11, b"\x08\x04")) + framed(field(4, field(1, body) + b"\x10\x01"))


def cpu_seconds(pid):
    parts = pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(parts[11]) + int(parts[12])) / os.sysconf("SC_CLK_TCK")


def measure(router, port, args, folder):
    files = []
    for prompt in range(args.prompts):
        files.append(os.path.join(folder, f"call_{prompt}"))
        pathlib.Path(files[-1]).write_bytes(call_of(prompt, args.body_bytes))
    url = f"http://127.0.0.1:{port}/envoy.service.ext_proc.v3.ExternalProcessor/Process"
    picks, cpu, begin = router.metric("espalier:router_ext_proc_picks_total"), cpu_seconds(router.process.pid), time.monotonic()
    loads = [subprocess.Popen(
        [args.h2load, "-n", str(args.calls // args.prompts), "-c", "1", "-m", str(args.streams // args.prompts), "-d", file,
         "-H", "content-type: application/grpc", "-H", "te: trailers", url],
        stdout=subprocess.PIPE, text=True) for file in files]
    for load in loads:
        text = load.communicate()[0]
        match = re.search(r"(\d+) succeeded, (\d+) failed", text)
        if load.returncode != 0 or match is None or match.group(2) != "0":
            sys.exit(f"h2load: {text}")
    seconds = time.monotonic() - begin
    cpu = cpu_seconds(router.process.pid) - cpu
    picks = router.metric("espalier:router_ext_proc_picks_total") - picks
    if picks < args.calls // args.prompts * args.prompts:
        sys.exit(f"only {picks} of {args.calls} calls got a worker")
    return picks / cpu, picks / seconds


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calls", type=int, default=200000)
    parser.add_argument("--streams", type=int, default=64, help="calls under way at once")
    parser.add_argument("--prompts", type=int, default=4)
    parser.add_argument("--body-bytes", type=int, default=4096)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    args.h2load = shutil.which("h2load") or sys.exit("h2load is missing: apt-get install nghttp2-client")

    class Router(harness.Server):
        COMMAND = "route"

    with harness.Server() as one, harness.Server() as two, tempfile.TemporaryDirectory() as folder:
        urls = [f"http://127.0.0.1:{w.port}" for w in (one, two)]
        for policy in ("cache_aware", "prefix_hash", "round_robin"):
            with Router("--worker", *urls, "--policy", policy, "--ext-proc", "0", "--slow-start", "0") as router:
                harness.wait_until(lambda: all(w["state"] == "healthy" for w in json.loads(router.get("/workers")[2])["workers"]),
                                   "the workers are healthy")
                port = int(re.search(r"endpoint picker ready address=[^ \n]*:(\d+)", router.output()).group(1))
                rounds = [measure(router, port, args, folder) for _ in range(args.rounds)]
                a_core, a_second = ([r[i] for r in rounds] for i in (0, 1))
                print(f"{policy:12} {statistics.median(a_core):8.0f} ({min(a_core):.0f}-{max(a_core):.0f}) picks a second of a "
                      f"core's time, {statistics.median(a_second):8.0f} a second, bodies of {args.body_bytes} bytes", flush=True)


if __name__ == "__main__":
    main()
