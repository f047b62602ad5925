"""Grammars and schemas made to cost time and memory. Each must be answered (a text or a 400) within a
time, others must be served meanwhile, and what stays in memory must stay below a bound."""
import json
import threading
import time

from common import Outcome, Target

ANSWER_SECONDS = 20.0
HEALTH_SECONDS_MAX = 1.0
MEMORY_MIB_MAX = 1500  # resident, with the shipped model and a small KV cache


def nested_schema(depth, make):
    schema = {"type": "integer"}
    for _ in range(depth):
        schema = make(schema)
    return schema


def regexes(rng):
    n, m = rng.randint(50, 2000), rng.randint(2, 60)
    atom = rng.choice(["a", ".", "[a-z]", "\\p{L}", "(a|b)", "[^\"]", "\\w", "(?:ab?)"])
    return rng.choice([
        f"{atom}{{1,{n}}}x", f"({atom}{{0,{m}}}){{0,{m}}}", f"({atom}*)*y", f"(x|z)*x(x|z){{{n}}}", "(" * n + "a" + ")" * n,
        "|".join(f"{atom}{{{i}}}" for i in range(1, m)), f"({atom}+)+$", f"^((?!{atom}b).)*$", f"{atom}{{{n * 1000}}}",
        f"({'|'.join('ab' * i for i in range(m))})*", "[" + "".join(chr(0x100 + 2 * i) for i in range(n)) + "]*",
        "a?" * m + "a" * m, "\\d{1,9}" * m, "(" + atom, f"{atom}{{{n},{m}}}", "(?P<a>x)(?P=a)", "\\1" * m])


def schemas(rng):
    n = rng.randint(20, 600)
    props = {f"p{i}": {"type": rng.choice(["string", "integer", "number", "boolean", "null"])} for i in range(n)}
    return rng.choice([
        {"type": "object", "properties": props}, {"type": "object", "properties": props, "required": list(props)},
        {"enum": [f"value {i} " * 5 for i in range(n * 10)]}, {"type": "string", "minLength": n * 10, "maxLength": n * 20},
        {"anyOf": [{"type": "object", "properties": {f"q{i}": {"const": i}}, "required": [f"q{i}"]} for i in range(n)]},
        {"oneOf": [{"type": "string", "pattern": f"^a{{{i}}}b*$"} for i in range(min(n, 80))]},
        {"allOf": [{"type": "integer", "multipleOf": p} for p in (2, 3, 5, 7, 11, 13, 17, 19, 23, 29)]},
        {"not": {"not": {"not": {"type": "object", "properties": props}}}},
        {"type": "array", "uniqueItems": True, "items": {"enum": list(range(n))}, "minItems": n // 2},
        {"type": "array", "items": {"type": "integer"}, "minItems": n * 100, "maxItems": n * 1000},
        {"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"},
        {"$defs": {"t": {"type": "object", "properties": {"l": {"$ref": "#/$defs/t"}, "r": {"$ref": "#/$defs/t"}},
                         "required": ["l", "r"]}}, "$ref": "#/$defs/t"},
        nested_schema(n, lambda s: {"type": "array", "items": s}),
        nested_schema(min(n, 300), lambda s: {"type": "object", "properties": {"a": s}, "required": ["a"]}),
        nested_schema(13, lambda s: {"allOf": [s, s]}), nested_schema(13, lambda s: {"anyOf": [s, {"type": "array", "items": s}]}),
        {"patternProperties": {f"^{'(a|b)' * i}$": {"type": "integer"} for i in range(min(n, 60))}},
        {"type": "number", "minimum": -10.0 ** rng.randint(1, 300), "maximum": 10.0 ** rng.randint(1, 300)},
        {"type": "integer", "multipleOf": rng.choice([1e-9, 0.1, 7919, 10 ** 40])},
        {"type": "string", "pattern": regexes(rng)}, {"const": {"a" * n: [[["b"] * n]]}},
        {"type": "object", "propertyNames": {"pattern": regexes(rng)}, "minProperties": n},
        {"contains": {"type": "integer"}, "minContains": n, "maxContains": n * 2, "unevaluatedItems": False},
        {"if": {"properties": props}, "then": {"required": list(props)}, "else": {"type": "string"}}])


def ebnfs(rng):
    n = rng.randint(5, 400)
    return rng.choice([
        "root ::= root root | \"a\"", "root ::= a\na ::= b\nb ::= a", "root ::= " + "(" * n + "\"a\"" + ")" * n,
        f"root ::= \"a\"{{1,{n * 1000}}}", "root ::= x*\nx ::= \"a\"*", "root ::= \"a\" root \"b\" | root root | \"\"",
        "root ::= " + " | ".join(f"r{i}" for i in range(n)) + "\n" + "\n".join(f"r{i} ::= \"k{i}\" r{(i + 1) % n}" for i in range(n)),
        "root ::= [^\\x00-\\U0010FFFF]", "root ::= missing", "root ::= \"" + "a" * n * 100 + "\"", "root ::= (((\"a\"?)*)+)*"])


def bodies(rng):
    """Without end: (path, body, what it is)."""
    while True:
        kind = rng.choice(["regex", "json_schema", "ebnf", "stop_regex", "structural_tag", "compile", "choices"])
        sampling = {"max_new_tokens": 8, "temperature": 1.0}
        if kind in ("regex", "stop_regex"):
            text = regexes(rng)
            sampling[kind] = [text] * rng.choice([1, 50]) if kind == "stop_regex" else text
        elif kind == "json_schema":
            sampling[kind] = json.dumps(schemas(rng))
        elif kind == "ebnf":
            sampling[kind] = ebnfs(rng)
        elif kind == "choices":
            sampling[kind] = ["word" * rng.randint(1, 50) + str(i) for i in range(rng.choice([10, 20_000]))]
        elif kind == "structural_tag":
            sampling[kind] = json.dumps({"type": "structural_tag", "format": {"type": "triggered_tags", "triggers": ["<f"],
                "tags": [{"begin": f"<f{i}>", "content": {"type": "json_schema", "json_schema": schemas(rng)}, "end": "</f>"}
                         for i in range(rng.randint(1, 20))]}})
        if kind == "compile":
            yield "/v1/grammar/compile", {"json_schema": schemas(rng)}, kind
        else:
            yield "/generate", {"text": "a", "sampling_params": sampling}, kind


def watch_health(target, outcome, ended, slowest):
    while not ended.wait(0.1):
        started = time.monotonic()
        status = target.send("GET", "/health").status
        slowest.append(time.monotonic() - started)
        if status != 200:
            outcome.fail("/health is not 200 while grammars compile", status)


def run(budget):
    outcome = Outcome("grammars")
    slowest, times = [0.0], [0.0]
    with Target("--context-length", "256", "--max-total-tokens", "16384") as target:
        ended = threading.Event()
        watcher = threading.Thread(target=watch_health, args=(target, outcome, ended, slowest))
        watcher.start()
        for path, body, kind in bodies(budget.random):
            if budget.is_spent(outcome.cases) or not target.is_alive():
                break
            outcome.case()
            started = time.monotonic()
            answer = target.send("POST", path, body, timeout=ANSWER_SECONDS)
            times.append(time.monotonic() - started)
            if answer.status not in (200, 400, 413):
                outcome.fail(f"status {answer.status} of a {kind}", f"{json.dumps(body)[:300]} {answer.text()[:150]}")
        ended.set()
        watcher.join()
        if target.check(outcome, "grammars"):
            peak = target.memory_mib("VmHWM")
            outcome.fact(f"slowest {max(times):.1f} s, /health at most {max(slowest) * 1000:.0f} ms, peak {peak:.0f} MiB")
            if peak > MEMORY_MIB_MAX:
                outcome.fail("too much memory", f"{peak:.0f} MiB")
            if max(slowest) > HEALTH_SECONDS_MAX:
                outcome.fail("/health waits for grammars", f"{max(slowest):.2f} s")
    return outcome
