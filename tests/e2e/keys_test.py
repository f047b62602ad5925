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


def main():
    public_without_a_key()
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
