#!/usr/bin/env python3
"""How many tokens a step makes with draft tokens from n-grams of several lengths, by counting over the tree's own texts.

    python3 bench/ngram_orders.py                      (bench/results/ngram_orders.txt)

Texts are answered one after the other, each token taken as the one that a model samples: a step has the tokens behind the
latest occurrence of the longest n-gram before its end that an earlier text had, up to the first that is wrong, and one more.
The n-grams of a text are entered when it has ended, as of recent answers. `table` is the number of entries for each token
that is kept, of a direct-mapped table (ngram_index.h); 0: nothing is lost. All lengths without loss are what a suffix
automaton finds, up to 16 tokens.
"""

import pathlib
import re

ROOT = pathlib.Path(__file__).resolve().parent.parent
CAPACITY = 1 << 17
DRAFT_TOKENS = 8
LONGEST = 16
SETTINGS = (((8, 3), 2), ((8, 3), 0), ((8, 5, 3), 4), ((8, 3, 2), 4), ((16, 8, 5, 3, 2), 4), ((16, 8, 5, 3, 2), 0), (tuple(range(16, 2, -1)), 0), (tuple(range(16, 1, -1)), 0))


def tokens_of(path):
    """Words in pieces of at most five letters, and single signs."""
    return re.findall(r"[A-Za-z]{1,5}|[0-9]|\s+|[^\w\s]|_", path.read_text()[:6000])


def count(texts, orders, table):
    """(tokens a step, part of the steps with draft tokens, part of these whose first one is right)"""
    history, entries, numbers = [], {}, {}
    steps = found = right = 0

    def key(gram):
        return hash(gram) % (table * CAPACITY) if table else gram

    texts = [[numbers.setdefault(word, len(numbers)) for word in text] for text in texts]
    for text in texts:
        at = 1
        while at < len(text):
            steps += 1
            accepted = 0
            for order in orders:
                gram = tuple(text[at - order : at])
                start, same = entries.get(key(gram), (None, None)) if at >= order else (None, None)
                if start is None or same != gram or len(history) - start >= CAPACITY:
                    continue
                found += 1
                while accepted < DRAFT_TOKENS and at + accepted < len(text) and history[start + accepted] == text[at + accepted]:
                    accepted += 1
                right += accepted > 0
                break
            at += 1 + accepted
        base = len(history)
        history += [*text, None]
        for end in range(1, len(text) + 1):
            for order in orders:
                if end >= order:
                    gram = tuple(text[end - order : end])
                    entries[key(gram)] = (base + end, gram)
    return sum(len(text) - 1 for text in texts) / steps, found / steps, right / max(1, found)


def main():
    kinds = {"code": sorted((ROOT / "src/models").rglob("*.cc")), "prose": sorted((ROOT / "docs").glob("*.md"))}
    for kind, paths in kinds.items():
        texts = [tokens_of(path) for path in paths]
        print(f"{kind}: {len(texts)} texts, {sum(map(len, texts))} tokens")
        for orders, table in SETTINGS:
            rate, found, right = count(texts, orders, table)
            name = ",".join(map(str, orders)) if len(orders) < 8 else f"{orders[0]} to {orders[-1]}"
            print(f"  lengths {name:13} table {table}: {rate:.3f} tokens a step; {found:.3f} of steps draft, {right:.3f} of these rightly")


if __name__ == "__main__":
    main()
