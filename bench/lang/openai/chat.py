"""python/examples/chat.py on the OpenAI client."""
from client import MODEL, client

QUESTIONS = ["What is the capital of France?", "What is 12 plus 30?", "Tell me a short story."]


def talk(questions, on_text):
    messages = [{"role": "system", "content": "You are a helpful assistant."}]
    for question in questions:
        messages.append({"role": "user", "content": question})
        stream = client.chat.completions.create(model=MODEL, messages=messages, max_tokens=48,
                                                temperature=0, stream=True)
        answer = ""
        for chunk in stream:
            piece = chunk.choices[0].delta.content if chunk.choices else None
            if piece:
                answer += piece
                on_text(piece)
        messages.append({"role": "assistant", "content": answer})
    return messages


if __name__ == "__main__":
    talk(QUESTIONS, lambda piece: print(piece, end="", flush=True))
    print()
