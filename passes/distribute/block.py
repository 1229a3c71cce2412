"""Lowers the body of one `scf.forall` (or of an `scf.for` inside it) op by op."""

from __future__ import annotations

from mlirc.ir.tensors import element_bytes
from mlirc.mlir import ir
from mlirc.passes.distribute import contraction, memory, products, reduction, slices
from mlirc.passes.distribute.elementwise import Elementwise, map_dims
from mlirc.passes.distribute.emitter import Emitter, IndexValue, Unsupported
from mlirc.passes.distribute.layout import Layout, pow2_ceil, pow2_divisor, row_layout
from mlirc.passes.distribute.values import Load, Reshaped, Splat, Tile, elementwise_op


class Scope:
    """What is known at a point of the kernel: scalars, tiles and views of global memory, by `tiles`-level value."""

    def __init__(self, em: Emitter, parent: Scope | None = None):
        self.em, self.parent = em, parent
        self.scalars: dict[ir.Value, IndexValue] = {}
        self.tiles: dict[ir.Value, Tile] = {}
        self.views: dict[ir.Value, tuple[memory.View, list[int], list[IndexValue]]] = {}

    def inside(self) -> Scope:
        """A scope of a region at this point."""
        return Scope(self.em, self)

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

    def tile(self, value: ir.Value) -> Tile:
        """A tensor (or scalar operand) as a tile."""
        found = self._find("tiles", value)
        if found is not None:
            return found
        if not isinstance(value.type, ir.RankedTensorType):
            return Splat(self.em, value.type, [], [], self.em.value(self.scalar(value)))
        raise Unsupported(f"tensor {value.type} is neither a tile nor a kernel argument")

    def bind_view(self, value: ir.Value, view: memory.View, shape: list[int], sizes: list[IndexValue]) -> None:
        """Makes a tensor a window of global memory: as a tile, a load at the place where it is defined."""
        self.views[value] = (view, shape, sizes)
        self.tiles[value] = Load(self.em, ir.RankedTensorType(value.type).element_type, shape, sizes, view)

    def body_value(self, value: ir.Value):
        """A value that a linalg body captures: a scalar, or the memref of a tensor that it gathers from."""
        if isinstance(value.type, ir.RankedTensorType):
            view = self.view(value)
            if view is None or any(o != 0 for o in view[0].offsets):
                raise Unsupported("a body gathers from a tensor that is no kernel argument; use the generic script")
            return view[0].base
        return self.em.value(self.scalar(value))

    # -- ops

    def lower(self, op) -> None:
        """Lowers one op of a tile program."""
        try:
            with op.location:
                self._lower(op, op.operation.name)
        except Unsupported as e:
            e.at(op.operation)
            raise

    def _lower(self, op, name: str) -> None:
        if name == "arith.constant" and isinstance(op.results[0].type, ir.RankedTensorType):
            self._dense(op)
        elif name in ("affine.apply", "affine.min", "affine.max"):
            self.scalars[op.results[0]] = self.affine(op.operation, self.scalar)
        elif name.split(".")[0] in ("arith", "math"):
            self._scalar_op(op.operation)
        elif name == "tensor.empty":
            self._empty(op)
        elif name == "tensor.dim":
            self._dim(op)
        elif name == "tensor.extract_slice":
            self._extract_slice(op.operation)
        elif name in ("tensor.expand_shape", "tensor.collapse_shape"):
            self._reshape(op.operation)
        elif name == "tensor.cast":
            self._alias(op)
        elif name == "tensor.extract":
            self._extract(op)
        elif name == "linalg.fill":
            out = self.tile(op.operands[1])
            scalar = self.em.value(self.scalar(op.operands[0]))
            self.tiles[op.results[0]] = Splat(self.em, out.element, out.shape, out.sizes, scalar)
        elif name == "linalg.generic":
            self._generic(op.operation)
        elif name == "scf.for":
            from mlirc.passes.distribute import loop

            loop.lower(self, op.operation)
        else:
            raise Unsupported(f"{name} inside a tile program; use the generic script for this kernel")

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

    def _scalar_op(self, op) -> None:
        for r, v in zip(op.results, self.scalar_of(op, self.scalar), strict=True):
            self.scalars[r] = v

    def _dense(self, op) -> None:
        t = ir.RankedTensorType(op.results[0].type)
        attr = ir.DenseElementsAttr(op.attributes["value"])
        if not attr.is_splat:
            raise Unsupported("a constant tensor that is not a splat inside a tile program; pass it as an argument")
        scalar = self.em.constant(attr.get_splat_value())
        self.tiles[op.results[0]] = Splat(self.em, t.element_type, list(t.shape), list(t.shape), scalar)

    def _shape(self, t: ir.RankedTensorType, dynamic: list[ir.Value]) -> tuple[list[int], list[IndexValue]]:
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

    def _empty(self, op) -> None:
        t = ir.RankedTensorType(op.results[0].type)
        shape, sizes = self._shape(t, list(op.operands))
        self.tiles[op.results[0]] = Splat(self.em, t.element_type, shape, sizes, self._undefined(t.element_type))

    def _undefined(self, t: ir.Type) -> ir.Value:
        zero = ir.IntegerAttr.get(t, 0) if isinstance(t, ir.IntegerType | ir.IndexType) else ir.FloatAttr.get(t, 0.0)
        return self.em.constant(zero)

    def _dim(self, op) -> None:
        source, index = op.operands
        position = self.scalar(index)
        view = self.view(source)
        sizes = view[2] if view is not None else self.tile(source).sizes
        self.scalars[op.results[0]] = sizes[position]

    def _alias(self, op) -> None:
        view = self.view(op.operands[0])
        if view is not None:
            self.bind_view(op.results[0], *view)
        else:
            self.tiles[op.results[0]] = self.tile(op.operands[0])

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
        view = memory.View(base.base, moved, [base.dims[i] for i in kept])
        return view, [bounds[i] for i in kept], [sizes[i] for i in kept]

    def _extract_slice(self, op) -> None:
        found = self.slice_view(op, self.scalar)
        if found is not None:
            self.bind_view(op.results[0], *found)
            return
        tile = self.tile(op.operands[0])
        offsets, bounds, sizes = slices.slice_geometry(op, self.scalar)
        if any(o != 0 for o in offsets) or any(b != n for b, n in zip(bounds, tile.shape, strict=True)):
            raise Unsupported("a part of a tile: tiles are only cut from kernel arguments")
        kept = slices.kept_dims(op, op.results[0])
        if len(kept) == len(bounds):
            self.tiles[op.results[0]] = tile
            return
        groups = [[i] for i in kept]
        for i in range(len(bounds)):
            if i not in kept:
                near = max((g for g in range(len(kept)) if kept[g] < i), default=0)
                groups[near] = sorted([*groups[near], i]) if groups else []
        shape, exact = [bounds[i] for i in kept], [sizes[i] for i in kept]
        self.tiles[op.results[0]] = Reshaped(self.em, tile, shape, exact, groups, expand=False)

    def _reshape(self, op) -> None:
        groups = [[ir.IntegerAttr(i).value for i in g] for g in ir.ArrayAttr(op.attributes["reassociation"])]
        expand = op.name == "tensor.expand_shape"
        source, result = op.operands[0], op.results[0]
        t = ir.RankedTensorType(result.type)
        view = self.view(source)
        if view is not None and self._reshape_view(view, groups, expand, t, result):
            return
        tile = self.tile(source)
        wide = list(t.shape) if expand else tile.shape
        exact = self._reshaped_sizes(tile, groups, expand, t)
        shape = [n if isinstance(n, int) else self._limit(tile, groups, expand, i, wide) for i, n in enumerate(exact)]
        self.tiles[result] = Reshaped(self.em, tile, shape, exact, groups, expand)

    def _reshaped_sizes(self, tile: Tile, groups, expand: bool, t) -> list[IndexValue]:
        if not expand:
            out: list[IndexValue] = []
            for g in groups:
                total: IndexValue = 1
                for d in g:
                    total = self.em.mul(total, tile.sizes[d])
                out.append(total)
            return out
        out = [n for n in t.shape]
        for i, g in enumerate(groups):
            unknown = [d for d in g if t.shape[d] == slices.DYNAMIC]
            if len(unknown) == 1 and all(t.shape[d] == 1 for d in g if d != unknown[0]):
                out[unknown[0]] = tile.sizes[i]
            elif unknown:
                raise Unsupported("expanding a dynamic tile dimension into several")
        return out

    @staticmethod
    def _limit(tile: Tile, groups, expand: bool, i: int, wide: list[int]) -> int:
        if expand:
            return next(tile.shape[k] for k, g in enumerate(groups) if i in g)
        out = 1
        for d in groups[i]:
            out *= tile.shape[d]
        return out

    def _reshape_view(self, view, groups, expand: bool, t, result) -> bool:
        """Reshapes of global memory that only add or drop dimensions of size 1 stay views."""
        where, shape, sizes = view
        if expand:
            flat: list[int | None] = [None] * t.rank
            for i, g in enumerate(groups):
                real = [d for d in g if t.shape[d] != 1]
                if len(real) > 1:
                    return False
                flat[real[0] if real else g[0]] = i
            if any(i is None for i in flat):
                # A dimension of size 1 has no memref dimension of its own: read it as a reshaped tile.
                return False
            order = [i for i in flat if i is not None]
        else:
            order = []
            for g in groups:
                real = [d for d in g if shape[d] != 1]
                if len(real) > 1:
                    return False
                order.append(real[0] if real else g[0])
        new = memory.View(where.base, where.offsets, [where.dims[i] for i in order], where.swizzle)
        self.bind_view(result, new, [shape[i] for i in order], [sizes[i] for i in order])
        return True

    def _extract(self, op) -> None:
        view = self.view(op.operands[0])
        if view is None:
            raise Unsupported("tensor.extract from a tile outside of a linalg body")
        where = view[0]
        indices = list(where.offsets)
        for d, v in zip(where.dims, list(op.operands)[1:], strict=True):
            indices[d] = self.em.add(indices[d], self.scalar(v))
        loaded = memory.load_elements(self.em, where, indices, 1)
        self.scalars[op.results[0]] = memory.join(self.em, [loaded], 1, op.results[0].type, 1)

    # -- linalg

    def _generic(self, op) -> None:
        segments = list(ir.DenseI32ArrayAttr(op.attributes["operandSegmentSizes"]))
        inputs = segments[0]
        iterators = [str(a) for a in ir.ArrayAttr(op.attributes["iterator_types"])]
        if any("reduction" in i for i in iterators):
            info = products.match(op)
            if info is not None and inputs == 2:
                product = contraction.Product(
                    self.em, op, info, [self.tile(v) for v in info.arrange(list(op.operands))]
                )
                self.tiles[op.results[0]] = product.run()
                return
        maps = [map_dims(ir.AffineMapAttr(m).value) for m in ir.ArrayAttr(op.attributes["indexing_maps"])]
        operands = [(self.tile(v), dims) for v, dims in zip(op.operands, maps, strict=True)]
        shape, sizes = self._space(len(iterators), operands)
        if any("reduction" in i for i in iterators):
            self._reduction(op, inputs, operands, shape, sizes, iterators)
        else:
            self._elementwise(op, inputs, operands, shape, sizes)

    def _space(self, rank: int, operands) -> tuple[list[int], list[IndexValue]]:
        shape: list[int] = [0] * rank
        sizes: list[IndexValue | None] = [None] * rank
        for tile, dims in operands:
            for i, d in enumerate(dims):
                if d is None:
                    continue
                if sizes[d] is None or (isinstance(tile.sizes[i], int) and not isinstance(sizes[d], int)):
                    shape[d], sizes[d] = tile.shape[i], tile.sizes[i]
        if any(s is None for s in sizes):
            raise Unsupported("an iteration dimension that no operand shows")
        return shape, sizes  # type: ignore[return-value]

    def default_layout(self, op, shape: list[int], operands) -> Layout:
        """Row-major with 16-byte accesses, or `mlirc.vector` elements per access."""
        vector = asked = self.em.taken.take(op, "vector", 0)
        if not asked:
            widths = [element_bytes(t.element) for t, dims in operands if t.shape and len(shape) - 1 in dims]
            wide = [w for w in widths if w > 1] or widths or [4]
            vector = min(16 // min(wide), 8)
        if not shape:
            if asked > 1:
                self.em.taken.refuse(op, "vector", "it has one element")
            return Layout(())
        vector = min(vector, pow2_divisor(shape[-1]))
        # Halve the vector while rows would leave lanes on padding.
        while vector > 1 and _waste(shape[-1], vector) > _waste(shape[-1], vector // 2):
            vector //= 2
        if asked and vector < asked:
            self.em.taken.refuse(op, "vector", f"rows of {shape[-1]} elements take at most {vector} at a time here")
        return row_layout(tuple(shape), self.em.warps, vector)

    def _reduction(self, op, inputs: int, operands, shape, sizes, iterators) -> None:
        reduced = [d for d, i in enumerate(iterators) if "reduction" in i]
        layout = None
        for tile, dims in operands[:inputs]:
            natural = tile.natural()
            covered = {d for d in dims if d is not None}
            if natural is not None and all(d in covered or shape[d] == 1 for d in range(len(shape))):
                layout = natural.lift(dims, len(shape))
                break
        if layout is None:
            layout = self.default_layout(op, shape, operands)
        results = reduction.reduce_generic(
            self.em, op, inputs, operands[:inputs], operands[inputs:], (layout, shape, sizes), reduced, self.body_value
        )
        for value, frag in zip(op.results, results, strict=True):
            self.tiles[value] = frag

    def _elementwise(self, op, inputs: int, operands, shape, sizes) -> None:
        block = op.regions[0].blocks[0]
        bound_operands: list = []
        for i, (a, o) in enumerate(zip(block.arguments, operands, strict=True)):
            bound_operands.append(o if i < inputs or list(a.uses) else None)
        shared: dict = {}
        for i, value in enumerate(op.results):
            tile = operands[inputs + i][0]
            self.tiles[value] = Elementwise(
                self.em,
                op,
                i,
                tile.element,
                tile.shape,
                tile.sizes,
                bound_operands,
                (shape, sizes),
                self.body_value,
                shared,
            )

    # -- results

    def _chooser(self, insert):
        """The op whose attributes say how a result is stored: the one that made it, where the schedule demands it."""
        owner = insert.operands[0].owner
        while not isinstance(owner, ir.Block) and owner.name in ("tensor.expand_shape", "tensor.collapse_shape"):
            owner = owner.operands[0].owner
        demanded = "vector" in self.em.taken.wanted and not isinstance(owner, ir.Block)
        return owner.operation if demanded and owner.name == "linalg.generic" else insert

    def store(self, op, targets: dict) -> None:
        """tensor.parallel_insert_slice into a shared output."""
        tile = self.tile(op.operands[0])
        base, _, _ = targets[op.operands[1]]
        offsets, bounds, sizes = slices.slice_geometry(op, self.scalar)
        kept = slices.kept_dims(op, op.operands[0])
        layout = tile.natural()
        if layout is None:
            layout = self.default_layout(self._chooser(op), tile.shape, [(tile, list(range(len(tile.shape))))])
        frag = tile.get(layout)
        moved = list(base.offsets)
        for i, o in enumerate(offsets):
            moved[base.dims[i]] = self.em.add(moved[base.dims[i]], o)
        view = memory.View(base.base, moved, [base.dims[i] for i in kept])
        if self.em.tensor_stores is None or not self.em.tensor_stores.store(op, frag, view):
            memory.store(self.em, frag, view)


def _waste(extent: int, vector: int) -> float:
    """Padded over real elements when a row is cut into accesses over up to 32 lanes."""
    chunks = -(-extent // vector)
    lanes = min(32, pow2_ceil(chunks))
    return -(-chunks // lanes) * lanes * vector / extent
