"""Bodies of `linalg.generic` on fragments: every op of the body is replayed on pieces of registers.

A value of the body depends on some of the iteration dimensions only. It is computed once for each distinct position
along those, and as a scalar unless it varies within a piece: a row's statistic is not recomputed per column."""

from __future__ import annotations

from mlirc.dialects.mlirc_dialect import DEQUANTIZE
from mlirc.ir.tensors import element_bytes
from mlirc.mlir import ir
from mlirc.passes.distribute.emit.emitter import Emitter, IndexValue, Unsupported, vec
from mlirc.passes.distribute.layouts.registers import Layout
from mlirc.passes.distribute.memory import access
from mlirc.passes.distribute.tiles import choices
from mlirc.passes.distribute.tiles.covering import covered
from mlirc.passes.distribute.tiles.strips import Strips
from mlirc.passes.distribute.tiles.transposed import loaded_by_rows
from mlirc.passes.distribute.tiles.unpacking import RUN, Unpacking, halves
from mlirc.passes.distribute.tiles.values import Fragment, Load, Marked, Tile, elementwise_op

STRIP = "mlirc.strip"


def map_dims(m: ir.AffineMap) -> list[int | None]:
    """The dimension that each result of a projected permutation is, None for a constant 0."""
    out: list[int | None] = []
    for e in m.results:
        if isinstance(e, ir.AffineDimExpr):
            out.append(e.position)
        elif isinstance(e, ir.AffineConstantExpr) and e.value == 0:
            out.append(None)
        else:
            raise Unsupported(
                f"indexing map {m}: the tile distribution takes projected permutations; use the generic script"
            )
    return out


class Body:
    """One evaluation of a generic's body over a layout of its iteration space.

    operands: (fragment, dims) for each block argument, None for an output that the body does not read."""

    def __init__(self, em: Emitter, op: ir.Operation, layout: Layout, sizes: list, operands: list, scalars):
        self.em, self.layout, self.sizes, self.operands = em, layout, sizes, operands
        self.scalars = scalars  # maps values defined outside the body to scalars, memrefs for tensors
        self.block = op.regions[0].blocks[0]
        self.piece = layout.piece
        self.varying = {layout.rank - 1} if self.piece > 1 else set()
        self.arguments = {a: i for i, a in enumerate(self.block.arguments)}
        self.deps: dict[ir.Value, frozenset[int]] = {}
        self.memo: dict = {}
        for a, i in self.arguments.items():
            bound = operands[i]
            self.deps[a] = frozenset(d for d in bound[1] if d is not None) if bound else frozenset()
        for inner in self.block.operations:
            self._note(inner)
        # Which elements a body reads is known but for the thread: see `unpacking`.
        self.places = None if layout.xors else Unpacking(em, layout, sizes, scalars)
        self.unpacking = self.places if DEQUANTIZE in op.attributes else None
        self.strips = Strips(em, layout, sizes, scalars, self.block) if STRIP in op.attributes else None
        self._registers = [o[0].layout.registers if o and isinstance(o[0], Fragment) else None for o in operands]

    def _note(self, op) -> None:
        if op.operation.name == "linalg.index":
            deps = frozenset([ir.IntegerAttr(op.attributes["dim"]).value])
        else:
            deps = frozenset().union(*(self.deps.get(v, frozenset()) for v in op.operation.operands))
        for r in op.operation.results:
            self.deps[r] = deps

    def yields(self) -> list[ir.Value]:
        return list(self.block.operations[len(self.block.operations) - 1].operands)

    def wide(self, value: ir.Value) -> bool:
        return bool(self.deps.get(value, frozenset()) & self.varying)

    def fragment_pieces(self, value: ir.Value) -> list[ir.Value]:
        """The value over all registers, in pieces."""
        n = self.layout.num_regs // self.piece
        if self.strips is not None:
            self._op_by_op(n)
        return [self.em.splat(self.at(value, p), self.piece) for p in range(n)]

    def _op_by_op(self, pieces: int) -> None:
        """Builds each op for all pieces before the next one: what neighbours read is there for all of them then, and
        not for longer than that."""
        for op in self.block.operations:
            for p in range(pieces):
                for result in op.operation.results:
                    self.at(result, p)

    def at(self, value: ir.Value, p: int) -> ir.Value:
        """The value for piece p: a scalar where it does not vary within the piece."""
        deps = self.deps.get(value)
        if deps is None:
            return self.scalars(value)
        first = self.layout.reg_offsets[p * self.piece]
        key = (value, tuple(int(first[d]) for d in sorted(deps)))
        if key not in self.memo:
            self.memo[key] = self._build(value, p)
        return self.memo[key]

    def _build(self, value: ir.Value, p: int) -> ir.Value:
        if value in self.arguments:
            return self._argument(self.arguments[value], p, self.wide(value))
        op = value.owner
        name = op.name
        if name == "arith.constant":
            return self.em.constant(op.attributes["value"])
        if self.unpacking is not None:
            known = self._unpacked(op, p)
            if known is not None:
                return known
        if self.strips is not None and not self.wide(value):
            found = self._in_strip(value, p)
            if found is not None:
                return found
        if name == "linalg.index":
            return self._index(ir.IntegerAttr(op.attributes["dim"]).value, p)
        if name == "tensor.extract":
            return self._gather(op, p)
        if name.split(".")[0] not in ("arith", "math"):
            raise Unsupported(f"{name} in the body of a tile op; use the generic script")
        wide = any(self.wide(r) for r in op.results)
        if wide and self.strips is None and choices.differs(self, value):
            return self.em.pack([choices.element(self, value, p, k) for k in range(self.piece)])
        n = self.piece if wide else 1
        operands = [self.at(v, p) for v in op.operands]
        if wide:
            chosen = name == "arith.select" and not self.wide(op.operands[0])  # by one condition for all
            decided = self.strips.decided(operands[0]) if chosen and self.strips is not None else None
            if decided is not None:
                return self.em.splat(operands[1 if decided else 2], n)
            operands = [v if chosen and i == 0 else self.em.splat(v, n) for i, v in enumerate(operands)]
            words = None if self.strips is None else self.strips.in_words(name, operands)
            if words is not None:
                return words
        attributes = {name: op.attributes[name] for name in op.attributes}
        results = elementwise_op(name, [vec(r.type, n) for r in op.results], operands, attributes)
        return results[list(op.results).index(value)]

    def _in_strip(self, value: ir.Value, p: int) -> ir.Value | None:
        """An index or a condition that is the same for all of a piece; None for another value."""
        assert self.strips is not None
        register = p * self.piece
        index = self.strips.index(value, register)
        if index is not None:
            return self.em.value(index)
        return self.strips.condition(value.owner, register, lambda v: self.at(v, p))

    def _of_tile(self, tile: Load, dims: list[int | None], p: int) -> ir.Value:
        """A piece of a tile in memory, which is read as what neighbours read of the same tensor is."""
        assert self.strips is not None
        view, last = tile.view, self.layout.rank - 1
        indices = [self.strips.offset(o) for o in view.offsets]
        for place, d in zip(view.dims, dims, strict=True):
            if d is not None and d != last:
                indices[place] = indices[place] + self.strips.coordinate(d, p * self.piece)
        start, _ = access.coordinate(self.em, self.layout, last, p * self.piece, self.sizes[last], self.piece, False)
        place = view.dims[dims.index(last)]
        first = [self.em.value(self.strips.value(i)) for i in indices]
        first[place] = self.em.value(self.em.add(start, view.offsets[place]))
        return self._loaded(view, first, tile.element)

    def _loaded(self, view: access.View, first: list[ir.Value], element: ir.Type) -> ir.Value:
        """Neighbours along the last dimension, loaded once in a strip."""
        known = {} if self.strips is None else self.strips.loads
        key = view.base, tuple(first)
        if key not in known:
            loads = [access.load_elements(self.em, view, list(first), self.piece)]
            known[key] = access.join(self.em, loads, self.piece, element, self.piece)
        return known[key]

    def _argument(self, i: int, p: int, wide: bool) -> ir.Value:
        frag, dims = self.operands[i]
        if isinstance(frag, Load):
            return self._of_tile(frag, dims, p)
        table = self._registers[i]
        assert table is not None  # operands that are read have one
        count = self.piece if wide else 1
        registers = []
        for k in range(count):
            row = self.layout.reg_offsets[p * self.piece + k]
            registers.append(table[tuple(0 if d is None else int(row[d]) for d in dims)])
        return frag.read(registers)

    def _index(self, dim: int, p: int) -> ir.Value:
        """The (clamped) coordinate along a dimension."""
        em = self.em
        count = self.piece if dim in self.varying else 1
        values = []
        for k in range(count):
            c, _ = access.coordinate(em, self.layout, dim, p * self.piece + k, self.sizes[dim], 1, False)
            values.append(em.value(c))
        return em.pack(values)

    def _unpacked(self, op, p: int) -> ir.Value | None:
        """An index, a shift or a word, over the registers of a piece; None for another value."""
        assert self.unpacking is not None
        registers = [p * self.piece + k for k in range(self.piece if self.wide(op.result) else 1)]
        if op.name == "arith.shrui" and self.unpacking.in_halves(op, registers):
            return halves(self.em, self.at(op.operands[0], p), len(registers))
        if op.name != "tensor.extract":
            forms = [self.unpacking.form(op.result, r) for r in registers]
            return None if None in forms else self.unpacking.pack(forms, op.result.type)  # type: ignore[arg-type]
        where = [[self.unpacking.form(v, r) for v in list(op.operands)[1:]] for r in registers]
        if any(f is None for forms in where for f in forms):
            return None
        rank, source = len(op.operands) - 1, self.scalars(op.operands[0])
        staged = isinstance(source, access.View)
        view = source if staged else access.View(source, [0] * rank, list(range(rank)))
        # A tile in shared memory is whole, and what lies beyond the weight is zeros.
        exact = staged or self.unpacking.exact(self.deps[op.result])
        words = str(view.element) == "i32"
        together = words and self.together(op, RUN if not staged else 2)
        loads = [self.unpacking.load(view, forms, exact, together) for forms in where]  # type: ignore
        return access.join(self.em, loads, 1, op.result.type, len(loads))

    def together(self, op, least: int) -> bool:
        """Whether a thread has elements of `least` words or more of a run, so that these are loaded together."""
        key = ("together", op.result)
        if key not in self.memo:
            unpacking = self.unpacking
            assert unpacking is not None
            registers = range(self.layout.num_regs)
            found = {tuple(unpacking.form(v, r) for v in list(op.operands)[1:]) for r in registers}
            runs = {(*forms[:-1], *unpacking.in_run(forms[-1])[:1]) for forms in found}  # type: ignore
            self.memo[key] = len(found) >= least * len(runs)
        return self.memo[key]

    def _gather(self, op, p: int) -> ir.Value:
        em, wide = self.em, self.wide(op.result)
        base = self.scalars(op.operands[0])
        index_values = list(op.operands)[1:]
        element = op.result.type
        view = access.View(base, [0] * len(index_values), [])
        indices = [self.at(v, p) for v in index_values]
        if not wide:
            return access.join(em, [access.load_elements(em, view, indices, 1)], 1, element, 1)
        offset = self._offset(index_values, view)
        if offset is not None:
            # The whole piece is clamped into the tile, not each of its elements.
            last = self.layout.rank - 1
            start, _ = access.coordinate(em, self.layout, last, p * self.piece, self.sizes[last], self.piece, False)
            return self._loaded(view, [*indices[:-1], em.value(em.add(start, offset))], element)
        run = self._run(index_values, p, view)
        if run is not None:
            first = [em.extract(v, 0) if self.wide(w) else v for v, w in zip(indices, index_values, strict=True)]
            return self._loaded(view, [*first[:-1], em.value(run)], element)
        together = None if self.strips is not None else covered(self, op.operation, p, view, indices)
        if together is not None:
            return together
        loads = []
        for k in range(self.piece):
            lane_indices = [em.extract(v, k) for v in indices]
            loads.append(access.load_elements(em, view, lane_indices, 1))
        return access.join(em, loads, 1, element, self.piece)

    def _run(self, index_values: list[ir.Value], p: int, view: access.View) -> IndexValue | None:
        """Where an aligned run of the last dimension begins that a piece's gather reads, as it does of the channels of
        a convolution's windows; None where it may read others."""
        if self.places is None or not self._fits(view):
            return None
        *rows, last = index_values
        registers = [p * self.piece + k for k in range(self.piece)]
        forms = [self.places.form(last, r) for r in registers]
        start = forms[0]
        if start is None or any(form is None or form != start + k for k, form in enumerate(forms)):
            return None
        if any(n % self.piece for n in (start.const, *start.terms.values())):
            return None
        if not all(self.places.is_same(v, registers[0], r) for v in rows for r in registers[1:]):
            return None
        value = self.places.value(start)
        return value if self.places.exact(self.deps[last]) else self.em.min(value, view.shape[-1] - self.piece)

    def _fits(self, view: access.View) -> bool:
        """Whether a piece is one load, and divides the rows of a tensor."""
        bytes_ = self.piece * element_bytes(view.element)
        return view.shape[-1] % self.piece == 0 and bytes_ <= 16 and bytes_ & (bytes_ - 1) == 0

    def _offset(self, index_values: list[ir.Value], view: access.View) -> IndexValue | None:
        """Where the tile begins along the last dimension, if a piece's gather reads consecutive, aligned elements: only
        its last index varies, and that is the last coordinate, or behind that of the tile's begin. Else None."""
        if any(self.wide(v) for v in index_values[:-1]):
            return None
        offset = self._added_to_coordinate(index_values[-1])
        size = self.sizes[-1]
        aligned = isinstance(size, int) and size % self.piece == 0 and self._fits(view)
        return offset if aligned and offset is not None and self.em.divisor(offset) % self.piece == 0 else None

    def _added_to_coordinate(self, index: ir.Value) -> IndexValue | None:
        """What of outside of the body an index adds to a coordinate; None for another index."""
        if isinstance(index.owner, ir.Block):
            return None
        if index.owner.name == "linalg.index":
            return 0
        if index.owner.name != "arith.addi":
            return None
        coordinates = [v for v in index.owner.operands if v in self.deps and _is_coordinate(v)]
        outside = [v for v in index.owner.operands if v not in self.deps]
        return self.scalars(outside[0]) if coordinates and outside else None


def _is_coordinate(value: ir.Value) -> bool:
    return not isinstance(value.owner, ir.Block) and value.owner.name == "linalg.index"


def _is_read_in_strips(tile: Tile, dims: list[int | None], space: Layout, sizes: list[IndexValue]) -> bool:
    """Whether a body with strips reads an operand from memory piece by piece: one of all of its rows and columns, of
    which a piece is an access."""
    last, piece = space.rank - 1, space.piece
    if not isinstance(tile, Load) or tile.view.shared is not None or last not in dims or tile.view.windows is not None:
        return False
    view, size = tile.view, sizes[last]
    place = view.dims[dims.index(last)]
    bytes_ = piece * element_bytes(view.element)
    whole = isinstance(size, int) and size % piece == 0 and view.shape[-1] % piece == 0
    aligned = tile.em.divisor(view.offsets[place]) % piece == 0 and bytes_ <= 16 and bytes_ & (bytes_ - 1) == 0
    return whole and aligned and place == len(view.shape) - 1


class Elementwise(Marked):
    """All-parallel `linalg.generic`, result `number`; the evaluations are shared among the results of one op."""

    def __init__(self, em, op, number: int, element, shape, sizes, operands: list, space, scalars, shared: dict):
        super().__init__(em, element, shape, sizes)
        # All results of one op are built at one place: they share evaluations.
        self.marker = shared.setdefault("marker", self.marker)
        self.op, self.number, self.operands, self.scalars, self.shared = op, number, operands, scalars, shared
        self.space_shape, self.space_sizes = space
        self.out_dims = map_dims(ir.AffineMapAttr(_maps(op)[_num_inputs(op) + number]).value)

    @property
    def unpacks(self) -> bool:
        """Whether this is a packed weight: cheap to compute in any layout, by whoever needs it."""
        return DEQUANTIZE in self.op.attributes

    def unpacks_staged(self) -> bool:
        """Whether this is a packed weight whose words lie in shared memory."""
        reads = [o.operation for o in self.op.regions[0].blocks[0].operations if o.operation.name == "tensor.extract"]
        return self.unpacks and any(isinstance(self.scalars(r.operands[0]), access.View) for r in reads)

    def natural(self) -> Layout | None:
        """The layout of the first operand that covers the whole iteration space and has one."""
        rank = len(self.space_shape)
        for bound in self.operands:
            if bound is None:
                continue
            tile, dims = bound
            covered = {d for d in dims if d is not None}
            if all(d in covered or self.space_shape[d] == 1 for d in range(rank)):
                layout = tile.natural()
                if layout is not None:
                    return layout.lift(dims, rank).project(self.out_dims)
        return None

    def scaled(self) -> Tile | None:
        """The first operand that has the result's own shape and order: what this is a rescaling of."""
        for bound in self.operands:
            if bound is not None and bound[1] == self.out_dims:
                return bound[0]
        return None

    def computed_in(self, layout: Layout) -> Fragment:
        """The tile, whose operands change their layouts, not itself: a transposition's result would be taken apart."""
        with self.place():
            return self._evaluate(layout.lift(self.out_dims, len(self.space_shape)))[self.number].get(layout)

    def build(self, layout: Layout) -> Fragment:
        natural = self.natural()
        own = natural if natural is not None else layout
        space = own.lift(self.out_dims, len(self.space_shape))
        if space not in self.shared:
            self.shared[space] = self._evaluate(space)
        return self.shared[space][self.number].get(layout)

    def body(self, space: Layout) -> Body:
        """An evaluation over a layout of the iteration space."""
        bound: list = []
        for o in self.operands:
            if o is None or STRIP in self.op.attributes and _is_read_in_strips(o[0], o[1], space, self.space_sizes):
                bound.append(o)
            else:
                bound.append((_operand(o[0], o[1], space.project(o[1])), o[1]))
        return Body(self.em, self.op, space, self.space_sizes, bound, self.scalars)

    def _evaluate(self, space: Layout) -> list[Fragment]:
        body = self.body(space)
        maps, inputs = _maps(self.op), _num_inputs(self.op)
        out = []
        for i, value in enumerate(body.yields()):
            pieces = body.fragment_pieces(value)
            dims = map_dims(ir.AffineMapAttr(maps[inputs + i]).value)
            layout = space.project(dims)
            t = value.type
            shape = [self.space_shape[d] if d is not None else 1 for d in dims]
            sizes = [self.space_sizes[d] if d is not None else 1 for d in dims]
            if layout == space:
                out.append(Fragment(self.em, t, shape, sizes, layout, pieces, body.piece))
                continue
            frag = Fragment(self.em, t, self.space_shape, self.space_sizes, space, pieces, body.piece)
            table = space.registers
            registers = []
            for row in layout.reg_offsets:
                full = [0] * space.rank
                for k, d in enumerate(dims):
                    if d is not None:
                        full[d] = int(row[k])
                registers.append(table[tuple(full)])
            p = layout.piece
            permuted = [frag.read(registers[j : j + p]) for j in range(0, len(registers), p)]
            out.append(Fragment(self.em, t, shape, sizes, layout, permuted, p))
        return out


def _operand(tile: Tile, dims: list[int | None], layout: Layout) -> Fragment:
    """An operand in a layout; one that is read across its rows comes through shared memory."""
    walked = [d for d in dims if d is not None]
    own = loaded_by_rows(tile, layout) if walked != sorted(walked) else None
    return tile.get(layout) if own is None else tile.get(own).get(layout)


def _maps(op) -> list:
    return list(ir.ArrayAttr(op.attributes["indexing_maps"]))


def _num_inputs(op) -> int:
    return list(ir.DenseI32ArrayAttr(op.attributes["operandSegmentSizes"]))[0]
