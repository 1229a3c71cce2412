"""Biases that head and distance decide are tables that attention reads; others stay what they were; both are right."""

from __future__ import annotations

import math

import pytest
import torch

from mlirc.frontend import score_tables
from support.models.together import check_together, linalg_of, randn

sdpa = torch.nn.functional.scaled_dot_product_attention


@pytest.fixture(autouse=True)
def all_sizes(monkeypatch):
    monkeypatch.setattr(score_tables, "SMALL", 1)


def distances(q, k):
    return torch.arange(k.shape[2])[None, :] - torch.arange(q.shape[2])[:, None]


def slopes(q):
    return (2.0 ** -torch.arange(1, q.shape[1] + 1)).to(q.dtype)[:, None, None]


def alibi(q, k, v):
    return sdpa(q, k, v, attn_mask=(-slopes(q) * distances(q, k).abs())[None])


def causal_alibi(q, k, v):
    bias = (slopes(q) * distances(q, k)).masked_fill(distances(q, k) > 0, -math.inf)
    return torch.softmax(q @ k.mT * 0.3 + bias, -1) @ v


def sigmoid_alibi(q, k, v):
    return torch.sigmoid(q @ k.mT * 0.3 - slopes(q) * distances(q, k).abs() - 1) @ v


def waves(q, k, v):
    """The same for all heads."""
    return sdpa(q, k, v, attn_mask=torch.sin(distances(q, k).to(q.dtype)))


def padded(q, k, v, seen):
    bias = -slopes(q) * distances(q, k).abs()
    return torch.where(seen[:, None, None], q @ k.mT + bias, -math.inf).softmax(-1) @ v


def lookup(q, k, v, table):
    return sdpa(q, k, v, attn_mask=table[:, : q.shape[1]][distances(q, k).clamp(-4, 3) + 4].permute(2, 0, 1)[None])


def padded_lookup(q, k, v, table, seen):
    """As T5 has it: the mask is a bias, too, and one of its rows sees nothing."""
    rows = torch.nn.functional.embedding(distances(q, k).clamp(-4, 3) + 4, table)
    lowest = torch.finfo(q.dtype).min
    return sdpa(q, k, v, attn_mask=rows.permute(2, 0, 1)[None] + torch.where(seen, 0.0, lowest)[:, None, None])


def made(dtype=torch.float32, queries=9, keys=9, heads=3):
    return tuple(randn(2, heads, n, d).to(dtype) for n, d in ((queries, 8), (keys, 8), (keys, 5)))


QKV, SEEN = made(), torch.arange(9) < torch.tensor([[5], [0]])
TABULATED = [
    (alibi, QKV), (alibi, made(torch.bfloat16, 5, 17)), (alibi, made(torch.float16, 17, 2, heads=1)),
    (causal_alibi, made(heads=1)), (sigmoid_alibi, QKV), (waves, QKV), (padded, (*QKV, torch.arange(9) < 4 + torch.zeros(2, 1))),
    (padded_lookup, (*QKV, randn(8, 3), SEEN)),
]  # fmt: skip


def asymmetric(q, k, v):
    return sdpa(q, k, v, attn_mask=torch.arange(81.0).reshape(9, 9).remainder(7))


def of_inputs(q, k, v, bias):
    return sdpa(q, k, v, attn_mask=bias)


OTHERS = [(asymmetric, QKV), (of_inputs, (*QKV, randn(1, 3, 9, 9)))]


@pytest.mark.parametrize("function, inputs", TABULATED, ids=[f"{f.__name__}{i}" for i, (f, _) in enumerate(TABULATED)])
def test_a_bias_of_distances_is_a_table(function, inputs):
    text = linalg_of(function, inputs)
    (line,) = [line for line in text.split("\n") if '_attention"(' in line]
    queries, keys = inputs[0].shape[2], inputs[1].shape[2]
    assert "mlirc.table_attention" in line and f"x{queries}x{keys}xf" not in line
    assert f"{queries + keys - 1}x{'bf16' if inputs[0].dtype == torch.bfloat16 else 'f'}" in line


@pytest.mark.parametrize("function, inputs", [*OTHERS, (alibi, QKV)], ids=["asymmetric", "of inputs", "small"])
def test_others_stay(function, inputs, monkeypatch):
    if function is alibi:
        monkeypatch.setattr(score_tables, "SMALL", 3 * 9 * 9 * 4 + 1)
    assert "mlirc.attention" in linalg_of(function, inputs)


def test_they_are_right():
    check_together([*TABULATED, *OTHERS, (lookup, (*QKV, randn(8, 4)))], levels=["tiles"], kinds=["plain", "one NaN"])
