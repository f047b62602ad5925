"""The cache of models, shared with Python's huggingface_hub: it reads what Espalier fetched, and Espalier reads what it
fetched, each without a request to the hub. The hub is tests/e2e/hub_server.py."""
import os
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.realpath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "e2e"))
from harness import run  # noqa: E402
from hub_server import COMMIT, HubServer  # noqa: E402
from hub_test import tiny  # noqa: E402

DOWNLOAD = "import sys; from huggingface_hub import snapshot_download as s; print(s('org/tiny', allow_patterns=sys.argv[1:] or None))"


def environment(hub, home, **more):
    return {"HF_HOME": home, "HF_ENDPOINT": hub.url, "NO_PROXY": "*", "HF_HUB_DISABLE_XET": "1",
            "HF_HUB_DISABLE_PROGRESS_BARS": "1", **more}


def python_download(hub, home, *patterns, **more):
    done = subprocess.run([sys.executable, "-c", DOWNLOAD, *patterns], capture_output=True, text=True, timeout=300,
                          env={**os.environ, **environment(hub, home, **more)}, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout.strip()


def inspect(hub, home, **more):
    done = run("inspect", "--model-path", "org/tiny", env=environment(hub, home, **more))
    assert done.returncode == 0, done.stderr


def contents(folder):
    out = {}
    for name in sorted(os.listdir(folder)):
        if os.path.isdir(os.path.join(folder, name)):
            continue
        with open(os.path.join(folder, name), "rb") as f:
            out[name] = (os.path.basename(os.path.realpath(f.name)), f.read())
    return out


def main():
    with HubServer({"org/tiny": tiny()}) as hub, tempfile.TemporaryDirectory() as folder:
        ours, theirs = os.path.join(folder, "ours"), os.path.join(folder, "theirs")
        inspect(hub, ours)
        found = python_download(hub, ours, HF_HUB_OFFLINE="1")
        assert found == os.path.join(ours, "hub", "models--org--tiny", "snapshots", COMMIT), found
        print("huggingface_hub finds what Espalier fetched: ok")
        before = len(hub.requests)
        python_download(hub, ours, "*.safetensors", "config.json")
        assert not [m for m, path, _ in hub.requests[before:] if m == "GET" and "/api/" not in path]
        print("huggingface_hub fetches none of it again: ok")
        there = python_download(hub, theirs, "*.safetensors", "*.json")
        before = len(hub.requests)
        inspect(hub, theirs, HF_HUB_OFFLINE="1")
        assert len(hub.requests) == before
        print("Espalier finds what huggingface_hub fetched: ok")
        assert contents(there) == contents(found), "the two caches differ"
        print("both caches hold the same blobs by the same names: ok")
    return 0


if __name__ == "__main__":
    sys.exit(main())
