"""What was chosen for the GEMMs of a kernel, for its tiles in shared memory, and for those that change their registers'
layout, and what that wastes, in words: a line for each, which the `gpu` level keeps as `mlirc.products`,
`mlirc.layouts` and `mlirc.waste` on its function."""

from __future__ import annotations

import math
import re

from mlirc.mlir import ir
from mlirc.passes.distribute.emit.emitter import Emitter
from mlirc.passes.distribute.memory import access
from mlirc.passes.distribute.products.product import Product

PRODUCTS, LAYOUTS, WASTE = "mlirc.products", "mlirc.layouts", "mlirc.waste"
_SMALL = 0.02  # of MMAs, or of shared memory: what is not worth a line


def described(product: Product) -> str:
    """A product's instruction, its extents and warps, the layout of its sums, and where its operands lie."""
    geometry, spread = product.geometry, product.spread
    block, (warps_m, warps_n) = geometry.block, geometry.block.grid
    along_k = f" x {spread.warps_k} along k" if spread.warps_k > 1 else ""
    parts = [
        f"{geometry.instruction.name} {block.m}x{block.n}x{block.k} on {warps_m}x{warps_n} warps{along_k}",
        f"sums {spread.sums}: {spread.sums.num_regs} registers",
    ]
    for which, name in enumerate("AB"):
        view = product.views.get(which)
        anew = f", {spread.rewrites[which]}" if spread.rewrites[which] else ""
        parts.append(f"{name} {product.operand(which).element} {_place(view) if view else 'in registers'}{anew}")
    return "; ".join(parts)


def waste(product: Product) -> list[str]:
    """What a GEMM's tiles waste: MMAs on padding, and slots in shared memory that are wider than what lies in them."""
    geometry, spread = product.geometry, product.spread
    block = geometry.block
    taken = (*spread.sums.shape, spread.k)
    share = 1 - block.m * block.n * block.k / math.prod(taken)
    lines = []
    if share > _SMALL:
        warps = "x".join(map(str, block.grid))
        lines.append(
            f"{share:.0%} of the MMAs multiply padding: a tile of {block.m}x{block.n}x{block.k} on {warps} warps takes "
            f"{'x'.join(map(str, taken))}"
        )
    for which, (name, extents) in enumerate({"A": (block.m, block.k), "B": (block.n, block.k)}.items()):
        view = product.views.get(which)
        if view is None or view.shared is None:
            continue
        shared = view.shared
        unused = 1 - math.prod(extents) / (shared.rows * shared.panels * shared.width)
        if unused > _SMALL and (share <= _SMALL or unused > share + _SMALL):
            lines.append(
                f"{unused:.0%} of {name}'s shared memory is never used: {shared}, for slices of "
                f"{extents[0]} along {'mn'[which]} and {extents[1]} along k"
            )
    return lines


def _place(view: access.View) -> str:
    """A tile in shared memory: how many slots of it there are, its panels, and how its rows are permuted."""
    assert view.shared is not None  # products read what `staging` or a ring laid out
    return f"in {view.shared}"


def note(kernel: ir.OpView, em: Emitter) -> None:
    """Keeps what was chosen for a kernel's products and layouts, lines that say the same once."""
    layouts = [*em.shared_accesses.lines(), *em.conversions]
    for name, lines in ((PRODUCTS, em.products), (LAYOUTS, layouts), (WASTE, em.waste)):
        if lines:
            kernel.attributes[name] = ir.ArrayAttr.get([ir.StringAttr.get(x) for x in dict.fromkeys(lines)])


def noted(text: str) -> list[str]:
    """The lines of products and layouts that a `gpu`-level text holds, those of products first, each once."""
    return _lines(text, PRODUCTS) + _lines(text, LAYOUTS)


def noted_waste(text: str) -> list[str]:
    """The lines of waste that a `gpu`-level text holds, each once."""
    return _lines(text, WASTE)


def _lines(text: str, name: str) -> list[str]:
    lists = re.findall(rf"{name} = \[(.*?)\]", text)
    return list(dict.fromkeys(line for listed in lists for line in re.findall(r'"(.*?)"', listed)))
