"""Rows written to a pool of rows, each to a place of its own, as models that generate write their cache.

It stays one op, `mlirc::put_rows`, and becomes a `tm_tensor.scatter` with `unique_indices(true)`, whose rows are
written in parallel.
"""

from __future__ import annotations

import torch


def put_rows(pool: torch.Tensor, rows: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    """`pool` [R,W] with row i of `rows` [N,W] (of the pool's dtype) at `places`[i] (int64 [N]), all below R.

    A row whose place is negative is not written. Places that are not negative are distinct: of two rows for one place
    any may be there afterwards, in parts.
    """
    return torch.ops.mlirc.put_rows(pool, rows, places)


@torch.library.custom_op("mlirc::put_rows", mutates_args=())
def put_rows_op(pool: torch.Tensor, rows: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    """The function above, in PyTorch."""
    _check(pool, rows, places)
    written = places >= 0
    if pool.element_size() > 1:
        return pool.index_put((places[written],), rows[written])
    # PyTorch puts no 8-bit floats
    return pool.view(torch.uint8).index_put((places[written],), rows.view(torch.uint8)[written]).view(pool.dtype)


@put_rows_op.register_fake
def _(pool, rows, places):
    _check(pool, rows, places)
    return torch.empty_like(pool)


def _check(pool: torch.Tensor, rows: torch.Tensor, places: torch.Tensor) -> None:
    """Raises ValueError for shapes or types that the op does not take."""
    shapes = pool.dim() == rows.dim() == 2 and places.shape == rows.shape[:1] and pool.shape[1:] == rows.shape[1:]
    if not shapes or rows.dtype != pool.dtype or places.dtype != torch.int64:
        given = ", ".join(f"{str(x.dtype).removeprefix('torch.')}{list(x.shape)}" for x in (pool, rows, places))
        raise ValueError(f"put_rows takes pool [R,W], rows [N,W] of its dtype, places int64 [N], not {given}")
