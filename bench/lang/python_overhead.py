"""What the Python package adds to a primitive: processor time of the process for each `s += "ab"`,
message, variable and trace, in microseconds, the median of five; and a program of 4 forks as Python runs
it and as its compiled graph does. No model takes part.

    PYTHONPATH=build/release/python python3 bench/lang/python_overhead.py [--quick]"""
import json
import statistics
import sys
import time

import espalier as sgl

COUNT = 2000 if "--quick" in sys.argv else 20000


@sgl.function
def texts(s):
    for _ in range(COUNT):
        s += "ab"


@sgl.function
def messages(s):
    for _ in range(COUNT):
        s += sgl.user("ab")


@sgl.function
def expressions(s):
    for _ in range(COUNT):
        sgl.gen("a", max_tokens=4, stop="\n")


@sgl.function
def variables(s):
    for _ in range(COUNT):
        s.set_var("a", "b")
        s["a"]


def traced_gens(s):
    for _ in range(COUNT):
        s += sgl.gen("a", max_tokens=4)


@sgl.function
def tips(s, topic):
    s += "A page of advice about " + topic + ", in four parts.\n"
    forks = s.fork(4)
    for i, f in enumerate(forks):
        with f.var_scope("part"):
            f += "Part " + str(i) + ":"
            for k in range(4):
                f += " more about it, number " + str(k)
    for f in forks:
        s += f["part"]


def per_primitive(work, primitives):
    times = []
    for _ in range(5):
        before = time.process_time()
        work()
        times.append((time.process_time() - before) * 1e6 / primitives)
    return statistics.median(times)


def main():
    backend = sgl.OpenAI("none", base_url="http://127.0.0.1:1/v1", api_key="none")  # never called
    figures = {
        "text": per_primitive(lambda: texts.run(backend=backend), COUNT),
        "message (three primitives)": per_primitive(lambda: messages.run(backend=backend), 3 * COUNT),
        "gen, made": per_primitive(lambda: expressions.run(backend=backend), COUNT),
        "gen, made and appended (traced)": per_primitive(
            lambda: sgl.function(traced_gens).trace(), COUNT),
        "variable, set and read": per_primitive(lambda: variables.run(backend=backend), 2 * COUNT),
    }
    graph = tips.trace().optimize()
    if tips.run("x", backend=backend).text() != graph.run(topic="x", backend=backend).text():
        sys.exit("the compiled program writes another text")
    runs = COUNT // 50
    figures["a program of 4 forks, interpreted"] = per_primitive(
        lambda: [tips.run("x", backend=backend) for _ in range(runs)], runs)
    figures["the same, compiled"] = per_primitive(
        lambda: [graph.run(topic="x", backend=backend) for _ in range(runs)], runs)
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
