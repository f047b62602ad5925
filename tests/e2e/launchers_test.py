"""The documents' recipes for Slurm and MPI, run as they stand there: two processes of one computer are the nodes. Slurm's
commands are stand-ins that start the job's tasks here; mpirun is the system's, and the test is skipped where it has none."""
import os
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import unittest

import harness

DOCUMENT = os.path.join(harness.ROOT, "docs", "parallelism.md")
PROMPT = {"text": "The river begins in the hills", "sampling_params": {"temperature": 0, "max_new_tokens": 16}}
TWO_RANKS = ("--tp-size 4", "--tp-size 2")  # the model that ships has 6 heads
SCONTROL = "#!/bin/sh\necho 127.0.0.1\n"
SRUN = """#!/bin/bash
while [[ $1 == -* ]]; do shift; done
for id in 0 1; do SLURM_NODEID=$id "$@" & done
trap 'kill $(jobs -p)' TERM
wait; wait
"""


def recipe(command, *replaced):
    """The block of the document that has the command, with the nodes' names replaced by those of this computer."""
    with open(DOCUMENT, encoding="utf-8") as f:
        blocks = re.findall(r"^```\n(.*?)^```", f.read(), re.MULTILINE | re.DOTALL)
    script = next(block for block in blocks if command in block)
    for old, new in replaced:
        assert old in script, f"{old} is not in {script}"
        script = script.replace(old, new)
    return script


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Launched(harness.Server):
    """The server of a script that starts all nodes."""

    def __init__(self, script, env):
        self.folder = tempfile.TemporaryDirectory()
        os.symlink(os.path.join(harness.ROOT, "share", "default_model"), os.path.join(self.folder.name, "my-folder"))
        os.symlink(harness.BINARY, os.path.join(self.folder.name, "espalier"))
        for name, text in (("srun", SRUN), ("scontrol", SCONTROL)):
            path = os.path.join(self.folder.name, name)
            with open(path, "w", encoding="utf-8") as f:
                f.write(text)
            os.chmod(path, 0o755)
        self.log = tempfile.TemporaryFile("w+")
        env = harness.clean_environment({"PATH": self.folder.name + ":" + os.environ["PATH"], "ESPALIER_PORT": "0",
                                         "ESPALIER_NUM_THREADS": "2", "ESPALIER_MAX_TOTAL_TOKENS": "4096", **env})
        self.process = subprocess.Popen(["bash", "-c", script], cwd=self.folder.name, env=env, stdin=subprocess.DEVNULL,
                                        stdout=self.log, stderr=self.log, start_new_session=True)
        try:
            self.port = self._wait_for_port()
        except BaseException:
            self.__exit__()
            raise

    def __exit__(self, *_):
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self.process.wait()
        self.log.close()
        self.folder.cleanup()


class Recipes(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        with harness.Server("--device", "cpu", "--num-threads", "2", "--tp-size", "2") as server:
            cls.want = server.post("/generate", PROMPT)["text"]

    def expect_the_same_answer(self, script, env):
        with Launched(script, env) as leader:
            self.assertEqual(leader.post("/generate", PROMPT)["text"], self.want)
            info = leader.post("/generate", {**PROMPT, "return_logprob": True})["meta_info"]
            self.assertEqual(len(info["output_token_logprobs"]), 16)
            leader.process.send_signal(signal.SIGTERM)
            leader.process.wait(timeout=harness.PATIENCE_S)
            harness.wait_until(lambda: "stopped node_rank=1" in leader.output(), "the follower's end")

    def test_slurm(self):
        script = recipe("srun", ("29500", str(free_port())), ("\nsrun", "\nexec srun"), TWO_RANKS)
        self.expect_the_same_answer(script, {"SLURM_JOB_NODELIST": "node[0-1]", "SLURM_NNODES": "2"})

    def test_open_mpi(self):
        if shutil.which("mpirun") is None:
            self.skipTest("needs mpirun (openmpi-bin)")
        script = recipe("mpirun", ("node0,node1 --map-by ppr:1:node", "localhost:2 -n 2"), ("\nmpirun", "\nexec mpirun"),
                        ("node0:29500", f"127.0.0.1:{free_port()}"), TWO_RANKS)
        self.expect_the_same_answer(script, {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"})


if __name__ == "__main__":
    unittest.main(verbosity=2)
