"""Results of a block program, and the layouts of tiles that nothing else lays out."""

from __future__ import annotations

from mlirc.ir.tensors import element_bytes, through_views
from mlirc.mlir import ir
from mlirc.passes.distribute.emit.emitter import Emitter, IndexValue
from mlirc.passes.distribute.layouts.registers import Layout, pow2_ceil, pow2_divisor, row_layout
from mlirc.passes.distribute.memory import access, slices
from mlirc.passes.distribute.program.scope import Scope
from mlirc.passes.distribute.tiles.elementwise import Elementwise
from mlirc.passes.distribute.tiles.values import Tile


def default_layout(em: Emitter, op, shape: list[int], operands, strip: int = 1) -> Layout:
    """Row-major with 16-byte accesses, or `mlirc.vector` elements per access; a thread has `strip` neighbours along the
    last dimension but one."""
    vector = asked = em.taken.take(op, "vector", 0)
    if not asked:
        widths = [element_bytes(t.element) for t, dims in operands if t.shape and len(shape) - 1 in dims]
        wide = [w for w in widths if w > 1] or widths or [4]
        vector = min(16 // min(wide), 8)
    if not shape:
        if asked > 1:
            em.taken.refuse(op, "vector", "it has one element")
        return Layout(())
    vector = min(vector, pow2_divisor(shape[-1]))
    # Halve the vector while rows would leave lanes on padding.
    while vector > 1 and _waste(shape[-1], vector) > _waste(shape[-1], vector // 2):
        vector //= 2
    if asked and vector < asked:
        em.taken.refuse(op, "vector", f"rows of {shape[-1]} elements take at most {vector} at a time here")
    return row_layout(tuple(shape), em.team.warps, vector, strip)


def _waste(extent: int, vector: int) -> float:
    """Padded over real elements when a row is cut into accesses over up to 32 lanes."""
    chunks = -(-extent // vector)
    lanes = min(32, pow2_ceil(chunks))
    return -(-chunks // lanes) * lanes * vector / extent


def _maker(insert) -> ir.Operation | None:
    """The `linalg.generic` that made what is inserted, through views; None for another maker."""
    owner = through_views(insert.operands[0]).owner
    return None if isinstance(owner, ir.Block) or owner.name != "linalg.generic" else owner.operation


def _strip(scope: Scope, maker: ir.Operation | None, shape: list[int]) -> int:
    """The neighbours along the last dimension but one that a thread is to have of a map's result."""
    strip = 1 if maker is None else scope.em.taken.take(maker, "strip", 1)
    if strip == 1 or len(shape) > 1 and shape[-2] % strip == 0:
        return strip
    rows = f"{shape[-2]} rows" if len(shape) > 1 else "one row"
    scope.em.taken.refuse(maker, "strip", f"tiles of {rows} have no strips of {strip}")
    return 1


def is_window(value: ir.Value) -> bool:
    """Whether a tensor is a block's window of a result, which a loop stores part by part (`schedule.tile_scan`)."""
    owner = value.owner
    if isinstance(owner, ir.Block):
        loop = owner.owner.operation
        number = list(owner.arguments).index(value) - 1
        return loop.name == "scf.for" and number >= 0 and is_window(list(loop.operands)[3 + number])
    if owner.name == "scf.for":
        return is_window(list(owner.operands)[3 + list(owner.results).index(value)])
    if owner.name == "tensor.insert_slice":
        return is_window(owner.operands[1])
    source = owner.operands[0] if owner.name == "tensor.extract_slice" else None
    if source is None or not isinstance(source.owner, ir.Block) or not isinstance(source.type, ir.RankedTensorType):
        return False
    return source.owner.owner.operation.name == "scf.forall"


def store(scope: Scope, op, plain: bool = False) -> None:
    """tensor.parallel_insert_slice into a shared output; `plain`: by each thread's own stores of what it has. What a
    loop has stored part by part is there."""
    if op.operands[0] not in scope.program.stored and not is_window(op.operands[0]):
        put(scope, op, scope.tile(op.operands[0]), plain=plain)


def put(scope: Scope, op, tile: Tile, inside: list[IndexValue] | None = None, plain: bool = False) -> None:
    """Stores what a tensor.parallel_insert_slice inserts, or a part of it that begins at `inside`."""
    base, _, _ = scope.view(op.operands[1])
    offsets, _, _ = slices.slice_geometry(op, scope.scalar)
    kept = slices.kept_dims(op, op.operands[0])
    for i, o in zip(kept, inside or (), strict=bool(inside)):
        offsets[i] = scope.em.add(offsets[i], o)
    whole_rows = scope.program.whole_rows and not plain
    layout = None if whole_rows else tile.natural()
    if layout is None:
        maker = _maker(op)
        chooser = op if maker is None or "vector" not in scope.em.taken.wanted else maker  # what the schedule demands
        operands, strip = [(tile, list(range(len(tile.shape))))], _strip(scope, maker, tile.shape)
        layout = default_layout(scope.em, chooser, tile.shape, operands, strip)
    if whole_rows and isinstance(tile, Elementwise):
        frag = tile.computed_in(layout)
    else:
        frag = tile.get(layout)
    moved = list(base.offsets)
    for i, o in enumerate(offsets):
        moved[base.dims[i]] = scope.em.add(moved[base.dims[i]], o)
    view = access.View(base.base, moved, [base.dims[i] for i in kept])
    stores = None if plain else scope.program.tensor_stores
    if inside is not None or stores is None or not stores.store(op, frag, view):
        access.store(scope.em, frag, view)
