"""Sums of products of 8-bit floats, which Hopper's tensor cores cut: what that may do to them.

An instruction shifts its 32 products and the sum so far to the largest exponent among them, E, and cuts each at the
unit 2^(E - 13), its result likewise (`mlirc.device.tensor_cores`; the products themselves are exact). A chain of n
products, from zero or from the sum so far, has no term and no partial sum that is larger than the range R of its sums
in order, whichever part of the chain an instruction begins with. So all units are at most U = 2^-13 R, and the chain
loses at most (n + n / 32 + 1) U. What is cut off terms of both signs goes either way: by more than 3 sqrt(n) U with a
chance below 1e-9, since each is between 0 and U (Hoeffding); beside that is what terms that are alike lose alike, which
cutting them here, one after the other, shows.

Instructions whose chains are all 128 products long, and added in f32 (`wgmma8`, `mma8`), are told from those that say
that theirs are as long as the loop (`wgmma8_fast`)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import sqrt

from mlirc.host.rounding.sums import constant_of, for_each, is_load, turns
from mlirc.host.rounding.values import NORMAL, Builder
from mlirc.ir.levels import CUT_SUMS, ROUNDED
from mlirc.mlir import arith, ir, math, memref, nested, scf
from mlirc.runtime.tensor_map import FP8

CHAIN = 128  # products in one sum of the tensor cores, where no instruction says otherwise
STEP = 32  # of one instruction
_UNIT = 2.0**-13  # of the largest term: what is cut
_DEVIATIONS, _DRIFTS = 3.0, 2.0
_EXPONENT = 0x7FF0000000000000  # bits of an f64


@dataclass(frozen=True)
class CutSum:
    """An addition of a product of two 8-bit floats to an element of `buffer`, `count` times for each element, by the
    loops over `reduced`; those over `kept` go through the elements. `whole`: the tensor cores' chain is all of them."""

    product: ir.Operation
    buffer: ir.Value
    indices: list[ir.Value]
    kept: list[ir.Operation]
    reduced: list[ir.Operation]
    count: int
    whole: bool


def cut_sums_of(function: ir.Operation) -> dict[ir.Operation, list[CutSum]]:
    """The sums that tensor cores may cut of each outermost loop of a function over buffers."""
    loops = [o.operation for o in function.regions[0].blocks[0].operations if o.operation.name == "scf.for"]
    return {loop: found for loop in loops if (found := list(_cut_sums(loop)))}


def _cut_sums(loop: ir.Operation) -> Iterator[CutSum]:
    for store in nested(loop):
        product = _product_of(store)
        if product is None:
            continue
        _, buffer, *indices = store.operands
        around = [op for op in _around(store, loop) if op.name == "scf.for"][::-1]
        kept = [op for op in around if _counter(op) in indices]
        reduced = [op for op in around if op not in kept]
        count = turns(store, loop, indices)
        if count and all(constant_of(v) is not None for op in kept for v in list(op.operands)[:3]):
            way = product.attributes[ROUNDED].value if ROUNDED in product.attributes else ""
            yield CutSum(product, buffer, indices, kept, reduced, count, way == CUT_SUMS or len(reduced) != 1)


def _product_of(store: ir.Operation) -> ir.Operation | None:
    """The product of 8-bit floats that a store adds to what was there; None where it does no such thing."""
    addition = store.operands[0].owner if store.name == "memref.store" else None
    if addition is None or isinstance(addition, ir.Block) or addition.name != "arith.addf":
        return None
    terms = [v for v in addition.operands if not is_load(v, store.operands[1], list(store.operands)[2:])]
    made = terms[0].owner if len(terms) == 1 else None
    if made is None or isinstance(made, ir.Block) or made.name != "arith.mulf":
        return None
    return made.operation if all(is_fp8(v) for v in made.operands) else None


def is_fp8(value: ir.Value) -> bool:
    """Whether a value is an 8-bit float in a wider type."""
    owner = value.owner
    return not isinstance(owner, ir.Block) and owner.name == "arith.extf" and str(owner.operands[0].type) in FP8


def _around(op: ir.Operation, outermost: ir.Operation) -> Iterator[ir.Operation]:
    while op != outermost:
        op = op.parent.operation
        yield op


def _counter(loop: ir.Operation) -> ir.Value:
    return loop.regions[0].blocks[0].arguments[0]


def add_cuts(b: Builder, found: CutSum, errors: ir.Value) -> None:
    """Adds to the errors of a buffer, behind the loop, what tensor cores may have cut off its sums."""
    values: dict[ir.Value, ir.Value] = {}

    def element(at: list[ir.Value]) -> None:
        values.update({_counter(loop): i for loop, i in zip(found.kept, at, strict=True)})
        indices = [_again(i, values) for i in found.indices]
        v = b.wide(memref.load(found.buffer, indices))
        lost = _of_chain(b, found, values, found.count, v) if found.whole else _of_chains(b, found, values)
        lost = b.select(b.below(b.absolute(v), b.infinity), lost, b.zero)
        memref.store(arith.addf(memref.load(errors, indices), lost), errors, indices)

    for_each([_range(loop) for loop in found.kept], element)


def _range(loop: ir.Operation) -> tuple[int, int, int]:
    low, high, step = (constant_of(v) for v in list(loop.operands)[:3])
    assert low is not None and high is not None and step is not None
    return low, high, step


def _of_chains(b: Builder, found: CutSum, values: dict[ir.Value, ir.Value]) -> ir.Value:
    """What chains of CHAIN products lose, all together."""
    [reduced] = found.reduced
    low, high, step = (arith.constant(ir.IndexType.get(), n) for n in _range(reduced))
    length = arith.constant(ir.IndexType.get(), CHAIN * _range(reduced)[2])
    chains = scf.ForOp(low, high, length, [b.zero])
    with ir.InsertionPoint(chains.body):
        start = chains.induction_variable
        end = arith.minsi(arith.addi(start, length), high)
        lost = _of_chain(b, found, values, min(CHAIN, found.count), None, (start, end, step))
        scf.yield_([arith.addf(chains.inner_iter_args[0], lost)])
    return chains.results[0]


def _of_chain(b: Builder, found: CutSum, values: dict[ir.Value, ir.Value], count: int, total: ir.Value | None,
              part: tuple[ir.Value, ir.Value, ir.Value] | None = None) -> ir.Value:  # fmt: skip
    """What one chain of `count` products loses: of `part` (start, end, step) of the loop, or all, from what is left of
    `total`."""
    ranges = (
        [part] if part else [tuple(arith.constant(ir.IndexType.get(), n) for n in _range(x)) for x in found.reduced]
    )
    made = _products(b, found, values, list(zip(found.reduced, ranges, strict=True)), [b.zero] * 5)
    end, high, low, drift, largest = made
    reach = b.larger(arith.subf(high, low), largest)
    if total is not None:  # there was something before
        reach = arith.addf(reach, b.absolute(arith.subf(total, end)))
    unit = _unit(b, reach)
    results = count / STEP + 1
    most = arith.mulf(b.constant(count + results), unit)
    likely = arith.mulf(b.constant(_DEVIATIONS * sqrt(count) + results), unit)
    likely = arith.addf(likely, arith.mulf(b.constant(_DRIFTS), b.absolute(drift)))
    return arith.minimumf(most, likely)


def _products(b: Builder, found: CutSum, values: dict[ir.Value, ir.Value], loops: list, carried: list[ir.Value]
              ) -> list[ir.Value]:  # fmt: skip
    """Of all products in order the sum, its highest and lowest value so far, what cutting them loses (with its sign),
    and the largest that one of them may count as."""
    if loops:
        (original, (low, high, step)), *inner = loops
        loop = scf.ForOp(low, high, step, carried)
        with ir.InsertionPoint(loop.body):
            values[_counter(original)] = loop.induction_variable
            scf.yield_(_products(b, found, values, inner, list(loop.inner_iter_args)))
        return list(loop.results)
    total, high, low, drift, largest = carried
    factors = [b.wide(_again(v, values)) for v in found.product.operands]
    product = arith.mulf(*factors)
    after = arith.addf(total, product)
    unit = _unit(b, _larger(b.absolute(total), b.absolute(product)))
    lost = arith.mulf(math.copysign(b.constant(1.0), product), _cut_off(b, b.absolute(product), unit))
    # A subnormal number counts as the least normal one.
    least = [b.constant(NORMAL[str(v.owner.operands[0].type)]) for v in found.product.operands]
    counts = arith.mulf(*(_larger(b.absolute(x), y) for x, y in zip(factors, least, strict=True)))
    lowest = b.select(b.below(low, after), low, after)
    return [after, _larger(high, after), lowest, arith.addf(drift, lost), _larger(largest, counts)]


def _larger(x: ir.Value, y: ir.Value) -> ir.Value:
    """One instruction, which need not hand on NaN: a sum that is none has no bound of its own."""
    return arith.select(arith.cmpf(arith.CmpFPredicate.OGT, x, y), x, y)


def _cut_off(b: Builder, size: ir.Value, unit: ir.Value) -> ir.Value:
    """What is left of a size, whose bits end less than 20 places below the unit, beside whole units."""
    whole = arith.mulf(b.constant(2.0**52), unit)  # to which a number is added in whole units, to the nearest
    below = arith.subf(size, arith.mulf(b.constant(0.5 - 2.0**-21), unit))
    return arith.subf(size, arith.subf(arith.addf(below, whole), whole))


def _unit(b: Builder, size: ir.Value) -> ir.Value:
    """What is cut where the largest term has this size."""
    i64 = ir.IntegerType.get_signless(64)
    bits = arith.andi(arith.bitcast(i64, size), arith.constant(i64, _EXPONENT))
    return _larger(arith.mulf(arith.bitcast(b.f64, bits), b.constant(_UNIT)), b.constant(2.0**-200))


def _again(value: ir.Value, values: dict[ir.Value, ir.Value]) -> ir.Value:
    """A value of a loop computed once more, for the counters in `values`."""
    if value in values:
        return values[value]
    owner = value.owner
    if isinstance(owner, ir.Block) or owner.operation.parent.name == "func.func":
        return value
    operands = [_again(v, values) for v in owner.operands]
    copy = owner.operation.clone()
    for i, operand in enumerate(operands):
        copy.operands[i] = operand
    return copy.results[0]
