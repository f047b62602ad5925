"""guidellm, unmodified, as load on a server: each format of request that a text server has, by one client, by
eight and by 24 at once. Every request is answered, with the tokens that it asks for as the usage in
its stream says. tests/compat/run installs it in an environment of its own."""
import json
import os
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.realpath(__file__)), "..", "e2e"))
from harness import Server  # noqa: E402

REQUESTS, TOKENS = 24, 16
FORMATS = ("/v1/chat/completions", "/v1/completions", "/v1/responses")
CLIENTS = (1, 8, 24)  # at once


def load(server, form, folder):
    """guidellm's reports of REQUESTS requests, for each number of clients."""
    data, report = os.path.join(folder, "prompts.jsonl"), os.path.join(folder, "report.json")
    with open(data, "w", encoding="utf-8") as f:
        for number in range(REQUESTS):
            f.write(json.dumps({"prompt": f"Story {number}: once there was a dog who",
                                "output_tokens_count": TOKENS}) + "\n")
    done = subprocess.run(
        [os.path.join(os.path.dirname(sys.executable), "guidellm"), "run", "--disable-console",
         "--backend", f"kind=openai_http,target=http://127.0.0.1:{server.port},request_format={form}",
         "--profile", "kind=concurrent,streams=1", "--override", "profile.streams", ",".join(map(str, CLIENTS)),
         "--constraint", f"kind=max_requests,count={REQUESTS}", "--data", f"kind=json_file,path={data}",
         "--output", f"kind=json,path={report}"],
        env={**os.environ, "HF_HUB_OFFLINE": "1"}, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, (form, done.stdout[-2000:] + done.stderr[-2000:])
    with open(report, encoding="utf-8") as f:
        return json.load(f)["benchmarks"]


def check(form, num_clients, report):
    totals = report["metrics"]["request_totals"]
    assert (totals["successful"], totals["errored"], totals["incomplete"]) == (REQUESTS, 0, 0), totals
    answers = report["requests"]["successful"]
    assert len(answers) == REQUESTS
    for one in answers:
        assert one["output_tokens"] == TOKENS and one["prompt_tokens"] > 0 and one["output"], one
    rate = report["metrics"]["output_tokens_per_second"]["successful"]["mean"]
    print(f"guidellm, {form}, {num_clients} at once: {len(answers)} answers of {TOKENS} tokens, {rate:.0f} tokens/s",
          flush=True)


def main():
    with Server() as server:
        for form in FORMATS:
            with tempfile.TemporaryDirectory() as folder:
                reports = load(server, form, folder)
            assert len(reports) == len(CLIENTS)
            for num_clients, report in zip(CLIENTS, reports):
                check(form, num_clients, report)


if __name__ == "__main__":
    main()
