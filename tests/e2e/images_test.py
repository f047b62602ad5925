"""Pictures at the built binary, with a tiny LLaVA of random weights: the same answer through every dialect, from
every source; the second question about a picture finds it in the cache; and what is refused."""
import base64
import http.server
import json
import os
import shutil
import struct
import tempfile
import threading
import zlib

from harness import ROOT, Server, run

GOLDENS = os.path.join(ROOT, "tests", "golden", "images")
TEXT_MODEL = os.path.join(ROOT, "tests", "golden", "models", "qwen2_f32")
ROWS = 16  # that a picture becomes
TEMPLATE = ("{% for message in messages %}{{ message['role'] }}: "
            "{% for part in message['content'] if part['type'] == 'image' %}<image>\n{% endfor %}"
            "{% for part in message['content'] if part['type'] == 'text' %}{{ part['text'] }} {% endfor %}"
            "{% endfor %}{% if add_generation_prompt %}assistant:{% endif %}")
QUESTION = "What is it?"
PROMPT = f"user: <image>\n{QUESTION} assistant:"
SEEN = len("user: ") + ROWS + len("\n")  # tokens of the prompt up to what is asked


def write_model(folder, golden="llava_clip"):
    """A golden model with a token for each printable character, and the picture's placeholder."""
    shutil.copytree(os.path.join(GOLDENS, golden), folder)
    characters = ["\u0120"] + [chr(code) for code in range(0x21, 0x7F)] + ["\u010a"]
    special = {"</s>": 96, "<image>": 97, "<pad>": 98}
    added = [{"id": number, "content": text, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
              "special": True} for text, number in special.items()]
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    tokenizer = {"version": "1.0", "truncation": None, "padding": None, "added_tokens": added, "normalizer": None,
                 "pre_tokenizer": level, "post_processor": None, "decoder": level,
                 "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
                           "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "merges": [],
                           "vocab": {**{text: i for i, text in enumerate(characters)}, **special}}}
    with open(os.path.join(folder, "tokenizer.json"), "w", encoding="utf-8") as file:
        json.dump(tokenizer, file)
    with open(os.path.join(folder, "tokenizer_config.json"), "w", encoding="utf-8") as file:
        json.dump({"eos_token": "</s>", "pad_token": "<pad>"}, file)
    with open(os.path.join(folder, "chat_template.jinja"), "w", encoding="utf-8") as file:
        file.write(TEMPLATE)
    return folder


def png(seed, width=30, height=20):
    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
    rows = b"".join(b"\0" + bytes((x * seed + y * 7 + c * 50) % 256 for x in range(width) for c in range(3))
                    for y in range(height))
    return (b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)) +
            chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b""))


def data_url(picture):
    return "data:image/png;base64," + base64.b64encode(picture).decode()


class PictureServer:
    """Pictures over HTTP on the loopback address."""

    def __init__(self, picture):
        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                moved = self.path == "/moved"
                self.send_response(302 if moved else 200)
                if moved:
                    self.send_header("Location", "/sea.png")
                self.send_header("Content-Length", "0" if moved else str(len(picture)))
                self.end_headers()
                if not moved:
                    self.wfile.write(picture)

            def log_message(self, *_):
                pass
        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def url(self, path):
        return f"http://127.0.0.1:{self.server.server_port}{path}"


def chat_body(url, question=QUESTION, **more):
    return {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": url}},
                                                      {"type": "text", "text": question}]}],
            "max_tokens": 8, "temperature": 0, **more}


def chat(server, url, question=QUESTION, **more):
    return server.post("/v1/chat/completions", chat_body(url, question, **more))


def refusal(server, path, body):
    status, _, text = server.request("POST", path, body)
    assert status == 400 or status == 403, (status, text)
    return text


def check_dialects(server, picture):
    plain = chat(server, data_url(picture))
    answer = plain["choices"][0]["message"]["content"]
    tokens = len(PROMPT) - len("<image>") + ROWS
    assert answer and plain["usage"]["prompt_tokens"] == tokens, plain
    encoded = base64.b64encode(picture).decode()
    native = server.post("/generate", {"text": PROMPT, "image_data": encoded,
                                       "sampling_params": {"max_new_tokens": 8, "temperature": 0}})
    assert native["text"] == answer and native["meta_info"]["prompt_tokens"] == tokens, native
    response = server.post("/v1/responses", {
        "input": [{"role": "user", "content": [{"type": "input_image", "image_url": data_url(picture)},
                                               {"type": "input_text", "text": QUESTION}]}],
        "max_output_tokens": 8, "temperature": 0})
    assert response["output"][0]["content"][0]["text"] == answer, response
    assert response["usage"]["input_tokens"] == tokens, response
    block = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": encoded}}
    messages = [{"role": "user", "content": [block, {"type": "text", "text": QUESTION}]}]
    message = server.post("/v1/messages", {"messages": messages, "max_tokens": 8, "temperature": 0, "model": "m"})
    assert message["content"][0]["text"] == answer, message
    count = server.post("/v1/messages/count_tokens", {"messages": messages, "model": "m"})
    assert count["input_tokens"] == tokens, count
    options = {"num_predict": 8, "temperature": 0}
    ollama = server.post("/api/chat", {"messages": [{"role": "user", "content": QUESTION, "images": [encoded]}],
                                       "stream": False, "options": options})
    assert ollama["message"]["content"] == answer, ollama
    generated = server.post("/api/generate", {"prompt": QUESTION, "images": [encoded], "stream": False,
                                              "options": options})
    assert generated["response"] == answer and generated["prompt_eval_count"] == tokens, generated
    assert "".join(event["choices"][0]["delta"].get("content") or "" for event in
                   server.stream("/v1/chat/completions", chat_body(data_url(picture)))
                   if event and event["choices"]) == answer
    return answer


def check_cache(server):
    picture = png(11)
    first = chat(server, data_url(picture), "Where?")["usage"]["prompt_tokens_details"]["cached_tokens"]
    second = chat(server, data_url(picture), "Who is there?")["usage"]["prompt_tokens_details"]["cached_tokens"]
    assert first < SEEN and second >= SEEN, (first, second)  # all of the picture, and what stands before the question
    other = chat(server, data_url(png(12)), "Who is there?")["usage"]["prompt_tokens_details"]["cached_tokens"]
    assert other <= len("user: "), other
    images, encoded = server.metric("espalier:images_total"), server.metric("espalier:images_encoded_total")
    assert images > encoded >= 2, (images, encoded)


def check_sources(server, picture, answer, folder):
    pictures = PictureServer(picture)
    with open(os.path.join(folder, "sea.png"), "wb") as file:
        file.write(picture)
    for url in (pictures.url("/sea.png"), pictures.url("/moved"), "file://" + os.path.join(folder, "sea.png")):
        assert chat(server, url)["choices"][0]["message"]["content"] == answer, url
    for url in ("http://localhost/x", "http://169.254.169.254/", "file:///etc/passwd",
                "file://" + os.path.join(folder, "..", "model", "config.json")):
        refusal(server, "/v1/chat/completions", chat_body(url))


def check_more(server, picture):
    """Samples, log-probabilities, grammars, several pictures."""
    many = chat(server, data_url(picture), n=3, temperature=1, seed=4)
    assert len({choice["message"]["content"] for choice in many["choices"]}) > 1, many
    number = chat(server, data_url(picture), regex="[0-9]{3}")["choices"][0]["message"]["content"]
    assert len(number) == 3 and number.isdigit(), number
    held = chat(server, data_url(picture), logprobs=True, top_logprobs=2)
    assert len(held["choices"][0]["logprobs"]["content"]) == held["usage"]["completion_tokens"], held
    scored = server.post("/generate", {"text": PROMPT, "image_data": [data_url(picture)], "return_logprob": True,
                                       "logprob_start_len": 0, "sampling_params": {"max_new_tokens": 1}})
    entries = scored["meta_info"]["input_token_logprobs"]
    assert [entry[1] for entry in entries].count(97) == ROWS, entries
    # A prompt as tokens has the messages' pictures at its placeholders.
    body = chat_body(data_url(picture))
    ids = server.post("/tokenize", {"messages": body["messages"]})["tokens"]
    assert ids.count(97) == 1, ids
    assert server.post("/v1/chat/completions", {**body, "input_ids": ids})["choices"] == server.post("/v1/chat/completions", body)["choices"]
    refusal(server, "/v1/chat/completions", {**body, "input_ids": [5, 6]})
    batch = server.post("/generate", {
        "text": ["a <image>b", "c", "<image><image>"], "image_data": [data_url(picture), None, [data_url(png(3))] * 2],
        "sampling_params": {"max_new_tokens": 4, "temperature": 0}})
    assert [each["meta_info"]["prompt_tokens"] for each in batch] == [3 + ROWS, 1, 2 * ROWS], batch


def check_refusals(server, picture):
    text = refusal(server, "/generate", {"text": "no place", "image_data": data_url(picture)})
    assert "0 placeholders" in text, text
    assert "1 placeholders" in refusal(server, "/generate", {"text": "a <image>"})
    assert "base64" in refusal(server, "/v1/chat/completions", chat_body("x!"))
    assert "picture 1 of 1" in refusal(server, "/v1/chat/completions", chat_body(data_url(b"no picture")))
    assert "pixel" in refusal(server, "/v1/chat/completions", chat_body(data_url(png(1, 200, 100))))
    bad = chat_body("x")
    bad["messages"][0]["content"][0] = {"type": "image_url"}
    assert "messages[0].content[0]" in refusal(server, "/v1/chat/completions", bad)
    with Server("--model-path", TEXT_MODEL, "--skip-tokenizer-init") as blind:
        text = refusal(blind, "/generate", {"input_ids": [1, 2], "image_data": data_url(picture)})
        assert "reads text alone" in text, text


def check_any_size(folder, golden):
    """A model whose pictures take as many positions as their sizes demand."""
    model = write_model(os.path.join(folder, golden), golden)
    small, large = png(5), png(6, 150, 90)
    encoder = json.loads(run("inspect", model, "--json").stdout)["image_encoder"]
    assert encoder["num_layers"] > 1 and encoder["tokens_per_image"] == 0, encoder
    assert "tokens of a picture by its size" in run("inspect", model).stdout
    with Server("--model-path", model, "--enable-cache-report", "--context-length", "256",
                "--chunked-prefill-size", "16") as server:
        text = len(PROMPT) - len("<image>")
        counts = {}
        for name, picture in (("small", small), ("large", large)):
            answer = chat(server, data_url(picture))
            counts[name] = answer["usage"]["prompt_tokens"] - text
            native = server.post("/generate", {"text": PROMPT, "image_data": data_url(picture),
                                               "sampling_params": {"max_new_tokens": 8, "temperature": 0}})
            assert native["text"] == answer["choices"][0]["message"]["content"], (native, answer)
            ids = server.post("/tokenize", {"prompt": PROMPT, "add_special_tokens": False})["tokens"]
            at = ids.index(97)
            expanded = ids[:at] + [97] * counts[name] + ids[at + 1:]
            assert server.post("/generate", {"input_ids": expanded, "image_data": data_url(picture), "sampling_params": {
                "max_new_tokens": 8, "temperature": 0}})["text"] == native["text"]
            again = chat(server, data_url(picture), "Who?")["usage"]
            assert again["prompt_tokens_details"]["cached_tokens"] >= len("user: ") + counts[name], again
        assert 0 < counts["small"] < counts["large"], counts
        both = server.post("/generate", {"text": "<image> and <image>", "image_data": [data_url(large), data_url(small)],
                                         "sampling_params": {"max_new_tokens": 4, "temperature": 0}})
        assert both["meta_info"]["prompt_tokens"] == len(" and ") + sum(counts.values()), (both, counts)
        image = {"type": "image", "source": {"type": "base64", "media_type": "image/png",
                                             "data": base64.b64encode(small).decode()}}
        status, _, text = server.request("POST", "/v1/messages/count_tokens",
                                         {"messages": [{"role": "user", "content": [image]}], "model": "m"})
        assert status >= 400 and "as its size demands" in text, (status, text)
        status, _, text = server.request("POST", "/generate", {"text": PROMPT, "image_data": data_url(small),
                                                               "return_logprob": True, "logprob_start_len": 0})
        assert status >= 400 and "logprob_start_len" in text, (status, text)
        long = {"text": "<image>" * 8, "image_data": [data_url(png(seed, 150, 90)) for seed in range(8)]}
        assert "256" in refusal(server, "/generate", long)
        assert chat(server, data_url(small))["choices"]


def check_command(model, picture, answer, folder):
    path = os.path.join(folder, "sea.png")
    said = run("chat", "--model-path", model, "--image", path, "--temperature", "0", "--max-new-tokens", "8", "--quiet",
               "--history", "off", stdin=QUESTION + "\n")
    assert said.returncode == 0 and said.stdout.rstrip("\n") == answer.rstrip("\n"), (said.stdout, said.stderr, answer)
    asked = run("chat", "--model-path", model, "--temperature", "0", "--max-new-tokens", "8", "--quiet",
                "--history", "off", stdin=f"/image {path}\n{QUESTION}\n")
    assert asked.stdout == said.stdout, (asked.stdout, asked.stderr)
    missing = run("chat", "--model-path", model, "--image", path + "x", stdin="")
    assert missing.returncode == 2 and "sea.pngx" in missing.stderr, missing.stderr


def main():
    picture = png(5)
    with tempfile.TemporaryDirectory() as folder:
        model = write_model(os.path.join(folder, "model"))
        pictures = os.path.join(folder, "pictures")
        os.mkdir(pictures)
        with Server("--model-path", model, "--enable-cache-report", "--max-image-pixels", "10000",
                    "--allowed-media-domains", "127.0.0.1", "--allow-private-media-addresses",
                    "--allowed-local-media-path", pictures) as server:
            answer = check_dialects(server, picture)
            check_cache(server)
            check_sources(server, picture, answer, pictures)
            check_more(server, picture)
            check_refusals(server, picture)
        with Server("--model-path", model, "--allowed-media-domains", "*") as careful:
            text = refusal(careful, "/v1/chat/completions", chat_body(f"http://127.0.0.1:{careful.port}/health"))
            assert "no public address" in text, text
        check_command(model, picture, answer, pictures)
        for golden in ("llava_next", "qwen2_5_vl", "qwen3_vl"):
            check_any_size(folder, golden)
    print("images: ok")


if __name__ == "__main__":
    main()
