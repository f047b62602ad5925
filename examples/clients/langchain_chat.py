"""LangChain: a chat model, an answer in pieces and an answer of a type."""
import os

from langchain_openai import ChatOpenAI
from pydantic import BaseModel, Field

BASE = os.environ.get("ESPALIER_URL", "http://127.0.0.1:30000")


class Answer(BaseModel):
    city: str = Field(max_length=12)


model = ChatOpenAI(base_url=f"{BASE}/v1", api_key="any", model="default", max_tokens=32, temperature=0)
print(model.invoke("What is the capital of France?").content)
for piece in model.stream("Tell me about the sun."):
    print(piece.content, end="", flush=True)
print()
print(model.with_structured_output(Answer).invoke("What is the capital of France?").city)
