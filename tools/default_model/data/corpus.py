"""The mix of documents that the model trains on. A document is a list of pieces: text, or the name of a special token."""

from . import arith, chat, copying, extract, facts, heldout, spin, stories, yesno
from .spin import pick

BOS, EOS, PAD, SYSTEM, USER, ASSISTANT = "<|bos|>", "<|eos|>", "<|pad|>", "<|system|>", "<|user|>", "<|assistant|>"
SPECIAL = [BOS, EOS, PAD, SYSTEM, USER, ASSISTANT]

_TURNS = [(extract.chat_turn, 40), (yesno.chat_turn, 14), (arith.chat_turn, 18), (arith.word_problem, 3), (facts.chat_turn, 22), (copying.chat_turn, 12), (chat.chat_turn, 5)]
_PLAIN = [(extract.plain, 26), (yesno.plain, 30), (arith.plain, 16), (facts.plain, 22), (copying.plain, 18)]

STORY_ASKS = ["Tell me a story.", "Tell me a story.", "Write a short story.", "Please tell me a story.", "I would like to hear a story.", "Tell me a story about {t}.", "Write a story about {t}.", "Can you tell me a story about {t}?", "A story about {t}, please."]


def _weighted(rng, table):
    x = rng.random() * sum(w for _, w in table)
    for f, w in table:
        x -= w
        if x < 0:
            return f
    return table[-1][0]


def story_document(rng, number):
    topic, _, text = stories.story(number)
    if rng.random() < 0.45:
        return [BOS, text, EOS]
    return [BOS, USER, pick(rng, STORY_ASKS).replace("{t}", topic), EOS, ASSISTANT, text, EOS]


def task_document(rng):
    if rng.random() < 0.35:
        return [BOS, _weighted(rng, _PLAIN)(rng), EOS]
    pieces = [BOS]
    if rng.random() < 0.3:
        pieces += [SYSTEM, chat.system(rng), EOS]
    turns = 1 if rng.random() < 0.5 else 1 + int(rng.random() * 4)
    for _ in range(turns):
        ask, answer = _weighted(rng, _TURNS)(rng)
        pieces += [USER, ask, EOS, ASSISTANT, answer, EOS]
    return pieces


_HELD_QUESTIONS = frozenset(q for q, _ in facts.held_questions())


def check(document):
    """Raises where a training document has something that belongs to evaluation."""
    for piece in document:
        found = heldout.violations(piece)
        if found or piece in _HELD_QUESTIONS:
            raise ValueError("held-out material in training text: %s in %r" % (found, piece))
    return document


def chunk(kind, number, count):
    """Documents of one numbered chunk: 'story' (finite, by story number), 'unseen' (stories that do not train) or 'task' (as many as wanted)."""
    rng = spin.make_rng(kind, number)
    if kind == "story":
        start = number * count
        return [check(story_document(rng, i % stories.STORY_COUNT)) for i in range(start, start + count)]
    if kind == "unseen":
        return [check(story_document(rng, "unseen %d" % i)) for i in range(number * count, (number + 1) * count)]
    return [check(task_document(rng)) for _ in range(count)]
