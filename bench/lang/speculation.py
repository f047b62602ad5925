"""Input tokens with and without API speculation, on `espalier serve` as an OpenAI-compatible server:
a program of three fields, each ended by a line's end, as in the paper's section 5 (about three-fold
there). The fields are questions and answers, a form that the model that ships keeps to.

    PYTHONPATH=build/release/python python3 bench/lang/speculation.py"""
import json
import os
import sys

import espalier as sgl

SHIPPED = os.path.join(os.path.dirname(os.path.realpath(__file__)), "..", "..", "share",
                       "default_model")
SHOTS = [("What color is the sky?", "Blue."), ("How many legs does a spider have?", "Eight."),
         ("What is the capital of Italy?", "Rome."), ("What do bees make?", "Honey.")]


def fields(s):
    for asked, told in SHOTS:
        s += f"Q: {asked}\nA: {told}\n"
    s += "Q: What is the capital of France?\n"
    s += "A:" + sgl.gen("first", max_tokens=24, stop="\n")
    s += "\nQ:" + sgl.gen("question", max_tokens=24, stop="\n")
    s += "\nA:" + sgl.gen("second", max_tokens=24, stop="\n")


def main():
    server = sgl.Runtime(SHIPPED)
    usage = {}
    texts = []
    for tokens in (None, 96):
        api = sgl.OpenAI("default", False, base_url=server.url + "/v1", api_key="none")
        state = sgl.function(fields, num_api_spec_tokens=tokens).run(backend=api, temperature=0)
        state.sync()
        texts.append(state.text())
        usage["plain" if tokens is None else "speculating"] = api.usage()
    server.shutdown()
    if texts[0] != texts[1]:
        sys.exit("the two runs wrote different texts:\n" + "\n---\n".join(texts))
    print(json.dumps({how: {name: u[name] for name in ("num_calls", "prompt_tokens")}
                      for how, u in usage.items()}))


if __name__ == "__main__":
    main()
