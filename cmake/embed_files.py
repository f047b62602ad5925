#!/usr/bin/env python3
"""Writes a C++ source that holds the files of a folder, plain and compressed.

    cmake/embed_files.py FOLDER OUTPUT.cc

The source defines playground_files() of src/server/playground/playground.h. The same files give the
same source. Scripts and styles that stand in a page are named by their digests, for its policy.
"""
import base64
import gzip
import hashlib
import os
import re
import sys

TYPES = {".html": "text/html; charset=utf-8", ".css": "text/css; charset=utf-8",
         ".js": "text/javascript; charset=utf-8", ".png": "image/png", ".svg": "image/svg+xml"}
BYTES_PER_LINE = 40


def array(name, data):
    lines = [",".join(str(b) for b in data[i:i + BYTES_PER_LINE])
             for i in range(0, len(data), BYTES_PER_LINE)]
    return f"constexpr unsigned char {name}[] = {{\n" + ",\n".join(lines) + "};\n"


def inline_sources(name, data, element):
    """The sources of a Content-Security-Policy that allow what stands in <element> of a page: ' 'sha256-...'' each."""
    if not name.endswith(".html"):
        return ""
    blocks = re.findall(rf"<{element}>(.*?)</{element}>".encode(), data, re.S)
    return "".join(f" 'sha256-{base64.b64encode(hashlib.sha256(block).digest()).decode()}'" for block in blocks)


def main(folder, output):
    names = sorted(n for n in os.listdir(folder) if os.path.splitext(n)[1] in TYPES)
    parts, rows = [], []
    for number, name in enumerate(names):
        with open(os.path.join(folder, name), "rb") as f:
            data = f.read()
        tag = hashlib.sha256(data).hexdigest()[:16]
        parts.append(array(f"kPlain{number}", data))
        parts.append(array(f"kGzip{number}", gzip.compress(data, 9, mtime=0)))
        rows.append(f'    {{"{name}", "{TYPES[os.path.splitext(name)[1]]}", "\\"{tag}\\"", '
                    f"text(kPlain{number}), text(kGzip{number}),\n     "
                    f'"{inline_sources(name, data, "script")}", "{inline_sources(name, data, "style")}"}},\n')
    source = ('// Made by cmake/embed_files.py.\n#include "server/playground/playground.h"\n\n'
              "namespace espalier::server {\nnamespace {\n\n" + "\n".join(parts) + "\n"
              "template <size_t N>\nstd::string_view text(const unsigned char (&bytes)[N]) {\n"
              "  return {reinterpret_cast<const char*>(bytes), N};\n}\n\n}  // namespace\n\n"
              "std::span<const StaticFile> playground_files() {\n"
              "  static const StaticFile files[] = {\n" + "".join(rows) + "  };\n  return files;\n}\n\n"
              "}  // namespace espalier::server\n")
    with open(output, "w", encoding="utf-8") as f:
        f.write(source)


if __name__ == "__main__":
    main(*sys.argv[1:])
