"""Draws the pictures that ship beside the model: pictures.py FOLDER"""
import pathlib
import random
import sys

from draw import draw, png
from jpeg import jpeg
from scenes import PLACES, Scene, Thing

SHAPES = [("circle", "red", "top left", 0.15), ("star", "blue", "middle", 0.15), ("square", "green", "bottom right", 0.12)]
NUMBER = [("2", "purple", "left", 0.14), ("0", "purple", "middle", 0.14), ("7", "purple", "right", 0.14)]


def scene(things, width, height, ground, seed):
    generator = random.Random(seed)
    made = Scene(width, height, ground, generator)
    for noun, colour, place, size in things:
        thing = Thing(noun, colour, PLACES.index(place), generator, size)
        thing.settle(width, height, generator)
        made.things.append(thing)
    made.slope = 0.0
    return made


def main():
    folder = pathlib.Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "shapes.png").write_bytes(png(draw(scene(SHAPES, 240, 180, "white", 5))))
    (folder / "number.jpg").write_bytes(jpeg(draw(scene(NUMBER, 240, 160, "yellow", 2)), 85))


if __name__ == "__main__":
    main()
