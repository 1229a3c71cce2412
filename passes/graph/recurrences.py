"""Steps of loops that are cells: one product of a carried state with a matrix that all steps share, and then maps.

`cell_of` finds one, as scalar expressions of a row b and a unit u; `inline` writes it into the loop's function, in the
form of `mlirc.ir.recurrences`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mlirc.ir.loops import Loop
from mlirc.ir.tensors import element_bytes, shape_of
from mlirc.mlir import arith, ir, linalg, tensor
from mlirc.passes.graph.emit import make_generic
from mlirc.passes.graph.evaluate import Evaluator
from mlirc.passes.graph.index import Index, dim
from mlirc.passes.graph.scalar import Scalar, Scalars, constant_of

FLOATS = ("f32", "bf16", "f16")


@dataclass(frozen=True)
class Cell:
    """A step's arithmetic. `nodes`: its results at (b, u), those that are alike once; `results`: which of these each of
    the step's results is. `product`: of the step's argument `state` [batch, units] and its argument `matrix`, `gates`
    rows per unit, which run along k (`k_last`). `reads`: by the number of a node that is read, the argument (None: the
    product) and the map of (b, u) at which."""

    nodes: tuple[Scalar, ...]
    results: tuple[int, ...]
    product: ir.Operation
    state: int
    matrix: int
    k_last: bool
    batch: int
    units: int
    gates: int
    reads: dict[int, tuple[int | None, ir.AffineMap]]

    @property
    def bytes(self) -> int:
        """Of an element of the matrix."""
        return element_bytes(ir.RankedTensorType(self.product.operands[0].type).element_type)


def cell_of(step: ir.OpView, loop: Loop) -> Cell | None:
    """The cell that a step's function is in a loop; None where it is none."""
    block = step.operation.regions[0].blocks[0]
    returned = list(block.operations[len(block.operations) - 1].operation.operands)
    made = [source.number for source in loop.yields if source.kind == "result"]
    shapes = {shape_of(returned[n]) for n in made}
    if len(made) != len(loop.yields) or len(shapes) != 1 or len(shape := shapes.pop()) != 2:
        return None
    batch, units = shape
    dims = (dim(0, batch), dim(1, units))
    evaluator = Evaluator(Scalars(), lambda op: True)
    found = [evaluator.element(v, dims) for v in returned]
    nodes = list(dict.fromkeys(found))
    every = {n.number: n for node in nodes for n in node.walk()}
    products = {n.data[0] for n in every.values() if n.kind == "dot"}
    if len(products) != 1 or any(n.kind == "reduced" for n in every.values()):
        return None
    factors = _factors(evaluator, product := products.pop(), list(block.arguments), (batch, units))
    if factors is None or loop.operands[factors[0]].kind != "carry" or loop.operands[factors[1]].kind != "argument":
        return None
    reads = _reads(every, list(block.arguments), units)
    if reads is None or any(a is not None and loop.operands[a].kind not in _READ for a, _ in reads.values()):
        return None
    reversals = {s.reverse for s in loop.operands if s.kind == "slice"} | {s for s in loop.slices if s is not None}
    if len(reversals) != 1:
        return None
    gates = shape_of(product.results[0])[1] // units
    return Cell(tuple(nodes), tuple(map(nodes.index, found)), product, *factors, batch, units, gates, reads)


_READ = ("carry", "argument", "slice")


def _factors(
    evaluator: Evaluator, product: ir.Operation, arguments: list[ir.Value], shape: tuple[int, int]
) -> tuple[int, int, bool] | None:
    """The arguments that a product multiplies, as they are, and whether the second one's rows run along k."""
    batch, units = shape
    if product.name != "linalg.matmul" or len(product.attributes["indexing_maps"]) != 3 or not _is_plain(product):
        return None
    (rows, k), columns = shape_of(product.operands[0]), shape_of(product.operands[1])[1]
    if (rows, k) != shape or columns % units:
        return None
    m, n, inner = dim(0, batch), dim(1, columns), dim(2, units)
    first = evaluator.element(product.operands[0], (m, inner))
    second = evaluator.element(product.operands[1], (inner, n))
    if first.kind != "load" or second.kind != "load" or first.data[1] != (m, inner):
        return None
    if any(node.data[0] not in arguments for node in (first, second)) or str(first.type) not in FLOATS:
        return None
    if first.type != second.type or second.data[1] not in ((n, inner), (inner, n)):
        return None
    return (*(arguments.index(node.data[0]) for node in (first, second)), second.data[1] == (n, inner))  # type: ignore


def _is_plain(product: ir.Operation) -> bool:
    """Whether a matmul multiplies [m, k] and [k, n], and adds to zeros of f32."""
    d = [ir.AffineExpr.get_dim(i) for i in range(3)]
    plain = [ir.AffineMap.get(3, 0, [d[i] for i in pair]) for pair in ((0, 2), (2, 1), (0, 1))]
    fill = product.operands[2].owner
    if isinstance(fill, ir.Block) or fill.operation.name != "linalg.fill":
        return False
    zero = fill.operation.operands[0].owner
    if isinstance(zero, ir.Block) or zero.operation.name != "arith.constant" or str(zero.results[0].type) != "f32":
        return False
    is_zero = ir.FloatAttr(zero.operation.attributes["value"]).value == 0.0
    return is_zero and [ir.AffineMapAttr(a).value for a in product.attributes["indexing_maps"]] == plain


def _reads(
    every: dict[int, Scalar], arguments: list[ir.Value], units: int
) -> dict[int, tuple[int | None, ir.AffineMap]] | None:
    """Where the expressions read the product and the arguments; None for a read that is no map of (b, u), or of the
    product at other columns than u + g * units."""
    found: dict[int, tuple[int | None, ir.AffineMap]] = {}
    for node in every.values():
        if node.kind == "index" and constant_of(node) is None:
            return None
        if node.kind not in ("load", "dot"):
            continue
        source, indices = node.data
        if node.kind == "load" and source not in arguments:
            return None
        expressions = [_expression(i) for i in indices]
        if any(e is None for e in expressions):
            return None
        if node.kind == "dot" and (indices[1].const % units or len(indices[1].terms) != 1 and units > 1):
            return None
        number = None if node.kind == "dot" else arguments.index(source)
        found[node.number] = number, ir.AffineMap.get(2, 0, expressions)
    return found


def _expression(index: Index) -> ir.AffineExpr | None:
    """A loop's index plus a constant, as an affine expression; None for another one."""
    constant = ir.AffineExpr.get_constant(index.const)
    if not index.terms:
        return constant
    [(atom, factor), *more] = index.terms.items()
    if more or factor != 1 or atom[0] != "d":
        return None
    position = ir.AffineExpr.get_dim(atom[1])
    return ir.AffineExpr.get_add(position, constant) if index.const else position


def inline(cell: Cell, call: ir.Operation) -> None:
    """Computes a cell in the place of the call of its step."""
    given = list(call.operands)
    with ir.InsertionPoint(call), call.location:
        product = _product(cell, given)
        reads = list(cell.reads.items())
        inputs, maps = [], []
        for _, (number, at) in reads:
            value, plain = _cut(product if number is None else given[number], at, cell.units)
            inputs.append(value)
            maps.append(plain)
        inits = [tensor.empty([cell.batch, cell.units], node.type) for node in cell.nodes]
        maps += [ir.AffineMap.get_identity(2)] * len(inits)
        gates = make_generic(inputs, inits, maps, ["parallel"] * 2)
        block = gates.regions[0].blocks[0]
        with ir.InsertionPoint(block):
            values = {number: block.arguments[i] for i, (number, _) in enumerate(reads)}
            ir.Operation.create("linalg.yield", operands=_written(cell.nodes, values))
    for result, number in zip(call.results, cell.results, strict=True):
        result.replace_all_uses_with(gates.results[number])
    call.erase()


def _cut(value: ir.Value, at: ir.AffineMap, units: int) -> tuple[ir.Value, ir.AffineMap]:
    """The columns of a tensor that a map reads from a unit's number plus a constant on, and the map without that."""
    shape, expressions = list(shape_of(value)), list(at.results)
    offsets = [0] * len(shape)
    for i, e in enumerate(expressions):
        if isinstance(e, ir.AffineAddExpr):
            offsets[i], expressions[i] = e.rhs.value, ir.AffineExpr.get_dim(1)
    sizes = [units if e == ir.AffineExpr.get_dim(1) else n for e, n in zip(expressions, shape, strict=True)]
    if sizes != shape:
        cut = ir.RankedTensorType.get(sizes, value.type.element_type)
        value = tensor.extract_slice(cut, value, [], [], [], offsets, sizes, [1] * len(shape))
    return value, ir.AffineMap.get(2, 0, expressions)


def _product(cell: Cell, given: list[ir.Value]) -> ir.Value:
    f32 = ir.F32Type.get()
    zero = arith.constant(f32, 0.0)
    out = linalg.fill(zero, outs=[tensor.empty([cell.batch, cell.gates * cell.units], f32)])
    d = [ir.AffineExpr.get_dim(i) for i in range(3)]
    pairs = ((0, 2), (1, 2) if cell.k_last else (2, 1), (0, 1))
    maps = [ir.AffineMap.get(3, 0, [d[i] for i in pair]) for pair in pairs]
    iterators = ["parallel", "parallel", "reduction"]
    op = make_generic([given[cell.state], given[cell.matrix]], [out], maps, iterators)
    block = op.regions[0].blocks[0]
    with ir.InsertionPoint(block):
        a, b, total = block.arguments
        if a.type != f32:
            a, b = arith.extf(f32, a), arith.extf(f32, b)
        ir.Operation.create("linalg.yield", operands=[arith.addf(total, arith.mulf(a, b))])
    return op.results[0]


def _written(nodes: Sequence[Scalar], values: dict[int, ir.Value]) -> list[ir.Value]:
    """Scalar expressions at the insertion point; `values`: what is known of them, by their numbers."""
    for node in nodes:
        for inner in node.walk_until(values):
            constant = constant_of(inner)
            if constant is not None:
                values[inner.number] = arith.constant(inner.type, constant)
            else:
                name, attributes = inner.data
                operands = [values[o.number] for o in inner.operands]
                created = ir.Operation.create(name, [inner.type], operands, dict(attributes))
                values[inner.number] = created.results[0]
    return [values[node.number] for node in nodes]
