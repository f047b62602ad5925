"""Few-shot learning over a batch: the examples are a constant prefix, which run_batch computes once
before any question arrives."""
import espalier as sgl
from example import backend

SHOTS = [
    ("What is the capital of Italy?", "Rome"),
    ("What color is the sky on a clear day?", "Blue"),
    ("How many legs does a spider have?", "Eight"),
]


@sgl.function
def answer(s, question):
    for asked, told in SHOTS:
        s += f"Question: {asked}\nAnswer: {told}.\n\n"
    s += "Question: " + question + "\nAnswer:"
    s += sgl.gen("answer", max_tokens=12, stop=[".", "\n"], temperature=0)


if __name__ == "__main__":
    questions = ["What is the capital of France?", "What is the capital of Japan?",
                 "What color is grass?", "How many days are in a week?"]
    states = answer.run_batch([{"question": q} for q in questions], progress_bar=True,
                              backend=backend())
    for question, state in zip(questions, states):
        meta = state.get_meta_info("answer")
        print(f"{question}{state['answer']}  ({meta['cached_tokens']} of {meta['prompt_tokens']} "
              "prompt tokens cached)")
