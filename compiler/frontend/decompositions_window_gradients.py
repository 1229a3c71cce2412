"""Decompositions of the gradients of averages and maxima over windows, and of padding by the border.

Each is a sum of the results' gradients that constant tables name for every element, one dimension after the other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from mlirc.frontend.decompositions_pooling import Windows, adaptive_windows, each, sliding_windows
from mlirc.frontend.decompositions_resize import weighted
from mlirc.frontend.resize_taps import Taps

aten = torch.ops.aten
Tensor = torch.Tensor

WINDOW_GRADIENTS: dict[Any, Callable] = {}
_HALF = (torch.float16, torch.bfloat16)


def _summed(gradient: Tensor, windows: Sequence[Windows], sizes: Sequence[int]) -> Tensor:
    """For each element of the last dimensions, of these sizes, the sum over the windows that it is in."""
    for dim, (places, size) in enumerate(zip(windows, sizes, strict=True), start=gradient.dim() - len(sizes)):
        longest = max(map(len, places), default=1)
        indices = np.array([w + [w[0]] * (longest - len(w)) for w in places], dtype=np.int64).reshape(-1, longest)
        used = np.array([[i < len(w) for i in range(longest)] for w in places]).reshape(-1, longest)
        taps = Taps(indices, np.ones(indices.shape, dtype=np.float32), used)
        gradient = weighted(gradient, dim, taps.transposed(size))
    return gradient


def _shared(gradient: Tensor, counts: Sequence[Sequence[int]]) -> Tensor:
    """Gradients over how many elements each of the last dimensions' windows count."""
    divisor = np.ones(())
    for lengths in counts:
        divisor = divisor[..., None] * np.array(lengths, dtype=np.float64)
    return gradient / torch.tensor(divisor.tolist(), dtype=gradient.dtype, device=gradient.device)


def _average(rank: int) -> Callable:
    def backward(
        gradient: Tensor,
        x: Tensor,
        kernel: list[int],
        stride: list[int],
        padding: list[int],
        ceil_mode: bool,
        count_include_pad: bool,
        divisor: int | None,
    ) -> Tensor:
        sizes, kernel = list(x.shape[-rank:]), each(kernel, rank)
        stride, padding = each(stride, rank) if stride else kernel, each(padding, rank)
        settings = list(zip(sizes, kernel, stride, padding, strict=True))
        windows = [sliding_windows(n, k, s, p, 1, ceil_mode) for n, k, s, p in settings]
        wide = gradient.float() if gradient.dtype in _HALF else gradient
        if divisor:
            wide = wide / divisor
        elif count_include_pad:  # but not what lies behind the padding
            counts = [
                [min(k, n + 2 * p - i * s) for i in range(len(w))]
                for w, (n, k, s, p) in zip(windows, settings, strict=True)
            ]
            wide = _shared(wide, counts)
        else:
            wide = _shared(wide, [list(map(len, w)) for w in windows])
        return _summed(wide, windows, sizes).to(gradient.dtype)

    return backward


def _adaptive(rank: int) -> Callable:
    def backward(gradient: Tensor, x: Tensor) -> Tensor:
        sizes = list(x.shape[-rank:])
        windows = [adaptive_windows(n, m) for n, m in zip(sizes, gradient.shape[-rank:], strict=True)]
        wide = gradient.float() if gradient.dtype in _HALF else gradient
        return _summed(_shared(wide, [list(map(len, w)) for w in windows]), windows, sizes).to(gradient.dtype)

    return backward


def _largest(rank: int) -> Callable:
    def backward(gradient: Tensor, x: Tensor, indices: Tensor) -> Tensor:
        lead, wide = list(x.shape[:-rank]), gradient.float() if gradient.dtype in _HALF else gradient
        zeros = wide.new_zeros([*lead, x.shape[-rank:].numel()])
        out = aten.scatter_add.default(zeros, -1, indices.reshape([*lead, -1]), wide.reshape([*lead, -1]))
        return out.reshape(x.shape).to(gradient.dtype)

    return backward


def _replicated(rank: int) -> Callable:
    def backward(gradient: Tensor, x: Tensor, padding: list[int]) -> Tensor:
        sizes = list(x.shape[-rank:])
        befores, afters = padding[-2::-2], padding[-1::-2]
        windows = [
            [[min(max(i - before, 0), n - 1)] for i in range(n + before + after)]
            for n, before, after in zip(sizes, befores, afters, strict=True)
        ]
        wide = gradient.float() if gradient.dtype in _HALF else gradient
        return _summed(wide, windows, sizes).to(gradient.dtype)

    return backward


for _rank in (2, 3):
    WINDOW_GRADIENTS[getattr(aten, f"avg_pool{_rank}d_backward").default] = _average(_rank)
    WINDOW_GRADIENTS[getattr(aten, f"_adaptive_avg_pool{_rank}d_backward").default] = _adaptive(_rank)
    WINDOW_GRADIENTS[getattr(aten, f"adaptive_max_pool{_rank}d_backward").default] = _largest(_rank)
for _rank in (1, 2, 3):
    WINDOW_GRADIENTS[getattr(aten, f"replication_pad{_rank}d_backward").default] = _replicated(_rank)
