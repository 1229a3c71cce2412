"""What kernels with packed weights are made of: words are loaded once, and unpacked where they are multiplied."""

from __future__ import annotations

import re

import pytest
import torch

from mlirc.backend.ptx import check_ptxas, find_ptxas
from mlirc.driver.compilation import Compilation
from mlirc.passes.distribute.tiles.unpacking import floor_of
from mlirc.passes.graph.index import Index, dim
from mlirc.targets import get_target
from support.randomness import generator


def ptx_of(m: int, scheme: str, target: str = "sm_90a", dtype: torch.dtype = torch.bfloat16) -> str:
    layer = torch.nn.Linear(256, 64, bias=False, dtype=dtype)
    job = Compilation("m", get_target(target), helpers=0)
    job.import_module(layer, (torch.zeros(m, 256, dtype=dtype),), {}, quantize=scheme)
    job.lower("ptx")
    if find_ptxas():
        assert "0 bytes spill stores" in check_ptxas(job.ptx, job.target)
    return job.ptx


@pytest.mark.parametrize("m", [1, 7, 8])
@pytest.mark.parametrize("scheme, bits", [("int4", 4), ("int8", 8), ("fp8", 8)])
def test_each_word_is_loaded_once_with_its_neighbours(m, scheme, bits):
    """256 k of 16 columns are 128 * bits words of a block: a thread loads them, and activations, 16 bytes at a time, and
    nothing is staged but warps' parts of the sums."""
    ptx = ptx_of(m, scheme)
    warps = int(re.search(r"\.reqntid (\d+)", ptx)[1]) // 32
    own = 128 * bits // (32 * warps)  # words of a thread
    rows = -(-m // 8)
    activations = rows * 256 // (warps * 4) * 2 // 16  # a lane has a quarter of its warp's k, in loads of 16 bytes
    assert len(re.findall(r"ld\.global\S*v4\.b32", ptx)) == own // 4 + activations
    assert len(re.findall(r"ld\.global", ptx)) == own // 4 + activations + 2  # and the scales of two columns
    assert len(re.findall(r"\bmma\.sync", ptx)) == rows * 256 // (16 * warps)
    assert "ldmatrix" not in ptx and "cp.async" not in ptx


@pytest.mark.parametrize("scheme", ["int4:group=128", "int4:group=64,asymmetric", "int8"])
def test_scales_are_for_sums(scheme):
    """Two numbers take one `and`, one `fma`, and half a shift or less; no weight is multiplied with its scale."""
    ptx = ptx_of(1, scheme)
    pairs = 16 * 256 // 2 // int(re.search(r"\.reqntid (\d+)", ptx)[1])
    assert len(re.findall(r"fma\.rn\.bf16x2", ptx)) == pairs == len(re.findall(r"and\.b32[^;]*, -?\d{6,};", ptx))
    assert not re.search(r"mul\S*\.bf16x2", ptx)
    assert len(re.findall(r"shr\.u32", ptx)) <= pairs // 2 + 8


@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("m, scheme", [(1, "int8"), (16, "fp8"), (24, "int3:group=32,asymmetric"), (130, "int4")])
def test_ptxas_takes_them(m, scheme, target):
    ptx = ptx_of(m, scheme, target)
    assert ".entry" in ptx


def test_floors_drop_what_cannot_carry():
    """floor((64 t + r) / n) for r < 64 has no r where 64 divides n; forms agree with numbers for all loops."""
    t, r, c = dim(0, 7), dim(1, 8), dim(2, 4)
    assert floor_of(t * 64 + r * 8 + c * 2 + 1, 128) == floor_of(t * 64, 128)
    draw = generator()
    for _ in range(200):
        factors = [int(f) for f in draw.choice([1, 2, 3, 8, 12, 16, 64, 128], 3)]
        n, const = int(draw.choice([2, 8, 12, 32, 48, 128])), int(draw.integers(0, 70))
        index = t * factors[0] + r * factors[1] + c * factors[2] + const
        found = floor_of(index, n)
        for values in ((0, 0, 0), (6, 7, 3), (3, 5, 1), (1, 7, 2)):
            atoms = {next(iter(d.terms)): Index(v) for d, v in zip((t, r, c), values, strict=True)}
            number = sum(f * v for f, v in zip(factors, values, strict=True)) + const
            assert found.substitute(atoms) == Index(number // n), (index, n)
