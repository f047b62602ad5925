"""python/examples/summary.py on the OpenAI client."""
from concurrent.futures import ThreadPoolExecutor

from client import MODEL, client

PARTS = [
    "In the morning Anna went to the harbor. The boats were still out, and the gulls slept.",
    "At noon the first boat came home. Its hold was full of herring, and the crew sang.",
    "In the evening a storm rose. The lighthouse shone, and all boats found their way.",
]


def complete(prompt, max_tokens):
    answer = client.completions.create(model=MODEL, prompt=prompt, max_tokens=max_tokens,
                                       stop=["\n", "."], temperature=0)
    return answer.choices[0].text


def summarize(parts):
    prompt = "These are the parts of a story, each with a summary of one sentence.\n\n"

    def summary_of(part):
        text = "Part: " + part + "\nSummary:"
        return text + complete(prompt + text, 24) + ".\n\n"

    with ThreadPoolExecutor(len(parts)) as pool:
        prompt += "".join(pool.map(summary_of, parts))
    prompt += "The whole story in one sentence:"
    prompt += complete(prompt, 32)
    return prompt


if __name__ == "__main__":
    print(summarize(PARTS))
