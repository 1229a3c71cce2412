"""What was chosen for the products of a kernel, for its tiles in shared memory, and for those that change their
registers' layout, in words: a line for each, which the `gpu` level keeps as `mlirc.products` and `mlirc.layouts` on its
function."""

from __future__ import annotations

import re

from mlirc.mlir import ir
from mlirc.passes.distribute.emit.emitter import Emitter
from mlirc.passes.distribute.memory import access
from mlirc.passes.distribute.products.product import Product

PRODUCTS, LAYOUTS = "mlirc.products", "mlirc.layouts"


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


def _place(view: access.View) -> str:
    """A tile in shared memory: how many slots of it there are, its panels, and how its rows are permuted."""
    assert view.shared is not None  # products read what `staging` or a ring laid out
    return f"in {view.shared}"


def note(kernel: ir.OpView, em: Emitter) -> None:
    """Keeps what was chosen for a kernel's products and layouts, lines that say the same once."""
    for name, lines in ((PRODUCTS, em.products), (LAYOUTS, [*em.shared_accesses.lines(), *em.conversions])):
        if lines:
            kernel.attributes[name] = ir.ArrayAttr.get([ir.StringAttr.get(x) for x in dict.fromkeys(lines)])


def noted(text: str) -> list[str]:
    """The lines that a `gpu`-level text holds, those of products first, each once."""
    found = [
        line
        for name in (PRODUCTS, LAYOUTS)
        for listed in re.findall(rf"{name} = \[(.*?)\]", text)
        for line in re.findall(r'"(.*?)"', listed)
    ]
    return list(dict.fromkeys(found))
