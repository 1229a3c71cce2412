"""Products by wgmma: which of their operands lie in shared memory and which in registers, and when they are waited
for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mlirc.mlir import ir, llvm
from mlirc.passes.distribute import staging, wgmma
from mlirc.passes.distribute.accumulators import WgmmaFragment
from mlirc.passes.distribute.emitter import IndexValue, Unsupported
from mlirc.passes.distribute.layout import Layout
from mlirc.passes.distribute.reduction import mask
from mlirc.passes.distribute.values import Fragment, Marked, Splat, Tile

if TYPE_CHECKING:
    from mlirc.passes.distribute.contraction import Product


def lower(product: Product) -> Fragment:
    """Issues one product, and waits for it unless the loop does."""
    em, geometry = product.em, product.geometry
    if not isinstance(em.pipeline_depth, int):
        raise Unsupported(_ASYNCHRONOUS)
    grid = product.tile_grid()
    group = em.div(em.warp, 4)
    group_m = em.div(group, product.warps_n) if product.warps_m > 4 else 0
    group_n = em.rem(group, product.warps_n) if product.warps_n > 1 else 0
    starts = isinstance(product.c, Splat) and _is_zero(product.c)
    left = _registers(product)
    # What is added to: of no interest where the first instruction writes zeros and its product.
    values = WgmmaFragment.pack(em, product.accumulator(), grid) if not starts or left else _nothing(product)
    em.pipeline.before(product.op)
    a = left or _shared(product, 0, em.mul(group_m, grid[0] * 64))
    b = _shared(product, 1, em.mul(group_n, grid[1] * 8))
    adds = not starts or left is not None
    values = wgmma.multiply(em, a, b, product.a.element, values, grid[1] * 8, geometry.k_padded, adds)
    if _deferred(product):
        em.deferred_products += 1  # the loop waits for them, one iteration later
        em.pipeline.issued(product.op)
    else:
        wgmma.wait(0)
        em.pipeline.done(product.op)
    return WgmmaFragment(em, ir.F32Type.get(), product.c.shape, product.c.sizes, product.layout, values, grid)


_ASYNCHRONOUS = "wgmma reads operands that a loop with mlirc.stages >= 3 copies asynchronously; use mma"


def _is_zero(tile: Splat) -> bool:
    owner = tile.scalar.owner
    return not isinstance(owner, ir.Block) and owner.name == "arith.constant" and (
        ir.FloatAttr(owner.attributes["value"]).value == 0.0
    )  # fmt: skip


def _nothing(product: Product) -> list[ir.Value]:
    grid = product.tile_grid()
    return [llvm.UndefOp(t).result for t in WgmmaFragment.types(ir.F32Type.get(), grid)]


def _shared(product: Product, which: int, first_row: IndexValue) -> wgmma.Operand:
    """An operand in shared memory: copied there by a loop, or stored there once in front of it."""
    tile: Tile = (product.a, product.b)[which]
    if staging.staged(tile) is None and not (isinstance(tile, Marked) and tile.outside_loop()):
        raise Unsupported(_ASYNCHRONOUS)
    view, k_last = product.shared(which)
    return wgmma.Operand(product.em, view, k_last, first_row)


def _registers(product: Product) -> wgmma.Registers | None:
    """The first operand as the instructions take it in registers, if that is where its elements are."""
    em, tile, dims = product.em, product.a, product.info.maps[0]
    natural = None if staging.staged(tile) is not None else tile.natural()
    if natural is None:
        return None
    rows, k = product.layout2d.shape[0], product.geometry.k_padded
    target = product.placed(dims, wgmma.accumulator(rows, k, product.warps_m, 1)) if product.warps_n == 1 else None
    frag = tile.get(natural)
    if target is None or target.register_map(frag.layout, em.warps) is None:
        return None
    frag = mask(em, frag.get(target), [dims.index(product.info.k)], ir.FloatAttr.get(frag.element, 0.0))
    return wgmma.Registers(_words(product, frag, target))


def _words(product: Product, frag: Fragment, layout: Layout) -> list[list[list[ir.Value]]]:
    i32, dims = ir.IntegerType.get_signless(32), product.info.maps[0]
    table = {tuple(row): i for i, row in enumerate(layout.reg_offsets)}

    def word(row: int, k: int) -> ir.Value:
        at = [{product.info.m: row, product.info.k: k}.get(d, 0) for d in dims]
        registers = []
        for e in range(2):
            at[dims.index(product.info.k)] = k + e
            registers.append(table[tuple(at)])
        return llvm.BitcastOp(i32, frag.read(registers)).result

    tiles, steps = product.tile_grid()[0], product.geometry.k_padded // wgmma.STEP_K
    places = [(half, part) for part in (0, 8) for half in (0, 8)]
    return [
        [[word(64 * i + half, 16 * step + part) for half, part in places] for step in range(steps)]
        for i in range(tiles)
    ]


def _deferred(product: Product) -> bool:
    """Whether the loop may wait for a product, in its next iteration: only the loop takes its result, and by the time
    that anything but this product looks at it there, another product has been waited for."""
    op = product.op
    uses = list(op.results[0].uses)
    if len(uses) != 1 or uses[0].owner.name != "scf.yield":
        return False
    carried = op.block.arguments[1 + uses[0].operand_number]
    waited = False
    for other in op.block.operations:
        if other.operation == op.operation:
            return True
        if carried in list(other.operands) and not waited:
            return False
        waited = waited or product.em.pipeline.waits(other.operation)
    return False
