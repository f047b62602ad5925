#!/usr/bin/env python3
"""Large bodies at once: the process stays within the account of bodies, whatever their JSON is made of, and
gives the memory back."""
import http.client
import threading
import unittest

import harness

MIB = 1 << 20
BODY_BYTES = 30 * MIB
ACCOUNT_BYTES = 120 * MIB
OTHER_BYTES = 80 * MIB  # stacks, buffers of sockets, the tokens of a text that is allowed
AT_ONCE = 3


def filled(begin, part, end):
    return begin + part * ((BODY_BYTES - len(begin) - len(end)) // len(part)) + end


# Each with the statuses that may come: refused for good, for now, or answered.
BODIES = {
    "one text": (filled(b'{"text":"', b"a", b'"}'), {400, 503}),
    "texts": (filled(b'{"text":[', b'"a",', b'"a"]}'), {400}),
    "token ids": (filled(b'{"input_ids":[', b"1,", b"1]}"), {400}),
    "ignored numbers": (filled(b'{"text":"a","x":[', b"0,", b"0]}"), {400}),
    "ignored lists": (filled(b'{"text":"a","x":[', b"[],", b"0]}"), {400}),
    "ignored objects": (filled(b'{"text":"a","x":[', b'{"a":0},', b"0]}"), {400}),
    "an ignored text": (filled(b'{"text":"a","sampling_params":{"max_new_tokens":1},"x":"', b"a", b'"}'), {200, 503}),
}


class BodyMemoryTest(unittest.TestCase):
    def setUp(self):
        self.server = harness.Server("--max-bodies-bytes", str(ACCOUNT_BYTES))
        self.addCleanup(self.server.__exit__)
        self.assertEqual(self.post(b'{"text":"a","sampling_params":{"max_new_tokens":1}}'), 200)

    def post(self, body):
        connection = http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=harness.PATIENCE_S)
        try:
            connection.request("POST", "/generate", body, {"Content-Type": "application/json"})
            return connection.getresponse().status
        except (BrokenPipeError, ConnectionResetError):
            return 503  # refused before the body was read
        finally:
            connection.close()

    def memory(self, key):
        with open(f"/proc/{self.server.process.pid}/status", encoding="ascii") as f:
            return next(int(line.split()[1]) << 10 for line in f if line.startswith(key + ":"))

    def reset_peak(self):
        with open(f"/proc/{self.server.process.pid}/clear_refs", "w", encoding="ascii") as f:
            f.write("5")

    def test_every_kind_at_once_stays_within_the_account(self):
        before = self.memory("VmRSS")
        for name, (body, expected) in BODIES.items():
            with self.subTest(name):
                self.reset_peak()
                statuses = []
                threads = [threading.Thread(target=lambda: statuses.append(self.post(body))) for _ in range(AT_ONCE)]
                for thread in threads:
                    thread.start()
                for thread in threads:
                    thread.join()
                self.assertEqual(len(statuses), AT_ONCE)
                self.assertLessEqual(set(statuses), expected | {503})
                self.assertTrue(set(statuses) & expected, statuses)
                self.assertLess(self.memory("VmHWM"), (before + ACCOUNT_BYTES + OTHER_BYTES) * 1.1)
                harness.wait_until(lambda: self.server.metric("espalier:memory_bodies_bytes") == 0, "the account is empty")
        self.assertLess(self.memory("VmRSS"), before + OTHER_BYTES)


if __name__ == "__main__":
    unittest.main()
