#!/usr/bin/env python3
"""Makes tests/golden/images: tiny random models that read pictures, saved by transformers, and what
transformers makes of pictures and of text.

    pip install torch==2.15.0 torchvision==0.29.2 transformers==5.24.0 safetensors numpy pillow==11.3.0
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
  line_rows [m] int32          of pictures whose rows stand line by line (Pixtral): rows of a line
  video_size [2] int32, video_frames [1] int32, video_rate [1] f32    width, height and number of drawn frames
  (drawn_frame), of which so many are a second; video_rows [rows, width] f32, video_prompt, video_logits as above of a
  text with picture 0 and the video; of models that read videos
Of Mllama rows_I are the keys and values of the layers of cross attention, [tiles * rows of a tile, layers * (k, v)], of the
picture's own tiles. Texts in front of a picture see none, as Meta's reference and vLLM have it; transformers lets them see
all pictures of the prompt, so seen_logits are those of a model whose attention is corrected. first_prompt and first_logits
have a picture in front of all text, two that follow each other behind it (0, 2 and 1), and are transformers' own.
The last three of pictures are of models whose pictures have as many rows as their sizes demand. Weights are drawn wide, so that
no part can be left out unseen.
"""
import json
import pathlib
import sys

import numpy
import torch
import transformers as T
from PIL import Image
from safetensors.torch import load_file, save_file
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil
from transformers.models.gemma3.image_processing_pil_gemma3 import Gemma3ImageProcessorPil
from transformers.models.got_ocr2.image_processing_pil_got_ocr2 import GotOcr2ImageProcessorPil
from transformers.models.llava_next.image_processing_pil_llava_next import LlavaNextImageProcessorPil
from transformers.models.llava_onevision.image_processing_pil_llava_onevision import LlavaOnevisionImageProcessorPil
from transformers.models.mllama.image_processing_pil_mllama import MllamaImageProcessorPil
from transformers.models.mllama.processing_mllama import (convert_sparse_cross_attention_mask_to_dense,
                                                           get_cross_attention_token_mask)
from transformers.models.pixtral.image_processing_pil_pixtral import PixtralImageProcessorPil
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil
from transformers.models.qwen3_vl.video_processing_qwen3_vl import smart_resize as all_frames_size
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
    moving = T.LlavaNextVideoConfig(text_config=T.LlamaConfig(**TEXT), image_token_index=97, video_token_index=98, dtype="float32",
                                    image_grid_pinpoints=PINPOINTS,
                                    vision_config=T.CLIPVisionConfig(num_attention_heads=2, **VISION))
    yield "llava_next_video", moving, LlavaNextImageProcessorPil(
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
    yield from line_models()
    yield "mllama", T.MllamaConfig(
        text_config=dict(vocab_size=97, hidden_size=32, intermediate_size=48, num_hidden_layers=5, num_attention_heads=4,
                         num_key_value_heads=2, cross_attention_layers=[1, 3], max_position_embeddings=256, pad_token_id=0,
                         bos_token_id=1, eos_token_id=2),
        vision_config=dict(hidden_size=24, attention_heads=2, num_hidden_layers=3, num_global_layers=2, intermediate_size=40,
                           image_size=28, patch_size=7, vision_output_dim=72, intermediate_layers_indices=[0, 2],
                           supported_aspect_ratios=[[1, 1], [1, 2], [1, 3], [1, 4], [2, 1], [2, 2], [3, 1], [4, 1]]),
        image_token_index=97, dtype="float32"), MllamaImageProcessorPil(size={"height": 28, "width": 28}, max_image_tiles=4)
    yield "gemma3", T.Gemma3Config(
        text_config=T.Gemma3TextConfig(**dict(TEXT, num_hidden_layers=3, head_dim=16, query_pre_attn_scalar=16,
                                              sliding_window=20, layer_types=["sliding_attention", "full_attention",
                                                                              "sliding_attention"])),
        image_token_index=97, boi_token_index=95, eoi_token_index=96, mm_tokens_per_image=16, dtype="float32",
        vision_config=T.SiglipVisionConfig(num_attention_heads=3, vision_use_head=False, **dict(VISION, image_size=56))
        ), Gemma3ImageProcessorPil(size={"height": 56, "width": 56}, resample=2)
    vision = dict(hidden_size=24, intermediate_size=40, num_hidden_layers=3, num_attention_heads=2, image_size=[32, 32],
                  patch_size=[8, 8])
    for name, more in (("internvl", dict(attention_bias=True)),
                       ("internvl_norms", dict(use_qk_norm=True, norm_type="rms_norm", use_mean_pooling=False))):
        yield name, T.InternVLConfig(
            text_config=T.Qwen2Config(bos_token_id=1, eos_token_id=2, **TEXT), image_token_id=97, dtype="float32",
            tie_word_embeddings=False, vision_config=T.InternVLVisionConfig(**vision, **more)), GotOcr2ImageProcessorPil(
                size={"height": 32, "width": 32}, crop_to_patches=True, max_patches=6)


def line_models():
    """Pixtral's encoder in its two forms. Processors get the pixels of a row of a picture, as PixtralProcessor does."""
    vision = dict(hidden_size=24, intermediate_size=40, num_hidden_layers=3, num_attention_heads=2, patch_size=8,
                  hidden_act="silu", image_size=112)
    yield "pixtral", T.LlavaConfig(
        text_config=T.MistralConfig(**TEXT), image_token_index=97, vision_feature_layer=-1, dtype="float32",
        vision_feature_select_strategy="full", vision_config=T.PixtralVisionConfig(**vision)), PixtralImageProcessorPil(
            size={"longest_edge": 48}, patch_size={"height": 8, "width": 8})
    yield "mistral3", T.Mistral3Config(
        text_config=T.MistralConfig(**TEXT), image_token_index=97, dtype="float32", spatial_merge_size=2,
        tie_word_embeddings=False, vision_config=T.PixtralVisionConfig(**vision)), PixtralImageProcessorPil(
            size={"longest_edge": 90}, patch_size={"height": 16, "width": 16})


def widen(model):
    generator = torch.Generator().manual_seed(25)
    for name, parameter in model.named_parameters():
        noise = torch.randn(parameter.shape, generator=generator) * 0.2
        is_norm = parameter.dim() == 1 and name.endswith("weight")
        parameter.data = 1 + noise if is_norm else noise


CLASSES = {"llava": T.LlavaForConditionalGeneration, "llava_next": T.LlavaNextForConditionalGeneration,
           "llava_next_video": T.LlavaNextVideoForConditionalGeneration,
           "llava_onevision": T.LlavaOnevisionForConditionalGeneration, "qwen2_vl": T.Qwen2VLForConditionalGeneration,
           "qwen2_5_vl": T.Qwen2_5_VLForConditionalGeneration, "qwen3_vl": T.Qwen3VLForConditionalGeneration,
           "gemma3": T.Gemma3ForConditionalGeneration, "mistral3": T.Mistral3ForConditionalGeneration,
           "internvl": T.InternVLForConditionalGeneration, "mllama": T.MllamaForConditionalGeneration}
# Frames of the video, drawn at WIDTH x HEIGHT; a second has RATE of them.
VIDEO_SIZE, VIDEO_FRAMES, VIDEO_RATE, VIDEO_TOKEN = (50, 70), 5, 3.6, 98
# What ends a line, and a picture, of those that stand line by line.
LINE_END, PICTURE_END = 12, 13
KEYS = ("pixel_values", "image_sizes", "image_grid_thw", "aspect_ratio_ids", "aspect_ratio_mask")


def inputs_of(processor, size):
    made = processor(Image.fromarray(drawn(*size)), return_tensors="pt")
    return {key: torch.as_tensor(numpy.asarray(made[key])) for key in KEYS if key in made}


def rows_of(model, inputs):
    if model.config.model_type == "mllama":
        return cross_rows(model, inputs)
    made = model.get_image_features(**inputs)
    if "image_sizes" in inputs and is_line_model(model) or model.config.model_type == "internvl":
        rows = torch.cat([*made.pooler_output])
        return rows.reshape(-1, rows.shape[-1]).float().contiguous()
    parts = [made.pooler_output[0], *(part[0] for part in getattr(made, "deepstack_features", None) or [])]
    rows = torch.cat(parts, dim=-1)
    return rows.reshape(-1, rows.shape[-1]).float().contiguous()


def is_line_model(model):
    return getattr(model.config.vision_config, "model_type", "") == "pixtral"


def cross_rows(model, inputs):
    """Keys and values of the layers of cross attention, of the picture's own tiles."""
    inner = model.model
    states = inner.multi_modal_projector(inner.vision_model(**inputs).last_hidden_state)[0, 0]
    states = states[inputs["aspect_ratio_mask"][0, 0].bool()].flatten(0, 1)
    parts = []
    for layer in (inner.language_model.layers[i].cross_attn for i in model.config.text_config.cross_attention_layers):
        keys = layer.k_norm(layer.k_proj(states).view(len(states), -1, layer.head_dim)).flatten(1)
        parts += [keys, layer.v_proj(states)]
    return torch.cat(parts, dim=-1).float().contiguous()


def cross_inputs(model, seen, pictures):
    """Inputs of several pictures, and the tiles that each token sees."""
    joined = {key: torch.cat([picture[key] for picture in pictures], dim=1) for key in pictures[0]}
    tiles = [int(picture["aspect_ratio_mask"].sum()) for picture in pictures]
    mask = get_cross_attention_token_mask(seen.tolist(), model.config.image_token_id)
    joined["cross_attention_mask"] = torch.from_numpy(
        convert_sparse_cross_attention_mask_to_dense([mask], [tiles], 4, len(seen)))
    return joined


def cross_logits(model, seen, pictures, corrected=True):
    inputs = cross_inputs(model, seen, pictures)
    sees = inputs["cross_attention_mask"].flatten(2).any(-1)[..., None].float()
    hooks = [module.register_forward_hook(lambda _, __, made: (made[0] * sees, made[1]))
             for name, module in model.named_modules() if corrected and name.endswith("cross_attn")]
    logits = model(input_ids=seen[None], use_cache=False, **inputs).logits[0].float().contiguous()
    for hook in hooks:
        hook.remove()
    return logits


def add_cross_prompts(model, pictures, reference, text):
    token = model.config.image_token_id
    seen = torch.tensor(text[:4] + [token] + text[4:7] + [token] + text[7:])
    chosen = [pictures[0], pictures[2]]
    reference["seen_prompt"], reference["seen_logits"] = seen.int(), cross_logits(model, seen, chosen)
    longer = seen
    for _ in range(12):
        longer = torch.cat([longer, cross_logits(model, longer, chosen)[-1:].argmax(-1)])
    reference["seen_tokens"] = longer[-12:].int()
    first = torch.tensor([token] + text[:5] + [token, token] + text[5:])
    reference["first_prompt"] = first.int()
    reference["first_logits"] = cross_logits(model, first, [pictures[0], pictures[2], pictures[1]], corrected=False)


def line_rows(model, inputs):
    multiple = model.config.vision_config.patch_size * getattr(model.config, "spatial_merge_size", 1)
    return int(inputs["image_sizes"][0][1]) // multiple


def together(first, second):
    """Inputs of two pictures; tiles of the one that has fewer are padded."""
    joined = {}
    for key, value in first.items():
        other = second[key]
        if value.dim() == 4 and key == "pixel_values" and value.shape[1:] != other.shape[1:]:
            sides = [max(a, b) for a, b in zip(value.shape[2:], other.shape[2:])]
            value, other = (torch.nn.functional.pad(x, (0, sides[1] - x.shape[3], 0, sides[0] - x.shape[2]))
                            for x in (value, other))
        if value.dim() == 5:
            count = max(value.shape[1], other.shape[1])
            value, other = (torch.nn.functional.pad(x, (0, 0) * 3 + (0, count - x.shape[1])) for x in (value, other))
        joined[key] = torch.cat([value, other])
    return joined


def counts_of(model, processor):
    sizes = [(1, 1), (1, 40), (40, 1), (2, 300), (300, 2), (57, 57), (56, 28), (84, 29)]
    state = numpy.random.default_rng(25)
    sizes += [tuple(int(n) for n in state.integers(1, 200, 2)) for _ in range(692)]
    if is_line_model(model):  # nothing would be left of some, and transformers fails with one row
        edge = processor.size["longest_edge"]
        sizes = [size for size in sizes if max(size) <= edge * min(size) and max(size) > processor.patch_size["height"]]
    sizes = sizes[:500]
    counts, pixels, lines = [], [], []
    for size in sizes:
        inputs = inputs_of(processor, size)
        values = inputs["pixel_values"].numpy()
        if model.config.model_type == "mllama":
            values = values[inputs["aspect_ratio_mask"].numpy().astype(bool)]
        elif values.ndim == 5:  # of tiles what patches fill
            side = values.shape[-1] // 7 * 7
            values = values[..., :side, :side]
        values = numpy.sort(values, axis=None)
        rows = (17 * int(inputs["aspect_ratio_mask"].sum()) if model.config.model_type == "mllama"
                else rows_of(model, inputs).shape[0])
        counts.append([*size, rows])
        pixels.append([values[i * (values.size - 1) // 8] for i in range(9)])
        if is_line_model(model):
            lines.append(line_rows(model, inputs))
    made = {"counts": torch.tensor(counts, dtype=torch.int32), "pixels": torch.tensor(numpy.array(pixels))}
    return made | ({"line_rows": torch.tensor(lines, dtype=torch.int32)} if lines else {})


def seen_logits(model, seen, inputs):
    more = {}
    if "image_grid_thw" in inputs:
        more["mm_token_type_ids"] = (seen == model.config.image_token_id).int()[None]
    if model.config.model_type == "gemma3":
        more["token_type_ids"] = (seen == model.config.image_token_id).int()[None]
    return model(input_ids=seen[None], **inputs, **more).logits[0].float().contiguous()


def span_of(model, inputs, rows):
    """What stands in a prompt for a picture."""
    if not is_line_model(model):
        return [model.config.image_token_id] * rows
    columns = line_rows(model, inputs)
    lines = [[model.config.image_token_id] * columns + [LINE_END] for _ in range(rows // columns)]
    return [token for line in lines for token in line][:-1] + [PICTURE_END]


def drawn_frame(index):
    """The picture `index` pixels wider, without as many pixels at its left."""
    width, height = VIDEO_SIZE
    return drawn(width + index, height)[:, index:]


def whole_frames():
    """Of a model whose frames are pictures of one size."""
    processor = CLIPImageProcessorPil(size={"shortest_edge": 28}, crop_size={"height": 28, "width": 28})
    frames = [processor(Image.fromarray(drawn_frame(i)), return_tensors="pt")["pixel_values"] for i in range(VIDEO_FRAMES)]
    return {"pixel_values_videos": torch.cat([torch.as_tensor(numpy.asarray(frame)) for frame in frames])[None]}


def frames_together(processor):
    """Of Qwen3-VL: the bounds are those of all frames."""
    width, height = VIDEO_SIZE
    high, wide = all_frames_size(VIDEO_FRAMES, height, width, factor=processor.patch_size * processor.merge_size,
                                 min_pixels=processor.size["shortest_edge"], max_pixels=processor.size["longest_edge"])
    frames = [Image.fromarray(drawn_frame(i)).resize((wide, high), Image.Resampling.BICUBIC) for i in range(VIDEO_FRAMES)]
    return [processor(frame, return_tensors="pt", do_resize=False) for frame in frames]


def video_inputs(processor, together):
    """Frames resized as pictures are (transformers resizes videos by torchvision, whose filter rounds otherwise)."""
    frames = frames_together(processor) if together else [
        processor(Image.fromarray(drawn_frame(i)), return_tensors="pt") for i in range(VIDEO_FRAMES)]
    size, grid = processor.patch_size, torch.as_tensor(numpy.asarray(frames[0]["image_grid_thw"]))[0]
    values = [torch.as_tensor(numpy.asarray(frame["pixel_values"])).view(-1, 3, 2, size, size)[:, :, :1]
              for frame in frames]
    values += values[-1:] * (len(values) % 2)
    pairs = [torch.cat(values[i:i + 2], dim=2).flatten(1) for i in range(0, len(values), 2)]
    return {"pixel_values_videos": torch.cat(pairs), "video_grid_thw": torch.tensor([[len(pairs), *grid[1:].tolist()]])}


def add_video(model, processor, picture, reference, text):
    still = model.config.model_type == "llava_next_video"
    inputs = whole_frames() if still else video_inputs(processor, model.config.model_type == "qwen3_vl")
    made = model.get_video_features(**inputs)
    rows = torch.cat([torch.cat([*made.pooler_output]), *(torch.cat([*part]) for part in getattr(made, "deepstack_features", None) or [])], dim=-1)
    rows = rows.reshape(-1, rows.shape[-1]).float().contiguous()
    reference["video_size"] = torch.tensor(VIDEO_SIZE, dtype=torch.int32)
    reference["video_frames"] = torch.tensor([VIDEO_FRAMES], dtype=torch.int32)
    reference["video_rate"] = torch.tensor([VIDEO_RATE])
    reference["video_rows"] = rows
    image = [model.config.image_token_id] * reference["rows_0"].shape[0]
    video = [VIDEO_TOKEN] * rows.shape[0]
    if model.config.model_type == "qwen3_vl":  # a text, and tokens around the rows of each grid
        count = len(video) // int(inputs["video_grid_thw"][0, 0])
        grids = range(len(video) // count)
        video = [token for i in grids for token in [20 + i, 21, 95] + [VIDEO_TOKEN] * count + [96]]
    prompt = torch.tensor(text[:4] + image + text[4:7] + video + text[7:])
    reference["video_prompt"] = prompt.int()
    types = (prompt == model.config.image_token_id).int() + 2 * (prompt == VIDEO_TOKEN).int()
    more = {"second_per_grid_ts": [2 / VIDEO_RATE]} if model.config.model_type == "qwen2_5_vl" else {}
    if not still:
        more["mm_token_type_ids"] = types[None]
    made = model(input_ids=prompt[None], **picture, **inputs, **more)
    reference["video_logits"] = made.logits[0].float().contiguous()


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
        if config.model_type == "llava" and not is_line_model(model):
            prompt = torch.from_numpy(numpy.random.default_rng(7).integers(3, 96, 12)).long()
        reference["prompt"] = prompt.int()
        reference["logits"] = model(input_ids=prompt[None]).logits[0].float().contiguous()
        if config.model_type == "mllama":
            add_cross_prompts(model, pictures, reference, prompt.tolist())
            reference.update(counts_of(model, processor))
            return save_file(reference, folder / "reference.safetensors")
        seen = prompt.tolist()
        spans = [span_of(model, pictures[i], reference[f"rows_{i}"].shape[0]) for i in (0, 2)]
        seen = torch.tensor(seen[:4] + spans[0] + seen[4:7] + spans[1] + seen[7:])
        reference["seen_prompt"] = seen.int()
        both = together(pictures[0], pictures[2])
        reference["seen_logits"] = seen_logits(model, seen, both)
        if config.model_type != "llava" or is_line_model(model):
            longer = seen
            for _ in range(12):
                longer = torch.cat([longer, seen_logits(model, longer, both)[-1:].argmax(-1)])
            reference["seen_tokens"] = longer[-12:].int()
            reference.update(counts_of(model, processor))
        if config.model_type in ("qwen2_vl", "qwen2_5_vl", "qwen3_vl", "llava_next_video"):
            add_video(model, processor, pictures[0], reference, prompt.tolist())
    save_file(reference, folder / "reference.safetensors")


def released_internvl(made, folder):
    """InternVL of transformers' form by the names and files of OpenGVLab's releases, whose code is not transformers'."""
    folder.mkdir(parents=True, exist_ok=True)
    config = json.loads((made / "config.json").read_text())
    vision = config["vision_config"]
    vision = dict({key: vision[key] for key in ("hidden_size", "intermediate_size", "num_hidden_layers", "norm_type",
                                                "num_attention_heads", "hidden_act", "layer_norm_eps")},
                  model_type="intern_vit_6b", image_size=vision["image_size"][0], patch_size=vision["patch_size"][0],
                  qkv_bias=vision["attention_bias"], qk_normalization=vision["use_qk_norm"])
    (folder / "config.json").write_text(json.dumps(dict(
        architectures=["InternVLChatModel"], model_type="internvl_chat", torch_dtype="float32", downsample_ratio=0.5,
        image_token_id=97, min_dynamic_patch=1, max_dynamic_patch=6, dynamic_image_size=True, use_thumbnail=True,
        select_layer=-1, llm_config=config["text_config"], vision_config=vision), indent=2) + "\n")
    means = json.loads((made / "preprocessor_config.json").read_text())
    (folder / "preprocessor_config.json").write_text(json.dumps(dict(
        crop_size=32, do_center_crop=True, do_normalize=True, do_resize=True, resample=3, size=32,
        image_mean=means["image_mean"], image_std=means["image_std"]), indent=2) + "\n")
    names = (("vision_tower.embeddings.cls_token", "vision_model.embeddings.class_embedding"),
             ("vision_tower.embeddings.patch_embeddings.projection", "vision_model.embeddings.patch_embedding"),
             ("vision_tower.embeddings.position_embeddings", "vision_model.embeddings.position_embedding"),
             ("vision_tower.encoder.layer.", "vision_model.encoder.layers."), ("layernorm_before", "norm1"),
             ("layernorm_after", "norm2"), ("lambda_1", "ls1"), ("lambda_2", "ls2"),
             ("attention.projection_layer", "attn.proj"), ("multi_modal_projector.layer_norm", "mlp1.0"),
             ("multi_modal_projector.linear_1", "mlp1.1"), ("multi_modal_projector.linear_2", "mlp1.3"))
    tensors = load_file(made / "model.safetensors")
    released = {}
    for name, tensor in tensors.items():
        if ".attention.k_proj." in name or ".attention.v_proj." in name:
            continue
        if ".attention.q_proj." in name:
            tensor = torch.cat([tensors[name.replace("q_proj", part)] for part in ("q_proj", "k_proj", "v_proj")])
            name = name.replace("attention.q_proj", "attn.qkv")
        for old, new in names:
            name = name.replace(old, new)
        released[name] = tensor.contiguous()
    save_file(released, folder / "model.safetensors")
    save_file(load_file(made / "reference.safetensors"), folder / "reference.safetensors")


def main():
    torch.manual_seed(0)
    for name, config, processor in models():
        if name in sys.argv[2:] or not sys.argv[2:]:
            make(pathlib.Path(sys.argv[1]) / name, config, processor)
            if name == "internvl":
                released_internvl(pathlib.Path(sys.argv[1]) / name, pathlib.Path(sys.argv[1]) / "internvl_chat")


if __name__ == "__main__":
    main()
