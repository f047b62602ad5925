"""SGLang's own benchmark client (sglang.benchmark.serving), unmodified, against a server with the model
that ships: its backends, prompts of groups that share a prefix, and a profile of the run."""
import glob
import json
import os
import sys
import tempfile

import sglang_client

sglang_client.install_stand_ins()
from harness import Server  # noqa: E402


RANDOM = ("--dataset-name", "random-ids", "--num-prompts", "24", "--random-input-len", "48", "--random-output-len", "12",
          "--random-range-ratio", "0.5")
SHARED = ("--dataset-name", "generated-shared-prefix", "--gsp-num-groups", "4", "--gsp-prompts-per-group", "6",
          "--gsp-system-prompt-len", "64", "--gsp-question-len", "16", "--gsp-output-len", "12")


def bench(server, model_path, backend, *more, dataset=RANDOM):
    import sglang.benchmark.serving as serving
    with tempfile.TemporaryDirectory() as folder:
        output = os.path.join(folder, "result.jsonl")
        sys.argv = ["bench_serving", "--backend", backend, "--host", "127.0.0.1", "--port",
                    str(server.port), "--model", model_path, "--tokenizer", model_path, *dataset,
                    "--max-concurrency", "8", "--output-file", output, *more]
        serving.cli_main()
        with open(output, encoding="utf-8") as f:
            result = json.loads(f.read().splitlines()[-1])
    assert result["completed"] == 24, result["completed"]
    assert result["output_throughput"] > 0 and result["mean_ttft_ms"] > 0
    print(f"sglang bench client, --backend {backend} {' '.join(more)}: ok", flush=True)


def main():
    with tempfile.TemporaryDirectory() as profiles, Server("--profile-dir", profiles) as server:
        model_path = json.loads(server.get("/model_info")[2])["model_path"]
        bench(server, model_path, "sglang", "--flush-cache")
        for backend in ("sglang-oai", "sglang-oai-chat", "vllm", "vllm-chat"):
            bench(server, model_path, backend)
        cached = server.metric("sglang:cached_tokens_total")
        bench(server, model_path, "sglang", "--seed", "2", dataset=SHARED)
        assert server.metric("sglang:cached_tokens_total") - cached >= 4 * 5 * 32, "shared prefixes are computed again"
        bench(server, model_path, "sglang", "--profile", "--profile-output-dir", os.path.join(profiles, "run"))
        assert glob.glob(os.path.join(profiles, "run", "**", "*.json*"), recursive=True), "the profile is not written"


if __name__ == "__main__":
    main()
