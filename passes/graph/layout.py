"""How a tensor is read: recognises accesses that are a free reshape of the tensor followed by a plain indexing map."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from mlirc.passes.graph.index import Index, linearize


def dims_of_offset(offset: Index, total: int) -> list[tuple[int, int]] | None:
    """The loop dimensions, as (number, size) in physical order, of a read of a whole tensor of `total` elements.

    `offset` is the row-major offset that is read. None unless reshaping the tensor to the sizes of these dimensions
    makes the read a plain one (each tensor dimension indexed by one loop dimension, in full).
    """
    if offset.const or not offset.is_linear():
        return None
    expected = 1
    found = []
    for atom, coefficient in sorted(offset.terms.items(), key=lambda item: item[1]):
        if coefficient != expected:
            return None
        found.append((atom[1], atom[2]))
        expected *= atom[2]
    return found[::-1] if expected == total else None


def plain_dims(indices: Sequence[Index], shape: Sequence[int]) -> list[tuple[int, int]] | None:
    """`dims_of_offset` for a read at these indices of a tensor of this shape."""
    return dims_of_offset(linearize(indices, shape), prod(shape))


def reassociation(coarse: Sequence[int], fine: Sequence[int]) -> list[list[int]] | None:
    """Groups of `fine` dimensions whose products are the `coarse` dimensions; None if there is no such grouping."""
    groups: list[list[int]] = []
    i = 0
    for size in coarse:
        group: list[int] = []
        product = 1
        while i < len(fine) and (not group or product < size):
            product *= fine[i]
            group.append(i)
            i += 1
        if product != size or not group:
            return None
        groups.append(group)
    if i < len(fine):
        if any(fine[j] != 1 for j in range(i, len(fine))) or (not groups and coarse):
            return None
        if groups:
            groups[-1].extend(range(i, len(fine)))
    return groups


def common_coarsening(a: Sequence[int], b: Sequence[int]) -> list[int]:
    """The finest shape that both shapes collapse to: cut where both have an element boundary."""

    def boundaries(shape: Sequence[int]) -> list[int]:
        found, product = [1], 1
        for n in shape:
            product *= n
            if product != found[-1]:
                found.append(product)
        return found

    ours, theirs = boundaries(a), set(boundaries(b))
    shared = [n for n in ours if n in theirs]
    return [big // small for small, big in zip(shared, shared[1:], strict=False)]
