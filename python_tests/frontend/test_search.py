"""Places in sorted rows, distances, medians and hypotenuses beside PyTorch, with NaN and infinities among them."""

from __future__ import annotations

import pytest
import torch

from mlirc.check import check_torch
from support.models.together import Calls

G = torch.Generator().manual_seed(1)
X, Y = torch.randn(3, 5, generator=G), torch.randn(7, 5, generator=G)
EDGES = torch.tensor([-1.0, -0.5, 0.0, 0.0, 1.0])
CASES = {
    "places": (
        lambda x: (torch.searchsorted(EDGES, x), torch.searchsorted(EDGES, x, right=True, out_int32=True)),
        (X,),
    ),
    "places in rows": (lambda x, r: torch.searchsorted(torch.sort(r, -1)[0], x, side="right"), (X, X * 2)),
    "place of a number": (lambda x: torch.searchsorted(torch.sort(x.reshape(-1))[0], 0.25), (X,)),
    "distances": (lambda x, y: [torch.cdist(x, y, p) for p in (0.0, 1.0, 2.0, 3.0, float("inf"))], (X, Y)),
    "distances in batches": (torch.cdist, (torch.randn(2, 1, 3, generator=G), torch.randn(2, 4, 3, generator=G))),
    "medians": (lambda x: (x.median(), *x.median(1), *x.median(0, keepdim=True)), (Y,)),
    "medians without NaN": (lambda x: (x.nanmedian(), *x.nanmedian(1)), (Y,)),
    "medians of integers": (lambda x: (x.median(), x.median(0)[0]), (torch.arange(12).reshape(4, 3) * 7 % 11,)),
    "a number permuted": (lambda x: x.sum().permute([]) + 1, (X,)),
    "hypotenuses": (torch.hypot, (X, Y[:3])),
    "hypotenuses of large halves": (lambda x: torch.hypot(x, x), (X.half() * 100,)),
    "infinity beside NaN": (torch.hypot, (torch.tensor([float("nan"), 0.0]), torch.tensor([float("-inf"), 0.0]))),
}


@pytest.mark.parametrize("case", CASES)
def test_search(case):
    function, args = CASES[case]
    result = check_torch(Calls(function), args, levels=["tiles"])
    assert result.ok, result.reason()


NAN, INF = float("nan"), float("inf")
STRANGE = torch.tensor([[NAN, 2, 1, INF, -INF], [NAN, INF, 1, NAN, 0], [0, 7, NAN, 3, 3], [-INF, -INF, 1, 1, NAN]])
ROWS = [[0.0, 2, NAN], [NAN, 1, 2], [1, NAN, 2], [1, 1, 1], [], [NAN], [-INF, 0, INF], [3, 2, 1], [0, 1, 2, NAN, NAN]]


def bisected(x):
    """Places in rows with NaN, without an order, of no elements: PyTorch's bisection tells what they are."""
    for values in ROWS:
        row = torch.tensor(values, dtype=x.dtype)
        yield from (torch.bucketize(x, row), torch.bucketize(x, row, right=True, out_int32=True))
    yield torch.searchsorted(row, x, sorter=torch.tensor([4, 2, 0, 1, 3]), side="right")
    yield from (torch.searchsorted(row, 1.0), torch.bucketize(1.5, row), torch.bucketize(x[0, 0], row))
    yield torch.searchsorted(torch.stack([row.flip(0), row, row, row])[: len(x)], x)


def ordered(x):
    """A NaN is the largest, but PyTorch's mode says nothing of it; of equal elements the first or the last one counts."""
    for dim in (0, 1):
        yield from (*x.sort(dim=dim, stable=True), *x.sort(dim=dim, descending=True, stable=True))
        yield x.argsort(dim=dim, descending=True, stable=True)
        yield from (x.topk(3, dim)[0], x.topk(2, dim, largest=False)[0], *x.max(dim), *x.min(dim))
        yield from (x.kthvalue(k, dim, keepdim=k > 1)[0] for k in (1, 2, x.shape[dim]))
        yield from (*x.nan_to_num().mode(dim), x.median(dim)[0], x.nanmedian(dim)[0], *x.cummax(dim), *x.cummin(dim))
    yield from (x[2].nan_to_num().mode()[0], x[0, 0].kthvalue(1)[0], x.msort(), x.argmax(), x.argmin())


def counted(x):
    yield from (x.histc(), x.histc(7), x.histc(5, -1, 1), x.histc(3, 0.3, 2), x[:1, :1].histc(4), x.histc(1))
    yield from ((x * 0).histc(3), x[:0].histc(3))


@pytest.mark.parametrize(
    ("run", "x", "levels"),
    [
        (bisected, STRANGE, ["tiles"]),
        (bisected, STRANGE[2:].bfloat16(), ["tiles"]),
        (ordered, STRANGE, ["tiles", "gpu"]),
        (ordered, torch.arange(20, dtype=torch.uint8).reshape(4, 5) * 77 % 8, ["tiles"]),
        (counted, torch.randn(9, 11, generator=G), ["tiles", "gpu"]),
        (counted, torch.randn(9, 11, generator=G).bfloat16(), ["tiles"]),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_strange_elements(run, x, levels):
    """The elements are those of x: a weight's are replaced, and a constant's folded."""
    strange = Calls(lambda numbers: list(run(torch.where(numbers == -1, 1, x))))
    result = check_torch(strange, (torch.zeros_like(x, dtype=torch.int64),), levels=levels, kinds=("plain",))
    assert result.ok, result.reason()


def test_bounds_of_a_histogram_are_in_it():
    result = check_torch(Calls(lambda x: (x.histc(5, -1, 3), x.histc(1, 1, 1.5))), (STRANGE,), levels=["tiles"])
    assert result.ok, result.reason()
