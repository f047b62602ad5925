"""A long document is summarised part by part, all parts at once; the summaries are joined behind
each other, as each branch wrote them, and summarised again."""
import espalier as sgl
from example import backend

PARTS = [
    "In the morning Anna went to the harbor. The boats were still out, and the gulls slept.",
    "At noon the first boat came home. Its hold was full of herring, and the crew sang.",
    "In the evening a storm rose. The lighthouse shone, and all boats found their way.",
]


@sgl.function
def summarize(s, parts):
    s += "These are the parts of a story, each with a summary of one sentence.\n\n"
    forks = s.fork(len(parts))
    for f, part in zip(forks, parts):
        f += "Part: " + part + "\nSummary:"
        f += sgl.gen("summary", max_tokens=24, stop=["\n", "."], temperature=0) + ".\n\n"
    forks.join("concate_and_append")
    s += "The whole story in one sentence:"
    s += sgl.gen("whole", max_tokens=32, stop=["\n", "."], temperature=0)


if __name__ == "__main__":
    state = summarize.run(PARTS, backend=backend())
    state.sync()
    print(state.text())
