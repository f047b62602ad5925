"""Speech to text at the built binary, with tiny Whisper models of random weights: files of every format that is
installed, every form of answer, streams, several requests at once, and what is refused. The texts are transformers'."""
import json
import os
import struct
import threading

from harness import ROOT, Server, run

MODEL = os.path.join(ROOT, "tests", "golden", "speech", "multilingual")
SOUNDS = os.path.join(ROOT, "tests", "golden", "media", "sounds")
ROUTE = "/v1/audio/transcriptions"


def drawn_wav(count):
    """The drawn sound of tools/goldens/make_audio_goldens.py at 16 kHz."""
    samples = [(abs((n * 37) % 4000 - 2000) - 1000) * 8 + (abs((n * n // 64) % 3000 - 1500) - 750) * 10 +
               (n * 2654435761 % 4294967296) // 65536 % 512 - 256 for n in range(count)]
    data = struct.pack(f"<{count}h", *samples)
    return (b"RIFF" + struct.pack("<I", 36 + len(data)) + b"WAVEfmt " +
            struct.pack("<IHHIIHH", 16, 1, 1, 16000, 32000, 2, 16) + b"data" + struct.pack("<I", len(data)) + data)


def send(server, file, path=ROUTE, **fields):
    """(status, body) of a form."""
    parts = [f'--XX\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{value}\r\n'.encode()
             for name, value in fields.items()]
    parts.append(b'--XX\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\n' + file + b"\r\n--XX--\r\n")
    status, _, text = server.request("POST", path, b"".join(parts), {"Content-Type": "multipart/form-data; boundary=XX"})
    return status, text


def transcribe(server, file, path=ROUTE, **fields):
    status, text = send(server, file, path, **fields)
    assert status == 200, (status, text)
    return text


def cases():
    with open(os.path.join(MODEL, "cases.json"), encoding="utf-8") as file:
        return [case for case in json.load(file)["cases"] if not case.get("translate")]


def run_case(server, case):
    fields = {name: case[name] for name in ("language", "prompt") if name in case}
    answer = json.loads(transcribe(server, drawn_wav(case["samples"]), response_format="verbose_json", **fields)
                        if case["timestamps"] else transcribe(server, drawn_wav(case["samples"]), **fields))
    assert answer["text"] == case["text"], (case, answer)
    if case["timestamps"]:
        assert [round(s["end"], 4) for s in answer["segments"]] == [round(s["end"], 4) for s in case["segments"]]


def texts_together(server):
    """All at the same time, each as it is alone."""
    failures = []

    def one(case):
        try:
            run_case(server, case)
        except BaseException as failure:  # pylint: disable=broad-except
            failures.append(failure)
    threads = [threading.Thread(target=one, args=(case,)) for case in cases() * 2]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures


def formats(server):
    sound = drawn_wav(32000)
    plain = json.loads(transcribe(server, sound, language="en"))["text"]
    assert transcribe(server, sound, language="en", response_format="text") == plain + "\n"
    assert transcribe(server, sound, language="fr", response_format="srt").startswith("1\n00:00:00,")
    assert transcribe(server, sound, language="fr", response_format="vtt").startswith("WEBVTT\n\n00:00:00.")
    verbose = json.loads(transcribe(server, sound, path="/v1/audio/translations", response_format="verbose_json"))
    assert verbose["task"] == "translate" and verbose["language"] == "english" and verbose["duration"] == 2
    events = [json.loads(line[6:]) for line in transcribe(server, sound, language="en", stream="true").splitlines()
              if line.startswith("data: {")]
    assert "".join(e["delta"] for e in events if e["type"] == "transcript.text.delta") == plain
    assert events[-1]["type"] == "transcript.text.done" and events[-1]["text"] == plain


def files(server):
    """FLAC is exact, so its text is that of WAV; a file that needs a library that is missing is refused by its name."""
    with open(os.path.join(SOUNDS, "pcm16.wav"), "rb") as file:
        wav = transcribe(server, file.read(), language="en")
    for name in sorted(os.listdir(SOUNDS)):
        with open(os.path.join(SOUNDS, name), "rb") as file:
            status, text = send(server, file.read(), language="en")
        if status == 415:
            assert "libsndfile1" in text and not name.endswith(".wav"), (name, text)
            continue
        assert status == 200, (name, text)
        if name in ("mono.flac", "float.wav", "pcm32.wav"):
            assert text == wav, name


def refused(server):
    status, text = send(server, b"no audio")
    assert status == 415 and "send WAV" in text
    status, text = send(server, drawn_wav(1000), temperature="3")
    assert status == 400 and "temperature" in text
    status, text = send(server, drawn_wav(16000 * 11))
    assert status == 413 and "--max-audio-seconds" in text
    status, _, text = server.request("POST", "/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}]})
    assert status == 400 and ROUTE in text, text


def states(server):
    info = json.loads(server.get("/server_info")[2])
    assert info["speech"]["languages"] == ["en", "de", "fr"] and info["max_audio_seconds"] == 10
    assert info["speech"]["num_windows"] > 0
    assert json.loads(server.get("/v1/models")[2])["data"][0]["max_model_len"] == 64
    assert server.get("/health_generate")[0] == 200


def inspected():
    done = run("inspect", MODEL, "--json")
    assert done.returncode == 0, done.stderr
    shown = json.loads(done.stdout)
    assert shown["is_transcription"] and shown["model_type"] == "whisper" and shown["num_parameters"] == 89504
    table = run("inspect", MODEL)
    assert "text of speech, and English text of it" in table.stdout, table.stdout
    generated = run("generate", "--model-path", MODEL, "hello")
    assert generated.returncode != 0 and ROUTE in generated.stderr, generated.stderr


def text_server_refuses():
    with Server("--model-path", os.path.join(ROOT, "tests", "golden", "models", "qwen2_f32"),
                "--skip-tokenizer-init") as server:
        status, text = send(server, drawn_wav(1000))
        assert status == 400 and "Whisper" in text, text


def main():
    with Server("--model-path", MODEL, "--dtype", "float32", "--max-audio-seconds", "10") as server:
        for part in (texts_together, formats, files, refused, states):
            part(server)
            print(part.__name__, "ok", flush=True)
    for part in (inspected, text_server_refuses):
        part()
        print(part.__name__, "ok", flush=True)


if __name__ == "__main__":
    main()
