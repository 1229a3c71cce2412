"""The copying forms of views, neighbours of floats, and distances, on the host device beside PyTorch."""

from __future__ import annotations

import pytest
import torch

import mlirc


class Copies(torch.nn.Module):
    def forward(self, x):
        views = (torch.permute_copy(x, (1, 0)), torch.as_strided_copy(x, (3,), (2,), 1), torch.narrow_copy(x, 1, 1, 2))
        more = (
            torch.expand_copy(x[None], (3, 4, 5)),
            torch.select_copy(x, 0, -1),
            torch.ops.aten.view_copy(x, (2, 10)),
        )
        last = (torch.unfold_copy(x, 1, 3, 2), torch.diagonal_copy(x, 1), torch.squeeze_copy(x[:, :1], 1))
        return (
            *views,
            *more,
            *last,
            *torch.unbind_copy(x, 1),
            *torch.split_copy(x, 3),
            torch.t_copy(x),
            torch.detach_copy(x),
        )


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.bool])
def test_copies_of_views_are_contiguous_and_equal(dtype):
    x = torch.randn(4, 5).mul(3).to(dtype)
    outputs = mlirc.compile(Copies(), (x,), device="host")(x)
    for ours, eager in zip(outputs, Copies()(x), strict=True):
        assert torch.equal(ours, eager) and ours.dtype == eager.dtype


class Neighbours(torch.nn.Module):
    def forward(self, x):
        return torch.nextafter(x[:, None], x[None]), torch.dist(x[-4:], x[-3:-2]), torch.dist(x[-4:], -x[-4:], 1.0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_the_next_float_has_the_bits_that_pytorch_gives(dtype):
    ends = [0.0, -0.0, float("inf"), -float("inf"), float("nan"), torch.finfo(dtype).max, torch.finfo(dtype).tiny]
    x = torch.tensor([*ends, 1.0, -1.0, 0.3, 1e-3]).to(dtype)
    outputs, eager = mlirc.compile(Neighbours(), (x,), device="host")(x), Neighbours()(x)
    torch.testing.assert_close(outputs[0], eager[0], rtol=0, atol=0, equal_nan=True)
    assert torch.equal(torch.signbit(outputs[0])[~eager[0].isnan()], torch.signbit(eager[0])[~eager[0].isnan()])
    torch.testing.assert_close(outputs[1:], eager[1:])
