"""What a kernel says about its own launches: `known_block_size` and `known_grid_size` of gpu, `nvvm.reqntid` and
`nvvm.maxntid` (PTX ISA, "Performance-Tuning Directives"). A GPU refuses any other, or runs a kernel that was compiled
for other numbers of threads."""

from __future__ import annotations

import math
from typing import Any

from mlirc.mlir import ir

_BLOCK = ("known_block_size", "gpu.known_block_size", "nvvm.reqntid")
_GRID = ("known_grid_size", "gpu.known_grid_size")


def declared_problem(function: Any, grid: tuple[int, int, int], block: tuple[int, int, int]) -> str:
    """Why a launch is none of those that a gpu.func or llvm.func says it is for, in words; "" if it is."""
    attributes = function.attributes
    for names, what, launched in ((_BLOCK, "blocks of", block), (_GRID, "a grid of", grid)):
        for name in names:
            wanted = _sizes(attributes, name)
            if wanted and wanted != tuple(launched):
                few = "few" if math.prod(launched) < math.prod(wanted) else "many"
                more = "" if math.prod(launched) == math.prod(wanted) else f": too {few}"
                return f"the kernel is for {what} {list(wanted)} ({name}), and is launched with {list(launched)}{more}"
    most = _sizes(attributes, "nvvm.maxntid")
    if most and math.prod(block) > math.prod(most):
        threads = math.prod(most)
        return f"the kernel is for {threads} threads at the most (nvvm.maxntid), and is launched with {list(block)}"
    return ""


def _sizes(attributes: Any, name: str) -> tuple[int, ...]:
    """Three sizes, ones where fewer are given; () where there are none."""
    if name not in attributes or not isinstance(attributes[name], ir.DenseI32ArrayAttr):
        return ()
    given = list(ir.DenseI32ArrayAttr(attributes[name]))
    return (*given, 1, 1)[:3] if given else ()
