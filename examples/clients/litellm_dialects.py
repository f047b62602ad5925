"""LiteLLM: the same server through three of its dialects."""
import os

import litellm

BASE = os.environ.get("ESPALIER_URL", "http://127.0.0.1:30000")

for model, address in (("openai/default", f"{BASE}/v1"), ("anthropic/default", BASE), ("ollama_chat/default", BASE)):
    answer = litellm.completion(model=model, api_base=address, api_key="any", max_tokens=16, temperature=0,
                                messages=[{"role": "user", "content": "What is the capital of France?"}])
    print(f"{model}: {answer.choices[0].message.content}")
