#!/usr/bin/env python3
"""The commands for people at a terminal: completion, manual, models, doctor, top, and chat on a pseudo-terminal."""
import fcntl
import hashlib
import json
import os
import pty
import re
import select
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import time
import unittest

import harness
from harness import BINARY, run

COMMANDS = ("serve", "generate", "chat", "run", "inspect", "tokenize", "template", "models list", "models convert", "models quantize",
            "top", "replay", "doctor", "completion", "manual", "bench serving", "bench offline", "grammar check", "grammar explain")


def flags_of(command):
    """The flags that a command's help lists, by their first names."""
    lines = run(*command.split(), "--help").stdout.splitlines()
    return {match.group(1) for match in (re.match(r"\s+(?:-\w,)?\s*(--[a-z][a-z0-9-]*)", line) for line in lines) if match}


class Terminal:
    """A command on a pseudo-terminal of so many columns and rows. Reads what it writes, escape sequences too."""

    def __init__(self, *args, columns=100, rows=30, env=None):
        self.text = ""
        pid, self.descriptor = pty.fork()
        if pid == 0:
            environment = harness.clean_environment({"TERM": "xterm-256color", "LC_ALL": "C.UTF-8", **(env or {})})
            os.execve(BINARY, [BINARY, *args], environment)
        self.pid, self.status = pid, None
        self.resize(columns, rows)

    def resize(self, columns, rows):
        fcntl.ioctl(self.descriptor, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def read(self, seconds):
        """Whether something came within so long."""
        if not select.select([self.descriptor], [], [], seconds)[0]:
            return False
        try:
            self.text += os.read(self.descriptor, 1 << 16).decode(errors="replace")
        except OSError:  # the other side is closed
            return False
        return True

    def wait(self, pattern, timeout=harness.PATIENCE_S):
        """The first match of the pattern in what comes from now on; what is before it is forgotten."""
        deadline = time.monotonic() + timeout
        while not (match := re.search(pattern, self.text, re.DOTALL)):
            if time.monotonic() > deadline or (not self.read(0.2) and self.ended()):
                raise AssertionError(f"no {pattern!r} in {self.text!r}")
        self.text = self.text[match.end():]
        return match

    def send(self, text):
        os.write(self.descriptor, text.encode())

    def ended(self):
        if self.status is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.status = os.waitstatus_to_exitcode(status)
        return self.status is not None

    def exit_status(self):
        deadline = time.monotonic() + harness.PATIENCE_S
        while not self.ended() and time.monotonic() < deadline:
            self.read(0.05)
        return self.status

    def exit_status_at_end_of_input(self):
        """Ends the input until the command does: what is typed before its prompt is there may be lost."""
        deadline = time.monotonic() + harness.PATIENCE_S
        while not self.ended() and time.monotonic() < deadline:
            try:
                self.send("\x04")
            except OSError:  # it has ended meanwhile
                pass
            for _ in range(20):
                if not self.ended():
                    self.read(0.05)
        return self.exit_status()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if not self.ended():
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
        os.close(self.descriptor)


class Completion(unittest.TestCase):
    def test_scripts_hold_every_command_and_flag(self):
        scripts = {shell: run("completion", shell).stdout for shell in ("bash", "zsh", "fish")}
        for command in COMMANDS:
            for flag in flags_of(command) - {"--help"}:
                for shell, script in scripts.items():
                    self.assertIn(flag if shell != "fish" else f"-l {flag[2:]} ", script, f"{command} in {shell}")
        self.assertEqual(run("completion", "csh").returncode, 2)
        self.assertEqual(run("completion").returncode, 2)

    def completions(self, *words):
        """What bash completes the last word to."""
        script = (f"source <({BINARY} completion bash)\nCOMP_WORDS=({' '.join(map(json.dumps, words))})\n"
                  f"COMP_CWORD={len(words) - 1}\n_espalier\nprintf '%s\\n' \"${{COMPREPLY[@]}}\"")
        result = subprocess.run(["bash", "--norc", "-c", "compopt() { :; }\n" + script], capture_output=True, text=True, check=True)
        self.assertEqual(result.stderr, "")
        return result.stdout.split()

    def test_bash_completes(self):
        self.assertEqual(self.completions("espalier", "ser"), ["serve"])
        self.assertEqual(self.completions("espalier", "grammar", "exp"), ["explain"])
        self.assertEqual(self.completions("espalier", "serve", "--enable-metr"), ["--enable-metrics"])
        self.assertEqual(self.completions("espalier", "serve", "--schedule-policy", "lp"), ["lpm"])
        self.assertIn("--svg", self.completions("espalier", "grammar", "explain", "--"))
        self.assertNotIn("--svg", self.completions("espalier", "grammar", "check", "--"))
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "model.gguf")
            open(path, "w", encoding="utf-8").close()
            self.assertEqual(self.completions("espalier", "serve", "--model-path", folder + "/mo"), [path])

    def test_other_shells_take_their_scripts(self):
        for shell, check in (("zsh", ["zsh", "-n"]), ("fish", ["fish", "--no-execute"])):
            if shutil.which(shell) is None:
                continue
            with tempfile.NamedTemporaryFile("w", suffix=shell) as f:
                f.write(run("completion", shell).stdout)
                f.flush()
                result = subprocess.run([*check, f.name], capture_output=True, text=True, check=False)
                self.assertEqual((result.returncode, result.stderr), (0, ""), shell)


class Manual(unittest.TestCase):
    def test_pages_state_every_flag(self):
        with tempfile.TemporaryDirectory() as folder:
            self.assertEqual(run("manual", "--output", folder).returncode, 0)
            pages = set(os.listdir(folder))
            self.assertIn("espalier.1", pages)
            for command in COMMANDS:
                name = f"espalier-{command.replace(' ', '-')}.1"
                self.assertIn(name, pages)
                with open(os.path.join(folder, name), encoding="utf-8") as f:
                    page = f.read()
                for flag in flags_of(command) - {"--help"}:
                    self.assertIn(flag.replace("-", "\\-"), page, command)
                self.assertEqual(page, run("manual", *command.split()).stdout)
            if shutil.which("groff"):
                for name in pages:
                    checked = subprocess.run(["groff", "-man", "-ww", "-z", "-Tutf8", os.path.join(folder, name)], capture_output=True,
                                             text=True, check=False)
                    self.assertEqual(checked.stderr, "", name)
        self.assertEqual(run("manual", "nonsense").returncode, 2)


class Models(unittest.TestCase):
    def cache(self, folder, content):
        """A cache as huggingface_hub makes it, with one file of one model."""
        commit, etag = "a" * 40, hashlib.sha256(b"content").hexdigest()
        repo = os.path.join(folder, "models--org--name")
        for part in ("blobs", "refs", f"snapshots/{commit}"):
            os.makedirs(os.path.join(repo, part))
        with open(os.path.join(repo, "blobs", etag), "wb") as f:
            f.write(content)
        with open(os.path.join(repo, "refs", "main"), "w", encoding="utf-8") as f:
            f.write(commit)
        os.symlink(f"../../blobs/{etag}", os.path.join(repo, "snapshots", commit, "model.safetensors"))

    def test_the_cache_is_listed_and_verified(self):
        with tempfile.TemporaryDirectory() as folder:
            self.cache(folder, b"content")
            listed = json.loads(run("models", "--download-dir", folder, "--json").stdout)
            self.assertEqual([(m["repo"], m["revisions"], m["size_bytes"]) for m in listed["cached"]], [("org/name", ["main"], 7)])
            self.assertEqual(len(listed["local"]), 2, "the models that ship")
            result = run("models", "--download-dir", folder, "--verify", "org/name")
            self.assertEqual(result.returncode, 0, result.stderr)
            self.assertIn("1 model verified", result.stdout)
            self.assertEqual(run("models", "--download-dir", folder, "org/other").returncode, 1)

    def test_a_damaged_file_is_found(self):
        with tempfile.TemporaryDirectory() as folder:
            self.cache(folder, b"contenT")
            result = run("models", "--download-dir", folder, "--verify")
            self.assertEqual(result.returncode, 1)
            self.assertRegex(result.stderr, "model.safetensors: the content does not match its checksum; delete ")
            problems = json.loads(run("models", "--download-dir", folder, "--verify", "--json").stdout)["cached"][0]["problems"]
            self.assertEqual(len(problems), 1)

    def test_folders_of_models_are_listed(self):
        with tempfile.TemporaryDirectory() as folder:
            os.makedirs(os.path.join(folder, "deep", "model"))
            for name, content in (("deep/model/config.json", "{}"), ("deep/model/model.safetensors", "12345"), ("a.gguf", "123"), ("b.txt", "1")):
                with open(os.path.join(folder, name), "w", encoding="utf-8") as f:
                    f.write(content)
            listed = json.loads(run("models", "--download-dir", folder, "--folder", folder, "--json").stdout)["local"][2:]
            self.assertEqual([(os.path.relpath(m["path"], folder), m["size_bytes"]) for m in listed], [("a.gguf", 3), ("deep/model", 5)])
            self.assertEqual(run("models", "--folder", folder + "/none").returncode, 2)


class Doctor(unittest.TestCase):
    def test_findings(self):
        findings = {each["what"]: each for each in json.loads(run("doctor", "--offline", "--json", "--port", "0").stdout)}
        for what in ("Processor", "Memory", "GPU driver", "GPU", "NCCL", "Port", "Model", "Hub's cache", "Hub", "Open files", "Huge pages"):
            self.assertIn(what, findings)
        self.assertEqual(findings["Model"]["health"], "good")
        self.assertIn("offline", findings["Hub"]["found"])

    def test_a_port_that_is_taken_is_a_problem(self):
        with harness.Server() as server:
            result = run("doctor", "--offline", "--port", str(server.port))
            self.assertEqual(result.returncode, 1)
            self.assertRegex(result.stdout, r"problem\s+Port.*\n\s+-> ")

    def test_a_hub_that_does_not_answer_is_noted_at_once(self):
        started = time.monotonic()
        result = run("doctor", "--json", "--port", "0", env={"HF_ENDPOINT": "http://127.0.0.1:9"})
        self.assertLess(time.monotonic() - started, 20)
        hub = next(each for each in json.loads(result.stdout) if each["what"] == "Hub")
        self.assertEqual(hub["health"], "note")
        self.assertIn("HF_HUB_OFFLINE", hub["advice"])


class Top(unittest.TestCase):
    def test_once(self):
        with harness.Server() as server:
            server.post("/generate", {"text": "abc", "rid": "mine", "sampling_params": {"max_new_tokens": 3}})
            result = run("top", "--url", f"http://127.0.0.1:{server.port}", "--interval", "0.1")
            self.assertEqual(result.returncode, 0, result.stderr)
            self.assertNotIn("\x1b", result.stdout)
            self.assertRegex(result.stdout, r"requests +0 running +0 waiting +1 in all")
            self.assertRegex(result.stdout, r"mine +length +4 +0 +3 ")
        gone = run("top", "--url", f"http://127.0.0.1:{server.port}", "--once")
        self.assertEqual(gone.returncode, 1)

    def test_the_key_of_the_administrator_shows_requests(self):
        with harness.Server("--api-key", "user", "--admin-api-key", "admin") as server:
            url = f"http://127.0.0.1:{server.port}"
            self.assertIn("administrator's key", run("top", "--url", url, "--api-key", "user", "--interval", "0.1").stdout)
            self.assertNotIn("administrator's key", run("top", "--url", url, "--api-key", "admin", "--interval", "0.1").stdout)

    def test_it_draws_resizes_pauses_and_ends(self):
        with harness.Server() as server, Terminal("top", "--url", f"http://127.0.0.1:{server.port}", "--interval", "0.2") as top:
            top.wait(r"\x1b\[\?1049h")
            top.wait("espalier top.*REQUEST.*TIME")
            top.resize(60, 10)
            top.wait("espalier top")
            server.post("/generate", {"text": "abc", "sampling_params": {"max_new_tokens": 3}})
            top.wait("1 in all")
            picture = top.wait(r"\x1b\[H(.*?)\x1b\[J").group(1)
            lines = [re.sub(r"\x1b\[[0-9;]*[A-Za-z]", "", line).rstrip("\r") for line in picture.split("\r\n")]
            self.assertLessEqual(len(lines), 10)
            self.assertLessEqual(max(map(len, lines)), 60)
            top.send("p")
            top.wait("paused")
            top.send("q")
            top.wait(r"\x1b\[\?1049l")
            self.assertEqual(top.exit_status(), 0)

    def test_it_goes_on_when_the_server_is_gone(self):
        with harness.Server() as server, Terminal("top", "--url", f"http://127.0.0.1:{server.port}", "--interval", "0.1") as top:
            top.wait("REQUEST")
            server.stop(signal.SIGKILL)
            top.wait("cannot|refused|closed|broke|connect")
            top.send("\x03")
            top.wait(r"\x1b\[\?1049l")
            self.assertEqual(top.exit_status(), 0)


class Chat(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.env = {"XDG_STATE_HOME": self.folder.name}

    def tearDown(self):
        self.folder.cleanup()

    def chat(self, *args):
        return Terminal("chat", "--temperature", "0", "--max-new-tokens", "12", *args, env=self.env)

    def test_an_end_of_input_that_came_early_is_no_text(self):
        with self.chat() as chat:
            chat.wait("/help")
            chat.wait("> ")
            chat.send("\x04")  # at once, or as NUL
            chat.send("\0")
            self.assertEqual(chat.exit_status_at_end_of_input(), 0)

    def test_lines_are_edited_and_remembered(self):
        with self.chat() as chat:
            chat.wait("/help")
            chat.wait("> ")
            chat.send("Helo\x1b[Dl\r")  # the cursor goes left, and an l is put in
            chat.wait("Hello.*tok/s")
            chat.wait("> ")
            chat.send("/res\t\r")
            chat.wait("/res.*?et ")  # what Tab adds
            chat.wait("> $")
            self.assertEqual(chat.exit_status_at_end_of_input(), 0)
        history = os.path.join(self.folder.name, "espalier", "chat_history")
        self.assertEqual(os.stat(history).st_mode & 0o077, 0, "a history is private")
        with open(history, encoding="utf-8") as f:
            self.assertIn("Hello", f.read())
        with self.chat() as chat:  # another process
            chat.wait("> ")
            chat.send("\x1b[A\x1b[A\r")  # up twice
            chat.wait("Hello.*tok/s")
            chat.send("/exit\r")
            self.assertEqual(chat.exit_status(), 0)

    def test_several_lines_and_commands(self):
        schema = os.path.join(self.folder.name, "schema.json")
        saved = os.path.join(self.folder.name, "saved.json")
        with open(schema, "w", encoding="utf-8") as f:
            json.dump({"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"], "additionalProperties": False}, f)
        with self.chat() as chat:
            chat.wait("> ")
            chat.send('"""one\r')
            chat.wait(r"\| ")
            chat.send('two"""\r')
            chat.wait("tok/s")
            chat.send("three\\\r")
            chat.wait(r"\| ")
            chat.send("four\r")
            chat.wait("tok/s")
            chat.send(f"/json {schema}\r")
            chat.wait("> ")
            chat.send("/retry\r")
            chat.wait(r'\{ ?"ok": ?(true|false) ?\}.*tok/s')
            chat.send("/json nowhere.json\r")
            chat.wait("error: nowhere.json")
            chat.send("/nonsense\r")
            chat.wait("there is no command /nonsense")
            chat.send(f"/save {saved}\r")
            deadline = time.monotonic() + harness.PATIENCE_S
            while not (os.path.exists(saved) and os.path.getsize(saved)) and time.monotonic() < deadline:
                chat.read(0.05)
        self.assertEqual(self.questions_in(saved), ["one\ntwo", "three\nfour"])
        again = os.path.join(self.folder.name, "again.json")
        result = run("chat", "--quiet", stdin=f"/load {saved}\n/undo\n/save {again}\n", env=self.env)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(self.questions_in(again), ["one\ntwo"])

    @staticmethod
    def questions_in(path):
        with open(path, encoding="utf-8") as f:
            return [message["content"] for message in json.load(f) if message["role"] == "user"]

    def test_an_interrupt_ends_the_answer_alone(self):
        with Terminal("chat", "--ignore-eos", env=self.env) as chat:
            chat.wait("> ")
            chat.send("1, 2, 3?\r")  # no echo of it, however often the line is drawn, looks like an answer
            chat.wait("[a-z]{3,} [a-z]{2,}")
            chat.send("\x03")
            chat.wait("tok/s")
            chat.wait("> ")
            chat.send("/exit\r")
            self.assertEqual(chat.exit_status(), 0)

    def test_a_pipe_is_answered_line_by_line(self):
        result = run("chat", "--temperature", "0", "--max-new-tokens", "4", "--quiet", stdin="Hi\n/reset\nHi\n", env=self.env)
        answers = result.stdout.strip().splitlines()
        self.assertEqual(len(answers), 2, result.stdout)
        self.assertEqual(answers[0], answers[1])
        self.assertFalse(os.path.exists(os.path.join(self.folder.name, "espalier")), "a pipe leaves no history")


if __name__ == "__main__":
    sys.exit(unittest.main(verbosity=2))
