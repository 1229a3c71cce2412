"""Depthwise convolutions by tensor cores: sums over windows as products with banded matrices; beside PyTorch on the
host device, what is not finite among it."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import mlirc
from mlirc import mlir
from mlirc.errors import MlircError
from mlirc.ir import levels
from mlirc.ir.window_sums import window_sum
from mlirc.mlir import nested
from mlirc.schedule.kernel_info import describe
from mlirc.schedule.registry import Schedules
from mlirc.scripts import _bands
from mlirc.targets import get_target
from support.kernels.stencils import Depthwise
from support.randomness import generator

TARGET = get_target("sm_90a")


def scheduled(made: Depthwise, knobs: str):
    tiles, _ = Schedules([f"stencil:{knobs}"] if knobs else []).schedule_kernel(made.kernel(), TARGET)
    return tiles


def info(made: Depthwise):
    with mlir.context():
        module = made.kernel()
        (function,) = levels.functions(module).values()
        return describe(function.operation)


CASES = [
    ("band=7", Depthwise(17, 7, 7, 8, 7)),  # whole images, more than a block has
    ("band=4", Depthwise(3, 14, 13, 24, 5)),  # strips of rows; three blocks along the channels
    ("band=7", Depthwise(1, 56, 56, 16, 7, dtype="f16")),
    ("band=3", Depthwise(2, 15, 31, 16, 5, 2)),  # even and odd columns apart, the last strip cut
    ("band=2", Depthwise(2, 14, 10, 8, 7, 3)),
    ("band=7,pairs=2", Depthwise(3, 7, 7, 32, 5)),
    ("band=3,pairs=4", Depthwise(1, 6, 17, 32, 3, dtype="f16")),
    ("band=8", Depthwise(1, 9, 130, 8, 3)),  # several tiles in a row
    ("band=2", Depthwise(5, 2, 3, 40, 3)),
]


@pytest.mark.parametrize(("knobs", "made"), CASES, ids=str)
def test_depthwise_convolutions_by_tensor_cores(knobs, made):
    tiles = scheduled(made, knobs)
    assert "mlirc.band" in str(tiles)
    for seed in range(2):
        found, expected = made.run(tiles, made.inputs(seed), seed)
        allowed = (1e-3 if made.dtype == "f16" else 6e-3) * np.abs(expected).max()
        np.testing.assert_allclose(found, expected, rtol=0, atol=allowed)
        assert np.linalg.norm(found - expected) <= 1.8e-3 * np.linalg.norm(expected)


@pytest.mark.parametrize(("knobs", "made"), CASES[:6], ids=str)
def test_what_is_not_finite_reaches_the_windows_that_have_it_and_no_others(knobs, made):
    rng = np.random.default_rng(generator().integers(1 << 30))
    inputs = made.inputs(3)
    image = inputs[0].reshape(-1)
    for number in (np.inf, -np.inf, np.nan):
        image[rng.integers(image.size)] = number
    found, expected = made.run(scheduled(made, knobs), inputs, 3)
    assert not np.isfinite(expected).all()
    allowed = 6e-3 * np.abs(expected[np.isfinite(expected)]).max()
    np.testing.assert_allclose(found, expected, rtol=0, atol=allowed)


@pytest.mark.parametrize("stride", [1, 2])
def test_what_is_done_to_the_sums_joins_them(stride):
    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.windows = nn.Conv2d(16, 16, 5, stride, 2, groups=16)

        def forward(self, x, y):
            out = nn.functional.silu(self.windows(x.permute(0, 3, 1, 2))).permute(0, 2, 3, 1)
            return out * y

    block = Block().bfloat16().eval()
    x = torch.randn(3, 13, 11, 16).bfloat16()
    y = torch.randn(3, *((n - 1) // stride + 1 for n in (13, 11)), 16).bfloat16()
    model = mlirc.compile(block, (x, y), device="host", schedule=["stencil:band=3"])
    with torch.no_grad():
        torch.testing.assert_close(model(x, y), block.double()(x.double(), y.double()).bfloat16(), rtol=2e-2, atol=2e-2)


def test_a_window_is_recognized_in_whole_maps_and_in_tiles():
    made = Depthwise(2, 14, 30, 16, 5, 2)
    for module in (made.kernel(), scheduled(made, "band=4")):
        with mlir.context():
            maps = [op.operation for op in nested(module.operation) if op.operation.name == "linalg.generic"]
            (found,) = [w for op in maps if (w := window_sum(op)) is not None]
            assert (found.kernel, found.strides, found.low) == ((5, 5), (2, 2), (2, 2))


@pytest.mark.parametrize(
    ("text", "instead"),
    [
        ("arith.constant 1 : index", "arith.constant 2 : index"),  # taps two apart, of which one is missing
        ("arith.constant 0.000000e+00 : bf16", "arith.constant 1.000000e+00 : bf16"),  # padded by ones
        ("arith.cmpi sge", "arith.cmpi slt"),
        ("arith.minsi", "arith.maxsi"),
    ],
)
def test_another_map_is_no_window(text, instead):
    kernel = str(Depthwise(2, 6, 7, 8, 3).kernel())
    assert text in kernel
    module = mlir.parse(kernel.replace(text, instead))
    with mlir.context():
        maps = [op.operation for op in nested(module.operation) if op.operation.name == "linalg.generic"]
        assert [window_sum(op) for op in maps] == [None] * len(maps)


@pytest.mark.parametrize(
    ("made", "chosen"),
    [
        (Depthwise(32, 56, 56, 96, 7), True),
        (Depthwise(32, 14, 14, 672, 5), True),
        (Depthwise(32, 7, 7, 1152, 5), False),  # a tile or two for each multiprocessor
        (Depthwise(32, 56, 56, 144, 3), False),  # CUDA cores keep up with memory
        (Depthwise(32, 14, 14, 100, 7), False),  # 8 channels are 16 bytes
        (Depthwise(32, 28, 28, 64, 7, dtype="f32"), False),
    ],
    ids=str,
)
def test_tensor_cores_are_chosen_where_cuda_cores_are_slower_than_memory(made, chosen):
    assert (_bands.chosen(info(made), None, None, TARGET) is not None) == chosen


def test_tiles_leave_room_for_two_blocks():
    for made in (Depthwise(32, 56, 56, 96, 7), Depthwise(32, 14, 14, 672, 5, 2), Depthwise(1, 112, 112, 32, 3)):
        for band in _bands.bands(info(made), None, None, TARGET):
            assert 2 * band.bytes <= TARGET.max_smem and band.m <= 16


@pytest.mark.parametrize("made", [Depthwise(2, 9, 9, 8, dtype="f32"), Depthwise(2, 9, 9, 12)], ids=str)
def test_a_knob_that_cannot_be_had_is_refused(made):
    with pytest.raises(MlircError, match="leave them out"):
        scheduled(made, "band=4")


def test_a_band_of_another_map_is_refused(tmp_path):
    (tmp_path / "mine.py").write_text("""
from mlirc.schedule import register
from mlirc.schedule.verbs import *

@register(matches=lambda kernel: kernel.neighbors > 1)
def mine(kernel, target, *, rows: int = 4, warps: int = 4):
    with script(warps=warps) as (module, function):
        forall = tile_to_blocks(match_root(function), sizes=[1, rows, 12, 8], keep=[3], order=[])
        annotate(match(forall, "linalg.generic"), band=2)
        annotate(function, warps=warps)
        tidy(function, forall)
    return module
""")

    def refused(made: Depthwise, knobs: str) -> str:
        overrides = [str(tmp_path / "mine.py"), f"mine:{knobs}"]
        tiles, _ = Schedules(overrides).schedule_kernel(made.kernel(), TARGET)
        with pytest.raises(MlircError) as e:
            made.run(tiles, made.inputs())
        return str(e.value)

    assert "a map with one result, which sums" in refused(Depthwise(2, 40, 12, 8, dtype="f32"), "warps=4")
    assert "8 channels are no pairs for 3 warps" in refused(Depthwise(2, 40, 12, 8), "warps=3")
    assert "blocks of 2 rows of 8 pixels, which are 16 at most" in refused(Depthwise(2, 40, 12, 8), "rows=40")
