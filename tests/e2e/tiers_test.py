"""Tiers below the device at the built binary: a server restarted with a warm disk has the hit rate as before and
equal answers, two servers share a folder, and what is damaged on disk changes no answer."""
import glob
import json
import os
import random
import signal
import tempfile

from harness import ROOT, Server, run

MODEL = os.path.join(ROOT, "tests", "golden", "models", "llama_tied_llama3")
OPTIONS = ["--model-path", MODEL, "--skip-tokenizer-init", "--page-size", "4", "--max-total-tokens", "512",
           "--context-length", "256", "--device", "cpu"]


def tiers(folder, *more):
    return [*OPTIONS, "--enable-hierarchical-cache", "--hicache-storage-backend", "file", "--hicache-storage-path",
            folder, "--hicache-disk-size", "0.05", *more]


def prompts():
    """Conversations whose turns begin with the turns before; together they exceed the device's memory."""
    rng = random.Random(1)
    out = []
    for _ in range(6):
        tokens = []
        for _ in range(3):
            tokens = tokens + [rng.randrange(5, 60) for _ in range(48)]
            out.append(tokens)
    return out


def ask(server, tokens, **more):
    answer = server.post("/generate", {
        "input_ids": tokens, "return_logprob": True,
        "sampling_params": {"max_new_tokens": 8, "temperature": 0, "ignore_eos": True}, **more})
    return answer["output_ids"], answer["meta_info"]


def ask_all(server):
    """Answers with their log-probabilities, and the meta_info of each."""
    answers = [ask(server, tokens) for tokens in prompts()]
    return [(ids, [p[0] for p in meta["output_token_logprobs"]]) for ids, meta in answers], [m for _, m in answers]


def hit_rate(metas):
    return sum(m["cached_tokens"] for m in metas) / sum(m["prompt_tokens"] for m in metas)


def damage(folder):
    rng = random.Random(2)
    for path in glob.glob(os.path.join(folder, "*.pages")):
        with open(path, "r+b") as file:
            for at in range(0, os.path.getsize(path), 4096):
                file.seek(at + rng.randrange(64, 600))
                file.write(b"\xa5")


def check_restart(folder):
    with Server(*OPTIONS) as server:
        expected, metas = ask_all(server)
        assert metas[0]["cached_tokens_details"] is None
    with Server(*tiers(folder)) as server:
        assert ask_all(server)[0] == expected
        answers, metas = ask_all(server)
        assert answers == expected
        before = hit_rate(metas)
        info = json.loads(server.get("/server_info")[2])
        assert info["hicache_storage_backend"] == "file" and info["enable_hierarchical_cache"] is True
        assert server.stop() == 0
    with Server(*tiers(folder)) as server:
        answers, metas = ask_all(server)
        assert answers == expected, "answers after a restart differ"
        assert hit_rate(metas) >= before, (hit_rate(metas), before)
        details = metas[0]["cached_tokens_details"]
        assert details["storage"] > 0 and details["device"] == 0 and details["storage_backend"] == "file", details
        metrics = server.get("/metrics")[2]
        assert 'espalier:tier_pages_found_total{' in metrics and 'tier="disk"' in metrics
        # Another server of the same model, while this one runs; and other tenants find nothing.
        with Server(*tiers(folder)) as other:
            ids, meta = ask(other, prompts()[2])
            assert ids == expected[2][0] and meta["cached_tokens_details"]["storage"] > 0
            assert ask(other, prompts()[2], extra_key="tenant")[1]["cached_tokens"] == 0
        assert server.stop() == 0
    damage(folder)
    with Server(*tiers(folder)) as server:
        answers, metas = ask_all(server)
        assert answers == expected, "damaged pages were used"
        assert metas[0]["cached_tokens"] == 0


def check_kill(folder):
    """Killed while it stores; the next server has right answers."""
    with Server(*OPTIONS) as server:
        expected = ask_all(server)[0]
    for _ in range(3):
        server = Server(*tiers(folder, "--hicache-write-policy", "write_back", "--hicache-size", "0.001"))
        try:
            for tokens in prompts()[:9]:
                ask(server, tokens)
        finally:
            os.kill(server.process.pid, signal.SIGKILL)
            server.process.wait()
    with Server(*tiers(folder)) as server:
        assert ask_all(server)[0] == expected


def check_refusals(folder):
    for options, problem in (
            (["--hicache-size", "1"], "--enable-hierarchical-cache"),
            (["--enable-hierarchical-cache"], "--hicache-storage-backend file"),
            ([*tiers(folder)[len(OPTIONS):], "--disable-radix-cache"], "contradict"),
            ([*tiers(folder)[len(OPTIONS):-1], "0.000001"], "--hicache-disk-size")):
        result = run("serve", "--port", "0", *OPTIONS, *options)
        assert result.returncode != 0 and problem in result.stdout + result.stderr, (options, result)


def main():
    for check in (check_restart, check_kill, check_refusals):
        with tempfile.TemporaryDirectory() as folder:
            check(os.path.join(folder, "kv"))
    print("ok")


if __name__ == "__main__":
    main()
