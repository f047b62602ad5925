"""What commands of the documents name and a reader has: checkpoints, adapters, a GGUF file, certificates, a log. Each
is made in the reader's folder when a command first names it."""
import json
import os
import pathlib
import random
import struct
import subprocess

from harness import ROOT, Server, run, wait_until

DEFAULT_MODEL = pathlib.Path(ROOT) / "share/default_model"
PICTURES = pathlib.Path(ROOT) / "share/seeing_model/pictures"
SOUNDS = pathlib.Path(ROOT) / "tests/golden/media/sounds"
RANK = 2


def write_safetensors(path, tensors):
    """tensors: {name: (type, shape, bytes)}."""
    header, offset = {}, 0
    for name, (kind, shape, data) in tensors.items():
        header[name] = {"dtype": kind, "shape": shape, "data_offsets": [offset, offset + len(data)]}
        offset += len(data)
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(data for _, _, data in tensors.values()))


def stored_tensors():
    """{name: (type, shape, a function that reads its bytes)} of the model that ships."""
    found = {}
    for shard in sorted(DEFAULT_MODEL.glob("*.safetensors")):
        with shard.open("rb") as file:
            size = struct.unpack("<Q", file.read(8))[0]
            header = json.loads(file.read(size))
        for name, entry in header.items():
            if name != "__metadata__":
                first, last = entry["data_offsets"]
                found[name] = (entry["dtype"], entry["shape"],
                               lambda shard=shard, at=8 + size + first, length=last - first: read_at(shard, at, length))
    return found


def read_at(path, offset, length):
    with path.open("rb") as file:
        file.seek(offset)
        return file.read(length)


def adapter(folder):
    """A LoRA adapter of the model's query projections, as PEFT writes it."""
    folder.mkdir(parents=True)
    rng, tensors = random.Random(folder.name), {}
    for name, (_, shape, _) in stored_tensors().items():
        if not name.endswith("q_proj.weight"):
            continue
        for factor, size in (("lora_A", [RANK, shape[1]]), ("lora_B", [shape[0], RANK])):
            values = [rng.gauss(0, 0.1) for _ in range(size[0] * size[1])]
            tensors[f"base_model.model.{name.removesuffix('.weight')}.{factor}.weight"] = (
                "F32", size, struct.pack(f"<{len(values)}f", *values))
    write_safetensors(folder / "adapter_model.safetensors", tensors)
    (folder / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", "r": RANK, "lora_alpha": 4}))


def control_vector(path):
    """Directions for all layers of the model that ships but the first."""
    hidden, rng = stored_tensors()["model.norm.weight"][1][0], random.Random(1)
    directions = {f"direction.{layer}": [rng.gauss(0, 0.1) for _ in range(hidden)] for layer in range(1, 8)}
    write_safetensors(path, {name: ("F32", [hidden], struct.pack(f"<{hidden}f", *values))
                             for name, values in directions.items()})


def some_tensors(path):
    """A file with one of the model's tensors."""
    name, (kind, shape, read) = next((name, stored) for name, stored in stored_tensors().items() if "norm" in name)
    write_safetensors(path, {name: (kind, shape, read())})


def certificate(path):
    """A self-signed certificate, and its key in privkey.pem beside it."""
    subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes",
                    "-keyout", path.with_name("privkey.pem"), "-out", path, "-days", "2", "-subj", "/CN=localhost"],
                   check=True, capture_output=True)


def gguf(path):
    done = run("models", "quantize", str(DEFAULT_MODEL), str(path), "--type", "Q4_0")
    assert done.returncode == 0, done.stderr


def texts(path):
    """Texts to calibrate with, of strings and objects."""
    text = "The sea was calm, and the old boat came home with the tide. " * 20
    path.write_text("".join(json.dumps(line) + "\n" for line in (text, {"text": text}, text)))


def request_log(path):
    """The log of a server that had one request."""
    with Server("--request-log", str(path)) as server:
        server.post("/generate", {"text": "The sea", "sampling_params": {"max_new_tokens": 4}})
        wait_until(lambda: path.stat().st_size > 0, "the log's line")


def checkpoint(path):
    path.parent.mkdir(exist_ok=True)
    path.symlink_to(DEFAULT_MODEL)


def program(path):
    """A compiled program of the frontend language: a text and a call behind it."""
    nodes = [{"kind": "ConstantText", "stream": 0, "text": "Once upon a time"},
             {"kind": "Gen", "stream": 0, "name": "tale", "options": {"max_tokens": 4}}]
    path.write_text(json.dumps({"name": "tale", "parameters": [], "num_streams": 1, "nodes": nodes}))


def picture(path):
    path.symlink_to(PICTURES / "shapes.png")


def served_models(path):
    """The models that ship, as docs/several_models.md writes their file."""
    entries = {"stories": str(DEFAULT_MODEL), "seeing": "seeing"}
    path.write_text("\n".join(f'[[model]]\nname = "{name}"\nmodel_path = {json.dumps(model)}\nmemory = "64MiB"\n'
                              for name, model in entries.items()))


def keys(path):
    """The file of one tenant."""
    path.write_text(json.dumps([{"name": "search", "key": "sk-1", "requests_per_minute": 600}]))


# What a command names, and what makes it. A log that a server of the document writes is there before.
MADE = {
    "checkpoints/step-100": checkpoint,
    "checkpoints/step-200": checkpoint,
    "delta.safetensors": some_tensors,
    "happy.safetensors": control_vector,
    "adapters/french": adapter,
    "adapters/german": adapter,
    "fullchain.pem": certificate,
    "model-Q4_K_M.gguf": gguf,
    "my-folder-Q4.gguf": gguf,
    "keys.json": keys,
    "models.toml": served_models,
    "texts.jsonl": texts,
    "talk.flac": lambda path: path.symlink_to(SOUNDS / "mono.flac"),
    "vortrag.mp3": lambda path: path.symlink_to(SOUNDS / "layer3.mp3"),
    "requests.jsonl": request_log,
    "program.json": program,
    "sea.jpg": picture,
    "/srv/prefixes": pathlib.Path.mkdir,
}


def make(folder, command):
    """Makes in `folder` what `command` reads and is not there."""
    for name, maker in MADE.items():
        path = folder / name.removeprefix("/srv/")
        writes = f"--request-log {name}" in command
        if name in command and not writes and not os.path.lexists(path):
            maker(path)
