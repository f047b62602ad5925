#!/usr/bin/env python3
"""Makes tests/golden/sounds: tiny random models that take sounds, saved by transformers, and what transformers makes of
sounds and of text.

    pip install torch==2.15.0 transformers==5.24.0 safetensors numpy soundfile==0.14.0
    python3 tools/goldens/make_sound_goldens.py tests/golden/sounds

Each folder holds config.json, model.safetensors, preprocessor_config.json and reference.safetensors:
  samples_I [1] int32          of a drawn sound (make_audio_goldens.drawn_sound) at 16 kHz
  rows_I [rows, width] f32     what the encoder and the projector make of it, eager attention
  seen_prompt [n] int32, seen_logits [n, vocab] f32    of a text with sounds 0 and 2, placeholders expanded
  seen_tokens [12] int32       that greedy generation continues it with
Weights are drawn wide, so that no part can be left out unseen.
"""
import pathlib
import sys

import numpy
import torch
import transformers as T
from safetensors.torch import save_file

from make_audio_goldens import drawn_sound
from make_image_goldens import TEXT, widen

# One frame short of a row, odd numbers of rows, and the longest.
SAMPLES = [4000, 9001, 641, 16000]
SOUND = 97


def features(extractor, count):
    made = extractor(drawn_sound(count) / 32768, sampling_rate=16000, return_attention_mask=True, padding="max_length",
                     return_tensors="pt")
    return made["input_features"], made["attention_mask"]


def rows_of(model, features, mask):
    """What stands in the place of the sound's tokens."""
    count = (((int(mask.sum()) - 1) // 2 + 1) - 2) // 2 + 1
    made = []
    hook = model.model.multi_modal_projector.register_forward_hook(lambda _, __, result: made.append(result))
    ids = torch.tensor([[5] + [SOUND] * count + [6]])
    model(input_ids=ids, attention_mask=torch.ones_like(ids), input_features=features, feature_attention_mask=mask)
    hook.remove()
    return made[0][0, :count].float().contiguous()


def main():
    folder = pathlib.Path(sys.argv[1]) / "qwen2_audio"
    folder.mkdir(parents=True, exist_ok=True)
    config = T.Qwen2AudioConfig(
        audio_config=dict(model_type="qwen2_audio_encoder", num_mel_bins=16, encoder_layers=2, encoder_attention_heads=3,
                          encoder_ffn_dim=40, d_model=24, max_source_positions=50),
        text_config=T.Qwen2Config(bos_token_id=1, eos_token_id=2, **TEXT), audio_token_index=SOUND, dtype="float32")
    extractor = T.WhisperFeatureExtractor(feature_size=16, chunk_length=1)
    model = T.Qwen2AudioForConditionalGeneration._from_config(config, attn_implementation="eager").float().eval()
    widen(model)
    model.save_pretrained(folder)
    extractor.save_pretrained(folder)
    reference, features_of = {}, []
    with torch.no_grad():
        for i, count in enumerate(SAMPLES):
            features_of.append(features(extractor, count))
            reference[f"samples_{i}"] = torch.tensor([count], dtype=torch.int32)
            reference[f"rows_{i}"] = rows_of(model, *features_of[-1])
        text = numpy.random.default_rng(7).integers(3, 96, 12).tolist()
        spans = [[SOUND] * reference[f"rows_{i}"].shape[0] for i in (0, 2)]
        prompt = torch.tensor(text[:4] + spans[0] + text[4:7] + spans[1] + text[7:])
        both = {"input_features": torch.cat([features_of[0][0], features_of[2][0]]),
                "feature_attention_mask": torch.cat([features_of[0][1], features_of[2][1]])}
        logits = lambda ids: model(input_ids=ids[None], attention_mask=torch.ones_like(ids)[None], **both).logits[0].float()
        reference["seen_prompt"] = prompt.int()
        reference["seen_logits"] = logits(prompt).contiguous()
        for _ in range(12):
            prompt = torch.cat([prompt, logits(prompt)[-1:].argmax(-1)])
        reference["seen_tokens"] = prompt[-12:].int()
    for name, value in reference.items():
        print(name, tuple(value.shape))
    save_file(reference, folder / "reference.safetensors")


if __name__ == "__main__":
    main()
