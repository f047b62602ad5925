"""Trains the byte-level BPE tokenizer on a sample of the corpus and writes the tokenizer's and configuration files."""

import argparse
import json
import pathlib

from data import corpus

VOCABULARY = 4096
CONTEXT = 2048
# The split of Qwen 2: letters with a leading space, digits one by one, punctuation, white space.
SPLIT = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
CHAT_TEMPLATE = (
    "{{ bos_token }}"
    "{% for message in messages %}"
    "{% if message['role'] not in ['system', 'user', 'assistant'] %}"
    "{{ raise_exception('Only the roles system, user and assistant are supported.') }}"
    "{% endif %}"
    "{{ '<|' + message['role'] + '|>' + message['content'] | trim + eos_token }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)


def train(out):
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, processors, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(SPLIT), behavior="isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tokenizer.decoder = decoders.ByteLevel()
    special = [AddedToken(t, special=True, normalized=False) for t in corpus.SPECIAL]
    trainer = trainers.BpeTrainer(vocab_size=VOCABULARY, special_tokens=special, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False)
    documents = [d for n in range(6) for d in corpus.chunk("story", n, 1000)] + [d for n in range(20) for d in corpus.chunk("task", n, 1000)]
    tokenizer.train_from_iterator((piece for d in documents for piece in d if piece not in corpus.SPECIAL), trainer)
    bos = tokenizer.token_to_id(corpus.BOS)
    tokenizer.post_processor = processors.Sequence([
        processors.ByteLevel(trim_offsets=False),
        processors.TemplateProcessing(single=corpus.BOS + " $A", pair=corpus.BOS + " $A " + corpus.BOS + " $B:1", special_tokens=[(corpus.BOS, bos)]),
    ])
    tokenizer.save(str(out / "tokenizer.json"))
    return tokenizer


def write_configs(out, tokenizer):
    ids = {t: tokenizer.token_to_id(t) for t in corpus.SPECIAL}
    bos, eos, pad = ids[corpus.BOS], ids[corpus.EOS], ids[corpus.PAD]
    added = {str(i): {"content": t, "lstrip": False, "normalized": False, "rstrip": False, "single_word": False, "special": True} for t, i in ids.items()}
    files = {
        "tokenizer_config.json": {
            "tokenizer_class": "PreTrainedTokenizerFast", "bos_token": corpus.BOS, "eos_token": corpus.EOS, "pad_token": corpus.PAD, "added_tokens_decoder": added,
            "add_bos_token": True, "clean_up_tokenization_spaces": False, "model_max_length": CONTEXT, "chat_template": CHAT_TEMPLATE},
        "special_tokens_map.json": {"bos_token": corpus.BOS, "eos_token": corpus.EOS, "pad_token": corpus.PAD},
        "config.json": {
            "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": VOCABULARY, "hidden_size": 384, "intermediate_size": 896, "num_hidden_layers": 8,
            "num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 64, "hidden_act": "silu", "max_position_embeddings": CONTEXT, "rms_norm_eps": 1e-5,
            "rope_theta": 10000.0, "rope_scaling": None, "tie_word_embeddings": True, "attention_bias": False, "mlp_bias": False, "attention_dropout": 0.0,
            "initializer_range": 0.02, "use_cache": True, "bos_token_id": bos, "eos_token_id": eos, "pad_token_id": pad, "torch_dtype": "bfloat16"},
        "generation_config.json": {"bos_token_id": bos, "eos_token_id": [eos], "pad_token_id": pad, "do_sample": True, "temperature": 0.7, "top_p": 0.95},
    }
    for name, content in files.items():
        (out / name).write_text(json.dumps(content, indent=2) + "\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=pathlib.Path, required=True, help="the model's folder")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    write_configs(arguments.out, train(arguments.out))
