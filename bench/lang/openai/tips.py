"""python/examples/tips.py on the OpenAI client."""
from concurrent.futures import ThreadPoolExecutor

from client import MODEL, client

NUM_TIPS = 3


def complete(prompt, max_tokens, stop):
    answer = client.completions.create(model=MODEL, prompt=prompt, max_tokens=max_tokens, stop=stop,
                                       temperature=0)
    return answer.choices[0].text


def tips(topic):
    prompt = "Here are short tips for " + topic + ".\n"
    for i in range(1, NUM_TIPS + 1):
        prompt += f"{i}."
        tip = complete(prompt, 16, ["\n", "."])
        prompt += tip + "\n"

    def expand(i):
        return complete(prompt + f"Tip {i} in detail:", 40, "\n\n")

    with ThreadPoolExecutor(NUM_TIPS) as pool:
        details = list(pool.map(expand, range(1, NUM_TIPS + 1)))
    for i, detail in enumerate(details, 1):
        prompt += f"Tip {i}:" + detail + "\n"
    prompt += "In summary,"
    prompt += complete(prompt, 40, ".")
    return prompt


if __name__ == "__main__":
    print(tips("staying healthy"))
