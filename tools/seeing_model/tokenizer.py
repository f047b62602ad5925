"""Cuts the default model's tokenizer down for the model that sees: its first tokens, merges that make words of pictures
one token each, and the token that stands for a picture."""
import argparse
import json
import pathlib

from glyphs import SHAPES
from questions import PLURALS
from scenes import COLOURS, GROUNDS

KEPT = 1400  # tokens of the default model's
VOCABULARY = 1472
IMAGE = "<image>"
WORDS = [*COLOURS, *GROUNDS, *SHAPES, *PLURALS.values(),
         *("picture things thing objects object colour color shape digit digits number background middle left right top bottom above below bigger "
           "smaller where which what how many there nothing see count describe read say").split()]
CHAT_TEMPLATE = """{{ bos_token }}
{%- for message in messages %}
{%- if message['role'] not in ['user', 'assistant'] %}
{{- raise_exception('Only the roles user and assistant are supported.') }}
{%- endif %}
{{- '<|' + message['role'] + '|>' }}
{%- if message['content'] is string %}
{{- message['content'] | trim }}
{%- else %}
{%- for part in message['content'] %}
{%- if part['type'] == 'image' %}
{{- '<image>' }}
{%- elif part['type'] == 'text' %}
{{- part['text'] | trim }}
{%- endif %}
{%- endfor %}
{%- endif %}
{{- eos_token }}
{%- endfor %}
{%- if add_generation_prompt %}
{{- '<|assistant|>' }}
{%- endif %}
"""


def add_word(stored, word):
    """Merges the word's first tokens until it is one."""
    from tokenizers import Tokenizer

    vocabulary, merges = stored["model"]["vocab"], stored["model"]["merges"]
    while True:
        tokens = Tokenizer.from_str(json.dumps(stored)).encode(word, add_special_tokens=False).tokens
        if len(tokens) == 1:
            return
        merges.append(tokens[:2])
        vocabulary.setdefault("".join(tokens[:2]), len(vocabulary))


def cut(source):
    """The tokenizer.json as an object; ids below KEPT mean what they mean to the default model."""
    stored = json.loads((source / "tokenizer.json").read_text())
    vocabulary = stored["model"]["vocab"]
    stored["model"]["vocab"] = kept = {token: i for token, i in vocabulary.items() if i < KEPT}
    stored["model"]["merges"] = [m for m in stored["model"]["merges"] if "".join(m) in kept]
    for word in dict.fromkeys(WORDS):
        add_word(stored, " " + word)
    for word in ("There", "What", "Which", "How", "Where", "The", "It", "is", "Is", "Count", "Yes", "No", "I"):
        add_word(stored, word)
    assert len(kept) == VOCABULARY - 1, len(kept)
    kept[IMAGE] = len(kept)
    stored["added_tokens"].append({"id": kept[IMAGE], "content": IMAGE, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
                                   "special": True})
    return stored


def write(source, out):
    stored = cut(source)
    (out / "tokenizer.json").write_text(json.dumps(stored, ensure_ascii=False, separators=(",", ":")) + "\n")
    config = json.loads((source / "tokenizer_config.json").read_text())
    for name in ("chat_template", "added_tokens_decoder"):
        config.pop(name)
    config.update(model_max_length=1024, image_token=IMAGE, extra_special_tokens={"image_token": IMAGE}, processor_class="LlavaProcessor")
    (out / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n")
    (out / "special_tokens_map.json").write_bytes((source / "special_tokens_map.json").read_bytes())
    (out / "chat_template.jinja").write_text(CHAT_TEMPLATE)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--from", dest="source", type=pathlib.Path, default=pathlib.Path(__file__).resolve().parents[2] / "share/default_model")
    parser.add_argument("--out", type=pathlib.Path, required=True, help="the model's folder")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    write(arguments.source, arguments.out)
