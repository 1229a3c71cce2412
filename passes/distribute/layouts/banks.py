"""How many passes over the banks of shared memory an access of a tile takes, by its layout there and in registers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mlirc.banks import wavefronts
from mlirc.passes.distribute.layouts.registers import WARP, Layout
from mlirc.passes.distribute.layouts.shared import ATOM_ROWS, CHUNK, SharedLayout


def bytes_of(shared: SharedLayout, coordinates: np.ndarray, dims: Sequence[int]) -> np.ndarray:
    """Where elements lie in a slot: `coordinates` [..., rank] along the tile's dimensions `dims`."""
    numbers = {f"d{d}": coordinates[..., i] for i, d in enumerate(dims)}
    zero = np.zeros(coordinates.shape[:-1], np.int64)
    return zero + shared.map(**numbers).get("byte", 0)


def of_registers(
    shared: SharedLayout,
    layout: Layout,
    width: int,
    warps: int,
    writes: bool = False,
    dims: Sequence[int] | None = None,
) -> tuple[int, int]:
    """(wavefronts, the fewest possible) of one read or write of a tile by `warps` warps, `width` elements of a register
    layout's at a time. Of copies, the first one is written."""
    r = np.arange(0, layout.num_regs, width)
    w, l = np.arange(warps), np.arange(WARP)
    found = layout.coordinates(r=r[:, None, None], w=w[None, :, None], l=l[None, None, :])
    byte = bytes_of(shared, found, range(layout.rank) if dims is None else dims)
    active = np.ones(byte.shape, bool)
    if writes:
        for number, kind, count in ((l[None, None, :], "l", WARP), (w[None, :, None], "w", warps)):
            for stride, size in layout.free(kind, count):
                active = active & (number // stride % size == 0)
    return wavefronts(byte.reshape(-1, WARP), width * shared.size, active.reshape(-1, WARP))


def of_matrix(shared: SharedLayout, row: int = 0, column: int = 0) -> tuple[int, int]:
    """(wavefronts, the fewest possible) of eight rows of 16 bytes of a tile, which ldmatrix and stmatrix move, and of
    which wgmma's operands are made."""
    at = np.zeros((1, ATOM_ROWS, len(shared.extents)), np.int64)
    at[..., -1] = column
    at[..., -2] += row + np.arange(ATOM_ROWS)
    return wavefronts(bytes_of(shared, at, range(at.shape[-1])), CHUNK, None, merge=False)
