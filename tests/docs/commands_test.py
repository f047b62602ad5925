#!/usr/bin/env python3
"""Runs every shell command of README.md and docs/*.md as a reader would, against servers of the model that ships.

  commands_test.py [--list] [FILE ...]     --list: only prints each command, and the reason where it is not run

A command is a line of an indented or fenced block that begins with a program of PROGRAMS, with the lines that continue
it. `espalier serve` and `route` run until the file's next one on their port; ports 3000N become free ones. What commands
read is made by ingredients.py. not_run.txt has the reason for each command that does not run; a row that matches nothing
fails, and so does a command in a block of another kind."""
import base64
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path[:0] = [str(ROOT / "tests/e2e"), str(ROOT / "tests/docs")]
from harness import BENCH_BINARY, BINARY, PATIENCE_S, clean_environment  # noqa: E402
import ingredients  # noqa: E402

FILES = ["README.md", "SECURITY.md", "CONTRIBUTING.md", "python/README.md", *sorted(
    path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").glob("**/*.md") if "notes" not in path.parts)]
PROGRAMS = re.compile(r"(?:[A-Z][A-Z_]+=\S+ )*(?:sudo |time )?(espalier|curl|cc|pip|python3|cmake|ctest|git|tar|apt|source|ninja|systemctl|skopeo|docker|"
                      r"podman|build/release/\S+|tools/\S+|bench/\S+|tests/\S+/run|\./\w+)(?= |$)")
PICTURE = base64.b64encode((ingredients.PICTURES / "shapes.png").read_bytes()).decode()
# What an example leaves to its reader, or what makes it short: (expression, what stands in its place).
FILLED_IN = [
    (r"^(build/release/)?espalier ", "espalier "),
    (r"^build/release/espalier_bench host", f"{BENCH_BINARY} host --running 8 --waiting 248 --context 64 --output-len 8 --steps 20"),
    (r"^build/release/espalier_bench radix", f"{BENCH_BINARY} radix --max-nodes 1000 --rounds 1"),
    (r"^build/release/espalier_bench workloads", f"{BENCH_BINARY} workloads --only llm_judge --scale 0.01"),
    (r"^build/release/espalier_bench overhead", f"{BENCH_BINARY} overhead --requests 2 --prompt-len 32 --output-len 4 --repeats 2"),
    (r"^build/release/espalier_bench quality", f"{BENCH_BINARY} quality --texts 2 --tokens 8"),
    (r"^espalier bench serving", "espalier bench serving --num-prompts 4 --port 30000"),
    (r"^espalier bench offline (.*)--scale 0.5", r"espalier bench offline \1--scale 0.02"),
    (r"^espalier top", "espalier top --once --url http://127.0.0.1:30000"),
    (r"10\.0\.0\.1:3000\d http://10\.0\.0\.2:3000\d", "127.0.0.1:30001 http://127.0.0.1:30002"),
    (r"tcp://\*:5557", "tcp://*:30004"),
    (r"tcp://\*:5558", "tcp://*:30005"),
    (r"--ext-proc 9002", "--ext-proc 30003"),
    (r"--model-path cross-encoder/ms-marco-MiniLM-L-6-v2", f"--model-path {ROOT}/tests/golden/texts/bert_rerank"),
    (r"--model-path openai/whisper-small", f"--model-path {ROOT}/tests/golden/speech/multilingual"),
    (r"--model-path MiMo-7B-RL", f"--model-path {ROOT}/tests/golden/mtp/mimo --skip-tokenizer-init --device cpu"),
    (r"--model-path Qwen2.5-7B-Instruct --device cpu", f"--model-path {ROOT}/tests/golden/models/llama_tied_llama3 --skip-tokenizer-init --device cpu"),
    (r"--speculative-draft-model-path Qwen2.5-0.5B-Instruct", f"--speculative-draft-model-path {ROOT}/tests/golden/models/qwen3_head_dim"),
    (r"/var/(lib|cache)/espalier", r"var/\1/espalier"),
    (r"--hicache-disk-size 100", "--hicache-disk-size 1"),
    (r"ESPALIER_(ADMIN_)?API_KEY=\.\.\.", r"ESPALIER_\1API_KEY=sk-1"),
    (r"--host 0\.0\.0\.0", "--host 127.0.0.1"),
    (r"^(espalier replay requests\.jsonl)(?! --url)", r"\1 --url http://127.0.0.1:30000"),
    (r"^espalier replay requests\.jsonl", "until [ -s requests.jsonl ]; do sleep 0.02; done; espalier replay requests.jsonl"),
    (r"llava-hf/llava-1\.5-7b-hf", "seeing"),
    (r"iVBOR\.\.\.", PICTURE),
    (r"\[\.\.\.\]", '[{"role": "user", "content": "Hi"}]'),
    (r"(--model-path checkpoints/\S+)", r"\1 --device cpu"),
    (r"(models convert \S+) my-folder(?= |$)", r"\1 my-converted-folder"),
    (r"(models quantize my-folder) my-folder-Q4", r"\1 my-quantised-folder"),
    (r"--model-path my-folder (?=--tp-size 2 +#|--dp-size 2 +#)", "--model-path my-folder --device cpu "),
    (r"--model-path my-folder (?=.*--ep-size)",
     f"--model-path {ROOT}/tests/golden/models/qwen3_moe --dtype float32 --skip-tokenizer-init --device cpu "),
    (r"^(curl \S+/weights_checker .*\"compare\".*)", r"! \1"),  # a 400, for the tensors were reset before
    (r"\b8998\b", "30005"),
    (r"^(curl localhost:30000/drain .*)http://10\.0\.0\.3:30000", r"\1http://127.0.0.1:30002"),
    (r"http://10\.0\.0\.3:30000", "http://127.0.0.1:30003"),
    (r"/workers/ID", "/workers/$(curl localhost:30000/workers | grep -o '\"id\":\"[0-9a-f]*' | tail -1 | cut -d'\"' -f4)"),
    (r"--hicache-size 8 --cache-file-dir /srv/prefixes", "--hicache-size 1 --cache-file-dir prefixes"),
    (r"(cache import --url http://127\.0\.0\.1):30001", r"\1:30000"),
    (r"(cache export) ", r"\1 --url http://127.0.0.1:30000 "),
]
ENDLESS = re.compile(r"^curl -N .*stream=true")
SECONDS_ENDLESS = 1


def blocks(text):
    """(line number, text) of each code block, indented or fenced."""
    found, lines, number = [], text.split("\n"), 0
    while number < len(lines):
        fence = re.match(r"( *)```", lines[number])
        start = number
        if fence:
            number += 1
            while number < len(lines) and not re.match(r" *```", lines[number]):
                number += 1
            found.append((start + 2, "\n".join(line.removeprefix(fence[1]) for line in lines[start + 1:number])))
        elif lines[number].startswith("    ") and (number == 0 or not lines[number - 1].strip()):
            while number < len(lines) and (lines[number].startswith("    ") or not lines[number].strip()):
                number += 1
            found.append((start + 1, "\n".join(line[4:] for line in lines[start:number]).rstrip()))
            continue
        number += 1
    return found


def is_whole(command):
    """Whether a shell would not wait for more lines."""
    return not command.endswith("\\") and subprocess.run(["bash", "-n", "-c", command], stderr=subprocess.DEVNULL, check=False).returncode == 0


def commands(block):
    """The commands of a block; None when it is of another kind. Raises ValueError where a command stands in one."""
    lines = [line for line in block.split("\n") if line.strip()]
    if not lines or not PROGRAMS.match(lines[0].removeprefix("$ ")):
        strays = [line for line in lines if line.startswith(("espalier ", "curl "))]
        if strays:
            raise ValueError(f"'{strays[0]}' stands in a block that does not begin with a command")
        return None
    found, rest = [], lines
    while rest and PROGRAMS.match(rest[0].removeprefix("$ ")):
        count = 1
        while count < len(rest) and not is_whole("\n".join(rest[:count])):
            count += 1
        found.append("\n".join(rest[:count]).removeprefix("$ "))
        rest = rest[count:]
    return found


class NotRun:
    """not_run.txt: rows of FILE, an expression for the command, the reason; which rows were of use."""

    def __init__(self):
        self.rows, self.used = [], set()
        for line in (ROOT / "tests/docs/not_run.txt").read_text(encoding="utf-8").splitlines():
            if line and not line.startswith("#"):
                file, expression, reason = (part.strip() for part in line.split(" | "))
                self.rows.append((file, re.compile(expression), reason))

    def reason(self, file, command):
        for row in self.rows:
            if row[0] in (file, "*") and row[1].search(command):
                self.used.add(row)
                return row[2]
        return None


class Reader:
    """Runs the commands of one file in a folder with what they name."""

    def __init__(self, folder, base_port):
        self.folder, self.base_port, self.ids = folder, base_port, {}
        self.servers = []  # (port, process)
        programs = folder / "programs"
        programs.mkdir()
        (programs / "espalier").symlink_to(BINARY)
        real = shutil.which("curl")
        (programs / "curl").write_text(f'#!/bin/sh\nexec {real} --fail-with-body -sS "$@"\n')
        (programs / "curl").chmod(0o755)
        self.environment = clean_environment({"PATH": f"{programs}:{os.environ['PATH']}", "HOME": str(folder),
                                              "no_proxy": "127.0.0.1,localhost"})
        for name in ("MODEL", "my-folder", "my-model", "llama"):
            (folder / name).symlink_to(ROOT / "share/default_model")
        for name in ("share", "include", "examples", "bench"):
            (folder / name).symlink_to(ROOT / name)
        (folder / "schema.json").write_text('{"type": "object", "properties": {"a": {"type": "integer"}}}')
        (folder / "sql.gbnf").write_text('root ::= "SELECT " [a-z]+\n')
        (folder / "FILE").write_text("{% for m in messages %}{{ m.content }}{% endfor %}")
        (folder / "FILE.json").write_text('[{"role": "user", "content": "x"}]')

    def filled_in(self, command):
        for expression, text in FILLED_IN:
            command = re.sub(expression, text, command)
        for placeholder, value in self.ids.items():
            command = command.replace(placeholder, value)
        return re.sub(r"\b3000(\d)\b", lambda port: str(self.base_port + int(port[1])), command)

    def serve(self, command):
        """Starts servers that run until the file's next one on their port; several stand before an `&` each."""
        for one in (part for part in command.split(" & ") if part.strip(" &")):
            words = self.filled_in(one.strip(" &"))
            if "--port" not in words:
                words = re.sub(r"(espalier (?:serve|route))", rf"\1 --port {self.base_port}", words)
            port = int(re.search(r"--port (\d+)", words)[1])
            self.stop(port)
            log = (self.folder / f"log_{port}").open("w+")
            server = subprocess.Popen(["bash", "-c", f"exec {words}" if "=" not in words.split()[0] else words], cwd=self.folder,
                                      env=self.environment, stdout=log, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True)
            self.servers.append((port, server))
            deadline = time.monotonic() + PATIENCE_S
            while "ready url=" not in pathlib.Path(log.name).read_text(encoding="utf-8", errors="replace"):
                if server.poll() is not None or time.monotonic() > deadline:
                    return f"the server does not start:\n{pathlib.Path(log.name).read_text()}"
                time.sleep(0.02)
        return None

    def run(self, command):
        """None, or what is wrong."""
        ingredients.make(self.folder, command)
        if re.match(r"(?:[A-Z_]+=\S+ )*(build/release/)?espalier (serve|route)\b", command) and "--help" not in command:
            return self.serve(command)
        if self.base_port not in dict(self.servers) and ("localhost:3000" in command or "127.0.0.1:3000" in command or "top" in command or "bench serving" in command):
            wrong = self.serve("espalier serve")
            if wrong:
                return wrong
        endless = ENDLESS.match(command)
        words = f"set -o pipefail\n{self.filled_in(command)}"
        try:
            done = subprocess.run(["bash", "-c", words], cwd=self.folder, env=self.environment, capture_output=True, text=True,
                                  stdin=subprocess.DEVNULL, timeout=SECONDS_ENDLESS if endless else PATIENCE_S, check=False)
        except subprocess.TimeoutExpired:
            return None if endless else f"does not end within {PATIENCE_S} s"
        named = re.search(r'# "(\w+\.\.\.)"', command)  # the identifier that later commands name
        if named:
            self.ids[named[1]] = done.stdout.strip().strip('"')
        return None if done.returncode == 0 else f"ended with {done.returncode}:\n{done.stdout}{done.stderr}"

    def stop(self, port=None):
        """Ends the server at a port, or all."""
        for each, server in self.servers:
            if port in (None, each):
                if server.poll() is None:
                    os.killpg(server.pid, signal.SIGKILL)
                server.wait()
        self.servers = [(each, server) for each, server in self.servers if port not in (None, each)]


def free_ports():
    """The first of six ports in a row that nothing listens on."""
    for base in range(23600 + os.getpid() % 300, 60000, 10):
        try:
            for port in range(base, base + 6):
                with socket.socket() as probe:
                    probe.bind(("127.0.0.1", port))
            return base
        except OSError:
            continue
    raise RuntimeError("no six free ports in a row")


def read_file(file, not_run, only_list):
    """(commands that ran, failures) of one file."""
    ran, wrong = 0, []
    with tempfile.TemporaryDirectory() as folder:
        reader = Reader(pathlib.Path(folder), free_ports())
        try:
            for line, block in blocks((ROOT / file).read_text(encoding="utf-8")):
                try:
                    found = commands(block) or []
                except ValueError as stray:
                    wrong.append(f"{file}:{line}: {stray}")
                    continue
                for command in found:
                    reason = not_run.reason(file, command)
                    if only_list:
                        print(f"{file}:{line}: {command}{f'   -- not run: {reason}' if reason else ''}")
                    if reason or only_list:
                        continue
                    failure = reader.run(command)
                    ran += 1
                    if failure:
                        wrong.append(f"{file}:{line}: {command}\n  {failure}")
        finally:
            reader.stop()
    return ran, wrong


def main():
    only_list = "--list" in sys.argv
    files = [word for word in sys.argv[1:] if word != "--list"] or FILES
    not_run, total, failures = NotRun(), 0, []
    for file in files:
        ran, wrong = read_file(file, not_run, only_list)
        total += ran
        failures += wrong
        if ran and not only_list:
            print(f"{file}: {ran} commands ran", flush=True)
    if files == FILES:
        failures += [f"not_run.txt: no command matches {row[0]} | {row[1].pattern}" for row in not_run.rows if row not in not_run.used]
    for failure in failures:
        print(failure)
    print(f"{total} commands ran, {len(failures)} findings")
    sys.exit(bool(failures))


if __name__ == "__main__":
    main()
