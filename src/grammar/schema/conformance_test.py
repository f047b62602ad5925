#!/usr/bin/env python3
"""Runs real schemas and the official suite through grammar_bench and holds its figures to a floor.

    conformance_test.py GRAMMAR_BENCH

Data: ESPALIER_DATA, else ../shared/data. Without it the test is skipped (exit 77), or fails where
ESPALIER_REQUIRE_DATA=1. The floors are what is reached today: they may only rise.
"""

import io
import lzma
import os
import pathlib
import re
import subprocess
import sys
import tarfile
import tempfile

MASKBENCH_CASES = 120


def figures(output):
    match = re.search(
        r"schemas (\d+)  right (\d+) .*declined (\d+)  invalid accepted (\d+)  valid rejected (\d+)", output)
    return dict(zip(("schemas", "right", "declined", "invalid_accepted", "valid_rejected"),
                    map(int, match.groups())))


def main():
    bench = sys.argv[1]
    data = pathlib.Path(os.environ.get("ESPALIER_DATA", "../shared/data"))
    if not (data / "maskbench_dev.jsonl.xz").exists():
        print(f"no data at {data}: set ESPALIER_DATA")
        return 1 if os.environ.get("ESPALIER_REQUIRE_DATA") == "1" else 77
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        # Every n-th case, so that all sources are there.
        lines = lzma.open(data / "maskbench_dev.jsonl.xz", "rt").read().splitlines()
        chosen = lines[::max(1, len(lines) // MASKBENCH_CASES)]
        cases = folder / "cases.jsonl"
        cases.write_text("\n".join(chosen) + "\n")
        run = subprocess.run([bench, "conformance", cases], text=True, capture_output=True, check=True)
        print(run.stdout)
        real = figures(run.stdout)
        tarfile.open(fileobj=io.BytesIO((data / "json_schema_test_suite.tar.xz").read_bytes()),
                     mode="r:xz").extractall(folder)
        run = subprocess.run([bench, "conformance", folder], text=True, capture_output=True, check=True)
        print(run.stdout)
        suite = figures(run.stdout)
    problems = []
    if real["invalid_accepted"] > 0:
        problems.append("an invalid instance of a real schema was accepted")
    if real["right"] < 0.98 * real["schemas"]:
        problems.append(f"only {real['right']} of {real['schemas']} real schemas are right")
    if suite["invalid_accepted"] > 0:
        problems.append("the suite's invalid instances were accepted")
    if suite["right"] < 0.97 * suite["schemas"]:
        problems.append(f"only {suite['right']} of {suite['schemas']} groups of the suite are right")
    for problem in problems:
        print("FAILED:", problem)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
