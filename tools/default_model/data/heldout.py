"""What belongs to evaluation alone, and the check that training text has none of it.

The generators import the training half and `items.py` the held-out half, so both sides share this one definition.
"""

import re

from . import names

GIRLS, HELD_GIRLS = names._split(names.GIRLS)
BOYS, HELD_BOYS = names._split(names.BOYS)
SURNAMES, HELD_SURNAMES = names._split(names.SURNAMES)
TOWNS, HELD_TOWNS = names._split(names.TOWNS)

# Words that are also common facts or ordinary words must be allowed in training text, so they can't be held out.
_FREE = {"Paris", "Rome", "Oslo", "Lima", "London", "Madrid", "Berlin", "Vienna", "Athens", "Dublin", "Lisbon", "Cairo", "Prague", "Warsaw",
         "Tokyo", "Seoul", "Delhi", "Moscow", "Ottawa", "Brussels", "Budapest", "Stockholm", "Helsinki", "Jakarta", "Nairobi", "Quito",
         "Santiago", "Amsterdam", "Wellington", "Zagreb", "Will", "Faith", "Hope", "Grace", "Joy", "May", "June", "Mark", "Rose", "Daisy",
         "Robin", "Olive", "Ivy", "Holly", "Iris", "Lily", "Jade", "Ruby", "Pearl", "Opal", "Hazel", "Fern", "Jack", "Rob", "Bill", "Frank",
         "Eve", "Aurora", "Dean", "Max", "Bob", "Ray", "Gus", "Dan", "Page", "Florence", "Victoria", "Georgia", "Black", "Brown",
         "Green", "Gray", "White", "Young", "West", "Hill", "Brook", "Stone", "Wood", "Wolf", "Fox", "Swan", "Snow", "Hall", "Park", "King",
         "Knight", "Baker", "Farmer", "Fisher", "Hunt", "Hart", "Ford", "Lane", "Bell", "Price", "Rice", "Reed", "Ward", "Wells", "Cook",
         "Archer", "Bishop", "Bloom", "Butler", "Carter", "Castle", "Cole", "Cooper", "Drake", "Grant", "Marsh", "Mason", "Miller", "Mills",
         "Moss", "Palmer", "Parker", "Pike", "Porter", "Sharp", "Turner", "Walker", "Weaver", "Wright", "Bath", "Nice", "Cork", "York",
         "Buffalo", "Phoenix", "Chris", "Newton", "Washington", "Shakespeare", "Bergen", "Franklin", "Michael", "Leonardo"}


def _free(train, held):
    train += [w for w in held if w in _FREE]
    held[:] = [w for w in held if w not in _FREE]


for _t, _h in ((GIRLS, HELD_GIRLS), (BOYS, HELD_BOYS), (SURNAMES, HELD_SURNAMES), (TOWNS, HELD_TOWNS)):
    _free(_t, _h)

_TRAIN = set(GIRLS) | set(BOYS) | set(SURNAMES) | set(TOWNS)
for _h in (HELD_GIRLS, HELD_BOYS, HELD_SURNAMES, HELD_TOWNS):
    _h[:] = [w for w in _h if w not in _TRAIN]
HELD_NAMES = frozenset(HELD_GIRLS) | frozenset(HELD_BOYS) | frozenset(HELD_SURNAMES) | frozenset(HELD_TOWNS)


def held_pair(a, b):
    """Whether the sum of a and b, in either order, is an evaluation item: one pair of two-digit numbers in eight."""
    low, high = min(a, b), max(a, b)
    return 10 <= low and high <= 99 and (low * 7919 + high * 104729) % 8 == 3


_WORD = re.compile(r"[A-Z][a-z]+")
_SUM = re.compile(r"\b(\d\d) ?(?:\+|plus|and) ?(\d\d)\b")


def violations(text):
    """Held-out names and sums that occur in a piece of training text; empty for every document that trains."""
    found = [w for w in _WORD.findall(text) if w in HELD_NAMES]
    found += [m.group(0) for m in _SUM.finditer(text) if held_pair(int(m.group(1)), int(m.group(2)))]
    return found
