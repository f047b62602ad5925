"""guidellm, unmodified, as load on a server: each format of request that a text server has, by one client after the
other, by eight at once and all at once. Every request is answered, with the tokens that it asks for, as the usage in
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
PROFILES = ("kind=synchronous", "kind=concurrent,streams=8", "kind=throughput,max_concurrency=24")


def load(server, form, profile, folder):
    """guidellm's report of REQUESTS requests."""
    data, report = os.path.join(folder, "prompts.jsonl"), os.path.join(folder, "report.json")
    with open(data, "w", encoding="utf-8") as f:
        for number in range(REQUESTS):
            f.write(json.dumps({"prompt": f"Story {number}: once there was a dog who",
                                "output_tokens_count": TOKENS}) + "\n")
    done = subprocess.run(
        [os.path.join(os.path.dirname(sys.executable), "guidellm"), "run", "--disable-console",
         "--backend", f"kind=openai_http,target=http://127.0.0.1:{server.port},request_format={form}",
         "--profile", profile, "--constraint", f"kind=max_requests,count={REQUESTS}",
         "--data", f"kind=json_file,path={data}", "--output", f"kind=json,path={report}"],
        env={**os.environ, "HF_HUB_OFFLINE": "1"}, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, (form, profile, done.stdout[-2000:] + done.stderr[-2000:])
    with open(report, encoding="utf-8") as f:
        return json.load(f)["benchmarks"][0]


def check(server, form, profile):
    with tempfile.TemporaryDirectory() as folder:
        answer = load(server, form, profile, folder)
    totals = answer["metrics"]["request_totals"]
    assert (totals["successful"], totals["errored"], totals["incomplete"]) == (REQUESTS, 0, 0), totals
    answers = answer["requests"]["successful"]
    assert len(answers) == REQUESTS
    for one in answers:
        assert one["output_tokens"] == TOKENS and one["prompt_tokens"] > 0 and one["output"], one
    rate = answer["metrics"]["output_tokens_per_second"]["successful"]["mean"]
    print(f"guidellm, {form}, {profile.split(',')[0]}: {len(answers)} answers of {TOKENS} tokens, {rate:.0f} tokens/s",
          flush=True)


def main():
    with Server() as server:
        for form in FORMATS:
            for profile in PROFILES:
                check(server, form, profile)


if __name__ == "__main__":
    main()
