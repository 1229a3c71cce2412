"""`grid_sample` and `affine_grid` beside PyTorch: modes, paddings, ranks, coordinates and elements that are not finite."""

from __future__ import annotations

import itertools
import random
from functools import partial

import pytest
import torch
import torch.nn.functional as F

from mlirc.frontend.decompositions_grid import GRIDS
from support.models.together import check_together, randn

MODES, PADDINGS = ("bilinear", "nearest", "bicubic"), ("zeros", "border", "reflection")
ODD = (float("nan"), float("inf"), -float("inf"), 1.0, -1.0, 0.0, 5.0, 0.5)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("rank", [2, 3])
def test_samples_are_those_of_pytorch(rank, mode):
    """By the decomposition alone."""
    if (rank, mode) == (3, "bicubic"):
        pytest.skip("PyTorch has none")
    r, g = random.Random(3), torch.Generator().manual_seed(3)
    op = {2: torch.ops.aten.grid_sampler_2d.default, 3: torch.ops.aten.grid_sampler_3d.default}[rank]
    for padding, align, _ in itertools.product(range(3), (True, False), range(12)):
        dtype = r.choice([torch.float32, torch.float64])
        x = torch.randn(2, 3, *[r.choice([1, 2, 3, 5, 7]) for _ in range(rank)], generator=g, dtype=dtype)
        grid = torch.randn(2, *[r.choice([1, 3, 4]) for _ in range(rank)], rank, generator=g, dtype=dtype)
        grid *= r.choice([0.5, 1, 3, 100])
        for _ in range(3):
            grid.view(-1)[r.randrange(grid.numel())] = r.choice(ODD)
            x.view(-1)[r.randrange(x.numel())] = r.choice(ODD)
        found = GRIDS[op](x, grid, MODES.index(mode), padding, align)
        near = 1e-9 if dtype == torch.float64 else 3e-5
        expected = op(x, grid, MODES.index(mode), padding, align)
        torch.testing.assert_close(found, expected, rtol=near, atol=near, equal_nan=True)


def sampled(modes, paddings, align):
    return lambda x, g: tuple(
        F.grid_sample(x, g, mode=m, padding_mode=p, align_corners=align) for m in modes for p in paddings
    )


def test_at_every_level():
    image, video = randn(2, 3, 5, 7), randn(1, 2, 3, 4, 5)
    grid, far = torch.rand(2, 4, 6, 2) * 3 - 1.5, torch.rand(1, 2, 3, 5, 3) * 4 - 2
    transform = torch.randn(2, 2, 3)
    check_together([
        (sampled(["bilinear", "nearest"], PADDINGS, False), (image, grid)),
        (sampled(["bilinear"], PADDINGS, True), (image.half(), grid.half())),
        (sampled(["bicubic"], ["border", "reflection"], True), (image, grid)),
        (sampled(["bilinear", "nearest"], ["zeros", "reflection"], True), (video, far)),
        (lambda t, x: F.grid_sample(x, F.affine_grid(t, [2, 3, 4, 5], align_corners=True), align_corners=False), (transform, image)),
        (partial(F.affine_grid, size=[1, 2, 3, 4, 5], align_corners=False), (randn(1, 3, 4),)),
    ])  # fmt: skip


def test_what_has_no_part_in_a_sample_does_not_reach_it():
    """An infinity in the first pixel, and samples outside of the image, on its border and between others."""
    x = torch.ones(1, 1, 3, 3)
    x[0, 0, 0, 0] = float("inf")
    grid = torch.tensor([[[[5.0, 5.0], [0.9, 0.9], [0.3, 0.3], [-1.0, -1.0], [float("nan"), 0.0]]]])
    module = sampled(["bilinear", "nearest"], PADDINGS, True)
    import mlirc
    from support.models.together import Calls

    compiled = mlirc.compile(Calls(module), (x, grid), device="host")
    for found, expected in zip(compiled(x, grid), module(x, grid), strict=True):
        torch.testing.assert_close(found, expected, equal_nan=True)
