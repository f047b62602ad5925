"""Figure 2 of the SGLang paper, unchanged but for its import: an essay is judged in several
dimensions at once, and the verdict comes as JSON.

    python3 python/examples/judge.py                          # the model that ships, in this process
    python3 python/examples/judge.py MODEL_FOLDER|http://HOST:PORT [IMAGE]

The model that ships reads no images: without IMAGE, the figure's image is an empty text.
"""
import sys

from espalier import assistant, function, gen, image, select, set_default_backend, system, user
from example import backend

dimensions = ["Clarity", "Originality", "Evidence"]


@function
def multi_dimensional_judge(s, path, essay):
    s += system("Evaluate an essay about an image.")
    s += user(image(path) + "Essay:" + essay)
    s += assistant("Sure!")

    # Return directly if it is not related
    s += user("Is the essay related to the image?")
    s += assistant(select("related", choices=["yes", "no"]))
    if s["related"] == "no":
        return

    # Judge multiple dimensions in parallel
    forks = s.fork(len(dimensions))
    for f, dim in zip(forks, dimensions):
        f += user("Evaluate based on the following dimension:" + dim +
                  ". End your judgment with the word 'END'")
        f += assistant("Judgment:" + gen("judgment", stop="END"))

    # Merge the judgments
    judgment = "\n".join(f["judgment"] for f in forks)

    # Generate a summary and a grade. Return in the JSON format.
    s += user("Provide the judgment, summary, and a letter grade")
    s += assistant(judgment + "In summary," + gen("summary", stop=".") +
                   "The grade of it is" + gen("grade"))
    schema = r'\{"summary": "[\w\d\s]+\.", "grade": "[ABCD][+-]?"\}'
    s += user("Return in the JSON format.")
    s += assistant(gen("output", regex=schema))


if __name__ == "__main__":
    path = sys.argv[2] if len(sys.argv) > 2 else None
    if path is None:
        def image(_):
            return ""
    set_default_backend(backend())
    state = multi_dimensional_judge.run(
        path, "A boat lies in the harbor. The water is calm and the sky is red.",
        max_new_tokens=64, temperature=0)
    state.sync()
    print("related:", state["related"])
    if "output" in state:
        print("output:", state["output"])
