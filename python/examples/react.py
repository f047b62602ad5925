"""ReAct: the model chooses an action, the program does it and writes down what came of it. Two
tools: a calculator and a search in a few local notes."""
import operator

import espalier as sgl
from example import backend

NOTES = [
    "The harbor was built in 1911.",
    "The lighthouse is 42 meters high.",
    "Maria Keller keeps the lighthouse.",
]
OPERATORS = {"+": operator.add, "-": operator.sub, "*": operator.mul}


def search(query):
    """The note that shares most words with the query."""
    best = max(NOTES, key=lambda note: sum(word in note for word in query.split()))
    return best if any(word in best for word in query.split()) else "Nothing was found."


def calculate(text):
    a, op, b = text.split()
    return str(OPERATORS[op](int(a), int(b)))


TOOLS = {
    "Search": (search, "[A-Za-z0-9 ]{1,30}"),
    "Calculate": (calculate, "[0-9]{1,3} [-+*] [0-9]{1,3}"),
    "Finish": (None, "[A-Za-z0-9 ]{1,30}"),
}


@sgl.function
def react(s, question):
    s += "Answer with the help of two tools: Search[words] and Calculate[a + b].\n"
    s += "Question: How high are two lighthouses?\nAction 1: Search[lighthouse high]\n"
    s += "Observation 1: The lighthouse is 42 meters high.\nAction 2: Calculate[42 * 2]\n"
    s += "Observation 2: 84\nAction 3: Finish[84]\n\n"
    s += "Question: " + question + "\n"
    for i in range(1, 5):
        s += f"Action {i}: " + sgl.select(f"tool{i}", list(TOOLS)) + "["
        tool, form = TOOLS[s[f"tool{i}"]]
        s += sgl.gen(f"input{i}", max_tokens=16, temperature=0, regex=form) + "]\n"
        if tool is None:
            return s[f"input{i}"]
        s += f"Observation {i}: " + tool(s[f"input{i}"]) + "\n"
    return "no answer in four steps"


if __name__ == "__main__":
    state = react.run(question="When was the harbor built?", backend=backend())
    print(state.text(), "answer: " + state.ret_value, sep="\n")
