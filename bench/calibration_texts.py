"""Texts for `espalier models quantize --calibration`, of the kind that the default model was trained on.

    python3 -B bench/calibration_texts.py texts.jsonl --documents 256

Half of them are stories that its training never saw, half its other tasks; neither evaluation nor tests have them.
"""
import argparse
import json
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "tools", "default_model"))
from data import corpus  # noqa: E402

CHUNK = 700_000  # far from the numbers that training and evaluation take


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("result")
    parser.add_argument("--documents", type=int, default=256)
    args = parser.parse_args()
    half = args.documents // 2
    documents = corpus.chunk("unseen", CHUNK, half) + corpus.chunk("task", CHUNK, args.documents - half)
    with open(args.result, "w", encoding="utf-8") as file:
        for document in documents:
            pieces = document[1:] if document[0] == corpus.BOS else document  # the tokenizer adds it
            file.write(json.dumps({"text": "".join(pieces)}) + "\n")


if __name__ == "__main__":
    main()
