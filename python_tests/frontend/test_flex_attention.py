"""`flex_attention` of PyTorch: one kernel with the function of its scores and the limits of its mask."""

from __future__ import annotations

import pytest
import torch
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention

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


def _prefix(m, b, h, i, j):
    return (j < 23) | (i >= j)


def _neighbours(m, b, h, i, j):
    """Of a picture of 5 rows of 15."""
    down, right = (i // 15 - j // 15).abs(), (i % 15 - j % 15).abs()
    return (down <= 1) & (right <= 2)


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
        (_alibi, _prefix, 2),
        (_capped, _neighbours, HEADS),
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


class Lists(torch.nn.Module):
    """Blocks of 16 queries and 32 keys: those of head 1 differ, and its queries 16 to 31 see no key."""

    def __init__(self, whole: bool) -> None:
        super().__init__()
        counts = torch.tensor([[1, 2, 3, 0, 1], [2, 0, 1, 1, 2]], dtype=torch.int32)[None]
        indices = torch.tensor([[2, 0, 1], [1, 2, 0]], dtype=torch.int32).repeat_interleave(5, 0).view(1, 2, 5, 3)
        self.lists = [counts, indices]
        if whole:  # the third block of a row, as one that is seen whole
            more = torch.tensor([[1, 0, 0, 1, 0], [0, 0, 1, 0, 1]], dtype=torch.int32)[None]
            self.lists += [more, indices.flip(-1).contiguous()]
        self.mask = BlockMask.from_kv_blocks(*self.lists, BLOCK_SIZE=(16, 32), seq_lengths=(LENGTH, LENGTH))

    def forward(self, q, k, v):
        return flex_attention(q, k, v, block_mask=self.mask, return_lse=True)

    def exact(self, q, k, v):
        seen = torch.zeros(2, LENGTH, LENGTH, dtype=torch.bool)
        for counts, indices in zip(self.lists[::2], self.lists[1::2], strict=True):
            for h in range(2):
                for block in range(5):
                    for n in indices[0, h, block, : counts[0, h, block]].tolist():
                        seen[h, 16 * block : 16 * (block + 1), 32 * n : 32 * (n + 1)] = True
        scores = (q @ k.transpose(-1, -2) / DIM**0.5).masked_fill(~seen, -torch.inf)
        return torch._safe_softmax(scores, -1) @ v, scores.logsumexp(-1)


@pytest.mark.parametrize("whole", [False, True], ids=["partial", "whole"])
def test_lists_of_blocks_without_a_function_say_what_is_seen(whole):
    """As compiled PyTorch has it; eager PyTorch does not look at the lists."""
    inputs = tuple(torch.randn(2, 2, LENGTH, DIM) for _ in range(3))
    module = Lists(whole)
    model = mlirc.compile(module, inputs, device="host")
    assert _kernels(model) == ["attention"]
    for got, want in zip(model(*inputs), module.exact(*(x.double() for x in inputs)), strict=True):
        torch.testing.assert_close(torch.as_tensor(got).double(), want, rtol=2e-5, atol=2e-5)
