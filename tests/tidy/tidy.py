#!/usr/bin/env python3
"""Keeps the house tidy: each check reads the tree and returns its findings, one line each.

    tests/tidy/tidy.py [--root DIR] [--build DIR] [CHECK ...]

Exit status 1 when there is a finding. tidy_test.py shows that each check can fail.
"""
import argparse
import collections
import json
import os
import re
import sys

import metrics
import words

SOURCE = (".cc", ".cu")
HEADER = (".h", ".cuh")
CODE_FOLDERS = ("src", "include", "bench", "examples", "tests")
SKIPPED_FOLDERS = {"build", ".git", ".venv", ".cache", "__pycache__", "share", "results", "data",
                   "testdata", "golden", "goldens", "fixtures"}
MAX_LINES = 800
KERNEL_HEADER_LINES_MAX = 15
README_LINES_MAX = 60


class Tree:
    """The files of a checkout, read once."""

    def __init__(self, root, build=None):
        self.root = root
        self.build = build
        self.files = []
        for folder, names, files in os.walk(root):
            names[:] = sorted(n for n in names if n not in SKIPPED_FOLDERS)
            for name in sorted(files):
                self.files.append(os.path.relpath(os.path.join(folder, name), root))
        self._text = {}

    def text(self, path):
        if path not in self._text:
            with open(os.path.join(self.root, path), encoding="utf-8", errors="replace") as f:
                self._text[path] = f.read()
        return self._text[path]

    def code(self):
        return [f for f in self.files
                if f.endswith(SOURCE + HEADER) and f.split(os.sep)[0] in CODE_FOLDERS]

    def scripts(self):
        return [f for f in self.files if f.endswith((".py", ".sh")) or
                ("." not in os.path.basename(f) and self.text(f).startswith("#!"))]

    def includes(self, path):
        """(line, resolved path) of each quoted include that names a file of the tree."""
        known = set(self.files)
        for number, line in enumerate(self.text(path).splitlines(), 1):
            match = re.match(r'\s*#\s*include\s+"([^"]+)"', line)
            if not match:
                continue
            for base in ("src", "include", os.path.dirname(path), "."):
                resolved = os.path.normpath(os.path.join(base, match.group(1)))
                if resolved in known:
                    yield number, resolved
                    break


def room_of(path):
    parts = path.split(os.sep)
    return parts[1] if len(parts) > 2 and parts[0] == "src" else None


def read_rooms(tree):
    rooms = {}
    for line in tree.text("tests/tidy/rooms.txt").splitlines():
        if line and not line.startswith("#"):
            room, _, allowed = line.partition(":")
            rooms[room.strip()] = set(allowed.split())
    return rooms


def layering(tree):
    """A file includes a room, or a room links one, that its row in rooms.txt does not name."""
    rooms = read_rooms(tree)
    findings = []
    for path in tree.code():
        room = room_of(path)
        if room is None:
            continue
        if room not in rooms:
            findings.append(f"{path}: the room {room} has no row in tests/tidy/rooms.txt")
            continue
        for number, target in tree.includes(path):
            other = room_of(target)
            if other and other != room and not rooms[room] & {other, "*"}:
                findings.append(f"{path}:{number}: {room} may not include {other} ({target})")
    for path in tree.files:
        room = room_of(path)
        if os.path.basename(path) != "CMakeLists.txt" or room not in rooms:
            continue
        for call in re.findall(r"espalier_(?:room|test)\(([^)]*)\)", tree.text(path)):
            match = re.search(r"\bDEPS\s+((?:[a-z_]+\s*)+)", call)
            for other in match.group(1).split() if match else []:
                if other != room and other in rooms and not rooms[room] & {other, "*"}:
                    findings.append(f"{path}: {room} may not link {other}")
    return findings


def table(tree):
    """The table of rooms in ARCHITECTURE.md differs from rooms.txt."""
    rooms = read_rooms(tree)
    shown = {}
    for line in tree.text("ARCHITECTURE.md").splitlines():
        match = re.match(r"\| `(\w+)/` \|.*\| ([^|]*) \|$", line)
        if match:
            words = re.findall(r"[a-z]+", match.group(2))
            shown[match.group(1)] = {"*"} if words == ["any"] else set(words) - {"nothing"}
    findings = []
    for room in sorted(set(rooms) | set(shown)):
        if rooms.get(room) != shown.get(room):
            findings.append(f"ARCHITECTURE.md says {room}: {sorted(shown.get(room, ['(no row)']))}, "
                            f"rooms.txt says {sorted(rooms.get(room, ['(no row)']))}")
    return findings


def cycles(tree):
    """Headers that include each other in a circle, or rooms that do."""
    files = {path: [t for _, t in tree.includes(path)] for path in tree.code()}
    rooms = {}
    for path, targets in files.items():
        if room_of(path):
            others = {room_of(t) for t in targets} - {None, room_of(path)}
            rooms.setdefault(room_of(path), set()).update(others)
    findings = []
    for what, graph in (("files", files), ("rooms", rooms)):
        findings += [f"{what} include each other: {' -> '.join(c)}" for c in find_cycles(graph)]
    return findings


def find_cycles(graph):
    done, found = set(), []

    def visit(node, trail):
        if node in trail:
            found.append(trail[trail.index(node):] + [node])
            return
        if node in done:
            return
        for target in sorted(graph.get(node, ())):
            visit(target, trail + [node])
        done.add(node)

    for node in sorted(graph):
        visit(node, [])
    return found


def sources_of_unit(path):
    """What a unit of several sources (cmake/EspalierUnits.cmake) includes, relative to the root."""
    if os.path.basename(os.path.dirname(path)) != "units" or not os.path.exists(path):
        return set()
    with open(path, encoding="utf-8") as f:
        return {os.path.normpath("src/" + name) for name in re.findall(r'#include "(.*)"', f.read())}


def dead_files(tree):
    """A source that no target builds, a header that nothing includes, or what a flag was taken for a
    name of."""
    built = set()
    if tree.build:
        with open(os.path.join(tree.build, "compile_commands.json"), encoding="utf-8") as f:
            for command in json.load(f):
                full = os.path.join(command["directory"], command["file"])
                built.add(os.path.relpath(os.path.realpath(full), os.path.realpath(tree.root)))
                built |= sources_of_unit(full)
    lists = [f for f in tree.files if os.path.basename(f) == "CMakeLists.txt" or
             f.endswith(".cmake")]
    included = {target for path in tree.code() for _, target in tree.includes(path)}
    findings = []
    for path in tree.code():
        if path.endswith(SOURCE):
            named = any(os.path.relpath(path, os.path.dirname(c) or ".") in
                        re.split(r"[\s()\"]+", tree.text(c)) for c in lists)
            if path not in built and not named and path not in included:
                findings.append(f"{path}: no target builds it")
        elif path not in included:
            findings.append(f"{path}: nothing includes it")
    flags = {part for path in tree.files for part in path.split(os.sep) if part.startswith("-")}
    findings += [f"{flag}: a flag that was taken for a file's or folder's name" for flag in sorted(flags)]
    return findings


# Code behind a comment marker. A comment's example is indented by three spaces or more, and an
# argument's name in a call (/*stream=*/) is no line comment, so neither is taken for code.
CPP_CODE = re.compile(
    r"^\s*// {0,2}(?=\S)(?:"
    r"#\s*(?:include|define|if|endif|else)\b"
    r"|(?:if|for|while|switch) \(.*\) ?(?:\{|.*;)$"
    r"|(?:return|break|continue|throw|delete|goto|using|namespace|typedef)\b[^.]*;$"
    r"|\}(?: else.*)?;?$"
    r"|[\w:<>&*\[\]. ]+ [-+*/|&^]?= [^.]*;$"
    r"|[\w:.>-]*\w\([^()]*(?:\([^()]*\)[^()]*)*\);$"
    r"|[\w:<>&* ]+\([^()]*\)(?: const)? \{$"
    r")")
PYTHON_CODE = re.compile(
    r"^\s*# ?(?:import \w+$|from [\w.]+ import |def \w+\(|class \w+.*:$|return\b.*[)\]]$"
    r"|(?:if|for|while|with) .*:$|print\(|\w+(?:\.\w+)*\(.*\)$|[\w.\[\]]+ = .*[)\]\"']$)")


def commented_code(tree):
    """Code that was commented out instead of removed."""
    findings = []
    for path in tree.code():
        for number, line in enumerate(tree.text(path).splitlines(), 1):
            if CPP_CODE.match(line) or re.match(r"\s*#\s*if 0\b", line):
                findings.append(f"{path}:{number}: commented-out code: {line.strip()}")
    for path in tree.scripts():
        if "python" not in tree.text(path).splitlines()[0] and not path.endswith(".py"):
            continue
        for number, line in enumerate(tree.text(path).splitlines(), 1):
            if PYTHON_CODE.match(line):
                findings.append(f"{path}:{number}: commented-out code: {line.strip()}")
    return findings


def file_length(tree):
    """A source, header or script of more than MAX_LINES lines."""
    findings = []
    for path in sorted(set(tree.code() + tree.scripts())):
        lines = tree.text(path).count("\n")
        if lines > MAX_LINES:
            findings.append(f"{path}: {lines} lines; split it ({MAX_LINES} at most)")
    return findings


# Spelled so that this file does not find itself.
FORBIDDEN = [
    (re.compile(r"\b(?:TO" r"DO|FIX" r"ME|XX" r"X)\b"), "unfinished work; do it or open an issue"),
    (re.compile(r"(?<![\w.~/-])/(?:wo" r"rk|ro" r"ot|ho" r"me/\w+|Us" r"ers/\w+)/"), "a path of one machine"),
]


def forbidden_words(tree):
    """Marks of unfinished work, and paths that exist on one machine only."""
    documents = [f for f in tree.files if f.endswith((".md", ".txt", ".cmake"))]
    findings = []
    for path in sorted(set(tree.code() + tree.scripts() + documents)):
        for number, line in enumerate(tree.text(path).splitlines(), 1):
            for pattern, why in FORBIDDEN:
                if pattern.search(line):
                    findings.append(f"{path}:{number}: {why}: {line.strip()[:100]}")
    return findings


def dependencies(tree):
    """A library that CMake looks for and tools/setup does not install."""
    packages = {"Threads": "g++", "Boost": "libboost1.81-dev", "OpenSSL": "libssl-dev",
                "fmt": "libfmt-dev", "spdlog": "libspdlog-dev", "CLI11": "libcli11-dev",
                "tl-expected": "libexpected-dev", "prometheus-cpp": "prometheus-cpp-dev",
                "GTest": "libgtest-dev", "PkgConfig": "pkg-config", "Python3": "python3",
                "utf8proc": "libutf8proc-dev", "pcre2": "libpcre2-dev", "re2": "libre2-dev",
                "CURL": "libcurl4-openssl-dev", "LIBEDIT": "libedit-dev", "SQLite3": "libsqlite3-dev",
                "tomlplusplus": "libtomlplusplus-dev", "xxhash.h": "libxxhash-dev",
                "numa.h": "libnuma-dev", "JPEG": "libjpeg62-turbo-dev", "PNG": "libpng-dev",
                "GIF": "libgif-dev", "webp": "libwebp-dev", "liburing": "liburing-dev", "zmq.h": "libzmq3-dev",
                "nghttp2/nghttp2.h": "libnghttp2-dev", "libavformat/avformat.h": "libavformat-dev"}
    setup = tree.text("tools/setup")
    text = re.sub(r"#.*", "", tree.text("cmake/EspalierDependencies.cmake"))
    wanted = re.findall(r"find_package\((\S+)", text) + re.findall(r"pkg_check_modules\((\S+)", text)
    wanted += re.findall(r"find_path\(\S+ (\S+)", text)
    findings = []
    for name in wanted:
        package = packages.get(name)
        if package is None:
            findings.append(f"cmake/EspalierDependencies.cmake: name the package of {name} in "
                            "tests/tidy/tidy.py and install it in tools/setup")
        elif not re.search(rf"(?<![\w-]){re.escape(package)}(?![\w-])", setup):
            findings.append(f"tools/setup does not install {package}, which {name} needs")
    return findings


def word_rows(tree):
    """(rows, pending rooms) of words.txt; none in a tree without it."""
    path = os.path.join("tests", "tidy", "words.txt")
    return words.read_rows(tree.text(path)) if path in tree.files else ([], set())


def standard_words(tree):
    """A word that words.txt forbids, in a room that is not pending there."""
    rows, pending = word_rows(tree)
    return [f"{path}:{number}: write \"{row.instead}\" for {row.source}: {line.strip()[:90]}"
            for room, path, number, line, row in words.matches(tree.files, tree.text, rows)
            if not words.is_pending(path, room, pending)]


def word_counts(tree):
    """The matches of words.txt by room, pending ones included: a line for each room and expression."""
    rows, pending = word_rows(tree)
    counts = collections.Counter((room, row.source) for room, _, _, _, row in
                                 words.matches(tree.files, tree.text, rows))
    for (room, source), count in sorted(counts.items()):
        yield f"{room}{' (pending)' if room in pending else ''}: {count} of {source}"
    yield f"all: {sum(counts.values())}"


def header_comment(text):
    """Lines of the comment at the head of a file."""
    count = 0
    for line in text.splitlines():
        if not line.startswith("//"):
            break
        count += 1
    return count


def kernel_headers(tree):
    """A comment of more than KERNEL_HEADER_LINES_MAX lines at the head of a kernel's file."""
    if "kernels" in word_rows(tree)[1]:
        return []
    return [f"{path}: its head comment has {lines} lines; move what was tried to docs/notes/ "
            f"({KERNEL_HEADER_LINES_MAX} at most)"
            for path in tree.code() if room_of(path) == "kernels"
            for lines in [header_comment(tree.text(path))] if lines > KERNEL_HEADER_LINES_MAX]


def readme_length(tree):
    """A room's README of more than README_LINES_MAX lines."""
    pending = word_rows(tree)[1]
    return [f"{path}: {lines} lines ({README_LINES_MAX} at most)"
            for path in tree.files if os.path.basename(path) == "README.md" and room_of(path)
            for lines in [tree.text(path).count("\n")]
            if lines > README_LINES_MAX and room_of(path) not in pending]


LINK = re.compile(r"\]\((?!\w+:|#|<)([^)#\s]+)(?:#[^)]*)?\)")
# File names in prose; FOREIGN are those of libraries, and examples of names.
CITED = re.compile(r"(?<![\w./*<-])((?:[\w.-]+/)*[\w-]+\.(?:h|cc|cuh?|md))(?![\w/])")
PATH = re.compile(r"(?<![\w./-])((?:src|bench|docs|tests|tools|examples|cmake|python|share)/[\w./-]*\w)(?!/?[\w*<{])")
FOREIGN = {"sysexits.h", "pcre2.h", "xxhash.h", "utf8proc.h", "cuda.h", "cublasLt.h", "cuda_runtime.h", "engine.h",
           "immintrin.h", "arm_neon.h", "Python.h", "nccl.h", "numa.h", "ggml-common.h", "x.cc", "x_test.cc"}


def prose(tree, path):
    """(line number, text) of a document's lines and of a source's comments."""
    for number, line in enumerate(tree.text(path).splitlines(), 1):
        if path.endswith(".md"):
            yield number, line
        elif "//" in line and not re.search(r"\w+://", line):
            yield number, line.partition("//")[2]


# Placeholders of file names in documents: each stands for letters, digits and underscores.
PLACEHOLDER = re.compile(r"NAME|ISA|VARIANT")


def exists(tree, path, name):
    """Whether `name`, cited in `path`, is a file or folder of the tree, by its path or its end. A
    name with placeholders is a pattern that at least one file matches."""
    if PLACEHOLDER.search(name):
        pattern = re.compile("(?:^|/)" + r"\w+".join(map(re.escape, PLACEHOLDER.split(name))) + "$")
        return any(pattern.search(f) for f in tree.files)
    folder = os.path.dirname(path)
    places = (os.path.normpath(os.path.join(base, name)) for base in ("", folder, "src", "include"))
    return (any(os.path.exists(os.path.join(tree.root, p)) for p in places) or
            any(f.endswith("/" + name) for f in tree.files) or "sentencepiece/" in name)


def cited_files(tree):
    """A link, or a file that a comment or document names, that does not exist."""
    pending = word_rows(tree)[1]
    findings = []
    for path in tree.code() + [f for f in tree.files if f.endswith(".md")]:
        if room_of(path) in pending:
            continue
        for number, line in prose(tree, path):
            names = set(CITED.findall(line)) | set(PATH.findall(line))
            if path.endswith(".md"):
                names |= set(LINK.findall(line))
            findings += [f"{path}:{number}: there is no {name}" for name in sorted(names)
                         if os.path.basename(name) not in FOREIGN and not exists(tree, path, name)]
    return findings


def limits(tree):
    """A function or class that exceeds its limit (metrics.py) and has no row in limits.txt, or
    that has grown beyond it."""
    path = os.path.join("tests", "tidy", "limits.txt")
    allowed = metrics.read_limits(tree.text(path)) if path in tree.files else {}
    functions, classes = metrics.measure(tree.root, metrics.product_files(tree.root))
    return [finding for key, value, finding in metrics.over_limits(functions, classes)
            if value > allowed.get(key, 0)]


CHECKS = {c.__name__: c for c in (layering, table, cycles, dead_files, commented_code, file_length,
                                  forbidden_words, dependencies, standard_words, kernel_headers,
                                  readme_length, cited_files, limits)}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--root", default=os.path.join(os.path.dirname(__file__), "..", ".."))
    parser.add_argument("--build", help="build folder, whose compile_commands.json is read")
    parser.add_argument("--counts", action="store_true", help="matches of words.txt by room, and no check")
    parser.add_argument("checks", nargs="*", metavar="CHECK",
                        help=f"of: {', '.join(CHECKS)} (default: all)")
    args = parser.parse_args()
    unknown = [c for c in args.checks if c not in CHECKS]
    if unknown:
        parser.error(f"no check is named {unknown[0]}")
    tree = Tree(args.root, args.build)
    if args.counts:
        print("\n".join(word_counts(tree)))
        return 0
    findings = [f"{name}: {finding}" for name in args.checks or CHECKS
                for finding in CHECKS[name](tree)]
    print("\n".join(findings) or "tidy")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
