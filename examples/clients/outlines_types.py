"""Outlines: the server's own grammars for a type and a regular expression."""
import os

import openai
import outlines
from pydantic import BaseModel, Field

BASE = os.environ.get("ESPALIER_URL", "http://127.0.0.1:30000")


class Answer(BaseModel):
    city: str = Field(max_length=12)


model = outlines.from_sglang(openai.OpenAI(base_url=f"{BASE}/v1", api_key="any"), "default")
print(Answer.model_validate_json(model("What is the capital of France?", Answer, max_tokens=60)).city)
print(model("What is the capital of France?", outlines.types.Regex("(Paris|Rome)"), max_tokens=8))
