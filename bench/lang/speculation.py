"""Input tokens with and without API speculation, on `espalier serve` as an OpenAI-compatible server:
a program that extracts three fields of a text after two examples, a gen for each field, as in the
paper's section 6 (about three-fold there).

    PYTHONPATH=build/release/python python3 bench/lang/speculation.py"""
import json
import os
import sys

import espalier as sgl

SHIPPED = os.path.join(os.path.dirname(os.path.realpath(__file__)), "..", "..", "share",
                       "default_model")
SHOTS = [
    ("Tomas Berg is 41 years old, lives in Oslo and works as a baker.", ("Tomas Berg", 41, "Oslo")),
    ("Meet Ina Vogel: 27 years old, painter, from Bremen.", ("Ina Vogel", 27, "Bremen")),
]
TEXTS = {
    "Maria Keller, a 34-year-old teacher, lives in Lisbon.": ("Maria Keller", "34", "Lisbon"),
    "In Vienna there is a cook named Jonas Weber, who is 52.": ("Jonas Weber", "52", "Vienna"),
    "The nurse Clara Olsen from Bergen is 45 years old.": ("Clara Olsen", "45", "Bergen"),
    "At the age of 63, Peter Novak moved to Prague to work as a driver.":
        ("Peter Novak", "63", "Prague"),
}


def extract(s, text):
    for shown, (name, age, city) in SHOTS:
        s += f"Sentence: {shown}\nFields: name, age, city\n"
        s += f'JSON: {{"name": "{name}", "age": {age}, "city": "{city}"}}\n\n'
    s += f"Sentence: {text}\nFields: name, age, city\n"
    s += 'JSON: {"name":' + sgl.gen("name", max_tokens=24, stop=",")
    s += ', "age":' + sgl.gen("age", max_tokens=8, stop=",")
    s += ', "city":' + sgl.gen("city", max_tokens=24, stop="}") + "}"


def main():
    server = sgl.Runtime(SHIPPED)
    usage = {}
    texts = []
    num_right = 0
    for tokens in (None, 64):
        api = sgl.OpenAI("default", False, base_url=server.url + "/v1", api_key="none")
        program = sgl.function(extract, num_api_spec_tokens=tokens)
        states = [program.run(text, backend=api, temperature=0) for text in TEXTS]
        texts.append([state.text() for state in states])
        num_right = sum(tuple(state[name].strip(' "') for name in ("name", "age", "city")) == fields
                        for state, fields in zip(states, TEXTS.values()))
        usage["plain" if tokens is None else "speculating"] = api.usage()
    server.shutdown()
    if texts[0] != texts[1]:
        sys.exit("the two runs wrote different texts:\n" + "\n---\n".join(texts[0] + texts[1]))
    figures = {how: {name: u[name] for name in ("num_calls", "prompt_tokens")}
               for how, u in usage.items()}
    print(json.dumps({**figures, "num_texts": len(TEXTS), "num_right": num_right}))


if __name__ == "__main__":
    main()
