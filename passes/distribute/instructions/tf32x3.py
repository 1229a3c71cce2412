"""FP32 products on tensor cores: each factor is the sum of two TF32 numbers, x = hi + lo, and three products of them,
lo * hi + hi * lo + hi * hi, are as exact as FP32's one (Ootomo and Yokota, arXiv 2203.03341).

The tensor cores cut their sums, they do not round them, so that errors grow with K. Products of `CHAIN` elements of K
are therefore summed from zero, the small ones first, and then added to the running sums in FP32.

`hi` of an infinity leaves no `lo`, and infinity times a `lo` has any sign: where a thread finds a sum that is not
finite, its warp computes these products again, by FMA. A factor that is not finite spoils a whole row or column of
sums, so one sum of each row and column is looked at. Finite factors whose `hi` overflows are found in the same way."""

from __future__ import annotations

from mlirc.mlir import arith, ir, scf
from mlirc.passes.distribute.emit.emitter import Emitter
from mlirc.passes.distribute.instructions import instruction
from mlirc.passes.distribute.instructions.fma import Fma, OuterProducts
from mlirc.passes.distribute.instructions.tf32 import Tf32, accumulator_columns, chain, neighbours
from mlirc.passes.distribute.layouts.registers import Layout
from mlirc.passes.distribute.products.product import Product
from mlirc.passes.distribute.products.tf32_operands import CHAIN, Operand, Parts, Registers, split
from mlirc.passes.distribute.tiles import reduction

TERMS = ((1, 0), (0, 1), (0, 0))  # lo * hi, hi * lo, hi * hi


@instruction
class ThreeTf32(Tf32):
    """Three TF32 products of a warp for an FP32 one."""

    name = "tf32x3"
    meaning = "three TF32 mma.sync for one FP32 product"
    accumulators = 2
    reads_padding = True  # it looks at sums that nobody stores

    def parts(self, em: Emitter, x: ir.Value, n: int) -> Parts:
        return split(em, x, n)

    def added(
        self, product: Product, a: Operand | Registers, b: Operand, sums: list[ir.Value], extent: int
    ) -> list[ir.Value]:
        """The products of all of k, added to `sums`, a value for each row. One test for all of them, so that a chain's
        operands are read while the tensor cores have those of the chain before."""
        em, group = product.em, neighbours(b.count, product.geometry.block.k_last[1])
        found: list[ir.Value] = []
        for first in range(0, extent, CHAIN):
            last = min(first + CHAIN, extent)
            rows = [em.pack(row) for row in chain(em, a.steps(first, last), b.steps(first, last), group, TERMS)]
            found = [arith.AddFOp(x, y).result for x, y in zip(found, rows, strict=True)] if found else rows
        branch = scf.IfOp(spoiled(em, found, 2 * b.count), [s.type for s in sums], has_else=True)
        with ir.InsertionPoint(branch.then_block):
            layout = Layout((product.spread.sums.dims[0], accumulator_columns(b.count, product.warps_n, group)))
            scf.YieldOp(OuterProducts(product, Fma(), (a.in_memory(extent), b.view), layout).sum(0, extent, 1))
        with ir.InsertionPoint(branch.else_block):
            scf.YieldOp(found)
        return [arith.AddFOp(x, y).result for x, y in zip(sums, branch.results, strict=True)]


def spoiled(em: Emitter, sums: list[ir.Value], columns: int) -> ir.Value:
    """Whether a thread of the warp has a row or column of sums that are not finite."""
    rows = len(sums)
    terms = [em.extract(sums[i % rows], i % columns) for i in range(max(rows, columns))]
    return reduction.any_not_finite(em, terms)
