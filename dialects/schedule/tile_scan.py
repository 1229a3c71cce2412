"""`schedule.tile_scan`: a block walks along the dimension of its scan in steps, which hand on the carries."""

from __future__ import annotations

from mlirc.dialects.schedule import _build
from mlirc.dialects.schedule._base import PayloadError, transform_op
from mlirc.dialects.schedule._dims import Dims, structured_ops
from mlirc.dialects.schedule.tile_reduction import InnerTiler, mixed
from mlirc.dialects.schedule.tile_to_blocks import Cut
from mlirc.ir import tensors
from mlirc.ir.scans import Scan, is_scan
from mlirc.mlir import ir, scf, tensor


def tile_block(forall: ir.Operation, size: int, erase) -> ir.Operation:
    """Makes the loop of one block program and returns it; see `tile_scan`."""
    block = forall.regions[0].blocks[0]
    dims = Dims(structured_ops(block))
    scans = [i for i, op in enumerate(dims.ops) if is_scan(op)]
    if size < 1:
        raise PayloadError(f"size {size}: a step of the loop takes 1 or more", forall)
    if len(scans) != 1:
        raise PayloadError(f"a block program with one scan is walked along, and this one has {len(scans)}", forall)
    (scan,) = scans
    about = Scan.of(dims.ops[scan])
    along = dims.of[scan][about.dim]
    inside = [i for i, row in enumerate(dims.of) if along in row]
    inserts = [o.operation for o in list(block.operations)[-1].operation.regions[0].blocks[0].operations]
    stored = [op for op in inserts if op.operands[0] in dims.produced and along in dims.value_classes(op.operands[0])]
    starts = dims.structures[scan].outputs[about.count :]
    with ir.InsertionPoint(dims.ops[inside[-1]]), dims.ops[scan].location:
        windows = [_window(op) for op in stored]
        extent = dims.extent[along]
        loop = scf.ForOp(_build.index(0), _build.index(extent), _build.index(size), [*starts, *windows])
    with ir.InsertionPoint(loop.body), dims.ops[scan].location:
        iv, carried = loop.induction_variable, list(loop.inner_iter_args)
        tiles = {c: Cut(0, n) for c, n in dims.extent.items()}
        at = _backwards(iv, extent, size) if about.reverse else iv
        tiles[along] = Cut(at, _build.remaining(at, extent, size) if extent % size else size)
        tiler = InnerTiler(dims, tiles)
        tiler.values = dict(zip(starts, carried, strict=False))
        for i in inside:
            tiler.clone(i)
        carries = [tiler.values[r] for r in list(dims.ops[scan].results)[about.count :]]
        parts = zip(stored, carried[about.count :], strict=True)
        scf.YieldOp([*carries, *(_stored(op, window, tiler, along) for op, window in parts)])
    results = list(loop.results)
    for op, result in zip(stored, results[about.count :], strict=True):
        op.operands[0] = result
    for old, new in zip(list(dims.ops[scan].results)[about.count :], results, strict=False):
        old.replace_all_uses_with(new)
    for i in reversed(inside):
        erase(dims.ops[i])
    return loop.operation


def _backwards(iv: ir.Value, extent: int, size: int) -> ir.Value:
    """Where a step of a loop begins that walks from the last element to the first."""
    last = (extent - 1) // size * size
    return _build.applied(ir.AffineExpr.get_constant(last) - ir.AffineExpr.get_dim(0), iv)


def _window(insert: ir.Operation) -> ir.Value:
    """What a block stores of a result, before it does."""
    offsets, sizes = mixed(insert, "static_offsets", 2), mixed(insert, "static_sizes", 3)
    kept = _kept(insert)
    dropped = [d for d in range(len(sizes)) if d not in kept]
    return _build.extract_slice(insert.operands[1], offsets, sizes, dropped)


def _kept(insert: ir.Operation) -> list[int]:
    """The dimensions of a result that the tile has which a block stores."""
    return tensors.kept_dims(list(insert.attributes["static_sizes"]), tensors.shape_of(insert.operands[0]))


def _stored(insert: ir.Operation, window: ir.Value, tiler: InnerTiler, along: int) -> ir.Value:
    """The window with this step's tile in it."""
    all_sizes = mixed(insert, "static_sizes", 3)
    sizes = [all_sizes[d] for d in _kept(insert)]
    offsets: list[_build.Size] = [0] * len(sizes)
    place = tiler.dims.value_classes(insert.operands[0]).index(along)
    offsets[place], sizes[place] = tiler.tiles[along].offset, tiler.tiles[along].size
    (dyn_o, stat_o), (dyn_s, stat_s) = _build.split(offsets), _build.split(sizes)
    tile = tiler.values[insert.operands[0]]
    return tensor.InsertSliceOp(tile, window, dyn_o, dyn_s, [], stat_o, stat_s, [1] * len(sizes)).result


@transform_op("tile_scan", operands=("forall",), results=("loop",), attributes={"size": int}, takes="scf.forall")
def tile_scan(rewriter, foralls, size):
    """Makes of the scan of each block program, and of the maps that it reads and that read it, a loop along the
    dimension of the scan, `size` elements a step. Each step begins with the carries of the one before it, and stores
    its part of the results."""
    return [[tile_block(f.operation, size, rewriter.erase_op) for f in foralls]]
