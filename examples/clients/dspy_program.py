"""DSPy: a language model for its programs."""
import os

import dspy

BASE = os.environ.get("ESPALIER_URL", "http://127.0.0.1:30000")

model = dspy.LM("openai/default", api_base=f"{BASE}/v1", api_key="any", max_tokens=32, temperature=0, cache=False)
print(model("What is the capital of France?")[0])
