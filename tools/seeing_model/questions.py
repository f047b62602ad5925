"""Questions about a scene and their answers. Each wording of a question has its own wording of the answer, so that an
answer is right exactly if it is the expected text."""
from glyphs import DIGITS, NOUNS, SHAPES
from scenes import COLOURS, GROUNDS, PLACES

WORDS = ["no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]
PLURALS = {"cross": "crosses", **{s: s + "s" for s in SHAPES if s != "cross"}}
AT = {place: ("in the middle" if place == "middle" else f"on the {place}" if place in ("left", "right") else f"at the {place}")
      for place in PLACES}
ABSENT = "There is no {} in the picture."


def name(noun):
    return "digit " + noun if noun in DIGITS else noun


def article(text):
    return ("an " if text[0] in "aeio8" else "a ") + text


def named(thing):
    return article(f"{thing.colour} {thing.noun}")


def upper(text):
    return text[0].upper() + text[1:]


def joined(parts):
    return parts[0] if len(parts) == 1 else ", ".join(parts[:-1]) + " and " + parts[-1]


def alone(scene):
    """The things whose noun no other has."""
    return [t for t in scene.things if sum(o.noun == t.noun for o in scene.things) == 1]


def alone_in_colour(scene):
    return [t for t in scene.things if sum(o.colour == t.colour for o in scene.things) == 1]


def counted(count, one, many, colour=""):
    what = (colour + " " if colour else "") + (one if count == 1 else many)
    return f"There {'is' if count == 1 else 'are'} {WORDS[count]} {what}."


def said(count):
    return upper(WORDS[count] if count else "none") + "."


def ask_count(scene, generator):
    n = len(scene.things)
    return generator.choice([
        ("How many things are in the picture?", counted(n, "thing", "things")),
        ("How many things are there?", counted(n, "thing", "things")),
        ("How many objects do you see?", f"I see {WORDS[n]} object{'s' * (n != 1)}."),
        ("Count the objects.", said(n)),
    ])


def ask_count_colour(scene, generator):
    colour = generator.choice([t.colour for t in scene.things] * 2 + list(COLOURS))
    n = sum(t.colour == colour for t in scene.things)
    return generator.choice([
        (f"How many {colour} things are there?", counted(n, "thing", "things", colour)),
        (f"How many things are {colour}?", counted(n, "thing", "things", colour)),
        (f"Count the {colour} things.", said(n)),
    ])


def ask_count_noun(scene, generator):
    shapes = [t.noun for t in scene.things if t.noun in SHAPES]
    if generator.random() < 0.15:
        n = len(scene.things) - len(shapes)
        return "How many digits are there?", counted(n, "digit", "digits")
    noun = generator.choice(shapes * 2 + SHAPES)
    n = shapes.count(noun)
    return generator.choice([
        (f"How many {PLURALS[noun]} are there?", counted(n, noun, PLURALS[noun])),
        (f"How many {PLURALS[noun]} do you see?", f"I see {WORDS[n]} {noun if n == 1 else PLURALS[noun]}."),
        (f"Count the {PLURALS[noun]}.", said(n)),
    ])


def absent(scene, generator):
    """A noun that is not there."""
    return generator.choice([n for n in NOUNS if all(t.noun != n for t in scene.things)])


def ask_colour(scene, generator):
    things = alone(scene)
    if not things or generator.random() < 0.08:
        noun = name(absent(scene, generator))
        return f"What colour is the {noun}?", ABSENT.format(noun)
    thing = generator.choice(things)
    noun = name(thing.noun)
    return generator.choice([
        (f"What colour is the {noun}?", f"The {noun} is {thing.colour}."),
        (f"What color is the {noun}?", f"The {noun} is {thing.colour}."),
        (f"Which colour does the {noun} have?", f"It is {thing.colour}."),
        (f"Say the colour of the {noun}.", upper(thing.colour) + "."),
    ])


def ask_noun(scene, generator):
    things = alone_in_colour(scene)
    if not things:
        return None
    thing = generator.choice(things)
    return generator.choice([
        (f"What is {thing.colour}?", f"The {name(thing.noun)} is {thing.colour}."),
        (f"What is the {thing.colour} thing?", f"It is {article(thing.noun)}."),
        (f"What shape is the {thing.colour} thing?", f"It is {article(thing.noun)}."),
        (f"Which thing is {thing.colour}?", f"The {name(thing.noun)}."),
    ])


def ask_digit(scene, generator):
    digits = [t for t in scene.things if t.noun in DIGITS]
    if len(digits) > 1:
        coloured = [t for t in digits if sum(o.colour == t.colour for o in digits) == 1]
        if not coloured:
            return None
        thing = generator.choice(coloured)
        return generator.choice([(f"Which digit is {thing.colour}?", f"The {thing.noun} is {thing.colour}."),
                                 (f"Which digit is the {thing.colour} one?", f"It is {article(thing.noun)}.")])
    if not digits:
        return "Which digit is in the picture?", ABSENT.format("digit")
    digit = digits[0].noun
    return generator.choice([("Which digit is in the picture?", f"The digit is {digit}."), ("What digit do you see?", f"I see {article(digit)}."),
                             ("Read the digit.", f"{digit}.")])


def ask_number(scene, generator):
    if scene.number is None:
        return None
    return generator.choice([("What number is in the picture?", f"The number is {scene.number}."), ("Read the number.", f"{scene.number}."),
                             ("Which number do you see?", f"I see {scene.number}.")])


def ask_where(scene, generator):
    things = alone(scene)
    if not things or generator.random() < 0.06:
        noun = name(absent(scene, generator))
        return f"Where is the {noun}?", ABSENT.format(noun)
    thing = generator.choice(things)
    place, noun = PLACES[thing.cell], name(thing.noun)
    return generator.choice([
        (f"Where is the {noun}?", f"The {noun} is {AT[place]}."),
        (f"Where is the {thing.colour} {thing.noun}?", f"It is {AT[place]}."),
        (f"Where do you see the {noun}?", upper(AT[place]) + "."),
    ])


def ask_at(scene, generator):
    thing = generator.choice(scene.things)
    place = PLACES[thing.cell]
    if generator.random() < 0.1:
        free = [i for i in range(9) if all(t.cell != i for t in scene.things)]
        place = PLACES[generator.choice(free)]
        return f"What is {AT[place]}?", f"There is nothing {AT[place]}."
    return generator.choice([(f"What is {AT[place]}?", f"There is {named(thing)} {AT[place]}."),
                             (f"What do you see {AT[place]}?", f"I see {named(thing)}.")])


def ask_exists(scene, generator):
    thing = generator.choice(scene.things)
    noun, colour = thing.noun, thing.colour
    if generator.random() < 0.5:
        if generator.random() < 0.5:
            noun = generator.choice(NOUNS)
        else:
            colour = generator.choice(list(COLOURS))
    there = any((t.noun, t.colour) == (noun, colour) for t in scene.things)
    what = f"{colour} {noun}"
    if generator.random() < 0.3:
        there = any(t.noun == noun for t in scene.things)
        what = noun
        return f"Do you see {article(noun)}?", ("Yes, I see " if there else "No, I do not see ") + article(what) + "."
    return f"Is there {article(what)}?", f"Yes, there is {article(what)}." if there else f"No, there is no {what}."


def ask_beside(scene, generator):
    """What lies in the next cell of a thing in one of four directions."""
    found = []
    for thing in alone(scene):
        for words, row, column in (("above", -1, 0), ("below", 1, 0), ("left of", 0, -1), ("right of", 0, 1)):
            at = (thing.row + row, thing.column + column)
            others = [o for o in scene.things if (o.row, o.column) == at]
            if others:
                found.append((f"What is {words} the {name(thing.noun)}?", f"{upper(named(others[0]))} is {words} the {name(thing.noun)}."))
    return generator.choice(found) if found else None


def ask_relation(scene, generator):
    things = alone(scene)
    if len(things) < 2:
        return None
    first, second = generator.sample(things, 2)
    words, opposite, order = generator.choice([("left of", "right of", first.column - second.column),
                                               ("above", "below", first.row - second.row)])
    if order == 0:
        return None
    if generator.random() < 0.5:
        words, opposite, order = opposite, words, -order
    true = words if order < 0 else opposite
    return (f"Is the {name(first.noun)} {words} the {name(second.noun)}?",
            f"{'Yes' if order < 0 else 'No'}, it is {true} the {name(second.noun)}.")


def ask_bigger(scene, generator):
    shapes = [t for t in alone(scene) if t.noun in SHAPES]
    pairs = [(a, b) for a in shapes for b in shapes if a.size > 1.35 * b.size]
    if not pairs:
        return None
    big, small = generator.choice(pairs)
    first, second = generator.sample([big, small], 2)
    word, answer = generator.choice([("bigger", big), ("smaller", small)])
    return f"Which is {word}, the {first.noun} or the {second.noun}?", f"The {answer.noun} is {word}."


def ask_ground(scene, generator):
    return generator.choice([
        ("What colour is the background?", f"The background is {scene.ground}."),
        ("Which colour does the background have?", f"It is {scene.ground}."),
        (f"Is the background {scene.ground}?", f"Yes, it is {scene.ground}."),
    ] + [(f"Is the background {other}?", f"No, it is {scene.ground}.") for other in generator.sample([g for g in GROUNDS if g != scene.ground], 1)])


def ask_describe(scene, generator):
    if len(scene.things) > 3:
        return None
    ordered = sorted(scene.things, key=lambda t: t.cell)
    return generator.choice([
        ("Describe the picture.", upper(joined([f"{named(t)} {AT[PLACES[t.cell]]}" for t in ordered])) + "."),
        ("What is in the picture?", "There is " + joined([named(t) for t in ordered]) + "."),
        ("What do you see?", "I see " + joined([named(t) for t in ordered]) + "."),
        ("What is it?", "It is " + joined([named(t) for t in ordered]) + "."),
    ])


KINDS = {"count": (ask_count, 2), "count_colour": (ask_count_colour, 2), "count_noun": (ask_count_noun, 2), "colour": (ask_colour, 3),
         "noun": (ask_noun, 3), "digit": (ask_digit, 2), "number": (ask_number, 20), "where": (ask_where, 3), "at": (ask_at, 2),
         "exists": (ask_exists, 3), "beside": (ask_beside, 2), "relation": (ask_relation, 2), "bigger": (ask_bigger, 2),
         "ground": (ask_ground, 1), "describe": (ask_describe, 3)}


def ask(scene, generator, count=1):
    """[(kind, question, answer)] of a scene, no kind twice."""
    kinds, out = dict(KINDS), []
    while kinds and len(out) < count:
        kind = generator.choices(list(kinds), [weight for _, weight in kinds.values()])[0]
        made = kinds.pop(kind)[0](scene, generator)
        if made is not None:
            out.append((kind, *made))
    return out
