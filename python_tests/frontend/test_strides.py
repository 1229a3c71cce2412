"""Tensors of given strides, copies of views, and writes through strides, beside PyTorch."""

from __future__ import annotations

import torch

from mlirc.check import check_torch
from mlirc.driver.compilation import Compilation
from mlirc.targets import get_target
from support.models.together import Calls, check_together, randn


def copies(x):
    """Every view that PyTorch has as a copy."""
    y = x.view(2, 5)
    yield from (torch.as_strided_copy(x, (3,), (2,)), torch.as_strided_copy(y.t(), (2, 2), (2, 3), 1))
    yield from (torch.select_copy(y, 0, 1), torch.diagonal_copy(y), torch.unfold_copy(x, 0, 3, 2), torch.t_copy(y))
    yield from (torch.slice_copy(x, 0, 1, 7, 2), torch.transpose_copy(y, 0, 1), torch.permute_copy(y, (1, 0)))
    yield from (torch.squeeze_copy(x[None]), torch.unsqueeze_copy(x, 0), torch.expand_copy(x, (2, 10)))
    yield from (*torch.unbind_copy(y), *torch.split_copy(x, 3), *torch.split_with_sizes_copy(x, [4, 6]))
    yield from (torch.view_copy(x, (5, 2)), torch.detach_copy(x), torch.alias_copy(x))


def written(x):
    """A copy does not see what is written afterwards; a view by strides of a tensor is written through."""
    y = x.clone()
    z, w = torch.as_strided_copy(y, (3,), (2,)), torch.select_copy(y.view(2, 5), 0, 1)
    y += 1
    e = torch.empty_strided((3, 2), (1, 3))
    e.fill_(2)
    e[1] = x[:2]
    e.as_strided((2,), (3,)).add_(7)
    f = torch.empty_permuted((2, 3), (1, 0))
    f[:] = x[:3]
    n = x.new_empty_strided((2, 2), (2, 1), dtype=torch.int64).zero_()
    n[0, 1] += 3
    return y, z, w, e, f, n, torch.empty_strided((0, 2), (2, 1))


def test_strides() -> None:
    check_together([(lambda x: list(copies(x)), (randn(10),)), (written, (randn(10),))])


def test_dense_strides_of_decompositions_are_no_lookups():
    """A mean of all pixels of a channels-last image ends in `as_strided`."""
    x = randn(2, 5, 6, 7).contiguous(memory_format=torch.channels_last)
    pooled = Calls(lambda x: torch.nn.functional.adaptive_avg_pool2d(x.exp(), 1) * 3)
    job = Compilation("strides", get_target("sm_90a"), (), helpers=0)
    job.import_module(pooled, (x,), {})
    job.lower("kernels")
    assert "i64" not in job.text("kernels")
    result = check_torch(pooled, (x,), levels=("tiles",))
    assert result.ok, result.table()
