"""Scenes as rows of numbers, from which draw_batch.py draws them, and the sizes that the encoder reads."""
import math

import numpy

SIDE, PATCH = 96, 8  # pixels
ROWS = (SIDE // PATCH) ** 2  # of the encoder, for a picture
THINGS = 9  # of a scene at most
COLUMNS = 11  # outline, x, y, canvas's width and height in units of the outline, cos, sin, half width, red, green, blue
GROUND_COLUMNS = 5  # red, green, blue, slope, pixels of the canvas for one that the encoder reads


def rows_of(scene):
    """[THINGS, COLUMNS] and [GROUND_COLUMNS]; a row of no thing has outline -1."""
    things = numpy.full((THINGS, COLUMNS), -1, numpy.float32)
    for i, t in enumerate(scene.things):
        scale = t.size * min(scene.width, scene.height)
        turn = math.radians(t.turn)
        things[i] = (t.outline, t.x, t.y, scene.width / scale, scene.height / scale, math.cos(turn), math.sin(turn), t.half_width, *t.rgb)
    return things, numpy.array([*scene.ground_rgb, scene.slope, math.sqrt(scene.width * scene.height) / SIDE], numpy.float32)
