"""Launches that may begin before those in front of them have ended: the attributes that say so, and what is known of a
launch's arguments."""

from __future__ import annotations

import math
from dataclasses import dataclass

from mlirc.dialects.tensor_map import TENSOR_MAP
from mlirc.ir.tensors import ELEMENT_BYTES
from mlirc.mlir import ir

DEPENDENT = "mlirc.dependent"  # on a gpu.launch_func, and on the function of a kernel that is to have such launches
LETS = "mlirc.lets_begin"  # on the function of a kernel that only lets the launch behind it begin early
LATE = "mlirc.lets_begin_late"  # on the function of a kernel that lets it behind its first copies
COOPERATIVE = "mlirc.cooperative"  # on a gpu.launch_func whose blocks wait for each other: all are resident at once
GIVEN = "mlirc.given"  # on a kernel's function: the arguments that no launch of a run writes
UNWRITTEN = ("input", "scalar", "weight", "constant")  # the kinds of arguments of `@main` of which that is so


@dataclass(frozen=True)
class Launched:
    """A `gpu.launch_func`, with the threads of a block, the parameters that lead to what no launch writes alone, and
    the bytes of a tensor map's box by its parameter."""

    op: ir.Operation
    symbol: str
    threads: int
    given: frozenset[int]
    boxes: dict[int, int]


def launches_of(host: ir.Operation) -> list[Launched]:
    """The launches of a kernel's host function."""
    block = host.regions[0].blocks[0]
    numbers = ir.DenseI64ArrayAttr(host.attributes[GIVEN]) if GIVEN in host.attributes else []
    given = {block.arguments[n] for n in numbers}
    found = []
    for op in [o.operation for o in block.operations if o.operation.name == "gpu.launch_func"]:
        segments = list(ir.DenseI32ArrayAttr(op.attributes["operandSegmentSizes"]))
        start, operands = sum(segments[:11]), list(op.operands)
        bound = operands[start : start + segments[11]]
        sizes = [_constant(v) for v in operands[sum(segments[:4]) : sum(segments[:7])]]
        found.append(
            Launched(
                op,
                ir.SymbolRefAttr(op.attributes["kernel"]).value[-1],
                math.prod(sizes),
                frozenset(i for i, v in enumerate(bound) if _roots(v) <= given) if given else frozenset(),
                {i: _box_bytes(v.owner.operation) for i, v in enumerate(bound) if _is_map(v)},
            )
        )
    return found


def _constant(value: ir.Value) -> int:
    if isinstance(value.owner, ir.Block) or value.owner.operation.name != "arith.constant":
        return 1  # which the back end refuses
    return ir.IntegerAttr(value.owner.operation.attributes["value"]).value


def _roots(value: ir.Value) -> set[ir.Value]:
    """The arguments and allocations that a host value is made of."""
    operands = [] if isinstance(value.owner, ir.Block) else list(value.owner.operation.operands)
    parts = [v for v in operands if isinstance(v.type, ir.MemRefType) or str(v.type) == "!llvm.ptr"]
    return set().union(*[_roots(v) for v in parts]) if parts else {value}


def _is_map(value: ir.Value) -> bool:
    return not isinstance(value.owner, ir.Block) and value.owner.operation.name == TENSOR_MAP


def _box_bytes(op: ir.Operation) -> int:
    count = ELEMENT_BYTES[str(ir.MemRefType(op.operands[0].type).element_type)]
    for extent in ir.DenseI64ArrayAttr(op.attributes["box"]):
        count *= extent
    return count
