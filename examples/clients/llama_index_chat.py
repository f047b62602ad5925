"""LlamaIndex: a chat and its pieces."""
import os

from llama_index.core.llms import ChatMessage
from llama_index.llms.openai_like import OpenAILike

BASE = os.environ.get("ESPALIER_URL", "http://127.0.0.1:30000")

model = OpenAILike(api_base=f"{BASE}/v1", api_key="any", model="default", max_tokens=32, temperature=0, is_chat_model=True)
question = [ChatMessage(role="user", content="What is the capital of France?")]
print(model.chat(question).message.content)
for piece in model.stream_chat(question):
    print(piece.delta or "", end="", flush=True)
print()
