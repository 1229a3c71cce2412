"""What the products of a K loop read from global memory: slices that can be copied to shared memory ahead of them."""

from __future__ import annotations

import copy
from dataclasses import dataclass

from mlirc.mlir import ir
from mlirc.passes.distribute import contraction, memory, products, slices
from mlirc.passes.distribute.emitter import IndexValue, Unsupported


@dataclass
class LoopOperand:
    """One slice that products read: the `tensor.extract_slice`; its view, bounds and sizes in the first iteration; its
    elements' type; the extents that a buffer of it must cover; and whether it lies in panels (`memory.View`). `product`
    is one that reads it, as an operand `which` (0: A, 1: B)."""

    op: ir.Operation
    first: tuple[memory.View, list[int], list[IndexValue]]
    element: ir.Type
    extents: list[int]
    panels: bool
    product: ir.Operation
    info: products.Contraction
    which: int

    def form(self) -> tuple:
        """What slices have in common that can take turns in one buffer."""
        return self.first[0].base, self.first[0].dims, self.element, self.extents, self.panels


class LoopOperands:
    """The operands of one loop: `found` by the slices' results. `warpgroups`: whether wgmma reads them."""

    def __init__(self, outer, op):
        self.outer, self.em, self.op = outer, outer.em, op
        self.lb, self.ub, self.step = (outer.scalar(v) for v in list(op.operands)[:3])
        self.body = op.regions[0].blocks[0]
        self.iv = self.body.arguments[0]
        self.found: dict[ir.Value, LoopOperand] = {}
        self.products: list[ir.Operation] = []
        self.warpgroups = False
        for inner in self.body.operations:
            if inner.operation.name == "linalg.generic":
                self._find(inner.operation)

    def seen_from(self, outer) -> LoopOperands:
        """The same operands, with their places computed in another scope of the same program."""
        other = copy.copy(self)
        other.outer = outer
        other.lb, other.ub, other.step = (outer.scalar(v) for v in list(self.op.operands)[:3])
        return other

    def _find(self, generic) -> None:
        """Notes the operands of a product that are slices of global memory; one slice may be an operand of several
        products, or both of one."""
        info = products.match(generic)
        if info is None:
            return
        shapes, elements = [], []
        for v in generic.operands:
            t = ir.RankedTensorType(v.type)
            shapes.append(self._bounds(v, t))
            elements.append(t.element_type)
        shapes, elements = info.arrange(shapes), info.arrange(elements)
        geometry = contraction.Geometry(self.em, generic, info, elements, shapes)
        self.warpgroups |= geometry.kind == "wgmma"
        self.products.append(generic)
        for which, value in enumerate(info.arrange(list(generic.operands))[:2]):
            owner = value.owner
            if isinstance(owner, ir.Block) or owner.name != "tensor.extract_slice":
                continue
            if owner.operation.parent != self.op or self.outer.view(owner.operands[0]) is None:
                continue
            first = self.at(owner.operation, self.lb)
            shape = first[1]
            extents = geometry.operand_extents(which, shape)
            panels = geometry.takes_panels(which)
            known = self.found.get(value)
            if known is not None:
                extents = [max(a, b) for a, b in zip(extents, known.extents, strict=True)]
                if panels != known.panels:
                    raise Unsupported("two products read one tile along different dimensions; use mma", generic, "mma")
            self.found[value] = LoopOperand(
                owner.operation, first, elements[which], extents, panels, generic, info, which
            )

    def groups(self) -> list[list[LoopOperand]]:
        """The slices, those together that a product reads together."""
        groups: list[list[ir.Value]] = [[v] for v in self.found]
        for product in self.products:
            joined = [g for g in groups if any(v in g for v in product.operands)]
            if len(joined) > 1:
                groups = [g for g in groups if g not in joined[1:]]
                groups[groups.index(joined[0])] = sum(joined, [])
        return [[self.found[v] for v in g] for g in groups]

    def readers(self, group: list[LoopOperand]) -> list[ir.Operation] | None:
        """The products that read a group's slices; None if something else reads one, too."""
        found: list[ir.Operation] = []
        for o in group:
            for use in o.op.results[0].uses:
                if use.owner.operation not in self.products:
                    return None
                found.append(use.owner.operation)
        return found

    def count(self) -> IndexValue:
        """How many iterations the loop has."""
        if all(isinstance(x, int) for x in (self.lb, self.ub, self.step)):
            return len(range(self.lb, self.ub, self.step))
        em = self.em
        return em.div(em.add(em.max(em.sub(self.ub, self.lb), 0), self.step - 1), self.step)

    def number(self, iv: IndexValue) -> IndexValue:
        """How many iterations were before the one with an induction variable."""
        return self.em.div(self.em.sub(iv, self.lb), self.step)

    def _bounds(self, value: ir.Value, t: ir.RankedTensorType) -> list[int]:
        """Bounds of an operand's extents: a slice's own, or those that its other uses give."""
        if t.has_static_shape:
            return list(t.shape)
        owner = value.owner
        if not isinstance(owner, ir.Block) and owner.name == "tensor.extract_slice":
            op = owner.operation
            segments = list(ir.DenseI32ArrayAttr(op.attributes["operandSegmentSizes"]))
            operands = list(op.operands)
            first = len(operands) - sum(segments[-3:]) + segments[-3]
            dynamic = operands[first : first + segments[-2]]
            static = list(ir.DenseI64ArrayAttr(op.attributes["static_sizes"]))
            full = [slices.bound(dynamic.pop(0)) if n == slices.DYNAMIC else n for n in static]
            kept = slices.kept_dims(op, op.results[0])
            return [full[i] or 1 for i in kept]
        if isinstance(owner, ir.Block) and owner == self.body:
            position = list(self.body.arguments).index(value) - 1
            return list(self.outer.tile(list(self.op.operands)[3 + position]).shape)
        if not isinstance(owner, ir.Block) and owner.name in (
            "linalg.generic",
            "linalg.fill",
            "tensor.empty",
            "tensor.cast",
        ):
            if owner.name == "tensor.empty":
                dynamic = list(owner.operands)
                return [slices.bound(dynamic.pop(0)) or 1 if n == slices.DYNAMIC else n for n in t.shape]
            if owner.name == "tensor.cast":
                source = owner.operands[0]
                return self._bounds(source, ir.RankedTensorType(source.type))
            if owner.name == "linalg.fill":
                return self._bounds(owner.operands[1], ir.RankedTensorType(owner.operands[1].type))
            result = list(owner.results).index(value)
            segments = list(ir.DenseI32ArrayAttr(owner.attributes["operandSegmentSizes"]))
            out = list(owner.operands)[segments[0] + result]
            return self._bounds(out, ir.RankedTensorType(out.type))
        return list(self.outer.tile(value).shape)

    def at(self, slice_op, iv: IndexValue):
        """The slice as it is in the iteration whose induction variable has the given value."""
        local: dict[ir.Value, IndexValue] = {self.iv: iv}

        def lookup(value: ir.Value) -> IndexValue:
            if value in local:
                return local[value]
            owner = value.owner
            if isinstance(owner, ir.Block) or owner.operation.parent != self.op:
                return self.outer.scalar(value)
            if owner.name.startswith("affine."):
                local[value] = self.outer.affine(owner, lookup)
            else:
                for r, v in zip(owner.results, self.outer.scalar_of(owner, lookup), strict=True):
                    local[r] = v
            return local[value]

        return self.outer.slice_view(slice_op, lookup)

    def iv_after(self, base: IndexValue, iterations: int) -> IndexValue:
        """The induction variable so many iterations after `base`."""
        moved = self.em.add(base, self.em.mul(self.step, iterations))
        if isinstance(moved, ir.Value):
            self.em.known_multiple(
                moved, min(self.em.divisor(base), self.em.divisor(self.em.mul(self.step, iterations)))
            )
        return moved
