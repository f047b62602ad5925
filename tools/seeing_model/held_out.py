"""The evaluation's pictures and questions, by the standard library alone. Each picture has a combination of a noun and a
colour that no training picture has, and a width that none has; half of them are JPEGs."""
import random

from draw import draw, png
from jpeg import jpeg
from questions import ask
from scenes import draw_scene


def item(number):
    """(scene, kind of question, question, answer, quality); quality 0 stands for a PNG, others for a JPEG's."""
    scene = draw_scene(random.Random(f"held out {number}"), held_out=True)
    generator = random.Random(f"question {number}")
    kind, question, answer = ask(scene, generator, 1)[0]
    return scene, kind, question, answer, generator.choice([0, generator.randint(40, 95)])


def file_of(scene, quality):
    lines = draw(scene)
    return jpeg(lines, quality) if quality else png(lines)
