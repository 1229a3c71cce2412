"""Extremes with their indices beside PyTorch, at every level: NaN, ties, zeros of both signs, dtypes, dimensions."""

from __future__ import annotations

import re

import pytest
import torch

from mlirc.check.levels import level_runner
from mlirc.driver.compilation import Compilation
from mlirc.targets import get_target
from support.models.together import Calls, Together, randn

INF, NAN = float("inf"), float("nan")


def integers(*shape: int, dtype: torch.dtype = torch.int64, low: int = -3, high: int = 4) -> torch.Tensor:
    return torch.randint(low, high, shape, generator=torch.Generator().manual_seed(0)).to(dtype)


def special() -> torch.Tensor:
    """Rows with ties, infinities, zeros and NaN in all orders."""
    rows = [
        [1.0, 5.0, 5.0, 2.0, -7.0, -7.0, 0.0], [NAN, 5.0, INF, NAN, -INF, 0.0, 1.0], [3.0, NAN, INF, -INF, NAN, 1.0, 2.0],
        [-0.0, 0.0, -0.0, 0.0, -0.0, 0.0, 0.0], [0.0, -0.0, -0.0, 0.0, 0.0, 0.0, 0.0], [-1.0, -0.0, 0.0, -1.0, -2.0, -2.0, -3.0],
        [INF] * 7, [-INF] * 7, [NAN] * 7, [1.0, -0.0, 0.0, 1.0, 2.0, 2.0, 3.0], [1e-45, -1e-45, 0.0, -0.0, 1e-45, 0.0, -1e-45],
    ]  # fmt: skip
    return torch.tensor(rows)


def at_the_ends() -> torch.Tensor:
    """Rows of 32,768 whose extremes are the first and the last elements."""
    x = randn(2, 1 << 15)
    x[0, 0], x[0, -1], x[1, 0], x[1, -1] = 9, -9, -9, 9
    return x.bfloat16()


def both(x):
    return (*x.max(-1), *x.min(-1), x.argmax(-1), x.argmin(-1))


CASES = {
    "special numbers": (both, special()),
    "along the first dimension": (lambda x: (*x.max(0), *x.min(0), x.argmax(0)), randn(13, 7)),
    "along a middle one": (lambda x: (*x.max(1, keepdim=True), x.argmin(1)), randn(3, 37, 5)),
    "of all": (lambda x: (x.argmax(), x.argmin()), randn(5, 33)),
    "of one": (lambda x: (*x.max(0), x.argmin()), randn(1)),
    "long rows": (both, randn(3, 8192)),
    "a long row of a prime length": (lambda x: (*x.max(0), x.argmin(0)), -randn(10007).abs()),
    "a long middle dimension": (lambda x: (*x.max(1), *x.min(1)), integers(2, 4099, 3, dtype=torch.int32)),
    "bf16": (both, randn(3, 131).bfloat16()),
    "special numbers of bf16": (both, special().bfloat16()),
    "bf16 along a middle dimension": (lambda x: (*x.max(1), *x.min(1)), randn(2, 37, 5).bfloat16()),
    "the longest rows of bf16 with short keys": (lambda x: (*x.max(-1), x.argmin(-1)), at_the_ends()),
    "longer ones": (lambda x: (*x.max(-1), x.argmin(-1)), randn(2, (1 << 15) + 1).bfloat16()),
    "f16": (both, special().half()),
    "f64": (both, special().double()),
    "i64": (both, integers(5, 67)),
    "large i64": (both, torch.tensor([[1 << 62, -(1 << 63), (1 << 62) + 1, (1 << 63) - 1]])),
    "i32": (both, torch.tensor([[5, -(1 << 31), (1 << 31) - 1, -(1 << 31), (1 << 31) - 1]], dtype=torch.int32)),
    "i8": (both, integers(3, 19, dtype=torch.int8)),
    "u8": (both, integers(3, 19, dtype=torch.uint8, low=0, high=256)),
    "bool": (lambda x: (*x.max(1), *x.min(1)), integers(3, 19, low=0, high=2).bool()),
    "a function of the index": (lambda x: (x * 2).argmax(-1).float() + x.amax(-1), randn(3, 257)),
}  # fmt: skip


@pytest.fixture(scope="module")
def together():
    job = Compilation("m", get_target("sm_90a"), ())
    job.import_module(Together([(f, (x,)) for f, x in CASES.values()]), tuple(x for _, x in CASES.values()), {})
    return job


@pytest.mark.parametrize("level", ["linalg", "tiles", "gpu"])
def test_beside_pytorch(together, level):
    together.lower(level)
    found = iter(level_runner(together, level, together.tensors())([x for _, x in CASES.values()]))
    for name, (function, x) in CASES.items():
        wanted = function(x)
        for w in wanted if isinstance(wanted, tuple) else (wanted,):
            made = next(found)
            torch.testing.assert_close(made, w, rtol=0, atol=0, equal_nan=True, msg=lambda m, n=name: f"{n}: {m}")
            if w.is_floating_point() and w.dtype != torch.float64:  # whose zeros compare as equal
                kept = ~w.isnan()
                assert torch.equal(torch.signbit(made)[kept], torch.signbit(w)[kept]), name
    assert next(found, None) is None


@pytest.mark.parametrize("function", [lambda x: x.argmax(-1), lambda x: x.max(-1), lambda x: x.argmin()])
def test_they_are_one_reduction_of_a_block(function):
    """No thread has a row for itself."""
    job = Compilation("m", get_target("sm_90a"), ())
    job.import_module(Calls(function), (randn(3, 501),), {})
    job.lower("tiles")
    assert job.text("kernels").count("call @") == 1 and "call @reduction_0" in job.text("kernels")
    assert "mlirc.lowering" not in job.text("tiles")


@pytest.mark.parametrize("length", [32000, 50257])
def test_a_long_row_is_a_cluster_s(length):
    job = Compilation("m", get_target("sm_90a"), ())
    job.import_module(Calls(lambda x: x.argmax(-1)), (randn(1, length),), {})
    job.lower("tiles")
    kernels, tiles = job.text("kernels"), job.text("tiles")
    assert kernels.count("call @") == kernels.count("call @reduction") == 1
    assert "mlirc.spread = 8" in tiles and "mlirc.lowering" not in tiles


def test_a_long_row_with_no_other_is_divided_among_blocks():
    job = Compilation("m", get_target("sm_90a"), ())
    job.import_module(Calls(lambda x: x.argmax()), (randn(32000),), {})
    job.lower("tiles")
    kernels, tiles = job.text("kernels"), job.text("tiles")
    assert kernels.count("call @") == kernels.count("call @reduction") == 2 and "mlirc.lowering" not in tiles
    assert max(map(int, re.findall(r"scf.forall \(%\w+\) in \((\d+)\)", tiles))) >= 25
