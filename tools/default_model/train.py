"""Trains the default model on one GPU within a given time, with checkpoints from which a later run goes on.

Data generation runs beside the start of the GPU. The model is a plain Llama; its hidden matrices are trained with Muon
(momentum, orthogonalised by Newton-Schulz steps), the embedding and the norms with Adam.
"""

import argparse
import json
import os
import pathlib
import subprocess
import sys
import time

_STARTED = time.time()
HERE = pathlib.Path(__file__).resolve().parent


def parse():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=pathlib.Path, required=True, help="folder with tokenizer.json and config.json")
    parser.add_argument("--work", type=pathlib.Path, required=True, help="folder for packed data and checkpoints")
    parser.add_argument("--out", type=pathlib.Path, required=True, help="folder for the trained model")
    parser.add_argument("--seconds", type=float, default=420, help="all of the run, data generation included")
    parser.add_argument("--pack-seconds", type=float, default=40)
    parser.add_argument("--tasks", type=int, default=3_000_000)
    parser.add_argument("--stories", type=int, default=40_000)
    parser.add_argument("--task-base", type=int, default=100)
    parser.add_argument("--rows", type=int, default=192, help="sequences a step")
    parser.add_argument("--length", type=int, default=1280, help="tokens a sequence")
    parser.add_argument("--story-share", type=float, default=0.4)
    parser.add_argument("--rate", type=float, default=3e-3)
    parser.add_argument("--warm-up", type=int, default=100, help="steps over which the rate rises")
    parser.add_argument("--decay-from", type=float, default=0.35, help="part of the time after which the rate falls to nothing")
    parser.add_argument("--init", type=pathlib.Path, help="start from this trained model's weights")
    parser.add_argument("--steps", type=int, default=10**9)
    parser.add_argument("--adam", action="store_true", help="Adam for the matrices too: for a short further training, also on a CPU")
    parser.add_argument("--no-compile", action="store_true")
    return parser.parse_args()


args = parse()
args.work.mkdir(parents=True, exist_ok=True)
_packed = args.work / "packed"
_packer = None
if not (_packed / "done").exists():
    _packer = subprocess.Popen([sys.executable, str(HERE / "pack.py"), "--tokenizer", str(args.model / "tokenizer.json"), "--out", str(_packed), "--tasks", str(args.tasks),
                                "--stories", str(args.stories), "--task-base", str(args.task_base), "--seconds", str(args.pack_seconds), "--workers", str(max(2, (os.cpu_count() or 4) - 3))])

import numpy  # noqa: E402
import torch  # noqa: E402
import torch._dynamo  # noqa: E402
import torch.nn.functional as F  # noqa: E402

torch._dynamo.config.recompile_limit = 64

CUDA = torch.cuda.is_available()
DEVICE = "cuda" if CUDA else "cpu"
DTYPE = torch.bfloat16 if CUDA or args.adam else torch.float32


def log(text):
    print("[%6.1f s] %s" % (time.time() - _STARTED, text), flush=True)


def norm(x, weight, eps):
    y = x.float()
    y = y * torch.rsqrt(y.square().mean(-1, keepdim=True) + eps)
    return (y * weight).to(x.dtype)


def rotate(x, cos, sin):
    # x: [rows, heads, tokens, head_dim], the halves of head_dim rotated against each other as transformers does
    a, b = x.chunk(2, -1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)


class Block(torch.nn.Module):
    def __init__(self, c):
        super().__init__()
        d, h, kv, hd, f = c["hidden_size"], c["num_attention_heads"], c["num_key_value_heads"], c["head_dim"], c["intermediate_size"]
        self.heads, self.kv, self.hd, self.eps = h, kv, hd, c["rms_norm_eps"]

        def matrix(rows, columns, std=0.02):
            return torch.nn.Parameter(torch.randn(rows, columns) * std)

        small = 0.02 / (2 * c["num_hidden_layers"]) ** 0.5
        self.q, self.k, self.v = matrix(h * hd, d), matrix(kv * hd, d), matrix(kv * hd, d)
        self.o, self.gate, self.up, self.down = matrix(d, h * hd, small), matrix(f, d), matrix(f, d), matrix(d, f, small)
        self.norm1, self.norm2 = torch.nn.Parameter(torch.ones(d)), torch.nn.Parameter(torch.ones(d))

    def forward(self, x, cos, sin):
        n, t, _ = x.shape
        y = norm(x, self.norm1, self.eps)
        q = F.linear(y, self.q.to(y.dtype)).view(n, t, self.heads, self.hd).transpose(1, 2)
        k = F.linear(y, self.k.to(y.dtype)).view(n, t, self.kv, self.hd).transpose(1, 2)
        v = F.linear(y, self.v.to(y.dtype)).view(n, t, self.kv, self.hd).transpose(1, 2)
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        group = self.heads // self.kv
        k = k[:, :, None].expand(n, self.kv, group, t, self.hd).reshape(n, self.heads, t, self.hd)
        v = v[:, :, None].expand(n, self.kv, group, t, self.hd).reshape(n, self.heads, t, self.hd)
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(n, t, self.heads * self.hd)
        x = x + F.linear(a, self.o.to(y.dtype))
        y = norm(x, self.norm2, self.eps)
        y = F.silu(F.linear(y, self.gate.to(y.dtype))) * F.linear(y, self.up.to(y.dtype))
        return x + F.linear(y, self.down.to(y.dtype))


def head_loss(x, norm_weight, embedding, targets, eps):
    logits = F.linear(norm(x, norm_weight, eps), embedding.to(x.dtype)).float()
    return F.cross_entropy(logits.view(-1, logits.shape[-1]), targets.reshape(-1))


class Llama(torch.nn.Module):
    def __init__(self, c):
        super().__init__()
        self.eps = c["rms_norm_eps"]
        self.embedding = torch.nn.Parameter(torch.randn(c["vocab_size"], c["hidden_size"]) * 0.02)
        self.blocks = torch.nn.ModuleList(Block(c) for _ in range(c["num_hidden_layers"]))
        self.norm = torch.nn.Parameter(torch.ones(c["hidden_size"]))
        self.head_loss = head_loss
        frequencies = c["rope_theta"] ** (-torch.arange(0, c["head_dim"], 2).float() / c["head_dim"])
        self.register_buffer("frequencies", frequencies, persistent=False)

    def forward(self, tokens, targets):
        angles = torch.outer(torch.arange(tokens.shape[1], device=tokens.device).float(), self.frequencies)
        cos, sin = angles.cos().to(DTYPE), angles.sin().to(DTYPE)
        x = F.embedding(tokens, self.embedding).to(DTYPE)
        for block in self.blocks:
            x = block(x, cos, sin)
        return self.head_loss(x, self.norm, self.embedding, targets, self.eps)


_HF = {"q": "self_attn.q_proj", "k": "self_attn.k_proj", "v": "self_attn.v_proj", "o": "self_attn.o_proj", "gate": "mlp.gate_proj", "up": "mlp.up_proj", "down": "mlp.down_proj",
       "norm1": "input_layernorm", "norm2": "post_attention_layernorm"}


def hf_names(model):
    """transformers' name of each parameter."""
    names = {"model.embed_tokens.weight": model.embedding}
    for i, block in enumerate(model.blocks):
        for ours, theirs in _HF.items():
            names["model.layers.%d.%s.weight" % (i, theirs)] = getattr(block, ours)
    names["model.norm.weight"] = model.norm
    return names


def export(model, out):
    """Writes the weights in bf16, in two shards with an index."""
    from safetensors.torch import save_file

    out.mkdir(parents=True, exist_ok=True)
    tensors = {k: v.detach().to(torch.bfloat16).cpu().contiguous() for k, v in hf_names(model).items()}
    total = sum(t.numel() * 2 for t in tensors.values())
    shards, size = [{}, {}], 0
    for name, tensor in tensors.items():
        shards[0 if size < total // 2 else 1][name] = tensor
        size += tensor.numel() * 2
    index = {"metadata": {"total_size": total}, "weight_map": {}}
    for i, shard in enumerate(shards):
        file = "model-%05d-of-00002.safetensors" % (i + 1)
        save_file(shard, str(out / file), metadata={"format": "pt"})
        index["weight_map"].update({name: file for name in shard})
    (out / "model.safetensors.index.json").write_text(json.dumps(index, indent=2, sort_keys=True) + "\n")


def orthogonalised(g):
    """Newton-Schulz steps that bring every singular value of each matrix of g [count, rows, columns] near one."""
    x = g.to(DTYPE)
    tall = x.shape[-2] > x.shape[-1]
    if tall:
        x = x.mT
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(5):
        a = x @ x.mT
        x = 3.4445 * x + (-4.7750 * a + 2.0315 * (a @ a)) @ x
    return (x.mT if tall else x).float()


class Muon:
    """Muon over groups of matrices of one shape; the update's scale matches Adam's, so one rate serves both."""

    def __init__(self, matrices, decay=0.1, momentum=0.95):
        self.groups, self.decay, self.momentum = {}, decay, momentum
        for p in matrices:
            self.groups.setdefault(tuple(p.shape), []).append(p)
        self.buffers = {s: torch.zeros(len(ps), *s, device=ps[0].device) for s, ps in self.groups.items()}

    @torch.no_grad()
    def step(self, rate):
        for shape, params in self.groups.items():
            g, buffer = torch.stack([p.grad for p in params]), self.buffers[shape]
            buffer.lerp_(g, 1 - self.momentum)
            update = orthogonalised(g.lerp(buffer, self.momentum)) * (0.2 * max(shape) ** 0.5)
            torch._foreach_mul_(params, 1 - rate * self.decay)
            torch._foreach_add_(params, list(update.unbind(0)), alpha=-rate)


class Rows:
    """Sequences that each start at a document's start."""

    def __init__(self, kind, bos):
        files = sorted(_packed.glob(kind + "_[0-9]*[0-9].npy"))
        tokens = numpy.concatenate([numpy.load(f) for f in files])
        starts = numpy.flatnonzero(tokens == bos)
        starts = starts[starts < len(tokens) - args.length - 1]
        self.tokens = torch.from_numpy(tokens.astype(numpy.int16)).to(DEVICE)
        self.starts = torch.from_numpy(starts).to(DEVICE)
        self.span = torch.arange(args.length + 1, device=DEVICE)
        log("%s: %.1f M tokens, %d documents, %d files" % (kind, len(tokens) / 1e6, len(starts), len(files)))

    def draw(self, count):
        at = self.starts[torch.randint(len(self.starts), (count,), device=DEVICE)]
        return self.tokens[at[:, None] + self.span].long()


def main():
    torch.manual_seed(1)
    config = json.loads((args.model / "config.json").read_text())
    model = Llama(config).to(DEVICE)
    log("%.2f M parameters on %s" % (sum(p.numel() for p in model.parameters()) / 1e6, torch.cuda.get_device_name() if CUDA else "the CPU"))
    if args.init:
        from safetensors.torch import load_file

        weights = {k: v for f in sorted(args.init.glob("*.safetensors")) for k, v in load_file(str(f)).items()}
        with torch.no_grad():
            for name, p in hf_names(model).items():
                p.copy_(weights[name])
    matrices = [p for b in model.blocks for p in b.parameters() if p.ndim == 2]
    others = [model.embedding, model.norm] + [p for b in model.blocks for p in b.parameters() if p.ndim == 1]
    if args.adam:
        matrices, others = [], list(model.parameters())
    muon = Muon(matrices)
    adam = torch.optim.AdamW(others, lr=args.rate, betas=(0.9, 0.95), weight_decay=0.0, fused=CUDA)
    step, used = 0, 0.0
    checkpoint = args.work / "checkpoint.pt"
    if checkpoint.exists():
        state = torch.load(checkpoint, map_location=DEVICE)
        model.load_state_dict(state["model"])
        adam.load_state_dict(state["adam"])
        muon.buffers = state["muon"]
        step, used = state["step"], state["used"]
        log("going on from step %d" % step)

    eager_head = model.head_loss
    warm = torch.randint(10, 4000, (args.rows, args.length + 1), device=DEVICE)
    if CUDA and not args.no_compile:
        try:
            for block in model.blocks:
                block.compile(dynamic=False)
            model.head_loss = torch.compile(head_loss, dynamic=False)
            model(warm[:, :-1], warm[:, 1:]).backward()
            torch.cuda.synchronize()
        except Exception as error:  # a compiler that fails must not cost the run
            log("without compilation: %r" % (error,))
            model.head_loss = eager_head
            for block in model.blocks:
                block._compiled_call_impl = None
    for p in model.parameters():
        p.grad = None
    log("compiled")
    while _packer and not (_packed / "done").exists():
        if _packer.poll() not in (None, 0):
            raise SystemExit("packing failed")
        time.sleep(0.2)
    bos = config["bos_token_id"]
    story, task = Rows("story", bos), Rows("task", bos)
    stories_a_step = round(args.rows * args.story_share)

    begun = time.time()
    budget = args.seconds - (begun - _STARTED) - 6
    saved, seen, losses = begun, 0, []
    while True:
        elapsed = time.time() - begun
        done = (used + elapsed) / (used + budget)
        if elapsed >= budget or step >= args.steps:
            break
        rate = args.rate * min(1.0, (step + 1) / args.warm_up) * min(1.0, max(0.0, (1 - done) / (1 - args.decay_from)))
        rows = torch.cat((story.draw(stories_a_step), task.draw(args.rows - stories_a_step)))
        loss = model(rows[:, :-1], rows[:, 1:])
        loss.backward()
        muon.step(rate)
        for group in adam.param_groups:
            group["lr"] = rate
        adam.step()
        for p in model.parameters():
            p.grad = None
        step += 1
        seen += rows.shape[0] * args.length
        losses.append(loss.detach())
        if step % 25 == 0 or not CUDA:
            value = torch.stack(losses).mean().item()
            losses = []
            if step % 100 == 0 or step <= 100:
                log("step %d loss %.4f rate %.5f, %.2f M tokens/s" % (step, value, rate, seen / (time.time() - begun) / 1e6))
            if value != value:
                raise SystemExit("the loss is not a number")
        if time.time() - saved > 60:
            saved = time.time()
            torch.save({"model": model.state_dict(), "adam": adam.state_dict(), "muon": muon.buffers, "step": step, "used": used + time.time() - begun}, checkpoint)
            export(model, args.out)
    if CUDA:
        torch.cuda.synchronize()
    log("%d steps, %.1f M tokens" % (step, seen / 1e6))
    export(model, args.out)
    for name, rows in (("story", story), ("unseen story", Rows("unseen", bos)), ("task", task)):
        batch = rows.draw(args.rows)
        with torch.no_grad():
            log("%s loss %.4f" % (name, model(batch[:, :-1], batch[:, 1:]).item()))


if __name__ == "__main__":
    main()
