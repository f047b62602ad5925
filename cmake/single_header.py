"""Writes a header with the headers of the source tree that it includes, each once and in order.

    single_header.py HEADER OUTPUT ROOT...

Quoted includes are looked for in each ROOT; those that are found take the place of their line. The
others, and includes in angle brackets, stay. An installed header then needs no other of this project.
"""
import pathlib
import re
import sys

INCLUDE = re.compile(r'#include "([^"]+)"')


def expand(path, roots, seen, out):
    seen.add(path)
    out.append(f"// ---- {path.name} ----\n")
    for line in path.read_text().splitlines(keepends=True):
        match = INCLUDE.match(line)
        found = match and next((root / match[1] for root in roots if (root / match[1]).is_file()), None)
        if found:
            if found not in seen:
                expand(found, roots, seen, out)
        elif line.strip() != "#pragma once":
            out.append(line)


def main():
    header, output, *roots = map(pathlib.Path, sys.argv[1:])
    out = ["#pragma once\n"]
    expand(header, roots, set(), out)
    output.parent.mkdir(parents=True, exist_ok=True)
    text = "".join(out)
    if not output.is_file() or output.read_text() != text:
        output.write_text(text)


main()
