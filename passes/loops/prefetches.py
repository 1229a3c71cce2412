"""Blocks that bring weights into the L2 cache for the launches behind, while those wait for something else."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from mlirc.ir.tensors import ELEMENT_BYTES
from mlirc.mlir import arith, ir, memref, scf

PREFETCH = "mlirc.prefetch"  # on a kernel's function, array of i64: an argument's number, its first bytes, and so on
LINE, EACH = 128, 8  # bytes that an instruction brings; instructions of a thread


def add_prefetches(function: ir.Operation) -> None:
    """Adds the loops that `mlirc.prefetch` asks for at the end of a bufferized function, in place."""
    if PREFETCH not in function.attributes:
        return
    numbers = list(ir.DenseI64ArrayAttr(function.attributes[PREFETCH]))
    block = function.regions[0].blocks[0]
    with function.location, ir.InsertionPoint(block.operations[len(block.operations) - 1]):
        for argument, nbytes in zip(numbers[::2], numbers[1::2], strict=True):
            _prefetch(block.arguments[argument], nbytes)


def _prefetch(buffer: ir.Value, nbytes: int) -> None:
    """A parallel loop whose points bring `EACH` lines, those of neighbours side by side."""
    type_ = ir.MemRefType(buffer.type)
    elements = LINE // ELEMENT_BYTES[str(type_.element_type)]
    lines = -(-nbytes // LINE)
    points = -(-lines // EACH)
    loop = scf.ParallelOp([], [_index(0)], [_index(points)], [_index(1)], [])
    body = loop.regions[0].blocks.append(ir.IndexType.get())
    with ir.InsertionPoint(body):
        for number in range(EACH):
            first = number * points
            if first >= lines:
                break
            line = arith.addi(body.arguments[0], _index(first))
            if first + points <= lines:
                _bring(buffer, line, elements, type_.shape)
                continue
            inside = scf.IfOp(arith.cmpi(arith.CmpIPredicate.ult, line, _index(lines)))
            with ir.InsertionPoint(inside.then_block):
                _bring(buffer, line, elements, type_.shape)
                scf.YieldOp([])
        ir.Operation.create("scf.reduce", regions=0)


def _bring(buffer: ir.Value, line: ir.Value, elements: int, shape: Sequence[int]) -> None:
    number = arith.muli(line, _index(elements))
    memref.PrefetchOp(buffer, split_number(number, shape), False, 2, True)


def split_number(number: ir.Value, shape: Sequence[int]) -> list[ir.Value]:
    """The indices of the element of that row-major number."""
    found: list[ir.Value] = []
    for i, size in enumerate(shape):
        rest = prod(shape[i + 1 :])
        part = arith.divui(number, _index(rest)) if rest > 1 else number
        found.append(arith.remui(part, _index(size)) if i else part)
    return found


def _index(number: int) -> ir.Value:
    return arith.constant(ir.IndexType.get(), number)
