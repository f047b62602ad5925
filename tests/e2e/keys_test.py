"""Keys of tenants at the built binary: a file with a mistake, limits, and SIGHUP under load."""
import json
import os
import signal
import tempfile
import threading

from harness import Server, run, wait_until


def write(path, entries):
    """Replaces the file at once, as an administrator's tool does."""
    with open(path + ".new", "w", encoding="utf-8") as file:
        file.write(json.dumps(entries))
    os.replace(path + ".new", path)


def ask(server, key, max_tokens=4):
    status, headers, _ = server.request("POST", "/v1/completions", {"prompt": "x", "max_tokens": max_tokens},
                                        {"Authorization": f"Bearer {key}"} if key else {})
    return status, headers


def public_without_a_key():
    """A server without a key that is bound beyond loopback logs a warning, and no other server does."""
    warning = "is open to whoever reaches it"
    for args, warned in (("--host", "0.0.0.0"), True), (("--host", "0.0.0.0", "--api-key", "k"), False), ((), False):
        with Server(*args) as server:
            assert (warning in server.output()) == warned, (args, server.output())
    refused = run("serve", "--port", "0", "--api-key", "")
    assert refused.returncode != 0 and "'' would open the server" in refused.stderr, refused.stderr


class Router(Server):
    COMMAND = "route"


def limits_at_a_router():
    """A router keeps the limits, and its tenants' keys: the worker gets the router's own."""
    with tempfile.TemporaryDirectory() as folder, Server("--router-api-key", "sk-worker") as worker:
        path = os.path.join(folder, "keys.json")
        write(path, [{"name": "a", "key": "sk-a", "requests_per_minute": 3}, {"name": "b", "key": "sk-b"}])
        refused = run("route", "--port", "0", "--api-keys-file", path + ".none")
        assert refused.returncode != 0 and "--api-keys-file" in refused.stderr, refused.stderr
        with Router("--worker", f"http://127.0.0.1:{worker.port}", "--worker-api-key", "sk-worker",
                    "--api-keys-file", path) as router:
            wait_until(lambda: router.get("/health")[0] == 200, "the worker is healthy")
            assert ask(router, "")[0] == ask(router, "sk-worker")[0] == 401
            first = ask(router, "sk-a")
            assert first[0] == 200 and first[1]["x-ratelimit-remaining-requests"] == "2", first
            stream = {"prompt": "x", "max_tokens": 5, "stream": True, "ignore_eos": True}
            assert router.request("POST", "/v1/completions", stream, {"Authorization": "Bearer sk-a"})[0] == 200
            assert [ask(router, "sk-a")[0] for _ in range(2)] == [200, 429]
            limited = router.request("POST", "/v1/messages", {"max_tokens": 1, "messages": []},
                                     {"x-api-key": "sk-a"})
            assert limited[0] == 429 and 1 <= int(limited[1]["Retry-After"]) <= 20, limited
            assert json.loads(limited[2])["error"]["type"] == "rate_limit_error", limited
            metrics = router.get("/metrics")[2]
            assert 'tenant_requests_total{tenant="a"} 3' in metrics, metrics
            assert 'tenant_rate_limited_total{tenant="a"} 2' in metrics, metrics
            write(path, [{"name": "c", "key": "sk-c"}])
            router.process.send_signal(signal.SIGHUP)
            wait_until(lambda: ask(router, "sk-c")[0] == 200, "the new key opens the router")
            assert ask(router, "sk-b")[0] == 401
            assert "sk-" not in router.output() + worker.output()
            assert router.stop() == 0


def main():
    public_without_a_key()
    limits_at_a_router()
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "keys.json")
        write(path, [{"name": "a", "keys": "sk-a"}])
        refused = run("serve", "--port", "0", "--api-keys-file", path)
        assert refused.returncode != 0 and "entry 1: 'keys' is no member" in refused.stderr, refused.stderr

        write(path, [{"name": "a", "key": "sk-a", "requests_per_minute": 3}, {"name": "b", "key": "sk-b"}])
        with Server("--api-keys-file", path, "--fair-share", "tenant") as server:
            assert ask(server, "")[0] == ask(server, "sk-c")[0] == 401
            assert [ask(server, "sk-a")[0] for _ in range(4)] == [200, 200, 200, 429]
            assert 1 <= int(ask(server, "sk-a")[1]["Retry-After"]) <= 20
            assert server.metric("espalier:rate_limited_total") == 2

            # Calls go on while the keys change, and none of b's fails.
            statuses, stop = [], threading.Event()

            def load():
                while not stop.is_set():
                    statuses.append(ask(server, "sk-b", 2)[0])

            threads = [threading.Thread(target=load) for _ in range(4)]
            for thread in threads:
                thread.start()
            write(path, [{"name": "b", "key": "sk-b"}, {"name": "c", "key": "sk-c"}])
            server.process.send_signal(signal.SIGHUP)
            wait_until(lambda: ask(server, "sk-c")[0] == 200, "the new key opens the server")
            assert ask(server, "sk-a")[0] == 401
            write(path, [{"name": "b"}])
            server.process.send_signal(signal.SIGHUP)
            wait_until(lambda: "nothing was reloaded" in server.output(), "the mistake stands in the log")
            assert ask(server, "sk-c")[0] == 200
            stop.set()
            for thread in threads:
                thread.join()
            assert set(statuses) == {200}, set(statuses)
            assert "sk-" not in server.output()
            assert server.stop() == 0
    print(f"{len(statuses)} calls while the keys changed")


main()
