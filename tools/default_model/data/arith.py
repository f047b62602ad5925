"""Small sums. The pairs of two-digit numbers that evaluation asks for never occur here."""

from .heldout import held_pair
from .spin import expand, integer, pick

QUESTIONS = ["What is {0} + {1}?", "What is {0} plus {1}?", "{0} + {1} = ?", "Add {0} and {1}.", "How much is {0} + {1}?", "Calculate {0} + {1}.", "{0} + {1}",
             "What do you get when you add {0} and {1}?", "Can you add {0} and {1}?", "Please work out {0} + {1}."]
ANSWERS = ["{0} + {1} = {2}", "{0} + {1} = {2}", "{0} + {1} = {2}", "{2}"]


def pair(rng):
    """Two numbers that may be added in training: mostly of two digits each."""
    while True:
        roll = rng.random()
        a = integer(rng, 10, 99) if roll < 0.85 else integer(rng, 0, 20)
        b = integer(rng, 10, 99) if roll < 0.8 else integer(rng, 0, 20)
        if rng.random() < 0.5:
            a, b = b, a
        if not held_pair(a, b):
            return a, b


def held_pairs():
    """All pairs that only evaluation adds, in both orders."""
    return [(a, b) for a in range(10, 100) for b in range(10, 100) if held_pair(a, b)]


def chat_turn(rng):
    a, b = pair(rng)
    if rng.random() < 0.12 and a != b and not held_pair(min(a, b), abs(a - b)):
        a, b = max(a, b), min(a, b)
        return pick(rng, ["What is {0} - {1}?", "{0} - {1} = ?", "What is {0} minus {1}?"]).format(a, b), "{} - {} = {}".format(a, b, a - b)
    return pick(rng, QUESTIONS).format(a, b), ANSWERS[0].format(a, b, a + b)


def plain(rng):
    """A few lines of sums, as a completion would see them."""
    style = pick(rng, ["{0} + {1} = {2}", "{0} + {1} = {2}", "Q: What is {0} + {1}?\nA: {2}", "Question: What is {0} + {1}?\nAnswer: {2}"])
    lines = []
    for _ in range(integer(rng, 2, 10)):
        a, b = pair(rng)
        lines.append(style.format(a, b, a + b))
    return "\n".join(lines)


def word_problem(rng):
    a, b = pair(rng)
    thing = pick(rng, "apples pears books coins stamps pencils cards shells marbles nuts eggs stickers".split())
    question = expand("I have %d %s and {get|buy|find|receive} %d more. How many %s do I have {now|in all|altogether}?" % (a, thing, b, thing), rng)
    return question, "{} + {} = {}, so you have {} {}.".format(a, b, a + b, a + b, thing)
