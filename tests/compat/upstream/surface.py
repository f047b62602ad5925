"""The flags, routes and metrics of the installed SGLang beside what our tests hold them to, read from its source.

  surface.py [--print-flags | --print-routes]

The list of flags (server_flags.txt) is what `apps_test` holds our flags to, docs/sglang_routes.md and
docs/sglang_metrics.md are what `server_test` holds our routes and metrics to. All must name what the package has, no
more and no less. Then `espalier serve` gets each flag, and a server each route: a table counts what becomes of them,
and what is unknown to them is a difference."""
import ast
import collections
import concurrent.futures
import glob
import importlib.util
import os
import re
import subprocess
import sys

HERE = os.path.dirname(os.path.realpath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "..", "e2e"))
from harness import BINARY, Server, clean_environment  # noqa: E402

DOCS = os.path.join(HERE, "..", "..", "..", "docs")
# Where a route of the server of requests is made; other servers of the package (weights, gates) are not asked for.
ROUTE_FILES = ("http_server.py", "v1_loads.py", "elastic_ep.py")
METHODS = ("get", "post", "put", "delete", "patch", "api_route", "websocket")


def source_folder():
    # Found without being imported, which would start its engine's packages.
    return os.path.join(os.path.dirname(importlib.util.find_spec("sglang").origin), "srt")


def parsed(path):
    with open(path, encoding="utf-8") as f:
        return ast.parse(f.read())


def called(node):
    """The name that a call calls; "" for what is no call."""
    return node.func.id if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) else ""


def flags_of_field(name, metadata):
    """The flags of a field `name: A[type, metadata ...]`: none where the metadata is no help and no Arg."""
    for item in metadata:
        if called(item) == "Arg":
            stated = {keyword.arg: keyword.value for keyword in item.keywords}
            if "no_cli" in stated and ast.literal_eval(stated["no_cli"]):
                return []
            own = ast.literal_eval(stated["cli_name"]) if "cli_name" in stated else None
            aliases = ast.literal_eval(stated["aliases"]) if "aliases" in stated else None
            out = [own or "--" + name.replace("_", "-"), *(aliases or [])]
            if getattr(stated.get("action"), "attr", "") == "BooleanOptionalAction":
                out += ["--no-" + flag.removeprefix("--") for flag in out]
            return out
        if not called(item):
            return ["--" + name.replace("_", "-")]  # its help alone
    return []


def flags(root):
    out = set()
    for path in glob.glob(os.path.join(root, "arg_groups", "fields", "*.py")):
        for node in ast.walk(parsed(path)):
            if (isinstance(node, ast.AnnAssign) and isinstance(node.annotation, ast.Subscript)
                    and getattr(node.annotation.value, "id", "") == "A"):
                out.update(flags_of_field(node.target.id, node.annotation.slice.elts[1:]))
    for node in ast.walk(parsed(os.path.join(root, "server_args.py"))):
        if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "add_argument":
            out.update(arg.value for arg in node.args if isinstance(arg, ast.Constant))
    return {flag.removeprefix("--") for flag in out if flag.startswith("--")}


def literal_path(node):
    """The path of a route; of os.environ.get(NAME, PATH) the path."""
    if isinstance(node, ast.Constant):
        return node.value
    return node.args[1].value if isinstance(node, ast.Call) and len(node.args) == 2 else None


def routes(root):
    out = set()
    for name in ROUTE_FILES:
        for node in ast.walk(parsed(os.path.join(root, "entrypoints", name))):
            if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                continue
            for call in node.decorator_list:
                if (isinstance(call, ast.Call) and getattr(call.func, "attr", "") in METHODS and call.args
                        and getattr(call.func.value, "id", "") in ("app", "router")):
                    out.add(literal_path(call.args[0]))
    # The metrics are mounted, not decorated.
    return {path for path in out if path} | {"/metrics"}


def metrics(root):
    out = set()
    for path in glob.glob(os.path.join(root, "**", "*.py"), recursive=True):
        with open(path, encoding="utf-8") as f:
            out.update(re.findall(r"[\"'](sglang:[a-z0-9_]+)[\"']", f.read()))
    return out


def shape(path):
    """A pattern without the names of its parts: {model:path} and {model*} alike."""
    return re.sub(r"\{[^}]*[:*][^}]*\}", "{*}", re.sub(r"\{[^}:*]*\}", "{}", path))


def listed_flags():
    with open(os.path.join(HERE, "server_flags.txt"), encoding="utf-8") as f:
        return set(f.read().split())


def listed_routes():
    """Those of the page, but the ones that only earlier versions had."""
    with open(os.path.join(DOCS, "sglang_routes.md"), encoding="utf-8") as f:
        rows = re.findall(r"^\| `([^`]+)` \| \w+ \| (.*)\|$", f.read(), re.MULTILINE)
    return {path for path, remark in rows if not remark.startswith("of earlier versions")}


def listed_metrics():
    with open(os.path.join(DOCS, "sglang_metrics.md"), encoding="utf-8") as f:
        return set(re.findall(r"^\| `([^`]+)` \|", f.read(), re.MULTILINE))


def own_flags():
    """{flag: treatment} of docs/sglang_flags.md, which is made from the source, and the names of our settings."""
    with open(os.path.join(DOCS, "sglang_flags.md"), encoding="utf-8") as f:
        treatments = dict(re.findall(r"^\| `--([^`]+)` \| ([^|]+) \|", f.read(), re.MULTILINE))
    with open(os.path.join(DOCS, "flags.md"), encoding="utf-8") as f:
        return treatments, set(re.findall(r"^\| `--([a-z0-9-]+)`", f.read(), re.MULTILINE)) | {"config"}


def what_serve_says(flag):
    """The first line of its refusal: of the flag, or of the port, which is none, where the flag is accepted."""
    for word in ("--" + flag, f"--{flag}=x"):
        done = subprocess.run([BINARY, "serve", "--port", "none", word], env=clean_environment(),
                              stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode != 0, f"{word}: a server started at the port 'none'"
        said = next((line for line in done.stderr.splitlines() if not line.startswith("note:")), "")
        if "needs a value" not in said:
            break
    return said


def flag_kinds(names):
    """({kind: number of flags}, what is wrong), by what the command says of each."""
    treatments, settings = own_flags()
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        said = dict(zip(names, pool.map(what_serve_says, names)))
    kinds, wrong = collections.Counter(), []
    for name in names:
        refused = re.search(r" of SGLang is not supported: \S", said[name]) is not None
        if f"there is no flag --{name}" in said[name]:
            wrong.append(f"the flag {name} is unknown: {said[name]}")
        elif refused != (treatments.get(name) == "refused"):
            wrong.append(f"the flag {name} is '{treatments.get(name, 'a setting')}' by its page: {said[name]}")
        elif name in treatments:
            row = treatments[name]
            kinds[row if row in ("refused", "no effect") else "a value or two accepted, others refused"] += 1
        else:
            kinds["same" if name in settings else "other name"] += 1
    return kinds, wrong


def route_kinds(paths):
    """({kind: number of routes}, what is wrong), by what a server answers."""
    kinds, wrong = collections.Counter(), []
    with Server() as server:
        for path in paths:
            asked = re.sub(r"\{[^}]*\}", "x", path)
            answers = [server.request(method, asked, "{}" if method == "POST" else None) for method in ("GET", "POST")]
            if any(status == 501 and "is not served here: " in text for status, _, text in answers):
                kinds["refused"] += 1
            elif all(status == 404 and f"there is no {asked} here" in text for status, _, text in answers):
                wrong.append(f"the route {path} is unknown: {answers[0][2]}")
            else:
                kinds["same"] += 1
    return kinds, wrong


def table(rows):
    out = ["| of SGLang | same | other name | no effect, noted | a value or two accepted, others refused "
           "| refused with advice | unknown |", "|---|---|---|---|---|---|---|"]
    for what, kinds, wrong in rows:
        figures = [kinds[kind] for kind in ("same", "other name", "no effect",
                                            "a value or two accepted, others refused", "refused")]
        out.append(f"| {sum(kinds.values()) + len(wrong)} {what} | " + " | ".join(map(str, [*figures, len(wrong)]))
                   + " |")
    return out


def differences(what, theirs, ours):
    for name in sorted(theirs - ours):
        yield f"{what} {name} of SGLang is in none of our tables"
    for name in sorted(ours - theirs):
        yield f"{what} {name} is in our table and not in SGLang"


def main():
    root = source_folder()
    its_flags, its_routes, its_metrics = flags(root), routes(root), metrics(root)
    if sys.argv[1:] in (["--print-flags"], ["--print-routes"]):
        print("\n".join(sorted(its_flags if sys.argv[1] == "--print-flags" else its_routes)))
        return 0
    if sys.argv[1:]:
        sys.exit(__doc__)
    wrong = [*differences("the flag", its_flags, listed_flags()),
             *differences("the route", {shape(path) for path in its_routes}, {shape(path) for path in listed_routes()}),
             *differences("the metric", its_metrics, listed_metrics())]
    by_flag, unlike = flag_kinds(sorted(its_flags))
    by_route, unserved = route_kinds(sorted(its_routes))
    print("\n".join(table([("flags", by_flag, unlike), ("routes", by_route, unserved)])))
    wrong += unlike + unserved
    print(f"SGLang's surface: {len(its_flags)} flags, {len(its_routes)} routes, {len(its_metrics)} metrics, "
          f"{len(wrong)} differences")
    for line in wrong:
        print(line)
    return 1 if wrong or not its_flags else 0


if __name__ == "__main__":
    sys.exit(main())
