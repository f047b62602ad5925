"""A headless Chromium driven over its DevTools protocol, with the standard library alone."""
import base64
import json
import os
import re
import shutil
import socket
import struct
import subprocess
import tempfile
import time
import urllib.request

PATIENCE_S = float(os.environ.get("ESPALIER_TEST_PATIENCE_S", "120"))
# Pages of tests are of this computer alone, so the sandbox, which containers lack, protects nothing.
FLAGS = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
         "--disable-background-networking", "--disable-extensions", "--hide-scrollbars", "--mute-audio",
         "--remote-debugging-port=0", "--remote-allow-origins=*"]


def find():
    """The path of a Chromium, or None."""
    stated = os.environ.get("ESPALIER_CHROMIUM")
    return stated or next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


class WebSocket:
    """The client's side of RFC 6455, for texts."""

    def __init__(self, url):
        host, port, path = re.match(r"ws://([^:/]+):(\d+)(/.*)", url).groups()
        self.socket = socket.create_connection((host, int(port)), timeout=PATIENCE_S)
        key = base64.b64encode(os.urandom(16)).decode()
        self.socket.sendall((f"GET {path} HTTP/1.1\r\nHost: {host}:{port}\r\nUpgrade: websocket\r\n"
                             f"Connection: Upgrade\r\nSec-WebSocket-Key: {key}\r\n"
                             "Sec-WebSocket-Version: 13\r\n\r\n").encode())
        self.buffer = b""
        while b"\r\n\r\n" not in self.buffer:
            self.buffer += self._receive()
        head, self.buffer = self.buffer.split(b"\r\n\r\n", 1)
        if b" 101 " not in head.split(b"\r\n")[0]:
            raise RuntimeError(f"no WebSocket: {head!r}")

    def _receive(self):
        data = self.socket.recv(1 << 20)
        if not data:
            raise RuntimeError("the browser closed its connection")
        return data

    def _take(self, count):
        while len(self.buffer) < count:
            self.buffer += self._receive()
        taken, self.buffer = self.buffer[:count], self.buffer[count:]
        return taken

    def send(self, text):
        data, mask = text.encode(), os.urandom(4)
        size = len(data)
        head = bytes([0x81, 0x80 | size]) if size < 126 else (
            struct.pack(">BBH", 0x81, 0xFE, size) if size < 65536 else struct.pack(">BBQ", 0x81, 0xFF, size))
        stream = (mask * (size // 4 + 1))[:size]
        masked = (int.from_bytes(data, "big") ^ int.from_bytes(stream, "big")).to_bytes(size, "big")
        self.socket.sendall(head + mask + masked)

    def receive(self):
        parts = []
        while True:
            first, second = self._take(2)
            size = second & 0x7F
            if size == 126:
                size = struct.unpack(">H", self._take(2))[0]
            elif size == 127:
                size = struct.unpack(">Q", self._take(8))[0]
            data = self._take(size)
            if first & 0x0F in (0, 1, 2):
                parts.append(data)
            if first & 0x80 and first & 0x0F in (0, 1, 2):
                return b"".join(parts).decode()


class Page:
    """A page of a browser: evaluate JavaScript, wait, press keys, take pictures."""

    def __init__(self, socket_url):
        self.web = WebSocket(socket_url)
        self.number = 0
        self.problems = []  # errors of the console, and exceptions
        self.requests = []  # URLs that were asked for
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method, **params):
        self.number += 1
        self.web.send(json.dumps({"id": self.number, "method": method, "params": params}))
        while True:
            message = json.loads(self.web.receive())
            if message.get("id") == self.number:
                if "error" in message:
                    raise RuntimeError(f"{method}: {message['error']}")
                return message["result"]
            self._note(message)

    def _note(self, message):
        method, params = message.get("method"), message.get("params", {})
        if method == "Runtime.exceptionThrown":
            details = params["exceptionDetails"]
            self.problems.append(details.get("exception", {}).get("description") or details["text"])
        elif method == "Log.entryAdded" and params["entry"]["level"] == "error":
            self.problems.append(f"{params['entry']['text']} {params['entry'].get('url', '')}")
        elif method == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"])

    def evaluate(self, expression):
        result = self.call("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True,
                           userGesture=True)
        if "exceptionDetails" in result:
            raise RuntimeError(result["exceptionDetails"].get("exception", {}).get("description", expression))
        return result["result"].get("value")

    def wait(self, expression, what=None, timeout=PATIENCE_S):
        """The first true value of the expression."""
        deadline = time.monotonic() + timeout
        while True:
            value = self.evaluate(expression)
            if value:
                return value
            if time.monotonic() > deadline:
                raise AssertionError(f"not within {timeout} s: {what or expression}; problems: {self.problems}")
            time.sleep(0.02)

    def open(self, url):
        self.call("Page.navigate", url=url)
        self.wait("document.documentElement?.dataset.ready === 'true'", f"{url} is ready")

    def size(self, width, height, scale=1, mobile=False):
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=scale, mobile=mobile)

    def prefers(self, scheme):
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def key(self, key, code=None, modifiers=0):
        text = key if len(key) == 1 else ("\r" if key == "Enter" else None)
        codes = {"Enter": 13, "Escape": 27, "Tab": 9, "ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40}
        common = {"key": key, "code": code or key, "modifiers": modifiers,
                  "windowsVirtualKeyCode": codes.get(key, ord(key.upper()) if len(key) == 1 else 0)}
        self.call("Input.dispatchKeyEvent", type="keyDown" if text else "rawKeyDown", **common,
                  **({"text": text} if text else {}))
        self.call("Input.dispatchKeyEvent", type="keyUp", **common)

    def type(self, selector, text):
        self.evaluate(f"document.querySelector({json.dumps(selector)}).focus(), document.querySelector({json.dumps(selector)}).select()")
        self.call("Input.insertText", text=text)

    def point(self, element):
        """Moves the mouse to the middle of the element that the expression gives. Returns the place."""
        box = self.evaluate(f"(() => {{ const box = ({element}).getClientRects()[0]; return [box.x + box.width / 2, box.y + box.height / 2]; }})()")
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=box[0], y=box[1])
        return box

    def press(self, element):
        """A click with the mouse."""
        x, y = self.point(element)
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def choose_files(self, selector, paths):
        """What a file chooser does."""
        document = self.call("DOM.getDocument")["root"]["nodeId"]
        node = self.call("DOM.querySelector", nodeId=document, selector=selector)["nodeId"]
        self.call("DOM.setFileInputFiles", nodeId=node, files=paths)

    def screenshot(self, path):
        data = self.call("Page.captureScreenshot", format="png")["data"]
        with open(path, "wb") as f:
            f.write(base64.b64decode(data))


class Browser:
    """A context manager. Its profile is a folder that goes with it."""

    def __init__(self, *flags):
        self.profile = tempfile.TemporaryDirectory(prefix="espalier-browser-")
        self.log = open(os.path.join(self.profile.name, "log"), "w+", encoding="utf-8")
        self.process = subprocess.Popen(
            [find(), *FLAGS, *flags, f"--user-data-dir={self.profile.name}/profile", "about:blank"],
            stdin=subprocess.DEVNULL, stdout=self.log, stderr=self.log)
        self.port = self._wait_for_port()

    def _wait_for_port(self):
        path = os.path.join(self.profile.name, "profile", "DevToolsActivePort")
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline and self.process.poll() is None:
            if os.path.exists(path):
                with open(path, encoding="utf-8") as f:
                    lines = f.read().split()
                if lines:
                    return int(lines[0])
            time.sleep(0.05)
        self.log.seek(0)
        raise RuntimeError(f"Chromium did not start:\n{self.log.read()}")

    def page(self):
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/json", timeout=PATIENCE_S) as answer:
            pages = json.load(answer)
        return Page(next(p["webSocketDebuggerUrl"] for p in pages if p["type"] == "page"))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.terminate()
        try:
            self.process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.log.close()
        self.profile.cleanup()
