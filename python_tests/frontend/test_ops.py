"""Ops that need a form of their own on the way to linalg, and the errors of those that have none."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from mlirc.errors import MlircError
from mlirc.frontend import from_torch, import_torch, lower_to_linalg
from support.models.small import check
from support.models.together import Calls, below, check_together, linalg_of, randn


@pytest.mark.parametrize(
    ("function", "shape"),
    [
        (lambda x: torch.roll(x, (2, -1), (0, 1)), (7, 5)),
        (lambda x: torch.roll(x, 9), (2, 7)),
        (lambda x: torch.roll(x, 3, -1), (1, 3)),
        (lambda x: F.pad(x, (1, 2, 3, 1), mode="circular"), (1, 2, 7, 5)),
        (lambda x: F.pad(x, (-1, 2, 0, 3), mode="circular"), (1, 1, 4, 7)),
        (lambda x: F.pad(x, (1, -2, -1, -1), mode="circular"), (1, 1, 4, 7)),
        (lambda x: F.pad(x, (1, 2), mode="reflect"), (2, 5)),
        (lambda x: F.pad(x, (0, 0, 1, -1)), (2, 5, 3)),
        (lambda x: F.pad(x, (-1, 1, 2, -2, -1, 1), value=3.0), (2, 5, 7)),
        (lambda x: F.pad(x > 0, (-1, 4, 1, -1), value=True).float(), (5, 7)),
        (lambda x: F.pad(x, (-3, -4)).sum() + x, (1, 7)),
        (lambda x: F.pad(x, (-1, 1, 1, -1, -1, 1), mode="reflect"), (1, 2, 4, 5, 7)),
        (lambda x: F.pad(x, (-1, 2, 1, -2), mode="replicate"), (1, 2, 5, 7)),
        (lambda x: x.T.contiguous().as_strided((3, 2), (1, 5), 2), (5, 7)),
        (lambda x: (x.T + 1).as_strided((2, 5), (0, 3), 1), (5, 7)),
        (lambda x: x.T.contiguous().as_strided((3, 4), (4, 1), 5), (5, 7)),
        (F.logsigmoid, (3, 7)),
        (lambda x: F.logsigmoid(x * 200), (3, 7)),
    ],
)
def test_ops_with_a_decomposition_of_ours(function, shape):
    torch.manual_seed(0)
    check(from_torch(Calls(function), (torch.randn(shape),)))


def written(x, write):
    y = x + 0
    write(y)
    return y


@pytest.mark.parametrize(
    ("write", "shape"),
    [
        (lambda y: y[:, 1:].copy_(F.pad(y, (0, 0, 1, -1))[:, 1:]), (2, 3, 5)),
        (lambda y: y[0].copy_(F.pad(y, (-1, 1), mode="reflect")[-1]), (3, 5)),
        (lambda y: y[:, ::2].mul_(3), (2, 7)),
        (lambda y: y.transpose(0, 1)[1].fill_(5), (3, 2)),
        (lambda y: y.view(-1).add_(1), (2, 3)),
        (lambda y: y.masked_fill_(y > 0, 2), (2, 3)),
        (lambda y: y.__setitem__(y > 0, -1.0), (5, 7)),
        (lambda y: y.__setitem__(y[:, 0] > 0, 4.0), (7, 3)),
    ],
)
def test_writes_into_views(write, shape):
    torch.manual_seed(0)
    check(from_torch(Calls(lambda x: written(x, write)), (torch.randn(shape),)))


@pytest.mark.parametrize("layer", [nn.LSTM(5, 7), nn.GRU(5, 7, batch_first=True, bidirectional=True)])
def test_recurrent_layers_are_unrolled(layer):
    check(from_torch(layer, (torch.randn(3, 2, 5),)))


@pytest.mark.parametrize(
    "module, shape", [(nn.Linear(0, 4), (3, 0)), (nn.Softmax(-1), (3, 0)), (nn.LogSoftmax(0), (0, 3))]
)
def test_dimensions_of_size_zero(module, shape):
    check(from_torch(module, (torch.randn(shape),)))


class Outer(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.block = nn.ModuleList([Calls(function)])

    def forward(self, x):
        return self.block[0](x) + 1


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda x: x + torch.poisson(x), "numbers of the poisson distribution in module 'block.0'"),
        (lambda x: F.pad(x, (-5, 6)), "takes more than the 4 elements"),
        (lambda x: torch.special.bessel_j0(x), "op aten::special_bessel_j0 in module 'block.0' cannot be imported"),
        (lambda x: F.linear(x.to(torch.int64), x), "op aten::linear in module 'block.0' .* is torch.int64 and its"),
        (lambda x: x.to(torch.float8_e5m2fnuz).float(), "in module 'block.0' makes a tensor of torch.float8_e5m2fnuz"),
    ],
)
def test_ops_that_cannot_be_imported_are_named_with_their_module(function, message):
    with pytest.raises(MlircError, match=message):
        lower_to_linalg(import_torch(from_torch(Outer(function), (torch.ones(4, 4),))))


def test_constants_that_cannot_be_computed_are_an_error():
    with pytest.raises(MlircError, match="out of bounds"):
        import_torch(from_torch(Calls(lambda x: x + torch.arange(3)[torch.arange(4, 7)]), (torch.ones(3),)))


@pytest.mark.parametrize(
    "result",
    [lambda x: None, lambda x: "text", lambda x: {"a": [None, ("b",)]}],
)
def test_a_model_that_returns_no_tensor(result):
    with pytest.raises(MlircError, match="returns no tensor"):
        import_torch(from_torch(Calls(result), (torch.ones(3),)))


def test_an_empty_table_is_no_embedding():
    with pytest.raises(MlircError, match="in module 'block.0' has no rows"):
        import_torch(from_torch(Outer(lambda x: F.embedding(x, torch.zeros(0, 3))), (torch.ones(4).long(),)))


def test_where_takes_one_tensor_for_both_sides():
    """torch-mlir gives that tensor as it is, whatever shape the condition has."""
    cases = [
        (lambda c, x: torch.where(c, x, x), (below(2, 2, 3) > 0, randn(3))),
        (lambda c, x: torch.where(c, x, x), (below(2, 2, 3) > 0, randn(2, 1))),
        (lambda c, x: torch.where(c, x, x) * 2, (below(2, 5, 1) > 0, randn())),
        (
            lambda c, x: torch.where(c, x.chunk(2, 1)[0], x.index_select(1, torch.tensor([0]))),
            (below(2, 3) > 0, randn(2, 1)),
        ),
        (lambda c, x: torch.where(c, x, x + 1), (below(2, 2, 3) > 0, randn(2, 1))),
        (lambda c: torch.where(c, 1.5, 1.5), (below(2, 5, 2) > 0,)),
        (lambda x: torch.lerp(x, x, torch.full((2, 3), 0.75)), (randn(3),)),
        (lambda x: torch.copysign(x, torch.tensor([0.0, -0.0, 0.0])), (randn(3),)),  # zeros of both signs differ
    ]
    check_together(cases, levels=["linalg", "gpu"])


def test_mish_is_as_exact_as_eagers_and_takes_one_exponential():
    x = torch.cat([torch.linspace(-30, 30, 1201), torch.tensor([-0.0, math.inf, math.nan, -90.0, 3e38, 1e-38])])
    for dtype in (torch.float32, torch.float64):
        text = linalg_of(F.mish, [x.to(dtype)])
        assert text.count("math.exp") == 1 and "math.tanh" not in text
    check_together([(F.mish, (x,)), (F.mish, (x.bfloat16(),))], levels=("linalg", "gpu"))
    n = torch.exp(x.clamp(max=20))
    mine, exact = (x * (n * (n + 2) / (n * (n + 2) + 2))).double(), F.mish(x.double())
    torch.testing.assert_close(mine, exact, rtol=1e-6, atol=0, equal_nan=True)
