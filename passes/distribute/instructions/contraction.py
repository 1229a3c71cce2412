"""Products of tiles: which instruction makes one, and how that spreads it over the warps of a team. The instructions
are in `instructions/`, a file each."""

from __future__ import annotations

from mlirc.mlir import ir
from mlirc.passes.distribute import instructions
from mlirc.passes.distribute.emit.emitter import Emitter, Unsupported
from mlirc.passes.distribute.emit.team import Planner
from mlirc.passes.distribute.instructions import Instruction, ask
from mlirc.passes.distribute.products import notes
from mlirc.passes.distribute.products.geometry import BlockProduct, ElementTypes, Geometry
from mlirc.passes.distribute.products.matching import Contraction
from mlirc.passes.distribute.products.product import Product
from mlirc.passes.distribute.tiles.values import Fragment, Tile


def geometry(planner: Planner, op, info: Contraction, elements: list[ir.Type], shapes: list[list[int]]) -> Geometry:
    """How a product is spread over a team; `elements` and `shapes` are those of A, B and C. Raises Unsupported for what
    its instruction does not take."""
    return _planned(planner, op, info, elements, shapes)[1]


def lower(em: Emitter, op, info: Contraction, operands: list[Tile]) -> Fragment:
    """Emits one product of tiles A and B, added to C."""
    chosen, how = _planned(em, op, info, [t.element for t in operands], [t.shape for t in operands])
    product = Product(em, op, how, operands)
    found = ask(chosen, "lower", product)
    em.products.append(notes.described(product))
    em.waste += notes.waste(product)
    return found


def _planned(
    planner: Planner, op, info: Contraction, elements: list[ir.Type], shapes: list[list[int]]
) -> tuple[Instruction, Geometry]:
    m, n = (shapes[2][info.maps[2].index(d)] for d in (info.m, info.n))
    k = shapes[0][info.maps[0].index(info.k)]
    types = ElementTypes(*map(str, elements))
    chosen, warps = _instruction(planner, op, types), planner.team.warps
    grid = _warp_grid(planner, op, info, chosen, (m, n))
    first, second = tuple([d for d in dims if d is not None][-1] == info.k for dims in info.maps[:2])
    block = BlockProduct(m, n, k, types, grid, warps, (first, second))
    spread = ask(chosen, "spread", block)
    left, right = (ask(chosen, "in_panels", last, spread.k) for last in block.k_last)
    return chosen, Geometry(info, chosen, block, spread, (left, right), ask(chosen, "finishes", types))


def _instruction(planner: Planner, op, types: ElementTypes) -> Instruction:
    name, target = planner.taken.take(op, "mma"), planner.target
    if name is None:
        return instructions.automatic(types, target)
    why = instructions.refusal(name, types, target)
    if why:
        raise Unsupported(f"mlirc.mma = {name}: {why}", op, "mma")
    return instructions.all_instructions()[name]


def _warp_grid(
    planner: Planner, op, info: Contraction, chosen: Instruction, extents: tuple[int, int]
) -> tuple[int, int]:
    """How many warps of the team share out m and n."""
    warps = planner.team.warps
    grid = planner.taken.take(op, "warp_grid")
    if grid is not None:
        m, n = reversed(grid) if info.swapped else grid
        if m * n != warps and (not chosen.shares_k or warps % (m * n)):
            raise Unsupported(f"mlirc.warp_grid {m}x{n} does not have the block's {warps} warps", op, "warp_grid")
        return m, n
    m, n = 1, 1
    while m * n < warps:
        if extents[0] // m >= extents[1] // n:
            m *= 2
        else:
            n *= 2
    return m, n
