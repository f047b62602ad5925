"""python/examples/judge.py on the OpenAI client."""
import base64
import re
from concurrent.futures import ThreadPoolExecutor

from client import MODEL, client

dimensions = ["Clarity", "Originality", "Evidence"]


def chat(messages, prefix="", stop=None, max_tokens=64, regex=None):
    extra = {} if regex is None else {"regex": regex}
    if prefix:
        messages = messages + [{"role": "assistant", "content": prefix}]
        extra["continue_final_message"] = True
    answer = client.chat.completions.create(
        model=MODEL, messages=messages, stop=stop, max_tokens=max_tokens, temperature=0,
        extra_body=extra)
    return answer.choices[0].message.content


def choose(messages, choices):
    text = chat(messages, max_tokens=8, regex="|".join(map(re.escape, choices)))
    for choice in choices:
        if choice in text.lower():
            return choice
    raise ValueError(f"the model answered {text!r}")


def essay_message(path, essay):
    if path is None:
        return {"role": "user", "content": "Essay:" + essay}
    with open(path, "rb") as f:
        image = base64.b64encode(f.read()).decode()
    return {"role": "user", "content": [
        {"type": "image_url", "image_url": {"url": "data:image/png;base64," + image}},
        {"type": "text", "text": "Essay:" + essay}]}


def multi_dimensional_judge(path, essay):
    messages = [
        {"role": "system", "content": "Evaluate an essay about an image."},
        essay_message(path, essay),
        {"role": "assistant", "content": "Sure!"},
        {"role": "user", "content": "Is the essay related to the image?"},
    ]
    related = choose(messages, ["yes", "no"])
    if related == "no":
        return {"related": related}
    messages.append({"role": "assistant", "content": related})

    def judge(dimension):
        asked = {"role": "user", "content":
                 "Evaluate based on the following dimension:" + dimension +
                 ". End your judgment with the word 'END'"}
        return chat(messages + [asked], prefix="Judgment:", stop="END")

    with ThreadPoolExecutor(len(dimensions)) as pool:
        judgments = list(pool.map(judge, dimensions))

    messages.append({"role": "user", "content":
                     "Provide the judgment, summary, and a letter grade"})
    text = "\n".join(judgments) + "In summary,"
    text += chat(messages, prefix=text, stop=".")
    text += "The grade of it is"
    text += chat(messages, prefix=text)
    messages.append({"role": "assistant", "content": text})
    schema = r'\{"summary": "[\w\d\s]+\.", "grade": "[ABCD][+-]?"\}'
    messages.append({"role": "user", "content": "Return in the JSON format."})
    output = chat(messages, max_tokens=128, regex=schema)
    return {"related": related, "output": output}


if __name__ == "__main__":
    print(multi_dimensional_judge(
        None, "A boat lies in the harbor. The water is calm and the sky is red."))
