"""Sorts and top-k, by the pass `mlirc-sort`."""

from __future__ import annotations

from typing import Literal

from mlirc.mlir import ir
from mlirc.schedule import register
from mlirc.schedule.kernel_info import KernelInfo
from mlirc.schedule.verbs import annotate, script
from mlirc.targets import Target

NETWORK = 1 << 12  # elements of a row that a block sorts as they are
SELECTED = 1 << 12  # elements that are looked for in a longer one
SHORT = 1 << 10  # elements of a row that a network sorts sooner than a block selects a few of them


@register(matches=lambda kernel: kernel.sort is not None, priority=50)
def sort(
    kernel: KernelInfo,
    target: Target,
    *,
    way: Literal["network", "select", "radix"] | None = None,
    warps: int | None = None,
    elements: int | None = None,
) -> ir.Module:
    """Rows that a block sorts in registers; of longer ones a few elements that it selects, or passes over digits.

    Knobs:
      way: how rows are sorted: a network (up to 4,096 elements), by selecting (up to 4,096 of them), or radix passes.
      warps: warps of a block that has several short rows, or selects.
      elements: elements of a thread in a network of rows, a power of two.
    """
    found = kernel.sort
    assert found is not None
    if way is None:
        few = found.count <= SELECTED and 4 * found.count <= found.length
        way = "select" if few and found.length > SHORT else "network" if found.length <= NETWORK else "radix"
    if warps is None:
        warps = 32 if way == "select" else 4
    if elements is None and way == "network":
        elements = 4
    with script(way=way, warps=warps, elements=elements) as (module, function):
        annotate(function, lowering="sort", way=way, warps=warps, elements=elements)
    return module
