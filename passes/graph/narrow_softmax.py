"""Softmaxes whose results are 16-bit floats, by arithmetic that is as exact as those need.

An f32 exponential to the last bit is twelve instructions, and a division eight: memory would wait for them where
elements have two bytes. Powers of two by the instruction, of x - max times log2 e, have relative errors of
|x - max| 2^-24 and 2^-22, a hundredth of what a result of f16 is rounded by; what is below 2^-126 is 0. The sum that
they are divided by is 1 or more: its reciprocal, once a row, is exact to the last bit but one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from mlirc.mlir import arith, ir
from mlirc.passes.graph.classify import body, is_reduction_generic

HALVES = ("bf16", "f16")


def quicken(block: ir.Block, results: Sequence[ir.Value]) -> None:
    """Rewrites the softmaxes of a kernel's body, if all of its results are 16-bit floats."""
    if not all(str(ir.RankedTensorType(r.type).element_type) in HALVES for r in results):
        return
    generics = [op.operation for op in block.operations if op.operation.name == "linalg.generic"]
    sums = {op.results[0]: exps for op in generics if (exps := _exponentials(op)) is not None}
    for op in generics:
        for inner in body(op):
            if inner.name == "arith.divf" and _read(op, inner.operands[1]) in sums:
                _multiply(inner)
    for exp in {exp: None for exp in sums.values()}:
        _power_of_two(exp)


def _read(op: ir.Operation, value: ir.Value) -> ir.Value | None:
    """The tensor whose element a value of a generic's body is; None for what is computed there."""
    return op.operands[ir.BlockArgument(value).arg_number] if isinstance(value.owner, ir.Block) else None


def _maker(value: ir.Value | None) -> ir.Operation | None:
    return None if value is None or isinstance(value.owner, ir.Block) else value.owner.operation


def _exponentials(op: ir.Operation) -> ir.Operation | None:
    """The exponential, of f32, of an element less its row's maximum, that a reduction sums; None for another op."""
    if not is_reduction_generic(op) or body(op)[0].name != "arith.addf":
        return None
    maker = _maker(op.operands[0])
    if maker is None or maker.name != "linalg.generic" or len(maker.results) != 1:
        return None
    exp = _maker(body(maker)[-1].operands[0])
    if exp is None or exp.name != "math.exp" or not isinstance(exp.results[0].type, ir.F32Type):
        return None
    difference = _maker(exp.operands[0])
    if difference is None or difference.name != "arith.subf":
        return None
    most = _maker(_read(maker, difference.operands[1]))
    found = most is not None and is_reduction_generic(most) and body(most)[0].name == "arith.maximumf"
    return exp if found else None


def _power_of_two(exp: ir.Operation) -> None:
    with exp.location, ir.InsertionPoint(exp):
        type_ = exp.results[0].type
        scaled = arith.mulf(exp.operands[0], arith.constant(type_, math.log2(math.e)))
        fast = {"fastmath": ir.Attribute.parse("#arith.fastmath<afn>")}
        power = ir.Operation.create("math.exp2", [type_], [scaled], fast).results[0]
    exp.results[0].replace_all_uses_with(power)
    exp.erase()


def _multiply(division: ir.Operation) -> None:
    with division.location, ir.InsertionPoint(division):
        one = arith.constant(division.results[0].type, 1.0)
        product = arith.mulf(division.operands[0], arith.divf(one, division.operands[1]))
    division.results[0].replace_all_uses_with(product)
    division.erase()
