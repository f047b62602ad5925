"""Scenes: what a picture shows. A scene is drawn from a seeded generator, with one object at most in each cell of a
grid of three by three, so that every question about places has one answer."""
from glyphs import DIGITS, NOUNS, OUTLINES, OUTLINES_OF, SHAPES

COLOURS = {
    "red": (214, 38, 38), "orange": (242, 140, 24), "yellow": (246, 220, 44), "green": (40, 160, 62),
    "blue": (38, 84, 214), "purple": (132, 48, 172), "pink": (246, 134, 190), "black": (18, 18, 22),
    "white": (250, 250, 250),
}
GROUNDS = {"white": (248, 248, 248), "grey": (150, 150, 154), "black": (20, 20, 22), "blue": (44, 92, 206),
           "green": (52, 150, 76), "yellow": (244, 222, 70), "pink": (244, 150, 196)}
GROUND_WEIGHTS = [8, 3, 3, 1, 1, 1, 1]
PLACES = ["top left", "top", "top right", "left", "middle", "right", "bottom left", "bottom", "bottom right"]

# Every noun has two colours that no training picture gives it.
_ORDER = [colour for colour in COLOURS if colour not in ("black", "white")]
HELD_OUT = {(noun, _ORDER[(3 * i + k) % len(_ORDER)]) for i, noun in enumerate(NOUNS) for k in (0, 2)}


class Thing:
    """One object: what it is and where; x, y of its middle and size of its half are shares of the canvas."""

    def __init__(self, noun, colour, cell, generator, size):
        self.noun, self.colour, self.cell, self.size = noun, colour, cell, size
        self.outline = generator.choice(OUTLINES_OF[noun])
        self.x = self.y = 0.0
        self.turn = generator.uniform(-10, 10)  # degrees
        self.half_width = generator.uniform(0.11, 0.2) if noun in DIGITS else generator.uniform(0.18, 0.26)
        self.rgb = tuple(min(255, max(0, c + generator.randint(-14, 14))) for c in COLOURS[colour])

    @property
    def row(self):
        return self.cell // 3

    @property
    def column(self):
        return self.cell % 3

    @property
    def filled(self):
        return OUTLINES[self.outline][1]

    def settle(self, width, height, generator):
        """Puts it into its cell, as far from the middle as its size leaves room."""
        side = min(width, height)
        for axis, (index, length) in enumerate(((self.column, width), (self.row, height))):
            room = max(0.0, 1 / 6 - self.size * side / length) * 0.9
            at = (index + 0.5) / 3 + generator.uniform(-room, room)
            if axis == 0:
                self.x = at
            else:
                self.y = at


class Scene:
    """width, height: of the canvas in pixels. number: what digits side by side spell, if that is the scene."""

    def __init__(self, width, height, ground, generator):
        self.width, self.height, self.ground = width, height, ground
        self.ground_rgb = tuple(min(255, max(0, c + generator.randint(-9, 9))) for c in GROUNDS[ground])
        self.slope = generator.uniform(-12, 12) if generator.random() < 0.4 else 0.0  # levels from top to bottom
        self.things, self.number = [], None


def canvas(generator, unseen_sizes):
    """Training and evaluation never share a width."""
    side = 2 * generator.randint(36, 160) + (1 if unseen_sizes else 0)
    ratio = generator.choice([1, 1, 4 / 3, 3 / 4, generator.uniform(0.75, 1.34)])
    return side, max(64, round(side / ratio))


def colours_for(noun, ground, held_out):
    allowed = [c for c in COLOURS if c != ground and {c, ground} not in (
        {"white", "yellow"}, {"pink", "white"}, {"orange", "yellow"}, {"pink", "purple"}, {"white", "grey"}, {"blue", "purple"},
        {"red", "pink"})]
    if held_out is None:
        return allowed
    chosen = [c for c in allowed if ((noun, c) in HELD_OUT) == held_out]
    return chosen or ([] if held_out else allowed)


def pick_count(generator):
    return generator.choices(range(1, 8), [5, 6, 6, 5, 4, 3, 2])[0]


def draw_scene(generator, held_out=False):
    """held_out False: a training scene without combinations of HELD_OUT; True: an evaluation scene, with at least one."""
    while True:
        scene = any_scene(generator, held_out)
        if any((thing.noun, thing.colour) in HELD_OUT for thing in scene.things) == held_out:
            return scene


def any_scene(generator, held_out):
    width, height = canvas(generator, held_out)
    scene = Scene(width, height, generator.choices(list(GROUNDS), GROUND_WEIGHTS)[0], generator)
    if generator.random() < 0.08:
        number_scene(scene, generator, held_out)
    else:
        fill(scene, generator, held_out)
    for thing in scene.things:
        thing.settle(width, height, generator)
    if len(scene.things) == 1 and scene.things[0].cell == 4:
        scene.things[0].size = generator.uniform(0.12, 0.42)
    return scene


def number_scene(scene, generator, held_out):
    count, row = generator.randint(2, 3), generator.randrange(3)
    first = generator.randrange(4 - count)
    digits = [generator.choice(DIGITS) for _ in range(count)]
    shared = [set(colours_for(d, scene.ground, None)) - ({c for n, c in HELD_OUT if n == d} if not held_out else set()) for d in digits]
    colours = sorted(set.intersection(*shared)) or ["red"]
    if held_out:
        colours = [c for c in colours if any((d, c) in HELD_OUT for d in digits)] or colours
    colour, size = generator.choice(colours), generator.uniform(0.1, 0.15)
    scene.things = [Thing(d, colour, 3 * row + first + i, generator, size) for i, d in enumerate(digits)]
    scene.number = "".join(digits)


def fill(scene, generator, held_out):
    count = pick_count(generator)
    cells = generator.sample(range(9), count) if count > 1 or generator.random() < 0.6 else [4]
    digit_share = generator.choice([0, 0.2, 0.5, 1]) if count > 1 else 0.45
    same_noun = generator.choice(SHAPES) if generator.random() < 0.3 else None
    same_colour = generator.choice(list(COLOURS)) if generator.random() < 0.3 else None
    large = generator.uniform(0.1, 0.155)
    for i, cell in enumerate(cells):
        noun = generator.choice(DIGITS if generator.random() < digit_share else SHAPES)
        if same_noun and generator.random() < 0.6:
            noun = same_noun
        options = []
        if held_out and i == 0:
            options = colours_for(noun, scene.ground, True)
        options = options or colours_for(noun, scene.ground, None if held_out else False)
        colour = same_colour if same_colour in options and generator.random() < 0.6 else generator.choice(options)
        size = large * generator.choice([1, 1, 0.62]) if noun in SHAPES else large
        scene.things.append(Thing(noun, colour, cell, generator, min(0.155, size)))
