"""SGLang's own benchmark client (sglang.benchmark.serving), unmodified, against a server with the model
that ships: --backend sglang and --backend sglang-oai-chat."""
import json
import os
import sys
import tempfile

import sglang_client

sglang_client.install_stand_ins()
from harness import Server  # noqa: E402


def bench(server, model_path, backend, *more):
    import sglang.benchmark.serving as serving
    with tempfile.TemporaryDirectory() as folder:
        output = os.path.join(folder, "result.jsonl")
        sys.argv = ["bench_serving", "--backend", backend, "--host", "127.0.0.1", "--port",
                    str(server.port), "--model", model_path, "--tokenizer", model_path,
                    "--dataset-name", "random-ids", "--num-prompts", "24", "--random-input-len", "48",
                    "--random-output-len", "12", "--random-range-ratio", "0.5", "--max-concurrency",
                    "8", "--output-file", output, *more]
        serving.cli_main()
        with open(output, encoding="utf-8") as f:
            result = json.loads(f.read().splitlines()[-1])
    assert result["completed"] == 24, result["completed"]
    assert result["output_throughput"] > 0 and result["mean_ttft_ms"] > 0
    print(f"sglang bench client, --backend {backend}: ok", flush=True)


def main():
    with Server() as server:
        model_path = json.loads(server.get("/model_info")[2])["model_path"]
        bench(server, model_path, "sglang", "--flush-cache")
        bench(server, model_path, "sglang-oai")
        bench(server, model_path, "sglang-oai-chat")


if __name__ == "__main__":
    main()
