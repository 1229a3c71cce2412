"""What the products of a loop read from global memory: slices that can be copied to shared memory ahead of them."""

from __future__ import annotations

from dataclasses import dataclass

from mlirc.dialects.im2col import IM2COL
from mlirc.dialects.mlirc_dialect import DEQUANTIZE
from mlirc.dialects.rings import IN_PLACE
from mlirc.dialects.windows import Windows
from mlirc.ir.tensors import element_bytes
from mlirc.mlir import ir
from mlirc.passes.distribute.emit.emitter import Unsupported
from mlirc.passes.distribute.emit.team import Planner
from mlirc.passes.distribute.instructions import contraction
from mlirc.passes.distribute.layouts.shared import LINE
from mlirc.passes.distribute.memory import slices
from mlirc.passes.distribute.products import matching
from mlirc.passes.distribute.products.geometry import Geometry


@dataclass
class LoopOperand:
    """One slice that products read: the `tensor.extract_slice`; bounds of its extents and its elements' type; the
    extents that a buffer of it must cover; and whether it lies in panels (`access.View`). `product` is one that reads
    it, as an operand `which` (0: A, 1: B); `rewrite`: how it is written anew for that (`rewriting.py`), if it is;
    `finishes`: as the instruction says. Or another op of the loop that makes an operand (`LoopOperands.computed`); or
    the slice of the words that such an op unpacks (`words`)."""

    op: ir.Operation
    shape: list[int]
    element: ir.Type
    extents: list[int]
    panels: bool
    product: ir.Operation
    info: matching.Contraction
    which: int
    rewrite: str = ""
    finishes: str = "by lanes"
    row: int = 0  # bytes of a row in shared memory: 0 where nothing but the tile decides it
    words: bool = False

    def unpacked_by(self, product: ir.Operation) -> bool:
        """Whether these are words of a weight that a product multiplies."""
        return self.words and self.product == product

    def form(self) -> tuple:
        """What slices have in common that can take turns in one buffer."""
        kept = tuple(slices.kept_dims(self.op, self.op.results[0]))
        return self.op.operands[0], kept, self.element, tuple(self.extents), self.panels, self.rewrite


def words_of(op: ir.Operation) -> list[ir.Operation]:
    """The slices of global memory from which an op that unpacks a weight reads its words, those of an op once."""
    if DEQUANTIZE not in op.attributes:
        return []
    reads = [o.operation for o in op.regions[0].blocks[0].operations if o.operation.name == "tensor.extract"]
    sources = [r.operands[0].owner.operation for r in reads if not isinstance(r.operands[0].owner, ir.Block)]
    found = [s for s in sources if s.name == "tensor.extract_slice" and s.parent == op.parent]
    return list(dict.fromkeys(s for s in found if slices.is_global(s.operands[0])))


def narrow_row(op: ir.Operation) -> int:
    """Bytes of the rows in which a slice of a convolution's windows comes, where a tap's channels are fewer than a row
    of 128 bytes; 0 for other slices."""
    made_by = op.operands[0].owner
    windows = None if isinstance(made_by, ir.Block) or made_by.name != IM2COL else Windows.of(made_by.operation)
    if windows is None:
        return 0
    row = windows.row_bytes(element_bytes(ir.RankedTensorType(op.results[0].type).element_type))
    return row if row < LINE else 0


def product_of(planner: Planner, op: ir.Operation) -> tuple[matching.Contraction, Geometry] | None:
    """A generic as a product, and how it is spread over the warps; None for anything else."""
    info = matching.match(op) if op.name == "linalg.generic" else None
    if info is None:
        return None
    shapes = info.arrange([slices.tile_bounds(v) for v in op.operands])
    elements = info.arrange([ir.RankedTensorType(v.type).element_type for v in op.operands])
    return info, contraction.geometry(planner, op, info, elements, shapes)


class LoopOperands:
    """The operands of one loop: `found` by the slices' results. `warpgroups`: whether an asynchronous
    instruction reads them."""

    def __init__(self, planner: Planner, op: ir.Operation):
        self.planner, self.op = planner, op
        self.body = op.regions[0].blocks[0]
        self.found: dict[ir.Value, LoopOperand] = {}
        self.computed: dict[ir.Value, LoopOperand] = {}  # operands that other ops of the loop make, no products
        self.products: list[ir.Operation] = []
        self.finishes: dict[ir.Operation, str] = {}  # of the products, as their instructions say
        self.warpgroups = False
        for inner in self.body.operations:
            self._find(inner.operation)

    def _find(self, generic: ir.Operation) -> None:
        """Notes the operands of a product that are slices of global memory; one slice may be an operand of several
        products, or both of one."""
        matched = product_of(self.planner, generic)
        if matched is None:
            return
        info, geometry = matched
        self.warpgroups |= geometry.instruction.asynchronous
        self.finishes[generic] = geometry.finishes
        self.products.append(generic)
        if geometry.instruction.reads_global and "mlirc.copy" not in generic.attributes:
            return
        for which, value in enumerate(info.arrange(list(generic.operands))[:2]):
            owner = value.owner
            if isinstance(owner, ir.Block) or owner.operation.parent != self.op:
                continue
            is_slice = owner.name == "tensor.extract_slice" and slices.is_global(owner.operands[0])
            if not is_slice and (owner.name != "linalg.generic" or owner.operation in self.products):
                continue
            words = words_of(owner.operation) if which == 0 and geometry.instruction.unpacks else []
            for slice_ in words:
                tile = ir.RankedTensorType(slice_.results[0].type)
                bounds = slices.tile_bounds(slice_.results[0])
                self.found[slice_.results[0]] = LoopOperand(
                    slice_, bounds, tile.element_type, bounds, False, generic, info, which,
                    finishes=geometry.finishes, words=True,
                )  # fmt: skip
            if words:
                continue
            found = self.found if is_slice else self.computed
            shape = slices.tile_bounds(value)
            extents, panels = geometry.operand_extents(which, shape), geometry.panels[which]
            rewrite, row = geometry.spread.rewrites[which], narrow_row(owner.operation) if is_slice else 0
            panels = panels or row > 0 and geometry.instruction.reads_narrow
            known = found.get(value)
            if known is not None:
                if rewrite != known.rewrite and (rewrite and known.rewrite or {rewrite, known.rewrite} & set(IN_PLACE)):
                    raise Unsupported("two products read one tile in different forms; use mma or fma", generic, "mma")
                rewrite = rewrite or known.rewrite
                extents = [max(a, b) for a, b in zip(extents, known.extents, strict=True)]
                if panels != known.panels and is_slice:
                    raise Unsupported("two products read one tile along different dimensions; use mma", generic, "mma")
            element = ir.RankedTensorType(value.type).element_type
            found[value] = LoopOperand(
                owner.operation, shape, element, extents, panels, generic, info, which, rewrite, geometry.finishes, row
            )

    def groups(self) -> list[list[LoopOperand]]:
        """The slices, those together that a product reads together."""
        groups: list[list[ir.Value]] = [[v] for v in self.found]
        for product in self.products:
            joined = [g for g in groups if any(v in product.operands or self.found[v].unpacked_by(product) for v in g)]
            if len(joined) > 1:
                groups = [g for g in groups if g not in joined[1:]]
                groups[groups.index(joined[0])] = sum(joined, [])
        return [[self.found[v] for v in g] for g in groups]

    def readers(self, group: list[LoopOperand]) -> list[ir.Operation] | None:
        """The products that read a group's slices; None if something else reads one, too."""
        found: list[ir.Operation] = []
        for o in group:
            for use in o.op.results[0].uses:
                reader = o.product if o.words else use.owner.operation
                if reader not in self.products:
                    return None
                found.append(reader)
        return found
