"""Integers and booleans of every width but the plain one, 32 bits, at every level, exactly as in PyTorch, with the extremes of each dtype."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import mlirc
from mlirc.errors import MlircError
from mlirc.frontend import from_torch, import_torch
from mlirc.host.tensors import run_level
from support.models.integer_ops import DTYPES, cases, compiled, differences, together

TOGETHER = 28  # ops in one model: the time to compile a function grows faster than its size
PARTS = [
    (name, first)
    for i, name in enumerate(DTYPES)
    for k, first in enumerate(range(0, len(cases(name)), TOGETHER))
    # All of them for the bytes without a sign; of the others every third part.
    if name == "u8" or name != "i32" and (i + k) % 3 == 0
]


@pytest.mark.parametrize(("name", "first"), PARTS)
def test_every_op_at_the_linalg_level(name, first):
    module, inputs = together(dict(list(cases(name).items())[first : first + TOGETHER]))
    job = compiled(module, inputs, "linalg")
    assert not differences(module(*inputs), run_level(job.modules["linalg"], inputs, job.tensors()))


# Each kind of rewrite once: what the levels below do with it does not depend on the dtype.
LOWER = (
    "add mul lt where mixed_float floordiv mod div_trunc fmod neg abs square clamp float to_bool to_i8 sum amax max_dim "
    "argmax cumsum sort index cat movement matmul any"
).split()


@pytest.mark.parametrize("name", ["bool", "u8", "i16", "i64"])
def test_ops_at_the_tiles_level(name):
    module, inputs = together({op: case for op, case in cases(name).items() if op in LOWER})
    job = compiled(module, inputs, "tiles")
    assert not differences(module(*inputs), run_level(job.modules["tiles"], inputs, job.tensors()))


class Boundary(torch.nn.Module):
    """Bytes and 16-bit integers as inputs, weights, constants and outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("bytes", torch.arange(199, 206, dtype=torch.uint8))
        self.register_buffer("hidden", torch.arange(-3, 4, dtype=torch.int16) * 9000, persistent=False)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> dict[str, torch.Tensor]:
        table = torch.arange(250, 257).to(torch.uint8) // 2
        return {
            "same": x, "sum": x.sum(1), "quotient": x // self.bytes, "float": x.float() * 0.5, "sorted": x.sort(1)[0],
            "wrapped": x + self.bytes, "table": torch.maximum(x, table), "short": y + self.hidden, "most": y.amax(1),
            "bits": x.view(torch.int8), "back": x.view(torch.int8).view(torch.uint8) // 2, "cut": y.to(torch.uint8),
        }  # fmt: skip


def test_bytes_and_short_integers_cross_the_boundary(tmp_path):
    module = Boundary().eval()
    generator = torch.Generator().manual_seed(5)
    x = torch.randint(0, 256, (3, 7), generator=generator).to(torch.uint8)
    y = torch.randint(-32768, 32768, (3, 7), generator=generator).to(torch.int16)
    want = module(x, y)
    job = compiled(module, (x, y), "ptx")
    assert [spec.dtype for spec in job.plan.inputs] == ["u8", "i16"]
    assert {spec.name: spec.dtype for spec in job.plan.weights}["bytes"] == "u8"
    for level in ("linalg", "kernels", "tiles"):
        assert not differences(want, run_level(job.modules[level], (x, y), job.tensors()))
    job.write(tmp_path / "m.ptx")
    loaded = mlirc.load(str(tmp_path / "m.ptx"), device="host")
    assert not differences(want, loaded.flat(x, y))
    arrays = loaded.flat(x.numpy(), y.numpy())
    assert arrays[0].dtype == np.uint8 and arrays[7].dtype == np.int16
    with pytest.raises(MlircError, match=r"got i8\[3,7\], but the model was compiled for u8\[3,7\]"):
        loaded(x.view(torch.int8), y)


def scalars_and_conversions(x: torch.Tensor) -> list[torch.Tensor]:
    """PyTorch brings numbers, and tensors of no dimension, to the dtype that it computes in: they wrap."""
    return [
        x < 300, x < -1, x == -1, x == 256, x + 300, x * -2, x // -3, x % -3, x.clamp(max=-1), torch.where(x > 3, x, -1),
        torch.maximum(x, torch.tensor(-1)), x + torch.tensor(-1, dtype=torch.int8), x // torch.tensor(-3),
        x.masked_fill(x > 3, -1), x << 9, x >> 9, x & -2, x.new_full((4,), 200) + x, x.bool() + x, x.div(2),
        torch.arange(250, 254, dtype=torch.uint8) + x, torch.zeros_like(x) - 1, x.sum(dtype=torch.uint8),
        (x.float() + 0.7).to(torch.uint8), (-x.float()).to(torch.int16),
    ]  # fmt: skip


def wide_numbers(x: torch.Tensor) -> list[torch.Tensor]:
    """Numbers that a double cannot hold."""
    odd = 2**53 + 1
    return [
        x + odd, torch.full((2,), 2**62 + 1), torch.arange(2**53, 2**53 + 4) + x, x == odd, x > odd - 1, x & odd,
        torch.where(x > 3, x, odd), x.clamp(max=odd), x.masked_fill(x > 3, odd), x.float(), x / 3, x < 2.5, x > 1e18,
        torch.nn.functional.pad(x, (1, 1), value=odd), x.double().mean(), x.bool(), x << 70, x >> 70, x >> -1,
    ]  # fmt: skip


def zeros_of_floats(x: torch.Tensor) -> list[torch.Tensor]:
    return [x.bool(), x.double().bool(), x.half().bool(), x.logical_not(), x.any(), torch.count_nonzero(x)]


def ties(x: torch.Tensor) -> list[torch.Tensor]:
    return [t for v in (x, x.bool(), x.float()) for down in (False, True)
            for t in torch.sort(v, dim=1, stable=True, descending=down)]  # fmt: skip


@pytest.mark.parametrize(
    ("function", "values"),
    [
        (scalars_and_conversions, torch.tensor([0, 1, 200, 255], dtype=torch.uint8)),
        (wide_numbers, torch.tensor([2**53 + 1, 2**62 + 3, -(2**53) - 1, -(2**63)])),
        (zeros_of_floats, torch.tensor([float("nan"), -0.0, 0.0, float("inf"), 0.25, 1e20, -3.0])),
        (ties, torch.tensor([[1, 0, 1, 0, 0, 1, 1], [2, 2, 1, 1, 0, 0, 2], [0, 0, 0, 0, 0, 0, 0]])),
    ],
)
def test_numbers_that_change_when_they_are_converted(function, values):
    module, inputs = together({"f": (function, (values,))})
    job = compiled(module, inputs, "linalg")
    assert not differences(module(*inputs), run_level(job.modules["linalg"], inputs, job.tensors()))


@pytest.mark.parametrize("dtype", [torch.int8, torch.int32, torch.int64])
def test_division_that_pytorch_refuses_gives_a_defined_answer(dtype):
    least = torch.iinfo(dtype).min
    x, y = torch.tensor([7, -7, 0, least], dtype=dtype), torch.tensor([0, 0, 0, -1], dtype=dtype)
    module, _ = together(
        {"f": (lambda x, y: [x // y, torch.div(x, y, rounding_mode="trunc"), x % y, x.fmod(y)], (x, y))}
    )
    ones = (x, torch.ones_like(y))
    job = compiled(module, ones, "linalg")
    quotient, truncated, remainder, rest = run_level(job.modules["linalg"], (x, y), job.tensors())
    assert quotient.tolist() == truncated.tolist() == [-1, -1, -1, least]
    assert remainder.tolist() == rest.tolist() == [7, -7, 0, 0]


def test_division_by_the_constant_zero_is_refused():
    class Divides(torch.nn.Module):
        def forward(self, x, y):
            return x // torch.zeros_like(y)

    x = torch.tensor([1, 2])
    with pytest.raises(MlircError, match="division of integers by the constant zero"):
        compiled(Divides(), (x, x), "linalg")


def test_bytes_are_stored_as_bytes_and_computed_with_in_32_bits():
    """Nothing below the import sees an integer without sign, and no integer division goes through floats."""
    module, inputs = together({op: cases("u8")[op] for op in ("add", "floordiv", "index")})
    text = str(import_torch(from_torch(module, inputs)).module)
    assert "ui8" not in text and "f64" not in text and "integer_division" in text


def test_what_a_scan_reads_is_not_overwritten_before_another_scan_reads_it():
    """Sums and scans start from fills, which may take over the buffer of a value that nobody reads any more."""
    x = torch.tensor([[0, 1, 2, 250, 3], [5, 4, 3, 2, 1]], dtype=torch.uint8)
    function = lambda x: [(x[:, :, None] == x[:, None, :]).sum(-1), x.cumsum(1), x.cumprod(1)]  # noqa: E731
    module, inputs = together({"f": (function, (x,))})
    job = compiled(module, inputs, "linalg")
    assert not differences(module(*inputs), run_level(job.modules["linalg"], inputs, job.tensors()))
