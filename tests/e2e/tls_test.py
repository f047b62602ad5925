"""https at the built binary, with Python's ssl: files that cannot be used, streams, and a certificate that changes
under load."""
import http.client
import json
import os
import shutil
import signal
import socket
import ssl
import subprocess
import tempfile
import threading

from harness import Server, run, wait_until


def make_identity(folder, name):
    """A self-signed certificate for 127.0.0.1 and its key, made by the openssl command: (certificate, key)."""
    certificate, key = (os.path.join(folder, f"{name}.{end}") for end in ("pem", "key"))
    subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes",
                    "-keyout", key, "-out", certificate, "-days", "2", "-subj", f"/CN={name}",
                    "-addext", "subjectAltName=IP:127.0.0.1"], check=True, capture_output=True)
    return certificate, key


class Client:
    """An https client that trusts one certificate and keeps its connection."""

    def __init__(self, port, trusted):
        context = ssl.create_default_context(cafile=trusted)
        self.connection = http.client.HTTPSConnection("127.0.0.1", port, context=context, timeout=60)

    def post(self, path, body):
        self.connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
        answer = self.connection.getresponse()
        return answer.status, answer.read().decode()

    def complete(self):
        status, text = self.post("/v1/completions", {"prompt": "x", "max_tokens": 2})
        assert status == 200 and json.loads(text)["usage"]["completion_tokens"] >= 1, text
        return status


class Router(Server):
    COMMAND = "route"


def expect_refusals(command, folder, certificate, key):
    other = make_identity(folder, "other")[1]
    for flags, words in ((("--ssl-certfile", "/none.pem"), "/none.pem"),
                         (("--ssl-certfile", certificate, "--ssl-keyfile", other), "is not that of the certificate"),
                         (("--ssl-keyfile", key), "need --ssl-certfile")):
        refused = run(command, "--port", "0", *flags)
        assert refused.returncode != 0 and words in refused.stderr, refused.stderr


def expect_streams(port, certificate):
    client = Client(port, certificate)
    status, text = client.post("/v1/chat/completions", {
        "messages": [{"role": "user", "content": "hello"}], "max_tokens": 8, "stream": True})
    events = [line for line in text.splitlines() if line.startswith("data: ")]
    assert status == 200 and len(events) > 2 and events[-1] == "data: [DONE]", text
    with socket.create_connection(("127.0.0.1", port)) as plain:
        plain.sendall(b"GET /health HTTP/1.1\r\nHost: h\r\n\r\n")
        assert plain.recv(4096).startswith(b"HTTP/1.1 400 "), "plain HTTP is refused in plain text"
    context = ssl.create_default_context(cafile=certificate)
    context.set_alpn_protocols(["h2", "http/1.1"])
    with socket.create_connection(("127.0.0.1", port)) as raw, \
            context.wrap_socket(raw, server_hostname="127.0.0.1") as secure:
        assert secure.version() == "TLSv1.3" and secure.selected_alpn_protocol() == "http/1.1"


def expect_reload(server, folder, certificate, key):
    """Connections under load go on while the certificate changes, and while a broken one is given."""
    before = os.path.join(folder, "before.pem")
    shutil.copy(certificate, before)
    statuses, stop = [], threading.Event()

    def load():
        client = Client(server.port, before)
        while not stop.is_set():
            statuses.append(client.complete())

    threads = [threading.Thread(target=load) for _ in range(4)]
    for thread in threads:
        thread.start()
    wait_until(lambda: len(statuses) >= 8, "calls are under way")
    for new, old in zip(make_identity(folder, "next"), (certificate, key)):
        os.replace(new, old)
    server.process.send_signal(signal.SIGHUP)
    wait_until(lambda: "was read again" in server.output(), "the new certificate is read")
    Client(server.port, certificate).complete()
    try:
        Client(server.port, before).complete()
        raise AssertionError("the old certificate is still shown")
    except ssl.SSLCertVerificationError:
        pass
    with open(key, "w", encoding="utf-8") as file:
        file.write("broken")
    server.process.send_signal(signal.SIGHUP)
    wait_until(lambda: "nothing was reloaded" in server.output(), "the broken key stands in the log")
    Client(server.port, certificate).complete()
    num_before = len(statuses)
    wait_until(lambda: len(statuses) > num_before + 8, "calls go on")
    stop.set()
    for thread in threads:
        thread.join()
    assert set(statuses) == {200}
    return len(statuses)


def expect_https(kind, folder, certificate, key, *flags):
    expect_refusals(kind.COMMAND, folder, certificate, key)
    with kind("--ssl-certfile", certificate, "--ssl-keyfile", key, *flags) as server:
        assert "ready url=https://127.0.0.1:" in server.output()
        if flags:
            wait_until(lambda: "worker healthy" in server.output(), "the worker is healthy")
        expect_streams(server.port, certificate)
        num_calls = expect_reload(server, folder, certificate, key)
        assert server.stop() == 0
    return num_calls


def expect_https_workers(folder):
    """The router speaks https to a worker that asks for its certificate, and gets nowhere without."""
    certificate, key = make_identity(folder, "worker")
    own, own_key = make_identity(folder, "own")
    body = {"messages": [{"role": "user", "content": "Count."}], "max_tokens": 8, "temperature": 0}
    with Server("--ssl-certfile", certificate, "--ssl-keyfile", key, "--ssl-ca-certs", own) as worker:
        url = f"https://127.0.0.1:{worker.port}"
        identity = ["--worker-ssl-certfile", own, "--worker-ssl-keyfile", own_key]
        trust = ["--worker-ssl-ca-certs", certificate]
        fast = ["--health-check-interval-secs", "0.2", "--slow-start", "0"]
        with Router("--worker", url, *trust, *identity, *fast) as router:
            wait_until(lambda: "worker healthy" in router.output(), "the worker is healthy")
            whole = router.post("/v1/chat/completions", body)["choices"][0]["message"]["content"]
            events = list(router.stream("/v1/chat/completions", body))
            assert events[-1] is None
            assert "".join(e["choices"][0]["delta"].get("content") or "" for e in events[:-1] if e["choices"]) == whole
            large = router.post("/generate", {"text": "word " * 600, "sampling_params": {"max_new_tokens": 1}})
            assert large["meta_info"]["prompt_tokens"] > 500
            assert json.loads(router.get("/workers")[2])["workers"][0]["url"] == url
            connects = router.metric("espalier:router_connects_total")
            assert connects <= 2, f"{connects} handshakes for three requests in turn"
            assert router.stop() == 0
        for flags in (trust, identity):  # without its certificate; without trust
            with Router("--worker", url, *flags, *fast) as router:
                wait_until(lambda: "does not answer its health checks" in router.output(), "the log says why")
                assert "worker healthy" not in router.output()
                assert router.request("POST", "/v1/chat/completions", body)[0] == 503
    for flags, words in ((["--worker-ssl-ca-certs", "/none.pem"], "/none.pem"),
                         (["--worker-ssl-keyfile", own_key], "needs a certificate"),
                         (["--worker-dns", "https://localhost:1"], "certificates do not state")):
        refused = run("route", "--port", "0", *flags)
        assert refused.returncode == 2 and words in refused.stderr, refused.stderr


def main():
    with tempfile.TemporaryDirectory() as folder:
        certificate, key = make_identity(folder, "first")
        num_calls = expect_https(Server, folder, certificate, key)
        with Server() as worker:
            certificate, key = make_identity(folder, "router")
            num_calls += expect_https(Router, folder, certificate, key, "--worker", f"http://127.0.0.1:{worker.port}")
        expect_https_workers(folder)
    print(f"{num_calls} calls while the certificate changed")


main()
