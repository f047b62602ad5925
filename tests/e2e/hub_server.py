"""A local server that speaks the Hugging Face hub's API, with the faults that networks have.

Files of Git LFS are redirected to another host name (localhost instead of 127.0.0.1), as the hub redirects to its
storage. Used by hub_test.py and by tests/compat."""
import hashlib
import http.server
import json
import re
import threading

COMMIT = "0123456789abcdef0123456789abcdef01234567"


def git_sha1(data):
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


class Repo:
    """`files`: content by path; those in `lfs` lie in the storage."""

    def __init__(self, files, lfs=(), commit=COMMIT, gated=False, private=False):
        self.files, self.lfs, self.commit, self.gated, self.private = files, set(lfs), commit, gated, private

    def etag(self, path):
        data = self.files[path]
        return hashlib.sha256(data).hexdigest() if path in self.lfs else git_sha1(data)

    def tree(self):
        """What huggingface_hub 2 asks for instead of siblings."""
        out = []
        for path, data in self.files.items():
            row = {"type": "file", "path": path, "size": len(data), "oid": git_sha1(data)}
            if path in self.lfs:
                row["lfs"] = {"oid": self.etag(path), "size": len(data), "pointerSize": 134}
            out.append(row)
        return out


class HubServer:
    """A context manager. Requests are kept in `requests` as (method, path, headers)."""

    def __init__(self, repos, token="hf_right"):
        self.repos, self.token = repos, token
        self.requests = []
        self.cuts = {}  # path of a file: bytes after which the next transfers break off, one entry each
        self.damaged = {}  # path of a file: how many transfers bring a wrong byte
        self.renamed = {}  # former name: name
        self.ignores_ranges = False
        self.fails = 0  # so many transfers are answered with 503
        self.lock = threading.Lock()

    def __enter__(self):
        hub = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self):
                hub.answer(self, True)

            def do_HEAD(self):
                hub.answer(self, False)

            def log_message(self, *_):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.server.handle_error = lambda *_: None  # clients that left are part of the tests
        self.port = self.server.server_address[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self.thread = threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.02})
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()

    def transfers(self, path):
        """Headers of the GET requests that asked for the content of this file."""
        with self.lock:
            return [headers for method, at, headers in self.requests
                    if method == "GET" and at.endswith("/" + path) and not headers.get("X-Redirected")]

    @staticmethod
    def reply(handler, status, headers=(), body=b"", with_body=True):
        handler.send_response(status)
        names = {name.lower() for name, _ in headers}
        for name, value in headers:
            handler.send_header(name, value)
        if "content-length" not in names:
            handler.send_header("Content-Length", str(len(body)))
        handler.end_headers()
        if with_body:
            handler.wfile.write(body)

    def refuse(self, handler, status, code, with_body):
        self.reply(handler, status, [("X-Error-Code", code), ("X-Error-Message", code)],
                   json.dumps({"error": code}).encode(), with_body)

    def answer(self, handler, with_body):
        path = handler.path.split("?")[0]
        headers = dict(handler.headers.items())
        stored = re.fullmatch(r"/storage/([^/]+/[^/]+)/(.+)", path)
        info = re.fullmatch(r"/api/models/([^/]+/[^/]+)(?:/(?:revision|tree)/([^/]+))?", path)
        file = re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path)
        name = (stored or info or file)
        name = name.group(1) if name else ""
        if file and name in self.repos and file.group(3) in self.repos[name].lfs:
            headers["X-Redirected"] = "yes"  # the storage gets the request for the content
        with self.lock:
            self.requests.append((handler.command, path, headers))
        if name in self.renamed:
            location = handler.path.replace(name, self.renamed[name], 1)
            return self.reply(handler, 307, [("Location", location)], b"", with_body)
        if name not in self.repos:
            return self.refuse(handler, 401, "RepoNotFound", with_body)
        repo = self.repos[name]
        if stored:
            return self.content(handler, repo, stored.group(2), [], with_body)
        right = headers.get("Authorization") == f"Bearer {self.token}"
        if repo.private and not right:
            return self.refuse(handler, 401, "RepoNotFound", with_body)
        revision = info.group(2) if info else file.group(2)
        if revision not in (None, "main", "v1", repo.commit):
            return self.refuse(handler, 404, "RevisionNotFound", with_body)
        if info:
            body = {"id": name, "sha": repo.commit, "siblings": [{"rfilename": each} for each in repo.files]}
            if "/tree/" in path:
                body = repo.tree()
            return self.reply(handler, 200, [("Content-Type", "application/json")], json.dumps(body).encode(), with_body)
        if repo.gated and not right:
            return self.refuse(handler, 401, "GatedRepo", with_body)
        return self.resolve(handler, repo, name, file.group(3), with_body)

    def resolve(self, handler, repo, name, path, with_body):
        if path not in repo.files:
            return self.refuse(handler, 404, "EntryNotFound", with_body)
        headers = [("X-Repo-Commit", repo.commit)]
        if path not in repo.lfs:
            return self.content(handler, repo, path, headers + [("ETag", f'"{repo.etag(path)}"')], with_body)
        headers += [("X-Linked-Etag", f'"{repo.etag(path)}"'), ("X-Linked-Size", str(len(repo.files[path]))),
                    ("ETag", '"of-the-redirect"'),
                    ("Location", f"http://localhost:{self.port}/storage/{name}/{path}")]
        return self.reply(handler, 302, headers, b"Found", with_body)

    def content(self, handler, repo, path, headers, with_body):
        data = repo.files[path]
        if with_body and self.fails > 0:
            self.fails -= 1
            return self.reply(handler, 503)
        if with_body and self.damaged.get(path, 0) > 0:
            self.damaged[path] -= 1
            data = data[:-1] + bytes([data[-1] ^ 1])
        wanted = re.fullmatch(r"bytes=(\d+)-", handler.headers.get("Range", ""))
        status, start = 200, 0
        if wanted and not self.ignores_ranges:
            status, start = 206, int(wanted.group(1))
            headers = headers + [("Content-Range", f"bytes {start}-{len(data) - 1}/{len(data)}")]
        data = data[start:]
        headers = headers + [("Content-Length", str(len(data))), ("Accept-Ranges", "bytes")]
        cuts = self.cuts.get(path, [])
        if with_body and cuts:
            data = data[:cuts.pop(0)]
            handler.close_connection = True
        self.reply(handler, status, headers, data, with_body)
        return None
