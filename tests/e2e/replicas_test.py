"""Two replicas in one process, at the built binary: the answers of one, figures by replica, requests on both."""
import json
import threading

import harness
from harness import Server, run

PROMPTS = [f"Question {i}: what is the capital of country number {i}?" for i in range(8)]
PUBLISH = json.dumps({"publisher": "http"})


def generate(server, prompt, **more):
    return server.post("/generate", {
        "text": prompt, "sampling_params": {"temperature": 0, "max_new_tokens": 24, "ignore_eos": True}, **more})


def in_a_crowd(server):
    """The answers to all prompts, which the server holds until all have come."""
    server.post("/pause_generation", {"mode": "in_place"})
    answers = [None] * len(PROMPTS)
    threads = [threading.Thread(target=lambda i=i: answers.__setitem__(i, generate(server, PROMPTS[i])["text"]))
               for i in range(len(PROMPTS))]
    for thread in threads:
        thread.start()
    harness.wait_until(lambda: waiting(server) == len(PROMPTS), "all requests wait")
    server.post("/continue_generation", {})
    for thread in threads:
        thread.join()
    return answers


def loads(server):
    return json.loads(server.get("/v1/loads")[2])["loads"]


def waiting(server):
    return sum(load["num_waiting_reqs"] for load in loads(server))


def check_figures(server):
    info = json.loads(server.get("/server_info")[2])
    assert info["dp_size"] == 2 and info["load_balance_method"] == "round_robin", info
    states = info["internal_states"]
    assert len(states) == 2 and all(s["memory_usage"]["token_capacity"] > 0 for s in states), states
    assert info["max_total_num_tokens"] == sum(s["memory_usage"]["token_capacity"] for s in states)
    assert [load["dp_rank"] for load in loads(server)] == [0, 1]
    assert [load["dp_rank"] for load in json.loads(server.get("/get_load")[2])] == [0, 1]
    metrics = server.get("/metrics")[2]
    counts = [int(line.split()[-1]) for line in metrics.splitlines()
              if line.startswith("espalier:replica_requests_total{")]
    assert len(counts) == 2 and min(counts) >= len(PROMPTS) // 2, metrics
    assert sum(counts) == server.metric("sglang:num_requests_total"), metrics
    begins = []
    for rank in (0, 1):
        events = json.loads(server.get(f"/kv_events?dp_rank={rank}")[2])["events"]
        begins.append({tuple(e["block_hashes"]) for e in events})
    assert begins[0] and begins[1] and begins[0] != begins[1], begins
    status, _, body = server.get("/kv_events?dp_rank=2")
    assert status == 400 and "there are 2 replicas" in body, body


def check_session(server):
    opened = json.loads(server.request("POST", "/open_session", {"capacity_of_str_len": 4096})[2])
    first = generate(server, "The first", session_params={"id": opened})
    rid = first["meta_info"]["id"]
    second = generate(server, " and then", session_params={"id": opened, "rid": rid})
    assert second["meta_info"]["prompt_tokens"] > first["meta_info"]["prompt_tokens"] + 20, second
    assert second["meta_info"]["dp_rank"] == first["meta_info"]["dp_rank"], (first, second)
    assert server.request("POST", "/close_session", {"session_id": opened})[0] == 200


def main():
    for args, message in ((["--dp-size", "0"], "--dp-size: 0 is out of range"),
                          (["--load-balance-method", "fastest"], "load_balance_method is 'fastest'")):
        refused = run("serve", "--port", "0", "--device", "cpu", *args)
        assert refused.returncode != 0 and message in refused.stderr, refused.stderr
    with Server("--device", "cpu") as server:
        want = [generate(server, prompt)["text"] for prompt in PROMPTS]
    with Server("--device", "cpu", "--dp", "2", "--load-balance-method", "round_robin", "--kv-events-config",
                PUBLISH) as server:
        assert in_a_crowd(server) == want
        check_figures(server)
        check_session(server)
        assert server.request("POST", "/flush_cache")[0] == 200
        assert server.stop() == 0
    with Server("--device", "cpu", "--dp-size", "2") as server:
        assert in_a_crowd(server) == want
        text = PROMPTS[0] + " Think of its rivers, its hills and the sea."
        generate(server, text)
        assert generate(server, text + " Then answer.")["meta_info"]["cached_tokens"] > 20


main()
