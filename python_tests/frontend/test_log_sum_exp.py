"""Attention's log-sum-exp: a second result of the one kernel, in all the ways that models ask for it."""

from __future__ import annotations

import math

import pytest
import torch

import mlirc
from mlirc.errors import MlircError

aten = torch.ops.aten


class Of(torch.nn.Module):
    def __init__(self, function) -> None:
        super().__init__()
        self.function = function

    def forward(self, *tensors):
        return self.function(*tensors)


def _spelled(q, k, v):
    scores = q @ k.transpose(-1, -2) * 0.3
    return torch.softmax(scores, -1) @ v, torch.logsumexp(scores, -1)


def _hidden_rows(q, k, v):
    scores = q @ k.transpose(-1, -2) * 0.3
    places = torch.arange(k.shape[2])[None] > torch.arange(q.shape[2])[:, None] - 3
    scores = scores.masked_fill(places, -math.inf)
    return torch._safe_softmax(scores, -1) @ v, torch.logsumexp(scores, -1, keepdim=True)


def _flash(q, k, v):
    return aten._scaled_dot_product_flash_attention(q, k, v, 0.0, True)[:2]


def _flash_cpu(q, k, v):
    return aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, False)


def _efficient(q, k, v):
    out, lse = aten._scaled_dot_product_efficient_attention(q, k, v, None, True, 0.0, False)[:2]
    return out, lse[..., : q.shape[2]]


def _cudnn(q, k, v):
    out, lse = aten._scaled_dot_product_cudnn_attention(q, k, v, None, True)[:2]
    return out, lse.squeeze(-1)


def _exact(causal):
    def call(q, k, v):
        scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
        if causal:
            scores = scores.masked_fill(~torch.ones(scores.shape[-2:], dtype=torch.bool).tril(), -math.inf)
        return torch.softmax(scores, -1) @ v, scores.logsumexp(-1)

    return call


EXACT = {_flash: _exact(True), _flash_cpu: _exact(False), _efficient: _exact(False), _cudnn: _exact(False)}


def _tensors(queries, keys, dim, dtype=torch.float32, size=1.0):
    g = torch.Generator().manual_seed(7)
    shapes = [(2, 2, n, dim) for n in (queries, keys, keys)]
    q, k, v = (torch.randn(s, generator=g) for s in shapes)
    return tuple(x.to(dtype) for x in (q * size, k, v))


def _kernels(model) -> list[str]:
    return [s.kernel.rsplit("_", 1)[0] for s in model.plan.steps if hasattr(s, "kernel")]


def _check(function, inputs, errors, one_kernel=True, schedule=()):
    model = mlirc.compile(Of(function), inputs, device="host", schedule=list(schedule))
    if one_kernel:
        assert {s.kernel for s in model.plan.steps if "attention" in getattr(s, "kernel", "")} == {"attention_0"}
        assert not {"matmul", "reduction"} & set(_kernels(model))
    wants = EXACT.get(function, function)(*(x.double() for x in inputs))
    for got, want, error in zip(model(*inputs), wants, errors, strict=True):
        got = torch.as_tensor(got).double()
        assert got.shape == want.shape and torch.equal(got.isinf(), want.isinf())
        assert torch.equal(got[got.isinf()], want[want.isinf()])
        finite = want.isfinite()
        assert (got - want)[finite].norm() <= error * want[finite].norm()
    return model


@pytest.mark.parametrize(("queries", "keys", "dim"), [(67, 67, 32), (2, 5, 64), (3, 521, 48)])
@pytest.mark.parametrize("function", [_spelled, _flash_cpu, _efficient, _cudnn], ids=lambda f: f.__name__)
def test_beside_exact_math(function, queries, keys, dim):
    _check(function, _tensors(queries, keys, dim), (2e-6, 1e-6))


def test_of_flash_attention_counts_causal_and_writes_one_kernel():
    assert _kernels(_check(_flash, _tensors(41, 41, 32), (2e-6, 1e-6))) == ["attention"]


@pytest.mark.parametrize(("dtype", "error"), [(torch.bfloat16, 6e-3), (torch.float16, 1e-3)], ids=["bf16", "f16"])
@pytest.mark.parametrize(("queries", "keys"), [(67, 131), (2, 300)])
def test_of_halves_is_as_exact_as_sums(dtype, error, queries, keys):
    """PyTorch's own operators give it in f32."""
    _check(_flash_cpu, _tensors(queries, keys, 64, dtype), (error, 2e-5))


def _shared_keys(q, k, v):
    """Queries of the four heads that share a head of keys are rows of one tile."""
    return aten._scaled_dot_product_flash_attention_for_cpu(q.repeat(1, 4, 1, 1), k, v)


EXACT[_shared_keys] = lambda q, k, v: _exact(False)(
    q.repeat(1, 4, 1, 1), k.repeat_interleave(4, 1), v.repeat_interleave(4, 1)
)


@pytest.mark.parametrize(
    "knobs",
    [
        "parts=2,combine=cluster",
        "parts=3,combine=last",
        "parts=3,combine=launch",
        "parts=1,teams=2",
        "parts=1,pack=false",
    ],
)
def test_of_divided_keys(knobs):
    inputs = _tensors(1, 261, 16, torch.bfloat16)
    model = _check(_shared_keys, inputs, (6e-3, 2e-5), schedule=[f"cached_attention:{knobs},block_kv=32"])
    assert _kernels(model).count("attention") == 1 + ("launch" in knobs)


def test_of_halves_that_are_spelled_out():
    _check(_spelled, _tensors(67, 67, 32, torch.bfloat16), (6e-3, 3e-3))


def test_rows_that_see_nothing_are_minus_infinity():
    _check(_hidden_rows, _tensors(37, 41, 32), (2e-6, 1e-6))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["f32", "bf16"])
def test_scores_of_ten_thousand(dtype):
    inputs = _tensors(35, 41, 32, dtype, 3000.0)
    _check(_flash_cpu, inputs, (8e-3 if dtype == torch.bfloat16 else 2e-2, 1e-5))


def test_that_is_read_elsewhere_stays_beside_its_scores():
    def all_of_it(q, k, v):
        scores = q @ k.transpose(-1, -2)
        return torch.softmax(scores, -1) @ v, torch.logsumexp(scores, -1), scores.amax(-1)

    _check(all_of_it, _tensors(19, 23, 16), (2e-6, 1e-6, 1e-6), one_kernel=False)


def _merged(o1, lse1, o2, lse2):
    top = torch.maximum(lse1, lse2)
    a, b = torch.exp(lse1 - top)[..., None], torch.exp(lse2 - top)[..., None]
    return (a * o1 + b * o2) / (a + b)


def _cascade(q, prefix_k, prefix_v, k, v):
    batch = q.shape[0]
    flat = q.transpose(0, 1).reshape(1, q.shape[1], -1, q.shape[3])  # queries of all batches are rows of one product
    o1, lse1 = aten._scaled_dot_product_flash_attention_for_cpu(flat, prefix_k, prefix_v)
    o1 = o1.reshape(q.shape[1], batch, q.shape[2], -1).transpose(0, 1)
    lse1 = lse1.reshape(q.shape[1], batch, q.shape[2]).transpose(0, 1)
    o2, lse2 = aten._scaled_dot_product_flash_attention_for_cpu(q, k, v)
    return _merged(o1, lse1, o2, lse2)


def test_a_shared_prefix_is_two_attentions_and_one_kernel_that_merges_them():
    g = torch.Generator().manual_seed(7)
    shapes = [(3, 2, 5, 32), (1, 2, 67, 32), (1, 2, 67, 32), (3, 2, 11, 32), (3, 2, 11, 32)]
    q, pk, pv, k, v = (torch.randn(s, generator=g) for s in shapes)
    model = mlirc.compile(Of(_cascade), (q, pk, pv, k, v), device="host")
    kinds = _kernels(model)
    assert kinds.count("attention") == 2 and len(kinds) <= 4 and not {"matmul", "reduction"} & set(kinds)
    keys, values = (torch.cat([x.expand(3, -1, -1, -1), y], 2) for x, y in ((pk, k), (pv, v)))
    want, _ = _exact(False)(q.double(), keys.double(), values.double())
    torch.testing.assert_close(torch.as_tensor(model(q, pk, pv, k, v)).double(), want, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda q, k, v: aten._scaled_dot_product_flash_attention(q, k, v, 0.5)[:2], "dropout_p=0.5"),
        (lambda q, k, v: aten._scaled_dot_product_flash_attention(q, k, v, 0.0, True)[:2], "is_causal with 5 queries"),
    ],
    ids=["dropout", "causal"],
)
def test_is_refused_in_one_line(call, words):
    with pytest.raises(MlircError, match=words) as e:
        mlirc.compile(Of(call), _tensors(5, 7, 16), device="host")
    assert "\n" not in str(e.value)


def _sigmoid(q, k, v, bias):
    scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1]) + bias
    causal = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool).tril()
    return torch.sigmoid(scores).masked_fill(~causal, 0.0) @ v


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=["f32", "bf16", "f16"])
@pytest.mark.parametrize("size", [1.0, 3000.0])
def test_sigmoid_attention_is_one_kernel(dtype, size):
    inputs = (*_tensors(67, 67, 32, dtype, size), torch.full((2, 1, 1), -3.0, dtype=dtype))
    model = mlirc.compile(Of(_sigmoid), inputs, device="host")
    assert _kernels(model) == ["attention"]
    want = _sigmoid(*(x.double() for x in inputs))
    error = {torch.float32: 2e-5, torch.bfloat16: 8e-3, torch.float16: 2e-3}[dtype]
    assert (torch.as_tensor(model(*inputs)).double() - want).norm() <= error * want.norm()
