"""Models of a Hugging Face hub: `--model-path org/name` against a local server that speaks the hub's API."""
import hashlib
import json
import os
import pty
import shutil
import subprocess
import tempfile
import unittest

from harness import BINARY, ROOT, Server, clean_environment, run
from hub_server import COMMIT, HubServer, Repo, git_sha1

MODEL = os.path.join(ROOT, "share", "default_model")
SHARD = "model-00001-of-00002.safetensors"


def shipped_files():
    files = {}
    for entry in os.scandir(MODEL):
        if entry.is_file():
            with open(entry.path, "rb") as f:
                files[entry.name] = f.read()
    return files


def tiny(**more):
    files = shipped_files()
    extra = {"pytorch_model.bin": b"pickle", "original/params.json": b"{}"}
    return Repo({**files, **extra}, [name for name in files if name.endswith(".safetensors")], **more)


class HubTest(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix=f"espalier_hub_{os.getpid()}_")
        self.addCleanup(shutil.rmtree, self.folder)
        self.hub = HubServer({"org/tiny": tiny()})
        self.hub.__enter__()
        self.addCleanup(self.hub.__exit__)
        self.repo = self.hub.repos["org/tiny"]

    def env(self, **more):
        return {"HF_HOME": self.folder, "HF_ENDPOINT": self.hub.url, "NO_PROXY": "*", "HF_HUB_CACHE": "",
                "HF_TOKEN": "", "HF_HUB_OFFLINE": "", **more}

    def inspect(self, name="org/tiny", *args, **env):
        return run("inspect", "--model-path", name, *args, env=self.env(**env))

    def cache(self, *parts):
        return os.path.join(self.folder, "hub", "models--org--tiny", *parts)

    def fetched(self, *args, **env):
        done = self.inspect(*args, **env)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done

    def refused(self, *wanted, name="org/tiny", args=(), **env):
        done = self.inspect(name, *args, **env)
        self.assertEqual(done.returncode, 1, done.stdout + done.stderr)
        for text in wanted:
            self.assertIn(text, done.stderr)
        return done

    def assert_whole(self):
        """Every blob has the content that its name states, and every link leads to one."""
        snapshot = self.cache("snapshots", COMMIT)
        for name in os.listdir(snapshot):
            link = os.path.join(snapshot, name)
            self.assertEqual(os.readlink(link), f"../../blobs/{self.repo.etag(name)}")
            with open(link, "rb") as f:
                self.assertEqual(f.read(), self.repo.files[name])
        for blob in os.listdir(self.cache("blobs")):
            with open(self.cache("blobs", blob), "rb") as f:
                data = f.read()
            self.assertIn(blob, (hashlib.sha256(data).hexdigest(), git_sha1(data)))

    def test_a_model_is_fetched_once_and_found_again(self):
        self.fetched()
        self.assert_whole()
        with open(self.cache("refs", "main"), encoding="utf-8") as f:
            self.assertEqual(f.read(), COMMIT)
        self.assertEqual(set(os.listdir(self.cache("snapshots", COMMIT))),
                         {n for n in shipped_files() if n != "README.md"})
        before = len(self.hub.requests)
        self.fetched()
        self.assertEqual([m for m, _, _ in self.hub.requests[before:] if m == "GET"], ["GET"])  # the commit
        self.fetched("org/tiny", HF_HUB_OFFLINE="1", HF_ENDPOINT="http://127.0.0.1:9")
        late = self.fetched("org/tiny", HF_ENDPOINT="http://127.0.0.1:9")
        self.assertIn("cached revision of org/tiny serves", late.stderr)

    def test_a_broken_transfer_goes_on_where_it_ended(self):
        self.hub.cuts[SHARD] = [1000, 2000]
        self.fetched()
        self.assert_whole()
        self.assertEqual([h.get("Range") for h in self.hub.transfers(SHARD)], [None, "bytes=1000-", "bytes=3000-"])

    def test_what_an_earlier_run_left_is_resumed(self):
        os.makedirs(self.cache("blobs"))
        with open(self.cache("blobs", self.repo.etag(SHARD) + ".incomplete"), "wb") as f:
            f.write(self.repo.files[SHARD][:5000])
        self.fetched()
        self.assert_whole()
        self.assertEqual([h.get("Range") for h in self.hub.transfers(SHARD)], ["bytes=5000-"])

    def test_a_server_without_ranges_sends_the_file_anew(self):
        self.hub.ignores_ranges = True
        self.hub.cuts[SHARD] = [1000]
        self.fetched()
        self.assert_whole()

    def test_a_wrong_checksum_is_tried_once_more_and_never_kept(self):
        self.hub.damaged[SHARD] = 1
        self.fetched()
        self.assert_whole()
        shutil.rmtree(self.folder)
        self.hub.damaged[SHARD] = 9
        self.refused("does not match its checksum", SHARD)
        self.assertFalse(os.path.exists(self.cache("blobs", self.repo.etag(SHARD))))
        self.assertFalse(os.path.exists(self.cache("refs", "main")))
        self.assertEqual(self.hub.damaged[SHARD], 7)

    def test_a_busy_server_is_asked_again(self):
        self.hub.fails = 2
        self.fetched()
        self.assert_whole()

    def test_the_token_goes_to_the_hub_alone(self):
        self.repo.private = True
        self.refused("neither a path here nor a model", "HF_TOKEN")
        self.fetched("org/tiny", HF_TOKEN="hf_right")
        for _, path, headers in self.hub.requests:
            if path.startswith("/storage/"):
                self.assertNotIn("Authorization", headers)
        self.assertTrue(self.hub.transfers(SHARD))

    def test_a_gated_model_says_how_to_get_it(self):
        self.repo.gated = True
        self.refused("gated", "accept its terms at", "HF_TOKEN")
        self.fetched("org/tiny", HF_TOKEN="hf_right")

    def test_what_is_not_there_is_named(self):
        self.refused("'org/none' is neither a path here nor a model", name="org/none")
        self.refused("no revision 'v9'", args=("--revision", "v9"))
        self.refused("HF_HUB_OFFLINE", "holds nothing", HF_HUB_OFFLINE="1")
        self.refused("HF_ENDPOINT", "HTTPS_PROXY", HF_ENDPOINT="http://127.0.0.1:9")

    def test_revisions_folders_and_former_names(self):
        self.hub.renamed["old/tiny"] = "org/tiny"
        elsewhere = os.path.join(self.folder, "elsewhere")
        self.fetched("old/tiny", "--revision", "v1", "--download-dir", elsewhere)
        with open(os.path.join(elsewhere, "models--old--tiny", "refs", "v1"), encoding="utf-8") as f:
            self.assertEqual(f.read(), COMMIT)
        self.fetched("old/tiny", "--revision", COMMIT, "--download-dir", elsewhere, HF_ENDPOINT="http://127.0.0.1:9")

    def test_a_full_disk_ends_cleanly(self):
        os.makedirs(self.cache("blobs"))
        os.symlink("/dev/full", self.cache("blobs", self.repo.etag(SHARD) + ".incomplete"))
        self.refused("the disk is full", "--download-dir")
        self.assertFalse(os.path.exists(self.cache("refs", "main")))

    def test_a_gguf_is_chosen_by_its_quantisation(self):
        names = ["a-Q4_K_M.gguf", "a-Q8_0.gguf", "mmproj.gguf"]
        self.hub.repos["org/quants"] = Repo({n: b"GGUF of nothing" for n in names}, names)
        self.refused("Q4_K_M", "a-Q8_0.gguf", name="org/quants")
        self.refused("a-Q8_0.gguf", name="org/quants:q8_0")  # it is no GGUF; its path is in the error
        snapshot = os.path.join(self.folder, "hub", "models--org--quants", "snapshots", COMMIT)
        self.assertEqual(os.listdir(snapshot), ["a-Q8_0.gguf"])

    def test_a_terminal_sees_a_bar_and_a_file_a_line(self):
        main, end = pty.openpty()
        process = subprocess.Popen([BINARY, "inspect", "--model-path", "org/tiny"], env=clean_environment(self.env()),
                                   stdout=subprocess.DEVNULL, stderr=end)
        os.close(end)
        shown = b""
        try:
            while piece := os.read(main, 65536):
                shown += piece
        except OSError:  # how the end of a terminal is told
            pass
        os.close(main)
        self.assertEqual(process.wait(timeout=60), 0, shown)
        self.assertIn(b"fetching org/tiny", shown)
        self.assertRegex(shown, rb"\[#{30}\] ([0-9.]+ MB)/\1")  # at the end, all of it
        shutil.rmtree(self.folder)
        self.assertNotIn("fetching org/tiny", self.fetched().stderr)

    def test_two_processes_fetch_each_file_once(self):
        command = [BINARY, "inspect", "--model-path", "org/tiny"]
        both = [subprocess.Popen(command, env=clean_environment(self.env()), stdout=subprocess.DEVNULL,
                                 stderr=subprocess.PIPE, text=True) for _ in range(2)]
        for process in both:
            self.assertEqual(process.wait(timeout=60), 0, process.stderr.read())
            process.stderr.close()
        self.assert_whole()
        self.assertEqual(len(self.hub.transfers(SHARD)), 1)

    def test_a_server_has_the_name_that_it_was_given(self):
        with Server("--model-path", "org/tiny", "--revision", "v1", env=self.env()) as server:
            models = json.loads(server.get("/v1/models")[2])
            self.assertEqual(models["data"][0]["id"], "org/tiny")
            self.assertEqual(json.loads(server.get("/server_info")[2])["revision"], "v1")
            answer = server.post("/generate", {"text": "One", "sampling_params": {"max_new_tokens": 2}})
            self.assertTrue(answer["text"])


if __name__ == "__main__":
    unittest.main()
