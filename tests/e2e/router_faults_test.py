"""Workers and routers that are killed, stopped, slowed and started anew at drawn points, under load: three workers of the
shipped model behind two routers, and clients that use the other router while one is away. A request of which its client
has seen nothing is answered all the same, a stream that has begun ends as a whole or with an error, and no answer waits
longer than RECOVERY_S because of the fault. ESPALIER_FAULT_POINTS: how many points are drawn, from ESPALIER_FAULT_SEED on."""
import collections
import http.client
import json
import os
import random
import signal
import socket
import threading
import time
import unittest

import harness

POINTS = int(os.environ.get("ESPALIER_FAULT_POINTS", "10"))
SEED = int(os.environ.get("ESPALIER_FAULT_SEED", "1"))
# On a computer that is busy with other things all takes longer; tools/long_tests asks for 2 s where nothing else runs.
RECOVERY_S = float(os.environ.get("ESPALIER_FAULT_RECOVERY_S", "10"))
NUM_WORKERS, NUM_ROUTERS, NUM_CLIENTS = 3, 2, 6
WORKER = ["--max-total-tokens", "16384", "--num-threads", "1"]
FAULTS = ("kill", "stall", "slow", "restart")
HUNG_S = 60  # an answer that has not moved for so long


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Part:
    """A worker or a router at a port of its own, where it is started anew."""

    def __init__(self, kind, args):
        self.kind, self.args, self.port = kind, args, free_port()
        self.server = None
        self.start()

    def start(self):
        self.server = self.kind(*self.args, port=self.port)

    def signal(self, number):
        self.server.process.send_signal(number)

    def end(self, number):
        self.signal(number)
        self.server.process.wait(harness.PATIENCE_S)
        self.server.__exit__()


class Router(harness.Server):
    COMMAND = "route"


# How one request went: `result` is whole, error (the stream has begun and ended with an error), cut (its connection
# broke) or refused (an error instead of an answer). `waited`: for the first byte, in seconds from `sent` on.
Sent = collections.namedtuple("Sent", "router index streams sent waited ended result detail")


class Clients:
    """Threads that ask one thing after another, each of its router, and of the other where that one is away."""

    def __init__(self, routers, prompts, answers, seed):
        self.routers, self.prompts, self.answers = routers, prompts, answers
        self.ended, self.lock, self.stopping = [], threading.Lock(), threading.Event()
        self.away = set()  # routers that are killed or started anew
        self.threads = [threading.Thread(target=self.run, args=(i, random.Random(seed * 100 + i))) for i in range(NUM_CLIENTS)]
        for thread in self.threads:
            thread.start()

    def run(self, number, draw):
        while not self.stopping.is_set():
            index, streams = draw.randrange(len(self.prompts)), draw.random() < 0.6
            router, sent = number % NUM_ROUTERS, time.monotonic()
            outcome = self.ask(router, index, streams, sent)
            while outcome is None:  # nobody answered: as a load balancer, the client takes the other router
                router = (router + 1) % NUM_ROUTERS
                outcome = self.ask(router, index, streams, sent)
            with self.lock:
                self.ended.append(outcome)
            time.sleep(draw.random() * 0.02)

    def ask(self, router, index, streams, sent):
        """What became of a request; None: the router is away and the client has seen nothing."""
        connection = http.client.HTTPConnection("127.0.0.1", self.routers[router].port, timeout=HUNG_S)
        body = {"text": self.prompts[index], "stream": streams,
                "sampling_params": {"temperature": 0, "max_new_tokens": 24, "ignore_eos": True}}
        waited, result, detail = None, "cut", ""
        try:
            connection.request("POST", "/generate", json.dumps(body), {"Content-Type": "application/json"})
            answer = connection.getresponse()
            if not streams or answer.status != 200:
                text = answer.read()
                waited = time.monotonic() - sent
                result, detail = self.judge(answer.status, text, index)
            else:
                for line in answer:
                    if not line.startswith(b"data: "):
                        continue
                    waited = waited if waited is not None else time.monotonic() - sent
                    data = line[6:].strip()
                    if data == b"[DONE]":
                        result = "whole" if result == "cut" and detail == self.answers[index] else result
                        break
                    event = json.loads(data)
                    result, detail = ("error", event["error"]["message"]) if "error" in event else (result, event["text"])
        except (OSError, http.client.HTTPException) as e:
            detail = repr(e)
        finally:
            connection.close()
        if waited is None and router in self.away:
            return None
        now = time.monotonic()
        return Sent(router, index, streams, sent, waited if waited is not None else now - sent, now, result, detail)

    def judge(self, status, text, index):
        if status != 200:
            return "refused", f"{status} {text[:200]!r}"
        said = json.loads(text)["text"]
        return ("whole", "") if said == self.answers[index] else ("wrong", said)

    def stop(self):
        self.stopping.set()
        for thread in self.threads:
            thread.join(2 * HUNG_S)
        assert not any(thread.is_alive() for thread in self.threads), "a client waits for ever"


class RouterFaults(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.workers = [Part(harness.Server, WORKER) for _ in range(NUM_WORKERS)]
        urls = [f"http://127.0.0.1:{worker.port}" for worker in cls.workers]
        cls.routers = [Part(Router, ["--worker", *urls, "--slow-start", "0"]) for _ in range(NUM_ROUTERS)]
        draw = random.Random(7)
        cls.prompts = [f"Story {draw.randrange(10**6)}: once there was" for _ in range(12)]
        cls.answers = [cls.workers[0].server.post("/generate", {"text": prompt, "sampling_params": {
            "temperature": 0, "max_new_tokens": 24, "ignore_eos": True}})["text"] for prompt in cls.prompts]
        cls.wait_until_healthy()

    @classmethod
    def tearDownClass(cls):
        for part in cls.routers + cls.workers:
            part.end(signal.SIGKILL)

    @classmethod
    def wait_until_healthy(cls):
        for router in cls.routers:
            harness.wait_until(lambda r=router: all(w["state"] == "healthy" for w in json.loads(
                r.server.get("/workers")[2])["workers"]), "all workers are healthy")

    def inject(self, fault, victim, clients, draw):
        """Begins the fault, and ends it where it would last."""
        is_router = victim in self.routers
        if is_router and fault in ("kill", "restart"):
            clients.away.add(self.routers.index(victim))
        if fault in ("kill", "restart"):
            victim.end(signal.SIGKILL if fault == "kill" else signal.SIGTERM)
            time.sleep(draw.uniform(0, 0.5))
            victim.start()
            clients.away.clear()
        elif fault == "slow":
            for _ in range(15):  # a twentieth of its speed
                victim.signal(signal.SIGSTOP)
                time.sleep(0.057)
                victim.signal(signal.SIGCONT)
                time.sleep(0.003)
        else:
            victim.signal(signal.SIGSTOP)
            # Until the routers know, or for as long as a router may be away without a client's wait being its own.
            time.sleep(0.5 if is_router else draw.uniform(2.1, 2.6))
            victim.signal(signal.SIGCONT)

    def run_point(self, seed):
        """The fault, and how all requests around it went."""
        draw = random.Random(seed)
        fault, victim = draw.choice(FAULTS), draw.choice(self.routers + self.workers)
        name = f"{fault} {'router' if victim in self.routers else 'worker'}"
        clients = Clients(self.routers, self.prompts, self.answers, seed)
        try:
            time.sleep(draw.uniform(0.02, 0.3))
            begun = time.monotonic()
            self.inject(fault, victim, clients, draw)
            time.sleep(0.1)
        finally:
            clients.stop()
        self.wait_until_healthy()
        return name, begun, clients.ended

    def check_point(self, name, begun, ended):
        """The longest wait for a first byte since the fault, in seconds."""
        worst = 0.0
        for one in ended:
            began = one.streams and one.result in ("error", "cut")
            may_end_early = began and name.split()[0] in ("kill", "stall") and one.ended >= begun
            self.assertTrue(one.result == "whole" or may_end_early, one)
            if one.result == "cut":
                self.assertEqual(name, "kill router", one)  # a dead router alone can say nothing
            if one.sent + one.waited > begun:
                worst = max(worst, one.sent + one.waited - max(begun, one.sent))
        return worst

    def test_drawn_points(self):
        waits, results = collections.defaultdict(list), collections.defaultdict(collections.Counter)
        for seed in range(SEED, SEED + POINTS):
            name, begun, ended = self.run_point(seed)
            with self.subTest(seed=seed, fault=name):
                waits[name].append(self.check_point(name, begun, ended))
                results[name].update(one.result for one in ended)
                self.assertLess(waits[name][-1], RECOVERY_S, "the longest wait for a first byte")
        print(f"{'fault':15} {'points':>6} {'requests':>8} {'whole':>7} {'error':>6} {'cut':>5} {'longest wait, s: p50':>20} {'most':>6}")
        for name, all_waits in sorted(waits.items()):
            count, middle = results[name], sorted(all_waits)[len(all_waits) // 2]
            print(f"{name:15} {len(all_waits):6} {sum(count.values()):8} {count['whole']:7} {count['error']:6} {count['cut']:5} "
                  f"{middle:20.2f} {max(all_waits):6.2f}")


if __name__ == "__main__":
    unittest.main()
