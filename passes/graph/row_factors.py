"""A reduction whose factor of a row goes behind the products that read it, as a norm's does, taken apart: what it
reduces, what is left without the factor, and the factor.

`sum_k (x[m,k] * g[k] * s[m]) * w[n,k]` is `s[m] * sum_k (x[m,k] * g[k]) * w[n,k]`. The operand has the roundings that
are left without the factor, no more than it had; the sums, in f32, are multiplied by the factor as it is. f16 is left
alone: what a norm has not scaled may be larger than f16 holds."""

from __future__ import annotations

from collections.abc import Sequence

from mlirc.dialects.mlirc_dialect import PARTIAL
from mlirc.dialects.schedule._build import empty, generic
from mlirc.dialects.schedule._dims import body_of, producer, structure, structured_ops
from mlirc.ir.combiners import combining
from mlirc.ir.tensors import shape_of
from mlirc.mlir import arith, ir, linalg, tensor
from mlirc.passes.graph.outline import clone_into

_CASTS = ("arith.extf", "arith.truncf")
_TYPES = ("bf16", "f32", "f64")
Values = dict[ir.Value, ir.Value]


class NoFactor(Exception):
    """A kernel is no reduction of rows whose factor can go behind products."""


class RowFactor:
    """A kernel function of kind `reduction` with one result [M, N]: a sum over each row of maps of its arguments, a
    factor made of that sum, and a map of the arguments times the factor. Raises NoFactor for any other."""

    def __init__(self, kernel: ir.Operation) -> None:
        block = kernel.regions[0].blocks[0]
        ops = structured_ops(block)
        returned = list(list(block.operations)[-1].operands)
        last = producer(returned[0]) if len(returned) == 1 else None
        if last is None or last.name != "linalg.generic" or len(last.results) != 1 or last != ops[-1]:
            raise NoFactor
        self.last, self.made = last, structure(last)
        self.shape = tuple(shape_of(returned[0]))
        if len(self.shape) != 2 or not all(self.made.parallel) or self.made.out_maps != ((0, 1),):
            raise NoFactor
        sums = [op for op in ops if not all(structure(op).parallel)]
        if len(sums) != 1 or not self._is_row_sum(sums[0]):
            raise NoFactor
        self.sum = sums[0]
        self.after = self._reading(ops)  # ops that read the sum
        rows = [self._is_after(v) for v in self.made.inputs]
        flat = [1 not in m for m in self.made.maps[: len(rows)]]
        if not any(rows) or any(row and not one for row, one in zip(rows, flat, strict=True)):
            raise NoFactor
        for op in self.after - {last}:
            if tuple(shape_of(op.results[0])) != self.shape[:1] or len(op.results) != 1:
                raise NoFactor  # of the row's elements: a deviation from their mean
            if any(v in list(block.arguments) for v in op.operands):
                raise NoFactor
        self.body = _Factors(last, rows)
        if not self.body.factors or self.body.rest_needs_rows() or not _all_floats(last):
            raise NoFactor

    def _is_after(self, value: ir.Value) -> bool:
        op = producer(value)
        return op is not None and op in self.after

    def _is_row_sum(self, op: ir.Operation) -> bool:
        s = structure(op)
        if s.parallel != (True, False) or s.maps != ((0, 1), (0,)) or s.extents != self.shape:
            return False
        fill, value = producer(s.outputs[0]), list(body_of(op).operations)[-1].operands[0]
        combiner = combining(value, body_of(op).arguments[1])
        if fill is None or fill.name != "linalg.fill" or combiner is None or combiner.name != "arith.addf":
            return False
        zero = producer(fill.operands[0])
        is_zero = zero is not None and zero.name == "arith.constant" and zero.attributes["value"].value == 0
        return is_zero and str(ir.RankedTensorType(op.results[0].type).element_type) == "f32" and _adds_alone(op)

    def _reading(self, ops: Sequence[ir.Operation]) -> set[ir.Operation]:
        found: set[ir.Operation] = set()
        for op in ops:
            makers = [m for v in op.operands if (m := producer(v)) is not None]
            if any(m in found or m == self.sum for m in makers):
                found.add(op)
        return found

    def operand(self, values: Values) -> ir.Value:
        """The result without the factor, [M, N], at the insertion point; `values` has the kernel's arguments there."""
        kept = [i for i, v in enumerate(self.made.inputs) if not self._is_after(v)]
        inputs = [_computed(self.made.inputs[i], values) for i in kept]
        return self.body.without(self.made, kept, inputs)

    def parts(self, values: Values, width: int) -> ir.Value:
        """The sums of groups of `width` elements of each row, f32 [M, N / width], at the insertion point."""
        rows, columns = self.shape
        source = _computed(structure(self.sum).inputs[0], values)
        element = ir.RankedTensorType(source.type).element_type
        t = ir.RankedTensorType.get([rows, columns // width, width], element)
        seen = tensor.expand_shape(t, source, [[0], [1, 2]], [], [rows, columns // width, width])
        return self._add(seen, [0, 1], [0, 1, 2], [rows, columns // width], True)

    def factor(self, parts: ir.Value) -> ir.Value:
        """The factor of each row, f32 [M], of its parts, at the insertion point."""
        total = self._add(parts, [0], [0, 1], [self.shape[0]], False)
        inner: Values = {self.sum.results[0]: total}
        inputs = [(v, m) for v, m in zip(self.made.inputs, self.made.maps, strict=False) if self._is_after(v)]
        return self.body.factor([_computed(v, inner) for v, _ in inputs], [m for _, m in inputs], self.shape[0])

    def _add(self, source: ir.Value, out: list[int], all_: list[int], shape: list[int], partial: bool) -> ir.Value:
        element = ir.F32Type.get()
        zero = arith.ConstantOp(element, ir.FloatAttr.get(element, 0.0)).result
        start = linalg.fill(zero, outs=[empty(shape, element)])
        new = generic([source], [start], [all_, out], [*[True] * len(out), False])
        block = new.regions[0].blocks.append(element, element)
        with ir.InsertionPoint(block):
            linalg.YieldOp([arith.AddFOp(block.arguments[1], block.arguments[0]).result])
        if partial:
            for op in (new, start.owner.operation):
                op.attributes[PARTIAL] = ir.UnitAttr.get()
        return new.results[0]


def _adds_alone(op: ir.Operation) -> bool:
    """Whether a sum's body adds its input as it is: the map in front of it is an op of its own."""
    return len(list(body_of(op).operations)) == 2


def _all_floats(op: ir.Operation) -> bool:
    """Whether nothing in front of a factor could overflow that had not: no f16."""
    values = [v for o in body_of(op).operations for v in (*o.operands, *o.results)]
    return not any(str(v.type) == "f16" for v in values)


def _computed(value: ir.Value, values: Values) -> ir.Value:
    """A value of the kernel at the insertion point, with all that it is computed of."""
    if value not in values:
        clone_into(value.owner, values)
    return values[value]


def _multiplies(op: ir.Operation) -> bool:
    """Whether a factor may go through an op of a body: multiplications, and roundings to types that have the range."""
    types = {str(v.type) for v in (*op.operands, *op.results)}
    return op.name in ("arith.mulf", *_CASTS) and types <= set(_TYPES)


def _as(value: ir.Value, element: ir.Type) -> ir.Value:
    if value.type == element:
        return value
    wider = ir.FloatType(element).width > ir.FloatType(value.type).width
    return (arith.ExtFOp if wider else arith.TruncFOp)(element, value).result


class _Factors:
    """What of a body's result depends on rows alone and multiplies the rest. `rows`: of each input, whether it is a
    number of its row, made of the row."""

    def __init__(self, maker: ir.Operation, rows: Sequence[bool]) -> None:
        self.block = body_of(maker)
        self.rows = {a for a, row in zip(self.block.arguments, rows, strict=False) if row}
        self.known: dict[ir.Value, bool] = {}
        self.factors: list[ir.Value] = []
        self.result = list(self.block.operations)[-1].operands[0]
        if self._varies(self.result):
            self._collect(self.result)

    def _inner(self, value: ir.Value) -> ir.Operation | None:
        """The op of the body that makes a value; None for an argument, and for what the body captures."""
        owner = value.owner
        return None if isinstance(owner, ir.Block) or owner.operation.block != self.block else owner.operation

    def _varies(self, value: ir.Value) -> bool:
        """Whether a value of the body depends on more than the row's own numbers."""
        if value not in self.known:
            op = self._inner(value)
            if op is None:
                self.known[value] = isinstance(value.owner, ir.Block) and value not in self.rows
            elif op.name in ("linalg.index", "tensor.extract"):
                self.known[value] = True
            else:
                self.known[value] = any([self._varies(v) for v in op.operands])
        return self.known[value]

    def _reads_rows(self, value: ir.Value) -> bool:
        op = self._inner(value)
        return value in self.rows if op is None else any(self._reads_rows(v) for v in op.operands)

    def _collect(self, value: ir.Value) -> None:
        """Notes the factors of a value that varies."""
        op = self._inner(value)
        if op is None or not _multiplies(op):
            return
        for v in op.operands:
            if self._varies(v):
                self._collect(v)
            elif self._reads_rows(v):
                self.factors.append(v)

    def rest_needs_rows(self) -> bool:
        """Whether what is left without the factors reads a number of its row: a mean that is taken off, or the scaled
        row itself inside of a function."""
        return self._left(self.result)

    def _left(self, value: ir.Value) -> bool:
        op = self._inner(value)
        if op is None or not _multiplies(op):
            return self._reads_rows(value)
        return any(self._left(v) for v in op.operands if v not in self.factors)

    def without(self, made, kept: Sequence[int], inputs: Sequence[ir.Value]) -> ir.Value:
        """The maker's result without the factors, of the same type, of its inputs `kept`."""
        t = ir.RankedTensorType(made.op.results[0].type)
        maps = [made.maps[i] for i in kept]
        new = generic(inputs, [empty(list(t.shape), t.element_type)], [*maps, made.maps[-1]], made.parallel)
        types = [ir.RankedTensorType(v.type).element_type for v in inputs]
        inner = new.regions[0].blocks.append(*types, t.element_type)
        values = {self.block.arguments[i]: a for i, a in zip(kept, inner.arguments, strict=False)}
        with ir.InsertionPoint(inner):
            linalg.YieldOp([_as(self._rest(self.result, values), t.element_type)])
        return new.results[0]

    def _rest(self, value: ir.Value, values: Values) -> ir.Value:
        """A value that varies without its factors, built at the insertion point: in a type that may be narrower, as a
        rounding that follows nothing but a widening is none."""
        op = self._inner(value)
        if op is not None and value not in values:
            if op.name in _CASTS and _multiplies(op):
                values[value] = _as(_unwidened(self._rest(op.operands[0], values), value.type), value.type)
            elif op.name == "arith.mulf" and any(v in self.factors for v in op.operands):
                values[value] = next(self._rest(v, values) for v in op.operands if v not in self.factors)
            elif op.name == "arith.mulf" and self._varies(value):
                sides = [
                    self._rest(v, values) if self._varies(v) else _computed_in_body(v, values) for v in op.operands
                ]
                values[value] = arith.MulFOp(*(_as(v, value.type) for v in sides)).result
            else:
                _computed_in_body(value, values)
        return values.get(value, value)

    def factor(self, inputs: Sequence[ir.Value], maps: Sequence, rows: int) -> ir.Value:
        """The factors' product for each row, f32 [M]."""
        element = ir.F32Type.get()
        new = generic(inputs, [empty([rows], element)], [*maps, (0,)], [True])
        types = [ir.RankedTensorType(v.type).element_type for v in inputs]
        inner = new.regions[0].blocks.append(*types, element)
        known = dict(zip([a for a in self.block.arguments if a in self.rows], inner.arguments, strict=False))
        with ir.InsertionPoint(inner):
            product = None
            for f in self.factors:
                x = _as(_computed_in_body(f, known), element)
                product = x if product is None else arith.MulFOp(product, x).result
            linalg.YieldOp([product])
        return new.results[0]


def _computed_in_body(value: ir.Value, values: Values) -> ir.Value:
    """A value of a body, computed again at the insertion point of `values`."""
    if value in values or isinstance(value.owner, ir.Block):
        return values.get(value, value)
    for v in value.owner.operation.operands:
        _computed_in_body(v, values)
    clone_into(value.owner.operation, values)
    return values[value]


def _unwidened(value: ir.Value, element: ir.Type) -> ir.Value:
    """What a value was before it was widened from a type."""
    owner = value.owner
    if not isinstance(owner, ir.Block) and owner.operation.name == "arith.extf":
        source = owner.operation.operands[0]
        return source if source.type == element else value
    return value
