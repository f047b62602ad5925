"""Sentences from which fields are copied into JSON."""

import json

from . import heldout, spin
from .spin import expand, integer, pick, polish

_JOBS = """teacher nurse baker farmer lawyer painter pilot doctor plumber singer driver carpenter chemist waiter tailor librarian gardener dentist
mechanic journalist architect fisherman florist judge engineer photographer translator welder chef cashier barber potter""".split()
_ITEMS = """chairs lamps notebooks candles mugs pillows plates umbrellas baskets pencils towels mirrors shirts scarves clocks bowls forks blankets
boxes brushes apples tomatoes melons lemons cables batteries hammers ladders tents keyboards monitors printers""".split()
_DAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()
_SPECIES = "cat dog parrot rabbit hamster turtle goat pony goldfish lizard canary duck".split()
_COLORS = "red blue green yellow black white brown grey orange purple".split()
_MONTHS = "January February March April May June July August September October November December".split()
_SKIES = "sunny cloudy rainy windy snowy foggy stormy".split()
_SPORTS = "tennis football chess swimming judo hockey rowing golf boxing cricket".split()
_DISHES = "soup pizza salad pasta curry pancakes noodles rice fish pie tacos omelette".split()

_ONSETS = "b c d f g h k l m n p r s t v w z br cr dr gr tr st sh th ch bl pl".split()
_VOWELS = "a e i o u ai ea oo ia".split()
_CODAS = ["", "", "n", "r", "l", "s", "m", "th", "ck", "nd", "x"]


_PARTS = sorted(set(heldout.GIRLS + heldout.BOYS + heldout.SURNAMES + heldout.TOWNS))
_LETTERS = "aaabcdeeefghiiijklmnoooprstuuvwyz"


def _syllables(rng):
    return "".join(pick(rng, _ONSETS) + pick(rng, _VOWELS) + pick(rng, _CODAS) for _ in range(integer(rng, 1, 3)))


def _splice(rng):
    """The start of one training name and the end of another."""
    a, b = pick(rng, _PARTS), pick(rng, _PARTS)
    return a[: integer(rng, 1, max(1, len(a) - 1))] + b[-integer(rng, 1, max(1, len(b) - 1)) :]


def _cut(rng):
    """Pieces from the middle of training names."""
    out = ""
    for _ in range(integer(rng, 1, 3)):
        a = pick(rng, _PARTS)
        at = integer(rng, 0, len(a) - 2)
        out += a[at : at + integer(rng, 2, 4)]
    return out


def _random_letters(rng):
    return "".join(pick(rng, _LETTERS) for _ in range(integer(rng, 3, 8)))


_KINDS_OF_NAME = [_syllables, _splice, _splice, _splice, _cut, _random_letters]


def made_up(rng):
    """A name that nobody bears, so that copying it can't be done from memory. It may start and go on in any way."""
    while True:
        name = pick(rng, _KINDS_OF_NAME)(rng).capitalize()
        if name not in heldout.HELD_NAMES and 2 < len(name) < 16:
            return name


class Names:
    """Where a sentence takes its names from: the training lists and made-up ones, or the held-out lists."""

    def __init__(self, rng, held):
        self.rng, self.held = rng, held

    def first(self):
        if self.held:
            return pick(self.rng, heldout.HELD_GIRLS + heldout.HELD_BOYS)
        if self.rng.random() < 0.6:
            return made_up(self.rng)
        return pick(self.rng, heldout.GIRLS if self.rng.random() < 0.5 else heldout.BOYS)

    def full(self):
        surname = heldout.HELD_SURNAMES if self.held else heldout.SURNAMES
        last = pick(self.rng, surname) if self.held or self.rng.random() < 0.4 else made_up(self.rng)
        return self.first() + " " + last

    def person(self):
        return self.first() if self.rng.random() < 0.6 else self.full()

    def town(self):
        if self.held:
            return pick(self.rng, heldout.HELD_TOWNS)
        return pick(self.rng, heldout.TOWNS) if self.rng.random() < 0.4 else made_up(self.rng)


def _two_towns(n):
    a, b = n.town(), n.town()
    while a == b:
        b = n.town()
    return a, b


def _two_people(n):
    a, b = n.first(), n.first()
    while a == b:
        b = n.first()
    return a, b


def _person(r, n):
    f = {"name": n.person(), "age": integer(r, 4, 98), "city": n.town(), "job": pick(r, _JOBS)}
    return f, ["<name> is <age> years old, lives in <city> and works as a <job>.", "<name>, a <age>-year-old <job>, lives in <city>.", "The <job> <name> from <city> is <age> years old.",
               "At the age of <age>, <name> moved to <city> to work as a <job>.", "In <city> there is a <job> {named|called} <name>, who is <age>.", "My {neighbour|friend|cousin} <name> is a <job> in <city> and {just|has just} turned <age>.",
               "<name> ({aged|age} <age>) has been a <job> in <city> for years.", "Meet <name>: <age> years old, <job>, from <city>."]


def _order(r, n):
    f = {"customer": n.person(), "item": pick(r, _ITEMS), "quantity": integer(r, 2, 99), "price": integer(r, 3, 950)}
    return f, ["<customer> ordered <quantity> <item> for <price> {dollars|euros}.", "<quantity> <item> were sold to <customer> for <price> {dollars|euros}.", "For <price> {dollars|euros}, <customer> bought <quantity> <item>.",
               "The order of <quantity> <item> by <customer> {costs|cost|comes to} <price> {dollars|euros}.", "<customer> paid <price> {dollars|euros} for <quantity> <item>.", "{Please send|We sent} <quantity> <item> to <customer>; the price is <price> {dollars|euros}."]


def _meeting(r, n):
    hour = integer(r, 1, 12)
    f = {"person": n.person(), "day": pick(r, _DAYS), "time": "%d:%02d" % (hour, pick(r, [0, 15, 30, 45])), "room": integer(r, 1, 60)}
    return f, ["The meeting with <person> is on <day> at <time> in room <room>.", "On <day> at <time>, <person> will meet us in room <room>.", "<person> has a meeting on <day> at <time> in room <room>.",
               "Room <room> is {booked|reserved} for <person> on <day> at <time>.", "{Do not forget|Remember}: <day>, <time>, room <room>, with <person>.", "Please see <person> in room <room> at <time> on <day>."]


def _booking(r, n):
    f = {"guest": n.person(), "city": n.town(), "nights": integer(r, 2, 30), "month": pick(r, _MONTHS)}
    return f, ["<guest> booked a hotel in <city> for <nights> nights in <month>.", "In <month>, <guest> will spend <nights> nights in <city>.", "A room in <city> for <nights> nights in <month> is reserved for <guest>.",
               "<guest> is staying in <city> for <nights> nights this <month>.", "For <nights> nights in <month>, <guest> needs a room in <city>."]


def _pet(r, n):
    owner, pet = _two_people(n)
    f = {"pet": pet, "species": pick(r, _SPECIES), "age": integer(r, 2, 19), "owner": owner}
    return f, ["<owner> has a <age>-year-old <species> {named|called} <pet>.", "The <species> <pet> is <age> years old and belongs to <owner>.", "<pet>, a <species> of <age> years, lives with <owner>.",
               "<owner>'s <species> is called <pet> and is <age> years old.", "A <species> named <pet>, <age> years old, was brought in by <owner>."]


def _trip(r, n):
    a, b = _two_towns(n)
    f = {"traveller": n.person(), "from": a, "to": b, "day": pick(r, _DAYS)}
    return f, ["<traveller> {flies|drives|goes|travels} from <from> to <to> on <day>.", "On <day>, <traveller> {will travel|is going} from <from> to <to>.", "The {train|bus|flight} from <from> to <to> leaves on <day> with <traveller> on board.",
               "<traveller> left <from> on <day> and arrived in <to>.", "On <day>, <traveller> took the {train|bus} to <to> from <from>."]


def _weather(r, n):
    f = {"city": n.town(), "temperature": integer(r, 1, 39), "sky": pick(r, _SKIES), "day": pick(r, _DAYS)}
    return f, ["It will be <sky> in <city> on <day>, with <temperature> degrees.", "On <day>, <city> expects <temperature> degrees and <sky> weather.", "<city> was <sky> on <day> at <temperature> degrees.",
               "The forecast for <city> on <day> is <sky> and <temperature> degrees."]


def _score(r, n):
    a, b = _two_people(n)
    f = {"winner": a, "loser": b, "sport": pick(r, _SPORTS), "city": n.town()}
    return f, ["<winner> beat <loser> at <sport> in <city>.", "In <city>, <loser> lost to <winner> at <sport>.", "The <sport> match in <city> was won by <winner> against <loser>.", "<winner> won against <loser> in the <sport> final in <city>."]


def _car(r, n):
    f = {"owner": n.person(), "color": pick(r, _COLORS), "year": integer(r, 1960, 2024), "city": n.town()}
    return f, ["<owner> from <city> drives a <color> car from <year>.", "The <color> car built in <year> belongs to <owner> of <city>.", "In <city>, <owner> bought a <color> car made in <year>.", "A <color> car from <year> was sold to <owner> in <city>."]


def _meal(r, n):
    f = {"guest": n.person(), "dish": pick(r, _DISHES), "table": integer(r, 1, 40), "day": pick(r, _DAYS)}
    return f, ["<guest> ate <dish> at table <table> on <day>.", "On <day>, <guest> at table <table> ordered <dish>.", "Table <table> on <day>: <dish> for <guest>.", "For <day>, please keep table <table> for <guest>, who wants <dish>."]


def _birth(r, n):
    f = {"name": n.full(), "born": integer(r, 1900, 2015), "city": n.town()}
    return f, ["<name> was born in <city> in <born>.", "In <born>, <name> was born in <city>.", "Born in <born>, <name> grew up in <city>.", "The city of <city> is where <name> was born in <born>."]


SCHEMAS = [_person, _order, _meeting, _booking, _pet, _trip, _weather, _score, _car, _meal, _birth]

ASKS = ["Extract {keys} from this sentence as JSON.\n{s}", "{s}\nReturn {keys} as JSON.", "Read the sentence and give {keys} as a JSON object.\nSentence: {s}", "Fill in a JSON object with the fields {keys}.\n\n{s}",
        "Extract the fields {keys} as JSON from: {s}", "Text: {s}\nFields: {keys}\nJSON:", "Give me {keys} as JSON: {s}", "Please turn this into JSON with the keys {keys}: \"{s}\""]


def item(rng, held=False, whole=False):
    """(sentence, fields): whole takes all the fields in the schema's order, else often a shuffled part of them."""
    fields, templates = pick(rng, SCHEMAS)(rng, Names(rng, held))
    sentence = polish(expand(pick(rng, templates), rng, fields))
    keys = list(fields)
    if not whole and rng.random() < 0.5:
        keys = spin.sample(rng, keys, integer(rng, 1, len(keys)))
    return sentence, {k: fields[k] for k in keys}


def ask(rng, sentence, fields):
    return pick(rng, ASKS).replace("{keys}", ", ".join(fields)).replace("{s}", sentence)


def chat_turn(rng):
    sentence, fields = item(rng)
    return ask(rng, sentence, fields), json.dumps(fields)


def plain(rng):
    out = []
    for _ in range(integer(rng, 1, 3)):
        sentence, fields = item(rng)
        out.append("Sentence: {}\nFields: {}\nJSON: {}".format(sentence, ", ".join(fields), json.dumps(fields)))
    return "\n\n".join(out)
