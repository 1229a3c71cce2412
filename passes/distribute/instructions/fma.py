"""Outer products of registers by scalar FMA: any element types, whatever is cast on the way."""

from __future__ import annotations

from dataclasses import replace

from mlirc.mlir import arith, ir, math, scf
from mlirc.passes.distribute.emit.emitter import IndexValue
from mlirc.passes.distribute.instructions import BlockProduct, ElementTypes, Instruction, Spread, instruction
from mlirc.passes.distribute.layouts.registers import Layout, fma_accumulator, reg
from mlirc.passes.distribute.memory import access
from mlirc.passes.distribute.products.product import Product
from mlirc.passes.distribute.tiles.values import Fragment, elementwise_op, load

# Products that are summed one after the other before they are added to the total.
SUM_LENGTH = 32


@instruction
class Fma(Instruction):
    """A thread multiplies its rows of A with its columns of B."""

    name = "fma"
    meaning = "scalar FMA"
    takes = "any types"
    preference = 1

    def takes_types(self, types: ElementTypes) -> bool:
        return True

    def spread(self, p: BlockProduct) -> Spread:
        return Spread(fma_accumulator(p.m, p.n, *p.grid), p.k)

    def lower(self, product: Product) -> Fragment:
        product.begin()
        acc = product.accumulator()
        outer = OuterProducts(product, self)
        sums = acc.with_piece(outer.columns)
        k = product.spread.k
        chunk = 4 if k % 4 == 0 else 1
        # Short pieces of K are summed from zero and then added: the error grows with their number, not with K.
        total = list(sums.pieces)
        for first in range(0, k, SUM_LENGTH):
            part = outer.sum(first, min(first + SUM_LENGTH, k), chunk)
            total = [product.add(a, b) for a, b in zip(total, part, strict=True)]
        return Fragment(product.em, acc.element, acc.shape, acc.sizes, acc.layout, total, outer.columns)

    def multiply_add(self, product: Product, x: ir.Value, y: ir.Value, z: ir.Value) -> ir.Value:
        """x * y + z of scalars or vectors of the sums' type."""
        if product.info.add == "arith.addf":
            return math.FmaOp(x, y, z).result
        return arith.AddIOp(arith.MulIOp(x, y).result, z).result


class OuterProducts:
    """The products of a thread's `rows` of A and `columns` of B, which it reads from shared memory (`views` and `sums`,
    the layout: those of the product, if not others)."""

    def __init__(
        self, product: Product, fma: Fma, views: tuple[access.View, access.View] | None = None,
        sums: Layout | None = None,
    ):  # fmt: skip
        self.product, self.fma, self.em = product, fma, product.em
        self.views = views or (product.shared(0)[0], product.shared(1)[0])
        self.layout = sums or product.spread.sums
        self.rows, self.columns = (Layout((d,)).num_regs for d in self.layout.dims)

    def sum(self, first: int, last: int, chunk: int) -> list[ir.Value]:
        """The products of elements first .. last of K, summed in order, `chunk` of them per read; a vector per row."""
        em = self.em
        start = [self._zeros()] * self.rows
        if last - first == chunk:
            return self._chunk(first, chunk, start)
        loop = scf.ForOp(em.c(first), em.c(last), em.c(chunk), start)
        with ir.InsertionPoint(loop.body):
            k0 = em.known_multiple(loop.induction_variable, chunk)
            scf.YieldOp(self._chunk(k0, chunk, list(loop.inner_iter_args)))
        return list(loop.results)

    def _zeros(self) -> ir.Value:
        t = self.product.c.element
        zero = ir.IntegerAttr.get(t, 0) if isinstance(t, ir.IntegerType) else ir.FloatAttr.get(t, 0.0)
        return self.em.constant(zero, self.columns)

    def _chunk(self, k0: IndexValue, chunk: int, sums: list[ir.Value]) -> list[ir.Value]:
        a, b = (self._slice(which, k0, chunk) for which in range(2))
        sums = list(sums)
        for k in range(chunk):
            line = b.read([j * chunk + k for j in range(self.columns)])
            line = self._cast(line, 1)
            for i in range(self.rows):
                x = self._cast(a.scalar(i * chunk + k), 0)
                sums[i] = self.fma.multiply_add(self.product, self.em.splat(x, self.columns), line, sums[i])
        return sums

    def _slice(self, which: int, k0: IndexValue, chunk: int) -> Fragment:
        product, view = self.product, self.views[which]
        layout = Layout((self.layout.dims[which], (reg(chunk),) if chunk > 1 else ()))
        offsets = list(view.offsets)
        offsets[view.dims[1]] = self.em.add(offsets[view.dims[1]], k0)
        moved, shape = replace(view, offsets=offsets), list(layout.shape)
        element = (product.a, product.b)[which].element
        return load(self.em, moved, element, shape, shape, layout, whole=True)

    def _cast(self, value: ir.Value, which: int) -> ir.Value:
        for cast in self.product.info.casts[which]:
            t = cast.results[0].type
            if isinstance(value.type, ir.VectorType):
                t = ir.VectorType.get(ir.VectorType(value.type).shape, t)
            attributes = {name: cast.attributes[name] for name in cast.attributes}
            value = elementwise_op(cast.name, [t], [value], attributes)[0]
        return value
