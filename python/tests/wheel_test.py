"""The wheel of the just-built tree, as a user meets it: made, installed into a fresh environment and
used from another folder, with no library of the build folder and no network.

  wheel_test.py BUILD          skips (77) without patchelf or Python's venv
"""
import importlib.util
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
PROGRAM = """
import json, os, sys, ssl
import espalier as sgl
assert sys.prefix in sgl.__file__, sgl.__file__
with sgl.Engine(max_total_tokens=2048) as engine:     # the model that ships
    answer = engine.generate("Once upon a time", {"max_new_tokens": 4, "temperature": 0})
    @sgl.function
    def program(s):
        s += "Once" + sgl.gen("next", max_tokens=2)
    state = program.run(backend=engine)
    try:
        state["absent"]
        raise SystemExit("a variable that is absent was read")
    except KeyError:
        pass
with sgl.Engine("seeing", max_total_tokens=2048) as engine:
    seeing = engine.get_server_info()["model_path"]
    assert seeing.startswith(sys.prefix) and seeing.endswith("/seeing_model"), seeing
libraries = {line.split()[-1] for line in open("/proc/self/maps") if ".so" in line}
print(json.dumps({"tokens": answer["meta_info"]["completion_tokens"], "text": state["next"],
                  "libraries": sorted(libraries)}))
"""


def run(*command, **more):
    done = subprocess.run([str(part) for part in command], stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, text=True, **more)
    if done.returncode != 0:
        sys.exit(f"{command} failed:\n{done.stdout}\n{done.stderr}")
    return done.stdout


def main():
    build = pathlib.Path(sys.argv[1]).resolve()
    if not shutil.which("patchelf") or importlib.util.find_spec("ensurepip") is None:
        print("skipped: patchelf or python3-venv is missing (tools/setup installs both)")
        sys.exit(77)
    with tempfile.TemporaryDirectory() as folder:
        there = pathlib.Path(folder)
        print(run(ROOT / "tools/wheel", "--built", "--build", build, "--output", there / "wheel"))
        wheel = next((there / "wheel").glob("*.whl"))
        run(sys.executable, "-m", "venv", there / "venv")
        began = time.monotonic()
        run(there / "venv/bin/pip", "install", "--no-index", "--no-deps", wheel)
        print(f"pip install: {time.monotonic() - began:.1f} s")

        environment = {"PATH": "/usr/bin:/bin", "HOME": folder}
        answer = json.loads(run(there / "venv/bin/python", "-c", PROGRAM, cwd=there, env=environment))
        assert answer["tokens"] == 4 and answer["text"], answer
        foreign = [name for name in answer["libraries"] if str(build) in name]
        assert not foreign, foreign
        command = there / "venv/bin/espalier"
        text = run(command, "generate", "Once upon a time", "--max-new-tokens", "4", "--quiet",
                   cwd=there, env=environment)
        assert text.strip(), text
        print("the installed package and command generate; 1 passed")


main()
