"""Weights that are replaced while requests run, at the built binary: every answer is whole of one
version, no request is lost, and files that are wrong leave the old weights serving.

ESPALIER_WEIGHT_UPDATES sets the number of updates (120), ESPALIER_WEIGHT_KILLS how often a server is killed within
one (3; tools/long_tests makes both long), ESPALIER_WEIGHTS_SEED the seed, and
ESPALIER_WEIGHTS_FLAGS flags of the server: "--device cuda --enable-deterministic-inference" runs it on a GPU, where
answers otherwise depend on what else a batch holds."""
import base64
import hashlib
import http.client
import importlib.util
import json
import os
import random
import shutil
import struct
import sys
import tempfile
import threading

from harness import ROOT, Server, wait_until

MODEL = os.path.join(ROOT, "tests", "golden", "models", "llama_tied_llama3")
PROMPTS = [[5, 6, 7, 8, 9, 10, 11, 12], [40, 41, 42], [9] * 30]
NUM_UPDATES = int(os.environ.get("ESPALIER_WEIGHT_UPDATES", "120"))
NUM_KILLS = int(os.environ.get("ESPALIER_WEIGHT_KILLS", "3"))
SEED = int(os.environ.get("ESPALIER_WEIGHTS_SEED", str(random.SystemRandom().randrange(1 << 30))))


def split(path):
    with open(path, "rb") as file:
        size = struct.unpack("<Q", file.read(8))[0]
        return json.loads(file.read(size)), file.read()


def write(path, header, data):
    text = json.dumps(header).encode()
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + data)


def make_model(folder, change=lambda header, data: (header, data), config=None):
    """The golden model with other weights."""
    os.makedirs(folder)
    for name in ("config.json", "generation_config.json"):
        shutil.copy(os.path.join(MODEL, name), folder)
    if config:
        path = os.path.join(folder, "config.json")
        with open(path, encoding="utf-8") as file:
            fields = json.load(file)
        with open(path, "w", encoding="utf-8") as file:
            json.dump({**fields, **config}, file)
    write(os.path.join(folder, "model.safetensors"),
          *change(*split(os.path.join(MODEL, "model.safetensors"))))
    return folder


def reverse_layers(header, data):
    """Matrices of equal shapes change places: another model whose numbers are as good."""
    first = "model.layers.0."
    swapped = {}
    for name, entry in header.items():
        other = name.replace(first, "model.layers.1.", 1) if name.startswith(first) else \
            name.replace("model.layers.1.", first, 1)
        swapped[name] = header.get(other, entry)
    return swapped, data


def without_one(header, data):
    """The last tensor of the file is gone."""
    last = max((name for name in header if name != "__metadata__"), key=lambda n: header[n]["data_offsets"][1])
    begin = header[last]["data_offsets"][0]
    return {name: entry for name, entry in header.items() if name != last}, data[:begin]


def other_shape(header, data):
    name = "model.layers.0.mlp.up_proj.weight"
    rows, columns = header[name]["shape"]
    return {**header, name: {**header[name], "shape": [columns, rows]}}, data


def bad_folders(root):
    """Folders that must be refused."""
    truncated = make_model(os.path.join(root, "truncated"))
    path = os.path.join(truncated, "model.safetensors")
    os.truncate(path, os.path.getsize(path) - 100)
    empty = os.path.join(root, "empty")
    os.makedirs(empty)
    without = make_model(os.path.join(root, "without"))
    os.remove(os.path.join(without, "model.safetensors"))
    make_model(os.path.join(root, "missing"), without_one)
    make_model(os.path.join(root, "shape"), other_shape)
    make_model(os.path.join(root, "config"), config={"rms_norm_eps": 0.5})


# Folders that must be refused, with a part of the message.
BAD = {"truncated": "model.safetensors", "empty": "config.json", "without": "no weights", "nowhere": "nowhere",
       "missing": "missing", "shape": "up_proj", "config": "rms_norm_eps"}


def update(server, path, **more):
    status, _, text = server.request("POST", "/update_weights_from_disk", {"model_path": path, **more})
    return status, json.loads(text)


def generate(server, prompt, tokens=12):
    return server.post("/generate", {"input_ids": prompt, "sampling_params": {
        "max_new_tokens": tokens, "temperature": 0, "ignore_eos": True}})


def answers_of(server):
    return [generate(server, prompt)["output_ids"] for prompt in PROMPTS]


FLAGS = os.environ.get("ESPALIER_WEIGHTS_FLAGS", "--device cpu --num-threads 2").split()


def start(*more):
    return Server("--model-path", MODEL, "--skip-tokenizer-init", "--max-total-tokens", "4000",
                  "--weight-version", "v0", *FLAGS, *more)


def test_one_update(root):
    other = os.path.join(root, "other")
    with start() as server:
        first = answers_of(server)
        assert generate(server, PROMPTS[0])["meta_info"]["weight_version"] == "v0"
        status, answer = update(server, other, weight_version="v1")
        assert status == 200 and answer["success"] and answer["cache_flushed"], answer
        second = answers_of(server)
        assert all(a != b for a, b in zip(first, second)), (first, second)
        again = generate(server, PROMPTS[0])
        assert again["meta_info"]["weight_version"] == "v1"
        assert json.loads(server.get("/get_weight_version")[2]) == {"weight_version": "v1"}
        assert json.loads(server.get("/server_info")[2])["weight_version"] == "v1"
        assert server.post("/update_weight_version", {"new_version": "v2"})["success"]
        assert generate(server, PROMPTS[0])["meta_info"]["weight_version"] == "v2"
        for folder, message in BAD.items():
            path = os.path.join(root, folder)
            status, answer = update(server, path, weight_version="bad")
            assert status == 400 and not answer["success"] and message in answer["message"], (path, answer)
            assert answers_of(server) == second, path
        for body, message in (({}, "model_path"), ({"model_path": other, "load_format": "dummy"}, "load_format"),
                              ({"model_path": other, "is_async": True}, "is_async")):
            status, _, text = server.request("POST", "/update_weights_from_disk", body)
            assert status == 400 and message in text, text
        assert update(server, MODEL)[0] == 200
        assert answers_of(server) == first
        assert generate(server, PROMPTS[0])["meta_info"]["weight_version"] == "v2"
    with start() as fresh:  # a start with the other weights gives what the update gave
        assert update(fresh, other)[0] == 200
        assert answers_of(fresh) == second


def test_ranks_and_replicas(root):
    other = os.path.join(root, "other")
    with start("--tp-size", "2") as server:
        first = answers_of(server)
        assert update(server, other)[0] == 200
        assert answers_of(server) != first
        assert update(server, MODEL)[0] == 200
        assert answers_of(server) == first
    with start("--dp-size", "2") as server:
        status, _, text = server.request("POST", "/update_weights_from_disk", {"model_path": other})
        assert status == 501 and "--dp-size" in text, text


def pause_within_a_request(server, mode, answers):
    """Pauses while a long request runs, whose answer is appended; returns its thread."""
    while True:
        count = len(answers)
        thread = threading.Thread(target=lambda: answers.append(generate(server, PROMPTS[1], LONG)["output_ids"]))
        thread.start()
        wait_until(lambda: len(answers) > count or server.metric("sglang:num_running_reqs") == 1, "a request runs")
        server.post("/pause_generation", {"mode": mode})
        if server.metric("sglang:num_running_reqs") + server.metric("sglang:num_queue_reqs") == 1:
            return thread
        server.post("/continue_generation", {})  # it ended before
        thread.join()
        del answers[count:]


LONG = 2000  # tokens


def test_paused(root):
    """A paused engine keeps its requests across an update; a partial rollout goes on."""
    other = os.path.join(root, "other")
    with start("--json-model-override-args", '{"max_position_embeddings": 4096}') as server:
        whole = generate(server, PROMPTS[1], LONG)["output_ids"]
        assert len(whole) == LONG
        answers = []
        for mode in ("retract", "in_place"):
            assert update(server, MODEL)[0] == 200
            thread = pause_within_a_request(server, mode, answers)
            status, answer = update(server, other, weight_version="new")
            assert status == 200, answer
            assert answer["num_paused_requests"] == (1 if mode == "in_place" else 0), answer
            assert answer["cache_flushed"] == (mode == "retract"), answer
            server.post("/continue_generation", {})
            thread.join()
            assert len(answers[-1]) == LONG
            assert update(server, MODEL, keep_pause=True)[0] == 200
            waiting = threading.Thread(target=lambda: answers.append(generate(server, PROMPTS[1], 100)["output_ids"]))
            waiting.start()
            wait_until(lambda: server.metric("sglang:num_queue_reqs") == 1, "a request waits for continue_generation")
            server.post("/continue_generation", {})
            waiting.join()
            assert answers[-1] == whole[:100]


class Load:
    """Threads that ask without pause and keep every answer with its version."""

    def __init__(self, server, num_threads):
        self.server, self.stopped = server, threading.Event()
        self.seen, self.failures, self.num_aborted, self.num_left = [], [], 0, 0
        self.threads = [threading.Thread(target=self.run, args=(SEED + i,)) for i in range(num_threads)]
        for thread in self.threads:
            thread.start()

    def run(self, seed):
        rng = random.Random(seed)
        while not self.stopped.is_set():
            which = rng.randrange(len(PROMPTS))
            try:
                if rng.random() < 0.05:
                    self.hang_up(which)
                    continue
                answer = generate(self.server, PROMPTS[which])
                meta = answer["meta_info"]
                if meta["finish_reason"]["type"] == "abort":
                    self.num_aborted += 1
                else:
                    self.seen.append((which, meta["weight_version"], answer["output_ids"]))
            except (AssertionError, OSError, http.client.HTTPException) as error:
                self.failures.append(error)

    def hang_up(self, which):
        """A client that asks and leaves without its answer."""
        connection = self.server.connect()
        connection.request("POST", "/generate", json.dumps({"input_ids": PROMPTS[which], "stream": True}),
                           {"Content-Type": "application/json"})
        connection.close()
        self.num_left += 1

    def check(self, wanted):
        """Answers of versions "0-..." and "1-..." are wanted[0] and wanted[1]; returns these versions."""
        versions = set()
        for prompt, version, ids in self.seen:
            if "-" not in version:
                continue  # before the first update
            assert ids == wanted[int(version[0])][prompt], (prompt, version)
            versions.add(version)
        return versions

    def stop(self):
        self.stopped.set()
        for thread in self.threads:
            thread.join()


def test_updates_under_load(root):
    print(f"ESPALIER_WEIGHTS_SEED={SEED}, {NUM_UPDATES} updates")
    rng = random.Random(SEED)
    good = [MODEL, os.path.join(root, "other")]
    bad = [path for path in map(lambda name: os.path.join(root, name), ("truncated", "empty", "missing", "shape"))]
    with start("--max-running-requests", "4") as server:
        wanted = []
        for path in good:
            assert update(server, path)[0] == 200
            wanted.append(answers_of(server))
        load = Load(server, 4)
        num_good = 0
        for i in range(NUM_UPDATES):
            if rng.random() < 0.3:
                assert update(server, rng.choice(bad), weight_version="bad")[0] == 400
                continue
            which = rng.randrange(2)
            status, answer = update(server, good[which], weight_version=f"{which}-{i}",
                                    abort_all_requests=rng.random() < 0.1)
            assert status == 200, answer
            num_good += 1
            num_seen = len(load.seen)
            wait_until(lambda: len(load.seen) > num_seen, "requests go on")
        load.stop()
        assert not load.failures, load.failures[0]
        versions = load.check(wanted)
        assert len(versions) > num_good // 2, (len(versions), num_good)
        print(f"{num_good} updates and {NUM_UPDATES - num_good} refused; {len(load.seen)} answers of {len(versions)} "
              f"versions, {load.num_aborted} aborted, {load.num_left} clients left")
        assert server.stop() == 0


def test_killed_while_updating(root):
    """A server that is killed within an update loads the checkpoint of its command line when it starts again, and has
    given no answer of two versions before."""
    good = [MODEL, os.path.join(root, "other")]
    rng = random.Random(SEED)
    wanted, num_answers = [], 0
    with start() as server:
        for path in good:
            assert update(server, path)[0] == 200
            wanted.append(answers_of(server))
    for _ in range(NUM_KILLS):
        with start() as server:
            assert answers_of(server) == wanted[0]
            load = Load(server, 2)
            for i in range(rng.randrange(1, 5)):
                assert update(server, good[i % 2], weight_version=f"{i % 2}-{i}")[0] == 200
            last = threading.Thread(target=lambda s=server: ignore_errors(
                lambda: update(s, good[1], weight_version="1-last")))
            last.start()
            threading.Event().wait(rng.random() * 0.02)  # so that kills fall anywhere in the update
            server.process.kill()
            last.join()
            load.stop()
            load.check(wanted)
            num_answers += len(load.seen)
    print(f"{NUM_KILLS} kills, {num_answers} answers before them")
    with start() as server:
        assert answers_of(server) == wanted[0]


def test_some_tensors(root):
    """Tensors by name over HTTP: all of those that differ make the other model."""
    other = os.path.join(root, "other")
    header, data = split(os.path.join(other, "model.safetensors"))
    base_header, base_data = split(os.path.join(MODEL, "model.safetensors"))
    tensors = {}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        begin, end = entry["data_offsets"]
        base_begin, base_end = base_header[name]["data_offsets"]
        if data[begin:end] != base_data[base_begin:base_end]:
            tensors[name] = (entry, data[begin:end])

    def file_of(names):
        out, body = {}, b""
        for name in names:
            entry, part = tensors[name]
            out[name] = {**entry, "data_offsets": [len(body), len(body) + len(part)]}
            body += part
        text = json.dumps(out).encode()
        return struct.pack("<Q", len(text)) + text + body

    def send(server, body, query=""):
        status, _, text = server.request("POST", "/update_weights_from_tensor" + query, body,
                                         {"Content-Type": "application/octet-stream"})
        return status, json.loads(text)

    names = sorted(tensors)
    half = len(names) // 2
    with start() as server:
        first = answers_of(server)
        assert update(server, other)[0] == 200
        second = answers_of(server)
        assert update(server, MODEL)[0] == 200
        status, answer = send(server, file_of(names[:half]), "?weight_version=half")
        assert status == 200 and answer["success"], answer
        name, (entry, part) = names[0], tensors[names[0]]
        values = server.post("/get_weights_by_name", {"name": name, "truncate_size": 5})
        as_float = struct.unpack("<5f", b"".join(b"\0\0" + part[2 * i:2 * i + 2] for i in range(5)))
        as_written = struct.unpack("<5f", struct.pack("<5f", *values))
        assert entry["dtype"] == "BF16" and as_written == as_float, (name, values, as_float)
        assert server.request("POST", "/get_weights_by_name", {"name": "nothing"})[0] in (400, 404)
        mixed = answers_of(server)
        assert mixed not in (first, second)
        assert generate(server, PROMPTS[0])["meta_info"]["weight_version"] == "half"
        for body, message in ((b"", "none"), (b"no file", "too few"), (file_of(names[half:])[:-5], "")):
            status, answer = send(server, body)
            assert status == 400 and message in json.dumps(answer), (status, answer)
            assert answers_of(server) == mixed
        unknown = file_of(names[:1]).replace(names[0].encode(), names[0][:-6].encode() + b"weighs")
        status, answer = send(server, unknown)
        assert status == 400 and "weighs" in json.dumps(answer), answer
        assert send(server, file_of(names), "?flush_cache=maybe")[0] == 400
        # In JSON, as base64, the rest comes.
        rest = server.post("/update_weights_from_tensor", {
            "safetensors": base64.b64encode(file_of(names[half:])).decode(), "weight_version": "whole"})
        assert rest["success"], rest
        assert answers_of(server) == second
        status, _, text = server.request("POST", "/update_weights_from_tensor",
                                         {"serialized_named_tensors": ["gASV"]})
        assert status == 400 and "pickle" in text, text
        assert update(server, MODEL)[0] == 200
        assert answers_of(server) == first
        # The same from Python, with what looks like an array of NumPy.
        client, url = python_client(), f"http://127.0.0.1:{server.port}"
        arrays = {name: Array(entry["shape"], part) for name, (entry, part) in tensors.items()}
        assert client.update_weights(url, arrays, weight_version="from Python")["success"]
        assert answers_of(server) == second
        assert generate(server, PROMPTS[0])["meta_info"]["weight_version"] == "from Python"
        try:
            client.update_weights(url, {"nothing": Array([1], b"\0\0")})
            raise SystemExit("a tensor that the model has not was taken")
        except ValueError as error:
            assert "nothing" in str(error), error
        if "cuda" not in FLAGS:
            tensor = {"name": "a", "dtype": "BF16", "shape": [1], "handle": "AAAA", "offset_bytes": 0}
            status, _, text = server.request("POST", "/update_weights_from_ipc", {"tensors": [tensor]})
            assert status == 400 and "--device cuda" in text, text
        for body, message in (({"tensors": []}, "tensors"), ({"tensors": [{}]}, "name"),
                              ({"zmq_handles": {"a": "b"}}, "pickle")):
            status, _, text = server.request("POST", "/update_weights_from_ipc", body)
            assert status == 400 and message in text, text


def resident_mib(server):
    with open(f"/proc/{server.process.pid}/status", encoding="utf-8") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("VmRSS:")) / 1024


def with_wide_layers(header, data):
    """75 MB of layers."""
    out, body = {}, bytearray()
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        begin, end = entry["data_offsets"]
        part, shape = data[begin:end], entry["shape"]
        if ".mlp." in name:
            shape = [WIDE_LAYER if extent == 96 else extent for extent in shape]
            part = b"\x80\x3c" * (shape[0] * shape[1])
        out[name] = {**entry, "shape": shape, "data_offsets": [len(body), len(body) + len(part)]}
        body += part
    return out, bytes(body)


WIDE_LAYER = 65536


def test_released_weights_leave_the_process(root):
    large = make_model(os.path.join(root, "large"), with_wide_layers, {"intermediate_size": WIDE_LAYER})
    with Server("--model-path", large, "--skip-tokenizer-init", "--max-total-tokens", "4000", *FLAGS) as server:
        first = answers_of(server)
        before = resident_mib(server)
        answer = server.post("/release_memory_occupation", {"tags": ["weights"]})
        released = resident_mib(server)
        print(f"{before:.0f} MiB, {released:.0f} MiB released: {answer}")
        assert before - released > 0.9 * answer["released_bytes"] / 2 ** 20 > 60, (before, released, answer)
        server.post("/resume_memory_occupation", {})
        assert answers_of(server) == first
        assert server.post("/release_memory_occupation", {})["released"]
        os.rename(large, large + "-gone")
        status, _, text = server.request("POST", "/resume_memory_occupation", {})
        assert status == 500 and "stays released" in text, (status, text)
        os.rename(large + "-gone", large)
        assert server.post("/resume_memory_occupation", {})["released"] == []
        assert answers_of(server) == first
        os.rename(large, large + "-gone")
        status, _, text = server.request("POST", "/release_memory_occupation", {})
        assert status == 500 and "large" in text, (status, text)
        assert answers_of(server) == first, "what cannot be read again is not released"


def test_released_memory(root):
    """Weights and cache go back to the system, requests are refused meanwhile, and all comes back as it was."""
    other = os.path.join(root, "other")

    def release(server, **body):
        status, _, text = server.request("POST", "/release_memory_occupation", body)
        return status, json.loads(text)

    def resume(server, **body):
        status, _, text = server.request("POST", "/resume_memory_occupation", body)
        return status, json.loads(text)

    with start() as server:
        first = answers_of(server)
        for tags in (["weights"], ["kv_cache", "cuda_graph"], None):
            status, answer = release(server, **({} if tags is None else {"tags": tags}))
            wanted = [tag for tag in (tags or ["kv_cache", "weights"]) if tag != "cuda_graph"]
            assert status == 200 and answer["released"] == wanted and answer["released_bytes"] > 0, answer
            assert server.metric("espalier:released_memory_bytes") == answer["released_bytes"]
            assert json.loads(server.get("/server_info")[2])["released_memory"] == wanted
            status, _, text = server.request("POST", "/generate", {"input_ids": PROMPTS[0]})
            assert status == 503 and "/resume_memory_occupation" in text, (status, text)
            if "weights" in wanted:
                assert update(server, other)[0] == 400
            status, answer = resume(server)
            assert status == 200 and answer["released"] == [], answer
            assert answers_of(server) == first
        # As a trainer does it: weights alone come back, are replaced, then the cache comes back.
        assert release(server)[0] == 200
        assert resume(server, tags=["weights"])[1]["released"] == ["kv_cache"]
        assert update(server, other, weight_version="trained")[0] == 200
        assert server.request("POST", "/generate", {"input_ids": PROMPTS[0]})[0] == 503
        assert resume(server, tags=["kv_cache"])[1]["released"] == []
        second = answers_of(server)
        assert all(a != b for a, b in zip(first, second))
        assert release(server)[0] == 200 and resume(server)[0] == 200
        assert answers_of(server) == second, "what comes back is what was there"
        for body, message in (({"tags": ["weight"]}, "weight"), ({"tags": "weights"}, "list"), ({"tags": [1]}, "tags")):
            for route in ("/release_memory_occupation", "/resume_memory_occupation"):
                status, _, text = server.request("POST", route, body)
                assert status == 400 and message in text, (status, text)
    with start("--tp-size", "2") as server:
        assert release(server)[0] == 200 and resume(server)[0] == 200
        assert answers_of(server) == first
    with start("--enable-hierarchical-cache", "--hicache-size", "0.001") as server:
        status, answer = release(server)
        assert status == 501 and "hierarchical" in json.dumps(answer), answer
        assert release(server, tags=["weights"])[0] == 200 and resume(server)[0] == 200
        assert answers_of(server) == first


def test_checker(root):
    """A snapshot, random weights, and an update that leaves one tensor out."""
    header, data = split(os.path.join(MODEL, "model.safetensors"))

    def check(server, action):
        status, _, text = server.request("POST", "/weights_checker", {"action": action})
        return status, json.loads(text)

    def send_all_but(server, left_out):
        out, body = {}, b""
        for name, entry in header.items():
            if name in ("__metadata__", left_out):
                continue
            begin, end = entry["data_offsets"]
            out[name] = {**entry, "data_offsets": [len(body), len(body) + end - begin]}
            body += data[begin:end]
        text = json.dumps(out).encode()
        status, _, _ = server.request("POST", "/update_weights_from_tensor", struct.pack("<Q", len(text)) + text + body,
                                      {"Content-Type": "application/octet-stream"})
        assert status == 200

    with start() as server:
        first = answers_of(server)
        status, answer = check(server, "compare")
        assert status == 409 and "snapshot" in answer["message"], answer
        status, answer = check(server, "checksum")
        assert status == 200 and len(answer["checksums"]) == len(header) - ("__metadata__" in header), answer
        name = "model.layers.1.mlp.up_proj.weight"
        begin, end = header[name]["data_offsets"]
        assert answer["checksums"][name] == hashlib.sha256(data[begin:end]).hexdigest()
        for action in ("snapshot", "compare"):
            assert check(server, action)[0] == 200
        assert check(server, "reset_tensors")[0] == 200
        assert all(a != b for a, b in zip(first, answers_of(server)))
        status, answer = check(server, "compare")
        assert status == 400 and not answer["success"] and "and others" in answer["message"], answer
        send_all_but(server, name)
        status, answer = check(server, "compare")
        assert status == 400 and answer["message"].endswith(f"1 tensors differ from the snapshot: {name}"), answer
        send_all_but(server, None)
        assert check(server, "compare") == (200, {"success": True, "message": "All tensors are equal."})
        assert answers_of(server) == first
        for body, message in (({}, "action"), ({"action": "reset"}, "reset_tensors")):
            status, _, text = server.request("POST", "/weights_checker", body)
            assert status == 400 and message in text, (status, text)


class Array:
    """As much of an array of NumPy as the client reads."""

    def __init__(self, shape, data):
        self.shape, self.data, self.dtype = shape, data, "bfloat16"

    def tobytes(self):
        return self.data


def python_client():
    """python/espalier/_weights.py, which needs no extension."""
    path = os.path.join(ROOT, "python", "espalier", "_weights.py")
    spec = importlib.util.spec_from_file_location("weights_client", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def ignore_errors(call):
    try:
        call()
    except (OSError, http.client.HTTPException):
        pass  # the server is gone


TESTS = [test_one_update, test_ranks_and_replicas, test_paused, test_some_tensors, test_released_memory,
         test_released_weights_leave_the_process, test_checker,
         test_updates_under_load, test_killed_while_updating]


def main():
    """All tests, or those that the arguments name: one_update updates_under_load."""
    with tempfile.TemporaryDirectory() as root:
        make_model(os.path.join(root, "other"), reverse_layers)
        bad_folders(root)
        for test in TESTS:
            if len(sys.argv) == 1 or test.__name__.removeprefix("test_") in sys.argv:
                test(root)


if __name__ == "__main__":
    main()
