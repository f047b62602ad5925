"""Draws a scene with the standard library alone: RGB lines, and a PNG of them. draw_batch.py draws the same by tensors."""
import math
import struct
import zlib

from glyphs import OUTLINES


def distances(segments, x, y):
    """Squared distance of a point to an outline, and whether the point is inside of it."""
    nearest, inside = 1e9, False
    for x0, y0, x1, y1 in segments:
        dx, dy, px, py = x1 - x0, y1 - y0, x - x0, y - y0
        length = dx * dx + dy * dy
        t = min(1.0, max(0.0, (px * dx + py * dy) / length)) if length > 0 else 0.0
        ex, ey = px - t * dx, py - t * dy
        nearest = min(nearest, ex * ex + ey * ey)
        if (y0 > y) != (y1 > y) and x < dx * (y - y0) / dy + x0:
            inside = not inside
    return nearest, inside


BLOCK = 4  # pixels; a block that the outline does not cross is drawn at once


def coverage(thing, segments, u, v, scale):
    """The share of a pixel that the thing covers, which is below 0 or above 1 by its distance in pixels to the edge."""
    nearest, inside = distances(segments, u, v)
    away = math.sqrt(nearest)
    away = (-away if inside else away) if thing.filled else away - thing.half_width
    return 0.5 - away * scale


def draw_block(lines, thing, box, share_at):
    left, top, right, bottom = box
    whole = share_at((left + right) / 2, (top + bottom) / 2)
    if whole < 0.5 - BLOCK:
        return
    for row in range(top, bottom):
        line = lines[row]
        for column in range(left, right):
            share = 1.0 if whole > 0.5 + BLOCK else min(1.0, share_at(column + 0.5, row + 0.5))
            if share > 0:
                for c in range(3):
                    at = 3 * column + c
                    line[at] = round(line[at] + share * (thing.rgb[c] - line[at]))


def draw_thing(lines, thing, width, height):
    segments = [s for i, s in enumerate(OUTLINES[thing.outline][2]) if i == 0 or s[:2] != s[2:]]
    scale = thing.size * min(width, height)  # pixels of the outline's unit
    reach = scale * 1.25 + 1
    cos, sin = math.cos(math.radians(thing.turn)), math.sin(math.radians(thing.turn))
    cx, cy = thing.x * width, thing.y * height

    def share_at(x, y):
        u, v = (x - cx) / scale, (y - cy) / scale
        return coverage(thing, segments, cos * u + sin * v, cos * v - sin * u, scale)

    for top in range(max(0, int(cy - reach)), min(height, int(cy + reach) + 1), BLOCK):
        for left in range(max(0, int(cx - reach)), min(width, int(cx + reach) + 1), BLOCK):
            draw_block(lines, thing, (left, top, min(width, left + BLOCK), min(height, top + BLOCK)), share_at)


def ground_lines(scene):
    lines = []
    for row in range(scene.height):
        lift = scene.slope * ((row + 0.5) / scene.height - 0.5)
        lines.append(bytearray(bytes(min(255, max(0, round(c + lift))) for c in scene.ground_rgb) * scene.width))
    return lines


def draw(scene):
    """The scene's lines of RGB, each a bytearray."""
    lines = ground_lines(scene)
    for thing in scene.things:
        draw_thing(lines, thing, scene.width, scene.height)
    return lines


def png(lines):
    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
    size = struct.pack(">IIBBBBB", len(lines[0]) // 3, len(lines), 8, 2, 0, 0, 0)
    return (b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", size) +
            chunk(b"IDAT", zlib.compress(b"".join(b"\0" + bytes(line) for line in lines), 9)) + chunk(b"IEND", b""))
