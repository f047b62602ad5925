"""Tree of thought: several ways to begin, several to go on from each, and the best of the leaves by
a vote of the model. Branches of branches, all at work at once."""
from collections import Counter

import espalier as sgl
from example import backend

NUM_WAYS = 3


def grow(states, step):
    grown = []
    for s in states:
        for i, f in enumerate(s.fork(NUM_WAYS)):
            f += sgl.user(step)
            f += sgl.assistant(sgl.gen("thought", max_tokens=24, stop="\n", temperature=0.8, seed=i))
            grown.append(f)
    return grown


@sgl.function
def solve(s, question):
    s += sgl.user(question + " Think of a first step.")
    leaves = grow(grow([s], "What comes first?"), "And then?")
    for leaf in leaves:
        leaf += sgl.user("So what is the answer?")
        leaf += sgl.assistant(sgl.gen("answer", max_tokens=8, temperature=0, regex="[0-9]{1,3}"))
    return Counter(leaf["answer"] for leaf in leaves)


if __name__ == "__main__":
    votes = solve.run(question="What is 17 plus 25?", backend=backend()).ret_value
    answer, count = votes.most_common(1)[0]
    print(f"answer: {answer} ({count} of {sum(votes.values())} votes)")
