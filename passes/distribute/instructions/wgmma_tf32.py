"""Products of f32 operands by wgmma of TF32 (sm_90a): one product, of factors that are rounded to TF32 (10 bits of
mantissa), halves away from zero, as `tf32` rounds them.

wgmma itself cuts what it reads: factors cut towards zero would make every product too small, by twice the error of
rounding on average, and sums with it. So both are rounded before it reads them: the operand that comes through
registers (`wgmma_tf32x3.py`) on its way there, the other one in shared memory, where it lies (`rewriting.py`), by the
warps beside the producer's, or else by those that compute. What is not finite stays so.

The sums stay in the tensor cores' accumulators for all of K: what these cut is less than what rounding the factors
costs."""

from __future__ import annotations

from dataclasses import replace

from mlirc.passes.distribute.emit.pending import Group
from mlirc.passes.distribute.instructions import BlockProduct, Spread, instruction, wgmma
from mlirc.passes.distribute.instructions.base import round_up
from mlirc.passes.distribute.instructions.wgmma_tf32x3 import (
    CHAIN,
    STEP_K,
    Held,
    Matrix,
    WgmmaThreeTf32,
    groups,
    one,
    words_of,
)
from mlirc.passes.distribute.products import rewriting
from mlirc.passes.distribute.products.product import Product
from mlirc.passes.distribute.products.tf32_operands import rounded
from mlirc.passes.distribute.tiles.accumulators import TransposedWgmmaFragment, WgmmaFragment
from mlirc.passes.distribute.tiles.values import Fragment


@instruction
class WgmmaTf32(WgmmaThreeTf32):
    """One TF32 product of a warpgroup, 64 rows of one operand by up to 256 of the other."""

    name = "wgmma_tf32"
    meaning = "Hopper's TF32 warpgroup products"
    accumulators = 1
    shares_k = False
    rewrite = "rounded"
    by_warps = "tf32"

    def spread(self, p: BlockProduct) -> Spread:
        s = super().spread(p)
        read = s.rewrites.index(self.rewrite)
        form = WgmmaFragment if read else TransposedWgmmaFragment
        rows, columns = s.tiles if read else s.tiles[::-1]
        return replace(s, k=round_up(p.k, CHAIN), form=form, tiles=(rows // 2, columns // 2))

    def lower(self, product: Product) -> Fragment:
        acc, (em, s) = product.accumulator(), (product.em, product.spread)
        read = s.rewrites.index(self.rewrite)
        form, held = s.form, 1 - read
        assert form is not None
        values = form.pack(em, acc, s.tiles)
        product.begin()
        view = product.shared(held)[0]
        left = Held(em, view, product.geometry.block.k_last[held], s.sums.dims[held], rounded)
        columns, (_, across) = 8 * s.tiles[1], groups(product.geometry.block, held)
        first = em.mul(em.rem(em.div(em.team.warp, 4), across), columns) if across > 1 else 0
        right = Matrix(em, rewriting.rewritten(product, read), first, 0)
        issued: list[Group] = []  # chains of `CHAIN` along k
        for k in range(0, s.k, CHAIN):
            steps = [left.step(k + d) for d in range(0, CHAIN, STEP_K)]
            if k == 0:
                product.rewritten(read)
            wgmma.fence()
            for i, value in enumerate(values):
                for d, rows in enumerate(steps):
                    value = one(em, words_of(rows, 2 * i, 0), right.at(k + d * STEP_K), value, columns)
                values[i] = value
            issued.append(em.team.groups.commit())
            if k:
                issued[-2].settle()  # whose factors' registers the next chain's take
        issued[-1].settle()
        return form(em, acc.element, acc.shape, acc.sizes, product.layout, values, s.tiles)
