"""Copying, listing, counting and few-shot patterns, which teach the model to look back in its context."""

from .extract import made_up
from .heldout import BOYS, GIRLS, TOWNS, held_pair
from .spin import integer, pick, sample

_LISTS = {"animals": "cat dog horse cow sheep goat pig hen duck fox bear wolf lion tiger mouse rabbit frog owl".split(), "colours": "red blue green yellow black white brown orange purple pink grey".split(),
          "fruits": "apple pear plum cherry banana orange lemon grape peach melon mango kiwi".split(), "vegetables": "carrot potato onion cabbage pea bean tomato cucumber spinach leek".split(),
          "tools": "hammer saw shovel axe drill rake ladder brush knife pliers".split(), "instruments": "piano violin flute drum guitar trumpet harp cello organ".split(),
          "clothes": "hat coat shirt shoes socks scarf gloves jacket trousers dress".split()}
_WORDS = sorted({w for ws in _LISTS.values() for w in ws} | set("table river stone cloud paper window garden winter summer letter doctor music number silver bridge forest dinner market pocket yellow ticket basket candle".split()))


def _words(rng, count):
    return [pick(rng, _WORDS) if rng.random() < 0.6 else made_up(rng).lower() for _ in range(count)]


def chat_turn(rng):
    roll = int(rng.random() * 10)
    if roll == 0:
        kind = pick(rng, sorted(_LISTS))
        n = integer(rng, 2, 5)
        return "%s %d %s." % (pick(rng, ["Name", "List", "Give me", "Tell me"]), n, kind), ", ".join(sample(rng, _LISTS[kind], n)).capitalize() + "."
    if roll == 1:
        low = integer(rng, 1, 30)
        high = low + integer(rng, 3, 20)
        return pick(rng, ["Count from %d to %d.", "Write the numbers from %d to %d."]) % (low, high), ", ".join(str(i) for i in range(low, high + 1))
    text = " ".join(_words(rng, integer(rng, 2, 8)))
    if roll == 2:
        return pick(rng, ["Repeat this: %s", "Say exactly: %s", "Copy the following text: %s", "Echo: %s"]) % text, text
    if roll == 3:
        return pick(rng, ["Write this in upper case: %s", "Make this upper case: %s"]) % text, text.upper()
    if roll == 4:
        words = text.split()
        return pick(rng, ["Put these words in reverse order: %s", "Reverse the order of the words: %s"]) % text, " ".join(reversed(words))
    if roll == 5:
        words = text.split()
        return pick(rng, ["How many words are in: %s", "Count the words: %s"]) % text, str(len(words))
    if roll == 6:
        words = text.split()
        first = rng.random() < 0.5
        return "What is the %s word of: %s" % ("first" if first else "last", text), words[0 if first else -1]
    if roll == 7:
        names = sample(rng, GIRLS + BOYS, 4)
        codes = [str(integer(rng, 100, 9999)) for _ in names]
        i = integer(rng, 0, 3)
        lines = "\n".join("The code of %s is %s." % p for p in zip(names, codes))
        return lines + "\nWhat is the code of %s?" % names[i], codes[i]
    if roll == 8:
        who, town = pick(rng, GIRLS + BOYS), pick(rng, TOWNS)
        return "My name is %s and I live in %s. %s" % (who, town, pick(rng, ["What is my name?", "Who am I?"])), "Your name is %s." % who
    word = pick(rng, _WORDS)
    return pick(rng, ["Spell the word %s.", "How do you spell %s?"]) % word, "-".join(word.upper())


def plain(rng):
    """A few-shot pattern, or a table of names that is looked up again."""
    roll = rng.random()
    if roll < 0.4:
        mark = pick(rng, ["->", "=>", ":", "="])
        how = pick(rng, [str.upper, str.capitalize, lambda w: w + " " + w, lambda w: w, lambda w: w[0], lambda w: "<" + w + ">"])
        return "\n".join("%s %s %s" % (w, mark, how(w)) for w in _words(rng, integer(rng, 3, 10)))
    if roll < 0.7:
        line = " ".join(_words(rng, integer(rng, 3, 12)))
        return "\n".join([line] * integer(rng, 2, 4))
    names = sample(rng, GIRLS + BOYS, integer(rng, 3, 12))
    towns = [pick(rng, TOWNS) for _ in names]
    text = "\n".join("%s: %s" % p for p in zip(names, towns))
    return text + "\n\n" + "\n".join("%s: %s" % p for p in sample(rng, list(zip(names, towns)), min(3, len(names))))
