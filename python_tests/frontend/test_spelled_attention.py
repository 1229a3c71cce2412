"""Attention that a model spells out becomes one op, with its masks, biases and caps, and stays what it was; what only
looks like it keeps its products."""

from __future__ import annotations

import math

import pytest
import torch

from support.models.together import check_together, linalg_of, randn

INF = float("inf")


def product(q, k):
    return q @ k.transpose(-1, -2)


def causal(q, k, v):
    hidden = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool).triu(1)
    return (product(q, k) / math.sqrt(q.shape[-1])).masked_fill(hidden, -INF).softmax(-1) @ v


def added(q, k, v):
    hidden = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool).triu(1)
    scores = product(q, k) / math.sqrt(q.shape[-1])
    return (scores + torch.zeros_like(hidden, dtype=q.dtype).masked_fill(hidden, -1e9)).softmax(-1) @ v


def alibi(q, k, v):
    slopes = 2.0 ** -torch.arange(1, q.shape[1] + 1, dtype=q.dtype)
    distance = torch.arange(k.shape[-2])[None] - torch.arange(q.shape[-2])[:, None]
    return torch.softmax(product(q, k) * 0.3 + slopes[:, None, None] * distance.abs().neg(), -1) @ v


def causal_alibi(q, k, v):
    distance = torch.arange(k.shape[-2])[None] - torch.arange(q.shape[-2])[:, None]
    return (product(q, k) + 0.5 * distance).masked_fill(distance > 0, -INF).softmax(-1) @ v


def relative(q, k, v, table):
    scores = product(q * 0.2, k) + table
    return torch.softmax(scores.float(), -1).to(q.dtype) @ v


def capped(q, k, v):
    return torch.softmax(5.0 * torch.tanh(product(q, k) / 11.0), -1) @ v


def documents(q, k, v, ids):
    seen = ids[:, None, :, None] == ids[:, None, None, :]
    return torch.where(seen, product(q, k), -INF).softmax(-1) @ v


def grouped(q, k, v):
    k, v = (x.repeat_interleave(2, 1) for x in (k, v))
    return torch.softmax(product(q, k), -1) @ v


def of_rank_3(q, k, v, table):
    return torch.softmax(torch.bmm(q, k.mT) * 0.5 - table, -1).bmm(v)


def sigmoid(q, k, v):
    return torch.sigmoid(product(q, k) * 0.3 - math.log(k.shape[-2])) @ v


def squared_relu(q, k, v, ids):
    seen = ids[:, None, :, None] == ids[:, None, None, :]
    return (torch.relu(product(q, k) * 0.5).square() / 7).masked_fill(~seen, 0.0) @ v


def exponential(q, k, v):
    hidden = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool).triu(1)
    return (0.2 * product(q, k)).masked_fill(hidden, -INF).exp() @ v


QKV = randn(2, 4, 7, 8), randn(2, 4, 7, 8), randn(2, 4, 7, 5)
IDS = torch.tensor([[0, 0, 0, 1, 1, 2, 2], [0, 1, 1, 1, 1, 1, 1]])
FOUND = [
    (causal, QKV), (added, QKV), (alibi, QKV), (causal_alibi, QKV), (relative, (*QKV, randn(1, 4, 7, 7))), (capped, QKV),
    (documents, (*QKV, IDS)), (grouped, (randn(2, 4, 7, 8), randn(2, 2, 5, 8), randn(2, 2, 5, 3))),
    (sigmoid, QKV), (squared_relu, (*QKV, IDS)), (exponential, QKV), (of_rank_3, (randn(6, 7, 8), randn(6, 5, 8), randn(6, 5, 4), randn(7, 5))),
]  # fmt: skip


def count(function, inputs) -> int:
    return linalg_of(function, inputs).count('attention"(')


def test_they_are_attention_and_right():
    for function, inputs in FOUND:
        assert count(function, inputs) == 1, function.__name__
    check_together(FOUND, levels=["tiles"], kinds=["plain", "one NaN"])
    check_together([c for c in FOUND if c[0] is not exponential], levels=["tiles"], kinds=["floats x100"])


def test_rows_of_no_key_are_nan():
    ids = torch.arange(7)[None] + torch.tensor([[0], [9]])

    def other(q, k, v, ids):
        hidden = ids[:, None, :, None] >= ids.flip(0)[:, None, None, :]
        return product(q, k).masked_fill(hidden, -INF).softmax(-1) @ v

    q, k, v = QKV
    assert other(q, k, v, ids).isnan().any() and other(q, k, v, ids).isfinite().any()
    assert count(other, (q, k, v, ids)) == 1
    check_together([(other, (q, k, v, ids))], levels=["linalg", "tiles"], kinds=["plain"])


def finite_mask(q, k, v, ids):
    """Rows of no key are the mean of all values."""
    seen = ids[:, None, :, None] == ids[:, None, None, :] + 1
    return product(q, k).masked_fill(~seen, torch.finfo(q.dtype).min).softmax(-1) @ v


def mask_and_bias(q, k, v, ids):
    """An infinite score that the mask hides does no harm."""
    seen = ids[:, None, :, None] == ids[:, None, None, :]
    return (product(q, k) + k[:, :, :, 0][:, :, None]).masked_fill(~seen, -INF).softmax(-1) @ v


def cosine(q, k, v):
    return product(q, k).cos() @ v


def not_zero_where_hidden(q, k, v):
    hidden = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool).triu(1)
    return product(q, k).masked_fill(hidden, -INF).tanh() @ v


def bias_in_between(q, k, v):
    return torch.softmax((product(q, k) + 3 * k[:, :, :1, :1]) * 0.5, -1) @ v


def silu(q, k, v):
    return torch.nn.functional.silu(product(q, k) * 0.3) @ v


def polynomial(q, k, v):
    return (1 + 0.25 * product(q, k)) ** 2 @ v


def gated(q, k, v, table):
    """Rows and columns that have a factor each, in front of the softmax."""
    return torch.softmax(product(q, k).abs().sqrt() * table, -1) @ v


def between(q, k, v, ids, table):
    """A bias inside of a cap, and a mask that is no pattern: two inputs of different types and shapes."""
    seen = ids[:, None, :, None] == ids[:, None, None, :]
    capped = 3 * torch.tanh((product(q, k) + table) / 3)
    return torch.where(seen, capped, -1e4).softmax(-1) @ v


def causal_silu(q, k, v):
    hidden = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool).triu(1)
    return (product(q, k).clamp(-2, 2) ** 3).masked_fill(hidden, 0.0) @ v


def below(q, k, v):
    scores = product(q, k)
    return torch.where(scores > 0.5, scores, scores.exp() - 1) @ v


MORE = [
    (finite_mask, (*QKV, IDS)), (mask_and_bias, (*QKV, IDS)), (cosine, QKV), (not_zero_where_hidden, QKV),
    (bias_in_between, QKV), (silu, QKV), (polynomial, QKV), (gated, (*QKV, randn(4, 7, 1).abs())),
    (between, (*QKV, IDS, randn(4, 1, 7))), (causal_silu, QKV), (below, QKV),
]  # fmt: skip


def test_any_function_of_scores():
    """It needs no name: what is computed element by element between the products is the kernel's function."""
    for function, inputs in MORE:
        assert count(function, inputs) == 1, function.__name__
    check_together(MORE, levels=["tiles"], kinds=["plain", "one NaN"])
    half = [(f, tuple(x.bfloat16() if x.is_floating_point() else x for x in i)) for f, i in MORE]
    check_together(half, levels=["tiles"], kinds=["plain"])


LOWEST = torch.finfo(torch.float32).min


def slopes(heads):
    return 2.0 ** -torch.arange(1, heads + 1)


def bloom(q, k, v):
    """The bias first, as rows [B * H, 1, Sk] of a sum with the product; then a finite mask of 0 and the lowest."""
    batch, heads, count, _ = q.shape
    rows = (slopes(heads)[:, None, None] * torch.arange(count)).repeat(batch, 1, 1)
    flat = (x.reshape(-1, *x.shape[2:]) for x in (q, k.transpose(-1, -2)))
    scores = rows.to(q.dtype).baddbmm(*flat, beta=1.0, alpha=0.3).view(batch, heads, count, count)
    hidden = torch.ones(count, count, dtype=torch.bool).triu(1)
    scores = scores + torch.zeros(1, 1, count, count, dtype=q.dtype).masked_fill(hidden, torch.finfo(q.dtype).min)
    return torch.softmax(scores, -1, dtype=torch.float32).to(q.dtype) @ v


def mpt(q, k, v):
    """A finite mask over the sum."""
    bias = slopes(q.shape[1])[:, None, None] * torch.arange(1 - k.shape[2], 1)
    hidden = torch.ones(1, 1, q.shape[2], k.shape[2], dtype=torch.bool).triu(1)
    return (product(q, k) * 0.3 + bias.to(q.dtype)).masked_fill(hidden, torch.finfo(q.dtype).min).softmax(-1) @ v


def falcon(q, k, v):
    """PyTorch's attention with bias and mask as one tensor."""
    bias = (slopes(q.shape[1])[:, None, None] * torch.arange(k.shape[2])).to(q.dtype)
    hidden = torch.ones(1, 1, q.shape[2], k.shape[2], dtype=torch.bool).triu(1)
    mask = bias.masked_fill(hidden, torch.finfo(q.dtype).min)
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)


def windowed(q, k, v):
    """Not all columns are seen by the last row."""
    distance = torch.arange(q.shape[2])[:, None] - torch.arange(k.shape[2])
    bias = slopes(q.shape[1])[:, None, None] * torch.arange(k.shape[2])
    lowest = torch.finfo(q.dtype).min
    return (product(q, k) + bias.to(q.dtype)).masked_fill((distance < 0) | (distance > 2), lowest).softmax(-1) @ v


def described(function, inputs) -> str:
    """The op's lines of the `linalg` level, with types."""
    return "\n".join(
        x for x in linalg_of(function, inputs).split("\n") if "mlirc.attention" in x or "sink_attention" in x
    )


def test_alibi_is_a_row_for_each_head_and_its_mask_an_attribute():
    for function, window in ((bloom, 0), (mpt, 0), (falcon, 0), (windowed, 3)):
        line = described(function, QKV[:2] + (QKV[1],))
        assert "causal = true" in line and f"window = {window} :" in line and "score" not in line, function.__name__
        assert "tensor<1x4x1x7xf32>" in line, function.__name__
    cases = [(f, QKV) for f in (bloom, mpt, falcon, windowed)]
    check_together(cases, levels=["tiles"], kinds=["plain", "one NaN"])
    check_together([(f, tuple(x.bfloat16() for x in i)) for f, i in cases], levels=["tiles"], kinds=["plain"])


def mean_of_hidden(q, k, v):
    """A row that sees no key: finite masks leave the mean of all values."""
    hidden = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool).triu(0)
    bias = slopes(q.shape[1])[:, None, None] * torch.arange(k.shape[2])
    return (product(q, k) + bias).masked_fill(hidden, LOWEST).softmax(-1) @ v


def hides_by_bias(q, k, v, bias):
    """What a bias hides may be all that a row sees: then the hidden keys weigh."""
    hidden = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool).triu(1)
    return (product(q, k) + bias).masked_fill(hidden, LOWEST).softmax(-1) @ v


def of_queries(q, k, v):
    """A bias that is another one in each row."""
    place = torch.arange(q.shape[2])
    bias = (place[:, None] * place % 5).to(q.dtype)
    hidden = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool).triu(1)
    return (product(q, k) + bias).masked_fill(hidden, LOWEST).softmax(-1) @ v


def test_finite_masks_that_are_no_attribute_stay_right():
    bias = randn(1, 1, 7, 7)
    bias[..., 2, :3] = -INF
    cases = [(mean_of_hidden, QKV), (of_queries, QKV), (hides_by_bias, (*QKV, bias))]
    check_together(cases, levels=["tiles"], kinds=["plain"])
    for function, inputs in cases:
        assert ("causal = true" in described(function, inputs)) == (function is of_queries), function.__name__


def sinks_last(q, k, v, sinks):
    column = sinks.reshape(1, -1, 1, 1).expand(q.shape[0], -1, q.shape[-2], -1)
    return torch.cat([product(q, k) * 0.3, column], -1).softmax(-1)[..., :-1] @ v


def sinks_first(q, k, v, sinks):
    scores = causal_scores(q, k)
    joined = torch.cat([sinks[None, :, None, None].repeat(q.shape[0], 1, q.shape[2], 1), scores], dim=3)
    return torch.softmax(joined, -1, dtype=torch.float32)[..., 1:].to(q.dtype) @ v


def causal_scores(q, k):
    return product(q, k).masked_fill(torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool).triu(1), -INF)


def sinks_less_the_largest(q, k, v, sinks):
    """As gpt-oss has it."""
    joined = torch.cat([causal_scores(q, k), sinks.view(1, -1, 1, 1).expand(q.shape[0], -1, q.shape[2], -1)], -1)
    joined = joined - joined.max(dim=-1, keepdim=True).values
    return joined.softmax(-1)[..., :-1] @ v


def plus_one(q, k, v):
    """A softmax with one more in its sum: sinks of 0, which are constants."""
    zeros = torch.zeros(*q.shape[:3], 1, dtype=q.dtype)
    return torch.cat([product(q, k), zeros], -1).softmax(-1)[..., :-1] @ v


def sinks_of_capped(q, k, v, sinks):
    """Beside any function of a score."""
    column = sinks.reshape(1, -1, 1, 1).expand(q.shape[0], -1, q.shape[-2], -1)
    return torch.cat([torch.sin(product(q, k)), column], -1).softmax(-1)[..., :-1] @ v


def test_sinks_that_are_written_out():
    sinks = randn(4)
    cases = [(f, (*QKV, sinks)) for f in (sinks_last, sinks_first, sinks_less_the_largest, sinks_of_capped)]
    cases.append((plus_one, QKV))
    for function, inputs in cases:
        assert described(function, inputs).count('"mlirc.sink_attention"') == 1, function.__name__
    check_together(cases, levels=["tiles"], kinds=["plain", "one NaN"])


def column_of_rows(q, k, v):
    """One more column with another number in each row."""
    return torch.cat([product(q, k), q[..., :1]], -1).softmax(-1)[..., :-1] @ v


def column_of_batches(q, k, v, sinks):
    column = sinks[:, :, None, None].expand(-1, -1, q.shape[2], -1)
    return torch.cat([product(q, k), column], -1).softmax(-1)[..., :-1] @ v


def middle_left_out(q, k, v, sinks):
    """What is cut off is a key, not the column."""
    column = sinks.reshape(1, -1, 1, 1).expand(q.shape[0], -1, q.shape[-2], -1)
    return torch.cat([product(q, k), column], -1).softmax(-1)[..., 1:] @ v


def weights_too(q, k, v):
    weights = product(q, k).softmax(-1)
    return weights @ v, weights


def over_queries(q, k, v):
    return product(q, k).softmax(-2) @ v


def linear(q, k, v):
    return product(q, k) * 0.1 @ v


def biased(q, k, v, table):
    return torch.where(table > 0, product(q, k) * 0.1 + table, 0.5) @ v


def running(q, k, v):
    return product(q, k).cumsum(-1).sigmoid() @ v


def rolled(q, k, v):
    return product(q, k).tanh().roll(1, -1) @ v


def wide(q, k, v):
    return torch.softmax(product(q, k), -1) @ v


OTHERS = [
    (weights_too, QKV), (over_queries, QKV), (linear, QKV), (biased, (*QKV, randn(7, 7))),
    (wide, (randn(1, 1, 5, 300), randn(1, 1, 5, 300), randn(1, 1, 5, 8))), (running, QKV), (rolled, QKV),
    (column_of_rows, QKV), (column_of_batches, (*QKV, randn(2, 4))), (middle_left_out, (*QKV, randn(4))),
]  # fmt: skip


@pytest.mark.parametrize(("function", "inputs"), OTHERS, ids=lambda x: getattr(x, "__name__", ""))
def test_what_keeps_its_products(function, inputs):
    assert count(function, inputs) == 0


def test_those_are_right():
    check_together(OTHERS, levels=["tiles"], kinds=["plain"])
