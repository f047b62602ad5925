#!/usr/bin/env python3
"""Hidden states and processors of logits at a running server: /generate's answers, whole and as a stream."""
import array
import base64
import json
import os
import subprocess
import tempfile
import unittest

from harness import ROOT, Server

MODEL = os.path.join(ROOT, "tests", "golden", "models", "llama_tied_llama3")
PROMPT = list(range(5, 17))
HIDDEN, LAYERS, ANSWER = 64, 3, 6


def serve(*args):
    return Server("--model-path", MODEL, "--device", "cpu", "--dtype", "float32", "--skip-tokenizer-init", *args)


def body(**fields):
    sampling = {"temperature": 0, "max_new_tokens": ANSWER, "ignore_eos": True, **fields.pop("sampling", {})}
    return {"input_ids": PROMPT, "sampling_params": sampling, **fields}


def floats(states):
    data = base64.b64decode(states["data"])
    if states["dtype"] == "float32":
        return array.array("f", data).tolist()
    widened = b"".join(b"\0\0" + data[i:i + 2] for i in range(0, len(data), 2))
    return array.array("f", widened).tolist()


def flat(values):
    return [number for value in values for number in flat(value)] if isinstance(values, list) else [values]


class Insides(unittest.TestCase):
    def ask(self, server, want=200, **fields):
        status, _, text = server.request("POST", "/generate", body(**fields))
        self.assertEqual(status, want, text)
        return json.loads(text)

    def test_hidden_states_as_lists_and_in_binary(self):
        with serve("--enable-return-hidden-states", "--chunked-prefill-size", "5") as server:
            self.assertTrue(json.loads(server.get("/server_info")[2])["enable_return_hidden_states"])
            plain = self.ask(server)
            self.assertNotIn("hidden_states", plain["meta_info"])
            states = self.ask(server, return_hidden_states=True)["meta_info"]["hidden_states"]
            # SGLang's form: the prompt's rows, then a row for each output token but the last.
            self.assertEqual(len(states), ANSWER)
            self.assertEqual([len(row) for row in states[0]], [HIDDEN] * len(PROMPT))
            self.assertEqual([len(row) for row in states[1:]], [HIDDEN] * (ANSWER - 1))
            rows = len(PROMPT) + ANSWER - 1
            binary = self.ask(server, return_hidden_states=True, hidden_states_format="float32")
            self.assertEqual(binary["output_ids"], plain["output_ids"])
            binary = binary["meta_info"]["hidden_states"]
            self.assertEqual(binary["shape"], [rows, HIDDEN])
            for listed, exact in zip(flat(states), floats(binary), strict=True):
                self.assertAlmostEqual(listed, exact, delta=1e-6 * max(1, abs(exact)))
            layers = self.ask(server, return_hidden_states=True, hidden_states_layers=[0, -1],
                              hidden_states_format="bfloat16")["meta_info"]["hidden_states"]
            self.assertEqual(layers["shape"], [rows, 2, HIDDEN])
            last = [number for row in range(rows)
                    for number in floats(layers)[(2 * row + 1) * HIDDEN:(2 * row + 2) * HIDDEN]]
            for rounded, exact in zip(last, floats(binary), strict=True):
                self.assertAlmostEqual(rounded, exact, delta=2 ** -8 * abs(exact))
            batch = server.request("POST", "/generate", {**body(), "input_ids": [PROMPT, PROMPT[:3]],
                                              "return_hidden_states": [False, True]})
            one, two = json.loads(batch[2])
            self.assertNotIn("hidden_states", one["meta_info"])
            self.assertEqual(len(two["meta_info"]["hidden_states"][0]), 3)

    def test_a_stream_has_each_row_once(self):
        with serve("--enable-return-hidden-states", "--chunked-prefill-size", "5") as server:
            whole = self.ask(server, return_hidden_states=True, hidden_states_format="float32")
            status, _, text = server.request("POST", "/generate", body(return_hidden_states=True, stream=True,
                                                            hidden_states_format="float32"))
            self.assertEqual(status, 200)
            gathered, next_token = [], 0
            for line in text.split("\n\n"):
                if not line.startswith("data: {"):
                    continue
                states = json.loads(line[6:])["meta_info"]["hidden_states"]
                self.assertEqual(states["first_token"], next_token)
                next_token += states["shape"][0]
                gathered += floats(states)
            self.assertEqual(next_token, len(PROMPT) + ANSWER - 1)
            self.assertEqual(gathered, floats(whole["meta_info"]["hidden_states"]))

    def test_beam_search(self):
        with serve() as server:
            search = {"use_beam_search": True, "n": 2, "best_of": 4, "length_penalty": 0.5}
            best, second = self.ask(server, sampling=search)
            for answer in (best, second):
                meta = answer["meta_info"]
                self.assertEqual(len(answer["output_ids"]), ANSWER)
                self.assertAlmostEqual(meta["beam_score"], meta["cumulative_logprob"] / ANSWER ** 0.5, places=4)
            self.assertGreater(best["meta_info"]["beam_score"], second["meta_info"]["beam_score"])
            self.assertNotEqual(best["output_ids"], second["output_ids"])
            greedy = self.ask(server, return_logprob=True)["meta_info"]["output_token_logprobs"]
            self.assertGreaterEqual(best["meta_info"]["cumulative_logprob"] + 1e-4, sum(row[0] for row in greedy))
            status, _, text = server.request("POST", "/generate", body(sampling=search, stream=True))
            self.assertEqual(status, 200)
            events = [json.loads(line[6:]) for line in text.split("\n\n") if line.startswith("data: {")]
            self.assertEqual([event["output_ids"] for event in events], [best["output_ids"], second["output_ids"]])
            status, _, text = server.request("POST", "/v1/completions", {
                "model": "m", "prompt": PROMPT, "max_tokens": ANSWER, "ignore_eos": True, "n": 2,
                "use_beam_search": True, "beam_width": 4, "length_penalty": 0.5})
            self.assertEqual(status, 200, text)
            scores = [choice["beam_score"] for choice in json.loads(text)["choices"]]
            self.assertEqual(scores, [answer["meta_info"]["beam_score"] for answer in (best, second)])
            self.assertIn("use_beam_search", json.dumps(self.ask(server, 400, sampling={"length_penalty": 1})))

    def test_control_vectors(self):
        vector = os.path.join(ROOT, "tests", "golden", "control", "llama_tied_llama3.vector.safetensors")
        with serve("--control-vector", f"own={vector}") as server:
            self.assertEqual(json.loads(server.get("/server_info")[2])["control_vectors"], ["own"])
            plain = self.ask(server)["output_ids"]
            weak, none = (self.ask(server, control_vector=vector, return_logprob=True)["meta_info"]
                          for vector in ("own", {"name": "own", "scale": 0}))
            self.assertNotEqual(weak["output_token_logprobs"], none["output_token_logprobs"])
            whole = self.ask(server, control_vector={"name": "own", "scale": 20})["output_ids"]
            part = self.ask(server, control_vector={"name": "own", "scale": -1.5, "layers": [1, -1]})["output_ids"]
            self.assertEqual(len({tuple(plain), tuple(whole), tuple(part)}), 3)
            self.assertEqual(self.ask(server)["output_ids"], plain)
            status, _, text = server.request("POST", "/v1/completions", {
                "model": "m", "prompt": PROMPT, "max_tokens": ANSWER, "ignore_eos": True, "temperature": 0,
                "logprobs": 1, "control_vector": "own"})
            self.assertEqual(status, 200, text)
            for wrong, why in (("other", "the server has own"), ({"scale": 1}, "control_vector.name is missing"),
                               ({"name": "own", "layers": [0]}, "control_vector.layers"),
                               ({"name": "own", "strength": 1}, "control_vector.strength is not known")):
                self.assertIn(why, json.dumps(self.ask(server, 400, control_vector=wrong)))

    def test_what_cannot_be_is_refused_by_name(self):
        with serve("--enable-return-hidden-states") as server:
            for fields, why in ((dict(hidden_states_layers=[9]), "[0, 3]"),
                                (dict(hidden_states_format="int8"), "hidden_states_format")):
                self.assertIn(why, json.dumps(self.ask(server, 400, return_hidden_states=True, **fields)))
            self.assertIn("return_hidden_states", json.dumps(self.ask(server, 400, hidden_states_layers=[1])))
        with serve() as server:
            refused = json.dumps(self.ask(server, 400, return_hidden_states=True))
            self.assertIn("--enable-return-hidden-states", refused)
            refused = json.dumps(self.ask(server, 400, sampling={"logit_processor": "only"}))
            self.assertIn("--logit-processor-library", refused)
            refused = json.dumps(self.ask(server, 400, sampling={"no_repeat_ngram_size": -1}))
            self.assertIn("no_repeat_ngram_size", refused)

    def test_processors_of_an_operator(self):
        with tempfile.TemporaryDirectory() as folder:
            library = os.path.join(folder, "logit_processors.so")
            subprocess.run([os.environ.get("CC", "cc"), "-shared", "-fPIC", "-I", os.path.join(ROOT, "include"),
                            os.path.join(ROOT, "examples", "logit_processors.c"), "-o", library], check=True)
            with serve("--logit-processor-library", library) as server:
                self.assertEqual(json.loads(server.get("/server_info")[2])["logit_processor_library"], library)
                only = {"logit_processor": "only", "logit_processor_params": "17"}
                self.assertEqual(self.ask(server, sampling=only)["output_ids"], [17] * ANSWER)
                both = {"logit_processor": "only", "logit_processor_params": "17 18", "no_repeat_ngram_size": 2,
                        "max_new_tokens": 3}
                ids = self.ask(server, sampling=both)["output_ids"]
                self.assertEqual(len({*zip(ids, ids[1:])}), 2, ids)
                refused = json.dumps(self.ask(server, 400, sampling={"logit_processor": "none"}))
                self.assertIn("only, calm", refused)
                chat = server.request("POST", "/v1/completions", {"model": "m", "prompt": PROMPT, "max_tokens": 3, **only})
                self.assertEqual(chat[0], 200, chat[2])


if __name__ == "__main__":
    unittest.main()
