"""Files of cached pages at the built binary: a server exports what it has cached, another one imports it and answers as
before with hits, what is damaged or of another model is refused, and prompts of a file are computed at the start."""
import json
import os
import random
import tempfile

from harness import Server, run, wait_until
from tiers_test import MODEL, OPTIONS, ask, prompts


# The device keeps all prompts: what it has is exported.
ROOMY = ["2048" if option == "512" else option for option in OPTIONS]


def tier(folder, *more):
    return [*ROOMY, "--enable-hierarchical-cache", "--hicache-size", "0.01",
            "--cache-file-dir", folder, *more]


def command(action, server, *more):
    result = run("cache", action, "--url", f"http://127.0.0.1:{server.port}", *more)
    return result.returncode, result.stdout + result.stderr


def refused(server, path, body, problem):
    status, _, text = server.request("POST", path, body)
    assert status == 400 and problem in text, (status, text, problem)


def check_export(folder):
    """The answers, which a server that imported the file gives too."""
    with Server(*tier(folder)) as server:
        expected = [ask(server, tokens)[0] for tokens in prompts()]
        ask(server, prompts()[2], extra_key="tenant")
        code, text = command("export", server, "all.kv")
        assert code == 0 and "all.kv" in text and "0 pages" not in text, text
        whole = server.post("/cache/export", {"file": "again.kv"})
        assert whole["num_missing"] == 0 and whole["num_pages"] >= 6 * 36, whole
        assert whole["num_bytes"] == os.path.getsize(os.path.join(folder, "again.kv"))
        one = server.post("/cache/export", {"file": "one.kv", "extra_key": "tenant"})
        assert 36 <= one["num_pages"] < 50, one
        few = server.post("/cache/export", {"file": "few.kv", "input_ids": prompts()[0], "extra_key": ""})
        assert 36 <= few["num_pages"] < 60, few
        refused(server, "/cache/export", {}, "name of a file")
        for name in ("../x", "/etc/x", ".hidden", "a/b", "a\0b"):
            refused(server, "/cache/export", {"file": name}, "name of a file")
        refused(server, "/cache/export", {"file": "x", "text": "a"}, "tokenizer")
        refused(server, "/cache/import", {"file": "missing.kv"}, "there is no file")
        assert server.request("GET", "/cache/export")[0] == 405
    assert os.stat(os.path.join(folder, "all.kv")).st_mode & 0o077 == 0
    assert sorted(os.listdir(folder)) == ["again.kv", "all.kv", "few.kv", "one.kv"]
    return expected


def check_import(folder, expected):
    with Server(*tier(folder)) as server:
        assert ask(server, prompts()[0])[1]["cached_tokens"] == 0
        server.request("POST", "/flush_cache")
        code, text = command("import", server, "all.kv")
        assert code == 0 and "tokens" in text, text
        for tokens, ids in zip(prompts(), expected):
            got, meta = ask(server, tokens)
            assert got == ids and meta["cached_tokens"] >= len(tokens) // 4 * 4 - 4, meta
        details = ask(server, prompts()[2], extra_key="tenant")[1]["cached_tokens_details"]
        assert details["host"] >= 140, details
        assert ask(server, prompts()[2], extra_key="other")[1]["cached_tokens"] == 0
        check_damage(server, os.path.join(folder, "all.kv"))


def check_damage(server, path):
    with open(path, "rb") as file:
        whole = file.read()
    rng = random.Random(3)
    for _ in range(20):
        at = rng.randrange(len(whole))
        with open(path + ".damaged", "wb") as file:
            file.write(whole[:at] + bytes([whole[at] ^ (1 << rng.randrange(8))]) + whole[at + 1:])
        refused(server, "/cache/import", {"file": "all.kv.damaged"}, "all.kv.damaged")
    with open(path + ".damaged", "wb") as file:
        file.write(whole[:len(whole) // 2])
    refused(server, "/cache/import", {"file": "all.kv.damaged"}, "is cut")
    os.remove(path + ".damaged")


def check_refusals(folder):
    other = ["--json-model-override-args", '{"rope_theta": 5000}']
    with Server(*tier(folder, *other)) as server:
        refused(server, "/cache/import", {"file": "all.kv"}, "another model")
        code, text = command("import", server, "all.kv")
        assert code == 1 and "another model" in text, text
    with Server(*tier(folder, "--kv-cache-dtype", "float32")) as server:
        refused(server, "/cache/import", {"file": "all.kv"}, "another model or layout")
    with Server(*OPTIONS, "--cache-file-dir", folder) as server:
        refused(server, "/cache/export", {"file": "x"}, "--enable-hierarchical-cache")
    with Server(*OPTIONS) as server:
        status, _, text = server.request("POST", "/cache/export", {"file": "x"})
        assert status == 501 and "--cache-file-dir" in text, text
    with Server(*tier(os.path.join(folder, "none"))) as server:
        refused(server, "/cache/export", {"file": "x"}, "is missing: make it")
    with Server(*tier(folder), "--admin-api-key", "admin") as server:
        assert server.request("POST", "/cache/export", {"file": "x"})[0] in (401, 403)
        assert server.request("POST", "/cache/import", {"file": "all.kv"})[0] in (401, 403)
        code, text = command("export", server, "--api-key", "admin", "x.kv")
        assert code == 0, text


def check_texts(folder):
    """The model that ships, which has a tokenizer."""
    with Server("--page-size", "4", *tier(folder)[len(ROOMY):]) as server:
        text = "The quick brown fox jumps over the lazy dog, and the dog sleeps on."
        server.post("/generate", {"text": text, "sampling_params": {"max_new_tokens": 2}})
        found = server.post("/cache/export", {"file": "text.kv", "text": text[:40]})
        assert found["num_pages"] >= 2, found
        assert server.post("/cache/export", {"file": "text.kv", "text": "Another text altogether"})["num_pages"] == 0
        refused(server, "/cache/export", {"file": "text.kv", "text": "T"}, "give a longer text")


def check_warm_prompts(folder):
    path = os.path.join(folder, "prompts.jsonl")
    with open(path, "w", encoding="utf-8") as file:
        for tokens in prompts()[:4]:
            file.write(json.dumps({"input_ids": tokens, "extra_key": "tenant"}) + "\n")
        file.write(json.dumps({"input_ids": [5] * 4000}) + "\n")  # longer than the context: the others go on
    with Server(*OPTIONS, "--warm-prompts", path) as server:
        assert "prompts=4 of=5" in server.output(), server.output()
        assert ask(server, prompts()[2], extra_key="tenant")[1]["cached_tokens"] >= 140
        assert ask(server, prompts()[2])[1]["cached_tokens"] == 0
    with open(path, "w", encoding="utf-8") as file:
        file.write('"fine"\n{"colour": 1}\n')
    result = run("serve", "--port", "0", *OPTIONS, "--warm-prompts", path)
    assert result.returncode == 2 and "line 2" in result.stderr, result


class Route(Server):
    COMMAND = "route"


def check_handover(folder):
    """A drained worker gives its cache to the other one, which answers its clients as before, with hits."""
    with Server(*tier(folder)) as leaves, Server(*tier(folder)) as stays:
        expected = [ask(leaves, tokens)[0] for tokens in prompts()]
        urls = [f"http://127.0.0.1:{server.port}" for server in (leaves, stays)]
        with Route("--worker", urls[0], "--worker", urls[1], "--health-check-interval-secs", "0.2") as router:
            def healthy():
                workers = json.loads(router.get("/workers")[2])["workers"]
                return sum(w["is_healthy"] and bool(w["models"]) for w in workers) == 2

            wait_until(healthy, "both workers are healthy")
            answer = router.post("/drain", {"url": urls[0], "hand_over": True})
            handed = answer["handed_over"]
            assert handed["num_pages"] >= 6 * 36, answer
            assert handed["workers"] == [{"url": urls[1], "num_pages": handed["num_pages"]}], answer
            for tokens, ids in zip(prompts(), expected):
                got, meta = ask(router, tokens)
                assert got == ids and meta["cached_tokens"] >= len(tokens) // 4 * 4 - 4, meta


def main():
    assert os.path.isdir(MODEL)
    with tempfile.TemporaryDirectory() as folder:
        check_import(folder, check_export(folder))
        check_refusals(folder)
        check_texts(folder)
        check_handover(folder)
        check_warm_prompts(folder)
    print("ok")


if __name__ == "__main__":
    main()
