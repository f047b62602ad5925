"""Conversations about drawn scenes as tokens and numbers."""
import random

import numpy

import held_out
from glyphs import NOUNS
from questions import ask
from scene_rows import COLUMNS, GROUND_COLUMNS, ROWS, SIDE, THINGS, rows_of
from scenes import COLOURS, GROUNDS, draw_scene

LENGTH = 273  # tokens of an example
BOS, EOS, PAD, USER, ASSISTANT = 0, 1, 2, 4, 5
NO_PICTURE = "There is no picture."
_cache = {}


def encode(tokenizer, text):
    ids = _cache.get(text)
    if ids is None:
        ids = tokenizer.encode(text, add_special_tokens=False).ids
        if len(_cache) < 200_000:
            _cache[text] = ids
    return ids


def conversation(tokenizer, turns, picture):
    """Token ids and which of them are to be learned. picture: "before" or "behind" the first question, or "" for none."""
    image = tokenizer.token_to_id("<image>")
    ids, learned = [BOS], [0]
    for i, (question, answer) in enumerate(turns):
        asked, said = encode(tokenizer, question), encode(tokenizer, answer)
        rows = [image] * ROWS if i == 0 and picture else []
        turn = [USER] + (rows + asked if picture == "before" else asked + rows) + [EOS, ASSISTANT]
        if len(ids) + len(turn) + len(said) + 1 > LENGTH:
            break
        ids += turn + said + [EOS]
        learned += [0] * len(turn) + [1] * (len(said) + 1)
    return ids, learned


def padded(ids, learned):
    left = LENGTH - len(ids)
    return ids + [PAD] * left, learned + [0] * left


def cells(scene):
    """Of each cell the noun and the colour, 0 for none, and of the ground its colour: what a linear probe reads."""
    labels = numpy.zeros((10, 2), numpy.int64)
    for thing in scene.things:
        labels[thing.cell] = NOUNS.index(thing.noun) + 1, list(COLOURS).index(thing.colour) + 1
    labels[9] = list(GROUNDS).index(scene.ground), 0
    return labels


def training_batch(tokenizer, number, count):
    """Arrays of `count` examples; each number gives others."""
    generator = random.Random(f"training {number}")
    things = numpy.empty((count, THINGS, COLUMNS), numpy.float32)
    ground = numpy.empty((count, GROUND_COLUMNS), numpy.float32)
    tokens, learned = numpy.empty((count, LENGTH), numpy.int16), numpy.empty((count, LENGTH), numpy.uint8)
    labels = numpy.empty((count, 10, 2), numpy.int8)
    for i in range(count):
        scene = draw_scene(generator)
        turns = [(question, answer) for _, question, answer in ask(scene, generator, 6)]
        picture = generator.choices(["before", "behind", ""], [84, 13, 3])[0]
        if not picture:
            turns = [(turns[0][0], NO_PICTURE)]
        tokens[i], learned[i] = padded(*conversation(tokenizer, turns, picture))
        things[i], ground[i] = rows_of(scene)
        labels[i] = cells(scene)
    at = numpy.flatnonzero(learned[:, 1:])  # rows of all states that predict a token of an answer
    return {"things": things, "ground": ground, "tokens": tokens, "at": at, "labels": labels}


def held_out_pixels(scene, quality):
    """The picture as the processor gives it to the encoder [3, SIDE, SIDE], through a file of its format. Needs Pillow."""
    import io

    from PIL import Image

    picture = Image.open(io.BytesIO(held_out.file_of(scene, quality))).convert("RGB")
    return numpy.asarray(picture.resize((SIDE, SIDE), Image.Resampling.BICUBIC), numpy.uint8).transpose(2, 0, 1)
