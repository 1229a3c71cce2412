"""`flex_attention` of PyTorch: one kernel with the function of its scores and the limits of its mask."""

from __future__ import annotations

import pytest
import torch
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

import mlirc

HEADS, LENGTH, DIM = 4, 75, 32


class Flex(torch.nn.Module):
    """`score` and `mask` are called with this module in front of PyTorch's arguments."""

    def __init__(self, score=None, mask=None, **options) -> None:
        super().__init__()
        self.score, self.mask, self.options = score, mask, options
        self.register_buffer("slopes", torch.rand(HEADS))
        self.register_buffer("documents", torch.arange(LENGTH) // 20)

    def forward(self, q, k, v):
        score = mask = None
        if self.score:

            def score(s, b, h, i, j):
                return self.score(self, s, b, h, i, j)

        if self.mask:
            mask = create_block_mask(
                lambda b, h, i, j: self.mask(self, b, h, i, j), None, None, q.shape[2], k.shape[2], device=q.device
            )
        grouped = q.shape[1] != k.shape[1]
        return flex_attention(q, k, v, score_mod=score, block_mask=mask, enable_gqa=grouped, **self.options)


def _alibi(m, s, b, h, i, j):
    return s - m.slopes[h] * (i - j)


def _capped(m, s, b, h, i, j):
    return 5.0 * torch.tanh(s / 5.0)


def _relative(m, s, b, h, i, j):
    return torch.where(i - j > 7, s * 0.5, s + m.slopes[h])


def _whole(m, s, b, h, i, j):
    return s - (m.slopes[h] * (i - j)).to(torch.int64) * 0.25 + (i > j).to(torch.float32)


def _window(m, b, h, i, j):
    return (i >= j) & (i - j < 17)


def _documents(m, b, h, i, j):
    return (m.documents[i] == m.documents[j]) & (i >= j)


def _no_key_for_some(m, b, h, i, j):
    return j < i - 5


def _inputs(kv_heads=HEADS, dtype=torch.float32, batch=2):
    shapes = [(batch, heads, LENGTH, DIM) for heads in (HEADS, kv_heads, kv_heads)]
    return tuple(torch.randn(s).to(dtype) for s in shapes)


def _kernels(model) -> list[str]:
    return [s.kernel.rsplit("_", 1)[0] for s in model.plan.steps if hasattr(s, "kernel")]


@pytest.mark.parametrize(
    ("score", "mask", "kv_heads"),
    [
        (None, None, 2),
        (_alibi, _window, HEADS),
        (_capped, _documents, 2),
        (_relative, _no_key_for_some, HEADS),
        (None, _no_key_for_some, 2),
        (_whole, None, HEADS),
    ],
)
def test_is_one_attention_beside_pytorch(score, mask, kv_heads):
    inputs = _inputs(kv_heads)
    module = Flex(score, mask, scale=0.3)
    model = mlirc.compile(module, inputs, device="host")
    torch.testing.assert_close(torch.as_tensor(model(*inputs)), module(*inputs), rtol=2e-5, atol=2e-5)
    kinds = _kernels(model)
    assert kinds.count("attention") == 1 and "matmul" not in kinds and "reduction" not in kinds


def test_a_function_of_the_place_is_in_the_kernel_and_not_in_memory():
    inputs = _inputs(2, torch.bfloat16, 1)
    module = Flex(_alibi, _window)
    model = mlirc.compile(module, inputs, device="host")
    assert model.plan.arena_size < LENGTH * LENGTH
    got = torch.as_tensor(model(*inputs))
    wide = module(*(x.float() for x in inputs))
    assert (got.float() - wide).norm() / wide.norm() < 6e-3


def test_log_sum_of_exponentials_too():
    inputs = _inputs(2)
    module = Flex(_capped, _no_key_for_some, return_lse=True)
    model = mlirc.compile(module, inputs, device="host")
    assert _kernels(model) == ["attention"]
    for got, want in zip(model(*inputs), module(*inputs), strict=True):
        torch.testing.assert_close(torch.as_tensor(got), want, rtol=2e-5, atol=2e-5)
