"""Writes a checkpoint of train.py as a folder that transformers and Espalier load, in bf16.

    python3 export.py --work WORK --model FOLDER      FOLDER has tokenizer.json (tokenizer.py)
"""
import argparse
import json
import pathlib

import torch
import transformers
from tokenizers import Tokenizer

import model as models
from scene_rows import PATCH, ROWS, SIDE

PREPROCESSOR = {
    "image_processor_type": "SiglipImageProcessor", "do_convert_rgb": True, "do_resize": True, "size": {"height": SIDE, "width": SIDE}, "resample": 3,
    "do_rescale": True, "rescale_factor": 1 / 255, "do_normalize": True, "image_mean": [0.5] * 3, "image_std": [0.5] * 3}
PROCESSOR = {"processor_class": "LlavaProcessor", "image_token": "<image>", "patch_size": PATCH, "vision_feature_select_strategy": "full",
             "num_additional_image_tokens": 0}


def config(vocab_size, placeholder):
    text = transformers.LlamaConfig(
        vocab_size=vocab_size, max_position_embeddings=models.POSITIONS, rms_norm_eps=models.TEXT_EPS,
        rope_parameters={"rope_type": "default", "rope_theta": models.THETA}, tie_word_embeddings=True, bos_token_id=0, eos_token_id=1, pad_token_id=2,
        **models.TEXT)
    vision = transformers.SiglipVisionConfig(image_size=SIDE, patch_size=PATCH, layer_norm_eps=models.VISION_EPS, vision_use_head=False, **models.VISION)
    return transformers.LlavaConfig(
        text_config=text, vision_config=vision, image_token_id=placeholder, vision_feature_layer=-1, vision_feature_select_strategy="full",
        image_seq_length=ROWS, tie_word_embeddings=True, dtype="bfloat16")


def export(model, vocab_size, out):
    theirs = transformers.LlavaForConditionalGeneration(config(vocab_size, model.placeholder)).to(torch.bfloat16)
    state = {name: p.detach().to(torch.bfloat16).cpu() for name, p in models.named_tensors(model).items()}
    missing, unexpected = theirs.load_state_dict(state, strict=False)
    left = [name for name in missing if "post_layernorm" not in name and "lm_head" not in name]
    assert not left and not unexpected, (left, unexpected)
    theirs.tie_weights()
    # The likeliest token, in transformers and in servers that sample unless a request says otherwise.
    theirs.generation_config = transformers.GenerationConfig(bos_token_id=0, eos_token_id=[1], pad_token_id=2, do_sample=True, top_k=1)
    theirs.save_pretrained(out)
    (out / "model.safetensors").chmod(0o644)
    for name, content in (("preprocessor_config.json", PREPROCESSOR), ("processor_config.json", PROCESSOR)):
        (out / name).write_text(json.dumps(content, indent=2) + "\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=pathlib.Path, required=True)
    parser.add_argument("--model", type=pathlib.Path, required=True)
    arguments = parser.parse_args()
    tokenizer = Tokenizer.from_file(str(arguments.model / "tokenizer.json"))
    model = models.Seeing(tokenizer.get_vocab_size(), tokenizer.token_to_id("<image>"))
    model.load_state_dict(torch.load(arguments.work / "checkpoint.pt", map_location="cpu")["model"])
    export(model, tokenizer.get_vocab_size(), arguments.model)


if __name__ == "__main__":
    main()
