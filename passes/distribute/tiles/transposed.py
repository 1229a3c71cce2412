"""Loads of tiles whose rows in memory are the columns of what reads them, as a transposition's: a thread that reads its
own elements would read them one by one, from rows of their own. They are loaded in whole accesses instead, and change
threads through shared memory."""

from __future__ import annotations

from math import prod

from mlirc.ir.tensors import element_bytes
from mlirc.passes.distribute.layouts.registers import Layout, row_layout
from mlirc.passes.distribute.memory import access
from mlirc.passes.distribute.tiles.values import Load, Tile

ACCESS = 16  # bytes
MOST_BYTES = 32 * 1024  # of a tile in shared memory, and of what a block has there already


def loaded_by_rows(tile: Tile, wanted: Layout) -> Layout | None:
    """The layout in which a tile is to be loaded, where that is not the one that is wanted."""
    if not isinstance(tile, Load) or tile.view.shared is not None or tile.view.windows is not None or wanted.xors:
        return None
    em, view, size = tile.em, tile.view, element_bytes(tile.view.element)
    width = ACCESS // size
    rows, columns = ([1, *tile.shape])[-2:]
    if prod(tile.shape) != rows * columns or min(rows, columns) < width or prod(wanted.shape) * size > MOST_BYTES:
        return None
    if width == 1 or em.spread > 1 or em.smem_bytes > MOST_BYTES:
        return None
    if access.access_width(em, view, tile.shape, tile.sizes, wanted, False) > 1:
        return None
    own = row_layout(tuple(tile.shape), em.team.warps, width)
    if access.access_width(em, view, tile.shape, tile.sizes, own, False) < width:
        return None
    return own
