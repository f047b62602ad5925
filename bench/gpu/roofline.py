#!/usr/bin/env python3
"""Draws where the operations and steps on a GPU lie under its roofline.

    bench/gpu/roofline.py OUT.svg --run RUN.json [--kernels KERNELS.txt|.json] [--radix RADIX.json]
                          [--structured STRUCTURED.json] [--config DIR]

RUN.json is what bench/gpu/run --json wrote (steps: decoding, prefill), KERNELS what kernels_cuda_bench
printed or wrote with --json (single operations). Each mark stands at its operations per byte of device
memory and the operations a second that it reached; the roof is the read rate measured, then the
fastest product measured. What only moves bytes (sampling) has its mark at the left edge, at its share
of the read rate. What the host does for a step stands under the same roof, far below it: a prompt looked
up in the radix tree (RADIX: what espalier_bench radix --json wrote) and grammar masks (STRUCTURED: what
bench/structured_decoding --json wrote).
"""
import argparse
import html
import json
import math
import os
import re
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
import roof  # noqa: E402

LEFT, RIGHT = 0.25, 65536.0         # operations a byte
WIDTH, HEIGHT, MARGIN = 960, 600, 70
COLOURS = {"decode": "#0072b2", "prefill": "#d55e00", "linear": "#009e73", "step": "#009e73",
           "attention": "#cc79a7", "host": "#000000", "elementwise": "#999999", "sample": "#e69f00", "request": "#0072b2"}


def read_kernels(path):
    """(name, seconds, bytes, operations) of each row; ceilings left out."""
    with open(path, encoding="utf-8") as file:
        text = file.read()
    if text.lstrip().startswith("["):
        rows = [(r["name"], r["us"] * 1e-6, r["bytes"], r["flops"]) for r in json.loads(text)]
    else:
        pattern = re.compile(r"^(.+?)\s+([\d.]+) us\s+([\d.]+) TB/s\s+([\d.]+) TFLOP/s", re.M)
        rows = []
        for name, us, moved, done in pattern.findall(text):
            seconds = float(us) * 1e-6
            rows.append((name.strip(), seconds, float(moved) * 1e12 * seconds,
                         float(done) * 1e12 * seconds))
    return [row for row in rows if not row[0].startswith("ceiling")]


def step_points(run, shape):
    """The same of the steps of bench/gpu/run: bytes and operations counted from the shape."""
    raw = run["raw"]
    weights = shape.streamed_bytes() / shape.weight_bytes
    points = []
    for row in raw.get("decode", []):
        entries, tokens = roof.entries_of(row), row["context_tokens"]
        moved = shape.streamed_bytes() + tokens * shape.kv_bytes_per_token()
        done = 2 * entries * weights + 4 * tokens * shape.heads * shape.head_dim * shape.layers
        points.append((f"{row['name']}, {entries} entries", row["step_seconds"], moved, done))
    for row in raw.get("prefill", []):
        tokens = row["tokens"]
        pairs = tokens * (tokens + 1) / 2
        head = shape.vocab * shape.hidden
        done = 2 * tokens * (weights - head) + 2 * head
        done += 4 * pairs * shape.heads * shape.head_dim * shape.layers
        steps = math.ceil(tokens / 8192)
        moved = steps * shape.streamed_bytes() + tokens * shape.kv_bytes_per_token()
        points.append((f"prefill {tokens}", row["seconds"], moved, done))
    return points


RADIX_PROMPT_TOKENS = 576  # of espalier_bench radix


def host_points(radix, structured, vocab):
    """What the host does: tokens compared, of 4 bytes on either side; words of masks written."""
    points = []
    if radix:
        with open(radix, encoding="utf-8") as file:
            for row in json.load(file):
                points.append((f"host: radix match, {row['nodes']} nodes, pages of {row['page_size']}",
                               row["match_ns"] * 1e-9, 8 * RADIX_PROMPT_TOKENS, RADIX_PROMPT_TOKENS))
    if structured:
        with open(structured, encoding="utf-8") as file:
            masks = json.load(file)["masks_256"]
        points.append(("host: a grammar's mask", masks["us_each"] * 1e-6, vocab / 8, 0))
    return points


def place(point):
    """Operations a byte, and operations a second, of a mark."""
    _, seconds, moved, done = point
    if done <= 0:
        return LEFT, moved / seconds * LEFT
    return min(max(done / moved, LEFT), RIGHT), done / seconds


def draw(points, read_rate, peak, title):
    low, high = min([read_rate * LEFT / 8] + [place(point)[1] / 2 for point in points]), peak * 2

    def x_of(intensity):
        return MARGIN + (WIDTH - 2 * MARGIN) * math.log(intensity / LEFT) / math.log(RIGHT / LEFT)

    def y_of(rate):
        share = math.log(min(max(rate, low), high) / low) / math.log(high / low)
        return HEIGHT - MARGIN - (HEIGHT - 2 * MARGIN) * share

    ridge = peak / read_rate
    taken = []  # places of names
    named = points if len(points) <= 12 else []  # more names would lie on one another
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" '
           'font-family="sans-serif" font-size="12">',
           f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
           f'<text x="{MARGIN}" y="30" font-size="16">{html.escape(title)}</text>',
           f'<polyline fill="none" stroke="black" stroke-width="2" points="'
           f'{x_of(LEFT):.1f},{y_of(read_rate * LEFT):.1f} {x_of(ridge):.1f},{y_of(peak):.1f} '
           f'{x_of(RIGHT):.1f},{y_of(peak):.1f}"/>',
           f'<text x="{WIDTH / 2:.0f}" y="{HEIGHT - 20}">operations a byte</text>',
           f'<text x="20" y="{HEIGHT / 2:.0f}" transform="rotate(-90 20 {HEIGHT / 2:.0f})">'
           '10^12 operations a second</text>',
           f'<text x="{x_of(RIGHT) - 150:.0f}" y="{y_of(peak) - 8:.0f}">'
           f'{peak / 1e12:.0f} TFLOP/s</text>',
           f'<text x="{x_of(1) - 8:.0f}" y="{y_of(read_rate) - 10:.0f}" text-anchor="end">'
           f'{read_rate / 1e12:.2f} TB/s</text>']
    for exponent in range(0, 18, 2):
        x = x_of(2.0 ** exponent)
        if x <= WIDTH - MARGIN:
            out.append(f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{MARGIN}" y2="{HEIGHT - MARGIN}" '
                       'stroke="#dddddd"/>'
                       f'<text x="{x:.1f}" y="{HEIGHT - MARGIN + 18}" text-anchor="middle">'
                       f'{2 ** exponent}</text>')
    for exponent in range(math.ceil(math.log10(low)), math.floor(math.log10(high)) + 1):
        y = y_of(10.0 ** exponent)
        out.append(f'<line x1="{MARGIN}" x2="{WIDTH - MARGIN}" y1="{y:.1f}" y2="{y:.1f}" '
                   'stroke="#dddddd"/>'
                   f'<text x="{MARGIN - 6}" y="{y + 4:.1f}" text-anchor="end">'
                   f'{10.0 ** (exponent - 12):g}</text>')
    for point in points:
        intensity, rate = place(point)
        roof_rate = min(peak, read_rate * intensity)
        kind = point[0].split()[0].rstrip(":")
        label = f"{point[0]}: {100 * rate / roof_rate:.0f} % of the roof"
        out.append(f'<circle cx="{x_of(intensity):.1f}" cy="{y_of(rate):.1f}" r="4" '
                   f'fill="{COLOURS.get(kind, "#555555")}" fill-opacity="0.8">'
                   f'<title>{html.escape(label)}</title></circle>')
        if point in named:
            x, y = x_of(intensity) + 7, y_of(rate) + 14
            while any(abs(x - other_x) < 250 and abs(y - other_y) < 14 for other_x, other_y in taken):
                y += 14
            taken.append((x, y))
            out.append(f'<text x="{x:.1f}" y="{y:.1f}">'
                       f'{html.escape(point[0])}, {100 * rate / roof_rate:.0f} %</text>')
    kinds = sorted({point[0].split()[0].rstrip(":") for point in points})
    for i, kind in enumerate(kinds):
        y = HEIGHT - MARGIN - 20 - 18 * (len(kinds) - 1 - i)
        out.append(f'<circle cx="{WIDTH - MARGIN - 112}" cy="{y}" r="5" '
                   f'fill="{COLOURS.get(kind, "#555555")}"/>'
                   f'<text x="{WIDTH - MARGIN - 100}" y="{y + 4}">{html.escape(kind)}</text>')
    out.append("</svg>\n")
    return "\n".join(out)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("out", help="SVG file to write")
    parser.add_argument("--run", help="JSON of bench/gpu/run")
    parser.add_argument("--kernels", help="output of kernels_cuda_bench, printed or JSON")
    parser.add_argument("--radix", help="JSON of espalier_bench radix")
    parser.add_argument("--structured", help="JSON of bench/structured_decoding")
    parser.add_argument("--config", default=os.path.join(HERE, "..", "configs", "llama_8b"))
    options = parser.parse_args()
    if not options.run:
        parser.error("--run is needed: it holds the ceilings that the roof is drawn from")
    with open(options.run, encoding="utf-8") as file:
        run = json.load(file)
    ceilings = run["raw"]["ceilings"]
    peak = max(rate for rates in ceilings["matrix"].values() for rate in rates.values())
    shape = roof.Shape.read(options.config)
    points = step_points(run, shape) + host_points(options.radix, options.structured, shape.vocab)
    if options.kernels:
        points += read_kernels(options.kernels)
    with open(options.out, "w", encoding="utf-8") as file:
        file.write(draw(points, ceilings["read_bytes_per_second"], peak,
                        f"{ceilings['device']}, {run['date']}"))


if __name__ == "__main__":
    main()
