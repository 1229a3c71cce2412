"""Maps that read windows of tensors that are stored channels last: strips of neighbours, which read what their windows
have in common once; beside PyTorch on the host device."""

from __future__ import annotations

import re

import numpy as np
import pytest

from mlirc import mlir
from mlirc.driver.kernel_build import to_gpu
from mlirc.errors import MlircError
from mlirc.ir import levels
from mlirc.mlir import ir
from mlirc.schedule.kernel_info import describe
from mlirc.schedule.registry import Schedules
from mlirc.scripts.stencil import strip_length, tile_sizes
from mlirc.targets import get_target
from support.kernels.check import function_name, run_tiles
from support.kernels.stencils import Depthwise

TARGET = get_target("sm_90a")


def scheduled(made: Depthwise, knobs: str):
    return Schedules([f"stencil:{knobs}"] if knobs else []).schedule_kernel(made.kernel(), TARGET)


def loads(tiles: ir.Module) -> list[str]:
    """The types of what is loaded from global memory, at the `gpu` level."""
    module = levels.copy(tiles)
    with mlir.context(), ir.Location.unknown():
        mlir.run_passes(module, "func.func(linalg-generalize-named-ops)")
        to_gpu(module, function_name(tiles), TARGET)
    return re.findall(r"(?:vector|memref)\.load .* : memref<[^>]*>(?:, (vector<[^>]*>))?", str(module))


@pytest.mark.parametrize(
    ("knobs", "made"),
    [
        ("strip=7", Depthwise(2, 3, 14, 16)),
        ("strip=4", Depthwise(1, 6, 8, 24, 5)),  # three vectors a pixel: lanes without any
        ("strip=4", Depthwise(2, 5, 13, 8)),  # the last strip of a row is cut
        ("strip=3,warps=1", Depthwise(1, 33, 6, 40, 3, 2, "f32")),
        ("strip=2", Depthwise(1, 4, 40, 8, 3, 1, "f32")),  # more strips in a row than a block has threads
        ("strip=8,vector=2", Depthwise(1, 5, 8, 6, 7, 1, "f16")),
        ("", Depthwise(3, 7, 9, 20, 5, 2, "f32")),
        ("", Depthwise(1, 1, 1, 8)),
    ],
    ids=str,
)
def test_depthwise_convolutions_in_strips(knobs, made):
    tiles, record = scheduled(made, knobs)
    assert record.script == ("stencil" if made.w > 1 else "elementwise")
    for seed in range(2):
        found, expected = made.run(tiles, made.inputs(seed), seed)
        allowed = (1e-5 if made.dtype == "f32" else 1e-2) * np.abs(expected).max()
        np.testing.assert_allclose(found, expected, rtol=0, atol=allowed)


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("k", [3, 5])
def test_what_windows_have_in_common_is_read_once_in_whole_vectors(k, stride):
    strip = 4
    tiles, _ = scheduled(Depthwise(1, 8 * stride, 8 * stride, 32, k, stride), f"strip={strip}")
    found = loads(tiles)
    assert found == ["vector<8xbf16>"] * (k * ((strip - 1) * stride + k) + k * k)


def test_tests_are_of_ends_alone():
    """Of 4 neighbours' windows of 3 along a row, only the first one's and the last one's may lie outside."""
    tiles, _ = scheduled(Depthwise(1, 8, 8, 32, 3), "strip=4")
    module = levels.copy(tiles)
    with mlir.context(), ir.Location.unknown():
        to_gpu(module, function_name(tiles), TARGET)
    tested = {m for m in re.findall(r"arith\.cmpi (slt|sge), (%\w+), (%\w+) : index", str(module))}
    assert len(tested) == 4  # of the row above, of the one below, and of the two ends


@pytest.mark.parametrize("n, h, w, c", [(32, 56, 56, 96), (32, 112, 112, 32), (32, 7, 7, 960), (1, 13, 11, 24)])
def test_tiles_are_of_whole_strips(n, h, w, c):
    with mlir.context():
        module = Depthwise(n, h, w, c).kernel()
        (function,) = levels.functions(module).values()
        kernel = describe(function.operation)
    strip = strip_length(kernel, TARGET, 8)
    sizes = tile_sizes(kernel, 128, 8, strip)
    assert w % strip == 0 and sizes[-2] % strip == 0 and c % sizes[-1] == 0
    if n == 32:  # no thread is without a strip
        assert strip == 7 and np.prod(sizes) == 128 * 8 * strip
        assert all(d.extent % size == 0 for d, size in zip(kernel.dims, sizes, strict=True))


def test_a_strip_that_a_tile_does_not_have_is_refused(tmp_path):
    (tmp_path / "mine.py").write_text("""
from mlirc.schedule import register
from mlirc.schedule.verbs import *

@register(matches=lambda kernel: kernel.neighbors > 1)
def mine(kernel, target):
    with script() as (module, function):
        forall = tile_to_blocks(match_root(function), sizes=[1, 1, 6, 16], keep=[3], order=[])
        annotate(match(forall, "linalg.generic"), strip=4)
        tidy(function, forall)
    return module
""")
    tiles, _ = Schedules([str(tmp_path / "mine.py")]).schedule_kernel(Depthwise(2, 4, 12, 16).kernel(), TARGET)
    with pytest.raises(MlircError, match="tiles of 6 rows have no strips of 4"):
        run_tiles(tiles, Depthwise(2, 4, 12, 16).inputs())
