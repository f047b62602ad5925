#!/usr/bin/env python3
"""Makes tests/golden/images: tiny random models that read pictures, saved by transformers, and what
transformers makes of pictures and of text.

    pip install torch==2.15.0 torchvision==0.29.2 transformers==5.23.0 safetensors numpy pillow==11.3.0
    python3 tools/goldens/make_image_goldens.py tests/golden/images [NAME ...]

Each folder NAME holds config.json, model.safetensors, preprocessor_config.json and reference.safetensors:
  size_I [2] int32             width and height of a drawn picture (make_media_goldens.drawn)
  rows_I [rows, width] f32     what the encoder and the projector make of it, eager attention; of Qwen3-VL the
                               parts of a row that the decoder's layers add stand behind its embedding
  prompt [n] int32, logits [n, vocab] f32    of a text without pictures
  seen_prompt [n] int32, seen_logits [n, vocab] f32    of a text with pictures 0 and 2, placeholders expanded
  seen_tokens [12] int32       that greedy generation continues it with
  counts [m, 3] int32          width, height and number of rows of pictures of many sizes
  pixels [m, 9] f32            of each of them quantiles of the processor's pixel values, tiles included
The last three are of models whose pictures have as many rows as their sizes demand. Weights are drawn wide, so that
no part can be left out unseen.
"""
import pathlib
import sys

import numpy
import torch
import transformers as T
from PIL import Image
from safetensors.torch import save_file
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil
from transformers.models.llava_next.image_processing_pil_llava_next import LlavaNextImageProcessorPil
from transformers.models.llava_onevision.image_processing_pil_llava_onevision import LlavaOnevisionImageProcessorPil
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil
from transformers.models.siglip.image_processing_pil_siglip import SiglipImageProcessorPil

from make_media_goldens import drawn

SIZES = [(40, 31), (28, 28), (17, 90), (300, 200)]
# Pinpoints are (height, width).
PINPOINTS = [[28, 56], [56, 28], [56, 56], [84, 28], [28, 84], [112, 112]]
TEXT = dict(vocab_size=99, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
            num_key_value_heads=2, max_position_embeddings=256)
VISION = dict(hidden_size=24, intermediate_size=40, num_hidden_layers=3, image_size=28, patch_size=7)


def models():
    clip = T.LlavaConfig(text_config=T.LlamaConfig(**TEXT), image_token_id=97, dtype="float32",
                         vision_config=T.CLIPVisionConfig(num_attention_heads=2, **VISION))
    yield "llava_clip", clip, CLIPImageProcessorPil(size={"shortest_edge": 28}, crop_size={"height": 28, "width": 28})
    siglip = T.LlavaConfig(text_config=T.Qwen2Config(**TEXT), image_token_id=97, dtype="float32", vision_feature_layer=-1,
                           vision_feature_select_strategy="full",
                           vision_config=T.SiglipVisionConfig(num_attention_heads=3, **VISION))
    yield "llava_siglip", siglip, SiglipImageProcessorPil(size={"height": 28, "width": 28}, resample=3)


    # Patches do not fill a tile.
    pinpoints = [[height // 28 * 30, width // 28 * 30] for height, width in PINPOINTS]
    tiled = dict(size={"height": 30, "width": 30}, image_grid_pinpoints=pinpoints)
    following = T.LlavaNextConfig(text_config=T.MistralConfig(**TEXT), image_token_index=97, dtype="float32",
                                  image_grid_pinpoints=PINPOINTS,
                                  vision_config=T.CLIPVisionConfig(num_attention_heads=2, **VISION))
    yield "llava_next", following, LlavaNextImageProcessorPil(
        image_grid_pinpoints=PINPOINTS, size={"shortest_edge": 28}, crop_size={"height": 28, "width": 28})
    onevision = T.LlavaOnevisionConfig(text_config=T.Qwen2Config(bos_token_id=1, eos_token_id=2, **TEXT), image_token_index=97, video_token_index=98,
                                       dtype="float32", image_grid_pinpoints=pinpoints, vision_aspect_ratio="anyres_max_3",
                                       vision_config=T.SiglipVisionConfig(num_attention_heads=3, vision_use_head=False,
                                                                          **dict(VISION, image_size=30)))
    yield "llava_onevision", onevision, LlavaOnevisionImageProcessorPil(**tiled)
    text = dict(TEXT, bos_token_id=1, eos_token_id=2, rope_parameters={"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [1, 1, 2]})
    shared = dict(image_token_id=97, video_token_id=98, vision_start_token_id=95, vision_end_token_id=96, dtype="float32")
    bounds = {"shortest_edge": 64 * 64, "longest_edge": 96 * 160}
    vision = dict(depth=3, num_heads=2, patch_size=8, spatial_merge_size=2, temporal_patch_size=2)
    yield "qwen2_vl", T.Qwen2VLConfig(
        text_config=T.Qwen2VLTextConfig(**text).to_dict(), **shared,
        vision_config=dict(vision, embed_dim=24, hidden_size=32, mlp_ratio=2)), Qwen2VLImageProcessorPil(
            size=bounds, patch_size=8, merge_size=2, temporal_patch_size=2)
    yield "qwen2_5_vl", T.Qwen2_5_VLConfig(
        text_config=T.Qwen2_5_VLTextConfig(**text).to_dict(), **shared,
        vision_config=dict(vision, hidden_size=24, out_hidden_size=32, intermediate_size=40, window_size=32,
                           fullatt_block_indexes=[1])), Qwen2VLImageProcessorPil(
                               size=bounds, patch_size=8, merge_size=2, temporal_patch_size=2)
    text = dict(TEXT, num_hidden_layers=3, head_dim=16, bos_token_id=1, eos_token_id=2, rope_parameters={
        "rope_type": "default", "rope_theta": 10000.0, "mrope_section": [4, 2, 2], "mrope_interleaved": True})
    yield "qwen3_vl", T.Qwen3VLConfig(
        text_config=T.Qwen3VLTextConfig(**text).to_dict(), **shared,
        vision_config=dict(vision, depth=4, hidden_size=24, out_hidden_size=32, intermediate_size=40,
                           num_position_embeddings=25, deepstack_visual_indexes=[1, 3])), Qwen2VLImageProcessorPil(
                               size=bounds, patch_size=8, merge_size=2, temporal_patch_size=2,
                               image_mean=[0.5] * 3, image_std=[0.5] * 3)


def widen(model):
    generator = torch.Generator().manual_seed(25)
    for name, parameter in model.named_parameters():
        noise = torch.randn(parameter.shape, generator=generator) * 0.2
        is_norm = parameter.dim() == 1 and name.endswith("weight")
        parameter.data = 1 + noise if is_norm else noise


CLASSES = {"llava": T.LlavaForConditionalGeneration, "llava_next": T.LlavaNextForConditionalGeneration,
           "llava_onevision": T.LlavaOnevisionForConditionalGeneration, "qwen2_vl": T.Qwen2VLForConditionalGeneration,
           "qwen2_5_vl": T.Qwen2_5_VLForConditionalGeneration, "qwen3_vl": T.Qwen3VLForConditionalGeneration}
KEYS = ("pixel_values", "image_sizes", "image_grid_thw")


def inputs_of(processor, size):
    made = processor(Image.fromarray(drawn(*size)), return_tensors="pt")
    return {key: torch.as_tensor(numpy.asarray(made[key])) for key in KEYS if key in made}


def rows_of(model, inputs):
    made = model.get_image_features(**inputs)
    parts = [made.pooler_output[0], *(part[0] for part in getattr(made, "deepstack_features", None) or [])]
    rows = torch.cat(parts, dim=-1)
    return rows.reshape(-1, rows.shape[-1]).float().contiguous()


def together(first, second):
    """Inputs of two pictures; tiles of the one that has fewer are padded."""
    joined = {}
    for key, value in first.items():
        other = second[key]
        if value.dim() == 5:
            count = max(value.shape[1], other.shape[1])
            value, other = (torch.nn.functional.pad(x, (0, 0) * 3 + (0, count - x.shape[1])) for x in (value, other))
        joined[key] = torch.cat([value, other])
    return joined


def counts_of(model, processor):
    sizes = [(1, 1), (1, 40), (40, 1), (2, 300), (300, 2), (57, 57), (56, 28), (84, 29)]
    state = numpy.random.default_rng(25)
    sizes += [tuple(int(n) for n in state.integers(1, 200, 2)) for _ in range(492)]
    counts, pixels = [], []
    for size in sizes:
        inputs = inputs_of(processor, size)
        values = inputs["pixel_values"].numpy()
        if values.ndim == 5:  # of tiles what patches fill
            side = values.shape[-1] // 7 * 7
            values = values[..., :side, :side]
        values = numpy.sort(values, axis=None)
        counts.append([*size, rows_of(model, inputs).shape[0]])
        pixels.append([values[i * (values.size - 1) // 8] for i in range(9)])
    return {"counts": torch.tensor(counts, dtype=torch.int32), "pixels": torch.tensor(numpy.array(pixels))}


def seen_logits(model, seen, inputs):
    more = {}
    if "image_grid_thw" in inputs:
        more["mm_token_type_ids"] = (seen == model.config.image_token_id).int()[None]
    return model(input_ids=seen[None], **inputs, **more).logits[0].float().contiguous()


def make(folder, config, processor):
    folder.mkdir(parents=True, exist_ok=True)
    model = CLASSES[config.model_type]._from_config(config, attn_implementation="eager").float().eval()
    widen(model)
    model.save_pretrained(folder)
    processor.save_pretrained(folder)
    reference = {}
    pictures = []
    with torch.no_grad():
        for i, (width, height) in enumerate(SIZES):
            pictures.append(inputs_of(processor, (width, height)))
            reference[f"size_{i}"] = torch.tensor([width, height], dtype=torch.int32)
            reference[f"rows_{i}"] = rows_of(model, pictures[-1])
        prompt = torch.from_numpy(numpy.random.default_rng(7).integers(3, 94, 12)).long()
        if config.model_type == "llava":
            prompt = torch.from_numpy(numpy.random.default_rng(7).integers(3, 96, 12)).long()
        reference["prompt"] = prompt.int()
        reference["logits"] = model(input_ids=prompt[None]).logits[0].float().contiguous()
        seen = prompt.tolist()
        spans = [[config.image_token_id] * reference[f"rows_{i}"].shape[0] for i in (0, 2)]
        seen = torch.tensor(seen[:4] + spans[0] + seen[4:7] + spans[1] + seen[7:])
        reference["seen_prompt"] = seen.int()
        both = together(pictures[0], pictures[2])
        reference["seen_logits"] = seen_logits(model, seen, both)
        if config.model_type != "llava":
            longer = seen
            for _ in range(12):
                longer = torch.cat([longer, seen_logits(model, longer, both)[-1:].argmax(-1)])
            reference["seen_tokens"] = longer[-12:].int()
            reference.update(counts_of(model, processor))
    save_file(reference, folder / "reference.safetensors")


def main():
    torch.manual_seed(0)
    for name, config, processor in models():
        if name in sys.argv[2:] or not sys.argv[2:]:
            make(pathlib.Path(sys.argv[1]) / name, config, processor)


if __name__ == "__main__":
    main()
