"""python/examples/extract.py on the OpenAI client."""
import json
from concurrent.futures import ThreadPoolExecutor

from client import MODEL, client

PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 40}, "age": {"type": "integer"}},
    "required": ["name", "age"],
    "additionalProperties": False,
}


def chat(messages, max_tokens, **options):
    answer = client.chat.completions.create(model=MODEL, messages=messages, max_tokens=max_tokens,
                                            temperature=0, **options)
    return answer.choices[0].message.content


def by_schema(messages):
    form = {"type": "json_schema",
            "json_schema": {"name": "person", "schema": PERSON, "strict": True}}
    return json.loads(chat(messages, 48, response_format=form))


def by_regex(messages):
    def continued(text, regex, max_tokens):
        return chat(messages + [{"role": "assistant", "content": text}], max_tokens,
                    extra_body={"regex": regex, "continue_final_message": True})

    text = '{"name": "'
    name = continued(text, "[A-Z][a-z]+ [A-Z][a-z]+", 12)
    text += name + '", "age": '
    age = continued(text, "[-+]?[0-9]+", 3)
    return name, int(age)


def extract(sentence):
    messages = [{"role": "user", "content": "Extract name, age as JSON: " + sentence}]
    with ThreadPoolExecutor(2) as pool:
        schema, regex = pool.submit(by_schema, messages), pool.submit(by_regex, messages)
        return schema.result(), *regex.result()


if __name__ == "__main__":
    print(extract("Maria Keller is 34 years old."))
