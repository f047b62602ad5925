"""python/examples/tree_of_thought.py on the OpenAI client."""
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

from client import MODEL, client

NUM_WAYS = 3


def chat(messages, **options):
    answer = client.chat.completions.create(model=MODEL, messages=messages, **options)
    return answer.choices[0].message.content


def step(task):
    messages, asked, seed = task
    messages = messages + [{"role": "user", "content": asked}]
    thought = chat(messages, max_tokens=24, stop="\n", temperature=0.8, seed=seed)
    return messages + [{"role": "assistant", "content": thought}]


def grow(pool, states, asked):
    return list(pool.map(step, [(s, asked, i) for s in states for i in range(NUM_WAYS)]))


def answer_of(messages):
    messages = messages + [{"role": "user", "content": "So what is the answer?"}]
    return chat(messages, max_tokens=8, temperature=0, extra_body={"regex": "[0-9]{1,3}"})


def solve(question):
    start = [{"role": "user", "content": question + " Think of a first step."}]
    with ThreadPoolExecutor(NUM_WAYS * NUM_WAYS) as pool:
        leaves = grow(pool, [start], "What comes first?")
        leaves = grow(pool, leaves, "And then?")
        return Counter(pool.map(answer_of, leaves))


if __name__ == "__main__":
    print(solve("What is 17 plus 25?"))
