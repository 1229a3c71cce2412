"""Decompositions of transforms between signals and spectra that PyTorch does not take apart for fixed shapes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

aten = torch.ops.aten
Tensor = torch.Tensor

SPECTRA: dict[Any, Callable] = {}


def _overlap_add(frames: Tensor, hop: int) -> Tensor:
    """The sum of frames [..., T, n] that begin `hop` apart: [..., (T - 1) * hop + n]."""
    count, size = frames.shape[-2:]
    parts = -(-size // hop)
    frames = F.pad(frames, (0, parts * hop - size))
    blocks = frames.reshape(*frames.shape[:-1], parts, hop)
    out = None
    for i in range(parts):  # part i of frame t lies in block t + i
        moved = F.pad(blocks[..., i, :], (0, 0, i, parts - 1 - i))
        out = moved if out is None else out + moved
    assert out is not None
    return out.reshape(*out.shape[:-2], -1)[..., : (count - 1) * hop + size]


def _istft(
    x: Tensor,
    n_fft: int,
    hop_length: int | None = None,
    win_length: int | None = None,
    window: Tensor | None = None,
    center: bool = True,
    normalized: bool = False,
    onesided: bool | None = None,
    length: int | None = None,
    return_complex: bool = False,
) -> Tensor:
    """x [..., frequencies, T] complex. PyTorch also refuses windows that leave a gap, which only values tell."""
    hop, width = hop_length or n_fft // 4, win_length or n_fft
    spectrum = x.transpose(-1, -2)
    norm = "ortho" if normalized else "backward"
    onesided = x.shape[-2] != n_fft if onesided is None else onesided
    if onesided and not return_complex:
        frames = torch.fft.irfft(spectrum, n=n_fft, dim=-1, norm=norm)
    else:
        frames = torch.fft.ifft(spectrum, n=n_fft, dim=-1, norm=norm)
        frames = frames if return_complex else torch.real(frames)
    window = torch.ones(width, dtype=x.real.dtype, device=x.device) if window is None else window
    left = (n_fft - width) // 2
    window = F.pad(window, (left, n_fft - width - left))
    signal = _overlap_add(frames * window, hop)
    weight = _overlap_add((window * window).expand(x.shape[-1], n_fft), hop)
    start = n_fft // 2 if center else 0
    whole = signal.shape[-1]
    end = start + length if length is not None else whole - n_fft // 2 if center else whole
    out = signal[..., start : min(end, whole)] / weight[start : min(end, whole)]
    return F.pad(out, (0, end - whole)) if end > whole else out


def _same(x: Tensor) -> Tensor:
    return aten.alias.default(x)


SPECTRA |= {
    aten.istft.default: _istft,
    aten._neg_view.default: torch.neg,  # the imaginary part of a conjugate
    aten.resolve_neg.default: _same,
    aten.resolve_conj.default: _same,
}
