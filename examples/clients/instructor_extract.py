"""Instructor: a record out of a sentence. The server's grammar makes every answer valid, so nothing is asked twice."""
import os

import instructor
import openai
from pydantic import BaseModel, ConfigDict, Field

BASE = os.environ.get("ESPALIER_URL", "http://127.0.0.1:30000")


class Person(BaseModel):
    model_config = ConfigDict(extra="forbid")
    name: str = Field(max_length=20)
    age: int = Field(ge=0, le=130)


client = instructor.from_openai(openai.OpenAI(base_url=f"{BASE}/v1", api_key="any"), mode=instructor.Mode.JSON_SCHEMA)
person = client.chat.completions.create(model="default", response_model=Person, max_tokens=100, temperature=0, messages=[
    {"role": "user", "content": "Extract name, age as JSON: Maria Keller is 34 years old."}])
print(person.name, person.age)
