"""Products whose result's dimensions come in any order, one factor with a batch that the other does not have (tokens
times each expert's weights): what distribution makes of them, on the host device."""

from __future__ import annotations

import itertools

import pytest
import torch

import mlirc


class _Product(torch.nn.Module):
    """[T, K] tokens by [E, O, K] weights, one of the two on the left, the result [E, T, O] permuted."""

    def __init__(self, order: tuple[int, ...], tokens_left: bool) -> None:
        super().__init__()
        self.order, self.tokens_left = order, tokens_left

    def forward(self, x, w):
        x = x[None].expand(w.shape[0], *x.shape)
        y = torch.bmm(x, w.mT) if self.tokens_left else torch.bmm(w, x.mT).mT
        return y.permute(self.order).contiguous()


# Experts, tokens, outputs, inner: once the outputs are the most, once the experts.
SIZES = [(5, 18, 33, 32), (40, 18, 7, 33)]


@pytest.mark.parametrize(
    "sizes, dtype, allowed",
    [(SIZES[0], torch.bfloat16, 5e-3), (SIZES[1], torch.float32, 1e-6)],
    ids=["bf16", "f32"],
)
def test_every_order_of_the_result(sizes, dtype, allowed):
    e, t, o, k = sizes
    torch.manual_seed(sum(sizes))
    x, w = torch.randn(t, k).to(dtype), torch.randn(e, o, k).to(dtype)
    for order, left in itertools.product(itertools.permutations(range(3)), (True, False)):
        module = _Product(order, left)
        got = mlirc.compile(module, (x, w), device="host")(x, w)
        want = module(x.double(), w.double())
        error = (torch.as_tensor(got).double() - want).norm() / want.norm()
        assert error <= allowed, f"order {order}, tokens left: {left}: {error:.2e}"
