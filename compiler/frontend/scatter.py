"""Slices written into a tensor at places that depend on data: every op of PyTorch that writes at indices becomes this.

`mlirc::scatter` (of slices) and `mlirc::scatter_elements` become one `tm_tensor.scatter`: its slices are written one
after the other, so that of two for one place the last one stays, and their elements in parallel.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

COMBINATIONS: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "set": lambda old, new: new,
    "add": torch.add,
    "mul": torch.mul,
    "max": torch.maximum,
    "min": torch.minimum,
}


@torch.library.custom_op("mlirc::scatter", mutates_args=())
def scatter_op(
    target: torch.Tensor, indices: torch.Tensor, updates: torch.Tensor, dims: Sequence[int], combine: str
) -> torch.Tensor:
    """`target` with slice n of `updates` [N, *window] at `indices`[n] (int64 [N,K]), combined with what is there.

    A window has the target's dimensions, of extent 1 for the K ones in `dims` (ascending), which the indices are of.
    `combine` is a key of COMBINATIONS; max and min of a NaN and a number are NaN. A slice with an index outside of its
    dimension is left out. No dimension of the operands is empty.
    """
    out = target.clone()
    limits = torch.tensor([target.shape[d] for d in dims])
    for index, update in zip(indices, updates, strict=True):
        if bool(((index >= 0) & (index < limits)).all()):
            view = out
            for dim, i in zip(dims, index.tolist(), strict=True):
                view = view.narrow(dim, i, 1)
            view.copy_(COMBINATIONS[combine](view, update))
    return out


@scatter_op.register_fake
def _(target, indices, updates, dims, combine):
    return torch.empty_like(target, memory_format=torch.contiguous_format)


@torch.library.custom_op("mlirc::scatter_elements", mutates_args=())
def scatter_elements_op(
    target: torch.Tensor, index: torch.Tensor, updates: torch.Tensor, dim: int, combine: str
) -> torch.Tensor:
    """`target` with every element of `updates`, of the shape of `index` (int64, of the target's rank, which is not 0),
    at the same place, but for `dim`, where it is at the index's element. Otherwise as `mlirc::scatter`."""
    places = torch.ones_like(index).nonzero()
    places[:, dim] = index.reshape(-1)
    slices = updates.reshape(-1, *[1] * target.dim())
    return scatter_op(target, places, slices, list(range(target.dim())), combine)


@scatter_elements_op.register_fake
def _(target, index, updates, dim, combine):
    return torch.empty_like(target, memory_format=torch.contiguous_format)


def scatter(
    target: torch.Tensor, places: dict[int, torch.Tensor], updates: torch.Tensor, combine: str = "set"
) -> torch.Tensor:
    """`target` with slice n of `updates` at the n-th elements of `places`, by dimension: integers of one shape.

    updates: of the shape of a place, then that of the target without the dimensions in `places`, in any dtype: they are
    converted to the target's. `combine` as in `scatter_op`; 16-bit floats are added and multiplied in f32, booleans are
    added by `or` and multiplied by `and`.
    """
    dims = sorted(places)
    if not updates.numel() or not target.numel():
        return target.clone()
    combine, wide = _computed(combine, target.dtype)
    window = [1 if d in places else n for d, n in enumerate(target.shape)]
    table = torch.stack([places[d].reshape(-1).to(torch.int64) for d in dims], 1)
    slices = updates.to(target.dtype).to(wide).reshape(-1, *window)
    out = torch.ops.mlirc.scatter(target.to(wide), table, slices, dims, combine)
    return out.to(target.dtype)


def scatter_elements(
    target: torch.Tensor, dim: int, index: torch.Tensor, updates: torch.Tensor, combine: str = "set"
) -> torch.Tensor:
    """`target` with each element of `updates`, of the index's shape, at the same place, but for `dim`, where the index
    says it; in the dtypes of `scatter`."""
    if not index.numel() or not target.numel():
        return target.clone()
    combine, wide = _computed(combine, target.dtype)
    values = updates.to(target.dtype).to(wide)
    out = torch.ops.mlirc.scatter_elements(target.to(wide), index.to(torch.int64), values, dim, combine)
    return out.to(target.dtype)


def _computed(combine: str, dtype: torch.dtype) -> tuple[str, torch.dtype]:
    """The combination and the dtype by which one is computed in a dtype."""
    if combine == "set" or dtype.itemsize >= 4:
        return combine, dtype
    if dtype.is_floating_point:
        return combine, torch.float32 if combine in ("add", "mul") else dtype
    return {"add": "max", "mul": "min"}.get(combine, combine) if dtype == torch.bool else combine, torch.int32
