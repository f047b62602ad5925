"""Batches of the built binary: killed without warning, started again, and each line answered once."""
import json
import signal
import tempfile
import time

from harness import Server, wait_until

NUM_LINES = 120


def upload(server, content):
    body = (b"--XX\r\nContent-Disposition: form-data; name=\"purpose\"\r\n\r\nbatch\r\n"
            b"--XX\r\nContent-Disposition: form-data; name=\"file\"; filename=\"in.jsonl\"\r\n\r\n"
            + content + b"\r\n--XX--\r\n")
    status, _, text = server.request("POST", "/v1/files", body,
                                     {"Content-Type": "multipart/form-data; boundary=XX"})
    assert status == 200, text
    return json.loads(text)["id"]


def get(server, path):
    status, _, text = server.get(path)
    assert status == 200, text
    return json.loads(text)


def counts(server, batch):
    return get(server, f"/v1/batches/{batch}")["request_counts"]


def main():
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
