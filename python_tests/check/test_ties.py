"""Which of equal elements is chosen: the first, at every level and in a check's reference, where PyTorch leaves it open."""

from __future__ import annotations

import pytest
import torch

from mlirc.check import check_torch
from mlirc.check.ties import FirstOfEqual


class Choices(torch.nn.Module):
    def forward(self, x):
        floats = x.nanmedian(-1) if x.is_floating_point() else ()
        chosen = [x.sort(-1), x.sort(0, descending=True), x.topk(3, -1), x.topk(2, 0, largest=False), x.kthvalue(3, -1)]
        chosen += [
            x.kthvalue(2, 0, keepdim=True),
            x.median(-1),
            x.median(0, keepdim=True),
            x.max(-1),
            x.min(-1),
            floats,
        ]
        return tuple(t for pair in chosen for t in pair) + (x.argsort(-1), x.argmax(-1), x.argmin(0))


def rows(dtype: torch.dtype) -> torch.Tensor:
    x = torch.randint(0, 3, (7, 9), generator=torch.Generator().manual_seed(5)).to(dtype)
    if dtype.is_floating_point:
        x[2, 3] = x[2, 5] = x[3, 0] = float("nan")
        x[3, 1] = float("inf")
    return x


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.uint8])
def test_choices_among_equal_elements_are_no_false_alarm(dtype):
    result = check_torch(Choices(), (rows(dtype),), levels=["linalg", "tiles"])
    assert result.ok, result.table()


@pytest.mark.parametrize("dtype", [torch.float32, torch.int32])
def test_a_reference_keeps_values_and_chooses_the_first_of_equal_elements(dtype):
    x = rows(dtype)
    eager = Choices()(x)
    with FirstOfEqual():
        first = Choices()(x)
        values, indices = x.topk(4, -1)
    for one, other in zip(eager[::2], first[::2], strict=True):
        torch.testing.assert_close(one, other, equal_nan=True)
    torch.testing.assert_close(values, x.gather(-1, indices), equal_nan=True)
    same = (values[:, 1:] == values[:, :-1]) | values[:, 1:].isnan() & values[:, :-1].isnan()
    assert bool((indices[:, 1:] > indices[:, :-1])[same].all()) and bool(same.any())


def test_a_wrong_choice_is_reported():
    class Last(torch.nn.Module):
        def forward(self, x):
            if torch.compiler.is_compiling():
                return (x.shape[-1] - 1) - x.flip(-1).argmax(-1)
            return x.argmax(-1)

    assert not check_torch(Last(), (rows(torch.int64),), levels=["linalg"]).ok
