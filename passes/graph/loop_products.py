"""Products of a loop's step that do not depend on what it carries are one product of all steps, in front of the loop;
and those of what it carries that only results depend on are one behind it.

    step: %d = matmul(concat(%x, %h), W^T)          @main: %g = matmul(%xs, Wx^T) over all steps, a slice of it per step
          %h1 = tanh(%d)                            step: %h1 = tanh(%g_t + matmul(%h, Wh^T)), which is a cell
          %y = matmul(%h1, V^T) + b                 @main: %ys = matmul(%h1s, V^T) + b over all steps
"""

from __future__ import annotations

from dataclasses import dataclass, field

from mlirc.dialects.schedule import _build
from mlirc.ir.loops import LOOP, STEP, Loop, read_loop, write_loop
from mlirc.ir.tensors import shape_of
from mlirc.mlir import arith, func, ir, linalg, tensor
from mlirc.passes.graph.emit import clone_body, make_generic
from mlirc.passes.graph.outline import main_function

CARRY, SLICE, CLOSED = "carry", "slice", "argument"
_OUTSIDE = ("linalg.transpose", "tensor.extract_slice", "tensor.empty", "arith.constant")  # computed of closed values


def part_products(module: ir.Module) -> None:
    """Rewrites the loops of a `linalg`-level module in place, those whose steps no other loop shares."""
    functions = {op.name.value: op for op in module.body.operations if isinstance(op, func.FuncOp)}
    loops = {n: read_loop(f) for n, f in functions.items() if LOOP in f.attributes}
    for name, loop in loops.items():
        if sum(other.step == loop.step for other in loops.values()) == 1 and _is_scan(loop):
            if _part(module, functions[name], functions[loop.step], loop):
                for old in (functions[name], functions[loop.step]):  # when nothing here has their ops any more
                    old.operation.erase()


def _part(module: ir.Module, function: func.FuncOp, step: func.FuncOp, loop: Loop) -> bool:
    """Makes a loop and a step of what is left of them; whether there is something that leaves the loop."""
    parts = _Step(step, loop)
    parts.split()
    found = parts.find()
    if found:
        _rewrite(module, function, parts)
    return found


def _is_scan(loop: Loop) -> bool:
    """Whether a loop takes carries, slices and what is the same for all steps in this order, as `mlirc::scan` does."""
    kinds = [s.kind for s in loop.operands]
    carried = kinds.count(CARRY)
    return (
        kinds == sorted(kinds, key=(CARRY, SLICE, CLOSED).index)
        and [s.number for s in loop.operands] == list(range(len(kinds)))
        and list(loop.starts[:carried]) == list(range(carried))
        and not any(s is not None for s in loop.starts[carried:])
        and all(y.kind == "result" and y.number == i for i, y in enumerate(loop.yields))
        and list(loop.slices[:carried]) == [None] * carried
        and list(loop.results) == list(range(len(loop.starts)))
        and len({s.reverse for s in loop.operands if s.kind == SLICE} | set(loop.slices[carried:])) == 1
    )


def _owner(value: ir.Value) -> ir.Operation | None:
    return None if isinstance(value.owner, ir.Block) else value.owner.operation


@dataclass
class _Sunk:
    """A result (its number) that is computed behind the loop, by `ops`, of the carried result `source`."""

    result: int
    source: int
    ops: list[ir.Operation]


@dataclass
class _Step:
    """A step, and what of it leaves the loop: products of slices, values of what is the same for all steps, results."""

    function: func.FuncOp
    loop: Loop
    products: list[ir.Operation] = field(default_factory=list)
    closed: list[ir.Value] = field(default_factory=list)
    sunk: list[_Sunk] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.block = self.function.operation.regions[0].blocks[0]
        self.kinds = [s.kind for s in self.loop.operands]
        self.carried = self.kinds.count(CARRY)

    @property
    def ops(self) -> list[ir.Operation]:
        return [o.operation for o in self.block.operations]

    def of(self, value: ir.Value, known: dict[ir.Value, set[str]] | None = None) -> set[str]:
        """The kinds of arguments that a value depends on; `known` of some."""
        known = {} if known is None else known
        if value not in known:
            if (op := _owner(value)) is None:
                known[value] = {self.kinds[list(self.block.arguments).index(value)]}
            else:
                known[value] = {kind for v in op.operands for kind in self.of(v, known)}
        return known[value]

    def split(self) -> None:
        """A product of rows that are partly carried becomes a sum of products, one of each part."""
        for op in [o for o in self.ops if o.name == "linalg.matmul"]:
            rows, columns = _owner(op.operands[0]), _owner(op.operands[1])
            if rows is None or columns is None or (rows.name, columns.name) != ("tensor.concat", "linalg.transpose"):
                continue
            if ir.IntegerAttr(rows.attributes["dim"]).value != 1 or self.of(columns.results[0]) != {CLOSED}:
                continue
            if len({CARRY in self.of(v) for v in rows.operands}) == 2:
                _split(op, list(rows.operands), columns)

    def find(self) -> bool:
        """Looks for what leaves the loop; whether there is anything."""
        for op in self.ops:
            if op.name == "linalg.matmul" and self._is_slice(op.operands[0]) and self._is_outside(op.operands[1]):
                self.products.append(op)
            elif op.name == "tensor.extract_slice" and self._is_outside(op.results[0]):
                self.closed.append(op.results[0])
        returned = list(self.ops[-1].operands)
        for number in range(self.carried, len(returned)):
            ops: list[ir.Operation] = []
            sources = self._behind(returned[number], returned[: self.carried], ops)
            if sources is not None and len(sources) == 1 and any(o.name == "linalg.matmul" for o in ops):
                self.sunk.append(_Sunk(number, sources.pop(), [o for o in self.ops if o in ops]))
        return bool(self.products or self.sunk)

    def _is_slice(self, value: ir.Value) -> bool:
        return _owner(value) is None and self.of(value) == {SLICE} and len(shape_of(value)) == 2

    def _is_outside(self, value: ir.Value) -> bool:
        """Whether a value is moved of what is the same for all steps."""
        op = _owner(value)
        if op is None:
            return self.of(value) == {CLOSED}
        return op.name in _OUTSIDE and all(self._is_outside(v) for v in op.operands)

    def _behind(self, value: ir.Value, carries: list[ir.Value], ops: list[ir.Operation]) -> set[int] | None:
        """The carried results that a result is computed of, row by row, and `ops` that do it; None for others."""
        if value in carries:
            return {carries.index(value)}
        if self._is_outside(value):
            return set()
        op = _owner(value)
        if op is None or op.name not in ("linalg.matmul", "linalg.generic", "linalg.fill") or not _by_rows(op):
            return None
        if op.name == "linalg.matmul" and not self._is_outside(op.operands[1]):
            return None
        found: set[int] = set()
        for operand in op.operands:
            if isinstance(operand.type, ir.RankedTensorType):
                inner = self._behind(operand, carries, ops)
                if inner is None:
                    return None
                found |= inner
        if op not in ops:
            ops.append(op)
        return found


def _by_rows(op: ir.Operation) -> bool:
    """Whether each row of an op's result [rows, columns] is computed of the same row of its operands of two dimensions
    (of a product: of the first), and of vectors that all rows share."""
    if len(op.results) != 1 or len(shape_of(op.results[0])) != 2:
        return False
    if op.name == "linalg.matmul":
        return True
    if op.name == "linalg.fill":
        return True
    maps = [ir.AffineMapAttr(a).value for a in ir.ArrayAttr(op.attributes["indexing_maps"])]
    row = ir.AffineExpr.get_dim(0)
    plain = all(len(m.results) == 2 and m.results[0] == row or row not in list(m.results) for m in maps)
    inner = [o.operation.name for o in op.regions[0].blocks[0].operations]
    return plain and "reduction" not in str(op.attributes["iterator_types"]) and "linalg.index" not in inner


def _split(op: ir.Operation, rows: list[ir.Value], columns: ir.Operation) -> None:
    weight, start = columns.operands[0], 0
    total: ir.Value | None = None
    with ir.InsertionPoint(op), op.location:
        for part in rows:
            n, k = shape_of(weight)[0], shape_of(part)[1]
            own = tensor.extract_slice(
                ir.RankedTensorType.get([n, k], weight.type.element_type),
                weight,
                [],
                [],
                [],
                [0, start],
                [n, k],
                [1, 1],
            )
            start += k
            factor = _transposed(own)
            made = op.clone().operation
            made.operands[0], made.operands[1] = part, factor
            result = made.results[0]
            total = result if total is None else _sum(total, result)
    assert total is not None
    op.results[0].replace_all_uses_with(total)
    op.erase()


def _transposed(value: ir.Value) -> ir.Value:
    n, k = shape_of(value)
    out = tensor.empty([k, n], value.type.element_type)
    made = linalg.transpose(value, outs=[out], permutation=[1, 0])
    return made if isinstance(made, ir.Value) else made.results[0]


def _sum(a: ir.Value, b: ir.Value) -> ir.Value:
    out = tensor.empty(list(shape_of(a)), a.type.element_type)
    op = make_generic([a, b], [out], [ir.AffineMap.get_identity(2)] * 3, ["parallel"] * 2)
    with ir.InsertionPoint(block := op.regions[0].blocks[0]):
        ir.Operation.create("linalg.yield", operands=[arith.addf(block.arguments[0], block.arguments[1])])
    return op.results[0]


def _rewrite(module: ir.Module, function: func.FuncOp, step: _Step) -> None:
    """Makes a step and a loop of what is left, and computes the rest where the loop is called."""
    loop, name = step.loop, function.name.value
    products = [op.results[0] for op in step.products]
    old = [a.type for a in step.block.arguments]
    first = step.kinds.index(CLOSED) if CLOSED in step.kinds else len(old)
    own = [*old[:first], *(v.type for v in products), *old[first:], *(v.type for v in step.closed)]
    returned = list(step.ops[-1].operands)
    for sunk in step.sunk:
        returned[sunk.result] = returned[sunk.source]
    _new_step(step, own, first, products, returned)
    sliced = step.kinds.count(SLICE) + len(products)
    rows = range(step.carried, step.carried + sliced)
    types = [_stacked(t, loop.count) if i in rows else t for i, t in enumerate(own)]
    results = [v.type if i < step.carried else _stacked(v.type, loop.count) for i, v in enumerate(returned)]
    reverse = any(s.reverse for s in loop.operands) or True in loop.slices
    made = write_loop(name, loop.step, loop.count, step.carried, sliced, reverse, types, results)
    new = next(o for o in made.body.operations if LOOP in o.operation.attributes).operation.clone()
    module.body.append(new)
    for call in [o.operation for o in main_function(module).operation.regions[0].blocks[0].operations]:
        if call.name == "func.call" and ir.FlatSymbolRefAttr(call.attributes["callee"]).value == name:
            _call(call, new.opview, step, first)


def _stacked(t: ir.Type, count: int) -> ir.Type:
    return ir.RankedTensorType.get([count, *t.shape], t.element_type)


def _new_step(
    step: _Step, types: list[ir.Type], first: int, products: list[ir.Value], returned: list[ir.Value]
) -> None:
    """The step without what leaves the loop, under its name."""
    with ir.InsertionPoint(step.function), step.function.location:
        made = func.FuncOp(step.function.name.value, (types, [v.type for v in returned]), visibility="private")
        made.attributes[STEP] = ir.UnitAttr.get()
        block = made.add_entry_block()
    arguments, count = list(block.arguments), len(products)
    old = list(step.block.arguments)
    values = dict(zip(old, [*arguments[:first], *arguments[first + count : len(old) + count]], strict=True))
    values |= dict(zip(products, arguments[first : first + count], strict=True))
    values |= dict(zip(step.closed, arguments[len(old) + count :], strict=True))
    with ir.InsertionPoint(block):
        for op in step.ops[:-1]:
            if not any(r in values for r in op.results):
                _build.clone(op, values)
        func.ReturnOp([values[v] for v in returned])
    for op in reversed([o.operation for o in block.operations]):
        if op.results and not any(True for r in op.results for _ in r.uses):
            op.erase()


def _call(call: ir.Operation, loop: func.FuncOp, step: _Step, first: int) -> None:
    given = list(call.operands)
    values = dict(zip(step.block.arguments, given, strict=True))
    with ir.InsertionPoint(call), call.location:
        products = [_all_steps(op, values, step.loop.count) for op in step.products]
        closed = [_outside(v, values) for v in step.closed]
        made = func.CallOp(loop, [*given[:first], *products, *given[first:], *closed])
        results = list(made.results)
        for sunk in step.sunk:
            results[sunk.result] = _behind_loop(sunk, step, results[sunk.result], dict(values))
    for old, new in zip(call.results, results, strict=True):
        old.replace_all_uses_with(new)
    call.erase()


def _outside(value: ir.Value, values: dict[ir.Value, ir.Value]) -> ir.Value:
    """A value of what is the same for all steps, at the insertion point."""
    if value not in values:
        op = _owner(value)
        assert op is not None
        for operand in op.operands:
            _outside(operand, values)
        _build.clone(op, values)
    return values[value]


def _all_steps(op: ir.Operation, values: dict[ir.Value, ir.Value], count: int) -> ir.Value:
    """A product of slices, of all steps."""
    batch, columns = shape_of(op.results[0])
    rows = _flat(values[op.operands[0]])
    return _stack(_product(op, rows, _outside(op.operands[1], values)), [count, batch, columns])


def _product(op: ir.Operation, rows: ir.Value, columns: ir.Value) -> ir.Value:
    """The same product of more rows."""
    element = op.results[0].type.element_type
    zero = arith.constant(element, 0.0)
    out = linalg.fill(zero, outs=[tensor.empty([shape_of(rows)[0], shape_of(columns)[1]], element)])
    return linalg.matmul(rows, columns, outs=[out])


def _flat(value: ir.Value) -> ir.Value:
    count, batch, width = shape_of(value)
    t = ir.RankedTensorType.get([count * batch, width], value.type.element_type)
    return tensor.collapse_shape(t, value, [[0, 1], [2]])


def _stack(value: ir.Value, shape: list[int]) -> ir.Value:
    return tensor.expand_shape(ir.RankedTensorType.get(shape, value.type.element_type), value, [[0, 1], [2]], [], shape)


def _behind_loop(sunk: _Sunk, step: _Step, stacked: ir.Value, values: dict[ir.Value, ir.Value]) -> ir.Value:
    """A result of all steps, of the carried state of all steps."""
    returned = list(step.ops[-1].operands)
    values[returned[sunk.source]] = _flat(stacked)
    rows = step.loop.count * shape_of(returned[sunk.source])[0]
    for op in sunk.ops:
        width = shape_of(op.results[0])[1]
        out = tensor.empty([rows, width], op.results[0].type.element_type)
        if op.name == "linalg.fill":
            values[op.results[0]] = linalg.fill(_outside(op.operands[0], values), outs=[out])
        elif op.name == "linalg.matmul":
            values[op.results[0]] = _product(op, values[op.operands[0]], _outside(op.operands[1], values))
        else:
            maps = [ir.AffineMapAttr(a).value for a in ir.ArrayAttr(op.attributes["indexing_maps"])]
            inputs = [values[v] if v in values else _outside(v, values) for v in list(op.operands)[:-1]]
            made = make_generic(inputs, [out], maps, ["parallel"] * 2)
            with ir.InsertionPoint(block := made.regions[0].blocks[0]):
                clone_body(op, list(block.arguments))
            _constants(made, values)
            values[op.results[0]] = made.results[0]
    result = values[returned[sunk.result]]
    return _stack(result, [step.loop.count, *shape_of(returned[sunk.result])])


def _constants(made: ir.Operation, values: dict[ir.Value, ir.Value]) -> None:
    """Copies the constants that a copied body reads of the step."""
    for inner in [o.operation for o in made.regions[0].blocks[0].operations]:
        for i, value in enumerate(inner.operands):
            op = _owner(value)
            if op is not None and op.name == "arith.constant" and op.block != inner.block:
                with ir.InsertionPoint(made):
                    inner.operands[i] = _outside(value, values)
