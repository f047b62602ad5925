"""The optimizer of train.py, the linear probe, and the report."""
import collections

import numpy
import torch
import torch.nn.functional as F

from glyphs import NOUNS
from scene_rows import PATCH, SIDE
from scenes import COLOURS, GROUNDS

SIZES = (len(NOUNS) + 1, len(COLOURS) + 1)


class Probe(torch.nn.Module):
    """Linear heads that read each cell's noun and colour, and the ground, of the encoder's rows averaged over the cell."""

    def __init__(self, width):
        super().__init__()
        self.heads = torch.nn.ModuleList(torch.nn.Linear(width, size) for size in (*SIZES, len(GROUNDS)))

    def forward(self, features):
        cells = pooled(features)
        return self.heads[0](cells), self.heads[1](cells), self.heads[2](cells.mean(1))

    def loss(self, features, labels):
        """labels [n, 10, 2] of examples.cells."""
        nouns, colours, grounds = self(features)
        return (F.cross_entropy(nouns.flatten(0, 1), labels[:, :9, 0].flatten()) + F.cross_entropy(colours.flatten(0, 1), labels[:, :9, 1].flatten()) +
                0.1 * F.cross_entropy(grounds, labels[:, 9, 0]))


def pooled(features):
    """The means [n, 9, d] over the cells of three by three."""
    n, _, d = features.shape
    side = SIDE // PATCH // 3
    return features.float().reshape(n, 3, side, 3, side, d).mean((2, 4)).reshape(n, 9, d)


def orthogonalised(g, dtype):
    """Newton-Schulz steps that bring every singular value of each matrix of g [count, rows, columns] near one."""
    x = g.to(dtype)
    tall = x.shape[-2] > x.shape[-1]
    x = x.mT if tall else x
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(5):
        a = x @ x.mT
        x = 3.4445 * x + (-4.7750 * a + 2.0315 * (a @ a)) @ x
    return (x.mT if tall else x).float()


class Optimizer:
    """Muon for the blocks' matrices and the projector's, grouped by shape; Adam for all else."""

    def __init__(self, model, probe, dtype, decay=0.05, momentum=0.95):
        self.dtype, self.decay, self.momentum = dtype, decay, momentum
        blocks = [p for part in (*model.encoder.blocks, *model.blocks) for p in part.parameters() if p.ndim == 2] + [model.first, model.second]
        known = {id(p) for p in blocks}
        self.groups = collections.defaultdict(list)
        for p in blocks:
            self.groups[tuple(p.shape)].append(p)
        self.buffers = {s: torch.zeros(len(ps), *s, device=ps[0].device) for s, ps in self.groups.items()}
        self.others = [p for p in (*model.parameters(), *probe.parameters()) if id(p) not in known]
        self.adam = torch.optim.AdamW(self.others, betas=(0.9, 0.98), weight_decay=0.0, fused=self.others[0].is_cuda)

    @torch.no_grad()
    def step(self, rate):
        for shape, params in self.groups.items():
            g, buffer = torch.stack([p.grad for p in params]), self.buffers[shape]
            buffer.lerp_(g, 1 - self.momentum)
            update = orthogonalised(g.lerp(buffer, self.momentum), self.dtype) * (0.2 * max(shape) ** 0.5)
            torch._foreach_mul_(params, 1 - rate * self.decay)
            torch._foreach_add_(params, list(update.unbind(0)), alpha=-rate)
            for p in params:
                p.grad = None
        torch.nn.utils.clip_grad_norm_([p for p in self.others if p.grad is not None], 1.0)
        for group in self.adam.param_groups:
            group["lr"] = rate
        self.adam.step()
        self.adam.zero_grad(set_to_none=True)


def chunks(trainer, held_out, size=250):
    for i in range(0, len(held_out), size):
        part = held_out[i:i + size]
        pixels = torch.from_numpy(numpy.stack([item[3] for item in part])).to(trainer.device).float() / 127.5 - 1
        yield part, trainer.model.encoder(pixels, trainer.dtype)


@torch.no_grad()
def evaluate(trainer, held_out):
    """The share of held-out answers that greedy decoding gives exactly: those of which each token is the likeliest."""
    right, total, misses = collections.Counter(), collections.Counter(), []
    for part, features in chunks(trainer, held_out):
        tokens = torch.tensor([item[4] for item in part], device=trainer.device)
        learned = torch.tensor([item[5] for item in part], device=trainer.device)[:, 1:].bool()
        chosen = trainer.model.logits(trainer.model.decode(tokens[:, :-1], features)).argmax(-1)
        wrong = ((chosen != tokens[:, 1:]) & learned).any(1).tolist()
        for item, missed in zip(part, wrong):
            total[item[0]] += 1
            right[item[0]] += not missed
            if missed and len(misses) < 40:
                misses.append(item[:3])
    return {"held_out": sum(total.values()), "right": sum(right.values()) / sum(total.values()),
            "by_kind": {kind: [right[kind], total[kind]] for kind in sorted(total)}, "misses": misses}


def fit_probe(trainer, held_out, batches, steps=150):
    """A fresh probe on the frozen encoder, fitted on training scenes, and what it reads of held-out pictures."""
    probe = Probe(trainer.model.first.shape[1]).to(trainer.device)
    optimizer = torch.optim.Adam(probe.parameters(), lr=2e-2)
    for step in range(steps):
        batch = trainer.to_device(batches.get())
        with torch.no_grad():
            features = trainer.model.encoder(trainer.pixels(batch), trainer.dtype)
        optimizer.param_groups[0]["lr"] = 2e-2 * (1 - step / steps)
        optimizer.zero_grad()
        probe.loss(features, batch["labels"].long()).backward()
        optimizer.step()
    cells = whole = 0
    with torch.no_grad():
        for part, features in chunks(trainer, held_out):
            labels = torch.tensor(numpy.stack([item[6] for item in part]), device=trainer.device)
            nouns, colours, grounds = (x.argmax(-1) for x in probe(features))
            exact = (nouns == labels[:, :9, 0]) & (colours == labels[:, :9, 1])
            cells += exact.float().mean(1).sum().item()
            whole += (exact.all(1) & (grounds == labels[:, 9, 0])).sum().item()
    return {"probe_cells": cells / len(held_out), "probe_scenes": whole / len(held_out)}
