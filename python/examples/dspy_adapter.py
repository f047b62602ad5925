"""A DSPy-style language model over the OpenAI-compatible endpoint of a server: messages or a prompt
in, an OpenAI response out, which is what dspy.BaseLM asks of a model. With dspy installed it is one
(`dspy.configure(lm=EspalierLM(url))`); without, the small Predict below fills DSPy's signatures.

    python3 dspy_adapter.py [http://127.0.0.1:30000]    # without an address a server is started
"""
import json
import re
import sys
import urllib.request
from types import SimpleNamespace

import espalier as sgl
from example import SHIPPED

try:
    from dspy import BaseLM
except ImportError:
    class BaseLM:
        """The part of dspy.BaseLM that is used here."""

        def __init__(self, model, **kwargs):
            self.model, self.kwargs, self.history = model, kwargs, []

        def __call__(self, prompt=None, messages=None, **kwargs):
            answer = self.forward(prompt=prompt, messages=messages, **kwargs)
            texts = [choice.message.content for choice in answer.choices]
            self.history.append({"messages": messages or prompt, "outputs": texts})
            return texts


class EspalierLM(BaseLM):
    def __init__(self, url, model="default", **kwargs):
        super().__init__(model=model, **kwargs)
        self.url = url.rstrip("/") + "/v1/chat/completions"

    def forward(self, prompt=None, messages=None, **kwargs):
        body = {"model": self.model, **self.kwargs, **kwargs,
                "messages": messages or [{"role": "user", "content": prompt}]}
        request = urllib.request.Request(self.url, json.dumps(body).encode(),
                                         {"Content-Type": "application/json"})
        with urllib.request.urlopen(request) as answer:
            return json.load(answer, object_hook=lambda fields: SimpleNamespace(**fields))


class Predict:
    """Fills a signature, "question -> answer": inputs are told by name, the one output is the
    answer's text up to the end of its line."""

    def __init__(self, signature, lm):
        inputs, self.output = signature.split("->")
        self.inputs = [name.strip() for name in inputs.split(",")]
        self.output = self.output.strip()
        self.lm = lm

    def __call__(self, **fields):
        missing = [name for name in self.inputs if name not in fields]
        if missing:
            raise TypeError(f"the signature's {missing[0]!r} is not given")
        prompt = "\n".join(str(fields[name]) for name in self.inputs)
        text = self.lm(prompt=prompt, max_tokens=24, temperature=0)[0]
        return SimpleNamespace(**{self.output: re.split(r"\n", text.strip())[0]})


def main():
    server = None if len(sys.argv) > 1 else sgl.Runtime(SHIPPED)
    lm = EspalierLM(sys.argv[1] if server is None else server.url)
    ask = Predict("question -> answer", lm)
    for country in ("France", "Italy"):
        print(country + ":", ask(question=f"What is the capital of {country}?").answer)
    if server is not None:
        server.shutdown()


if __name__ == "__main__":
    main()
