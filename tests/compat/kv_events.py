#!/usr/bin/env python3
"""Events of the prefix cache over ZeroMQ, read with pyzmq and msgspec by the classes that vLLM and SGLang publish:
arrays tagged by their names. Batches come in order, a replay has those that were missed, and what they say is
what GET /kv_events says."""
import json
import pathlib
import sys
import time
from typing import Optional, Union

import msgspec
import zmq

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "e2e"))
import harness  # noqa: E402


class Event(msgspec.Struct, array_like=True, omit_defaults=True, gc=False, tag=True):
    pass


class BlockStored(Event):
    block_hashes: list[Union[bytes, int]]
    parent_block_hash: Optional[Union[bytes, int]]
    token_ids: list[int]
    block_size: int
    lora_id: Optional[int]
    medium: Optional[str] = None
    lora_name: Optional[str] = None
    extra_keys: Optional[list[Optional[tuple]]] = None


class BlockRemoved(Event):
    block_hashes: list[Union[bytes, int]]
    medium: Optional[str] = None


class AllBlocksCleared(Event):
    pass


class Batch(msgspec.Struct, array_like=True, omit_defaults=True, gc=False):
    ts: float
    events: list[Union[BlockStored, BlockRemoved, AllBlocksCleared]]
    data_parallel_rank: Optional[int] = None


END = (-1).to_bytes(8, "big", signed=True)
DECODER = msgspec.msgpack.Decoder(Batch)


def replay(context, endpoint, start):
    """All batches from a number on: one question, many answers."""
    with context.socket(zmq.DEALER) as asker:
        asker.setsockopt(zmq.RCVTIMEO, int(harness.PATIENCE_S * 1000))
        asker.connect(endpoint)
        asker.send_multipart([b"", start.to_bytes(8, "big")])
        batches = {}
        while True:
            empty, number, payload = asker.recv_multipart()
            assert empty == b""
            if number == END:
                return batches
            batches[int.from_bytes(number, "big")] = DECODER.decode(payload)


def main():
    context = zmq.Context.instance()
    setting = {"publisher": "zmq", "endpoint": "tcp://127.0.0.1:*", "replay_endpoint": "tcp://127.0.0.1:*",
               "topic": "kv@one@model", "buffer_steps": 1000}
    with harness.Server("--page-size", "16", "--max-total-tokens", "2048", "--kv-events-config", json.dumps(setting)) as server:
        info = json.loads(json.loads(server.get("/server_info")[2])["kv_events_config"])
        subscriber = context.socket(zmq.SUB)
        subscriber.setsockopt_string(zmq.SUBSCRIBE, "kv@")
        subscriber.setsockopt(zmq.RCVTIMEO, int(harness.PATIENCE_S * 1000))
        subscriber.connect(info["endpoint"])
        time.sleep(0.5)  # a subscription has no answer; what comes before it is replayed below
        ids = list(range(300, 340))
        server.post("/generate", {"input_ids": ids, "sampling_params": {"max_new_tokens": 1}, "extra_key": "salt"})
        for i in range(4):  # more than the cache holds: the first ones go
            server.post("/generate", {"input_ids": [400 + i] * 700, "sampling_params": {"max_new_tokens": 1}})
        assert server.request("POST", "/flush_cache")[0] == 200
        live, events = {}, []
        while not events or not isinstance(events[-1], AllBlocksCleared):
            topic, number, payload = subscriber.recv_multipart()
            assert topic == b"kv@one@model"
            batch = DECODER.decode(payload)
            live[int.from_bytes(number, "big")] = batch
            assert batch.data_parallel_rank == 0 and abs(batch.ts - time.time()) < 60
            events += batch.events
        assert list(live) == list(range(min(live), max(live) + 1)), "numbers follow each other"
        stored = [e for e in events if isinstance(e, BlockStored)]
        first = stored[0]
        assert first.token_ids == ids[:32] and first.block_size == 16 and first.parent_block_hash is None, first
        assert first.extra_keys == [("salt",), None] and first.medium == "GPU" and len(first.block_hashes) == 2
        removed = [h for e in events if isinstance(e, BlockRemoved) for h in e.block_hashes]
        known = {h for e in stored for h in e.block_hashes}
        assert removed and set(removed) <= known, "what is removed was stored"
        parents = {e.parent_block_hash for e in stored} - {None}
        assert parents <= known
        # The same as by HTTP, where a hash is text.
        over_http = json.loads(server.get("/kv_events")[2])["events"]
        assert [[f"{h:016x}" for h in getattr(e, "block_hashes", [])] for e in events] == \
            [e.get("block_hashes", []) for e in over_http]
        whole = replay(context, info["replay_endpoint"], 0)
        assert min(whole) == 0 and all(whole[n] == batch for n, batch in live.items())
        tail = replay(context, info["replay_endpoint"], max(live))
        assert list(tail) == [max(live)]
        subscriber.close()
        assert server.stop() == 0
    print(f"{len(events)} events in {len(live)} batches; {len(known)} blocks stored, {len(removed)} removed")


if __name__ == "__main__":
    main()
