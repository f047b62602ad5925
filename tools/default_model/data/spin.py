"""A tiny template language, expanded with a seeded random generator.

  {a|b|c}   one of the alternatives, which may nest and may be empty
  <name>    the context's value for that name
  [name]    one entry of the word list of that name, itself a template

Only random.random() is drawn from, so that the same seed gives the same text on any Python version.
"""

import random
import re

LISTS = {}
_cache = {}


def pick(rng, seq):
    return seq[int(rng.random() * len(seq))]


def sample(rng, seq, count):
    """`count` different entries of seq, in random order."""
    seq = list(seq)
    for i in range(count):
        j = i + int(rng.random() * (len(seq) - i))
        seq[i], seq[j] = seq[j], seq[i]
    return seq[:count]


def integer(rng, low, high):
    """A whole number in [low, high]."""
    return low + int(rng.random() * (high - low + 1))


def make_rng(*parts):
    """A generator seeded by the parts' text, equal on every machine."""
    return random.Random("/".join(str(p) for p in parts))


def alternatives(text):
    """The parts of text between its outermost bars; line breaks are no part of any."""
    parts, depth = [""], 0
    for ch in text.replace("\n", ""):
        depth += (ch == "{") - (ch == "}")
        if ch == "|" and depth == 0:
            parts.append("")
        else:
            parts[-1] += ch
    return parts


def _parse(text, i, stops):
    nodes, literal = [], []

    def flush():
        if literal:
            nodes.append("".join(literal))
            literal.clear()

    while i < len(text) and text[i] not in stops:
        ch = text[i]
        if ch == "{":
            flush()
            options = []
            while True:
                node, i = _parse(text, i + 1, "|}")
                options.append(node)
                if text[i] == "}":
                    break
            nodes.append((0, options))
            i += 1
        elif ch in "<[":
            flush()
            end = text.index(">" if ch == "<" else "]", i)
            nodes.append((1 if ch == "<" else 2, text[i + 1 : end]))
            i = end + 1
        else:
            literal.append(ch)
            i += 1
    flush()
    return nodes, i


def _compiled(template):
    nodes = _cache.get(template)
    if nodes is None:
        nodes, end = _parse(template, 0, "")
        assert end == len(template), template
        _cache[template] = nodes
    return nodes


def _emit(nodes, rng, ctx, out):
    for node in nodes:
        if type(node) is str:
            out.append(node)
        elif node[0] == 0:
            _emit(node[1][int(rng.random() * len(node[1]))], rng, ctx, out)
        elif node[0] == 1:
            out.append(str(ctx[node[1]]))
        else:
            words = LISTS[node[1]]
            _emit(_compiled(words[int(rng.random() * len(words))]), rng, ctx, out)


_ARTICLE = re.compile(r"\b([Aa]) (?=[aeiou]|hones|hour|8|11\b|18\b|11-|18-)(?!one\b|uni|use|eu)")
_START = re.compile(r"((?:^|[.!?] |\n)\"?)([a-z])")
_SPACES = re.compile(r" {2,}")


def expand(template, rng, ctx=None):
    out = []
    _emit(_compiled(template), rng, ctx or {}, out)
    return "".join(out)


def polish(text):
    """Joins what templates leave apart: double spaces, 'a apple', a small letter at a sentence's start."""
    text = _SPACES.sub(" ", text.strip()).replace(" ,", ",")
    text = _ARTICLE.sub(r"\1n ", text)
    return _START.sub(lambda m: m.group(1) + m.group(2).upper(), text)
