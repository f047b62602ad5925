"""A Redis server as a tier, at the built binary: a second server hits the prefixes of the first, a server that is
stalled or dies changes no answer, and storage is attached and detached while a server runs."""
import json
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time

from harness import PATIENCE_S, Server, run
from tiers_test import OPTIONS, ask, prompts

PROGRAM = shutil.which("redis-server") or shutil.which("valkey-server")


class Redis:
    """On a free port of 127.0.0.1, with a password; it keeps no files."""

    def __init__(self):
        for _ in range(10):  # another process may take the port
            with socket.socket() as listener:
                listener.bind(("127.0.0.1", 0))
                self.port = listener.getsockname()[1]
            self.process = subprocess.Popen(
                [PROGRAM, "--port", str(self.port), "--bind", "127.0.0.1", "--save", "", "--requirepass", "secret",
                 "--logfile", "/dev/null"], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL)
            if self._answers():
                return
        raise RuntimeError("redis-server does not start")

    def _answers(self):
        deadline = time.monotonic() + PATIENCE_S
        while self.process.poll() is None and time.monotonic() < deadline:
            try:
                if self.command("PING").startswith("+PONG"):
                    return True
            except OSError:
                pass
            time.sleep(0.01)
        return False

    def command(self, text):
        with socket.create_connection(("127.0.0.1", self.port), timeout=PATIENCE_S) as connection:
            connection.sendall(f"AUTH secret\r\n{text}\r\n".encode())
            answer = connection.makefile("rb")
            answer.readline()
            return answer.readline().decode()

    def num_keys(self):
        return int(self.command("DBSIZE")[1:])

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.send_signal(signal.SIGCONT)
        self.process.kill()
        self.process.wait()

    def config(self, password="secret"):
        # With patience: on a slow computer the first look-up may take long.
        return json.dumps({"url": f"redis://127.0.0.1:{self.port}", "password": password,
                           "connect_timeout_ms": 10000, "lookup_timeout_ms": 10000})


def tier(*more):
    return [*OPTIONS, "--enable-hierarchical-cache", *more]


def wait_until(condition):
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def storage(server, method="GET", body=None, path="/hicache/storage-backend"):
    status, _, text = server.request(method, path, body)
    return status, json.loads(text)


def check_shared(redis, folder):
    config = os.path.join(folder, "redis.json")
    with open(config, "w", encoding="utf-8") as file:
        file.write(redis.config())
    options = tier("--hicache-storage-backend", "redis", "--hicache-storage-backend-extra-config", "@" + config)
    with Server(*OPTIONS) as server:
        expected = [ask(server, tokens)[0] for tokens in prompts()]
    with Server(*options) as first:
        assert [ask(first, tokens)[0] for tokens in prompts()] == expected
        wait_until(lambda: redis.num_keys() >= 6 * 36)
        with Server(*options) as second:
            ids, meta = ask(second, prompts()[2])
            assert ids == expected[2]
            details = meta["cached_tokens_details"]
            assert details["storage"] >= 140 and details["storage_backend"] == "redis", details
            assert ask(second, prompts()[2], extra_key="tenant")[1]["cached_tokens"] == 0
            info = second.get("/server_info")[2]
            assert "secret" not in info and json.loads(info)["hicache_storage_backend"] == "redis"
            assert 'espalier:tier_pages_found_total{' in second.get("/metrics")[2]
            # A stalled server: answers come, are right, and the tier is cut off.
            redis.process.send_signal(signal.SIGSTOP)
            assert [ask(second, tokens)[0] for tokens in prompts()[3:]] == expected[3:]
            redis.process.send_signal(signal.SIGCONT)
    return expected


def check_attach(redis, expected):
    with Server(*tier("--hicache-size", "0.001")) as server:
        assert storage(server) == (200, {"hicache_storage_backend": None, "attached": []})
        assert ask(server, prompts()[2])[1]["cached_tokens"] == 0
        body = {"hicache_storage_backend": "redis", "hicache_storage_backend_extra_config_json": redis.config()}
        status, shown = storage(server, "PUT", body)
        assert status == 200 and shown["hicache_storage_backend"] == "redis", (status, shown)
        assert shown["attached"] == [{"backend": "redis", "is_usable": True, "problem": ""}], shown
        ids, meta = ask(server, prompts()[5])
        assert ids == expected[5] and meta["cached_tokens"] >= 140, meta
        assert storage(server, "PUT", body)[0] == 400
        before = redis.num_keys()
        assert storage(server, "POST", path="/hicache/storage-backend/clear")[0] == 200
        assert redis.num_keys() < before / 2  # pages of the last answer may come later
        assert storage(server, "DELETE")[1]["attached"] == []
        wrong = {**body, "hicache_storage_backend_extra_config_json": redis.config("wrong")}
        status, shown = storage(server, "PUT", wrong)
        assert status == 200 and "user and password" in shown["attached"][0]["problem"], (status, shown)
        assert ask(server, prompts()[8])[0] == expected[8]
        for bad in ({**body, "hicache_storage_backend": "tape"},
                    {**body, "hicache_storage_backend_extra_config_json": "@/etc/passwd"},
                    {**body, "hicache_write_policy": "write_back"},
                    {**body, "hicache_storage_prefetch_policy": "best_effort"}):
            assert storage(server, "PUT", bad)[0] == 400
    with Server(*tier("--hicache-size", "0.001"), "--admin-api-key", "admin") as server:
        assert storage(server)[0] in (401, 403)
        assert storage(server, "DELETE")[0] in (401, 403)


def check_refusals():
    for config, problem in (("no JSON", "JSON object"), ('{"uri": "redis://a"}', "there is no 'uri'"),
                            ('{"url": "http://a"}', "redis://"), ("@/no/such/file", "cannot be read")):
        result = run("serve", "--port", "0", *tier("--hicache-storage-backend", "redis",
                                                    "--hicache-storage-backend-extra-config", config))
        assert result.returncode != 0 and problem in result.stdout + result.stderr, (config, result)


def main():
    if PROGRAM is None:
        print("neither redis-server nor valkey-server is in PATH (tools/setup installs one): skipped")
        return
    check_refusals()
    with tempfile.TemporaryDirectory() as folder, Redis() as redis:
        check_attach(redis, check_shared(redis, folder))
    print("ok")


if __name__ == "__main__":
    main()
