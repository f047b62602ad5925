"""The model that sees and ships, at the built binary: questions about drawn pictures get their true answers as PNG and as
JPEG, in every dialect, in conversations and in the chat on the terminal; without a picture it says that there is none."""
import base64
import json
import os
import random
import sys
import tempfile

from harness import ROOT, Server, run

sys.path.insert(0, os.path.join(ROOT, "tools", "seeing_model"))
from draw import draw, png  # noqa: E402
from jpeg import jpeg  # noqa: E402
from scenes import PLACES, Scene, Thing  # noqa: E402

PICTURES = os.path.join(ROOT, "share", "seeing_model", "pictures")
ROWS = 144  # positions of a picture


def scene_of(*things, ground="white", size=0.13, width=160, height=120, seed=3):
    """things: (noun, colour, place)."""
    generator = random.Random(seed)
    scene = Scene(width, height, ground, generator)
    for noun, colour, place in things:
        thing = Thing(noun, colour, PLACES.index(place), generator, size)
        thing.settle(width, height, generator)
        scene.things.append(thing)
    return scene


def data_url(picture):
    kind = "png" if picture.startswith(b"\x89PNG") else "jpeg"
    return f"data:image/{kind};base64," + base64.b64encode(picture).decode()


def parts(picture, question):
    return [{"type": "image_url", "image_url": {"url": data_url(picture)}}, {"type": "text", "text": question}]


def chat(server, messages, **more):
    return server.post("/v1/chat/completions", {"messages": messages, "temperature": 0, "max_tokens": 48, **more})


def answer_of(server, picture, question, **more):
    made = chat(server, [{"role": "user", "content": parts(picture, question)}], **more)
    return made["choices"][0]["message"]["content"]


THREE = scene_of(("circle", "red", "top left"), ("star", "blue", "middle"), ("7", "green", "bottom right"))
ASKED = [
    (THREE, "What colour is the star?", "The star is blue."),
    (THREE, "How many things are there?", "There are three things."),
    (THREE, "Where is the circle?", "The circle is at the top left."),
    (THREE, "Which digit is in the picture?", "The digit is 7."),
    (THREE, "Is there a yellow heart?", "No, there is no yellow heart."),
    (THREE, "Is the star left of the circle?", "No, it is right of the circle."),
    (THREE, "What do you see?", "I see a red circle, a blue star and a green 7."),
    (scene_of(("4", "black", "left"), ("2", "black", "middle"), ground="yellow"), "What number is in the picture?", "The number is 42."),
    (scene_of(*[("square", "red", place) for place in ("top left", "left", "bottom right")], ("ring", "blue", "top")),
     "How many squares are there?", "There are three squares."),
    (scene_of(("square", "orange", "right"), ground="blue", width=300, height=240), "What colour is the background?", "The background is blue."),
]


def check_answers(server):
    wrong = []
    for scene, question, expected in ASKED:
        lines = draw(scene)
        for picture in (png(lines), jpeg(lines, 85)):
            said = answer_of(server, picture, question)
            if said != expected:
                wrong.append((question, picture[:4], said, expected))
    assert not wrong, wrong


def check_dialects(server):
    picture, question, expected = png(draw(THREE)), "What colour is the star?", "The star is blue."
    encoded = base64.b64encode(picture).decode()
    native = server.post("/generate", {"text": f"<|user|><image>{question}<|eos|><|assistant|>", "image_data": encoded,
                                       "sampling_params": {"max_new_tokens": 48, "temperature": 0}})
    assert native["text"] == expected, native
    block = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": encoded}}
    message = server.post("/v1/messages", {"messages": [{"role": "user", "content": [block, {"type": "text", "text": question}]}],
                                           "max_tokens": 48, "temperature": 0, "model": "m"})
    assert message["content"][0]["text"] == expected, message
    response = server.post("/v1/responses", {
        "input": [{"role": "user", "content": [{"type": "input_image", "image_url": data_url(picture)}, {"type": "input_text", "text": question}]}],
        "max_output_tokens": 48, "temperature": 0})
    assert response["output"][0]["content"][0]["text"] == expected, response
    ollama = server.post("/api/chat", {"messages": [{"role": "user", "content": question, "images": [encoded]}], "stream": False,
                                       "options": {"num_predict": 48, "temperature": 0}})
    assert ollama["message"]["content"] == expected, ollama
    # A grammar chooses among the colours.
    colour = answer_of(server, picture, question, regex="The star is (red|green|blue|black)\\.")
    assert colour == expected, colour


def check_conversation(server):
    """A second question about the picture finds it in the cache, and a third refers to the conversation's picture."""
    messages = [{"role": "user", "content": parts(jpeg(draw(THREE), 90), "What is in the middle?")}]
    for question, expected in ((None, "There is a blue star in the middle."), ("Where is the red circle?", "It is at the top left."),
                               ("Count the objects.", "Three.")):
        if question:
            messages.append({"role": "user", "content": question})
        made = chat(server, messages)
        assert made["choices"][0]["message"]["content"] == expected, (question, made)
        if question:
            assert made["usage"]["prompt_tokens_details"]["cached_tokens"] >= ROWS, made["usage"]
        messages.append({"role": "assistant", "content": expected})
    blind = chat(server, [{"role": "user", "content": "What colour is the star?"}])
    assert blind["choices"][0]["message"]["content"] == "There is no picture.", blind


def logprobs_of(server, golden, picture):
    """Of the golden answer's tokens, about a picture."""
    text = "<|user|><image>" + golden["question"] + "<|eos|><|assistant|>"
    with open(os.path.join(PICTURES, picture), "rb") as file:
        made = server.post("/generate", {"text": text, "image_data": data_url(file.read()), "return_logprob": True,
                                         "sampling_params": {"max_new_tokens": 48, "temperature": 0}})
    assert made["meta_info"]["prompt_tokens"] == golden["rows"] + len(golden["text"]), made["meta_info"]
    return made["text"], [entry[0] for entry in made["meta_info"]["output_token_logprobs"]], [
        entry[1] for entry in made["meta_info"]["output_token_logprobs"]]


def check_golden():
    """The answers' tokens and log-probabilities are transformers'; another picture has others."""
    with open(os.path.join(ROOT, "tests", "golden", "seeing.json"), encoding="utf-8") as file:
        goldens = json.load(file)
    with Server("--model-path", "seeing", "--device", "cpu", "--dtype", "float32") as server:
        for golden in goldens:
            ids = server.post("/tokenize", {"prompt": golden["question"], "add_special_tokens": False})["tokens"]
            assert [0, 4, *ids, 1, 5] == golden["text"], (ids, golden)
            text, logprobs, tokens = logprobs_of(server, golden, golden["picture"])
            assert text == golden["answer"] and tokens == golden["tokens"], (text, tokens, golden)
            assert max(abs(a - b) for a, b in zip(logprobs, golden["logprobs"])) < 1e-3, (logprobs, golden)
            other = "number.jpg" if golden["picture"] == "shapes.png" else "shapes.png"
            text, logprobs, _ = logprobs_of(server, golden, other)
            assert text != golden["answer"], (text, golden)


def check_command(folder):
    shipped = {"shapes.png": ("How many things are there?", "There are three things."),
               "number.jpg": ("What number is in the picture?", "The number is 207.")}
    options = ("--model-path", "seeing", "--temperature", "0", "--quiet", "--history", "off")
    for name, (question, expected) in shipped.items():
        path = os.path.join(PICTURES, name)
        said = run("chat", *options, "--image", path, stdin=question + "\n")
        assert (said.returncode, said.stdout) == (0, expected + "\n"), (said.stdout, said.stderr)
    path = os.path.join(folder, "three.jpg")
    with open(path, "wb") as file:
        file.write(jpeg(draw(THREE), 90))
    said = run("chat", *options, stdin=f"/image {path}\nWhat is green?\nWhere is the star?\n")
    assert said.stdout == "The digit 7 is green.\nThe star is in the middle.\n", (said.stdout, said.stderr)
    listed = run("models")
    assert listed.returncode == 0 and "seeing" in listed.stdout, (listed.stdout, listed.stderr)


def main():
    with Server("--model-path", "seeing", "--device", "cpu", "--enable-cache-report") as server:
        check_answers(server)
        check_dialects(server)
        check_conversation(server)
    check_golden()
    with tempfile.TemporaryDirectory() as folder:
        check_command(folder)
    print("seeing: ok")


if __name__ == "__main__":
    main()
