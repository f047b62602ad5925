"""PydanticAI: an agent whose output is of a type."""
import os

from pydantic import BaseModel, Field
from pydantic_ai import Agent, NativeOutput
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

BASE = os.environ.get("ESPALIER_URL", "http://127.0.0.1:30000")


class Answer(BaseModel):
    city: str = Field(max_length=12)


model = OpenAIChatModel("default", provider=OpenAIProvider(base_url=f"{BASE}/v1", api_key="any"))
agent = Agent(model, output_type=NativeOutput(Answer, strict=True), model_settings={"max_tokens": 60, "temperature": 0})
print(agent.run_sync("What is the capital of France?").output.city)
