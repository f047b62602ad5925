#!/usr/bin/env python3
"""`espalier models convert` and `quantize` at the built binary: the model that ships in other formats says
what it said, as far as each format's bits go, and what goes wrong is told."""
import json
import math
import os
import re
import struct
import sys
import tempfile
import unittest

from harness import ROOT, Server, run

sys.path.append(os.path.join(ROOT, "tools", "default_model"))
from data import stories  # noqa: E402

MODEL = os.path.join(ROOT, "share", "default_model")
QUESTIONS = ("What is the capital of France?", "How many days are in a week?", "What is 34 + 21?", "Tell me a story about a dog.")
# How much larger the perplexity of the source's own story may be, and how many of the answers are the same text.
PERPLEXITY = {"Q8_0": 1.01, "Q5_1": 1.05, "Q5_0": 1.05, "Q4_1": 1.15, "Q4_0": 1.15}
TEXTS = [stories.story(f"calibration {i}")[2] for i in range(40)]
SHORT_ANSWERS = 3  # of the questions: what a story says differs with one bit


def tensors(folder):
    """name: (type, shape, bytes) of a folder's safetensors."""
    out = {}
    for name in sorted(os.listdir(folder)):
        if not name.endswith(".safetensors"):
            continue
        with open(os.path.join(folder, name), "rb") as file:
            size, = struct.unpack("<Q", file.read(8))
            header, data = json.loads(file.read(size)), file.read()
        for tensor, entry in header.items():
            if tensor != "__metadata__":
                begin, end = entry["data_offsets"]
                out[tensor] = (entry["dtype"], entry["shape"], data[begin:end])
    return out


class Model:
    """What a model says: a chat's prompt, greedy answers, and the perplexity of a story."""

    def __init__(self, path, story=None):
        with Server("--model-path", path, "--dtype", "float32") as server:
            prompts = [server.post("/tokenize", {"messages": [{"role": "user", "content": each}]})["tokens"] for each in QUESTIONS]
            answers = [server.post("/generate", {"input_ids": ids, "sampling_params": {"temperature": 0, "max_new_tokens": 160}}) for ids in prompts]
            self.prompts = prompts
            self.answers = [each["text"] for each in answers]
            self.story = story or prompts[-1] + answers[-1]["output_ids"]
            scored = server.post("/generate", {"input_ids": self.story, "return_logprob": True, "logprob_start_len": len(prompts[-1]),
                                               "sampling_params": {"max_new_tokens": 0}})
        logprobs = [entry[0] for entry in scored["meta_info"]["input_token_logprobs"] if entry[0] is not None]
        self.perplexity = math.exp(-sum(logprobs) / len(logprobs))

    def same_answers(self, other):
        return sum(a == b for a, b in zip(self.answers, other.answers))


class Convert(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.source = Model(MODEL)

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def path(self, name):
        return os.path.join(self.folder, name)

    def made(self, *args):
        result = run("models", *args)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertTrue(os.path.exists(args[2]), result.stdout)
        return args[2]

    def generation_config(self, folder):
        with open(os.path.join(folder, "generation_config.json"), encoding="utf-8") as file:
            return json.load(file)

    def refused(self, *args, code=1):
        before = sorted(os.listdir(self.folder))
        result = run("models", *args)
        self.assertEqual(result.returncode, code, result)
        self.assertEqual(sorted(os.listdir(self.folder)), before, "nothing is left behind")
        return result.stderr

    def test_a_folder_becomes_a_gguf_and_a_folder_again(self):
        gguf = self.made("convert", MODEL, self.path("model.gguf"))
        as_gguf = Model(gguf)
        self.assertEqual((as_gguf.answers, as_gguf.prompts), (self.source.answers, self.source.prompts))
        self.assertAlmostEqual(as_gguf.perplexity, self.source.perplexity, places=3)
        again = self.made("convert", gguf, self.path("again"))
        self.assertEqual(tensors(again), tensors(MODEL), "to the bit")
        stated = [self.generation_config(folder) for folder in (MODEL, again)]
        for name in ("temperature", "top_p", "do_sample", "eos_token_id"):
            self.assertEqual(stated[1].get(name), stated[0][name], name)
        as_folder = Model(again)
        self.assertEqual((as_folder.answers, as_folder.prompts), (self.source.answers, self.source.prompts))
        wide = self.made("convert", gguf, self.path("wide.gguf"), "--type", "F32")
        self.assertGreater(os.path.getsize(wide), 1.9 * os.path.getsize(gguf))
        self.assertEqual(Model(wide).answers, self.source.answers)

    def test_fewer_bits_say_nearly_the_same(self):
        sizes = []
        for kind, worse in PERPLEXITY.items():
            path = self.made("quantize", MODEL, self.path(f"{kind}.gguf"), "--type", kind)
            model = Model(path, self.source.story)
            ratio = model.perplexity / self.source.perplexity
            same = model.same_answers(self.source)
            print(f"\n{kind}: {os.path.getsize(path) / 1e6:.1f} MB, perplexity {model.perplexity:.4f} of {self.source.perplexity:.4f} "
                  f"({100 * (ratio - 1):+.2f} %), {same} of {len(QUESTIONS)} greedy answers are the same")
            self.assertLess(ratio, worse, kind)
            self.assertGreater(ratio, 0.97, kind)
            self.assertEqual(model.prompts, self.source.prompts)
            self.assertGreaterEqual(same, SHORT_ANSWERS, kind)
            sizes.append(os.path.getsize(path))
        self.assertEqual(sizes, sorted(sizes, reverse=True), "fewer bits are fewer bytes")

    def test_folders_of_fewer_bits_say_nearly_the_same(self):
        for kind, worse in (("FP8", 1.05), ("INT8", 1.05), ("INT4_ZP", 1.3)):
            path = self.path(kind)
            said = run("models", "quantize", MODEL, path, "--type", kind)
            self.assertEqual(said.returncode, 0, said)
            self.assertRegex(said.stdout, r"layer +matrices +error % +worst %")
            with open(os.path.join(path, "config.json"), encoding="utf-8") as file:
                self.assertEqual(json.load(file)["quantization_config"]["quant_method"], "compressed-tensors")
            model = Model(path, self.source.story)
            self.assertLess(model.perplexity / self.source.perplexity, worse, kind)
            self.assertEqual(model.prompts, self.source.prompts)
        self.assertIn("does not end in .gguf", self.refused("quantize", MODEL, self.path("x.gguf"), "--type", "FP8", code=2))
        self.assertIn("from a folder of F32, F16 or BF16", self.refused("quantize", self.path("FP8"), self.path("again"), "--type", "INT8"))

    def calibration(self, name, lines):
        with open(self.path(name), "w", encoding="utf-8") as file:
            file.write("\n".join(lines))
        return self.path(name)

    def test_calibration_keeps_more(self):
        texts = self.calibration("texts.jsonl", [json.dumps({"text": text} if i % 2 else text) for i, text in enumerate(TEXTS)])
        flags = ("--calibration", texts, "--calibration-length", "200")
        changes = {}
        for name, more in (("plain", ()), ("one", (*flags, "--num-threads", "1")), ("three", (*flags, "--num-threads", "3"))):
            said = run("models", "quantize", MODEL, self.path(name), "--type", "INT4", *more)
            self.assertEqual(said.returncode, 0, said)
            changes[name] = Model(self.path(name), self.source.story).perplexity / self.source.perplexity
        rows = re.findall(r"^ +\d+ +7 +([\d.]+) +([\d.]+) +0$", said.stdout, re.MULTILINE)
        self.assertEqual(len(rows), 8, said.stdout)
        plain, calibrated = (sum(float(row[i]) for row in rows) for i in (0, 1))
        self.assertLess(calibrated, 0.9 * plain, said.stdout)
        print(f"\nINT4: perplexity {changes}")
        self.assertLess(changes["three"], 1.2)
        self.assertEqual(tensors(self.path("one")), tensors(self.path("three")), "whatever the number of threads")
        self.assertNotEqual(tensors(self.path("one")), tensors(self.path("plain")))
        self.assertFalse([name for name in os.listdir(self.path("one")) if name.startswith(".")])

    def test_calibration_finds_scales_of_activations(self):
        texts = self.calibration("texts.txt", TEXTS)
        said = run("models", "quantize", MODEL, self.path("static"), "--type", "FP8_STATIC", "--calibration", texts, "--calibration-samples", "3")
        self.assertEqual(said.returncode, 0, said)
        with open(os.path.join(self.path("static"), "config.json"), encoding="utf-8") as file:
            group = json.load(file)["quantization_config"]["config_groups"]["group_0"]
        self.assertEqual((group["input_activations"]["dynamic"], group["input_activations"]["strategy"]), (False, "tensor"))
        scales = [name for name in tensors(self.path("static")) if name.endswith("_proj.input_scale")]
        self.assertEqual(len(scales), 8 * 7)
        self.assertLess(Model(self.path("static"), self.source.story).perplexity / self.source.perplexity, 1.05)

    def test_what_cannot_be_calibrated_is_told(self):
        def refused(*flags, code=1, kind="INT4"):
            return self.refused("quantize", MODEL, self.path("x"), "--type", kind, *flags, code=code)
        self.assertIn("none.txt", refused("--calibration", self.path("none.txt")))
        self.assertIn("have 0 tokens", refused("--calibration", self.calibration("empty.txt", [])))
        self.assertIn("but 512 are the least", refused("--calibration", self.calibration("short.txt", ["A few words."])))
        self.assertIn("line 2 of", refused("--calibration", self.calibration("bad.jsonl", ['"one"', '{"texts": 3}'])))
        texts = self.calibration("texts.txt", TEXTS)
        self.assertIn("--calibration-length is 4096", refused("--calibration", texts, "--calibration-length", "4096"))
        self.assertIn("give a file of texts", refused(kind="FP8_STATIC", code=2))
        self.assertIn("leave it out", self.refused("quantize", MODEL, self.path("x.gguf"), "--type", "Q4_0", "--calibration", texts, code=2))
        self.assertFalse(os.path.exists(self.path("x")))

    def test_a_gguf_is_quantised_as_its_folder_is(self):
        wide = self.made("convert", MODEL, self.path("wide.gguf"), "--type", "BF16")
        for source, name in ((MODEL, "a.gguf"), (wide, "b.gguf")):
            self.made("quantise", source, self.path(name), "--type", "Q4_1")
        with open(self.path("a.gguf"), "rb") as a, open(self.path("b.gguf"), "rb") as b:
            self.assertEqual(a.read()[-1_000_000:], b.read()[-1_000_000:])

    def test_what_is_there_is_kept_unless_it_is_forced(self):
        with open(self.path("model.gguf"), "w", encoding="utf-8") as file:
            file.write("mine")
        self.assertIn("--force", self.refused("quantize", MODEL, self.path("model.gguf")))
        self.assertEqual(os.path.getsize(self.path("model.gguf")), 4)
        self.made("quantize", MODEL, self.path("model.gguf"), "--force")
        self.assertGreater(os.path.getsize(self.path("model.gguf")), 1_000_000)
        self.assertEqual(os.listdir(self.folder), ["model.gguf"])

    def test_what_does_not_work_is_told(self):
        self.assertIn("name the model and the result", self.refused("convert", MODEL, code=2))
        self.assertIn("ends in .gguf", self.refused("quantize", MODEL, self.path("folder"), code=2))
        self.assertIn("Q8_0", self.refused("quantize", MODEL, self.path("x.gguf"), "--type", "Q3_K", code=2))
        self.assertIn("is a folder already", self.refused("convert", MODEL, self.path("folder")))
        self.assertIn("there is no folder", self.refused("convert", MODEL, self.path("none/x.gguf")))
        self.assertIn("has no tokenizer.json", self.refused("convert", os.path.join(ROOT, "tests/golden/models/gpt2"), self.path("x.gguf")))
        self.assertIn("there is no such folder or file", self.refused("convert", self.path("nothing"), self.path("x.gguf")))

    def test_help_lists_the_commands(self):
        said = run("models", "--help")
        self.assertEqual(said.returncode, 0, said)
        for command in ("list", "convert", "quantize"):
            self.assertIn(command, said.stdout)


if __name__ == "__main__":
    unittest.main()
