"""python/examples/react.py on the OpenAI client."""
import operator

from client import MODEL, client

NOTES = [
    "The harbor was built in 1911.",
    "The lighthouse is 42 meters high.",
    "Maria Keller keeps the lighthouse.",
]
OPERATORS = {"+": operator.add, "-": operator.sub, "*": operator.mul}


def search(query):
    best = max(NOTES, key=lambda note: sum(word in note for word in query.split()))
    return best if any(word in best for word in query.split()) else "Nothing was found."


def calculate(text):
    a, op, b = text.split()
    return str(OPERATORS[op](int(a), int(b)))


TOOLS = {
    "Search": (search, "[A-Za-z0-9 ]{1,30}"),
    "Calculate": (calculate, "[0-9]{1,3} [-+*] [0-9]{1,3}"),
    "Finish": (None, "[A-Za-z0-9 ]{1,30}"),
}


def complete(prompt, regex):
    answer = client.completions.create(model=MODEL, prompt=prompt, max_tokens=16, temperature=0,
                                       extra_body={"regex": regex})
    return answer.choices[0].text


def choose(prompt, choices):
    scored = client.completions.create(model=MODEL, prompt=[prompt + c for c in choices],
                                       max_tokens=0, echo=True, logprobs=0)
    best, best_score = None, float("-inf")
    for choice, answer in zip(choices, scored.choices):
        offset, logprobs = 0, []
        for token, logprob in zip(answer.logprobs.tokens, answer.logprobs.token_logprobs):
            offset += len(token)
            if offset > len(prompt) and logprob is not None:
                logprobs.append(logprob)
        score = sum(logprobs) / len(logprobs)
        if score > best_score:
            best, best_score = choice, score
    return best


def react(question):
    prompt = "Answer with the help of two tools: Search[words] and Calculate[a + b].\n"
    prompt += "Question: How high are two lighthouses?\nAction 1: Search[lighthouse high]\n"
    prompt += "Observation 1: The lighthouse is 42 meters high.\nAction 2: Calculate[42 * 2]\n"
    prompt += "Observation 2: 84\nAction 3: Finish[84]\n\n"
    prompt += "Question: " + question + "\n"
    for i in range(1, 5):
        prompt += f"Action {i}: "
        name = choose(prompt, list(TOOLS))
        prompt += name + "["
        tool, form = TOOLS[name]
        text = complete(prompt, form)
        prompt += text + "]\n"
        if tool is None:
            return text
        prompt += f"Observation {i}: " + tool(text) + "\n"
    return "no answer in four steps"


if __name__ == "__main__":
    print(react("When was the harbor built?"))
