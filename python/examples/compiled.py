"""A program traced, optimised, written down as JSON and drawn, read back and run without its
function. `espalier run FILE.json` runs the same file.

    python3 compiled.py [BACK_END [FILE.json]]"""
import sys

import espalier as sgl
from example import backend


@sgl.function
def expand(s, topic):
    s += "Two tips for " + topic + ".\n1." + sgl.gen("one", stop="\n")
    s += "\n2." + sgl.gen("two", stop="\n") + "\n"
    first, second = s.fork(2)
    first += "More about the tip" + s["one"] + ":" + sgl.gen("more", max_tokens=32)
    second += "More about the tip" + s["two"] + ":" + sgl.gen("more", max_tokens=32)
    s += "First:" + first["more"] + "\nSecond:" + second["more"]


if __name__ == "__main__":
    file = sys.argv[2] if len(sys.argv) > 2 else "expand.json"
    traced = expand.trace()
    graph = traced.optimize()
    plan = graph.plan()
    print(f"{len(traced)} nodes traced, {len(graph)} after optimising, {plan.num_calls} calls in "
          f"{len(plan.stages)} stages")
    with open(file, "w", encoding="utf-8") as f:
        f.write(graph.to_json())
    with open(file + ".svg", "w", encoding="utf-8") as f:
        f.write(graph.to_svg())

    with open(file, encoding="utf-8") as f:
        read = sgl.Graph.from_json(f.read())
    state = read.run(topic="a long walk", max_new_tokens=16, temperature=0, backend=backend())
    state.sync()
    print(state.text())
