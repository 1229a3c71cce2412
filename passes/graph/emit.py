"""Writes the body of a kernel: `linalg.generic` ops from scalar expressions over the kernel's loops."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from mlirc.ir.levels import INDEX_BELOW
from mlirc.ir.tensors import shape_of
from mlirc.mlir import arith, ir, linalg, tensor
from mlirc.passes.graph.evaluate import owner_of
from mlirc.passes.graph.index import Index, delinearize, linearize
from mlirc.passes.graph.layout import common_coarsening, reassociation
from mlirc.passes.graph.scalar import Scalar
from mlirc.passes.graph.space import Space, affine_map, tensor_type

Tile = tuple[ir.Value, list[int | None]]  # a tensor, and for each of its dimensions the loop (None: size 1)


def reshape(value: ir.Value, shape: Sequence[int]) -> ir.Value:
    """The value as a tensor of this shape, by at most one collapse_shape and one expand_shape."""
    shape = list(shape)
    for step in (common_coarsening(shape_of(value), shape), shape):
        now = list(shape_of(value))
        if now == step:
            continue
        type_ = tensor_type(step, value.type.element_type)
        if (groups := reassociation(step, now)) is not None and len(step) < len(now):
            value = tensor.collapse_shape(type_, value, groups)
        elif (groups := reassociation(now, step)) is not None:
            value = tensor.expand_shape(type_, value, groups, [], step)
    if list(shape_of(value)) != shape:
        raise AssertionError(f"cannot view {shape_of(value)} as {shape}")
    return value


class Arguments:
    """The tensors that a kernel reads: its parameters, and the values that the caller passes for them."""

    def __init__(self, block: ir.Block, before: ir.Operation) -> None:
        self.block = block
        self.before = before
        self.passed: list[ir.Value] = []
        self._known: dict = {}

    def get(self, value: ir.Value, shape: Sequence[int]) -> ir.Value:
        """The kernel's own name for a tensor of the caller, seen with this shape."""
        key = (value, tuple(shape))
        if key not in self._known:
            owner = owner_of(value)
            if owner is not None and owner.name == "arith.constant":
                with ir.InsertionPoint.at_block_begin(self.block), ir.Location.unknown():
                    self._known[key] = reshape(owner.clone().results[0], shape)
            else:
                with ir.InsertionPoint(self.before), self.before.location:
                    seen = reshape(value, shape)
                self.passed.append(seen)
                self._known[key] = self.block.add_argument(seen.type, ir.Location.unknown())
        return self._known[key]

    def seen_shapes(self, value: ir.Value) -> Sequence[int] | None:
        """The shape that the tensor has as a parameter so far; None if it is not one, or only for all its elements."""
        found = [shape for known, shape in self._known if known == value]
        return found[0] if found else None


class BodyEmitter:
    """Emits generics into a kernel. `tiles` maps a scalar's number to a tensor that already holds it."""

    def __init__(self, space: Space, arguments: Arguments) -> None:
        self.space = space
        self.arguments = arguments
        self.tiles: dict[int, Tile] = {}
        self.whole: set[ir.Value] = set()  # tensors that are read in their own shapes

    def load(self, node: Scalar) -> Tile | None:
        """The parameter that a plain load reads, and its loops; None if the load is not plain."""
        loops = self.space.plain_loops(node)
        if loops is None:
            return None
        value = node.data[0]
        if not loops:
            return self.arguments.get(value, [1]), [None]
        return self.arguments.get(value, self.space.sizes(loops)), list(loops)

    def gathered(self, node: Scalar) -> tuple[ir.Value, Sequence[Index]]:
        """The parameter that a load that is not plain reads, and where: in the shape that a plain load has already,
        if there is one, so that both read one parameter."""
        value, indices = node.data
        shape = self.arguments.seen_shapes(value)
        if shape is None or value in self.whole:
            return self.arguments.get(value, shape_of(value)), indices
        return self.arguments.get(value, shape), delinearize(linearize(indices, shape_of(value)), shape)

    def tensor(self, node: Scalar, loops: Sequence[int]) -> Tile:
        """A tensor that holds the scalar for all iterations of `loops`."""
        if node.number in self.tiles:
            return self.tiles[node.number]
        if node.kind == "load" and (tile := self.load(node)) is not None:
            return tile
        (value,) = self.generic([node], loops)
        return value, list(loops)

    def generic(
        self, nodes: Sequence[Scalar], loops: Sequence[int], results: Sequence[int] | None = None
    ) -> list[ir.Value]:
        """One elementwise `linalg.generic` over `loops` that computes each scalar into a tensor of its own, whose
        dimensions are `results` (a permutation of `loops`, the same by default)."""
        results = list(loops if results is None else results)
        operands: dict[int, Tile] = {}
        for node in nodes:
            self._operands(node, operands)
        inits = []
        for node in nodes:
            inits.append(tensor.empty(self.space.sizes(results), node.type))
        out = affine_map(loops, results)
        maps = [affine_map(loops, tile[1]) for tile in operands.values()] + [out] * len(nodes)
        op = make_generic([t[0] for t in operands.values()], inits, maps, ["parallel"] * len(loops))
        block = op.regions[0].blocks[0]
        values = {number: block.arguments[i] for i, number in enumerate(operands)}
        with ir.InsertionPoint(block):
            writer = ScalarWriter(self, loops, values)
            yielded = [writer.get(node) for node in nodes]
            ir.Operation.create("linalg.yield", operands=yielded)
        return list(op.results)

    def _operands(self, node: Scalar, found: dict[int, Tile]) -> None:
        """The tensors that a scalar's expression reads element by element."""
        stack, seen = [node], set()
        while stack:
            n = stack.pop()
            if n.number in seen:
                continue
            seen.add(n.number)
            tile = self.tiles.get(n.number)
            if tile is None and n.kind == "load":
                tile = self.load(n)
            if tile is not None:
                found.setdefault(n.number, tile)
            else:
                stack.extend(reversed(n.inputs()))


class ScalarWriter:
    """Writes scalar expressions into the body of a generic."""

    def __init__(self, emitter: BodyEmitter, loops: Sequence[int], values: dict[int, ir.Value]) -> None:
        self.emitter = emitter
        self.values = values
        self._position = {loop: i for i, loop in enumerate(loops)}
        self._indices: dict = {}

    def get(self, node: Scalar) -> ir.Value:
        """The scalar's value, written on first use."""
        found = self.values.get(node.number)
        if found is None:
            for inner in node.walk_until(self.values):
                self.values[inner.number] = self._write(inner)
            found = self.values[node.number]
        return found

    def _write(self, node: Scalar) -> ir.Value:
        if node.kind == "load":
            source, indices = self.emitter.gathered(node)
            return tensor.extract(source, [self.index(i) for i in indices])
        if node.kind == "index":
            return self._integer(node.data, node.type)
        name, attributes = node.data
        operands = [self.values[o.number] for o in node.operands]
        created = ir.Operation.create(name, [node.type], operands, dict(attributes))
        return created.results[0]

    def _integer(self, index: Index, type_: ir.Type) -> ir.Value:
        if not index.terms:
            return arith.constant(type_, index.const)
        value = self.index(index)
        return value if isinstance(type_, ir.IndexType) else arith.index_cast(type_, value)

    def index(self, index: Index) -> ir.Value:
        """An index expression as a value of type index."""
        if index in self._indices:
            return self._indices[index]
        total: ir.Value | None = None
        for atom, factor in index.terms.items():
            part = self._atom(atom)
            if factor != 1:
                part = arith.muli(part, self._constant(factor))
            total = part if total is None else arith.addi(total, part)
        if total is None or index.const:
            constant = self._constant(index.const)
            total = constant if total is None else arith.addi(total, constant)
        self._indices[index] = total
        return total

    def _atom(self, atom: tuple) -> ir.Value:
        if atom in self._indices:
            return self._indices[atom]
        if atom[0] == "d":
            position = self._position[self.emitter.space.index_loop(atom[1])]
            attribute = ir.IntegerAttr.get(ir.IntegerType.get_signless(64), position)
            created = ir.Operation.create("linalg.index", [ir.IndexType.get()], [], {"dim": attribute})
            value = created.results[0]
        elif atom[0] == "s":
            value = self.get(atom[1])
            if not isinstance(value.type, ir.IndexType):
                value = arith.index_cast(ir.IndexType.get(), value)
        else:
            value = self._bounded(atom[0], atom[1], atom[2])
        self._indices[atom] = value
        return value

    def _bounded(self, kind: str, index: Index, size: int) -> ir.Value:
        value = self.index(index)
        if kind in ("clamp", "bound"):
            low, high = index.range()
            if low < 0:
                value = self._nearest(arith.maxsi, value, 0, kind, size)
            return self._nearest(arith.minsi, value, size - 1, kind, size) if high >= size else value
        by = self._constant(size)
        if index.range()[0] >= 0:
            return arith.divui(value, by) if kind == "div" else arith.remui(value, by)
        quotient = arith.floordivsi(value, by)
        return quotient if kind == "div" else arith.subi(value, arith.muli(quotient, by))

    def _nearest(self, make: Callable, value: ir.Value, limit: int, kind: str, size: int) -> ir.Value:
        result = make(value, self._constant(limit))
        if kind == "bound":
            result.owner.attributes[INDEX_BELOW] = ir.IntegerAttr.get(ir.IntegerType.get_signless(64), size)
        return result

    def _constant(self, value: int) -> ir.Value:
        if value not in self._indices:
            self._indices[value] = arith.constant(ir.IndexType.get(), value)
        return self._indices[value]


def make_generic(
    inputs: Sequence[ir.Value], inits: Sequence[ir.Value], maps: Sequence[ir.AffineMap], iterators: Sequence[str]
) -> ir.Operation:
    """A `linalg.generic` with an entry block and no body yet."""
    op = ir.Operation.create(
        "linalg.generic",
        results=[i.type for i in inits],
        operands=[*inputs, *inits],
        attributes={
            "indexing_maps": ir.ArrayAttr.get([ir.AffineMapAttr.get(m) for m in maps]),
            "iterator_types": ir.ArrayAttr.get([iterator_attribute(i) for i in iterators]),
            "operandSegmentSizes": ir.DenseI32ArrayAttr.get([len(inputs), len(inits)]),
        },
        regions=1,
    )
    types = [t.element_type if isinstance(t := v.type, ir.RankedTensorType) else t for v in (*inputs, *inits)]
    op.regions[0].blocks.append(*types, arg_locs=[ir.Location.unknown()] * len(types))
    return op


def clone_body(op: ir.Operation, values: Sequence[ir.Value]) -> None:
    """Copies the body of a generic to the insertion point, with `values` for its arguments."""
    old = op.regions[0].blocks[0]
    mapping = dict(zip(old.arguments, values, strict=True))
    for inner in old.operations:
        clone = inner.operation.clone()
        for i, value in enumerate(clone.operands):
            clone.operands[i] = mapping.get(value, value)
        mapping |= dict(zip(inner.operation.results, clone.results, strict=True))


def iterator_attribute(kind: str) -> ir.Attribute:
    return ir.Attribute.parse(f"#linalg.iterator_type<{kind}>")


def filled(sizes: Sequence[int], attribute: ir.Attribute) -> ir.Value:
    """A tensor filled with a constant."""
    value = arith.constant(attribute.type, attribute)
    return linalg.fill(value, outs=[tensor.empty(list(sizes), attribute.type)])
