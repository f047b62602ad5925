"""Extraction held to a form: JSON of a schema, read as an object, and a regular expression."""
import espalier as sgl
from example import backend

PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 40}, "age": {"type": "integer"}},
    "required": ["name", "age"],
    "additionalProperties": False,
}


@sgl.function
def extract(s, sentence):
    s += sgl.user("Extract name, age as JSON: " + sentence)
    by_schema, by_regex = s.fork(2)
    by_schema += sgl.assistant(sgl.gen("person", max_tokens=48, temperature=0, json_schema=PERSON))
    by_regex += sgl.assistant(
        '{"name": "' + sgl.gen("name", max_tokens=12, temperature=0,
                               regex="[A-Z][a-z]+ [A-Z][a-z]+")
        + '", "age": ' + sgl.gen_int("age", max_tokens=3, temperature=0) + "}")
    return by_schema["person"], by_regex["name"], int(by_regex["age"])


if __name__ == "__main__":
    person, name, age = extract.run("Maria Keller is 34 years old.", backend=backend()).ret_value
    print(f"as JSON:  {person['name']}, {person['age']}")
    print(f"by regex: {name}, {age}")
