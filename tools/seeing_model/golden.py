"""Writes what transformers makes of the model's folder: of questions about the pictures that ship the prompt's tokens, the
greedy answer and the log-probability of each of its tokens, in float32.

    python3 golden.py share/seeing_model tests/golden/seeing.json       needs transformers, torch, Pillow
"""
import json
import pathlib
import sys

import torch
import transformers
from PIL import Image

QUESTIONS = [("shapes.png", "What do you see?"), ("shapes.png", "Where is the star?"), ("number.jpg", "What number is in the picture?")]


def answered(model, processor, folder, name, question):
    messages = [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": question}]}]
    text = processor.apply_chat_template(messages, add_generation_prompt=True)
    inputs = processor(images=Image.open(folder / "pictures" / name), text=text, add_special_tokens=False, return_tensors="pt")
    made = model.generate(**inputs, max_new_tokens=48, do_sample=False, return_dict_in_generate=True, output_logits=True)
    tokens = made.sequences[0, inputs["input_ids"].shape[1]:].tolist()
    chosen = [torch.log_softmax(logits[0].float(), -1)[token].item() for token, logits in zip(tokens, made.logits)]
    prompt = inputs["input_ids"][0].tolist()
    text = [token for token in prompt if token != model.config.image_token_id]
    return {"picture": name, "question": question, "rows": len(prompt) - len(text), "text": text, "tokens": tokens,
            "answer": processor.decode(tokens, skip_special_tokens=True), "logprobs": [round(x, 5) for x in chosen]}


def main():
    folder, out = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
    model = transformers.LlavaForConditionalGeneration.from_pretrained(folder, dtype=torch.float32).eval()
    processor = transformers.AutoProcessor.from_pretrained(folder)
    with torch.no_grad():
        rows = [answered(model, processor, folder, name, question) for name, question in QUESTIONS]
    out.write_text("[" + ",\n ".join(json.dumps(row) for row in rows) + "]\n")


if __name__ == "__main__":
    main()
