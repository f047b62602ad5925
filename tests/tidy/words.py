"""The list of words that may not come back: reads words.txt and finds its expressions in a tree."""
import os
import re
from dataclasses import dataclass

BOUNDARY = r"(?:(?<![A-Za-z])(?=[A-Za-z])|(?<=[A-Za-z])(?![A-Za-z]))"
TOP_FOLDERS = ("bench", "docs", "tests", "python", "examples", "tools", "cmake")
SUFFIXES = (".cc", ".cu", ".h", ".cuh", ".py", ".md", ".txt", ".cmake")
# The list itself, its tests, other programs' texts, and words that stand for any.
EXCEPT = re.compile(r"^(?:tests/tidy/|tests/compat/upstream/|tests/fuzz/words|tests/fuzz/seeds|bench/lang/templates"
                    r"|docs/sglang_(?:flags|metrics)\.md$)")
TEST = re.compile(r"_test\.(?:cc|cu|py)$|/testing/|^tests/")
CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
LITERAL = re.compile(r'"(?:\\.|[^"\\])*"')


@dataclass
class Row:
    rooms: list
    pattern: re.Pattern
    source: str
    instead: str

    def covers(self, room, is_src):
        return "*" in self.rooms or room in self.rooms or (is_src and "src" in self.rooms)


def read_rows(text):
    """(rows, pending rooms) of words.txt."""
    rows, pending = [], set()
    for line in text.splitlines():
        if line.startswith("pending:"):
            pending |= set(line.partition(":")[2].split())
        elif line and not line.startswith("#"):
            rooms, rest = line.split(" | ", 1)
            expression, instead = rest.rsplit(" | ", 1)
            pattern = re.compile(expression.replace(r"\b", BOUNDARY), re.I)
            rows.append(Row(rooms.split(), pattern, expression, instead))
    return rows, pending


def is_pending(path, room, pending):
    """Whether a pending line names the room, or a path that `path` begins with."""
    return room in pending or any("/" in name and path.startswith(name) for name in pending)


def room_of(path):
    """(room or top folder, whether it lies in src/)."""
    parts = path.split(os.sep)
    if parts[0] == "src" and len(parts) > 2:
        return parts[1], True
    return (parts[0] if parts[0] in TOP_FOLDERS and len(parts) > 1 else "docs"), False


def matches(files, text_of, rows):
    """(room, path, line number, line, row) of each line that a row forbids."""
    for path in files:
        if not path.endswith(SUFFIXES) or EXCEPT.search(path):
            continue
        room, is_src = room_of(path)
        own = [row for row in rows if row.covers(room, is_src)]
        is_test = TEST.search(path)
        for number, line in enumerate(text_of(path).splitlines() if own else (), 1):
            shown = CAMEL.sub("_", LITERAL.sub('""', line) if is_test else line)
            for row in own:
                if row.pattern.search(shown):
                    yield room, path, number, line, row
