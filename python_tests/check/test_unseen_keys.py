"""Attention whose hidden keys are not finite: the check takes PyTorch's plain formula, or one without these keys."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

from mlirc.check import check_torch
from mlirc.check.compare import Reference, compare
from mlirc.check.unseen_keys import UnseenKeys, attention
from support.randomness import generator

INF, LOWEST = math.inf, torch.finfo(torch.float32).min
TRIL = torch.ones(5, 5, dtype=torch.bool).tril()


class Attention(torch.nn.Module):
    """Attention of operands that come in any order: the check puts what is not finite into the first."""

    def __init__(self, order="qkv", **options):
        super().__init__()
        self.order, self.options = order, options

    def forward(self, a, b, c):
        named = dict(zip(self.order, (a, b, c), strict=True))
        return F.scaled_dot_product_attention(named["q"], named["k"], named["v"], **self.options)


def normal(*shape):
    return torch.from_numpy(generator().standard_normal(shape)).float()


def test_it_is_pytorchs_attention_of_finite_numbers():
    q, k, v = normal(2, 4, 5, 8), normal(2, 2, 5, 8), normal(2, 2, 5, 3)
    rows = torch.tensor([True, False, True, True, False])[:, None] & TRIL  # two rows see nothing
    bias = normal(5, 5).masked_fill(~TRIL, -INF)
    for options in (dict(), dict(is_causal=True), dict(attn_mask=rows), dict(attn_mask=bias), dict(scale=0.3)):
        wanted = F.scaled_dot_product_attention(q, k, v, enable_gqa=True, **options)
        torch.testing.assert_close(attention(q, k, v, enable_gqa=True, **options), wanted)


def test_a_hidden_key_reaches_no_row_and_a_seen_one_those_that_see_it():
    q, k, v = normal(1, 1, 5, 8), normal(1, 1, 5, 8), normal(1, 1, 5, 3)
    wanted = attention(q, k, v, is_causal=True)
    k[..., 3, :], v[..., 3, 1] = INF, math.nan
    with UnseenKeys() as mode:
        found = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    assert mode.used
    torch.testing.assert_close(found[..., :3, :], wanted[..., :3, :])
    assert bool(found[..., 3:, 1].isnan().all())


@pytest.mark.parametrize("options", [
    dict(is_causal=True), dict(attn_mask=TRIL),
    dict(attn_mask=torch.zeros(5, 5).masked_fill(~TRIL, -INF)),
    dict(attn_mask=torch.zeros(5, 5).masked_fill(~TRIL, LOWEST)),
], ids=["causal", "bool", "float", "lowest"])  # fmt: skip
@pytest.mark.parametrize("seed", range(2))
def test_a_row_whose_only_key_scores_minus_infinity_is_right(options, seed):
    args = (normal(1, 2, 5, 8), normal(1, 2, 5, 8), normal(1, 2, 5, 8))
    result = check_torch(Attention(**options), args, levels=["tiles"], seed=seed, kinds=["one infinity", "one NaN"])
    assert result.ok, result.table()


@pytest.mark.parametrize("order", ["kqv", "vqk"])
def test_rows_in_front_of_what_is_not_finite_are_compared(order):
    args = (normal(1, 2, 75, 8), normal(1, 2, 75, 8), normal(1, 2, 75, 8))
    module = Attention(order, is_causal=True)
    result = check_torch(module, args, levels=["tiles", "gpu"], kinds=["one infinity", "one NaN"])
    assert result.ok and not result.blank, result.table()


def test_an_element_is_one_of_both_and_nothing_else():
    plain, unseen = torch.tensor([[1.0, math.nan, math.nan]]), torch.tensor([[1.0, 2.0, math.nan]])
    reference = Reference(plain, plain.double(), unseen=unseen.double())
    for good in ([1.0, math.nan, math.nan], [1.0, 2.0, math.nan]):
        assert not compare(torch.tensor([good]), reference).wrong
    for bad in ([1.0, 2.1, math.nan], [1.0, 2.0, 2.0], [math.nan, 2.0, math.nan], [1.0, INF, math.nan]):
        assert compare(torch.tensor([bad]), reference).wrong
