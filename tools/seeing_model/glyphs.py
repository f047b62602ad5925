"""Outlines of what pictures show: shapes that are filled, and rings and digits that are strokes.

An outline is a list of segments (x0, y0, x1, y1) within the unit circle, y downwards. SHAPES and DIGITS name them;
each name has one outline or several, of which a scene chooses one.
"""
import math

SEGMENTS = 24  # of an outline at most; shorter ones are filled up with points


def closed(points):
    return [(*a, *b) for a, b in zip(points, points[1:] + points[:1])]


def opened(points):
    return [(*a, *b) for a, b in zip(points, points[1:])]


def arc(cx, cy, rx, ry, begin, end, count):
    """Points of an arc; degrees, clockwise from the right."""
    angles = [math.radians(begin + (end - begin) * i / count) for i in range(count + 1)]
    return [(cx + rx * math.cos(a), cy + ry * math.sin(a)) for a in angles]


def polygon(count, radius=1.0, turned=-90.0):
    return [(radius * math.cos(math.radians(turned + 360 * i / count)), radius * math.sin(math.radians(turned + 360 * i / count)))
            for i in range(count)]


def star():
    outer, inner = polygon(5), polygon(5, 0.42, -54.0)
    return [p for pair in zip(outer, inner) for p in pair]


def cross(width=0.32):
    w, e = width, 0.94
    return [(-w, -e), (w, -e), (w, -w), (e, -w), (e, w), (w, w), (w, e), (-w, e), (-w, w), (-e, w), (-e, -w), (-w, -w)]


def heart():
    points = []
    for i in range(SEGMENTS):
        t = 2 * math.pi * i / SEGMENTS
        points.append((0.058 * 16 * math.sin(t) ** 3,
                       -0.058 * (13 * math.cos(t) - 5 * math.cos(2 * t) - 2 * math.cos(3 * t) - math.cos(4 * t)) - 0.13))
    return points


def bars(code):
    """A digit of seven bars, as displays have it: which of them are on, in the order a to g."""
    x, corners = 0.5, {}
    for row, y in enumerate((-0.85, 0.0, 0.85)):
        corners[row] = ((-x, y), (x, y))
    (a0, a1), (g0, g1), (d0, d1) = corners[0], corners[1], corners[2]
    ends = {"a": (a0, a1), "b": (a1, g1), "c": (g1, d1), "d": (d0, d1), "e": (g0, d0), "f": (a0, g0), "g": (g0, g1)}
    return [(*p, *q) for name, (p, q) in ends.items() if name in code]


def written():
    """Digits of lines and arcs."""
    top, bottom = arc(0, -0.42, 0.42, 0.42, 0, 360, 12), arc(0, 0.42, 0.5, 0.46, 0, 360, 12)
    return {
        "0": opened(arc(0, 0, 0.52, 0.86, 0, 360, 20)),
        "1": opened([(-0.32, -0.5), (0.06, -0.86), (0.06, 0.86)]),
        "2": opened(arc(0, -0.38, 0.48, 0.48, -170, 40, 12) + [(-0.5, 0.86), (0.54, 0.86)]),
        "3": opened(arc(-0.02, -0.42, 0.44, 0.44, -150, 90, 11)) + opened(arc(-0.02, 0.42, 0.5, 0.44, -90, 150, 11)),
        "4": opened([(0.26, 0.86), (0.26, -0.86), (-0.54, 0.36), (0.56, 0.36)]),
        "5": opened([(0.46, -0.86), (-0.36, -0.86), (-0.42, -0.06)] + arc(0, 0.32, 0.52, 0.52, -140, 140, 14)),
        "6": opened([(0.3, -0.86), (-0.22, -0.3)] + arc(0, 0.36, 0.48, 0.48, 195, 550, 18)),
        "7": opened([(-0.5, -0.86), (0.52, -0.86), (-0.1, 0.86)]),
        "8": opened(top) + opened(bottom),
        "9": opened([(-0.3, 0.86), (0.22, 0.3)] + arc(0, -0.36, 0.48, 0.48, 15, 370, 18)),
    }


def displayed():
    codes = ("abcdef", "bc", "abged", "abgcd", "fgbc", "afgcd", "afgedc", "abc", "abcdefg", "abcdfg")
    return {str(digit): bars(code) for digit, code in enumerate(codes)}


FILLED = {
    "circle": [closed(polygon(SEGMENTS, 0.88))],
    "square": [closed([(-0.74, -0.74), (0.74, -0.74), (0.74, 0.74), (-0.74, 0.74)])],
    "triangle": [closed([(0, -0.9), (0.9, 0.72), (-0.9, 0.72)]), closed(polygon(3))],
    "star": [closed(star())],
    "cross": [closed(cross()), closed(cross(0.24))],
    "diamond": [closed([(0, -1), (0.66, 0), (0, 1), (-0.66, 0)])],
    "heart": [closed(heart())],
}
STROKES = {"ring": [closed(polygon(SEGMENTS, 0.74))]}
for _name, _outline in written().items():
    STROKES[_name] = [_outline, displayed()[_name]]

SHAPES = ["circle", "square", "triangle", "star", "cross", "diamond", "heart", "ring"]
DIGITS = [str(digit) for digit in range(10)]
NOUNS = SHAPES + DIGITS


def outlines():
    """(noun, filled, segments) of all, in one list; a scene's objects name an outline by its index."""
    listed = []
    for noun in NOUNS:
        for segments in FILLED.get(noun, STROKES.get(noun)):
            padded = list(segments) + [(*segments[0][:2], *segments[0][:2])] * (SEGMENTS - len(segments))
            assert len(padded) == SEGMENTS, (noun, len(segments))
            listed.append((noun, noun in FILLED, padded))
    return listed


OUTLINES = outlines()
OUTLINES_OF = {noun: [i for i, each in enumerate(OUTLINES) if each[0] == noun] for noun in NOUNS}
