#!/usr/bin/env python3
"""Espalier beside vLLM and SGLang on one model shape: one table, as Markdown and JSON.

    bench/peers/compare.py [--config DIR] [--peer NAME=PYTHON ...] [--device cuda|cpu] [--build DIR]
                           [--row NAME ...] [--http] [--quick] [--peer-arguments NAME=JSON ...]
                           [--markdown FILE] [--json FILE]

NAME is vllm or sglang, PYTHON an interpreter that can import it; the peer runs in-process there
(bench/peers/measure.py), with dummy weights and token ids, as Espalier's engine does. --http adds Espalier
over HTTP. --quick leaves the two longest rows out. The engines run one after the other. On one H200 a shape of
8 B takes about two minutes an engine beside its start.

Dummy weights may route a mixture of experts to a few of them, and then fewer bytes are read than a trained
model would read. vLLM's embedding and routers are therefore drawn anew (measure.py, spread_routing()); judge a
decode row of SGLang on such a shape by the roof of bench/gpu/run.
"""
import argparse
import json
import os
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
sys.path.insert(0, HERE)
import measure  # noqa: E402

PEERS = ("vllm", "sglang")
QUICK_ROWS = [row.name for row in measure.ROWS if row.kind != "offline"]


def peer(value):
    """NAME=PYTHON as (name, python)."""
    name, equals, python = value.partition("=")
    if not equals or name not in PEERS or not os.access(python, os.X_OK):
        raise argparse.ArgumentTypeError(f"{value!r} is not NAME=PYTHON with NAME one of {', '.join(PEERS)} and"
                                         " a Python that can be run")
    return name, python


def peer_arguments(value):
    """NAME=JSON as (name, object)."""
    name, _, text = value.partition("=")
    try:
        arguments = json.loads(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{value!r} is not NAME=JSON: {error}") from error
    if name not in measure.ENGINES or not isinstance(arguments, dict):
        raise argparse.ArgumentTypeError(f"{value!r}: NAME is one of {', '.join(measure.ENGINES)}, and JSON an"
                                         " object")
    return name, arguments


def run_engine(name, command, log):
    """The result of one engine. A failure keeps the rows before it and becomes `error`."""
    result = {"engine": name, "rows": []}
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True) as process:
        for line in process.stdout:
            try:  # engines print to the same output
                row = json.loads(line)
            except ValueError:
                continue
            if not isinstance(row, dict):
                continue
            if "version" in row:
                result["version"] = row["version"]
            elif "name" in row:
                result["rows"].append(row)
                value = f"{row['value']:,.1f} {row['unit']}" if "value" in row else row["error"]
                print(f"{name:<14} {row['name']:<26} {value}", flush=True)
    if process.returncode != 0:
        log.seek(0)
        last = [line for line in log.read().splitlines() if line.strip()][-3:]
        result["error"] = f"ended with {process.returncode}: " + " / ".join(last)
        print(f"{name:<14} {result['error']}", flush=True)
    return result


def engines(options):
    """(engine, Python, program) of each engine, in the order of the table's columns."""
    out = [("espalier", sys.executable, os.path.join(options.build, "espalier_bench"))]
    if options.http:
        out.append(("espalier-http", sys.executable, os.path.join(options.build, "espalier")))
    return out + [(name, python, None) for name, python in options.peer]


def measure_all(options):
    arguments = dict(options.peer_arguments)
    results = []
    for name, python, program in engines(options):
        command = [python, os.path.join(HERE, "measure.py"), "--engine", name, "--model", options.config,
                   "--device", options.device, "--shrink", str(options.shrink),
                   "--arguments", json.dumps(arguments.get(name, {}))]
        if program:
            command += ["--program", program]
        for row in options.row or (QUICK_ROWS if options.quick else []):
            command += ["--row", row]
        with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as log:
            results.append(run_engine(name, command, log))
    return results


def device_name(device):
    if device != "cuda":
        return "CPU"
    try:
        done = subprocess.run(["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"],
                              capture_output=True, text=True, check=True)
        return done.stdout.splitlines()[0].strip()
    except (OSError, subprocess.CalledProcessError, IndexError):
        return "GPU"


def ratio(name, own, peers):
    """Espalier's value over the best peer's, or the peer's time over Espalier's."""
    if own is None or not peers:
        return None
    return min(peers) / own if name == measure.COLD_START else own / max(peers)


def table_of(results):
    """[(name, unit, [value or None of each engine], ratio or None)], in the order of the rows."""
    values = {(result["engine"], row["name"]): row for result in results for row in result["rows"]}
    rows = []
    for name in [measure.COLD_START] + [row.name for row in measure.ROWS]:
        found = [values.get((result["engine"], name), {}) for result in results]
        if not any(found):
            continue
        unit = next(row["unit"] for row in found if row)
        cells = [row.get("value") for row in found]
        peers = [cell for cell, result in zip(cells, results)
                 if cell is not None and result["engine"] in PEERS]
        own = next((cell for cell, result in zip(cells, results) if result["engine"] == "espalier"), None)
        rows.append((name, unit, cells, ratio(name, own, peers)))
    return rows


def markdown(title, results, rows):
    heads = [f"{result['engine']} {result.get('version', '')}".strip() for result in results]
    lines = [f"# {title}", "", f"| row | unit | {' | '.join(heads)} | Espalier to the best peer |",
             "|---|---|" + "---:|" * (len(heads) + 1)]
    for name, unit, cells, best in rows:
        shown = ["" if cell is None else f"{cell:,.1f}" if cell < 1000 else f"{cell:,.0f}" for cell in cells]
        lines.append(f"| {name} | {unit} | {' | '.join(shown)} | {'' if best is None else f'{best:.2f}'} |")
    for result in results:
        failed = [f"{row['name']}: {row['error']}" for row in result["rows"] if "error" in row]
        for reason in failed + ([result["error"]] if "error" in result else []):
            lines += ["", f"{result['engine']}: {reason}"]
    return "\n".join(lines) + "\n"


def compare(options):
    """Runs every engine and writes the files that the options name. The results."""
    results = measure_all(options)
    rows = table_of(results)
    date, device = time.strftime("%Y-%m-%d"), device_name(options.device)
    model = os.path.basename(os.path.abspath(options.config))
    shrunk = f", work divided by {options.shrink}" if options.shrink > 1 else ""
    text = markdown(f"{model} on {device}, {date}{shrunk}", results, rows)
    print("\n" + text)
    if options.markdown:
        with open(options.markdown, "w", encoding="utf-8") as out:
            out.write(text)
    document = {"date": date, "device": device, "model": model, "shrink": options.shrink, "engines": results}
    if options.json:
        with open(options.json, "w", encoding="utf-8") as out:
            json.dump(document, out, indent=1)
            out.write("\n")
    return document


def add_options(parser):
    parser.add_argument("--row", action="append", choices=[row.name for row in measure.ROWS],
                        help="of the engines' rows only this; repeatable")
    parser.add_argument("--http", action="store_true", help="also Espalier over HTTP")
    parser.add_argument("--peer-arguments", action="append", type=peer_arguments, default=[],
                        help="NAME=JSON of the engine's own arguments, beside or in place of ours")
    parser.add_argument("--markdown", help="write the engines' table there")
    parser.add_argument("--shrink", type=int, default=1, help="divide the engines' work, for a trial")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    add_options(parser)
    parser.add_argument("--config", default=os.path.join(ROOT, "bench", "configs", "llama_8b"))
    parser.add_argument("--peer", action="append", type=peer, default=[], help="NAME=PYTHON; repeatable")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda", help="of Espalier's engines")
    parser.add_argument("--build", default=os.path.join(ROOT, "build", "cuda"))
    parser.add_argument("--quick", action="store_true", help="without the offline rows")
    parser.add_argument("--json", help="write every number there")
    options = parser.parse_args()
    for program in ("espalier_bench", "espalier"):
        if not os.path.exists(os.path.join(options.build, program)):
            parser.error(f"{options.build} has no {program}: build it there, or name a build folder with --build")
    document = compare(options)
    return 1 if any("error" in part for result in document["engines"] for part in (result, *result["rows"])) else 0


if __name__ == "__main__":
    sys.exit(main())
