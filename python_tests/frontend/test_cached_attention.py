"""Attention over a paged cache is one op, from PyTorch down to a kernel: what it means, and what it does not take."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from mlirc.check import check_torch
from mlirc.frontend.cached_attention import cached_attention
from support.kernels.paged import Case, expected, inputs
from support.models.together import randn

CASES = [
    Case(lengths=(1, 7, 16, 33)),
    Case(lengths=(3, 48), queries=3, window=5, softcap=2.0),
    Case(lengths=(5, 16, 9), queries=5, page=1, pages=17, heads=(3, 3), dims=(8, 3)),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_op_is_attention_of_each_sequence(case: Case) -> None:
    """Pages in any order, NaN in all that no sequence has."""
    arguments = [torch.from_numpy(x) for x in inputs(case)]
    found = cached_attention(*arguments, case.scale, case.window, case.softcap)
    torch.testing.assert_close(
        found, torch.from_numpy(expected(case, arguments)), rtol=1e-5, atol=1e-6, check_dtype=False
    )


def test_one_sequence_is_what_pytorch_computes() -> None:
    q, k = randn(1, 4, 6, 8), randn(3, 2, 4, 8)
    pages, lengths = torch.tensor([[2, 0, 1]]), torch.tensor([10])
    whole = k[pages[0]].transpose(0, 1).reshape(1, 2, 12, 8)[:, :, :10]
    mask = torch.ones(6, 10, dtype=torch.bool).tril(4)
    wanted = F.scaled_dot_product_attention(q, whole, whole, mask, scale=0.3, enable_gqa=True)
    torch.testing.assert_close(cached_attention(q, k, k, pages, lengths, 0.3), wanted)


class Layer(nn.Module):
    """As models call it: heads are the third dimension of what comes and goes."""

    def forward(self, q, keys, values, pages, lengths):
        out = cached_attention(q.transpose(1, 2), keys, values, pages, lengths, 0.3, 20)
        return out.transpose(1, 2).reshape(q.shape[0], -1)


@pytest.mark.parametrize("queries", [1, 3])
def test_a_layer_is_one_kernel_and_right_at_every_level(queries: int) -> None:
    q, keys, values = randn(2, queries, 4, 8), randn(7, 2, 4, 8), randn(7, 2, 4, 8)
    arguments = (q, keys, values, torch.tensor([[3, 6, 1], [0, 2, 5]]), torch.tensor([3, 12]))
    result = check_torch(Layer(), arguments, levels=("linalg", "kernels", "tiles", "gpu"), kinds=("plain", "one NaN"))
    assert result.ok, result.table()


WRONG = [
    (dict(pages=torch.zeros(2, 3, dtype=torch.int32)), "pages and lengths of int64"),
    (dict(lengths=torch.zeros(3, dtype=torch.int64)), "lengths [B]"),
    (dict(keys=randn(7, 3, 4, 8)), "Hq a multiple of Hkv"),
    (dict(values=randn(7, 2, 4, 8).half()), "of one float type"),
]


@pytest.mark.parametrize(("change", "says"), WRONG, ids=[says for _, says in WRONG])
def test_what_does_not_fit_is_refused(change: dict, says: str) -> None:
    arguments = dict(
        q=randn(2, 4, 1, 8), keys=randn(7, 2, 4, 8), values=randn(7, 2, 4, 8),
        pages=torch.zeros(2, 3, dtype=torch.int64), lengths=torch.ones(2, dtype=torch.int64),
    )  # fmt: skip
    with pytest.raises(ValueError) as error:
        cached_attention(**(arguments | change), scale=1.0)
    assert says in str(error.value)
