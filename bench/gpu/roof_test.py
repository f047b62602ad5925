#!/usr/bin/env python3
"""The roof of a shape that can be worked out by hand, what must hold for any, and the profiler's tables."""
import contextlib
import io
import os
import sys
import tempfile
import time
import unittest
from unittest import mock

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import counters  # noqa: E402
import roof  # noqa: E402
import roofline  # noqa: E402

HERE = os.path.dirname(os.path.abspath(__file__))
TINY = {"num_hidden_layers": 2, "hidden_size": 8, "intermediate_size": 16, "num_attention_heads": 2,
        "num_key_value_heads": 1, "head_dim": 4, "vocab_size": 32}


def device(read_rate=1e3, matrix=1e6, attention=1e5):
    return roof.Device(read_rate, lambda name, rows: matrix, attention)


class RoofTest(unittest.TestCase):
    def test_the_hosts_work_stands_under_the_same_roof(self):
        with tempfile.TemporaryDirectory() as folder:
            radix = os.path.join(folder, "radix.json")
            with open(radix, "w", encoding="utf-8") as file:
                file.write('[{"nodes": 10, "page_size": 1, "match_ns": 576}]')
            structured = os.path.join(folder, "structured.json")
            with open(structured, "w", encoding="utf-8") as file:
                file.write('{"masks_256": {"us_each": 4}}')
            points = roofline.host_points(radix, structured, 128000)
        self.assertEqual([roofline.place(point)[0] for point in points], [roofline.LEFT] * 2)
        self.assertAlmostEqual(points[0][3] / points[0][1] / 1e9, 1)
        self.assertAlmostEqual(points[1][2] / points[1][1] / 4e9, 1)
        svg = roofline.draw(points, 4e12, 8e14, "a device")
        heights = [float(part.split('"')[0]) for part in svg.split('cy="')[1:3]]
        self.assertTrue(all(height < roofline.HEIGHT - roofline.MARGIN for height in heights), heights)

    def test_the_8b_shape_streams_what_its_sizes_say(self):
        shape = roof.Shape.read(os.path.join(HERE, "..", "configs", "llama_8b"))
        self.assertEqual(shape.kv_bytes_per_token(), 128 * 1024)
        parameters = 8030261248  # of Llama 3.1 8B
        norms = (2 * 32 + 1) * 4096
        self.assertEqual(shape.streamed_bytes(), 2 * (parameters - norms - 128256 * 4096))

    def test_a_tiny_shape_by_hand(self):
        shape = roof.Shape(TINY)
        # qkv 16 x 8, o 8 x 8, gate and up 32 x 8, down 8 x 16, twice; head 32 x 8.
        self.assertEqual(shape.streamed_bytes(), 2 * (2 * (128 + 64 + 256 + 128) + 256))
        self.assertEqual(shape.kv_bytes_per_token(), 2 * 2 * 4 * 2)
        # Bound by bytes: 2,816 of weights and 10 tokens of 32 at 1,000 a second.
        self.assertAlmostEqual(roof.decode_seconds(shape, device(), 1, 10), 2.816 + 0.32)
        # Bound by operations: 2 a weight and row.
        fast_memory = device(read_rate=1e12)
        self.assertAlmostEqual(roof.decode_seconds(shape, fast_memory, 3, 0), 3 * 2816 / 1e6)
        # 4 tokens see 10 pairs; logits of one row.
        operations = 2 * 4 * 1152 + 2 * 256
        pairs = 4 * 10 * 8 * 2
        self.assertAlmostEqual(roof.prefill_seconds(shape, fast_memory, 4),
                               operations / 1e6 + pairs / 1e5)

    def test_families_count_what_is_chosen(self):
        dense = roof.FamilyShape(dict(TINY))
        shape = roof.Shape(TINY)
        self.assertAlmostEqual(dense.decode_seconds(device(), 1, 10),
                               roof.decode_seconds(shape, device(), 1, 10))
        self.assertAlmostEqual(dense.prefill_seconds(device(read_rate=1e12), 4),
                               roof.prefill_seconds(shape, device(read_rate=1e12), 4))
        experts = roof.FamilyShape(dict(TINY, num_experts=4, num_experts_per_tok=2,
                                        moe_intermediate_size=16))
        # One row reads two of four experts, and the router; many rows read all.
        self.assertAlmostEqual(experts.decode_seconds(device(), 1, 0),
                               2 * (2 * (128 + 64 + 32 + 2 * 384) + 256) / 1e3)
        self.assertAlmostEqual(experts.experts_read(1), 2)
        self.assertAlmostEqual(experts.experts_read(1000), 4)
        latent = roof.FamilyShape(dict(TINY, kv_lora_rank=4, qk_nope_head_dim=3, qk_rope_head_dim=2,
                                       v_head_dim=5))
        # q 10 x 8, latents 6 x 8, keys and values 16 x 4, o 8 x 10; gate and up, down; head.
        self.assertAlmostEqual(latent.decode_seconds(device(), 1, 7),
                               2 * (2 * (80 + 48 + 64 + 80 + 384) + 256) / 1e3 + 7 * 2 * 2 * 6 / 1e3)
        self.assertEqual(latent.pair_operations, 2 * 2 * 2 * (3 + 2 + 5))
        # Queries through a rank of 3: 3 x 8 and 10 x 3 in place of 10 x 8.
        ranked = roof.FamilyShape(dict(TINY, kv_lora_rank=4, q_lora_rank=3, qk_nope_head_dim=3,
                                       qk_rope_head_dim=2, v_head_dim=5))
        self.assertAlmostEqual(latent.decode_seconds(device(), 1, 7) - ranked.decode_seconds(device(), 1, 7),
                               2 * 2 * (80 - 24 - 30) / 1e3)

    def test_experts_in_four_bits_are_fewer_bytes(self):
        config = dict(TINY, num_local_experts=4, num_experts_per_tok=2)
        wide = roof.FamilyShape(config)
        coded = roof.FamilyShape(dict(config, quantization_config={"quant_method": "mxfp4"}))
        # Two layers' two experts of 384 weights.
        self.assertAlmostEqual(wide.decode_seconds(device(), 1, 0) - coded.decode_seconds(device(), 1, 0),
                               2 * 2 * 384 * (2 - 4.25 / 8) / 1e3)

    def test_a_window_bounds_what_its_layers_read(self):
        full = roof.FamilyShape(TINY)
        half = roof.FamilyShape(dict(TINY, sliding_window=3,
                                     layer_types=["sliding_attention", "full_attention"]))
        # Two entries of 10 tokens: one of two layers reads 3 of each. Keys and values of a token: 16 bytes a layer.
        self.assertAlmostEqual(full.decode_seconds(device(), 2, 20) - half.decode_seconds(device(), 2, 20),
                               16 * 2 * 7 / 1e3)
        # Of 5 tokens the window of 3 leaves out 1 + 2 pairs in one layer; a pair is 2 x 2 x 8 operations.
        fast_memory = device(read_rate=1e12)
        self.assertAlmostEqual(full.prefill_seconds(fast_memory, 5) - half.prefill_seconds(fast_memory, 5),
                               3 * 32 / 1e5)

    def test_offline_is_its_parts(self):
        shape, d = roof.Shape(TINY), device(read_rate=1e9)
        # One request: a prefill of 8192 // 5 requests' worth is counted by its share.
        one = roof.offline_seconds(shape, d, 1, 1, 5, 3)
        chunk = 8192 // 5
        expected = roof.products_seconds(shape, d, chunk * 5, chunk) / chunk
        expected += 4 * 15 * 8 * 2 / 1e5
        expected += sum(roof.decode_seconds(shape, d, 1, 5 + i) for i in range(2))
        self.assertAlmostEqual(one, expected)
        self.assertAlmostEqual(roof.offline_seconds(shape, d, 4, 1, 5, 3), 4 * expected)

    def test_few_rows_are_not_bound_by_a_slow_library(self):
        rate = roof.matrix_rate({"o": {1: 1.0, 512: 500.0, 2048: 700.0, 8192: 650.0}})
        self.assertEqual([rate("o", rows) for rows in (1, 512, 600, 2048, 8192)],
                         [500, 500, 500, 700, 700])
        self.assertEqual(roof.matrix_rate({"head": {1: 3.0}})("head", 7), 3)

    def test_sharing_never_costs(self):
        shape, d = roof.Shape(TINY), device()
        alone = roof.offline_seconds(shape, d, 32, 32, 100, 10)
        shared = roof.offline_seconds(shape, d, 32, 32, 100, 10, groups=2, shared_tokens=90)
        self.assertLess(shared, alone)

    def test_marks_lie_where_bytes_and_operations_put_them(self):
        self.assertEqual(roofline.place(("product", 2.0, 100.0, 400.0)), (4.0, 200.0))
        self.assertEqual(roofline.place(("sample", 2.0, 100.0, 0.0)),
                         (roofline.LEFT, 50 * roofline.LEFT))
        shape = roof.Shape(TINY)
        run = {"raw": {"decode": [{"name": "decode at 5", "entries": 3, "context_tokens": 15,
                                   "step_seconds": 0.5}]}}
        (_, seconds, moved, done), = roofline.step_points(run, shape)
        self.assertEqual(seconds, 0.5)
        self.assertEqual(moved, shape.streamed_bytes() + 15 * shape.kv_bytes_per_token())
        self.assertEqual(done, 3 * shape.streamed_bytes() + 4 * 15 * 2 * 4 * 2)
        row = run["raw"]["decode"][0]
        row["lanes"] = row.pop("entries")  # as older results have it
        self.assertEqual(roofline.step_points(run, shape)[0][3], done)
        svg = roofline.draw([("decode at 5", 0.5, moved, done)], 1e3, 1e6, "a <device>")
        self.assertIn("decode at 5", svg)
        self.assertIn("a &lt;device&gt;", svg)


class CountersTest(unittest.TestCase):
    HEADER = '"ID","Kernel Name","Context",' + ",".join(f'"{m}"' for m in sorted(counters.METRICS.values()))
    # In the order of the sorted names: memory, time, L2, tensor.
    UNITS = '"","","","%","us","%","%"'

    def test_kernels_are_summed_by_name_and_weighted_by_time(self):
        kernels = counters.parse("\n".join((
            "==PROF== Connected to process 1", self.HEADER, self.UNITS,
            '"0","void espalier::kernels::<unnamed>::norm<float, 4>(Arguments)","1","50.0","10.0","20.0","0.0"',
            '"1","nvjet_tst_64x8","1","90.0","1,000.0","5.0","40.0"',
            '"2","void espalier::norm<bf16>(int)","1","80.0","30.0","n/a","0.0"')))
        self.assertEqual([k["name"] for k in kernels], ["norm", "nvjet_tst_64x8"])
        norm, product = kernels
        self.assertEqual(norm["launches"], 2)
        self.assertAlmostEqual(norm["seconds"], 40e-6)
        self.assertAlmostEqual(norm["memory"], (50 * 10 + 80 * 30) / 40)
        self.assertAlmostEqual(norm["l2_hits"], 20 * 10 / 40)
        self.assertAlmostEqual(product["seconds"], 1e-3)
        self.assertAlmostEqual(product["tensor"], 40)

    def test_no_table_is_told(self):
        with self.assertRaisesRegex(ValueError, "ERR_NVGPUCTRPERM"):
            counters.parse("==ERROR== ERR_NVGPUCTRPERM")

    def test_what_is_profiled_does_not_outlive_a_profiler_that_takes_too_long(self):
        with tempfile.TemporaryDirectory() as folder:
            note = os.path.join(folder, "pid")
            profiler = os.path.join(folder, "ncu")
            with open(profiler, "w", encoding="utf-8") as out:
                out.write(f"#!/bin/sh\nsleep 60 &\necho $! > {note}\nwait\n")
            os.chmod(profiler, 0o755)
            path = folder + os.pathsep + os.environ["PATH"]
            with mock.patch.dict(os.environ, PATH=path), contextlib.redirect_stdout(io.StringIO()) as said:
                self.assertIsNone(counters.measure(["true"], "decode", 1, seconds_max=0.5))
            self.assertIn("more than 0.5 s", said.getvalue())
            with open(note, encoding="utf-8") as f:
                child = int(f.read())
            for _ in range(100):  # it is another's child: gone, or not yet buried
                try:
                    with open(f"/proc/{child}/stat", encoding="utf-8") as f:
                        if f.read().rsplit(")", 1)[1].split()[0] == "Z":
                            break
                except FileNotFoundError:
                    break
                time.sleep(0.05)
            else:
                self.fail("it still runs")


if __name__ == "__main__":
    unittest.main()
