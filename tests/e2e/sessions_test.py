#!/usr/bin/env python3
"""Sessions and request ids from outside, with the model that ships: what continues, and what is refused as SGLang
refuses it."""
import json
import threading
import unittest

from harness import Server, wait_until

GREEDY = {"temperature": 0, "max_new_tokens": 6, "ignore_eos": True}


class SessionTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server()

    @classmethod
    def tearDownClass(cls):
        cls.server.__exit__()

    def ids(self, text):
        return self.server.post("/tokenize", {"prompt": text, "add_special_tokens": False})["tokens"]

    def error(self, path, body):
        """What a refusal says."""
        status, _, text = self.server.request("POST", path, body)
        self.assertEqual(status, 400, text)
        answer = json.loads(text)
        return answer.get("error", answer)["message"]

    def turn(self, session, ids, **params):
        return {"input_ids": ids, "sampling_params": GREEDY, "session_params": {"id": session, **params}}

    def generate(self, *args, **params):
        return self.server.post("/generate", self.turn(*args, **params))

    def open(self, **more):
        return self.server.post("/open_session", {"capacity_of_str_len": 4096, **more})

    def test_a_streaming_session_only_appends(self):
        session = self.open(streaming=True)
        begin, more = self.ids("Once upon a time"), self.ids(" and then")
        # Of the first turn too, and while there is nothing to continue.
        for field, value in (("replace", True), ("offset", 1), ("offset", -1), ("drop_previous_output", True)):
            self.assertIn(f"session_params.{field}: Streaming sessions do not support {field}",
                          self.error("/generate", self.turn(session, begin, **{field: value})))
        first = self.generate(session, begin)
        for field, value in (("replace", True), ("offset", 2), ("offset", -1), ("drop_previous_output", True)):
            for stream in (False, True):
                message = self.error("/generate", {**self.turn(session, more, **{field: value}), "stream": stream})
                self.assertIn(f"session_params.{field}", message)
        for path, body in (("/v1/completions", {"prompt": " and then"}),
                           ("/v1/chat/completions", {"messages": [{"role": "user", "content": "Hi"}]})):
            self.assertIn("session_params.offset",
                          self.error(path, {**body, "session_params": {"id": session, "offset": 3}}))
        # The refused turns have left nothing, and fields that ask for nothing are allowed.
        second = self.generate(session, more, offset=0, replace=False, drop_previous_output=False)
        whole = begin + first["output_ids"] + more
        self.assertEqual(second["meta_info"]["prompt_tokens"], len(whole))
        alone = self.server.post("/generate", {"input_ids": whole, "sampling_params": GREEDY})
        self.assertEqual(second["output_ids"], alone["output_ids"])

    def test_another_session_takes_all_three(self):
        session = self.open()
        begin, more = self.ids("Once upon a time"), self.ids(" and then")
        first = self.generate(session, begin)
        rid, count = first["meta_info"]["id"], lambda answer: answer["meta_info"]["prompt_tokens"]
        self.assertEqual(count(self.generate(session, more, rid=rid, offset=2)), 2 + len(more))
        self.assertEqual(count(self.generate(session, more, rid=rid, drop_previous_output=True)),
                         len(begin) + len(more))
        self.assertEqual(count(self.generate(session, more, rid=rid, replace=True)),
                         len(begin) + len(first["output_ids"]) + len(more))

    def answer_ids(self, **body):
        answers = self.server.post("/generate", {"sampling_params": GREEDY, **body})
        return [answer["meta_info"]["id"] for answer in answers]

    def test_each_prompt_and_each_sample_has_an_id(self):
        two = {**GREEDY, "n": 2}
        self.assertEqual(self.answer_ids(text=["a", "b"], rid=["x", "y"]), ["x", "y"])
        self.assertEqual(self.answer_ids(text=["a", "b"], rid="z"), ["z_0", "z_1"])
        self.assertEqual(self.answer_ids(text="a", rid="z", sampling_params=two), ["z_0", "z_1"])
        self.assertEqual(self.answer_ids(text=["a", "b"], rid=["x", "y"], sampling_params=two),
                         ["x_0", "x_1", "y_0", "y_1"])
        self.assertEqual(len(set(self.answer_ids(text=["a", "b"], sampling_params=two))), 4)
        # An id is free again once its request has ended.
        for _ in range(2):
            self.assertEqual(self.answer_ids(text=["a", "b"], rid=["x", "y"]), ["x", "y"])

    def test_a_list_of_ids_has_one_for_each_prompt_and_none_twice(self):
        two = {**GREEDY, "n": 2}
        # The samples of one prompt are one request.
        self.assertIn("rid has 2 entries for 1 prompt",
                      self.error("/generate", {"text": "a", "rid": ["x", "y"], "sampling_params": two}))
        self.assertIn("rid has 1 entry for 2 prompts", self.error("/generate", {"text": ["a", "b"], "rid": ["x"]}))
        repeated = "Duplicate request IDs detected within the request: ['x']"
        for stream in (False, True):
            body = {"text": ["a", "b", "c"], "rid": ["x", "y", "x"], "sampling_params": GREEDY, "stream": stream}
            self.assertIn(repeated, self.error("/generate", body))
        self.assertIn(repeated, self.error("/v1/completions", {"prompt": ["a", "b"], "rid": ["x", "x"]}))
        # No part of a refused batch holds an id.
        self.assertEqual(self.answer_ids(text=["a", "b"], rid=["x", "y"]), ["x", "y"])

    def test_an_id_in_use_is_refused(self):
        # What is paused has surely not ended when the second request comes.
        self.server.request("POST", "/pause_generation", {"mode": "in_place"})
        body, answers = {"text": "a", "rid": "same", "sampling_params": GREEDY}, []
        owner = threading.Thread(target=lambda: answers.append(self.server.post("/generate", body)))
        owner.start()
        try:
            wait_until(lambda: self.waiting() == 1, "the first request waits")
            for batch in (body, {**body, "text": ["a", "b"], "rid": ["other", "same"]}):
                self.assertIn("Duplicate request ID", self.error("/generate", batch))
        finally:
            self.server.request("POST", "/continue_generation", {})
            owner.join()
        self.assertEqual(answers[0]["meta_info"]["id"], "same")
        self.assertEqual(len(answers[0]["output_ids"]), GREEDY["max_new_tokens"])
        self.assertEqual(self.answer_ids(text=["a", "b"], rid=["other", "same"]), ["other", "same"])

    def waiting(self):
        return json.loads(self.server.get("/server_info")[2])["internal_states"][0]["num_waiting_reqs"]


if __name__ == "__main__":
    unittest.main()
