"""`mlirc::gather_matrices`: for each group of a product the matrix that it is multiplied with, chosen by a number.

It stays one op down to the `torch` level, and is one map at the `linalg` level (`mlirc.gather_matrices` on the
`linalg.generic`). The product that reads it reads the matrices where they lie, and no copy of them is made.
"""

from __future__ import annotations

import torch


def gather_matrices(
    matrices: torch.Tensor, which: torch.Tensor, dim: int, start: int, size: int, may_miss: bool
) -> torch.Tensor:
    """Matrix `which`[g] of `matrices` [E,R,C] for each g, [G,R,C], of which only `size` rows (dim 1) or columns (dim 2)
    from `start` on.

    `which` is int64 [G], below E. Where it is negative, which only `may_miss` allows, a matrix of zeros.
    """
    return torch.ops.mlirc.gather_matrices(matrices, which, dim, start, size, may_miss)


@torch.library.custom_op("mlirc::gather_matrices", mutates_args=())
def gather_matrices_op(
    matrices: torch.Tensor, which: torch.Tensor, dim: int, start: int, size: int, may_miss: bool
) -> torch.Tensor:
    """The function above, in PyTorch."""
    _check(matrices, which, dim, start, size)
    if not may_miss:
        return matrices.narrow(dim, start, size).index_select(0, which)
    found = matrices.narrow(dim, start, size).index_select(0, which.clamp(min=0))
    return torch.where((which >= 0).reshape(-1, 1, 1), found, torch.zeros((), dtype=found.dtype, device=found.device))


@gather_matrices_op.register_fake
def _(matrices, which, dim, start, size, may_miss):
    _check(matrices, which, dim, start, size)
    shape = [which.shape[0], *matrices.shape[1:]]
    shape[dim] = size
    return matrices.new_empty(shape)


def _check(matrices: torch.Tensor, which: torch.Tensor, dim: int, start: int, size: int) -> None:
    """Raises ValueError for shapes or types that the op does not take."""
    if matrices.dim() != 3 or which.dim() != 1 or which.dtype != torch.int64 or dim not in (1, 2):
        given = ", ".join(f"{str(x.dtype).removeprefix('torch.')}{list(x.shape)}" for x in (matrices, which))
        raise ValueError(f"gather_matrices takes matrices [E,R,C], int64 [G] and dim 1 or 2, not {given}, dim {dim}")
    if start < 0 or size < 0 or start + size > matrices.shape[dim]:
        raise ValueError(f"gather_matrices: {start} to {start + size} is not within {matrices.shape[dim]}")
