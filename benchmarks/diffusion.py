"""The U-Net of Stable Diffusion 1.5 (Rombach et al., 2022) at its real size, in plain PyTorch: 860 million parameters,
for latents of 64 x 64, a step's time and the 77 tokens of a prompt. `whole_networks.py` measures it."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

WIDTHS = (320, 640, 1280, 1280)
HEADS, TEXT = 8, 768


class Residual(nn.Module):
    """GroupNorm, SiLU, 3x3, twice; the step's embedding is added between."""

    def __init__(self, channels: int, outputs: int) -> None:
        super().__init__()
        self.norm1, self.conv1 = nn.GroupNorm(32, channels), nn.Conv2d(channels, outputs, 3, padding=1)
        self.time = nn.Linear(4 * WIDTHS[0], outputs)
        self.norm2, self.conv2 = nn.GroupNorm(32, outputs), nn.Conv2d(outputs, outputs, 3, padding=1)
        self.skip = nn.Conv2d(channels, outputs, 1) if channels != outputs else nn.Identity()

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        y = self.conv1(F.silu(self.norm1(x))) + self.time(F.silu(time))[:, :, None, None]
        return self.skip(x) + self.conv2(F.silu(self.norm2(y)))


class Attention(nn.Module):
    """Attention of pixels [N, L, C] to pixels, or to a prompt [N, T, 768]."""

    def __init__(self, channels: int, keys: int) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(c, channels, bias=False) for c in (channels, keys, keys))
        self.out = nn.Linear(channels, channels)

    def forward(self, x: Tensor, keys: Tensor) -> Tensor:
        q, k, v = (t.unflatten(2, (HEADS, -1)).transpose(1, 2) for t in (self.q(x), self.k(keys), self.v(keys)))
        return self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


class Transformer(nn.Module):
    """Pixels to pixels, pixels to prompt, a gated feed-forward."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(32, channels, 1e-6)
        self.into, self.back = nn.Conv2d(channels, channels, 1), nn.Conv2d(channels, channels, 1)
        self.norm1, self.attention1 = nn.LayerNorm(channels), Attention(channels, channels)
        self.norm2, self.attention2 = nn.LayerNorm(channels), Attention(channels, TEXT)
        self.norm3, self.wide = nn.LayerNorm(channels), nn.Linear(channels, 8 * channels)
        self.narrow = nn.Linear(4 * channels, channels)

    def forward(self, x: Tensor, prompt: Tensor) -> Tensor:
        h, w = x.shape[-2:]
        y = self.into(self.norm(x)).permute(0, 2, 3, 1).flatten(1, 2)
        normed = self.norm1(y)
        y = y + self.attention1(normed, normed)
        y = y + self.attention2(self.norm2(y), prompt)
        value, gate = self.wide(self.norm3(y)).chunk(2, -1)
        y = y + self.narrow(value * F.gelu(gate))
        return x + self.back(y.unflatten(1, (h, w)).permute(0, 3, 1, 2))


class Layer(nn.Module):
    """A residual block, and behind it a transformer where the level has one."""

    def __init__(self, channels: int, outputs: int, attends: bool) -> None:
        super().__init__()
        self.residual, self.transformer = Residual(channels, outputs), Transformer(outputs) if attends else None

    def forward(self, x: Tensor, time: Tensor, prompt: Tensor) -> Tensor:
        x = self.residual(x, time)
        return x if self.transformer is None else self.transformer(x, prompt)


class Diffusion(nn.Module):
    """Latents [N, 4, H, W], steps [N] and prompts [N, T, 768] to the noise [N, 4, H, W]."""

    def __init__(self) -> None:
        super().__init__()
        first = WIDTHS[0]
        self.time1, self.time2 = nn.Linear(first, 4 * first), nn.Linear(4 * first, 4 * first)
        self.into = nn.Conv2d(4, first, 3, padding=1)
        self.down, self.smaller = nn.ModuleList(), nn.ModuleList()
        channels, kept = first, [first]
        for i, width in enumerate(WIDTHS):
            for _ in range(2):
                self.down.append(Layer(channels, width, i < 3))
                channels = width
                kept.append(width)
            if i < 3:
                self.smaller.append(nn.Conv2d(width, width, 3, 2, 1))
                kept.append(width)
        self.middle1, self.middle2 = Layer(channels, channels, True), Layer(channels, channels, False)
        self.up, self.larger = nn.ModuleList(), nn.ModuleList()
        for i, width in reversed(list(enumerate(WIDTHS))):
            for _ in range(3):
                self.up.append(Layer(channels + kept.pop(), width, i < 3))
                channels = width
            if i:
                self.larger.append(nn.Conv2d(width, width, 3, padding=1))
        self.norm, self.last = nn.GroupNorm(32, first), nn.Conv2d(first, 4, 3, padding=1)

    def forward(self, x: Tensor, steps: Tensor, prompt: Tensor) -> Tensor:
        half = WIDTHS[0] // 2
        angles = steps[:, None].float() * torch.exp(torch.arange(half, device=x.device) * (-math.log(10000) / half))
        time = self.time2(F.silu(self.time1(torch.cat([angles.cos(), angles.sin()], -1).to(x.dtype))))
        x = self.into(x)
        kept = [x]
        for i, layer in enumerate(self.down):
            x = layer(x, time, prompt)
            kept.append(x)
            if i % 2 and i // 2 < 3:
                x = self.smaller[i // 2](x)
                kept.append(x)
        x = self.middle2(self.middle1(x, time, prompt), time, prompt)
        for i, layer in enumerate(self.up):
            x = layer(torch.cat([x, kept.pop()], 1), time, prompt)
            if i % 3 == 2 and i // 3 < 3:
                x = self.larger[i // 3](F.interpolate(x, scale_factor=2.0))
        return self.last(F.silu(self.norm(x)))
