#!/usr/bin/env python3
"""Trains an EAGLE-3 draft head for a Llama-like model of a Hugging Face folder, and reports how often it is right.

    train.py --model MODEL --data texts/ --out MODEL/draft --work /tmp/work --seconds 600

The head is trained for what it does later: each row goes on from its own states for --unroll tokens, and every token is
compared with the target's distribution there. Started again with the same --work it goes on from the last checkpoint.
"""

import argparse
import json
import pathlib
import sys
import time

import numpy
import torch
import torch.nn.functional as F

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from head import DraftHead, target_layers  # noqa: E402

_STARTED = time.time()
_LOSS_DECAY = 0.8  # of a token's loss over that of the token before it: later tokens are reached less often


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=pathlib.Path, required=True, help="folder of the target")
    parser.add_argument("--out", type=pathlib.Path, required=True, help="folder for the head")
    parser.add_argument("--work", type=pathlib.Path, required=True, help="folder for the tokens and the checkpoint")
    parser.add_argument("--data", type=pathlib.Path, help="a text file, or a folder of *.txt, or of *.npy with token ids")
    parser.add_argument("--generate", type=int, default=0, help="without --data: so many tokens that the target itself writes")
    parser.add_argument("--init", type=pathlib.Path, help="start from this trained head, whose sizes and draft vocabulary stay")
    parser.add_argument("--seconds", type=float, default=600, help="training time, earlier runs with the same --work included")
    parser.add_argument("--rows", type=int, default=16, help="sequences a step")
    parser.add_argument("--length", type=int, default=512, help="tokens a sequence")
    parser.add_argument("--unroll", type=int, default=4, help="draft tokens that a row is trained for")
    parser.add_argument("--rate", type=float, default=1e-3)
    parser.add_argument("--draft-vocab", type=int, default=32000, help="size of the draft vocabulary: the most frequent tokens of the data")
    parser.add_argument("--heads", type=int, help="attention heads; default: the target's")
    parser.add_argument("--kv-heads", type=int, help="default: the target's")
    parser.add_argument("--intermediate", type=int, help="default: the target's")
    parser.add_argument("--layers", help="three of the target's layers, counted from 0, whose results are read; default: SGLang's")
    parser.add_argument("--dtype", choices=("bfloat16", "float16", "float32"), default="bfloat16", help="of the file")
    parser.add_argument("--report", type=pathlib.Path, help="file for the report, as JSON")
    return parser.parse_args()


def log(text):
    print("[%6.1f s] %s" % (time.time() - _STARTED, text), flush=True)


class Target:
    """The model that the head drafts for: its states and logits, frozen."""

    def __init__(self, folder, device, dtype):
        import transformers

        self.model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).to(device).eval()
        self.model.requires_grad_(False)
        self.config = json.loads((folder / "config.json").read_text())
        self.embedding = self.model.get_input_embeddings().weight

    @torch.no_grad()
    def run(self, tokens, layers):
        """-> states [rows, tokens, 3 * hidden], logits [rows, tokens, vocabulary]"""
        out = self.model(tokens, output_hidden_states=True, use_cache=False)
        return torch.cat([out.hidden_states[i] for i in layers], -1), out.logits

    @torch.no_grad()
    def write(self, count, rows, length, first):
        """Sampled texts of the target's own, [count] tokens in all."""
        texts = []
        while sum(t.numel() for t in texts) < count:
            begin = torch.full((rows, 1), first, device=self.embedding.device)
            texts.append(self.model.generate(begin, do_sample=True, max_new_tokens=length, min_new_tokens=length).cpu())
            log("%d of %d tokens written" % (sum(t.numel() for t in texts), count))
        return torch.cat([t.reshape(-1) for t in texts])[:count].numpy()


def read_tokens(args, target):
    """All token ids of the data, kept in --work for later runs."""
    kept = args.work / "tokens.npy"
    if kept.exists():
        return numpy.load(kept)
    if args.data is None:
        if args.generate <= 0:
            raise SystemExit("name texts with --data, or let the target write them with --generate TOKENS")
        first = target.config.get("bos_token_id")
        tokens = target.write(args.generate, 32, args.length, 0 if first is None else first)
    else:
        files = sorted(args.data.rglob("*")) if args.data.is_dir() else [args.data]
        arrays = [numpy.load(f) for f in files if f.suffix == ".npy"]
        texts = [f.read_text() for f in files if f.suffix != ".npy" and f.is_file() and (f == args.data or f.suffix == ".txt")]
        if texts:
            import transformers

            tokenizer = transformers.AutoTokenizer.from_pretrained(args.model)
            arrays += [numpy.array(tokenizer(text).input_ids) for text in texts]
        if not arrays:
            raise SystemExit("%s has no *.txt and no *.npy" % args.data)
        tokens = numpy.concatenate([a.astype(numpy.int32) for a in arrays])
    if len(tokens) < 20 * args.length:
        raise SystemExit("%d tokens are too few: at least %d are needed" % (len(tokens), 20 * args.length))
    numpy.save(kept, tokens.astype(numpy.int32))
    return tokens


def head_config(args, target):
    c = target.config
    heads = c["num_attention_heads"]
    config = {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        "hidden_size": c["hidden_size"],
        "intermediate_size": args.intermediate or c["intermediate_size"],
        "num_hidden_layers": 1,
        "num_attention_heads": args.heads or heads,
        "num_key_value_heads": args.kv_heads or c.get("num_key_value_heads", heads),
        "head_dim": c.get("head_dim") or c["hidden_size"] // heads,
        "hidden_act": "silu",
        "max_position_embeddings": c["max_position_embeddings"],
        "rms_norm_eps": c["rms_norm_eps"],
        "rope_theta": c.get("rope_theta", 10000.0),
        "rope_scaling": None,
        "tie_word_embeddings": False,
        "attention_bias": False,
        "vocab_size": c["vocab_size"],
        "draft_vocab_size": min(args.draft_vocab, c["vocab_size"]),
        "torch_dtype": args.dtype,
    }
    if args.layers:
        config["eagle_config"] = {"eagle_aux_hidden_state_layer_ids": [int(i) for i in args.layers.split(",")]}
    return config


def frequent_ids(tokens, config):
    counts = numpy.bincount(tokens, minlength=config["vocab_size"])
    ids = numpy.sort(numpy.argsort(-counts, kind="stable")[: config["draft_vocab_size"]])
    log("%.1f M tokens; the draft vocabulary of %d has %.2f %% of them" % (len(tokens) / 1e6, len(ids), 100 * counts[ids].sum() / counts.sum()))
    return torch.from_numpy(ids)


def load_head(folder, device):
    """A head that save() wrote, and its draft vocabulary."""
    from safetensors.torch import load_file

    head = DraftHead(json.loads((folder / "config.json").read_text())).to(device)
    tensors = load_file(str(folder / "model.safetensors"))
    with torch.no_grad():
        for name, parameter in head.parameters_by_name.items():
            parameter.copy_(tensors[name.replace("/", ".") + ".weight"])
    return head, (tensors["d2t"] + torch.arange(len(tensors["d2t"]))).to(device)


class Unroll:
    """A head's rows over texts, each going on from its own states: what it predicts at each step, and what the target says there."""

    def __init__(self, head, target, draft_ids, steps):
        self.head, self.target, self.draft_ids, self.steps = head, target, draft_ids, steps
        self.layers = target_layers(head.config, target.config["num_hidden_layers"])

    def predictions(self, tokens):
        """Yields (draft logits, target logits over the whole vocabulary, the tokens that come) of each step, for the rows that have all."""
        states, logits = self.target.run(tokens, self.layers)
        count = tokens.shape[1] - self.steps - 1
        x, cache = self.head.fuse(states[:, :count]), []
        for step in range(self.steps):
            embedded = F.embedding(tokens[:, 1 + step : 1 + step + count], self.target.embedding).to(x.dtype)
            x = self.head(x, embedded, torch.arange(step, step + count, device=x.device), cache)
            yield self.head.logits(x), logits[:, 1 + step : 1 + step + count], tokens[:, 2 + step : 2 + step + count]

    def loss(self, tokens):
        total, weight = 0.0, 1.0
        for drafted, wanted, _ in self.predictions(tokens):
            wanted = wanted[..., self.draft_ids].float().softmax(-1)
            total = total - weight * (wanted * drafted.float().log_softmax(-1)).sum(-1).mean()
            weight *= _LOSS_DECAY
        return total

    @torch.no_grad()
    def acceptance(self, tokens):
        """-> for each step (right greedily, right when sampled, reached), summed: of the rows whose draft tokens so far are those of the text."""
        out, reached = [], None
        for drafted, wanted, comes in self.predictions(tokens):
            best = self.draft_ids[drafted.argmax(-1)]
            reached = torch.ones_like(best, dtype=torch.bool) if reached is None else reached
            chance = wanted.float().softmax(-1).gather(-1, best[..., None])[..., 0]
            out.append(((best == wanted.argmax(-1))[reached].sum().item(), chance[reached].sum().item(), reached.sum().item()))
            reached = reached & (best == comes)
        return numpy.array(out)


def draw(tokens, rows, length, generator):
    at = torch.randint(len(tokens) - length, (rows,), generator=generator)
    return tokens[at[:, None] + torch.arange(length)].long()


def report(unroll, tokens, args):
    generator = torch.Generator().manual_seed(7)
    device = unroll.target.embedding.device
    sums = sum(unroll.acceptance(draw(tokens, args.rows, args.length, generator).to(device)) for _ in range(8))
    rates = sums[:, :2] / numpy.maximum(sums[:, 2:], 1)
    length = lambda r: 1 + float(numpy.cumprod(r).sum())  # noqa: E731
    out = {"greedy": rates[:, 0].round(4).tolist(), "sampled": rates[:, 1].round(4).tolist(), "tokens_a_step_greedy": round(length(rates[:, 0]), 3),
           "tokens_a_step_sampled": round(length(rates[:, 1]), 3)}
    for kind in ("greedy", "sampled"):
        log("accepted, %s: %s; %.2f tokens a step" % (kind, " ".join("%.3f" % r for r in out[kind]), out["tokens_a_step_" + kind]))
    if args.report:
        args.report.write_text(json.dumps(out, indent=2) + "\n")


def train(args, unroll, tokens, draft_ids, device):
    head = unroll.head
    checkpoint = args.work / "checkpoint.pt"
    optimizer = torch.optim.AdamW(head.parameters(), lr=args.rate, betas=(0.9, 0.95), weight_decay=0.01)
    step, used = 0, 0.0
    if checkpoint.exists():
        state = torch.load(checkpoint, map_location=device)
        head.load_state_dict(state["head"])
        optimizer.load_state_dict(state["optimizer"])
        step, used = state["step"], state["used"]
        log("going on from step %d" % step)
    generator = torch.Generator().manual_seed(step)
    begun = saved = time.time()
    used_now = lambda: used + time.time() - begun  # noqa: E731

    def save():
        torch.save({"head": head.state_dict(), "optimizer": optimizer.state_dict(), "step": step, "used": used_now()}, checkpoint)
        head.save(args.out, draft_ids, getattr(torch, args.dtype))

    first_step, losses = step, []
    while used_now() < args.seconds:
        done = used_now() / args.seconds
        for group in optimizer.param_groups:
            group["lr"] = args.rate * min(1.0, (step + 1) / 50) * min(1.0, (1 - done) / 0.7)
        rows = draw(tokens, args.rows, args.length, generator).to(device)
        with torch.autocast(device.type, torch.bfloat16):
            loss = unroll.loss(rows)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(head.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.detach())
        step += 1
        if step % 50 == 0:
            speed = (step - first_step) * rows.numel() / (time.time() - begun)
            log("step %d loss %.4f, %.0f tokens/s" % (step, torch.stack(losses).mean().item(), speed))
            losses = []
        if time.time() - saved > 60:
            saved = time.time()
            save()
    save()


def main():
    args = parse()
    torch.manual_seed(1)
    args.work.mkdir(parents=True, exist_ok=True)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    target = Target(args.model, device, torch.bfloat16 if device.type == "cuda" else torch.float32)
    tokens = read_tokens(args, target)
    if args.init:
        head, draft_ids = load_head(args.init, device)
    else:
        config = head_config(args, target)
        draft_ids = frequent_ids(tokens, config).to(device)
        head = DraftHead(config).to(device)
        with torch.no_grad():
            head.weight("lm_head").copy_(target.model.get_output_embeddings().weight[draft_ids])
    log("%.2f M parameters on %s" % (sum(p.numel() for p in head.parameters()) / 1e6, device))
    tokens = torch.from_numpy(tokens)
    held_out = max(10 * args.length, len(tokens) // 50)
    unroll = Unroll(head, target, draft_ids, args.unroll)
    train(args, unroll, tokens[:-held_out], draft_ids, device)
    report(unroll, tokens[-held_out:], args)


if __name__ == "__main__":
    main()
