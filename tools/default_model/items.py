"""The evaluation's items and how each is judged, for any backend that can chat, sample and score a choice.

A backend offers
  chat(messages, tokens, temperature, seed) -> the answer's text
  score(prompt, choice) -> the log probability of choice after prompt, special tokens added as the server adds them
  several(function, arguments) -> the function's results, perhaps computed side by side
"""

import itertools
import json
import pathlib
import re

from data import arith, corpus, extract, facts, heldout, spin, stories, yesno

TARGETS = {"extraction": 90.0, "yes or no": 90.0, "addition": 90.0, "facts": 95.0, "English words": 99.0, "repeats": 0.0}
COUNTS = {"extraction": 200, "yes or no": 200, "addition": 200, "facts": 100, "stories": 200}
SEED = "evaluation 1"
SPAN = 13  # words; a story may share twelve with its training text, never thirteen
STORY_TEMPERATURE = 0.7


def user(text):
    return [{"role": "user", "content": text}]


def extraction(backend, count):
    rng = spin.make_rng(SEED, "extraction")
    items = [extract.item(rng, held=True, whole=True) for _ in range(count)]
    asks = [extract.ask(rng, s, f) for s, f in items]
    answers = backend.several(lambda ask: backend.chat(user(ask), 120, 0, 0), asks)

    def right(answer, fields):
        try:
            return json.loads(answer) == fields
        except ValueError:
            return False

    return [(right(a, f), q, a, json.dumps(f)) for a, q, (_, f) in zip(answers, asks, items)]


def yes_or_no(backend, count):
    rng = spin.make_rng(SEED, "yes or no")
    items = [yesno.item(rng, held=True) for _ in range(count)]
    prompts = [yesno.PLAIN.replace("{s}", s).replace("{q}", q) for s, q, _ in items]
    scores = backend.several(lambda p: (backend.score(p, " Yes"), backend.score(p, " No")), prompts)
    return [((a > b) == yes, p, "Yes" if a > b else "No", "Yes" if yes else "No") for (a, b), p, (_, _, yes) in zip(scores, prompts, items)]


def addition(backend, count):
    rng = spin.make_rng(SEED, "addition")
    pairs = spin.sample(rng, arith.held_pairs(), count)
    asks = [spin.pick(rng, arith.QUESTIONS).format(a, b) for a, b in pairs]
    answers = backend.several(lambda ask: backend.chat(user(ask), 24, 0, 0), asks)
    return [(re.findall(r"\d+", t)[-1:] == [str(a + b)], q, t, str(a + b)) for t, q, (a, b) in zip(answers, asks, pairs)]


def common_facts(backend, count):
    rng = spin.make_rng(SEED, "facts")
    chosen = spin.sample(rng, facts.FACTS, count)
    asks = [spin.pick(rng, fact[1][-3:]) for fact in chosen]
    answers = backend.several(lambda ask: backend.chat(user(ask), 40, 0, 0), asks)

    def right(answer, key):
        return re.search(r"(?<!\w)" + re.escape(key) + r"(?!\w)", answer, re.IGNORECASE) is not None

    return [(right(t, fact[3]), q, t, fact[3]) for t, q, fact in zip(answers, asks, chosen)]


def sampled_stories(backend, count):
    rng = spin.make_rng(SEED, "stories")
    asks = [spin.pick(rng, corpus.STORY_ASKS[:4]) if rng.random() < 0.5 else spin.pick(rng, corpus.STORY_ASKS[5:]).replace("{t}", stories.story("topic %d" % n)[0]) for n in range(count)]
    return backend.several(lambda p: backend.chat(user(p[1]), 480, STORY_TEMPERATURE, 1000 + p[0]), list(enumerate(asks)))


_WORD = re.compile(r"[A-Za-z']+")


def words(text):
    return [w.strip("'") for w in _WORD.findall(text.lower()) if w.strip("'")]


def spans(text):
    w = words(text)
    return [" ".join(w[i : i + SPAN]) for i in range(len(w) - SPAN + 1)]


def dictionary():
    """English words: a system's word list where there is one, and the words of the generators' own vocabulary."""
    known = set()
    for path in ("/usr/share/dict/words", "/usr/share/dict/american-english", "/usr/share/dict/british-english"):
        if pathlib.Path(path).exists():
            known |= {w.strip().lower() for w in pathlib.Path(path).read_text(errors="replace").splitlines()}
    return known


def judge_stories(texts):
    """(per cent of English words, [(story, its repeated span)], the words not known)"""
    wanted, known, unknown, total = {}, dictionary(), {}, 0
    for n, text in enumerate(texts):
        for span in spans(text):
            wanted.setdefault(span, n)
    repeated = {}
    for number in range(stories.STORY_COUNT):
        text = stories.story(number)[2]
        if number < 20_000:
            known.update(words(text))
        for span in spans(text):
            if span in wanted:
                repeated.setdefault(wanted[span], span)
    for text in texts:
        for word in words(text):
            total += 1
            plain = word[:-2] if word.endswith("'s") else word
            if word not in known and plain not in known:
                unknown[word] = unknown.get(word, 0) + 1
    return 100.0 * (1 - sum(unknown.values()) / max(1, total)), sorted(repeated.items()), unknown


def check_separation():
    """That no item shares a name, sentence or pair of numbers with training text; returns what was looked at."""
    rng = spin.make_rng(SEED, "separation")
    trained = set(heldout.GIRLS) | set(heldout.BOYS) | set(heldout.SURNAMES) | set(heldout.TOWNS)
    assert not trained & heldout.HELD_NAMES
    asked = {q for q, _ in facts.held_questions()}
    assert not asked & {w for fact in facts.FACTS for w in facts.trained_ways(fact)}
    sentences = {extract.item(spin.make_rng(SEED, "s", n), held=True)[0] for n in range(2000)} | {yesno.item(spin.make_rng(SEED, "y", n), held=True)[0] for n in range(2000)}
    looked_at = 0
    for kind, number, count in itertools.chain((("story", spin.integer(rng, 0, 39), 200) for _ in range(5)), (("task", spin.integer(rng, 100, 400), 1000) for _ in range(20))):
        for document in corpus.chunk(kind, number, count):  # corpus.chunk itself refuses held-out names, sums and questions
            looked_at += 1
            for piece in document:
                assert not any(line in sentences for line in piece.split("\n")), piece
    return "%d held-out names, %d pairs and %d questions; none in %d regenerated documents" % (len(heldout.HELD_NAMES), len(arith.held_pairs()), len(asked), looked_at)
