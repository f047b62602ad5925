#!/usr/bin/env python3
"""Lengths of functions and sizes of classes, of the C++ and CUDA sources of the product.

    tests/tidy/metrics.py [--root DIR] [--list] [--comments] [--write-limits]

Prints a table: median, 99th percentile and share over 70 lines of all function bodies; classes of
more than 200 lines; the largest class by methods and by fields. --list names what exceeds a limit.

The parser follows braces and the text before them. It needs no compiler and ignores preprocessor
conditions, so both branches of an #if count. A function's length is the number of lines from its
first line (return type included) to its closing brace. Lambdas belong to the function around them.
"""
import argparse
import os
import re
import statistics
from dataclasses import dataclass, field

FUNCTION_LINES_MAX = 70
CLASS_LINES_MAX = 200
CLASS_METHODS_MAX = 30
CLASS_FIELDS_MAX = 20
RECORD_METHODS_MAX = 3
TEST_NAMES = re.compile(r"(?:_test\.(?:cc|cu|h)|/test_[^/]*\.h|/testing/|/fake_[^/]*|_fuzz\.cc)")


@dataclass
class Function:
    name: str
    path: str
    line: int
    lines: int


@dataclass
class Class:
    name: str
    path: str
    line: int
    lines: int = 0
    methods: set = field(default_factory=set)
    fields: int = 0


def blank(match):
    """Spaces of the same shape, so that lines and columns stay."""
    return re.sub(r"[^\n]", " ", match.group(0))


LITERALS = re.compile(
    r'//[^\n]*|/\*.*?\*/|R"([^\s()\\]{0,16})\(.*?\)\1"|"(?:\\.|[^"\\\n])*"|'
    r"(?<![0-9A-Fa-f])'(?:\\.|[^'\\\n])+'", re.S)
PREPROCESSOR = re.compile(r"^[ \t]*#(?:\\\n|[^\n])*", re.M)


def strip(text):
    """The text without comments, literals' content and preprocessor lines, all blanked."""
    def literal(match):
        found = match.group(0)
        return blank(match) if found.startswith(("//", "/*")) else '"' + blank(match)[1:]
    return PREPROCESSOR.sub(blank, LITERALS.sub(literal, text))


def without_nested(head, opening, closing):
    """`head` without what stands between brackets of one kind."""
    out, depth = [], 0
    for c in head:
        if c == opening:
            depth += 1
        if depth == 0:
            out.append(c)
        if c == closing and depth:
            depth -= 1
    return "".join(out)


CLASS_HEAD = re.compile(r"\b(?:class|struct|union)\b(?!.*\)\s*$)")
CALL = re.compile(r"([~\w]+|operator\s*(?:[^\s\w(]+|\(\)|\w[\w:<>*& ]*))\s*\(")


def strip_templates(head):
    previous = None
    while previous != head:
        previous = head
        head = re.sub(r"\btemplate\s*<[^<>]*>|<[^<>()=]*>", " ", head)
    return head


def kind_of(head):
    """What a brace opens that stands behind `head`: (kind, name)."""
    head = strip_templates(re.sub(r"\[\[.*?\]\]|\b(?:public|private|protected)\s*:|\b__launch_bounds__\s*\([^()]*\)",
                                  " ", head)).strip()
    if re.search(r"\bnamespace\b[^()]*$", head) or re.search(r'\bextern\s*"\s*$', head):
        return "namespace", ""
    if re.search(r"\benum\b[^()]*$", head):
        return "other", ""
    flat = without_nested(re.sub(r"\balignas\s*\([^()]*\)", "", head), "(", ")")
    if CLASS_HEAD.search(head) and "=" not in flat and "(" not in re.sub(r"\balignas\s*\([^()]*\)", "", head):
        names = re.findall(r"[\w:]+", re.split(r"(?<!:):(?!:)", flat, maxsplit=1)[0])
        names = [n for n in names if n not in ("class", "struct", "union", "final", "typedef", "static", "const",
                                               "constexpr", "inline", "mutable")]
        return "class", names[-1].split("::")[-1] if names else "(unnamed)"
    call = CALL.search(head)
    if call and not re.search(r"=\s*$", head) and "=" not in without_nested(
            head[:call.start()], "<", ">").replace("operator==", "").replace("operator=", ""):
        return "function", call.group(1)
    return "other", ""


HEAD_START = re.compile(r"\s*(?:(?:public|private|protected)\s*:\s*)*")


def first_line(text, start, end):
    """The line where the head that lies in [start, end) begins, behind access specifiers."""
    return text.count("\n", 0, HEAD_START.match(text, start, end).end()) + 1


def skip_block(text, at):
    """The position of the brace that closes the one at `at`."""
    depth = 0
    for match in re.compile(r"[{}]").finditer(text, at):
        depth += 1 if match.group(0) == "{" else -1
        if depth == 0:
            return match.start()
    return len(text)


METHOD = re.compile(r"(~?\w+|operator\s*\S+?)\s*\((?!\s*\*)")
NOT_MEMBERS = re.compile(r"^\s*(?:using|friend|typedef|static_assert|enum|template\s*<[^;]*>\s*(?:class|struct)"
                         r"|class\b|struct\b|union\b|static\s+constexpr|static\s+inline|inline\s+static"
                         r"|constexpr\s+static|static\s)")


def add_member(owner, statement):
    """Counts a declaration that ends with `;` as a method or as fields."""
    statement = re.sub(r"\b(?:public|private|protected)\s*:", " ", statement).strip()
    statement = re.sub(r"\[\[.*?\]\]", " ", statement)
    if not statement:
        return
    previous = None
    while "operator" not in statement and previous != statement:  # a callable's type is no method
        previous, statement = statement, re.sub(r"(\w)\s*<[^<>;{}]*>", r"\1", statement)
    plain = strip_templates(re.split(r"[={]", without_nested(strip_templates(statement), "{", "}"), maxsplit=1)[0])
    call = METHOD.search(plain) if not re.match(r"\s*(?:using|friend|typedef|static_assert)\b", plain) else None
    if "operator" in statement or call:
        if not re.match(r"\s*(?:using|friend|typedef|static_assert)\b", statement):
            if "= delete" not in statement:
                owner.methods.add(call.group(1) if call else statement.split("(")[0].split()[-1])
        return
    if NOT_MEMBERS.match(statement):
        return
    owner.fields += 1 + without_nested(strip_templates(re.sub(r"\{[^{}]*\}|=[^,;]*", "", statement)), "(",
                                       ")").count(",")


class Parser:
    def __init__(self, path, source):
        self.path = path
        self.text = strip(source)
        self.functions, self.classes = [], []
        self.parse(0, None)

    def line(self, at):
        return self.text.count("\n", 0, at) + 1

    def parse(self, at, owner):
        """Reads declarations from `at` to the brace that closes their scope; returns its position."""
        start, text, paren = at, self.text, 0
        while at < len(text):
            c = text[at]
            if c == "(":
                paren += 1
            elif c == ")":
                paren = max(0, paren - 1)
            elif c == "}" and not paren:
                return at
            elif c == ";" and not paren:
                if owner is not None:
                    add_member(owner, text[start:at])
                start = at + 1
            elif c == "{" and paren:
                at = skip_block(text, at)
            elif c == "{":
                at, start = self.block(start, at, owner)
            at += 1
        return at

    def block(self, start, at, owner):
        """The block at `at`, whose head begins at `start`: (its end, where the next head begins)."""
        text = self.text
        head = text[start:at]
        kind, name = kind_of(head)
        if kind == "namespace":
            end = self.parse(at + 1, None)
            return end, end + 1
        if kind == "class":
            made = Class(name, self.path, first_line(text, start, at))
            end = self.parse(at + 1, made)
            made.lines = self.line(end) - made.line + 1
            self.classes.append(made)
            return end, end + 1
        end = skip_block(text, at)
        if kind == "function" and re.search(r"\)\s*:[^:]", head) and self.is_initializer(end):
            return end, start  # a member initialised with braces; the body comes later
        if kind == "function":
            line = first_line(text, start, at)
            self.functions.append(Function(name, self.path, line, self.line(end) - line + 1))
            if owner is not None and not re.search(r"\bfriend\b", head):
                owner.methods.add(name)
            return end, end + 1
        return end, (end + 1 if re.search(r"\benum\b", head) else start)

    def is_initializer(self, end):
        return re.match(r"\}\s*(?:,|\{|\.\.\.)", self.text[end:end + 200]) is not None


def product_files(root):
    for folder, names, files in os.walk(os.path.join(root, "src")):
        names.sort()
        for name in sorted(files):
            path = os.path.relpath(os.path.join(folder, name), root)
            if name.endswith((".cc", ".cu", ".h", ".cuh")) and not TEST_NAMES.search(path):
                yield path


def measure(root, paths):
    functions, classes = [], []
    for path in paths:
        with open(os.path.join(root, path), encoding="utf-8", errors="replace") as f:
            parsed = Parser(path, f.read())
        functions += parsed.functions
        classes += parsed.classes
    return functions, classes


def comment_share(root, paths):
    """Comment lines in all lines of code and comments, blank lines left out."""
    comments = lines = 0
    for path in paths:
        with open(os.path.join(root, path), encoding="utf-8", errors="replace") as f:
            for line in f:
                line = line.strip()
                lines += bool(line)
                comments += line.startswith(("//", "/*", "* "))
    return comments / max(lines, 1)


def table(functions, classes):
    lengths = sorted(f.lines for f in functions)
    p99 = lengths[min(len(lengths) - 1, int(0.99 * len(lengths)))]
    long = sum(n > FUNCTION_LINES_MAX for n in lengths)
    large = sorted(classes, key=lambda c: -c.lines)
    most = max(classes, key=lambda c: len(c.methods) + c.fields)
    methods = max(classes, key=lambda c: len(c.methods))
    fields = max(classes, key=lambda c: c.fields)
    yield f"functions                      {len(lengths)}"
    yield (f"lines: median / p99 / over {FUNCTION_LINES_MAX}    {statistics.median(lengths):g} / {p99} / "
           f"{100 * long / len(lengths):.2f} % ({long})")
    yield f"classes over {CLASS_LINES_MAX} lines         {sum(c.lines > CLASS_LINES_MAX for c in classes)}"
    for what, c in (("longest class", large[0]), ("largest class", most), ("most methods", methods),
                    ("most fields", fields)):
        yield f"{what:<31}{c.name}: {c.lines} lines, {len(c.methods)} methods + {c.fields} fields ({c.path})"


def over_limits(functions, classes):
    """((room, kind, name), value, finding) of all that exceeds a limit, the largest first.

    A record (configuration, statistics, a kernel's arguments) has no behaviour to keep small, so
    the limit of fields is for classes of more than RECORD_METHODS_MAX methods.
    """
    found = []

    def judge(kind, what, value, limit):
        if value > limit:
            found.append(((what.path.split(os.sep)[1], kind, what.name), value,
                          f"{what.path}:{what.line}: {what.name} has {value} {kind} ({limit} at most)"))

    for f in functions:
        judge("lines", f, f.lines, FUNCTION_LINES_MAX)
    for c in classes:
        judge("class-lines", c, c.lines, CLASS_LINES_MAX)
        judge("methods", c, len(c.methods), CLASS_METHODS_MAX)
        if len(c.methods) > RECORD_METHODS_MAX:
            judge("fields", c, c.fields, CLASS_FIELDS_MAX)
    return sorted(found, key=lambda row: -row[1])


def read_limits(text):
    """{(room, kind, name): value} of limits.txt."""
    rows = (line.split() for line in text.splitlines() if line and not line.startswith("#"))
    return {(room, kind, name): int(value) for room, kind, name, value in rows}


LIMITS_HEAD = """\
# What exceeds a limit of tests/tidy/metrics.py today: room, kind, name, value. It may shrink, not grow, and
# nothing may join it. `tests/tidy/metrics.py --write-limits` writes it anew.
"""


def write_limits(root, functions, classes):
    rows = {}
    for key, value, _ in over_limits(functions, classes):
        rows[key] = max(value, rows.get(key, 0))
    with open(os.path.join(root, "tests", "tidy", "limits.txt"), "w", encoding="utf-8") as f:
        f.write(LIMITS_HEAD + "".join(f"{' '.join(key)} {value}\n" for key, value in sorted(rows.items())))


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--root", default=os.path.join(os.path.dirname(__file__), "..", ".."))
    parser.add_argument("--list", action="store_true", help="name what exceeds a limit")
    parser.add_argument("--write-limits", action="store_true", help="write limits.txt anew")
    parser.add_argument("--comments", action="store_true", help="share of comment lines by room")
    args = parser.parse_args()
    paths = list(product_files(args.root))
    functions, classes = measure(args.root, paths)
    print("\n".join(table(functions, classes)))
    if args.list:
        print("\n".join(finding for _, _, finding in over_limits(functions, classes)))
    if args.write_limits:
        write_limits(args.root, functions, classes)
    if args.comments:
        for room in sorted({p.split(os.sep)[1] for p in paths}):
            share = comment_share(args.root, [p for p in paths if p.split(os.sep)[1] == room])
            print(f"comment lines in {room:<14}{100 * share:.1f} %")


if __name__ == "__main__":
    main()
