"""Tip suggestion (skeleton of thought): short tips first, then each is expanded on its own, all at
once. A trace of it is printed; with a second argument it is written for chrome://tracing."""
import sys

import espalier as sgl
from example import backend

NUM_TIPS = 3


@sgl.function
def tips(s, topic):
    s += "Here are short tips for " + topic + ".\n"
    for i in range(1, NUM_TIPS + 1):
        s += f"{i}." + sgl.gen(f"tip{i}", stop=["\n", "."]) + "\n"

    forks = s.fork(NUM_TIPS)
    for i, f in enumerate(forks, 1):
        f += f"Tip {i} in detail:" + sgl.gen("detail", max_tokens=40, stop="\n\n")
    for i, f in enumerate(forks, 1):
        s += f"Tip {i}:" + f["detail"] + "\n"
    s += "In summary," + sgl.gen("summary", max_tokens=40, stop=".")


if __name__ == "__main__":
    recorder = sgl.Recorder()
    state = tips.run(topic="staying healthy", max_new_tokens=16, temperature=0, recorder=recorder,
                     backend=backend())
    state.sync()
    print(state.text(), recorder.tree(), sep="\n\n")
    if len(sys.argv) > 2:
        with open(sys.argv[2], "w", encoding="utf-8") as f:
            f.write(recorder.chrome_trace())
