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
