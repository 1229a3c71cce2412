"""`y[i, :, j]` by numbers in tensors, next to writes: views of a tensor at places that nothing but the data tells."""

from __future__ import annotations

import pytest
import torch

from mlirc.check import check_torch
from support.models.together import Calls, randn


def read_after_a_write(x, i, j):
    y = x.clone()
    y[0] = 0.5
    z = y[i, :, j]
    y[1] = 3  # z is a view
    return z, y[..., i, j], y[i, [0, 2], j]


def added(x, i, j):
    y = x.clone()
    y[i, :, j] += 1
    y[i][:, 2] = y[0, :, j]
    return y


def written_through(x, i, j):
    y = x.clone()
    view = y[i, :, j]
    view.mul_(2)
    y.diagonal(dim1=0, dim2=1).add_(1)
    return y, view


def put(x, i, j):
    y = x.clone()
    y.index_put_((i, torch.tensor([0, 2]), j), torch.tensor(4.0), accumulate=True)
    return y, y[i, [0, 2, 0], j]


def an_input(x, i, j):
    x[i, :, j] = x[0, :, j] * 2
    return x + 1


@pytest.mark.parametrize("place", [1, -1])
@pytest.mark.parametrize("function", [read_after_a_write, added, written_through, put, an_input])
def test_places_next_to_writes(function, place):
    args = randn(3, 4, 5), torch.tensor(place), torch.tensor(place - 1)
    result = check_torch(Calls(function), args, levels=["tiles"], kinds=["plain"])
    assert result.ok, result.reason()
