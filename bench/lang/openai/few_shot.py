"""python/examples/few_shot.py on the OpenAI client."""
from concurrent.futures import ThreadPoolExecutor

from client import MODEL, client

SHOTS = [
    ("What is the capital of Italy?", "Rome"),
    ("What color is the sky on a clear day?", "Blue"),
    ("How many legs does a spider have?", "Eight"),
]


def answer(question):
    prompt = ""
    for asked, told in SHOTS:
        prompt += f"Question: {asked}\nAnswer: {told}.\n\n"
    prompt += "Question: " + question + "\nAnswer:"
    result = client.completions.create(model=MODEL, prompt=prompt, max_tokens=12, stop=[".", "\n"],
                                       temperature=0)
    return result.choices[0].text


def answer_all(questions):
    with ThreadPoolExecutor(16) as pool:
        return list(pool.map(answer, questions))


if __name__ == "__main__":
    for text in answer_all(["What is the capital of France?", "What color is grass?"]):
        print(text)
