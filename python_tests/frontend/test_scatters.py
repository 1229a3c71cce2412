"""What is written at indices, beside PyTorch: every op of that kind, of all dtypes, with duplicates, NaN and no rows."""

from __future__ import annotations

import math

import pytest
import torch

from mlirc.check import check_torch
from mlirc.errors import MlircError
from mlirc.frontend.lower import lower_to_linalg
from mlirc.frontend.scatter import scatter, scatter_elements, scatter_elements_op
from support.models.together import Calls, check_together

DTYPES = (torch.float32, torch.bfloat16, torch.int64, torch.uint8, torch.bool)
REDUCTIONS = ("sum", "prod", "mean", "amax", "amin")


def levels_of(dtype):
    """Kernels of the other dtypes are the same ones at `gpu`."""
    return ("tiles", "gpu") if dtype in (torch.float32, torch.bool) else ("tiles",)


def values(dtype, *shape):
    if dtype == torch.bool:
        return torch.rand(shape) < 0.5
    return torch.randn(shape).mul(3).to(dtype)


def indices(size, *shape, negative=False):
    return torch.randint(-size if negative else 0, size, shape)


def puts(x, i, j, v, w):
    """`index_put` with one index or two, of one, two or no dimensions, empty, beside a dimension that has none."""
    for accumulate in (False, True):
        yield x.index_put((i,), v, accumulate)
        yield x.index_put((i, j), w, accumulate)
        yield torch.ops.aten.index_put(x, [None, j], x[:, :1].contiguous(), accumulate)
        yield x.index_put((i[0],), w[0], accumulate)
        yield x.index_put((i[0], j[0]), w[0], accumulate)
        yield x.index_put((i[:, None], j[None]), w[0], accumulate)
        yield x.index_put((i.reshape(2, 2),), v[0], accumulate)
        yield x.index_put((i[:0],), v[:0], accumulate)
        yield x[:0].index_put((i[:0],), v[:0], accumulate)
        yield x.index_put((x > 0,), w[0], accumulate)
        yield x.index_put((x[:, 0] > 0,), w[0], accumulate)


def along(x, i, s):
    """Slices along a dimension: of none, and of tensors of no dimension."""
    for write in (torch.index_add, torch.index_copy):
        yield write(x, 0, i, s)
        yield write(x.T, -1, i, s.T)
        yield write(x, 0, i[:0], s[:0])
        yield write(x[0, 0], 0, i[0] * 0, s[0, 0])
    yield from (x.index_fill(0, i, 1), x.index_fill(1, i[:0], 1), x[0, 0].index_fill(0, i[0] * 0, 0))
    yield from (x.put(i - 5, s[:, 0]), x.put(i - 5, s[:, 0], accumulate=True), x.put(i[:0], s[:0, 0]))


def elements(x, i, s):
    yield from (x.scatter(0, i, s), x.scatter(1, i % 3, s), x.scatter(-1, i[:3, :2] % 3, s), x.scatter(0, i, 1))
    yield from (x.scatter_add(0, i, s), x.scatter_add(1, i[:, :2] % 3, s), x[:, 0].scatter_add(0, i[:, 0], s[:, 0]))
    yield from (x.scatter(0, i[:0], s), x.scatter_add(0, i[:0], s), x[0, 0].scatter(0, i[0, 0] * 0, s[0, 0]))
    yield x[None].scatter(1, i[None], s[None])
    if x.dtype != torch.bool:
        yield from (x.scatter(0, i, s, reduce="add"), x.scatter(0, i, s, reduce="multiply"))
        yield from (x.scatter(1, i % 3, 2, reduce="add"), x.scatter(1, i % 3, 2, reduce="multiply"))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_writes_of_every_dtype(dtype) -> None:
    x, s = values(dtype, 5, 3), values(dtype, 4, 3)
    put = (x, indices(5, 4, negative=True), indices(3, 4, negative=True), s, values(dtype, 4))
    cases = [
        (lambda *args: list(puts(*args)), put),
        (lambda *args: list(along(*args)), (x, indices(5, 4), s)),
        (lambda *args: list(elements(*args)), (x, indices(5, 4, 3), s)),
    ]
    check_together(cases, levels_of(dtype), kinds=("plain",))


def reduced(x, i, rows, s):
    """Every reduction, with and without what is there; PyTorch has no mean of booleans."""
    for reduction in REDUCTIONS:
        for include in (True, False):
            if x.dtype == torch.bool and (reduction == "mean" or not include):
                continue
            yield x.scatter_reduce(0, i, s, reduction, include_self=include)
            yield x.scatter_reduce(-1, i[:, :2] % 3, s, reduction, include_self=include)
            if reduction != "sum":
                yield x.index_reduce(0, rows, s, reduction, include_self=include)
                yield x.index_reduce(0, rows[:0], s[:0], reduction, include_self=include)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_reductions_of_every_dtype(dtype) -> None:
    """Integers wrap around, and their mean is rounded down."""
    arguments = (values(dtype, 5, 3), indices(5, 4, 3), indices(5, 4), values(dtype, 4, 3))
    check_together(
        [(lambda *args: list(reduced(*args)), arguments)], levels_of(dtype), ("plain", "one NaN", "one infinity")
    )


def nonadjacent(y, i, v):
    """Indices that are not next to each other, and numbers in tensors among them, which select first."""
    y = y.clone()
    y[i, :, i] = 1.5
    y[:, i, :, i] = v[:, :1, :3]
    y[i, 0, :, i[0]] = v[0, :, :3]
    y[i[0], :, i, :2] = v[:, 0, :2]
    y[i[0], 1, i, i[1]] = v[0, :, 0]
    y[:, i[0], i] = v[0, :, None, :]
    y[i[:, None], :, i] = 2
    y[[0, 2], 1:3, i[:2]] = 5
    y[..., i, i] += 1
    y[i, None] *= 2
    return y, y[i, :, i], y[i, 0, :, i[0]], y[:, i[0], i], y[i[0], :, :2, i], y[i, None, :, i]


def test_indices_apart() -> None:
    check_together([(nonadjacent, (values(torch.float32, 3, 4, 3, 4), indices(3, 3), values(torch.float32, 3, 3, 4)))])


def test_lookups_without_dimensions() -> None:
    def run(x, i):
        yield from (
            torch.gather(x[0, 0], 0, i[:1] * 0),
            torch.gather(x[0, 0], 0, i[0] * 0),
            torch.gather(x[0], 0, i[0]),
        )
        yield from (torch.take(x, i), torch.take(x, i[0] - 15), torch.take(x[0, 0], i * 0), torch.take(x, i[:0]))

    check_together([(lambda *args: list(run(*args)), (values(torch.float32, 5, 3), indices(3, 4)))])


def masked(x, mask, source):
    yield from (x.masked_scatter(mask, source), torch.masked_scatter(x, mask[0], source))
    yield from (torch.masked_scatter(x[0], mask, source), x.masked_scatter(mask & False, source[:0]))
    yield x[:0].masked_scatter(mask[:0], source)


def test_masks_that_broadcast() -> None:
    cases = [
        (lambda *args: list(masked(*args)), (values(d, 5, 3), values(torch.bool, 5, 3), values(d, 16))) for d in DTYPES
    ]
    check_together(cases)


def test_windows_are_added() -> None:
    unfold = torch.ops.aten.unfold_backward
    cases = [
        (
            lambda g: (unfold(g, [2, 9, 3], 1, 4, 2), unfold(g[:, :2], [2, 9, 3], 1, 4, 5)),
            (values(DTYPES[0], 2, 3, 3, 4),),
        )
    ]
    check_together(cases)


def test_a_mask_of_unknown_size_is_refused() -> None:
    def put(x, mask, i):
        return x.index_put((mask, i), x[0, 0])

    with pytest.raises(MlircError, match="beside the mask|depends on the values"):
        check_torch(
            Calls(put), (torch.ones(3, 4), torch.ones(3, dtype=torch.bool), indices(4, 2, 3)), levels=["linalg"]
        )


def test_the_op_as_pytorch_runs_it() -> None:
    """An index outside leaves its slice out; of two for one place the last one stays."""
    x = torch.zeros(3, 2)
    found = scatter(x, {0: torch.tensor([2, 3, -1, 2])}, torch.arange(8.0).reshape(4, 2))
    assert found.tolist() == [[0, 0], [0, 0], [6, 7]] and not x.any()
    found = scatter(x, {0: torch.tensor([1, 1])}, torch.tensor([[1.0, math.nan], [2.0, 0.0]]), "max")
    assert found[1, 0] == 2 and found[1, 1].isnan()
    found = scatter_elements(x, 1, torch.tensor([[1], [5]]), torch.ones(2, 1), "add")
    assert found.tolist() == [[0, 1], [0, 0], [0, 0]]
    assert scatter_elements_op(x, torch.tensor([[0]]), torch.ones(1, 1), 0, "set")[0, 0] == 1


def test_what_torch_mlir_would_scatter_is_refused_by_name() -> None:
    text = """
    func.func @main(%x: !torch.vtensor<[3],f32>, %i: !torch.vtensor<[],si64>) -> !torch.vtensor<[3],f32> {
      %true = torch.constant.bool true
      %list = torch.prim.ListConstruct %i : (!torch.vtensor<[],si64>) -> !torch.list<optional<vtensor>>
      %r = torch.aten.index_put %x, %list, %x, %true : !torch.vtensor<[3],f32>, !torch.list<optional<vtensor>>,
          !torch.vtensor<[3],f32>, !torch.bool -> !torch.vtensor<[3],f32>
      return %r : !torch.vtensor<[3],f32>
    }"""
    with pytest.raises(MlircError, match="aten::index_put in module .* is not supported in this form"):
        lower_to_linalg(text)
