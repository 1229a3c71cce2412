"""What is known at a point of a kernel while it is emitted: the values of a tile program, by what they are by now."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from mlirc.mlir import ir
from mlirc.passes.distribute.emit.emitter import Emitter, IndexValue, Unsupported
from mlirc.passes.distribute.memory import access, slices
from mlirc.passes.distribute.products.staging import staged
from mlirc.passes.distribute.program.program import Program
from mlirc.passes.distribute.tiles.values import Load, Splat, Tile, elementwise_op


class Scope:
    """What is known at a point of the kernel: scalars, tiles and views of global memory, by `tiles`-level value.
    `lowerings`: what lowers an op, by its name, or its dialect's."""

    def __init__(self, em: Emitter, program: Program, lowerings: Lowerings, parent: Scope | None = None):
        self.em, self.program, self.lowerings, self.parent = em, program, lowerings, parent
        self.scalars: dict[ir.Value, IndexValue] = {}
        self.tiles: dict[ir.Value, Tile] = {}
        self.views: dict[ir.Value, tuple[access.View, list[int], list[IndexValue]]] = {}

    def inside(self) -> Scope:
        """A scope of a region at this point."""
        return Scope(self.em, self.program, self.lowerings, self)

    def of_team(self) -> Scope:
        """A scope of one of several teams, whose program is its own."""
        return Scope(self.em, self.program.of_team(), self.lowerings, self)

    def _find(self, table: str, value: ir.Value):
        scope: Scope | None = self
        while scope is not None:
            found = getattr(scope, table).get(value)
            if found is not None:
                return found
            scope = scope.parent
        return None

    def scalar(self, value: ir.Value) -> IndexValue:
        found = self._find("scalars", value)
        if found is None:
            raise Unsupported(f"scalar {value} is not available in the kernel")
        return found

    def view(self, value: ir.Value):
        return self._find("views", value)

    def known_tile(self, value: ir.Value) -> Tile | None:
        """A tensor as a tile, if it is one by now."""
        found: Tile | None = self._find("tiles", value)
        return found

    def tile(self, value: ir.Value) -> Tile:
        """A tensor (or scalar operand) as a tile."""
        found = self.known_tile(value)
        if found is not None:
            found.complete()
            return found
        if not isinstance(value.type, ir.RankedTensorType):
            return Splat(self.em, value.type, [], [], self.em.value(self.scalar(value)))
        if self.view(value) is not None:
            raise Unsupported("windows of an image, which im2col copies alone read: stage(tiled, copy='tma')")
        raise Unsupported(f"tensor {value.type} is neither a tile nor a kernel argument")

    def bind_view(self, value: ir.Value, view: access.View, shape: list[int], sizes: list[IndexValue]) -> None:
        """Makes a tensor a window of global memory: as a tile, a load at the place where it is defined; an image's
        windows are no tile."""
        self.views[value] = (view, shape, sizes)
        if view.windows is not None:
            return
        self.tiles[value] = Load(self.em, ir.RankedTensorType(value.type).element_type, shape, sizes, view)

    def body_value(self, value: ir.Value):
        """A value that a linalg body captures: a scalar, or the memref of a tensor that it gathers from; of a tile in
        shared memory, as a ring has it, the window of one."""
        if isinstance(value.type, ir.RankedTensorType):
            tile = staged(found) if (found := self.known_tile(value)) is not None else None
            if tile is not None:
                return tile.view
            view = self.view(value)
            if view is None or view[0].windows is not None or any(o != 0 for o in view[0].offsets):
                raise Unsupported("a body gathers from a tensor that is no kernel argument; use the generic script")
            return view[0].base
        return self.em.value(self.scalar(value))

    # -- ops

    def lower(self, op) -> None:
        """Lowers one op of a tile program."""
        operation = op.operation
        try:
            with op.location:
                if self.em.pipeline.lower(self, operation):
                    return
                lowering = self.lowerings.get(operation.name) or self.lowerings.get(operation.name.split(".")[0])
                if lowering is None:
                    what = f"{operation.name} inside a tile program; use the generic script for this kernel"
                    raise Unsupported(what)
                lowering(self, operation)
        except Unsupported as e:
            e.at(operation)
            raise

    def affine(self, op, lookup) -> IndexValue:
        """An affine op with its operands looked up by `lookup`."""
        m = ir.AffineMapAttr(op.attributes["map"]).value
        values = [lookup(v) for v in op.operands]
        dims, symbols = values[: m.n_dims], values[m.n_dims :]
        results = [self.em.affine(e, dims, symbols) for e in m.results]
        out = results[0]
        for r in results[1:]:
            out = self.em.min(out, r) if op.name == "affine.min" else self.em.max(out, r)
        return out

    def scalar_of(self, op, lookup) -> list[IndexValue]:
        """An arith op on scalars; index sums, products and minima keep what is known about divisibility."""
        em = self.em
        index = op.results and isinstance(op.results[0].type, ir.IndexType)
        if op.name == "arith.constant":
            attr = op.attributes["value"]
            return [ir.IntegerAttr(attr).value if index else em.constant(attr)]
        operands = [lookup(v) for v in op.operands]
        known = {
            "arith.addi": em.add,
            "arith.subi": em.sub,
            "arith.muli": em.mul,
            "arith.minsi": em.min,
            "arith.maxsi": em.max,
        }
        if index and op.name in known:
            return [known[op.name](*operands)]
        attributes = {name: op.attributes[name] for name in op.attributes}
        return list(elementwise_op(op.name, [r.type for r in op.results], [em.value(v) for v in operands], attributes))

    def shape_of(self, t: ir.RankedTensorType, dynamic: list[ir.Value]) -> tuple[list[int], list[IndexValue]]:
        """Bounds and exact sizes of a tensor type whose dynamic extents are the given values."""
        shape, sizes, rest = [], [], list(dynamic)
        for n in t.shape:
            if n != slices.DYNAMIC:
                shape.append(n)
                sizes.append(n)
                continue
            value = rest.pop(0)
            limit = slices.bound(value)
            size = self.scalar(value)
            if isinstance(size, int):
                limit = size if limit is None else min(limit, size)
            if limit is None:
                raise Unsupported(
                    f"a tile {t} whose dynamic extent has no constant bound (an affine.min with a constant)"
                )
            shape.append(limit)
            sizes.append(size)
        return shape, sizes

    def slice_view(self, op, lookup):
        """The view, bounds and sizes of a slice of global memory; None for a slice of a tile."""
        source = self.view(op.operands[0])
        if source is None:
            return None
        base, _, _ = source
        offsets, bounds, sizes = slices.slice_geometry(op, lookup)
        kept = slices.kept_dims(op, op.results[0])
        moved = list(base.offsets)
        for i, o in enumerate(offsets):
            moved[base.dims[i]] = self.em.add(moved[base.dims[i]], o)
        view = access.View(base.base, moved, [base.dims[i] for i in kept], windows=base.windows)
        return view, [bounds[i] for i in kept], [sizes[i] for i in kept]


Lowerings = Mapping[str, Callable[["Scope", ir.Operation], None]]
