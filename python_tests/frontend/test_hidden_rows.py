"""Attention whose rows see no key, or have none: masks of the lowest finite number weigh all keys of such a row by
their scores, masks of -inf and bool ones give 0 (and NaN where the softmax is written out)."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from support.models.together import check_together, randn

attend = F.scaled_dot_product_attention
LOWEST = torch.finfo(torch.float32).min
HIDDEN = torch.ones(5, 7, dtype=torch.bool)
HIDDEN[1], HIDDEN[2, 3:] = False, False
CAUSAL = torch.ones(5, 5, dtype=torch.bool).tril()
NOT_FIRST = CAUSAL & (torch.arange(5)[:, None] > 0)
Q, K = randn(2, 3, 5, 8), randn(2, 3, 7, 8)
MASK = randn(2, 1, 5, 7) - 4 * (torch.arange(5) == 3)[:, None]  # the third row is far below 0.5


def given(seen, low):
    """Attention with a constant mask."""
    return lambda q, k: attend(q, k, k, torch.where(seen, torch.zeros((), dtype=q.dtype), low))


def computed(low):
    """Attention with a mask that the run computes."""
    return lambda q, k, m: attend(q, k, k, torch.where(m > 0.5, 0.0, low))


def test_rows_that_see_nothing():
    check_together([
        (given(HIDDEN, LOWEST), (Q, K)),
        (given(HIDDEN, -1e9), (Q, K)),
        (given(HIDDEN, -float("inf")), (Q, K)),
        (lambda q, k: attend(q, k, k, HIDDEN), (Q, K)),
        (given(CAUSAL, LOWEST), (Q, Q)),
        (given(NOT_FIRST, LOWEST), (Q, Q)),
        (given(HIDDEN, torch.finfo(torch.bfloat16).min), (Q.bfloat16(), K.bfloat16())),
        (given(HIDDEN, torch.finfo(torch.float16).min), (Q.half(), K.half())),
        (computed(LOWEST), (Q, K, MASK)),
        (computed(-3.2e38), (Q, K, MASK)),
        (lambda q, k, m: attend(q, k, k, m > 0.5), (Q, K, MASK)),
    ], kinds=["plain", "floats x100"])  # fmt: skip


def spelled(how, seen, low):
    def attention(q, k):
        scores = q @ k.mT * 0.35
        if how == "add":
            scores = scores + torch.where(seen, 0.0, low)
        else:
            scores = scores.masked_fill(~seen, low)
        return scores.softmax(-1) @ k

    return attention


def test_rows_that_see_nothing_spelled_out():
    check_together([
        (spelled("add", HIDDEN, LOWEST), (Q, K)),
        (spelled("fill", HIDDEN, LOWEST), (Q, K)),
        (spelled("fill", HIDDEN, -1e9), (Q, K)),
        (spelled("fill", HIDDEN, -float("inf")), (Q, K)),
        (spelled("add", NOT_FIRST, LOWEST), (Q, Q)),
        (spelled("fill", NOT_FIRST, LOWEST), (Q, Q)),
        (lambda q, k, m: torch.where(m > 0.5, q @ k.mT, LOWEST).softmax(-1) @ k, (Q, K, MASK)),
    ], kinds=["plain", "floats x100"])  # fmt: skip


def test_no_keys_and_no_rows():
    def shared(q, k):
        return attend(q, k, k, enable_gqa=True)

    check_together([
        (lambda q, k: (attend(q, k, k), q + 1), (randn(1, 2, 4, 8), randn(1, 2, 0, 8))),
        (lambda q, k, m: attend(q, k, k, m), (randn(2, 4, 8), randn(2, 0, 8), randn(4, 0))),
        (lambda q, k: attend(q, k, k), (randn(4, 8), randn(0, 8))),
        (shared, (randn(1, 4, 3, 8), randn(1, 2, 0, 8))),
        (lambda q, k: (attend(q, k, k), attend(k, k, k)), (randn(1, 2, 0, 8), randn(1, 2, 3, 8))),
        (lambda q, k: attend(q, k, k), (randn(0, 4, 8), randn(0, 3, 8))),
        (lambda q, k, v: attend(q, k, v), (randn(1, 2, 3, 0), randn(1, 2, 5, 0), randn(1, 2, 5, 8))),
        (lambda q, k: (q @ k.mT).softmax(-1) @ k, (randn(1, 2, 4, 8), randn(1, 2, 0, 8))),
    ], kinds=["plain"])  # fmt: skip
