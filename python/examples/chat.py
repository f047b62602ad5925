"""A conversation of several turns, each answer printed as it is written. Questions come from the
command line after the back end, or are three of its own."""
import sys

import espalier as sgl
from example import backend

QUESTIONS = ["What is the capital of France?", "What is 12 plus 30?", "Tell me a short story."]


@sgl.function
def talk(s, questions):
    s += sgl.system("You are a helpful assistant.")
    for i, question in enumerate(questions):
        s += sgl.user(question)
        s += sgl.assistant(sgl.gen(f"answer{i}", max_tokens=48, temperature=0))


if __name__ == "__main__":
    questions = sys.argv[2:] or QUESTIONS
    state = talk.run(questions, stream=True, backend=backend())
    for i, question in enumerate(questions):
        print("> " + question)
        for piece in state.text_iter(f"answer{i}"):
            print(piece, end="", flush=True)
        print()
    state.sync()
