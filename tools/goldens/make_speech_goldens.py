#!/usr/bin/env python3
"""Makes tests/golden/speech: small Whisper models with random weights, and what transformers computes with them.

    pip install transformers==5.24.0 torch==2.15.0 safetensors tokenizers numpy
    python3 tools/goldens/make_speech_goldens.py tests/golden/speech

  multilingual/, english/   config.json, generation_config.json, tokenizer.json, model.safetensors
  reference.safetensors     of both: mel [mels, frames], source (the encoder's output), tokens, logits
  cases.json                requests and what greedy generate() makes of them
The sound of a case is the drawn one of make_audio_goldens.py, from its begin. A window has 2 s. Weights are
drawn wide, so that logits differ clearly: a case whose two best logits come closer than 3e-4 fails here.
"""
import json
import pathlib
import sys

import numpy
import torch
from safetensors.torch import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import (GenerationConfig, WhisperConfig, WhisperFeatureExtractor,
                          WhisperForConditionalGeneration)

from make_audio_goldens import drawn_sound

SECONDS, POSITIONS, TARGETS = 2, 100, 64
LANGUAGES = ["en", "de", "fr"]


def specials(multilingual):
    names = ["<|endoftext|>", "<|startoftranscript|>"]
    names += [f"<|{code}|>" for code in LANGUAGES] if multilingual else []
    names += ["<|translate|>", "<|transcribe|>", "<|startofprev|>", "<|nospeech|>", "<|notimestamps|>"]
    names += [f"<|{i * 0.02:.2f}|>" for i in range(POSITIONS + 1)]
    return {name: 256 + i for i, name in enumerate(names)}


def make_tokenizer(ids):
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({character: i for i, character in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_tokens([AddedToken(name, special=not name[2].isdigit(), normalized=False) for name in ids])
    return tokenizer


def make_rules(ids, multilingual):
    rules = dict(bos_token_id=256, eos_token_id=256, pad_token_id=256, decoder_start_token_id=257,
                 max_length=TARGETS, no_timestamps_token_id=ids["<|notimestamps|>"],
                 prev_sot_token_id=ids["<|startofprev|>"], is_multilingual=multilingual,
                 suppress_tokens=[7, 8, 90, ids["<|startofprev|>"], ids["<|nospeech|>"]],
                 begin_suppress_tokens=[220, 256], max_initial_timestamp_index=20, return_timestamps=False)
    if multilingual:
        rules["lang_to_id"] = {f"<|{code}|>": ids[f"<|{code}|>"] for code in LANGUAGES}
        rules["task_to_id"] = {name: ids[f"<|{name}|>"] for name in ("transcribe", "translate")}
    return rules


def make_model(folder, multilingual, seed):
    ids = specials(multilingual)
    width = 32 if multilingual else 16
    config = WhisperConfig(vocab_size=256 + len(ids), d_model=width, encoder_layers=2, decoder_layers=2 + multilingual,
                           encoder_attention_heads=2, decoder_attention_heads=4, encoder_ffn_dim=2 * width,
                           decoder_ffn_dim=3 * width, num_mel_bins=80 if multilingual else 128,
                           max_source_positions=POSITIONS, max_target_positions=TARGETS, bos_token_id=256,
                           eos_token_id=256, pad_token_id=256, decoder_start_token_id=257)
    torch.manual_seed(seed)
    model = WhisperForConditionalGeneration(config).eval()
    with torch.no_grad():
        for name, tensor in model.named_parameters():
            if name.endswith("bias") or "positions" in name:
                tensor.copy_(torch.randn_like(tensor) * (0.5 if "embed_positions" in name else 0.1))
            elif tensor.dim() == 1:
                tensor.copy_(1 + torch.randn_like(tensor) * 0.1)
            else:
                fan = tensor[0].numel()
                tensor.copy_(torch.randn_like(tensor) * ((0.7 if "embed_tokens" in name else 1.5) / fan**0.5))
        model.model.decoder.layer_norm.weight.mul_(6)
        if not multilingual:  # exact in bfloat16
            for tensor in model.parameters():
                tensor.copy_(tensor.to(torch.bfloat16).float())
    rules = make_rules(ids, multilingual)
    model.generation_config = GenerationConfig(**rules)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(config.to_json_string())
    (folder / "generation_config.json").write_text(json.dumps(rules, indent=1) + "\n")
    tokenizer = make_tokenizer(ids)
    tokenizer.save(str(folder / "tokenizer.json"))
    tensors = {name: tensor.contiguous() for name, tensor in model.state_dict().items() if name != "proj_out.weight"}
    if not multilingual:
        tensors = {name: tensor.to(torch.bfloat16) for name, tensor in tensors.items()}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return model, tokenizer, ids


def features(extractor, count, pad):
    samples = drawn_sound(count).astype(numpy.float32) / 32768
    if pad and count < extractor.n_samples:
        samples = numpy.pad(samples, (0, extractor.n_samples - count))
    return torch.tensor(extractor._np_extract_fbank_features(samples[None], "cpu"))


class Watch:
    """Remembers the smallest distance of the two best scores. Where no times are wanted it forbids them, which
    trained models do by themselves."""

    def __init__(self, first_time):
        self.smallest, self.first_time = 1e9, first_time

    def __call__(self, ids, scores):
        scores[:, self.first_time:] = -float("inf")
        best = scores.topk(2).values[0]
        self.smallest = min(self.smallest, float(best[0] - best[1]))
        return scores


def run_case(model, tokenizer, ids, extractor, case):
    mel = features(extractor, case["samples"], True)
    options = {}
    if case.get("prompt"):
        prompt = [ids["<|startofprev|>"]] + tokenizer.encode(" " + case["prompt"], add_special_tokens=False).ids
        options["prompt_ids"] = torch.tensor(prompt)
    if model.generation_config.is_multilingual:
        options["task"] = "translate" if case.get("translate") else "transcribe"
        if case.get("language"):
            options["language"] = case["language"]
    first_time = ids["<|notimestamps|>"] + 1
    watch = Watch(len(ids) + 256 if case["timestamps"] else first_time)
    with torch.no_grad():
        made = model.generate(mel, return_timestamps=case["timestamps"], return_segments=True,
                              logits_processor=[watch], **options)
        language = model.detect_language(mel, num_segment_frames=2 * POSITIONS)[0].item() if model.generation_config.is_multilingual else -1
    if watch.smallest < 3e-4:
        sys.exit(f"{case}: two scores are {watch.smallest:.1e} apart; take another seed")
    tokens = [token for segment in made["segments"][0] for token in segment["tokens"].tolist()]
    names = {value: name for name, value in ids.items()}
    case["detected"] = names[language][2:-2] if language >= 0 else ""
    case["tokens"] = tokens
    case["segments"] = [{"start": float(s["start"]), "end": float(s["end"])} for s in made["segments"][0]]
    case["text"] = tokenizer.decode([token for token in tokens if token < 256]).lstrip(" ")
    return case


def make(out, multilingual, seed, cases):
    model, tokenizer, ids = make_model(out, multilingual, seed)
    extractor = WhisperFeatureExtractor(feature_size=80 if multilingual else 128, chunk_length=SECONDS)
    mel = features(extractor, 30000, True)
    tokens = torch.tensor([[257, 70, 71, 200, 3, 255, 12, 80, 81, 82, 300, 300, 45]])
    with torch.no_grad():
        source = model.model.encoder(mel).last_hidden_state
        logits = model(input_features=mel, decoder_input_ids=tokens).logits
    print(out.name, "source spread", float(source.max() - source.min()), "logits", float(logits.max() - logits.min()))
    save_file({"mel": mel[0].contiguous(), "source": source[0].contiguous(), "tokens": tokens[0].to(torch.int32),
               "logits": logits[0].contiguous()}, out / "reference.safetensors")
    made = [run_case(model, tokenizer, ids, extractor, dict(case)) for case in cases]
    for case in made:
        print(len(case["tokens"]), case["segments"], case["tokens"][:12])
    (out / "cases.json").write_text(json.dumps({"cases": made}, indent=1) + "\n")


def main():
    out = pathlib.Path(sys.argv[1])
    make(out / "multilingual", True, int(sys.argv[2]) if len(sys.argv) > 2 else 11, [
        dict(samples=24000, timestamps=False, language="en"),
        dict(samples=32000, timestamps=False, language="de", translate=True),
        dict(samples=32000, timestamps=False),
        dict(samples=32000, timestamps=True, language="fr"),
        dict(samples=30000, timestamps=False, language="en", prompt="names are Ada and Bo"),
        dict(samples=80000, timestamps=True, language="en"),
        dict(samples=113000, timestamps=True)])
    make(out / "english", False, int(sys.argv[3]) if len(sys.argv) > 3 else 12, [
        dict(samples=24000, timestamps=False), dict(samples=90000, timestamps=True)])


if __name__ == "__main__":
    main()
