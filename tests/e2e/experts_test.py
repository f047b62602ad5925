#!/usr/bin/env python3
"""The tokens of each expert at a running server: records by SGLang's routes, balance in /metrics."""
import json
import os
import tempfile
import unittest

from harness import ROOT, Server

MODEL = os.path.join(ROOT, "tests", "golden", "models", "qwen3_moe")
ROUTE = "/{}_expert_distribution_record"
PROMPT = [5, 6, 7, 8, 9]
ANSWER = 12


def serve(*args):
    return Server("--model-path", MODEL, "--device", "cpu", "--dtype", "float32", "--skip-tokenizer-init",
                  "--disable-overlap-schedule", *args)


def generate(server, first):
    server.post("/generate", {"input_ids": [first, *PROMPT], "sampling_params": {
        "temperature": 0, "max_new_tokens": ANSWER, "ignore_eos": True}})


class Experts(unittest.TestCase):
    def call(self, server, name, want=200):
        status, _, text = server.request("POST", ROUTE.format(name))
        self.assertEqual(status, want, text)
        return text

    def dump(self, server):
        record = json.loads(self.call(server, "dump"))
        return record, [sum(layer) for layer in record["logical_count"]]

    def test_a_record_has_the_tokens_of_its_time(self):
        with open(os.path.join(MODEL, "config.json"), encoding="utf-8") as file:
            config = json.load(file)
        top_k, experts = config["num_experts_per_tok"], config["num_local_experts"]
        with serve("--expert-distribution-recorder-mode", "stat", "--tp-size", "2", "--ep-size", "2") as server:
            info = json.loads(server.get("/server_info")[2])
            self.assertEqual(info["expert_distribution_recorder_mode"], "stat")
            for name in ("dump", "stop"):
                self.assertIn("call /start_expert_distribution_record", self.call(server, name, 400))
            generate(server, 20)
            self.assertEqual(self.call(server, "start"), "Start recording expert distribution.\n")
            generate(server, 21)
            record, sums = self.dump(server)
            self.assertTrue(record["is_recording"])
            self.assertEqual(record["ep_size"], 2)
            self.assertEqual(len(record["logical_count"]), config["num_hidden_layers"])
            self.assertTrue(all(len(layer) == experts for layer in record["logical_count"]))
            # The last sampled token is not computed; the last layer computes the rows that are sampled.
            self.assertEqual(sums[0], (1 + len(PROMPT) + ANSWER - 1) * top_k)
            self.assertEqual(sums[-1], ANSWER * top_k)
            for name in ("busiest_expert_over_mean", "busiest_rank_over_mean"):
                self.assertGreaterEqual(record[name], 1)
            self.assertLessEqual(record["busiest_rank_over_mean"], 2)

            self.assertEqual(sum(self.dump(server)[1]), 0, "a dump begins the record again")
            generate(server, 22)
            self.assertEqual(self.call(server, "stop"), "Stop recording expert distribution.\n")
            generate(server, 23)
            record, sums = self.dump(server)
            self.assertFalse(record["is_recording"])
            self.assertEqual(sums[-1], ANSWER * top_k)
            self.call(server, "dump", 400)

            metrics = server.get("/metrics")[2]
            for name in ("expert_busiest_over_mean", "expert_rank_busiest_over_mean"):
                self.assertRegex(metrics, rf"(?m)^espalier:{name}\{{[^}}]*\}} [1-9]")

    def test_experts_move_to_where_they_are_balanced(self):
        ranks = ("--tp-size", "2", "--ep-size", "2")
        moving = ("--enable-eplb", "--ep-num-redundant-experts", "2", "--eplb-rebalance-num-iterations", "40",
                  "--disable-radix-cache")
        with serve(*ranks, *moving) as server:
            info = json.loads(server.get("/server_info")[2])
            self.assertEqual(info["ep_num_redundant_experts"], 2)
            self.assertEqual(info["expert_distribution_recorder_mode"], "stat", "which moving needs")
            balance = []
            for _ in range(4):
                self.call(server, "start")
                for _ in range(5):
                    generate(server, 20)
                self.call(server, "stop")
                record = json.loads(self.call(server, "dump"))
                balance.append(record["busiest_rank_over_mean"])
            print("busiest_rank_over_mean of four records:", balance)
            self.assertLess(balance[-1], balance[0])
            self.assertRegex(server.get("/metrics")[2], r"(?m)^espalier:expert_moves_total\{[^}]*\} [1-9]")
            counts = record
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "counts.json")
            with open(path, "w", encoding="utf-8") as file:
                json.dump(counts, file)
            with serve(*ranks, "--ep-num-redundant-experts", "2", "--init-expert-location", path,
                       "--expert-distribution-recorder-mode", "stat") as server:
                self.call(server, "start")
                generate(server, 20)
                record = json.loads(self.call(server, "dump"))
                self.assertLess(record["busiest_rank_over_mean"], balance[0])

    def test_without_the_mode_nothing_is_counted(self):
        with serve() as server:
            self.assertIn("--expert-distribution-recorder-mode stat", self.call(server, "start", 501))
            self.assertNotIn("expert_busiest", server.get("/metrics")[2])
        with Server("--device", "cpu", "--expert-distribution-recorder-mode", "stat") as server:
            self.assertIn("the model has no experts", self.call(server, "start", 400))

    def test_the_key_protects_the_record(self):
        with serve("--expert-distribution-recorder-mode", "stat", "--api-key", "secret") as server:
            self.assertEqual(server.request("POST", ROUTE.format("start"))[0], 401)
        with serve("--expert-distribution-recorder-mode", "stat") as server:
            self.assertEqual(server.get(ROUTE.format("start"))[0], 403, "a page could send it")


if __name__ == "__main__":
    unittest.main()
