"""A baseline JPEG of RGB lines with the standard library alone: colours of half the resolution, Huffman codes of one length."""
import math
import struct
from operator import mul

LUMINANCE = [16, 11, 10, 16, 24, 40, 51, 61, 12, 12, 14, 19, 26, 58, 60, 55, 14, 13, 16, 24, 40, 57, 69, 56, 14, 17, 22, 29, 51, 87, 80, 62,
             18, 22, 37, 56, 68, 109, 103, 77, 24, 35, 55, 64, 81, 104, 113, 92, 49, 64, 78, 87, 103, 121, 120, 101, 72, 92, 95, 98, 112, 100, 103, 99]
COLOUR = [17, 18, 24, 47, 99, 99, 99, 99, 18, 21, 26, 66, 99, 99, 99, 99, 24, 26, 56] + [99] * 5 + [47, 66] + [99] * 38
ZIGZAG = sorted(range(64), key=lambda i: (i // 8 + i % 8, i // 8 if (i // 8 + i % 8) % 2 else -(i // 8)))
COSINES = [[math.cos((2 * x + 1) * k * math.pi / 16) / 2 * (math.sqrt(0.5) if k == 0 else 1) for x in range(8)] for k in range(8)]
DC_SYMBOLS = list(range(12))
AC_SYMBOLS = [0x00, 0xF0] + [run << 4 | size for run in range(16) for size in range(1, 11)]
AC_CODES = {symbol: code for code, symbol in enumerate(AC_SYMBOLS)}


def quantiser(table, quality):
    scale = 5000 // quality if quality < 50 else 200 - 2 * quality
    return [min(255, max(1, (step * scale + 50) // 100)) for step in table]


def planes_of(lines, width, height):
    """Luminance, and both colours halved; each a list of lines whose sides are multiples of 16, or of 8."""
    wide, high = -width % 16, -height % 16
    full = ([], [], [])
    for line in [*lines, *[lines[-1]] * high]:
        made = ([], [], [])
        for i in range(0, 3 * width, 3):
            r, g, b = line[i:i + 3]
            made[0].append(0.299 * r + 0.587 * g + 0.114 * b - 128)
            made[1].append(-0.168736 * r - 0.331264 * g + 0.5 * b)
            made[2].append(0.5 * r - 0.418688 * g - 0.081312 * b)
        for plane, row in zip(full, made):
            plane.append(row + [row[-1]] * wide)
    halves = [[[(a[x] + a[x + 1] + b[x] + b[x + 1]) / 4 for x in range(0, len(a), 2)] for a, b in zip(plane[::2], plane[1::2])] for plane in full[1:]]
    return full[0], *halves


def coefficients(plane, x, y, steps):
    """The block's quantised coefficients in zigzag order."""
    block = [plane[y + row][x:x + 8] for row in range(8)]
    first = block[0][0]
    if all(value == first for row in block for value in row):
        return [round(8 * first / steps[0])] + [0] * 63
    across = [[sum(map(mul, row, cosine)) for row in block] for cosine in COSINES]
    made = [sum(map(mul, column, cosine)) for cosine in COSINES for column in across]
    return [round(made[i] / steps[i]) for i in ZIGZAG]


class Bits:
    def __init__(self):
        self.digits = []

    def put(self, value, count):
        if count:
            self.digits.append(f"{value:0{count}b}")

    def put_number(self, value, size):
        self.put(value if value > 0 else value + (1 << size) - 1, size)

    def bytes(self):
        digits = "".join(self.digits)
        digits += "1" * (-len(digits) % 8)
        return int(digits, 2).to_bytes(len(digits) // 8, "big").replace(b"\xff", b"\xff\0")


def put_block(bits, values, before):
    """Codes a block; before: the first coefficient of the component's last block."""
    size = abs(values[0] - before).bit_length()
    bits.put(size, 4)
    bits.put_number(values[0] - before, size)
    run = 0
    last = max((i for i in range(64) if values[i]), default=0)
    for value in values[1:last + 1]:
        if value == 0:
            run += 1
            continue
        while run > 15:
            bits.put(AC_CODES[0xF0], 8)
            run -= 16
        size = abs(value).bit_length()
        bits.put(AC_CODES[run << 4 | size], 8)
        bits.put_number(value, size)
        run = 0
    if last < 63:
        bits.put(AC_CODES[0], 8)


def segment(marker, data):
    return struct.pack(">BBH", 0xFF, marker, len(data) + 2) + data


def headers(width, height, tables):
    quantisers = b"".join(bytes([i]) + bytes(table[k] for k in ZIGZAG) for i, table in enumerate(tables))
    frame = struct.pack(">BHHB", 8, height, width, 3) + bytes([1, 0x22, 0, 2, 0x11, 1, 3, 0x11, 1])
    codes = b""
    for number, symbols, length in ((0x00, DC_SYMBOLS, 4), (0x10, AC_SYMBOLS, 8)):
        codes += bytes([number]) + bytes(len(symbols) if i == length else 0 for i in range(1, 17)) + bytes(symbols)
    scan = bytes([3, 1, 0, 2, 0, 3, 0, 0, 63, 0])
    return b"\xff\xd8" + segment(0xDB, quantisers) + segment(0xC0, frame) + segment(0xC4, codes) + segment(0xDA, scan)


def jpeg(lines, quality):
    """lines: of RGB, as draw.draw gives them; quality 1 to 100, as libjpeg counts it."""
    width, height = len(lines[0]) // 3, len(lines)
    tables = quantiser(LUMINANCE, quality), quantiser(COLOUR, quality)
    planes = planes_of(lines, width, height)
    bits, before = Bits(), [0, 0, 0]
    for y in range(0, len(planes[0]), 16):
        for x in range(0, len(planes[0][0]), 16):
            blocks = [(0, x + dx, y + dy) for dy in (0, 8) for dx in (0, 8)] + [(c, x // 2, y // 2) for c in (1, 2)]
            for component, left, top in blocks:
                values = coefficients(planes[component], left, top, tables[min(component, 1)])
                put_block(bits, values, before[component])
                before[component] = values[0]
    return headers(width, height, tables) + bits.bytes() + b"\xff\xd9"
