"""A server, Espalier's or a peer's, under the requests of `espalier bench serving`."""
import json
import os
import socket
import statistics
import subprocess
import time
import urllib.error
import urllib.request

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def wait_until_healthy(server, address, seconds=300):
    for _ in range(2 * seconds):
        if server.poll() is not None:
            print(f"the server ended with {server.returncode}: left out")
            return False
        try:
            urllib.request.urlopen(address, timeout=2)
            return True
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            time.sleep(0.5)
    print(f"no answer at {address} within {seconds} s: left out")
    return False


def output_rate(command, port, *, client, backend, vocab, requests, prompt, answer, repeats,
                health="/health"):
    """Output tokens a second, the median of the repeats; None, and a line that says why, where the server
    fails or gives other numbers of tokens than were asked for."""
    server = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        if not wait_until_healthy(server, f"http://127.0.0.1:{port}{health}"):
            return None
        rates = []
        for repeat in range(repeats):
            done = subprocess.run(
                [client, "bench", "serving", "--port", str(port), "--backend", backend, "--num-prompts",
                 str(requests), "--input-len", str(prompt), "--output-len", str(answer), "--vocab-size",
                 str(vocab), "--seed", str(repeat + 1), "--json"], capture_output=True, text=True)
            if done.returncode != 0:
                print(f"{command[0]}: left out: {done.stderr.strip()}")
                return None
            result = json.loads(done.stdout)
            asked = (requests, requests * prompt, requests * answer)
            counted = tuple(result[key] for key in ("completed", "total_input_tokens",
                                                    "total_output_tokens"))
            if counted != asked:
                print(f"{command[0]}: left out: {counted} requests, tokens in and out, not {asked}")
                return None
            rates.append(result["output_throughput"])
        return statistics.median(rates)
    finally:
        server.terminate()
        try:
            server.wait(60)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()
