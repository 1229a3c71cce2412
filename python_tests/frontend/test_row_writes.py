"""Rows that are written to places of their own: what the op means, its kernels, and what it does not take."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from mlirc.check import check_torch
from mlirc.frontend.row_writes import put_rows
from support.models.together import randn


def test_the_op_writes_the_rows_whose_places_are_not_negative() -> None:
    pool, rows = randn(5, 3), randn(4, 3)
    found = put_rows(pool, rows, torch.tensor([4, -1, 0, -7]))
    wanted = pool.clone()
    wanted[4], wanted[0] = rows[0], rows[2]
    assert torch.equal(found, wanted) and found is not pool
    assert torch.equal(put_rows(pool, rows, torch.full((4,), -1)), pool)


class Cache(nn.Module):
    """Keys that are rotated and values that are moved, as models that generate make them: two pools, and a result."""

    def __init__(self, places):
        super().__init__()
        self.register_buffer(
            "places", torch.tensor(places)
        )  # no input: those are made at random, which are not distinct

    def forward(self, k, v, keys, values):
        places = self.places
        rotated = torch.cat([-k[..., 1:], k[..., :1]], -1) * 0.5 + k
        rows = v.transpose(1, 2).reshape(-1, v.shape[3])
        return put_rows(keys, rotated.reshape(-1, k.shape[3]), places), put_rows(values, rows, places), rotated.exp()


@pytest.mark.parametrize(
    ("shape", "places"),
    [((1, 1, 1, 1), [6]), ((2, 3, 1, 5), [0, 12, -1, 3, -9, 7]), ((1, 2, 7, 33), [*range(5), -1, -1, *range(20, 27)])],
    ids=str,
)
def test_writes_are_right_at_every_level(shape, places) -> None:
    """The `gpu` level runs on the host device, which reports races and accesses out of bounds."""
    batch, heads, tokens, width = shape
    arguments = (randn(*shape), randn(batch, tokens, heads, width), randn(29, width), randn(29, width))
    levels = ("linalg", "kernels", "tiles", "gpu")
    result = check_torch(Cache(places), arguments, levels=levels, kinds=("plain", "one NaN"))
    assert result.ok, result.table()


def test_wrong_arguments_are_refused() -> None:
    pool, rows, places = randn(5, 3), randn(2, 3), torch.tensor([1, 0])
    for given in ((pool, rows[:, :2], places), (pool, rows.double(), places), (pool, rows, places.int())):
        with pytest.raises((ValueError, RuntimeError), match="put_rows takes"):
            put_rows(*given)
