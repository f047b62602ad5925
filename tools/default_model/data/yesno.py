"""Questions about a given sentence whose answer is yes or no, half of each."""

from .extract import Names, _two_people, _two_towns
from .spin import expand, integer, pick, polish, sample

_COLORS = "red blue green yellow black white brown grey orange purple pink".split()
_THINGS = "hat bag coat bicycle car cup scarf door boat kite ball box lamp chair shirt umbrella clock drum phone bottle".split()
_FOODS = "apples rice soup cheese carrots fish cake noodles salad grapes honey potatoes beans mushrooms olives bread".split()
_PLACES = "the garden|the kitchen|the library|the park|the office|the garage|the school|the museum|the shop|the bakery|the station|the cinema".split("|")
_DAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()
_JOBS = "teacher nurse baker farmer lawyer painter pilot doctor plumber singer driver carpenter waiter tailor gardener dentist".split()
_ACTS = "swim|sing|dance|cook|drive|ski|paint|whistle|juggle|read maps|speak French|play chess|ride a horse|play the piano".split("|")
_ANIMALS = "dog cat parrot rabbit goat horse duck hamster turtle cow".split()


def _other(rng, seq, taken):
    while True:
        x = pick(rng, seq)
        if x not in taken:
            return x


def _has(r, n):
    a, yes = n.first(), r.random() < 0.5
    c, t = pick(r, _COLORS), pick(r, _THINGS)
    if yes:
        c2, t2 = c, t
    elif r.random() < 0.5:
        c2, t2 = _other(r, _COLORS, [c]), t
    else:
        c2, t2 = c, _other(r, _THINGS, [t])
    s = "{%s has a %s %s|%s bought a %s %s|%s owns a %s %s}." .replace("%s has", a + " has").replace("%s bought", a + " bought").replace("%s owns", a + " owns") % (c, t, c, t, c, t)
    return s, "{Does %s have a %s %s|Is %s's %s %s}?" % (a, c2, t2, a, t, c2) if t2 == t else "Does %s have a %s %s?" % (a, c2, t2), yes


def _where(r, n):
    (a, b), yes = _two_people(n), r.random() < 0.5
    p, q = sample(r, _PLACES, 2)
    who, place = (a, p) if r.random() < 0.5 else (b, q)
    asked = place if yes else (q if place == p else p)
    return "%s is in %s{, and| and|, while} %s is in %s." % (a, p, b, q), "Is %s in %s?" % (who, asked), yes


def _likes(r, n):
    (a, b), yes = _two_people(n), r.random() < 0.5
    f, g = sample(r, _FOODS, 2)
    if r.random() < 0.5:
        return "%s likes %s but does not like %s." % (a, f, g), "Does %s like %s?" % (a, f if yes else g), yes
    who, food = (a, f) if r.random() < 0.5 else (b, g)
    asked = food if yes else (g if food == f else f)
    return "%s {ate|had|ordered} %s, and %s {ate|had|ordered} %s." % (a, f, b, g), "Did %s eat %s?" % (who, asked) if False else "Did %s have %s?" % (who, asked), yes


def _can(r, n):
    a, yes = n.first(), r.random() < 0.5
    f, g = sample(r, _ACTS, 2)
    s = pick(r, ["%s can %s but cannot %s." % (a, f, g), "%s cannot %s but can %s." % (a, g, f), "%s has learned to %s, but not to %s." % (a, f, g)])
    return s, "Can %s %s?" % (a, f if yes else g), yes


_COMPARE = [("taller", "shorter"), ("older", "younger"), ("faster", "slower"), ("stronger", "weaker"), ("richer", "poorer"), ("heavier", "lighter")]


def _compare(r, n):
    (a, b), yes = _two_people(n), r.random() < 0.5
    up, down = pick(r, _COMPARE)
    if r.random() < 0.5:
        up, down = down, up
    if r.random() < 0.6:
        return "%s is %s than %s." % (a, up, b), "Is %s %s than %s?" % ((a, up, b) if yes else (b, up, a)), yes
    return "%s is %s than %s." % (a, up, b), "Is %s %s than %s?" % ((b, down, a) if yes else (a, down, b)), yes


def _gave(r, n):
    (a, b), yes = _two_people(n), r.random() < 0.5
    t, u = sample(r, _THINGS, 2)
    kind = r.random()
    s = "%s {gave|sold|lent} %s a %s." % (a, b, t) if r.random() < 0.5 else "%s {gave|sold|lent} a %s to %s." % (a, t, b)
    if kind < 0.5:
        return s, "Did %s get a %s from %s?" % ((b, t, a) if yes else (a, t, b)), yes
    return s, "Did %s get a %s?" % (b, t if yes else u), yes


def _when(r, n):
    a, yes = n.first(), r.random() < 0.5
    d, e = sample(r, _DAYS, 2)
    p = pick(r, _PLACES)
    s = pick(r, ["%s went to %s on %s." % (a, p, d), "On %s, %s went to %s." % (d, a, p), "%s visited %s on %s and stayed at home on %s." % (a, p, d, e)])
    return s, "Did %s %s on %s?" % (a, "visit " + p if "visited" in s else "go to " + p, d if yes else e), yes


def _job(r, n):
    (a, b), yes = _two_people(n), r.random() < 0.5
    j, k = sample(r, _JOBS, 2)
    who, job = (a, j) if r.random() < 0.5 else (b, k)
    asked = job if yes else (k if job == j else j)
    return "%s is a %s{, and| and} %s is a %s." % (a, j, b, k), "Is %s a %s?" % (who, asked), yes


def _count(r, n):
    a, yes = n.first(), r.random() < 0.5
    x = integer(r, 2, 12)
    y = x
    while y == x:
        y = integer(r, 2, 12)
    t = pick(r, _ANIMALS)
    return "%s has %d %ss." % (a, x, t), "Does %s have %d %ss?" % (a, x if yes else y, t), yes


def _lives(r, n):
    (a, b), yes = _two_people(n), r.random() < 0.5
    p, q = _two_towns(n)
    who, town = (a, p) if r.random() < 0.5 else (b, q)
    asked = town if yes else (q if town == p else p)
    s = pick(r, ["%s lives in %s{, and| and|, but} %s lives in %s." % (a, p, b, q), "%s comes from %s, %s from %s." % (a, p, b, q)])
    return s, ("Does %s live in %s?" if "lives" in s else "Does %s come from %s?") % (who, asked), yes


def _negated(r, n):
    (a, b), yes = _two_people(n), r.random() < 0.5
    p = pick(r, _PLACES)
    s = pick(r, ["%s went to %s, but %s did not." % (a, p, b), "%s did not go to %s, but %s did." % (b, p, a), "%s went to %s without %s." % (a, p, b)])
    return s, "Did %s go to %s?" % (a if yes else b, p), yes


def _state(r, n):
    a, yes = n.first(), r.random() < 0.5
    up, down = pick(r, [("open", "closed"), ("full", "empty"), ("clean", "dirty"), ("wet", "dry"), ("new", "old"), ("hot", "cold"), ("big", "small"), ("heavy", "light")])
    if r.random() < 0.5:
        up, down = down, up
    t = pick(r, "bottle box cup bag bucket drawer bowl".split())
    return "%s's %s is %s{.| and stands on the table.| and belongs to the family.}" % (a, t, up), "Is %s's %s %s?" % (a, t, up if yes else down), yes


KINDS = [_has, _where, _likes, _can, _compare, _gave, _when, _job, _count, _lives, _negated, _state]

ASKS = ["{s}\n{q}", "{s} {q}", "Sentence: {s}\nQuestion: {q}", "Read this: {s}\n{q} Answer yes or no.", "{s}\n\n{q} Yes or no?", "Yes or no: {q}\n{s}"]


def item(rng, held=False):
    """(sentence, question, whether the answer is yes)"""
    sentence, question, yes = pick(rng, KINDS)(rng, Names(rng, held))
    return polish(expand(sentence, rng)), polish(expand(question, rng)), yes


PLAIN = "{s}\nQuestion: {q}\nAnswer:"


def chat_turn(rng):
    sentence, question, yes = item(rng)
    return pick(rng, ASKS).replace("{s}", sentence).replace("{q}", question), "Yes." if yes else "No."


def plain(rng):
    out = []
    for _ in range(integer(rng, 1, 4)):
        sentence, question, yes = item(rng)
        out.append(PLAIN.replace("{s}", sentence).replace("{q}", question) + (" Yes" if yes else " No"))
    return "\n\n".join(out)
