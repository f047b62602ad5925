#!/usr/bin/env python3
"""Makes tests/golden/texts: tiny random encoders of texts (BERT, RoBERTa, XLM-R, ModernBERT, ColBERT),
as their folders lie on the hub, and what transformers makes of them.

    pip install torch==2.15.0 transformers==5.24.0 tokenizers==0.23.3 safetensors numpy
    python3 tools/goldens/make_text_goldens.py tests/golden/texts

Beside the model reference.safetensors: ids_I [n] int32 random ids, types_I [n] int32, vector_I float32:
the text's vector or scores, or (ColBERT) [n, width], as transformers makes them in float32, eager
attention, from the weights as the files hold them. Folders with a tokenizer.json have one of their
vocabulary's size, of words that tests write, and two of them scores.json of a query with documents.
"""
import json
import pathlib
import shutil
import sys

import torch
import transformers
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, decoders, models as token_models, normalizers, pre_tokenizers
from tokenizers.processors import TemplateProcessing

T = transformers
LENGTHS = (1, 5, 18, 40)
VOCAB = 96
SMALL = dict(vocab_size=VOCAB, hidden_size=32, intermediate_size=48, num_attention_heads=4,
             num_hidden_layers=3, max_position_embeddings=64)
WORDS = ("the a of to in is it cat dog fish bird tree house river stone city what which eats drinks "
         "lives swims flies runs sleeps milk water grass seed bread old young big small red green "
         "not and or . , ? ! ##s ##ing ##ed ##er ##ly un ##able re ##do").split()


def draw_weights(model, generator):
    with torch.no_grad():
        for name, p in model.named_parameters():
            normal = torch.randn(p.shape, generator=generator)
            if "norm" in name.lower() and name.endswith("weight"):
                p.copy_(1.0 + 0.3 * normal)
            elif name.endswith("bias"):
                p.copy_(0.4 * normal)
            elif "embeddings" in name:
                p.copy_(0.5 * normal)
            else:
                p.copy_(1.6 * normal / p.shape[1] ** 0.5)


class ColBert(torch.nn.Module):
    """HF_ColBERT, as colbert-ir wrote it: BERT and a matrix, vectors of length 1."""

    def __init__(self, config):
        super().__init__()
        self.config = config
        self.bert = T.BertModel(config, add_pooling_layer=False)
        self.linear = torch.nn.Linear(config.hidden_size, 16, bias=False)


def unit(x):
    return torch.nn.functional.normalize(x, dim=-1)


def write_modules(folder, mode, normalize, dense=None):
    modules = [dict(idx=0, name="0", path="", type="sentence_transformers.models.Transformer"),
               dict(idx=1, name="1", path="1_Pooling", type="sentence_transformers.models.Pooling")]
    (folder / "1_Pooling").mkdir()
    names = ("cls_token", "mean_tokens", "max_tokens", "mean_sqrt_len_tokens")
    config = dict(word_embedding_dimension=32, **{f"pooling_mode_{n}": n == mode for n in names})
    (folder / "1_Pooling/config.json").write_text(json.dumps(config, indent=2) + "\n")
    if dense is not None:
        modules.append(dict(idx=2, name="2", path="2_Dense",
                            type="sentence_transformers.models.Dense"))
        (folder / "2_Dense").mkdir()
        (folder / "2_Dense/config.json").write_text(json.dumps(
            dict(in_features=32, out_features=24, bias=True,
                 activation_function="torch.nn.modules.activation.Tanh"), indent=2) + "\n")
        save_file(dense, folder / "2_Dense/model.safetensors", metadata=dict(format="pt"))
    if normalize:
        modules.append(dict(idx=len(modules), name=str(len(modules)), path="3_Normalize",
                            type="sentence_transformers.models.Normalize"))
    (folder / "modules.json").write_text(json.dumps(modules, indent=2) + "\n")


def write_word_piece(folder, lower_case=True):
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "[unused0]", "[unused1]"]
    pieces = special + [c for c in "bcdefghijklmnopqrsuvwxyz0123456789"] + WORDS
    assert len(set(pieces)) <= VOCAB, len(set(pieces))
    vocab = {piece: i for i, piece in enumerate(dict.fromkeys(pieces))}
    tokenizer = Tokenizer(token_models.WordPiece(vocab, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=lower_case)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.post_processor = TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)])
    tokenizer.add_special_tokens(special)
    tokenizer.save(str(folder / "tokenizer.json"))


def set_config(folder, **fields):
    path = folder / "config.json"
    config = json.loads(path.read_text())
    config.update(fields)
    for name in [k for k, v in fields.items() if v is None]:
        del config[name]
    path.write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")


def hidden(model, ids, types):
    extra = {} if "modernbert" in model.config.model_type else dict(token_type_ids=types)
    return model(ids, **extra).last_hidden_state[0]


def logits(model, ids, types):
    extra = {} if "modernbert" in model.config.model_type else dict(token_type_ids=types)
    return model(ids, **extra).logits[0]


def models():
    """(name, model, dtype of the files, what to do with the folder, (model, ids, types) -> vector)"""
    f32, bf16 = torch.float32, torch.bfloat16
    generator = torch.Generator().manual_seed(77)
    dense = {"linear.weight": torch.randn(24, 32, generator=generator) / 5,
             "linear.bias": torch.randn(24, generator=generator)}

    def as_mean(folder):
        write_modules(folder, "mean_tokens", True)
        write_word_piece(folder)
        (folder / "sentence_bert_config.json").write_text('{"max_seq_length": 48}\n')
    yield ("bert_mean", T.BertModel(T.BertConfig(**SMALL)), f32, as_mean,
           lambda m, i, t: unit(hidden(m, i, t).mean(0)))
    yield ("bert_dense", T.BertModel(T.BertConfig(**SMALL, hidden_act="gelu_new")), f32,
           lambda f: write_modules(f, "max_tokens", False, dense),
           lambda m, i, t: torch.tanh(torch.nn.functional.linear(
               hidden(m, i, t).max(0).values, dense["linear.weight"], dense["linear.bias"])))
    yield ("bert_rerank",
           T.BertForSequenceClassification(T.BertConfig(**SMALL, num_labels=1)), f32,
           write_word_piece, logits)
    yield ("bert_classes",
           T.BertForSequenceClassification(T.BertConfig(
               **SMALL, id2label={0: "calm", 1: "glad", 2: "wild"},
               label2id={"calm": 0, "glad": 1, "wild": 2})), bf16, write_word_piece, logits)
    roberta = dict(SMALL, max_position_embeddings=66, type_vocab_size=1, pad_token_id=1,
                   bos_token_id=0, eos_token_id=2, layer_norm_eps=1e-5)
    yield ("roberta", T.RobertaModel(T.RobertaConfig(**roberta)), f32, lambda f: None,
           lambda m, i, t: unit(hidden(m, i, t)[0]))
    yield ("xlm_roberta_rerank",
           T.XLMRobertaForSequenceClassification(T.XLMRobertaConfig(**roberta, num_labels=1)), f32,
           lambda f: set_config(f, sentence_transformers=dict(
               activation_fn="torch.nn.modules.linear.Identity", version="5.0.0")), logits)
    modern = dict(SMALL, num_hidden_layers=4, global_attn_every_n_layers=3, local_attention=8,
                  pad_token_id=0, cls_token_id=2, sep_token_id=3, bos_token_id=2, eos_token_id=3)
    yield ("modernbert", T.ModernBertModel(T.ModernBertConfig(**modern)), f32, lambda f: None,
           lambda m, i, t: unit(hidden(m, i, t)[0]))
    # As releases before transformers 5 write their config.json.
    yield ("modernbert_classes", T.ModernBertForSequenceClassification(
        T.ModernBertConfig(**modern, num_labels=3, classifier_pooling="mean")), bf16,
        lambda f: set_config(f, rope_parameters=None, layer_types=None, global_rope_theta=160000.0,
                             local_rope_theta=10000.0, global_attn_every_n_layers=3), logits)

    def as_colbert(folder):
        write_word_piece(folder)
        set_config(folder, architectures=["HF_ColBERT"])
        (folder / "artifact.metadata").write_text(json.dumps(
            dict(dim=16, query_token_id="[unused0]", doc_token_id="[unused1]", query_maxlen=32)))
    yield ("colbert", ColBert(T.BertConfig(**SMALL)), f32, as_colbert,
           lambda m, i, t: unit(m.linear(hidden(m.bert, i, t))))


QUERY = "What eats fish, and what drinks?"
DOCUMENTS = ["The cat eats fish.", "A TREE is green", "birds do not swim; dogs drink water", "unable"]


def write_scores(name, model, folder):
    """scores.json: of a query and documents, by the tokenizer and the model."""
    if name not in ("bert_rerank", "colbert"):
        return
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))

    def late(text, mark):
        ids = tokenizer.encode(text).ids
        ids.insert(1, tokenizer.token_to_id(mark))
        ids = torch.tensor([ids])
        return unit(model.linear(hidden(model.bert, ids, torch.zeros_like(ids))))

    def score(document):
        if name == "colbert":
            products = late(QUERY, "[unused0]") @ late(document, "[unused1]").T
            return products.max(1).values.sum()
        pair = tokenizer.encode(QUERY, document)
        return torch.sigmoid(logits(model, torch.tensor([pair.ids]),
                                    torch.tensor([pair.type_ids])))[0]
    with torch.no_grad():
        scores = [float(score(document)) for document in DOCUMENTS]
    (folder / "scores.json").write_text(json.dumps(
        dict(query=QUERY, documents=DOCUMENTS, scores=scores), indent=1) + "\n")


def save(model, folder, dtype):
    model = model.to(dtype)
    model.config.dtype = dtype
    model.config.architectures = [type(model).__name__]
    model.config.save_pretrained(folder)
    save_file({k: v.contiguous() for k, v in model.state_dict().items()},
              folder / "model.safetensors", metadata=dict(format="pt"))


def read(model, folder):
    config = model.config
    config.dtype = torch.float32
    config._attn_implementation = "eager"
    model = type(model)(config)
    model.load_state_dict({k: v.float() for k, v in
                           load_file(folder / "model.safetensors").items()})
    return model.eval()


def main():
    if len(sys.argv) != 2 or sys.argv[1].startswith("-"):
        sys.exit(__doc__)
    root = pathlib.Path(sys.argv[1])
    torch.set_num_threads(1)
    for index, (name, model, dtype, finish, vector) in enumerate(models()):
        folder = root / name
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        generator = torch.Generator().manual_seed(3000 + index)
        draw_weights(model, generator)
        save(model, folder, dtype)
        finish(folder)
        model = read(model, folder)
        types_most = getattr(model.config, "type_vocab_size", 1)
        out = {}
        with torch.no_grad():
            for i, n in enumerate(LENGTHS):
                # RoBERTa counts no positions of the padding's id.
                ids = torch.randint(4, VOCAB, (n,), generator=generator)
                types = (torch.arange(n) * 2 >= n).long() if types_most > 1 else torch.zeros(
                    n, dtype=torch.long)
                out[f"ids_{i}"] = ids.to(torch.int32)
                out[f"types_{i}"] = types.to(torch.int32)
                out[f"vector_{i}"] = vector(model, ids[None], types[None]).float().contiguous()
        save_file(out, folder / "reference.safetensors")
        write_scores(name, model, folder)
        for file in folder.rglob("*"):
            file.chmod(0o755 if file.is_dir() else 0o644)
        size = sum(f.stat().st_size for f in folder.rglob("*"))
        print(f"{name}: {size} bytes, {out['vector_3'].flatten()[:4].tolist()}")


if __name__ == "__main__":
    main()
