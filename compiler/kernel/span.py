"""Parts of a dimension that a block or a step of a loop has."""

from __future__ import annotations

from typing import Any

from mlirc.mlir import ir

Extent = Any  # of a dimension of a tensor: an int, or the Span that a tile has of it


class Span:
    """`tile` places of a dimension of `extent`, from `offset` on; fewer at its end: `size` is how many, a number or a
    value. Shapes of tiles hold it, and two tiles have the same rows where they hold the same one."""

    def __init__(self, offset: ir.Value, size: Any, tile: int, extent: int):
        self.offset, self.size, self.tile, self.extent = offset, size, tile, extent

    def __repr__(self) -> str:
        return f"{self.tile} of {self.extent}"


def is_unit(extent: Extent) -> bool:
    """Whether a dimension has one element, so that values leave it out."""
    return extent.tile == 1 if isinstance(extent, Span) else extent == 1


def size_of(extent: Extent) -> Any:
    """An extent as a number, or as the value that a tile at the edge has."""
    return extent.size if isinstance(extent, Span) else extent
