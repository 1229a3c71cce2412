"""scaled_dot_product_attention in the shapes that PyTorch takes: broadcast heads, batches and masks, any rank."""

from __future__ import annotations

import pytest
import torch.nn.functional as F
from torch import nn

from mlirc.check import check_torch
from support.models.together import check_together, randn

attend = F.scaled_dot_product_attention


def grouped(q, k, v):
    return attend(q, k, v, enable_gqa=True)


BROADCAST = [
    (attend, ((2, 6, 7, 8), (2, 1, 5, 8), (2, 1, 5, 8))),
    (attend, ((2, 6, 7, 8), (2, 1, 5, 8), (2, 6, 5, 8))),
    (attend, ((1, 6, 7, 8), (2, 6, 5, 8), (2, 6, 5, 8))),
    (attend, ((2, 1, 7, 8), (2, 6, 5, 8), (2, 6, 5, 8))),
    (grouped, ((2, 6, 7, 8), (2, 2, 5, 8), (2, 2, 5, 8))),
    (grouped, ((2, 6, 7, 8), (2, 2, 5, 8), (2, 3, 5, 8))),
    (attend, ((2, 3, 7, 13), (2, 3, 5, 13), (2, 3, 5, 11))),
    (attend, ((7, 8), (5, 8), (5, 8))),
    (attend, ((2, 2, 3, 7, 8), (3, 5, 8), (3, 5, 8))),
    (attend, ((1, 2, 3, 7, 8), (2, 2, 3, 5, 8), (2, 2, 3, 5, 8))),
]
MASKED = [
    ((3, 7, 8), (3, 5, 8), (7, 5)),
    ((3, 7, 8), (3, 5, 8), (3, 7, 5)),
    ((3, 7, 8), (3, 5, 8), (3, 1, 5)),
    ((2, 3, 7, 8), (2, 3, 5, 8), (1, 1, 1, 5)),
    ((2, 3, 7, 8), (2, 3, 5, 8), (7, 1)),
    ((2, 3, 7, 8), (2, 3, 5, 8), (2, 1, 7, 5)),
    ((2, 2, 3, 7, 8), (2, 2, 3, 5, 8), (2, 1, 1, 7, 5)),
    ((2, 2, 3, 7, 8), (2, 2, 3, 5, 8), (2, 1, 7, 5)),
]


def test_broadcast_operands():
    check_together(
        [(f, tuple(randn(*s) for s in shapes)) for f, shapes in BROADCAST], levels=["tiles"], kinds=["plain"]
    )


@pytest.mark.parametrize("boolean", [False, True])
def test_broadcast_masks(boolean):
    def masked(q, k, m):
        return attend(q, k, k, m > 0.3 if boolean else m)

    cases = [(masked, tuple(randn(*s) for s in shapes)) for shapes in MASKED]
    check_together(cases, levels=["tiles"], kinds=["plain"])


def test_multihead_attention():
    plain = nn.MultiheadAttention(12, 3).eval()
    more = nn.MultiheadAttention(12, 3, kdim=5, vdim=7, add_bias_kv=True, add_zero_attn=True).eval()
    cases = [
        (lambda q, k: plain(q, k, k)[0], (randn(7, 12), randn(5, 12))),
        (lambda q, k, v: more(q, k, v), (randn(7, 2, 12), randn(5, 2, 5), randn(5, 2, 7))),
    ]
    check_together(cases, levels=["tiles"], kinds=["plain"])


class Views(nn.Module):
    """Attention whose result, as PyTorch leaves it in memory, can be looked at with the heads beside each other, in a
    model that writes in place, and a view that is written through."""

    def forward(self, x):
        x += 1.0
        q = x.view(5, 2, 4, 8).permute(1, 2, 0, 3)
        rows = attend(q, q, q).permute(2, 0, 1, 3).contiguous().view(10, 32)
        part = x.view(10, 32)
        part[3:] *= 2.0
        return rows, x


def test_views_of_the_result_in_a_model_that_writes_in_place():
    result = check_torch(Views(), (randn(5, 2, 32),), levels=["linalg"], kinds=["plain"])
    assert result.ok, result.reason()


def test_wide_heads_of_f32_are_products():
    """Their results do not fit registers."""
    cases = [
        (attend, (randn(1, 2, 7, 300), randn(1, 2, 5, 300), randn(1, 2, 5, 3))),
        (grouped, (randn(2, 4, 7, 3), randn(2, 2, 5, 3), randn(2, 2, 5, 257))),
    ]
    check_together(cases, levels=["tiles"], kinds=["plain"])
