"""Open WebUI itself, unmodified, before a server with the model that ships: its list of models, and chats as its page
asks for them, whole and streamed, over its connection of OpenAI's kind and over its connection of Ollama's.
tests/compat/run installs it in an environment of its own. It keeps its data in a folder that is removed."""
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request

sys.path.insert(0, os.path.join(os.path.dirname(os.path.realpath(__file__)), "..", "e2e"))
from harness import Server, wait_until  # noqa: E402

READY_S = 300
QUESTION = "Tell me a story about a dog."


class WebUi:
    """The program, without accounts, and with no connection but the server's."""

    def __init__(self, server, folder):
        base = f"http://127.0.0.1:{server.port}"
        self.log = open(os.path.join(folder, "log"), "w+", encoding="utf-8")
        self.token = ""
        settings = {"DATA_DIR": folder, "WEBUI_AUTH": "False", "WEBUI_SECRET_KEY": "of-a-test", "OFFLINE_MODE": "true",
                    "HF_HUB_OFFLINE": "1", "RAG_EMBEDDING_ENGINE": "openai", "OPENAI_API_BASE_URL": base + "/v1",
                    "OPENAI_API_KEY": "none", "OLLAMA_BASE_URL": base, "GLOBAL_LOG_LEVEL": "INFO"}
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            port = str(taken.getsockname()[1])
        self.url = f"http://127.0.0.1:{port}"
        command = os.path.join(os.path.dirname(sys.executable), "open-webui")
        self.process = subprocess.Popen([command, "serve", "--host", "127.0.0.1", "--port", port], cwd=folder,
                                        env={**os.environ, **settings}, stdin=subprocess.DEVNULL, stdout=self.log,
                                        stderr=subprocess.STDOUT, start_new_session=True)
        wait_until(self.is_ready, "Open WebUI is ready", READY_S)
        self.token = json.loads(self.ask("/api/v1/auths/signin", {"email": "", "password": ""}))["token"]

    def output(self):
        with open(self.log.name, encoding="utf-8", errors="replace") as f:
            return f.read()

    def is_ready(self):
        if self.process.poll() is not None:
            raise AssertionError(f"Open WebUI ended: {self.output()[-3000:]}")
        try:
            return bool(self.ask("/health"))
        except OSError:
            return False

    def ask(self, path, body=None):
        headers = {"Content-Type": "application/json", "Authorization": f"Bearer {self.token}"}
        data = None if body is None else json.dumps(body).encode()
        try:
            with urllib.request.urlopen(urllib.request.Request(self.url + path, data, headers), timeout=120) as answer:
                return answer.read().decode()
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{path}: HTTP {error.code}: {error.read().decode()[:500]}") from error

    def stop(self):
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self.log.close()


def events(text):
    return [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: ") and "[DONE]" not in line]


def chat(webui, path, model, same=True):
    """A chat in OpenAI's format through Open WebUI; whole and streamed answers are equal, where it passes the
    temperature on (same)."""
    body = {"model": model, "messages": [{"role": "user", "content": QUESTION}], "temperature": 0, "max_tokens": 16}
    whole = json.loads(webui.ask(path, {**body, "stream": False}))["choices"][0]["message"]["content"]
    chunks = events(webui.ask(path, {**body, "stream": True}))
    streamed = "".join(choice["delta"].get("content") or "" for chunk in chunks for choice in chunk.get("choices", []))
    assert whole and streamed and (not same or streamed == whole), (path, whole, streamed)
    print(f"Open WebUI, {path}: {whole!r}", flush=True)
    return whole


def ollama(webui):
    assert json.loads(webui.ask("/ollama/api/version"))["version"]
    model = json.loads(webui.ask("/ollama/api/tags"))["models"][0]["model"]
    assert webui.ask("/ollama/api/show", {"model": model})
    body = {"model": model, "messages": [{"role": "user", "content": QUESTION}],
            "options": {"temperature": 0, "num_predict": 16}}
    lines = [json.loads(line) for line in webui.ask("/ollama/api/chat", {**body, "stream": True}).splitlines()]
    text = "".join(line["message"]["content"] for line in lines)
    assert lines[-1]["done"] and len(lines) > 1 and text, lines
    print(f"Open WebUI, /ollama/api/chat: {text!r}", flush=True)
    assert chat(webui, "/ollama/v1/chat/completions", model) == text


def pages(webui, server):
    """What the page itself asks: the models of all connections, a chat, a title for it."""
    models = [model["id"] for model in json.loads(webui.ask("/api/models"))["data"]]
    own = json.loads(server.get("/v1/models")[2])["data"][0]["id"]
    assert own in models, (own, models)
    direct = chat(webui, "/openai/chat/completions", own)
    # Of a model that both connections have it asks Ollama's, without the temperature.
    chat(webui, "/api/chat/completions", own, same=False)
    title = json.loads(webui.ask("/api/v1/tasks/title/completions", {
        "model": own, "messages": [{"role": "user", "content": QUESTION}, {"role": "assistant", "content": direct}]}))
    assert title["choices"][0]["message"]["content"], title
    print("Open WebUI, a title: made", flush=True)


def main():
    started = time.monotonic()
    with Server() as server, tempfile.TemporaryDirectory() as folder:
        webui = WebUi(server, folder)
        try:
            pages(webui, server)
            ollama(webui)
            # No request of its own was refused.
            refused = re.findall(r".*HTTP (?:4|5)\d\d.*", webui.output())
            assert not refused, refused
        finally:
            webui.stop()
    print(f"Open WebUI: all pass, {time.monotonic() - started:.0f} s")


if __name__ == "__main__":
    main()
