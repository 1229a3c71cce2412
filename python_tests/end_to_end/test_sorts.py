"""Sorts, top-k and k-th values by every way of `mlirc-sort`, on the host device: equal to PyTorch's stable sort, places
too."""

from __future__ import annotations

import pytest
import torch

import mlirc
from mlirc.errors import MlircError
from mlirc.passes.sort import radix
from support.models.together import Calls

FLOATS = (torch.float32, torch.bfloat16, torch.float16, torch.float64)


def run(function, x, way=None, sets="none", warps=None):
    """What the kernels of a function compute on the host device."""
    knobs = ",".join([*([f"way={way}"] if way else []), *([f"warps={warps}"] if warps else [])])
    model = mlirc.compile(Calls(function), (x,), device="host", schedule=[f"sort:{knobs}"] if knobs else [])
    model.input_sets = sets
    return [torch.as_tensor(r) for r in model.flat(x)]


def numbers(shape, dtype):
    """Numbers with ties, zeros of both signs, infinities and several NaNs, each of them somewhere in every row."""
    x = (torch.randn(shape) * 3).round()
    if not dtype.is_floating_point:
        return (x * torch.iinfo(dtype).max / 20).to(dtype)
    for value in (torch.nan, -torch.nan, torch.nan, torch.inf, -torch.inf, 0.0, -0.0, -0.0):
        x.scatter_(-1, torch.randint(shape[-1], (*shape[:-1], 1)), value)
    return x.to(dtype)


def assert_sorted(got, x, count, descending):
    """The first `count` of a stable sort, bit for bit."""
    values, places = x.sort(dim=-1, descending=descending, stable=True)
    assert torch.equal(got[1], places[..., :count])
    bits = {2: torch.int16, 4: torch.int32, 8: torch.int64}[x.element_size()]
    assert torch.equal(got[0].view(bits), values[..., :count].contiguous().view(bits))


@pytest.mark.parametrize("dtype", [*FLOATS, torch.int32, torch.int64], ids=str)
@pytest.mark.parametrize(("length", "descending"), [(1, False), (37, True), (131, False), (641, True)])
def test_networks(length, descending, dtype):
    x = numbers((5, length), dtype)
    got = run(lambda x: x.sort(dim=-1, descending=descending, stable=True), x)
    assert_sorted(got, x, length, descending)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64], ids=str)
@pytest.mark.parametrize(("length", "descending"), [(300, False), (4099, True)])
def test_radix_passes(length, descending, dtype):
    x = numbers((2, length), dtype)
    got = run(lambda x: x.sort(dim=-1, descending=descending, stable=True), x, "radix")
    assert_sorted(got, x, length, descending)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64, torch.int32], ids=str)
@pytest.mark.parametrize(("length", "count", "largest"), [(70, 1, True), (1231, 7, False), (2500, 70, True)])
def test_selecting(length, count, largest, dtype):
    """Ties are many: of most digits, and of places, something must be searched."""
    x = numbers((3, length), dtype)
    got = run(lambda x: x.topk(count, largest=largest), x, "select", warps=4)
    assert_sorted(got, x, count, largest)


def test_selecting_among_equal_elements_and_at_random():
    for x in (torch.zeros(2, 999), torch.full((2, 999), torch.nan), torch.randn(2, 999)):
        assert_sorted(run(lambda x: x.topk(40), x, "select", warps=4), x, 40, True)


def test_few_long_rows_are_selected_from_part_by_part():
    x = numbers((1, 3 * 8192), torch.float32)
    model = mlirc.compile(Calls(lambda x: x.topk(5)), (x,), device="host")
    assert model.plan.steps[0].grid[0] == 6
    model.input_sets = "none"
    assert_sorted([torch.as_tensor(r) for r in model.flat(x)], x, 5, True)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int16, torch.bool], ids=str)
def test_narrow_integers_and_other_dimensions(dtype):
    x = torch.randint(0, 2 if dtype == torch.bool else 120, (3, 50, 2)).to(dtype)
    got = run(lambda x: (*x.sort(dim=1, stable=True), x.argsort(dim=0, descending=True, stable=True)), x)
    for a, b in zip(got, (*x.sort(dim=1, stable=True), x.argsort(dim=0, descending=True, stable=True)), strict=True):
        assert torch.equal(a, b)


def test_kth_values_medians_and_modes():
    x = torch.randn(3, 77)
    x[1, 5] = torch.nan
    functions = (lambda x: x.kthvalue(9), lambda x: x.median(-1), lambda x: x.nanmedian(-1), lambda x: x[0].topk(77))
    for function in functions:
        for a, b in zip(run(function, x), function(x), strict=True):
            torch.testing.assert_close(a, b, rtol=0, atol=0, equal_nan=True)


def test_made_up_inputs_find_nothing():
    for way in ("network", "select", "radix"):
        run(lambda x: x.topk(9), torch.randn(2, 300), way, "quick")


@pytest.mark.parametrize(
    ("function", "way", "words"),
    [(lambda x: x.topk(4500), "select", "up to 4096"), (lambda x: x.topk(2), "network", "up to 4096")],
)
def test_what_a_way_cannot_sort_is_refused(function, way, words):
    with pytest.raises(MlircError, match=words):
        run(function, torch.zeros(1, 6001), way)


@pytest.mark.parametrize("at_once", [1, 8])
def test_counts_of_many_tiles(monkeypatch, at_once):
    """More than a warp has lanes, in one step of the loop over them and in several."""
    for name, value in {"ELEMENTS": 1, "TILE": 512, "AT_ONCE": at_once}.items():
        monkeypatch.setattr(radix, name, value)
    x = numbers((1, 33 * 512 + 7), torch.bfloat16)
    model = mlirc.compile(Calls(lambda x: x.sort(stable=True)), (x,), device="host", cache=False)
    assert model.plan.steps[0].grid[0] == 34
    model.input_sets = "none"
    assert_sorted([torch.as_tensor(r) for r in model.flat(x)], x, x.shape[-1], False)
