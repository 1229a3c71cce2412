"""Adds error bounds to a function over buffers: a running error analysis (Higham, Accuracy and Stability of Numerical
Algorithms, section 3.3) that runs with the function, element by element.

Beside every float `v` that is computed go two numbers in f64: `error`, how far another right implementation may be from
v, and `size`, the sum of the absolute values of the terms that v is made of. An operation adds the errors of its
operands, each by its effect on the result, and its own rounding, relative to `size` and not to |v|: so a sum that
cancels may be taken in any order, and a factor may be moved out of it. An error of infinity (or NaN) says that nothing
is known: a quotient by what may be 0, what may overflow. Infinities and NaN that are certain have an error of 0.
Integers and booleans that depend on such numbers have an `i1` that says that they may be others.
"""

from __future__ import annotations

from dataclasses import dataclass

from mlirc.errors import MlircError
from mlirc.host.rounding import rules
from mlirc.host.rounding.cuts import add_cuts, cut_sums_of
from mlirc.host.rounding.sums import add_rounding, root, sums_of
from mlirc.host.rounding.values import SHORT, Builder, Known
from mlirc.mlir import context, ir, memref

_VIEWS = ("memref.expand_shape", "memref.collapse_shape", "memref.subview", "memref.cast", "memref.reinterpret_cast",
          "memref.transpose")  # fmt: skip
_SILENT = (
    "arith.constant",
    "memref.get_global",
    "scf.yield",
    "scf.reduce",
    "func.return",
    "memref.dim",
    "cf.assert",
    "memref.assume_alignment",
)


class Unbounded(MlircError):
    """The function holds what no bounds are known for."""


def add_bounds(function: ir.Operation, inputs: int) -> None:
    """Changes a function over buffers, in place: behind its arguments (`inputs` inputs, then results) it takes one more
    buffer of f64 per result, which gets the bounds: |found - result| is at most that for any right implementation; in
    f32 and f64 but for one more rounding, while results of 16 bits are judged by what was rounded to them. Raises
    Unbounded for operations that it does not know; the function is spoiled then."""
    with context(), ir.Location.unknown():
        _Pass(function, inputs).run()


@dataclass
class _Shadow:
    """Beside a buffer: errors; of floats sizes; of those of 16 bits `rounded`; of those that sum the sums in f64."""

    errors: ir.Value
    sizes: ir.Value | None = None
    rounded: ir.Value | None = None
    exact: ir.Value | None = None

    def all(self) -> tuple[ir.Value | None, ...]:
        return self.errors, self.sizes, self.rounded, self.exact


class _Pass:
    def __init__(self, function: ir.Operation, inputs: int):
        self.function = function
        self.entry = function.regions[0].blocks[0]
        self.inputs = inputs
        self.known: dict[ir.Value, Known] = {}
        self.shadows: dict[ir.Value, _Shadow] = {}
        self.certain: list[ir.Value] = []  # conditions of the branches around that may be others
        self.sums, self.cut_sums = sums_of(function), cut_sums_of(function)
        self.terms = {s.store: s.term for found in self.sums.values() for s in found}
        self.summed = {root(s.buffer) for found in self.sums.values() for s in found}

    def run(self) -> None:
        with ir.InsertionPoint.at_block_begin(self.entry):
            self.builder = Builder({s.addition for found in self.sums.values() for s in found})
            outputs = list(self.entry.arguments)[self.inputs :]
            for value in outputs:
                bounds = self.entry.add_argument(_like(value.type, self.builder.f64), ir.Location.unknown())
                sizes = self._alloc(value.type) if _is_float(value.type) else None
                short = _is_short(value.type)
                self.shadows[value] = _Shadow(
                    self._alloc(value.type) if short else bounds, sizes, bounds if short else None
                )
                self.shadows[value].exact = self._alloc(value.type) if value in self.summed else None
        self._block(self.entry)
        types = [a.type for a in self.entry.arguments]
        self.function.attributes["function_type"] = ir.TypeAttr.get(ir.FunctionType.get(types, []))
        if "arg_attrs" in self.function.attributes:
            del self.function.attributes["arg_attrs"]

    def _alloc(self, type_: ir.Type, sizes: list[ir.Value] | None = None) -> ir.Value:
        return memref.alloc(_like(type_, self.builder.f64), sizes or [], [])

    def _block(self, block: ir.Block) -> None:
        for op in [o.operation for o in block.operations]:
            with op.location:
                self._operation(op)

    def _operation(self, op: ir.Operation) -> None:
        """Adds what goes beside an operation, behind it."""
        name = op.name
        if name in _SILENT:
            return
        if name in ("scf.for", "scf.if", "scf.parallel"):
            self._nested(op)
            return
        with ir.InsertionPoint.after(op):
            if name in ("memref.alloc", "memref.alloca"):
                value, sizes = op.results[0], list(op.operands)
                wanted = (True, _is_float(value.type), _is_short(value.type), value in self.summed)
                self.shadows[value] = _Shadow(*(self._alloc(value.type, sizes) if w else None for w in wanted))
            elif name == "memref.dealloc":
                if op.operands[0] in self.shadows:
                    for shadow in self.shadows[op.operands[0]].all():
                        if shadow is not None:
                            memref.dealloc(shadow)
            elif name in _VIEWS:
                self._view(op)
            elif name in ("memref.load", "memref.store"):
                self._access(op)
            elif op.regions or any(isinstance(v.type, ir.MemRefType) for v in (*op.operands, *op.results)):
                raise Unbounded(f"{name} has no error bounds")
            else:
                rules.apply(self.builder, op, self.known)

    def _view(self, op: ir.Operation) -> None:
        if op.operands[0] not in self.shadows:
            return  # of an input: exact
        made = []
        for shadow in self.shadows[op.operands[0]].all():
            operands = [shadow, *list(op.operands)[1:]]
            type_ = _like(op.results[0].type, self.builder.f64)
            attributes = {name: op.attributes[name] for name in op.attributes}
            made.append(shadow and ir.Operation.create(op.name, [type_], operands, attributes).results[0])
        self.shadows[op.results[0]] = _Shadow(*made)

    def _access(self, op: ir.Operation) -> None:
        b = self.builder
        store = op.name == "memref.store"
        value, buffer = (op.operands[0], op.operands[1]) if store else (op.results[0], op.operands[0])
        indices = list(op.operands)[2 if store else 1 :]
        strange = [self.known[i].other for i in indices if i in self.known and self.known[i].other is not None]
        if buffer not in self.shadows:
            if store:
                raise Unbounded("a store to an input has no error bounds")
            doubt = b.any(strange)
            if doubt is not None:
                self.known[value] = b.unknown(value, doubt)
            return
        errors, sizes, rounded, exact = self.shadows[buffer].all()
        if store and exact is not None:
            before = memref.load(exact, indices) if op in self.terms else None
            memref.store(b.add(before, b.wide(self.terms.get(op, value))), exact, indices)
        if store:
            known, doubt = self.known.get(value), b.any([*strange, *self.certain])
            error = b.error_of(known)
            memref.store(b.unless(doubt, error), errors, indices)
            if rounded is not None:
                memref.store(b.unless(doubt, b.rounded_of(value, known)), rounded, indices)
            if sizes is not None:
                memref.store(b.size_of(value, known), sizes, indices)
            return
        error, doubt = memref.load(errors, indices), b.any(strange)
        error = b.unless(doubt, error)
        if sizes is None:
            self.known[value] = Known(other=b.above(error, b.zero))
        else:
            again = b.unless(doubt, memref.load(rounded, indices)) if rounded is not None else None
            self.known[value] = Known(error, memref.load(sizes, indices), rounded=again)

    def _nested(self, op: ir.Operation) -> None:
        if op.results:
            raise Unbounded(f"{op.name} with results has no error bounds")
        outer = len(self.certain)
        for operand in op.operands:
            known = self.known.get(operand)
            if known is not None and known.other is not None:
                self.certain.append(known.other)
        for region in op.regions:
            for block in region.blocks:
                self._block(block)
        del self.certain[outer:]
        with ir.InsertionPoint.after(op):
            for found in self.sums.get(op, []):
                shadow = self.shadows[found.buffer]
                add_rounding(self.builder, found, shadow.errors, shadow.sizes, shadow.exact)
            for cut in self.cut_sums.get(op, []):
                add_cuts(self.builder, cut, self.shadows[cut.buffer].errors)


def _is_float(type_: ir.Type) -> bool:
    return isinstance(ir.MemRefType(type_).element_type, ir.FloatType)


def _is_short(type_: ir.Type) -> bool:
    return str(ir.MemRefType(type_).element_type) in SHORT


def _like(type_: ir.Type, element: ir.Type) -> ir.Type:
    """The memref type with other elements."""
    t = ir.MemRefType(type_)
    return ir.MemRefType.get(list(t.shape), element, t.layout, t.memory_space)
