"""Folders and GGUF files of every family, changed at random: config.json, the tokenizer, the head and the
numbers of the weights. Each run of `espalier generate` must end with a text, or with an error that says
what is wrong; never by a signal, never past a time, never without a word."""
import json
import os
import resource
import shutil
import struct
import subprocess
import sys
import tempfile

from common import ROOT, Outcome, harness, limited
import values

sys.path.insert(0, os.path.join(ROOT, "tests", "e2e"))
import gguf_writer  # noqa: E402

TOKENIZER = os.path.join(ROOT, "tools", "attacks", "tiny_tokenizer")
GOLDENS = os.path.join(ROOT, "tests", "golden", "models")
SECONDS_MAX = 30
ADDRESS_SPACE = 8 << 30
READABLE = [v for v in values.ALL if values.is_json(v) and len(v) < 2000]


def changed_config(folder, rng):
    """One or two fields of config.json, also nested ones, get a hostile value or go."""
    path = os.path.join(folder, rng.choice(["config.json"] * 4 + ["generation_config.json"]))
    with open(path, encoding="utf-8") as f:
        config = json.load(f)
    for _ in range(rng.randint(1, 2)):
        owner, key = config, rng.choice(list(config))
        while isinstance(owner[key], (dict, list)) and owner[key] and rng.random() < 0.8:
            owner = owner[key]
            key = rng.choice(list(owner) if isinstance(owner, dict) else range(len(owner)))
        if rng.random() < 0.15:
            del owner[key]
            if not config or owner is not config and not owner:
                break
            continue
        if isinstance(owner[key], (int, float)) and rng.random() < 0.5:
            owner[key] = rng.choice([0, -1, owner[key] * 2, owner[key] + 1, owner[key] * 1000, 2 ** 31, 2 ** 62, 1e30, 1e-30])
        else:
            owner[key] = json.loads(rng.choice(READABLE))
    with open(path, "w", encoding="utf-8") as f:
        json.dump(config, f)
    return os.path.basename(path)


def changed_bytes(data, rng, span):
    """Random bytes changed in the first `span`, or the end cut off."""
    data = bytearray(data)
    if rng.random() < 0.2:
        return bytes(data[:rng.randrange(len(data))])
    for _ in range(rng.randint(1, 8)):
        at = rng.randrange(min(span, len(data)))
        kind = rng.random()
        if kind < 0.5:
            data[at] = rng.randrange(256)
        elif kind < 0.8:
            data[at:at + 8] = struct.pack("<Q", rng.choice([0, 1, 2 ** 31, 2 ** 32 - 1, 2 ** 63, 2 ** 64 - 1, rng.getrandbits(40)]))
        else:
            data[at:at + rng.randint(1, 9)] = bytes(rng.randrange(32, 127) for _ in range(rng.randint(0, 9)))
    return bytes(data)


def change_file(path, rng, span):
    with open(path, "rb") as f:
        data = f.read()
    with open(path, "wb") as f:
        f.write(changed_bytes(data, rng, span))


def changed_head(folder, rng):
    """The length or the JSON of a safetensors file's head."""
    name = rng.choice([n for n in os.listdir(folder) if n.endswith(".safetensors") and n != "reference.safetensors"])
    path = os.path.join(folder, name)
    with open(path, "rb") as f:
        data = f.read()
    size = struct.unpack("<Q", data[:8])[0]
    head = json.loads(data[8:8 + size])
    tensor = head[rng.choice([t for t in head if t != "__metadata__"])]
    field = rng.choice(list(tensor))
    old = tensor[field]
    if isinstance(old, list) and old and rng.random() < 0.7:
        old[rng.randrange(len(old))] = rng.choice([0, -1, 1, 2 ** 31, 2 ** 62, 2 ** 63, 1.5, "a", None, 10 ** 30])
    else:
        tensor[field] = json.loads(rng.choice(READABLE + ['"F64"', '"I8"', '"BF16"', '"F8_E4M3"', '"U8"']))
    text = json.dumps(head).encode()
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + data[8 + size:])
    return f"{name}: {field} of a tensor"


def changed_numbers(folder, rng):
    """Weights that are not finite."""
    name = rng.choice([n for n in os.listdir(folder) if n.endswith(".safetensors") and n != "reference.safetensors"])
    path = os.path.join(folder, name)
    with open(path, "r+b") as f:
        size = os.path.getsize(path)
        start = 8 + struct.unpack("<Q", f.read(8))[0]
        for _ in range(rng.randint(1, 400)):
            f.seek(rng.randrange(start, size))
            f.write(rng.choice([b"\xff\xff\xff\xff", b"\x80\x7f\x80\x7f", b"\x00\x00", b"\xc0\xff"]))
    return f"{name}: numbers"


def changed_any_file(folder, rng):
    name = rng.choice([n for n in os.listdir(folder) if n != "reference.safetensors"])
    path = os.path.join(folder, name)
    kind = rng.random()
    if kind < 0.1:
        os.remove(path)
    elif kind < 0.15:
        os.remove(path)
        os.mkdir(path)
    elif kind < 0.2:
        os.remove(path)
        os.symlink("/dev/zero", path)
    else:
        change_file(path, rng, 4000 if name.endswith(".safetensors") else 1 << 20)
    return f"{name}: bytes"


def folder_case(place, rng):
    """(model, tokenizer, what) of one changed copy of a golden."""
    golden = rng.choice(sorted(os.listdir(GOLDENS)))
    folder = os.path.join(place, "model")
    shutil.copytree(os.path.join(GOLDENS, golden), folder, ignore=shutil.ignore_patterns("reference.*"))
    change = rng.choice([changed_config, changed_config, changed_config, changed_head, changed_head, changed_numbers, changed_any_file])
    return folder, TOKENIZER, f"{golden}: {change(folder, rng)}"


def gguf_case(place, rng):
    path = os.path.join(place, "model.gguf")
    gguf_writer.write_gguf(path, chat_template=rng.choice([None, "{{ messages }}", "{% for"]))
    change_file(path, rng, rng.choice([64, 1200, 8000, 20000]))
    return path, path, "gguf"


def tokenizer_case(place, rng):
    golden = os.path.join(ROOT, "tests", "golden", "tokenizers", rng.choice(["byte_level", "metaspace", "unigram", "word_piece"]))
    folder = os.path.join(place, "tokenizer")
    shutil.copytree(golden if rng.random() < 0.5 else TOKENIZER, folder)
    change_file(os.path.join(folder, "tokenizer.json"), rng, 1 << 30)
    return os.path.join(GOLDENS, "llama_tied_llama3"), folder, "tokenizer.json: bytes"


def keep(place, seed, number):
    """Copies what failed to where a person finds it."""
    kept = os.path.join(tempfile.gettempdir(), f"espalier-attack-{seed}-{number}")
    shutil.rmtree(kept, ignore_errors=True)
    shutil.copytree(place, kept, symlinks=True)
    return kept


def run_case(outcome, budget, number):
    with tempfile.TemporaryDirectory() as place:
        make = budget.random.choice([folder_case] * 8 + [gguf_case] * 3 + [tokenizer_case])
        model, tokenizer, what = make(place, budget.random)
        command = [harness.BINARY, "generate", "--model-path", model, "--tokenizer-path", tokenizer, "--max-total-tokens", "256",
                   "--max-running-requests", "2", "--max-new-tokens", "3", "--quiet", "a b"]
        try:
            ended = subprocess.run(command, capture_output=True, timeout=SECONDS_MAX, stdin=subprocess.DEVNULL, check=False,
                                   env=harness.clean_environment(), preexec_fn=limited({resource.RLIMIT_AS: ADDRESS_SPACE}))
        except subprocess.TimeoutExpired:
            return outcome.fail("no end in time", f"{what}, kept in {keep(place, budget.seed, number)}")
        outcome.case()
        said = ended.stderr.decode("utf-8", "replace")
        if ended.returncode == 0:
            outcome.worked += 1
        elif ended.returncode not in (1, 2) or "error" not in said:
            outcome.fail(f"ended with {ended.returncode}", f"{what}, kept in {keep(place, budget.seed, number)}: {said[-200:]}")


def run(budget):
    outcome = Outcome("models")
    outcome.worked = 0
    number = 0
    while not budget.is_spent(outcome.cases):
        number += 1
        run_case(outcome, budget, number)
    outcome.fact(f"{outcome.worked} still worked, the others named an error")
    return outcome
