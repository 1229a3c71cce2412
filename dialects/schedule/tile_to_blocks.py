"""`schedule.tile_to_blocks`: turns a kernel's whole group of linalg ops into one `scf.forall` over blocks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from mlirc.dialects.schedule import _build
from mlirc.dialects.schedule._base import LINALG, PayloadError, transform_op
from mlirc.dialects.schedule._build import Size
from mlirc.dialects.schedule._dims import Dims, Structure, producer, structured_ops
from mlirc.ir.tensors import shape_of
from mlirc.mlir import ir, linalg, scf


@dataclass
class Cut:
    """How one dimension class is cut: block-local offset and size."""

    offset: Size = 0
    size: Size = 0
    dropped: bool = False  # size 1 and left out of the rank of tiles


@dataclass
class Tiler:
    """Clones ops onto tiles: `tiles[class]` says how each dimension is cut; `values` maps values to their tiles."""

    dims: Dims
    tiles: dict[int, Cut]
    values: dict[ir.Value, ir.Value] = field(default_factory=dict)
    groups: dict[tuple[int, int], Size] = field(default_factory=dict)  # offsets by class and factor

    def share(self) -> None:
        """Computes the offsets of what is read in groups, once, at the insertion point."""
        for i, s in enumerate(self.dims.structures):
            for c in (c for m in s.maps for c in self.dims.map_classes(i, m)):
                offset = self.tiles[c].offset if isinstance(c, _build.Grouped) else 0
                if isinstance(c, _build.Grouped) and not isinstance(offset, int):
                    key = int(c), c.factor
                    if key not in self.groups:
                        self.groups[key] = _build.applied(_build.Grouped(0, c.factor).expr(), offset)

    def cut(self, classes: Sequence[int | None]) -> tuple[list[Size], list[Size], list[int]]:
        """Offsets, sizes and dropped positions of a value with these dimension classes."""
        offsets: list[Size] = []
        sizes: list[Size] = []
        dropped = []
        for j, c in enumerate(classes):
            tile = Cut(0, 1) if c is None else self.tiles[c]
            if isinstance(c, _build.Grouped):
                tile = self._shared(c, tile)
            offsets.append(tile.offset)
            sizes.append(tile.size)
            if tile.dropped:
                dropped.append(j)
        return offsets, sizes, dropped

    def _shared(self, c: _build.Grouped, tile: Cut) -> Cut:
        """Where an operand is cut that steps of a dimension share in groups."""
        if tile.offset == 0 and tile.size == self.dims.extent[c]:
            return Cut(0, tile.size // c.factor)
        if tile.size != 1:
            raise PayloadError(f"a dimension that is read in groups of {c.factor} is tiled by 1, or not at all")
        return Cut(self.groups.get((int(c), c.factor), 0), 1, tile.dropped)

    def operand(self, value: ir.Value, classes: Sequence[int | None], is_output: bool) -> ir.Value:
        if value in self.values or not isinstance(value.type, ir.RankedTensorType):
            return self.values.get(value, value)
        offsets, sizes, dropped = self.cut(classes)
        made_by = producer(value)
        if is_output and made_by is not None and made_by.name == "tensor.empty":
            kept = [s for j, s in enumerate(sizes) if j not in dropped]
            return _build.empty(kept, ir.RankedTensorType(value.type).element_type)
        # even a whole tensor is read through a slice: slices are the reads from global memory
        return _build.extract_slice(value, offsets, sizes, dropped)

    def clone(self, i: int) -> ir.Operation:
        """Adds op i on its tiles at the insertion point, taking the body from the original, which is left empty."""
        s, row = self.dims.structures[i], self.dims.of[i]
        classes = [self.dims.map_classes(i, m) for m in s.maps]
        n_in = len(s.inputs)
        operands = [self.operand(v, c, j >= n_in) for j, (v, c) in enumerate(zip(s.operands, classes, strict=True))]
        if s.op.name == "linalg.fill":
            with s.op.location:
                result = linalg.fill(operands[0], outs=[operands[1]])
            self.values[s.op.results[0]] = result
            return result.owner
        kept = [d for d, c in enumerate(row) if not self.tiles[c].dropped]
        position: dict[int, int | None] = {d: kept.index(d) if d in kept else None for d in range(len(row))}
        maps = [[_build.renumber(d, position) for d in m if d is None or d in kept] for m in s.maps]
        new = _build.generic(operands[:n_in], operands[n_in:], maps, [s.parallel[d] for d in kept], s.op.location)
        offsets = {d: self.tiles[c].offset for d, c in enumerate(row)}
        _build.take_body(new, s.op, position, {d: o for d, o in offsets.items() if not isinstance(o, int)})
        for old, result in zip(s.op.results, new.results, strict=True):
            self.values[old] = result
        return new

    def fill(self, forall: scf.ForallOp, location: ir.Location, erase: Callable[[ir.Operation], None]) -> None:
        """Moves all ops into the forall's body, whose results take the place of what escapes from them."""
        escaping = self.dims.escaping()
        with ir.InsertionPoint(forall.body), location:
            self.share()
            for i in range(len(self.dims.ops)):
                self.clone(i)
            terminator = scf.InParallelOp()
        with ir.InsertionPoint(terminator.region.blocks[0]), location:
            for value, shared in zip(escaping, forall.inner_iter_args, strict=True):
                offsets, extents, _ = self.cut(self.dims.value_classes(value))
                _build.parallel_insert_slice(self.values[value], shared, offsets, extents)
        for value, result in zip(escaping, forall.results, strict=True):
            value.replace_all_uses_with(result)
        for op in reversed(self.dims.ops):
            erase(op)


def check(dims: Dims, tiled: dict[int, int], root: Structure) -> None:
    """Raises PayloadError unless every tiled class may be split over blocks."""
    for c in tiled:
        if c in dims.reduced:
            raise PayloadError("cannot split a reduced dimension over blocks", root.op)
    for value in dims.escaping():
        missing = [c for c, size in tiled.items() if size < dims.extent[c] and c not in dims.value_classes(value)]
        if missing:
            raise PayloadError("a result lacks a dimension that is split over blocks", value.owner)


def mapping_of(n_loops: int) -> ir.Attribute:
    """Blocks for loops from outermost to innermost: z, y, x; linear ids (last is 0, the fastest) beyond three."""
    names = "zyx"[-n_loops:] if n_loops <= 3 else [f"linear_dim_{n_loops - 1 - i}" for i in range(n_loops)]
    return ir.Attribute.parse("[" + ", ".join(f"#gpu.block<{n}>" for n in names) + "]")


def tile(
    root: ir.Operation, sizes: Sequence[int], keep: Sequence[int], order: Sequence[int], ones: bool, erase
) -> ir.Operation:
    """Makes the forall and returns it; see `tile_to_blocks`."""
    block = root.operation.block
    ops = structured_ops(block)
    dims = Dims(ops)
    if root.operation.parent.name != "func.func":
        raise PayloadError(f"the root stands inside of an {root.operation.parent.name}: it is tiled already", root)
    if root.operation not in dims.ops:
        raise PayloadError("the root is a named op: generalize the function first", root)
    root_index = dims.ops.index(root.operation)
    s, row = dims.structures[root_index], dims.of[root_index]
    if len(sizes) != len(row):
        raise PayloadError(f"{len(sizes)} tile sizes for {len(row)} dimensions", root)
    if min(sizes, default=0) < 0:
        raise PayloadError(f"tile sizes {list(sizes)}: a size is 0 (the whole dimension) or more", root)
    for name, listed in (("keep", keep), ("order", order)):
        outside = [d for d in listed if not 0 <= d < len(row)]
        if outside or len(set(listed)) != len(listed):
            what = f"{outside[0]} is no dimension of 0 to {len(row) - 1}" if outside else "it lists a dimension twice"
            raise PayloadError(f"{name} {list(listed)}: {what}", root)
    if not any(sizes):
        raise PayloadError(f"tile sizes {list(sizes)}: tile one dimension at least", root)
    tiled = {row[d]: size for d, size in enumerate(sizes) if size}
    check(dims, tiled, s)
    listed = [row[d] for d in (order or range(len(row))) if sizes[d]]
    if set(listed) != set(tiled):
        raise PayloadError(f"order {list(order)}: it must list every tiled dimension once", root)
    # a launch has at least one block
    loops = listed if ones else [c for c in listed if tiled[c] < dims.extent[c]] or listed[-1:]
    escaping = dims.escaping()
    anchor = _move_users_behind(block, dims)
    with ir.InsertionPoint(anchor), root.location:
        outs = [_build.empty(list(shape_of(v)), ir.RankedTensorType(v.type).element_type) for v in escaping]
        bounds = [-(-dims.extent[c] // tiled[c]) for c in loops]
        zeros, steps = [0] * len(loops), [1] * len(loops)
        forall = scf.ForallOp(zeros, bounds, steps, outs, mapping=mapping_of(len(loops)))
    with ir.InsertionPoint(forall.body), root.location:
        kept = {row[d] for d in keep}
        alone = {c for c, size in tiled.items() if size == dims.extent[c] == 1} - kept
        tiles = {c: Cut(0, extent, dropped=c in alone) for c, extent in dims.extent.items()}
        for iv, c in zip(forall.induction_variables, loops, strict=True):
            tiles[c] = _tile_of(iv, dims.extent[c], tiled[c], c in kept, ones)
    Tiler(dims, tiles).fill(forall, root.location, erase)
    return forall.operation


def _move_users_behind(block: ir.Block, dims: Dims) -> ir.Operation:
    """Moves what reads the group's results but stands between its ops behind them; returns the first op behind."""
    listed = [o.operation for o in block.operations]
    last = max(i for i, o in enumerate(listed) if o in dims.ops)
    anchor = behind = listed[last + 1]
    late: set[ir.Value] = set(dims.produced)
    for op in listed[:last]:
        if op in dims.ops:
            if any(v in late and v not in dims.produced for v in op.operands):
                raise PayloadError("reads a reshape of another op's result", op)
        elif any(v in late for v in op.operands):
            late.update(op.results)
            op.move_before(behind)
            anchor = op if anchor == behind else anchor
    return anchor


def _tile_of(iv: ir.Value, extent: int, size: int, keep: bool, ones: bool) -> Cut:
    if size >= extent and not ones:
        return Cut(0, extent, dropped=extent == 1 and not keep)
    offset = iv if size == 1 else _build.scaled(iv, size)
    edge = extent % size != 0
    return Cut(offset, _build.remaining(offset, extent, size) if edge else size, dropped=size == 1 and not keep)


@transform_op(
    "tile_to_blocks",
    operands=("root",),
    consumes=("root",),
    results=("forall",),
    attributes={"sizes": list, "keep": list, "order": list, "ones": bool},
    takes=LINALG,
    defaults={"ones": False},
)
def tile_to_blocks(rewriter, roots, sizes, keep, order, ones):
    """Tiles the root op, and all linalg ops of its block with it, into one `scf.forall` in which each op occurs once.

    `sizes`: one per iteration dimension of the root, 0 for whole. Sizes of 1 leave the rank of tiles, unless the root's
    dimension is in `keep`. `order`: the tiled dimensions from the outermost loop (slowest block id) to the innermost
    (x); empty for their natural order. Loops of one trip are left out, unless `ones`.
    """
    if len(roots) != 1:
        raise PayloadError(f"tile_to_blocks needs one root, the handle has {len(roots)}", roots[0] if roots else None)
    return [[tile(roots[0], sizes, keep, order, ones, rewriter.erase_op)]]
