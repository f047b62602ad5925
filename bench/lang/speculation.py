"""Input tokens with and without API speculation, on `espalier serve` as an OpenAI-compatible server:
a program of three fields, each ended by a line's end, as in the paper's section 5 (about three-fold
there).

    PYTHONPATH=build/release/python python3 bench/lang/speculation.py"""
import json
import os
import sys

import espalier as sgl

SHIPPED = os.path.join(os.path.dirname(os.path.realpath(__file__)), "..", "..", "share",
                       "default_model")
PEOPLE = [("Anna Weber", "pilot", "Hull"), ("Omar Diaz", "baker", "Porto"),
          ("Lena Novak", "doctor", "Brno"), ("Piet de Vries", "sailor", "Delft"),
          ("Sara Lind", "teacher", "Malmo")]


def fields(s):
    for name, job, home in PEOPLE:
        s += f"Name: {name}\nJob: {job}\nHome: {home}\n\n"
    s += "Name:" + sgl.gen("name", max_tokens=8, stop="\n")
    s += "\nJob:" + sgl.gen("job", max_tokens=8, stop="\n")
    s += "\nHome:" + sgl.gen("home", max_tokens=8, stop="\n")


def main():
    server = sgl.Runtime(SHIPPED)
    usage = {}
    texts = []
    for tokens in (None, 48):
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
