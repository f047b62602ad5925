#!/usr/bin/env python3
"""Makes tests/golden/images: tiny random models that read pictures, saved by transformers, and what
transformers makes of pictures and of text.

    pip install torch==2.15.0 torchvision==0.29.2 transformers==5.23.0 safetensors numpy pillow==11.3.0
    python3 tools/goldens/make_image_goldens.py tests/golden/images

Each folder NAME holds config.json, model.safetensors, preprocessor_config.json and reference.safetensors:
  size_I [2] int32             width and height of a drawn picture (make_media_goldens.drawn)
  rows_I [rows, width] f32     what the encoder and the projector make of it, eager attention
  prompt [n] int32, logits [n, vocab] f32    of a text without pictures
  seen_prompt [n] int32, seen_logits [n, vocab] f32    of a text with pictures 0 and 2, placeholders expanded
Weights are drawn wide, so that no part can be left out unseen.
"""
import pathlib
import sys

import numpy
import torch
import transformers as T
from PIL import Image
from safetensors.torch import save_file
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil
from transformers.models.siglip.image_processing_pil_siglip import SiglipImageProcessorPil

from make_media_goldens import drawn

SIZES = [(40, 31), (28, 28), (17, 90), (300, 200)]
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


def widen(model):
    generator = torch.Generator().manual_seed(25)
    for name, parameter in model.named_parameters():
        noise = torch.randn(parameter.shape, generator=generator) * 0.2
        is_norm = parameter.dim() == 1 and name.endswith("weight")
        parameter.data = 1 + noise if is_norm else noise


def make(folder, config, processor):
    folder.mkdir(parents=True, exist_ok=True)
    model = T.LlavaForConditionalGeneration._from_config(config, attn_implementation="eager").float().eval()
    widen(model)
    model.save_pretrained(folder)
    processor.save_pretrained(folder)
    reference = {}
    pictures = []
    with torch.no_grad():
        for i, (width, height) in enumerate(SIZES):
            pixels = processor(Image.fromarray(drawn(width, height)), return_tensors="pt")["pixel_values"]
            pictures.append(pixels.float())
            rows = model.get_image_features(pixels.float()).pooler_output[0]
            reference[f"size_{i}"] = torch.tensor([width, height], dtype=torch.int32)
            reference[f"rows_{i}"] = rows.float().contiguous()
        prompt = torch.from_numpy(numpy.random.default_rng(7).integers(3, 96, 12)).long()
        reference["prompt"] = prompt.int()
        reference["logits"] = model(input_ids=prompt[None]).logits[0].float().contiguous()
        seen = prompt.tolist()
        span = [config.image_token_id] * reference["rows_0"].shape[0]
        seen = torch.tensor(seen[:4] + span + seen[4:7] + span + seen[7:])
        reference["seen_prompt"] = seen.int()
        both = torch.cat([pictures[0], pictures[2]])
        reference["seen_logits"] = model(input_ids=seen[None], pixel_values=both).logits[0].float().contiguous()
    save_file(reference, folder / "reference.safetensors")


def main():
    torch.manual_seed(0)
    for name, config, processor in models():
        make(pathlib.Path(sys.argv[1]) / name, config, processor)


if __name__ == "__main__":
    main()
