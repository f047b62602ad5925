"""Draws scenes by tensors at the size that the encoder reads, as draw.py and the processor's resizing do it, and the noise
of JPEG files besides. Scenes come as rows of scene_rows.py."""
import math

import torch

from glyphs import OUTLINES, SEGMENTS
from scene_rows import SIDE, THINGS


def table(device):
    """The outlines [count, SEGMENTS, 4], and which are filled [count]."""
    segments = torch.tensor([each[2] for each in OUTLINES], dtype=torch.float32, device=device)
    return segments, torch.tensor([each[1] for each in OUTLINES], device=device)


def shares(things, segments, filled, step, side=SIDE):
    """The share of each pixel that each thing covers [pictures, THINGS, side, side]."""
    outline = things[..., 0].clamp(min=0).long()
    lines, fill = segments[outline], filled[outline][..., None, None]  # [b, n, SEGMENTS, 4]
    _, x, y, scale_x, scale_y, cos, sin, half_width = (things[..., i][..., None, None] for i in range(8))
    at = (torch.arange(side, device=things.device) + 0.5) / side
    u, v = (at[None, None, None, :] - x) * scale_x, (at[None, None, :, None] - y) * scale_y
    u, v = cos * u + sin * v, cos * v - sin * u
    nearest, crossings = torch.full_like(u, 1e9), torch.zeros_like(u)
    for s in range(SEGMENTS):
        x0, y0, x1, y1 = (lines[:, :, s, i][..., None, None] for i in range(4))
        dx, dy, px, py = x1 - x0, y1 - y0, u - x0, v - y0
        t = ((px * dx + py * dy) / (dx * dx + dy * dy).clamp(min=1e-12)).clamp(0, 1)
        nearest = torch.minimum(nearest, (px - t * dx).square() + (py - t * dy).square())
        crosses = ((y0 > v) != (y1 > v)) & (px < dx * py / torch.where(dy == 0, 1.0, dy))
        crossings = crossings + crosses
    away = nearest.sqrt()
    away = torch.where(fill, torch.where(crossings % 2 == 1, -away, away), away - half_width)
    # Pixels of the canvas; what is resized to fewer is softened over those that make one.
    pixel = torch.sqrt((scale_x * scale_y).abs())  # of the outline's unit, as a share of the canvas
    distance = away * side * step / pixel
    return (0.5 - distance / step.clamp(min=1.0)).clamp(0, 1) * (things[..., 0] >= 0)[..., None, None]


def compose(things, ground, segments, filled, side=SIDE):
    """Pictures [count, 3, side, side], 0 to 255."""
    step = ground[:, 4][:, None, None, None]
    share = shares(things, segments, filled, step)
    lift = ground[:, 3][:, None] * ((torch.arange(side, device=ground.device) + 0.5) / side - 0.5)
    picture = (ground[:, :3, None, None] + lift[:, None, :, None]).expand(-1, -1, -1, side).clamp(0, 255)
    for n in range(THINGS):
        rgb = things[:, n, 8:11][:, :, None, None]
        picture = picture + share[:, n, None] * (rgb - picture)
    return picture


LUMINANCE = [16, 11, 10, 16, 24, 40, 51, 61, 12, 12, 14, 19, 26, 58, 60, 55, 14, 13, 16, 24, 40, 57, 69, 56, 14, 17, 22, 29, 51, 87, 80, 62,
             18, 22, 37, 56, 68, 109, 103, 77, 24, 35, 55, 64, 81, 104, 113, 92, 49, 64, 78, 87, 103, 121, 120, 101, 72, 92, 95, 98, 112, 100, 103, 99]


def cosines(device):
    k = torch.arange(8, device=device, dtype=torch.float32)
    matrix = torch.cos((2 * k[None] + 1) * k[:, None] * math.pi / 16) / 2
    matrix[0] /= math.sqrt(2)
    return matrix


def halved(plane):
    """A plane whose squares of two by two pixels are their mean."""
    b, c, side, _ = plane.shape
    mean = plane.reshape(b, c, side // 2, 2, side // 2, 2).mean((3, 5))
    return mean[:, :, :, None, :, None].expand(-1, -1, -1, 2, -1, 2).reshape(plane.shape)


def jpeg_noise(picture, strength):
    """Quantises blocks of eight as JPEG does, most with colours of half the resolution. strength [count]: of the table of
    quality 50; 0 changes nothing."""
    b, _, side, _ = picture.shape
    device = picture.device
    to = torch.tensor([[0.299, 0.587, 0.114], [-0.168736, -0.331264, 0.5], [0.5, -0.418688, -0.081312]], device=device)
    matrix = cosines(device)
    planes = torch.einsum("kc,bchw->bkhw", to, picture - 128)
    fewer = (strength > 0.4)[:, None, None, None]
    planes = torch.cat((planes[:, :1], torch.where(fewer, halved(planes[:, 1:]), planes[:, 1:])), 1)
    blocks = planes.reshape(b, 3, side // 8, 8, side // 8, 8).transpose(3, 4)
    made = matrix @ blocks @ matrix.T
    steps = torch.tensor(LUMINANCE, device=device, dtype=torch.float32).reshape(8, 8)
    coarser = torch.tensor([1.0, 1.5, 1.5], device=device)[None, :, None, None, None, None]
    steps = (steps * strength[:, None, None, None, None, None] * coarser).clamp(min=1)
    rounded = matrix.T @ (torch.round(made / steps) * steps) @ matrix
    back = rounded.transpose(3, 4).reshape(b, 3, side, side)
    back = torch.einsum("ck,bkhw->bchw", torch.linalg.inv(to), back) + 128
    return torch.where((strength > 0)[:, None, None, None], back, picture).clamp(0, 255)


def soften(picture, weight):
    """A blur of three pixels; weight [count] of the neighbours, up to 0.2."""
    w = weight[:, None, None, None]
    for axis in (2, 3):
        size = picture.shape[axis]
        index = torch.arange(size, device=picture.device)
        before, after = (picture.index_select(axis, (index + d).clamp(0, size - 1)) for d in (-1, 1))
        picture = picture * (1 - 2 * w) + w * (before + after)
    return picture


def spoil(picture, generator=None):
    """The noise of training: half of the pictures as JPEG has them, some blurred, some grainy."""
    count, device = picture.shape[0], picture.device

    def drawn(share, most):
        chosen = torch.rand(count, device=device, generator=generator) < share
        return chosen * torch.rand(count, device=device, generator=generator) * most

    picture = soften(picture, drawn(0.4, 0.2))
    picture = jpeg_noise(picture, drawn(0.5, 1.6))
    grain = torch.randn(picture.shape, device=device, generator=generator) * drawn(0.3, 6.0)[:, None, None, None]
    return (picture + grain).round().clamp(0, 255)
