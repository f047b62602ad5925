"""Batches of the built binary: killed without warning, started again, and each line answered once; and
those of two keys."""
import json
import os
import signal
import tempfile
import time

from harness import Server, wait_until

NUM_LINES = 120


def as_key(key):
    return {"Authorization": f"Bearer {key}"} if key else {}


def upload(server, content, key=""):
    body = (b"--XX\r\nContent-Disposition: form-data; name=\"purpose\"\r\n\r\nbatch\r\n"
            b"--XX\r\nContent-Disposition: form-data; name=\"file\"; filename=\"in.jsonl\"\r\n\r\n"
            + content + b"\r\n--XX--\r\n")
    status, _, text = server.request("POST", "/v1/files", body,
                                     {"Content-Type": "multipart/form-data; boundary=XX", **as_key(key)})
    assert status == 200, text
    return json.loads(text)["id"]


def get(server, path, key=""):
    status, _, text = server.get(path, as_key(key))
    assert status == 200, text
    return json.loads(text)


def counts(server, batch):
    return get(server, f"/v1/batches/{batch}")["request_counts"]


def run_batch(server, key, num_lines):
    """The batch and its results, of lines of eight tokens each."""
    lines = [json.dumps({"custom_id": str(i), "method": "POST", "url": "/v1/completions",
                         "body": {"prompt": f"{key} {i}", "max_tokens": 8, "ignore_eos": True}})
             for i in range(num_lines)]
    file = upload(server, "\n".join(lines).encode(), key)
    batch = server.post("/v1/batches", {"input_file_id": file, "endpoint": "/v1/completions"}, as_key(key))["id"]
    wait_until(lambda: get(server, f"/v1/batches/{batch}", key)["status"] == "completed", f"{key}'s batch has ended")
    return get(server, f"/v1/batches/{batch}", key)


def check_keys():
    """Each key sees its own alone, and the lines of a limited key wait instead of failing."""
    with tempfile.TemporaryDirectory() as storage:
        keys = os.path.join(storage, "keys.json")
        with open(keys, "w", encoding="utf-8") as file:
            json.dump([{"name": "a", "key": "sk-a", "requests_per_minute": 120}, {"name": "b", "key": "sk-b"}], file)
        with Server("--storage-path", storage, "--api-keys-file", keys, "--admin-api-key", "sk-admin",
                    "--fair-share", "tenant") as server:
            for _ in range(116):  # the limit's bucket is all but empty when the lines come
                server.post("/v1/completions", {"prompt": "x", "max_tokens": 1}, as_key("sk-a"))
            begin = time.monotonic()
            ended = {key: run_batch(server, key, 12) for key in ("sk-b", "sk-a")}
            waited = time.monotonic() - begin
            for batch in ended.values():
                assert batch["request_counts"] == {"total": 12, "completed": 12, "failed": 0}, batch
            assert server.metric("espalier:rate_limited_total") == 0
            for key, other in (("sk-a", "sk-b"), ("sk-b", "sk-a")):
                own = ended[key]
                for path in (f"/v1/batches/{own['id']}", f"/v1/files/{own['input_file_id']}",
                             f"/v1/files/{own['output_file_id']}/content"):
                    statuses = [server.get(path, as_key(k))[0] for k in (key, other, "sk-admin", "")]
                    assert statuses == [200, 404, 200, 401], (path, statuses)
                assert server.request("DELETE", f"/v1/files/{own['output_file_id']}", None, as_key(other))[0] == 404
                assert server.request("POST", f"/v1/batches/{own['id']}/cancel", "", as_key(other))[0] == 404
                assert [len(get(server, path, key)["data"]) for path in ("/v1/files", "/v1/batches")] == [2, 1]
            assert [len(get(server, path, "sk-admin")["data"]) for path in ("/v1/files", "/v1/batches")] == [4, 2]
            assert server.stop() == 0
    print(f"two keys' batches, one beyond its limit: {waited:.1f} s")


def main():
    check_keys()
    lines = [json.dumps({"custom_id": f"line {i}", "method": "POST", "url": "/v1/completions",
                         "body": {"prompt": f"{i} and", "max_tokens": 24, "temperature": 0,
                                  "ignore_eos": True}}) for i in range(NUM_LINES)]
    with tempfile.TemporaryDirectory() as storage:
        flags = ("--storage-path", storage, "--max-batch-requests", "2")
        batch, seen = None, [0]
        for _ in range(3):
            with Server(*flags) as server:
                if batch is None:
                    file = upload(server, "\n".join(lines).encode())
                    batch = server.post("/v1/batches", {"input_file_id": file, "endpoint": "/v1/completions",
                                                        "completion_window": "24h"})["id"]
                wait_until(lambda: counts(server, batch)["completed"] > seen[-1], "another line has ended")
                seen.append(counts(server, batch)["completed"])
                assert server.stop(signal.SIGKILL) == -signal.SIGKILL
        with Server(*flags) as server:
            # A client's own call is answered while the batch runs.
            begin = time.monotonic()
            server.post("/v1/completions", {"prompt": "Hello", "max_tokens": 4})
            waited = time.monotonic() - begin
            wait_until(lambda: get(server, f"/v1/batches/{batch}")["status"] == "completed", "the batch has ended")
            ended = get(server, f"/v1/batches/{batch}")
            assert ended["request_counts"] == {"total": NUM_LINES, "completed": NUM_LINES, "failed": 0}, ended
            output = server.get(f"/v1/files/{ended['output_file_id']}/content")[2]
            records = [json.loads(line) for line in output.splitlines()]
            assert [r["custom_id"] for r in records] == [f"line {i}" for i in range(NUM_LINES)]
            assert all(r["response"]["body"]["usage"]["completion_tokens"] == 24 for r in records)
            alone = server.post("/v1/completions", json.loads(lines[7])["body"])["choices"][0]["text"]
            assert records[7]["response"]["body"]["choices"][0]["text"] == alone
            assert len(get(server, "/v1/files")["data"]) == 2
            print(f"lines done at each kill: {seen[1:]}; a client's call beside the batch: {waited:.3f} s")


main()
