"""Generates the corpus on all cores and writes it as token files: story_*.npy and task_*.npy, 16 bits a token."""

import argparse
import multiprocessing
import os
import pathlib
import time

os.environ["TOKENIZERS_PARALLELISM"] = "false"

from data import corpus, stories  # noqa: E402

STORIES_A_CHUNK, TASKS_A_CHUNK = 1000, 5000
_state = {}


def _start(tokenizer_file):
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(tokenizer_file)
    _state["tokenizer"] = tokenizer
    _state["special"] = {t: tokenizer.token_to_id(t) for t in corpus.SPECIAL}


def encode(documents):
    """The documents' token ids, one after another."""
    import numpy

    special, tokenizer = _state["special"], _state["tokenizer"]
    texts = [piece for d in documents for piece in d if piece not in special]
    encoded = iter(tokenizer.encode_batch_fast(texts, add_special_tokens=False))
    ids = []
    for document in documents:
        for piece in document:
            if piece in special:
                ids.append(special[piece])
            else:
                ids.extend(next(encoded).ids)
    return numpy.array(ids, dtype=numpy.uint16)


def _work(job):
    import numpy

    kind, number, out, deadline = job
    if time.time() > deadline:
        return 0
    ids = encode(corpus.chunk(kind, number, TASKS_A_CHUNK if kind == "task" else STORIES_A_CHUNK))
    path = pathlib.Path(out) / ("%s_%05d.npy" % (kind, number))
    numpy.save(str(path) + ".part.npy", ids)
    os.rename(str(path) + ".part.npy", path)
    return len(ids)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokenizer", required=True)
    parser.add_argument("--out", type=pathlib.Path, required=True)
    parser.add_argument("--tasks", type=int, default=3_000_000, help="task documents at most")
    parser.add_argument("--task-base", type=int, default=100, help="the first task chunk's number")
    parser.add_argument("--seconds", type=float, default=600, help="start no task chunk after this time")
    parser.add_argument("--workers", type=int, default=os.cpu_count())
    parser.add_argument("--stories", type=int, default=stories.STORY_COUNT)
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    start = time.time()
    jobs = [("story", n, str(arguments.out), start + 1e6) for n in range(arguments.stories // STORIES_A_CHUNK)]
    jobs += [("unseen", 0, str(arguments.out), start + 1e6)]
    jobs += [("task", arguments.task_base + n, str(arguments.out), start + arguments.seconds) for n in range(arguments.tasks // TASKS_A_CHUNK)]
    with multiprocessing.get_context("fork").Pool(arguments.workers, _start, (arguments.tokenizer,)) as pool:
        total = sum(pool.imap_unordered(_work, jobs))
    (arguments.out / "done").write_text("%d\n" % total)
    print("packed %.1f M tokens in %.0f s" % (total / 1e6, time.time() - start), flush=True)


if __name__ == "__main__":
    main()
