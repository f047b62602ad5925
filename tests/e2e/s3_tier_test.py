"""A store of S3's objects as a tier, at the built binary: a second server hits the prefixes of the first, a store that
refuses changes no answer, and a bucket is attached and detached while a server runs. The store here checks signatures
by its own code; tests/compat/s3_store.py runs the same against moto."""
import hashlib
import hmac
import http.server
import json
import re
import threading
import time
import urllib.parse
from xml.sax.saxutils import escape

from harness import PATIENCE_S, Server, run
from tiers_test import OPTIONS, ask, prompts

KEYS = {"AWS_ACCESS_KEY_ID": "AKTEST", "AWS_SECRET_ACCESS_KEY": "secret/of+tests", "AWS_REGION": "eu-test-1"}


def signature(handler, names, scope, body_hash):
    """Of a request as it was received (AWS Signature Version 4)."""
    path, _, query = handler.path.partition("?")
    query = "&".join(sorted(query.split("&")))
    headers = "".join(f"{name}:{handler.headers[name].strip()}\n" for name in names)
    request = "\n".join([handler.command, path, query, headers, ";".join(names), body_hash])
    to_sign = "\n".join(["AWS4-HMAC-SHA256", handler.headers["x-amz-date"], "/".join(scope),
                         hashlib.sha256(request.encode()).hexdigest()])
    key = b"AWS4" + KEYS["AWS_SECRET_ACCESS_KEY"].encode()
    for part in [*scope, to_sign]:
        key = hmac.new(key, part.encode(), hashlib.sha256).digest()
    return key.hex()


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def answer(self, status, body=b""):
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def fail(self, status, code):
        self.answer(status, f"<Error><Code>{code}</Code></Error>".encode())

    def is_signed(self, body):
        given = re.fullmatch(r"AWS4-HMAC-SHA256 Credential=([^/]*)/([^,]*), SignedHeaders=([^,]*), Signature=(\w*)",
                             self.headers.get("Authorization", ""))
        if not given or given[1] != KEYS["AWS_ACCESS_KEY_ID"]:
            return False
        body_hash = self.headers["x-amz-content-sha256"]
        return (body_hash == hashlib.sha256(body).hexdigest() and "host" in given[3].split(";")
                and signature(self, given[3].split(";"), given[2].split("/"), body_hash) == given[4])

    def serve(self):
        store = self.server
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        url = urllib.parse.urlsplit(self.path)
        bucket, _, key = url.path[1:].partition("/")
        with store.lock:
            if store.refuses:
                return self.fail(503, "SlowDown")
            if not self.is_signed(body):
                return self.fail(403, "SignatureDoesNotMatch")
            if bucket != "cache":
                return self.fail(404, "NoSuchBucket")
            if not key:
                prefix = urllib.parse.parse_qs(url.query).get("prefix", [""])[0]
                keys = [k for k in sorted(store.objects) if k.startswith(prefix)][:1000]
                return self.answer(200, "".join(f"<Key>{escape(k)}</Key>" for k in keys).encode())
            if self.command == "PUT":
                store.objects[key] = body
                return self.answer(200)
            if self.command == "DELETE":
                store.objects.pop(key, None)
                return self.answer(204)
            if key not in store.objects:
                return self.fail(404, "NoSuchKey")
            return self.answer(200, store.objects[key])

    do_GET = do_PUT = do_HEAD = do_DELETE = serve

    def log_message(self, *_):
        pass


class Store(http.server.ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128  # of connections that come at once

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.objects, self.refuses, self.lock = {}, False, threading.Lock()
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def handle_error(self, *_):
        """Of a connection that a server has closed, as one does that ends."""

    def num_objects(self):
        return len(self.objects)

    def config(self, **more):
        # With patience: on a slow computer the first look-up may take long.
        return json.dumps({"bucket": "cache", "endpoint": f"http://127.0.0.1:{self.server_port}",
                           "connect_timeout_ms": 10000, "lookup_timeout_ms": 30000, "transfer_timeout_ms": 60000,
                           **more})


def tier(*more):
    # Requests wait for their pages: on a slow computer connections may take longer than a policy of times allows.
    return [*OPTIONS, "--enable-hierarchical-cache", "--hicache-storage-prefetch-policy", "wait_complete", *more]


def wait_until(condition):
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def storage(server, method="GET", body=None, path="/hicache/storage-backend"):
    status, _, text = server.request(method, path, body)
    return status, json.loads(text)


def check_shared(store):
    """The answers without tiers, which a server with the tier gives too."""
    options = tier("--hicache-storage-backend", "s3", "--hicache-storage-backend-extra-config", store.config())
    with Server(*OPTIONS) as server:
        expected = [ask(server, tokens)[0] for tokens in prompts()]
    with Server(*options, env=KEYS) as first:
        assert [ask(first, tokens)[0] for tokens in prompts()] == expected
        wait_until(lambda: store.num_objects() >= 6 * 36)
        with Server(*options, env=KEYS) as second:
            ids, meta = ask(second, prompts()[2])
            assert ids == expected[2]
            details = meta["cached_tokens_details"]
            assert details["storage"] >= 140 and details["storage_backend"] == "s3", details
            assert ask(second, prompts()[2], extra_key="tenant")[1]["cached_tokens"] == 0
            info = second.get("/server_info")[2]
            assert KEYS["AWS_SECRET_ACCESS_KEY"] not in info
            assert json.loads(info)["hicache_storage_backend"] == "s3"
            if hasattr(store, "refuses"):  # answers come, are right, and the tier is cut off
                store.refuses = True
                assert [ask(second, tokens)[0] for tokens in prompts()[3:]] == expected[3:]
                assert second.metric("espalier:tier_cut_offs_total") >= 1
                store.refuses = False
    return expected


def check_attach(store, expected):
    with Server(*tier("--hicache-size", "0.001"), env=KEYS) as server:
        assert ask(server, prompts()[2])[1]["cached_tokens"] == 0
        body = {"hicache_storage_backend": "s3", "hicache_storage_backend_extra_config_json": store.config()}
        status, shown = storage(server, "PUT", body)
        assert status == 200 and shown["attached"] == [{"backend": "s3", "is_usable": True, "problem": ""}], shown
        ids, meta = ask(server, prompts()[5])
        assert ids == expected[5] and meta["cached_tokens"] >= 140, meta
        status, shown = storage(server, "PUT", {"hicache_storage_backend": "redis"})
        assert status == 400 and "s3 is attached already" in str(shown), shown
        before = store.num_objects()
        assert storage(server, "POST", path="/hicache/storage-backend/clear")[0] == 200
        assert store.num_objects() < before / 2  # pages of the last answer may come later
        assert storage(server, "DELETE")[1]["attached"] == []
        wrong = {**body, "hicache_storage_backend_extra_config_json": store.config(
            access_key_id="AKOTHER", secret_access_key="wrong")}
        status, shown = storage(server, "PUT", wrong)
        assert status == 200 and "the key may be wrong" in shown["attached"][0]["problem"], (status, shown)
        assert ask(server, prompts()[8])[0] == expected[8]


def check_refusals():
    for config, env, problem in (
            ('{"bucket": "cache"}', dict.fromkeys(KEYS, ""), "AWS_ACCESS_KEY_ID"),
            ('{"bucket": "cache", "endpoint": "minio:9000"}', KEYS, "https://HOST:PORT"),
            ('{"bucket": "cache", "colour": "red"}', KEYS, "there is no 'colour'"),
            ('{"url": "redis://cache"}', KEYS, "the bucket is ''")):
        result = run("serve", "--port", "0", *tier("--hicache-storage-backend", "s3",
                                                   "--hicache-storage-backend-extra-config", config), env=env)
        assert result.returncode != 0 and problem in result.stdout + result.stderr, (config, result)


def main():
    check_refusals()
    with Store() as store:
        check_attach(store, check_shared(store))
        store.shutdown()
    print("ok")


if __name__ == "__main__":
    main()
