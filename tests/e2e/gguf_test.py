#!/usr/bin/env python3
"""The chat template inside a GGUF file, from the command to the prompt that the engine is given."""
import json
import os
import tempfile
import unittest

from gguf_writer import write_gguf
from harness import Server, run

# What it makes of MESSAGES begins unlike anything else here would.
TEMPLATE = ("{{ bos_token }}{% for m in messages %}<|{{ m.role }}|>{{ m.content | upper }}{{ eos_token }}"
            "{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}")
MESSAGES = [{"role": "user", "content": "where do herons stand?"}]
PROMPT = "<s><|user|>WHERE DO HERONS STAND?</s><|assistant|>"
OTHER = "{{ eos_token }}{% for m in messages %}[{{ m.content }}]{% endfor %}"
OTHER_PROMPT = "</s>[where do herons stand?]"
BROKEN = "{{ bos_token }}\n{% for m in messages %}{{ m.role }"
BROKEN_SAID = "the chat template in the model's file: chat template: line 2: "
GREEDY = {"temperature": 0, "max_new_tokens": 8, "ignore_eos": True}


class GgufTemplateTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def model(self, name, chat_template=None):
        path = os.path.join(self.folder, name + ".gguf")
        write_gguf(path, chat_template)
        return path

    def file(self, name, text):
        path = os.path.join(self.folder, name)
        with open(path, "w", encoding="utf-8") as f:
            f.write(text)
        return path

    def failure(self, result):
        self.assertEqual(result.returncode, 1, result)
        self.assertEqual(result.stdout, "")
        return result.stderr

    def assert_prompt(self, server, prompt):
        """A chat's prompt is this text: all of it is cached behind the chat, and it answers the same."""
        server.request("POST", "/flush_cache")
        answer = server.post("/v1/chat/completions", {
            "messages": MESSAGES, "temperature": 0, "max_tokens": 8, "ignore_eos": True})
        native = server.post("/generate", {"text": prompt, "sampling_params": GREEDY})
        told = native["meta_info"]
        self.assertEqual(told["prompt_tokens"], answer["usage"]["prompt_tokens"])
        self.assertEqual(told["cached_tokens"], told["prompt_tokens"] - 1)
        self.assertEqual(native["text"], answer["choices"][0]["message"]["content"])

    def test_a_chat_is_what_it_says(self):
        path = self.model("own", TEMPLATE)
        messages = self.file("messages.json", json.dumps(MESSAGES))
        printed = run("template", "--chat-template", path, "--messages", messages)
        self.assertEqual((printed.returncode, printed.stdout), (0, PROMPT), printed)
        with Server("--model-path", path) as server:
            self.assert_prompt(server, PROMPT)
            # That the measure can fail: a text that ends otherwise is not all cached.
            other = server.post("/generate", {"text": PROMPT[:-20] + "!" * 20, "sampling_params": GREEDY})
            self.assertLess(other["meta_info"]["cached_tokens"], other["meta_info"]["prompt_tokens"] - 15)
        flags = ("--model-path", path, "--temperature", "0", "--max-new-tokens", "8")
        talk = run("chat", *flags, stdin=MESSAGES[0]["content"] + "\n")
        self.assertEqual(talk.returncode, 0, talk)
        self.assertEqual(talk.stdout.strip("\n"), run("generate", PROMPT, *flags).stdout.strip("\n"))
        self.assertTrue(json.loads(run("inspect", "--model-path", path, "--json").stdout)["has_chat_template"])

    def test_another_template_takes_its_place(self):
        own, none = self.model("own", TEMPLATE), self.model("none")
        file = self.file("other.jinja", OTHER)
        for path, stated in ((own, file), (own, OTHER), (none, file)):
            with Server("--model-path", path, "--chat-template", stated) as server:
                self.assert_prompt(server, OTHER_PROMPT)

    def test_a_wrong_one_is_told_and_the_rest_is_served(self):
        path = self.model("broken", BROKEN)
        messages = self.file("messages.json", json.dumps(MESSAGES))
        self.assertIn("chat template: line 2: ", self.failure(
            run("template", "--chat-template", path, "--messages", messages)))
        self.assertIn(BROKEN_SAID, self.failure(run("chat", "--model-path", path, stdin="Hi\n")))
        with Server("--model-path", path) as server:
            status, _, text = server.request("POST", "/v1/chat/completions", {"messages": MESSAGES})
            self.assertEqual(status, 400, text)
            self.assertIn(BROKEN_SAID, json.loads(text)["message"])
            self.assertIn("--chat-template", text)
            server.post("/v1/completions", {"prompt": "heron", "max_tokens": 2})
        with Server("--model-path", path, "--chat-template", OTHER) as server:
            self.assert_prompt(server, OTHER_PROMPT)

    def test_what_it_refuses_is_told_to_the_client(self):
        path = self.model("raises", "{{ raise_exception('herons only, no ' ~ messages[0].role) }}")
        with Server("--model-path", path) as server:
            status, _, text = server.request("POST", "/v1/chat/completions", {"messages": MESSAGES})
            self.assertEqual(status, 400, text)
            self.assertIn("herons only, no user", json.loads(text)["message"])

    def test_where_there_is_none_it_is_asked_for(self):
        path = self.model("none")
        said = self.failure(run("chat", "--model-path", path, stdin="Hi\n"))
        self.assertIn("none.gguf holds no chat template (tokenizer.chat_template)", said)
        self.assertIn("--chat-template", said)
        with Server("--model-path", path) as server:
            status, _, text = server.request("POST", "/v1/chat/completions", {"messages": MESSAGES})
            self.assertEqual(status, 400, text)
            self.assertIn("tokenizer.chat_template", json.loads(text)["message"])


if __name__ == "__main__":
    unittest.main()
