#!/usr/bin/env python3
"""Reads built binaries and fails where a protection of cmake/EspalierHardening.cmake is missing:

    binary_test.py BINARY ...      each of these has all protections
    binary_test.py --can-fail CC   a program that is compiled without them is found to lack each
"""
import os
import platform
import re
import subprocess
import sys
import tempfile

BRANCH_TARGETS_MIN = 1000  # of the project's own functions; libraries of the system may have none
ENDBR64 = b"\xf3\x0f\x1e\xfa"


def readelf(path, *options):
    return subprocess.run(["readelf", "-W", *options, path], capture_output=True, text=True, check=True).stdout


def text_section(path):
    """The bytes of .text."""
    match = re.search(r"\] \.text\s+PROGBITS\s+\w+ (\w+) (\w+)", readelf(path, "-S"))
    offset, size = (int(g, 16) for g in match.groups())
    with open(path, "rb") as f:
        f.seek(offset)
        return f.read(size)


def missing(path):
    """The protections that a binary lacks, by name."""
    segments, dynamic = readelf(path, "-l"), readelf(path, "-d")
    symbols = set(re.findall(r"UND (\w+)", readelf(path, "--dyn-syms")))
    is_library = ".so" in os.path.basename(path)
    checks = {
        "position-independent code": is_library or re.search(r"FLAGS_1.*PIE", dynamic),
        "read-only relocations": "GNU_RELRO" in segments,
        "binding at start": re.search(r"BIND_NOW|FLAGS_1.*NOW", dynamic),
        "a stack that is not executable": re.search(r"GNU_STACK.* RW ", segments),
        "no segment both writable and executable": not re.search(r"LOAD.* RWE ", segments),
        "stack protector": "__stack_chk_fail" in symbols,
        "fortified calls": any(s.endswith("_chk") for s in symbols),
        "checked indices": any("__glibcxx_assert_fail" in s for s in symbols),
    }
    if platform.machine() == "x86_64":
        checks["branch targets"] = text_section(path).count(ENDBR64) >= BRANCH_TARGETS_MIN
    return [name for name, holds in checks.items() if not holds]


def can_fail(compiler):
    """All protections are found missing in a program that has none."""
    with tempfile.TemporaryDirectory() as folder:
        source, program = os.path.join(folder, "a.c"), os.path.join(folder, "a")
        with open(source, "w", encoding="ascii") as f:
            f.write("#include <string.h>\nint main(int n, char** v) { char b[9]; strcpy(b, v[n - 1]); return b[0]; }\n")
        subprocess.run([compiler, "-O1", "-no-pie", "-fno-pie", "-fno-stack-protector", "-U_FORTIFY_SOURCE", "-w",
                        "-Wl,-z,norelro,-z,lazy,-z,execstack", source, "-o", program], check=True)
        found = missing(program)
        expected = {"position-independent code", "read-only relocations", "binding at start", "stack protector",
                    "a stack that is not executable", "fortified calls", "checked indices"}
        return sorted(expected - set(found))


def main(arguments):
    if arguments[0] == "--can-fail":
        unseen = can_fail(arguments[1])
        print(f"not found to be missing: {', '.join(unseen)}" if unseen else "each missing protection is found")
        return bool(unseen)
    failed = False
    for path in arguments:
        lacks = missing(path)
        print(f"{path}: {'lacks ' + ', '.join(lacks) if lacks else 'has all protections'}")
        failed = failed or bool(lacks)
    return failed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
