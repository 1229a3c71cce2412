"""Numbers that are read from tensors, and what is computed from them, beside PyTorch; and numbers that are returned."""

from __future__ import annotations

import math

import pytest
import torch

from mlirc.check import check_torch
from mlirc.driver.compilation import Compilation
from mlirc.errors import MlircError
from mlirc.frontend import from_torch, import_torch
from mlirc.targets import get_target
from support.models.together import Calls

THREE, MINUS_FOUR = torch.tensor(3), torch.tensor(-4)
HALF = torch.tensor(2.5, dtype=torch.float64)
ROWS = torch.randn(3, 5, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(
    ("function", "args"),
    [
        (lambda a, b: (int(a) + int(b), int(a) * int(b) - 7, -int(a)), (THREE, MINUS_FOUR)),
        (lambda a, b: (float(a) + int(b), float(a) >= int(b), float(a) == 2.5), (HALF, THREE)),
        (lambda a, b: (int(a) // int(b), int(a) % int(b), int(a) / int(b)), (MINUS_FOUR, THREE)),
        (lambda a: (math.ceil(float(a)), math.floor(float(a)), int(a), bool(a)), (HALF,)),
        (lambda a: math.sqrt(float(a) * float(a)), (HALF,)),
        (lambda a, b: (max(int(a), int(b)), min(int(a), int(b))), (THREE, MINUS_FOUR)),
        (lambda a: int(a) * 2, (torch.tensor([[7]], dtype=torch.int8),)),
        (lambda x: x - x.mean().item(), (ROWS,)),
        (lambda x, a: x * float(a), (ROWS.half(), HALF)),
        (lambda x, a: x * float(a) > float(a), (torch.arange(5), HALF)),
        (lambda x, a: (x > a.item(), x.clamp(max=a.item()), torch.where(x > 0, x, float(a))), (ROWS, HALF)),
        (lambda x, a: x.masked_fill(x > 0, float(a)) + torch.full((3, 1), a.item()), (ROWS, HALF)),
        (lambda x, a: x.clone().add_(float(a)), (ROWS, HALF)),
        (lambda x, a: x[int(a)] + 1, (ROWS, torch.tensor(1))),
        (lambda x, a: torch.scatter(x, 1, torch.tensor([[1, 4]]), float(a)), (ROWS, HALF)),
        (lambda x: torch.tensor(x.sum().item()) + 1, (ROWS,)),
    ],
)
def test_numbers_that_are_read_from_tensors(function, args):
    result = check_torch(Calls(function), args, levels=["tiles"], kinds=["plain", "zeros", "one NaN"])
    assert result.ok, result.reason()


def test_returned_numbers_are_outputs_of_no_dimension():
    job = Compilation("m", get_target("sm_90a"))
    job.import_module(Calls(lambda x: (x, 3, None, [2.5, True], "text", {"n": x.numel()})), (ROWS,), {})
    outputs = [
        ("output_0", "f32", (3, 5)),
        ("output_1", "i64", ()),
        ("output_3_0", "f64", ()),
        ("output_3_1", "i1", ()),
    ]
    assert job.imported.outputs == [*outputs, ("output_5_n", "i64", ())]
    assert job.check(["tiles"]).ok


def test_a_model_may_return_nothing_but_numbers():
    result = check_torch(Calls(lambda x: (x.dim(), x.numel(), 0.5)), (ROWS,), levels=["tiles"])
    assert result.ok, result.reason()


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (lambda x, a: x if x.sum().item() > 0 else -x, "control flow or a shape depends on the values of a tensor"),
        (lambda x, a: torch.zeros(int(a)) + x[0, 0], "the shape of .* depends on the values of a tensor"),
        (lambda x, a: x[: int(a)], "the shape of .* depends on the values of a tensor"),
        (lambda x, a: torch.roll(x, int(a)), "op aten::roll .* has to know a number that is read from a tensor"),
    ],
)
def test_numbers_that_decide_more_than_values_are_refused(function, words):
    with pytest.raises(MlircError, match=words):
        import_torch(from_torch(Calls(function), (ROWS, THREE)))


@pytest.mark.parametrize("count", [5, 8192])
def test_many_numbers_in_order_are_counted_rather_than_read(count):
    """Few are a constant, as before; what is computed of any on constants alone is one, too."""
    job = Compilation("m", get_target("sm_90a"))
    job.import_module(Calls(lambda x: (x * torch.arange(count), x + torch.arange(count) % 3)), (torch.ones(count),), {})
    assert len(job.imported.constants) == (1 if count > 1000 else 2)
    assert job.check(["kernels"]).ok
