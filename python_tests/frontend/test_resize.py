"""Resizes (`interpolate`) of every mode, rank and dtype, and their gradients, beside PyTorch."""

from __future__ import annotations

import random

import pytest
import torch
import torch.nn.functional as F

from mlirc.frontend.decompositions_resize import RESIZES
from support.models.together import check_together, randn

aten = torch.ops.aten
MODES = {
    "nearest": (aten.upsample_nearest1d, aten.upsample_nearest2d, aten.upsample_nearest3d),
    "exact": (aten._upsample_nearest_exact1d, aten._upsample_nearest_exact2d, aten._upsample_nearest_exact3d),
    "linear": (aten.upsample_linear1d, aten.upsample_bilinear2d, aten.upsample_trilinear3d),
    "cubic": (None, aten.upsample_bicubic2d, None),
    "linear, smooth": (None, aten._upsample_bilinear2d_aa, None),
    "cubic, smooth": (None, aten._upsample_bicubic2d_aa, None),
    "lanczos, smooth": (None, aten._upsample_lanczos2d_aa, None),
}
TOLERANCE = {torch.float64: 1e-13, torch.float32: 4e-6, torch.float16: 1e-3, torch.bfloat16: 8e-3, torch.uint8: 0}


def a_resize(r: random.Random, mode: str, rank: int, least: int = 1):
    """Sizes before, and the arguments of the op after its input."""
    old = [r.randint(least, r.choice([4, 12, 30 if rank < 3 else 9])) for _ in range(rank)]
    align = () if mode in ("nearest", "exact") else (not mode.startswith("lanczos") and r.random() < 0.4,)
    if r.random() < 0.5:
        return old, ([max(least, r.choice([r.randint(1, 2 * n + 2), n, 2 * n, 3 * n])) for n in old], *align, None)
    factors = [max(r.choice([1.1, 1.3, 2.3, 2.0, 0.5, 1.0, 4.7, r.uniform(0.3, 3)]), (least + 0.1) / n) for n in old]
    return old, (None, *align, factors)


@pytest.mark.parametrize("mode", MODES)
def test_sums_of_taps_are_those_of_pytorch(mode):
    """By the decompositions alone. Of one column PyTorch's antialiased kernel, and that of bytes, gives its first
    element everywhere, which is wrong: such results are not drawn."""
    r = random.Random(7)
    torch.manual_seed(7)
    for rank, op in enumerate(MODES[mode], 1):
        for _ in range(80 if op is not None else 0):
            dtypes = [torch.float32, torch.float64]
            dtypes += [] if "smooth" in mode else [torch.float16, torch.bfloat16]
            dtypes += [torch.uint8] if rank == 2 or mode in ("nearest", "exact") else []
            dtype = r.choice(dtypes)
            separable = dtype == torch.uint8 or "smooth" in mode
            old, args = a_resize(r, mode, rank, 2 if separable else 1)
            x = torch.rand(r.choice([1, 2]), r.randint(1, 6), *old)
            x = (x * 255).to(dtype) if dtype == torch.uint8 else (x * 2 - 1).to(dtype)
            if r.random() < 0.2 and dtype != torch.uint8:
                x.view(-1)[r.randrange(x.numel())] = r.choice([float("inf"), float("nan")])
            if rank > 1 and r.random() < 0.3:
                x = x.contiguous(memory_format=torch.channels_last if rank == 2 else torch.channels_last_3d)
            torch.testing.assert_close(
                RESIZES[op.vec](x, *args), op.vec(x, *args), rtol=0, atol=TOLERANCE[dtype], equal_nan=True
            )


@pytest.mark.parametrize("mode", MODES)
def test_gradients_are_those_of_pytorch(mode):
    r = random.Random(8)
    torch.manual_seed(8)
    for rank, op in enumerate(MODES[mode], 1):
        for _ in range(20 if op is not None else 0):
            old, args = a_resize(r, mode, rank, 2)
            x = torch.randn(1, 2, *old, dtype=torch.float64, requires_grad=True)
            y = op.vec(x, *args)
            gradient = torch.randn_like(y)
            backward = RESIZES[getattr(aten, f"{op._qualified_op_name.split('::')[1]}_backward").default]
            given = (*args[1:-1], *(args[-1] or [None] * rank))
            found = backward(gradient, list(y.shape[2:]), list(x.shape), *given)
            torch.testing.assert_close(found, torch.autograd.grad(y, x, gradient)[0])


def pixels(*shape):
    return torch.randint(0, 256, shape, generator=torch.Generator().manual_seed(0)).to(torch.uint8)


def modes_of(*modes, **how):
    return lambda x: tuple(F.interpolate(x, mode=m, **how) for m in modes)


def test_floats_at_every_level():
    line, image, video = randn(2, 3, 5), randn(1, 3, 5, 7), randn(1, 2, 3, 4, 5)
    check_together([
        (modes_of("nearest", "nearest-exact", "linear", "area", scale_factor=1.1), (line,)),
        (modes_of("nearest", "linear", scale_factor=2.3, recompute_scale_factor=True), (line[..., :3],)),
        (modes_of("linear", size=11, align_corners=True), (line,)),
        (modes_of("nearest", "nearest-exact", "bilinear", "bicubic", "area", scale_factor=(1.3, 2.0)), (image,)),
        (modes_of("bilinear", "bicubic", size=(5, 1), align_corners=True), (image.bfloat16(),)),
        (modes_of("bilinear", "bicubic", size=(100, 31)), (image.half(),)),
        (modes_of("nearest", "trilinear", "area", "nearest-exact", scale_factor=(1.1, 2.5, 0.5)), (video,)),
        (modes_of("trilinear", size=(1, 4, 7), align_corners=True), (video,)),
    ])  # fmt: skip


def test_antialiased_and_bytes_at_every_level():
    image, bytes_, many = randn(1, 3, 37, 23), pixels(1, 3, 12, 9), pixels(2, 5, 12, 9)
    check_together([
        (modes_of("bilinear", "bicubic", "lanczos", size=(3, 19), antialias=True), (image,)),
        (modes_of("bilinear", scale_factor=1.7, align_corners=True, antialias=True), (image,)),
        (modes_of("bilinear", "bicubic", "nearest", size=(7, 5)), (bytes_,)),
        (modes_of("bilinear", "bicubic", scale_factor=(1.0, 2.3)), (many.contiguous(memory_format=torch.channels_last),)),
        (modes_of("bilinear", "bicubic", "lanczos", size=(5, 9), antialias=True), (many,)),
        (modes_of("nearest", scale_factor=1.4), (pixels(1, 2, 3, 4, 5),)),
    ])  # fmt: skip
