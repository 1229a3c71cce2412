"""Decompositions of resizes (`interpolate`), one dimension after the other from the last, and of their gradients.

Each element of a result is a weighted sum of elements that constant tables name (`resize_taps.py`). They are read one
by one, and not multiplied as a matrix: an infinity that has no part in a sum must not reach it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from mlirc.frontend import resize_taps
from mlirc.frontend.resize_taps import Taps

aten = torch.ops.aten
Tensor = torch.Tensor

RESIZES: dict[Any, Callable] = {}
_UNROLLED = 8  # taps up to which a sum is written out; beyond, it is a reduction
_HALF = (torch.float16, torch.bfloat16)


def _nearest(x: Tensor, sizes: list[int], factors: list[float | None], exact: bool) -> Tensor:
    plain = _channels_side_by_side(x, sizes)
    for dim, new, factor in _from_last(x, sizes, factors):
        places = resize_taps.nearest(x.shape[dim], new, factor, exact, plain, x.dtype == torch.float64)
        if places.tolist() != list(range(x.shape[dim])):
            x = aten.index_select.default(x, dim, torch.tensor(places.tolist(), device=x.device))
    return x.clone()


def _channels_side_by_side(x: Tensor, sizes: list[int]) -> bool:
    """Whether PyTorch takes its kernel for channels-last tensors, whose rules are others."""
    if len(sizes) == 1:
        return False
    last = torch.channels_last if len(sizes) == 2 else torch.channels_last_3d
    few = len(sizes) == 2 and sum(sizes) <= 128
    return few or (x.shape[1] > 3 and x.is_contiguous(memory_format=last))


def _from_last(x: Tensor, sizes: list[int], factors: list[float | None]) -> list[tuple[int, int, float | None]]:
    first = x.dim() - len(sizes)
    return [(first + i, sizes[i], factors[i]) for i in reversed(range(len(sizes)))]


def _taps(mode: str, x: Tensor, align: bool, smooth: bool) -> Callable[[int, int, float | None], Taps]:
    """(old size, new size, factor) to the taps of a resize of x."""
    dtype = np.float64 if x.dtype in (torch.float64, torch.uint8) else np.float32
    if smooth:
        return lambda old, new, factor: resize_taps.smoothed(mode, old, new, align, factor, dtype)
    if x.dtype == torch.uint8:
        return lambda old, new, factor: resize_taps.of_bytes(mode, old, new, align, factor)
    made = {"linear": resize_taps.linear, "cubic": resize_taps.cubic}[mode]
    return lambda old, new, factor: made(old, new, align, factor, dtype)


def _resize(x: Tensor, sizes: list[int], factors: list[float | None], mode: str, align: bool, smooth: bool) -> Tensor:
    taps = _taps(mode, x, align, smooth)
    if not x.is_floating_point():
        return _resize_bytes(x, sizes, factors, taps, mode)
    out = x.float() if x.dtype in _HALF else x
    rounded = x.dtype in _HALF and not _channels_side_by_side(x, sizes)
    for dim, new, factor in _from_last(x, sizes, factors):
        if not smooth or new != x.shape[dim]:
            found = taps(x.shape[dim], new, factor)
            out = weighted(out, dim, found.rounded(x.dtype == torch.bfloat16, mode == "linear") if rounded else found)
    return out.to(x.dtype).clone() if out is x else out.to(x.dtype)


def _resize_bytes(x: Tensor, sizes: list[int], factors: list[float | None], taps: Callable, mode: str) -> Tensor:
    """Weights are integers, and every dimension's result is rounded to bytes."""
    if x.dtype != torch.uint8 or len(sizes) != 2:
        raise ValueError(f"PyTorch has no {mode} resize of {x.dtype} in {len(sizes)} dimensions: give it floats")
    out = x
    for dim, new, factor in _from_last(x, sizes, factors):
        if new != x.shape[dim]:
            found = taps(x.shape[dim], new, factor)
            weights, bits = found.fixed_point()
            total = weighted(out.to(torch.int32), dim, Taps(found.indices, weights, found.used))
            out = ((total + (1 << (bits - 1))) >> bits).clamp(0, 255).to(torch.uint8)
    return out.clone() if out is x else out


def weighted(x: Tensor, dim: int, taps: Taps) -> Tensor:
    """The sums of the taps of a dimension times their weights, in the dtype of x."""
    count = taps.indices.shape[1]
    behind = [1] * (x.dim() - 1 - dim)
    if count > _UNROLLED:
        read = _at(x, dim, taps.indices)
        if not taps.used.all():
            read = torch.where(_constant(taps.used, torch.bool, x, behind), read, 0)
        return aten.sum.dim_IntList(read * _constant(taps.weights, x.dtype, x, behind), [dim + 1], dtype=x.dtype)
    total = None
    for tap in range(count):
        term = _at(x, dim, taps.indices[:, tap]) * _constant(taps.weights[:, tap], x.dtype, x, behind)
        if not taps.used[:, tap].all():
            term = torch.where(_constant(taps.used[:, tap], torch.bool, x, behind), term, 0)
        total = term if total is None else total + term
    assert total is not None
    return total


def _at(x: Tensor, dim: int, places: np.ndarray) -> Tensor:
    index: list[Tensor | None] = [None] * dim + [torch.tensor(places.tolist(), device=x.device)]
    return aten.index.Tensor(x, index)


def _constant(values: np.ndarray, dtype: torch.dtype, like: Tensor, behind: list[int]) -> Tensor:
    made = torch.tensor(values.tolist(), dtype=dtype, device=like.device)
    return made.reshape([*values.shape, *behind])


def _gradient(mode: str, smooth: bool = False, exact: bool = False) -> Callable:
    """The gradient of a resize, from that of its result: each element of the source sums what it is a part of."""

    def backward(gradient: Tensor, size: list[int], old: list[int], *rest: Any, **named: Any) -> Tensor:
        rank, align = len(size), bool(rest and rest[0]) if mode != "nearest" else False
        factors = _given(rest if mode == "nearest" else rest[1:], named, rank)
        out = gradient.float() if gradient.dtype in _HALF else gradient
        source = gradient.new_empty(old)
        for dim, new, factor in _from_last(source, size, factors):
            if mode == "nearest":
                places = resize_taps.nearest(old[dim], new, factor, exact, True, False)  # as PyTorch, for all layouts
                taps = Taps(places[:, None], np.ones((new, 1), np.float32), np.ones((new, 1), bool))
            else:
                taps = _taps(mode, source, align, smooth)(old[dim], new, factor)
            out = weighted(out, dim, taps.transposed(old[dim]))
        return out.to(gradient.dtype)

    return backward


def _given(scales: tuple[Any, ...], named: dict[str, Any], rank: int) -> list[float | None]:
    given = [*scales, *(v for k, v in named.items() if k.startswith("scales"))]
    return given or [None] * rank


def _sizes(x: Tensor, size: list[int] | None, factors: list[float] | None) -> tuple[list[int], list[float | None]]:
    """Sizes and factors of an op of which one is given."""
    old = x.shape[2:]
    if size is not None:
        return list(size), list(factors) if factors else [None] * len(size)
    assert factors is not None
    return [int(n * f) for n, f in zip(old, factors, strict=True)], list(factors)


def _register(name: str, mode: str, *, smooth: bool = False, exact: bool = False) -> None:
    rank = int(name.replace("_aa", "")[-2])

    def resize(x: Tensor, sizes: list[int], factors: list[float | None], align: bool) -> Tensor:
        if mode == "nearest":
            return _nearest(x, sizes, factors, exact)
        return _resize(x, sizes, factors, mode, align, smooth)

    def sized(x: Tensor, size: list[int], *rest: Any, **named: Any) -> Tensor:
        align = bool(named.pop("align_corners", rest[0] if rest else False)) if mode != "nearest" else False
        scales = rest if mode == "nearest" else rest[1:]
        return resize(x, list(size), _given(scales, named, rank), align)

    def scaled(x: Tensor, size: list[int] | None, *rest: Any, **named: Any) -> Tensor:
        given = [*rest, *named.values()]
        align = bool(given[0]) if mode != "nearest" else False
        return resize(x, *_sizes(x, size, given[-1]), align)

    RESIZES[getattr(aten, name).default] = sized
    RESIZES[getattr(aten, name).vec] = scaled
    backward = getattr(aten, f"{name}_backward", None)
    if backward is not None:
        RESIZES[backward.default] = _gradient(mode, smooth, exact)


for _rank in (1, 2, 3):
    _register(f"upsample_nearest{_rank}d", "nearest")
    _register(f"_upsample_nearest_exact{_rank}d", "nearest", exact=True)
_register("upsample_linear1d", "linear")
_register("upsample_bilinear2d", "linear")
_register("upsample_trilinear3d", "linear")
_register("upsample_bicubic2d", "cubic")
_register("_upsample_bilinear2d_aa", "linear", smooth=True)
_register("_upsample_bicubic2d_aa", "cubic", smooth=True)
if hasattr(aten, "_upsample_lanczos2d_aa"):  # since PyTorch 2.13
    _register("_upsample_lanczos2d_aa", "lanczos", smooth=True)
