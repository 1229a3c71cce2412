"""Bytes in shared memory whose rows run along m or n, as products take them: four of each row (or column) along k in a
register. ldmatrix transposes 16-bit elements: a lane gets, of two rows of k, a pair of neighbours along m or n; `prmt`
makes of two such registers four elements along k of the one neighbour, and of the other."""

from __future__ import annotations

from dataclasses import replace

from mlirc.mlir import arith, ir, llvm, nvgpu, nvvm, vector
from mlirc.passes.distribute.emit.emitter import Emitter, IndexValue
from mlirc.passes.distribute.memory import access

STEP_K = 32


def in_pairs(em: Emitter, view: access.View) -> access.View:
    """A tile of bytes as one of half as many 16-bit elements a row. Its place in the buffer begins a row."""
    assert view.offsets[-1] == 0 and view.shared is not None
    *rest, columns = view.shared.extents
    shared = replace(view.shared, extents=(*rest, columns // 2), size=2, panel=view.shared.panel // 2)
    base = em.seen_as(view.base, shared.memory_shape, ir.IntegerType.get_signless(16))
    return replace(view, base=base, shared=shared)


def words_of(matrices: ir.Value) -> list[ir.Value]:
    """The registers of a vector<Nx2xi16>."""
    i32 = ir.IntegerType.get_signless(32)
    count = ir.VectorType(matrices.type).shape[0]
    return [llvm.BitcastOp(i32, vector.ExtractOp(matrices, [], [i]).result).result for i in range(count)]


class BytePairs:
    """What lanes read: sixteen bytes of sixteen rows of k are two matrices, in each of which two rows are neighbours
    along k; which ones depends on the lane, so that no two of a matrix meet in a bank."""

    def __init__(self, em: Emitter):
        self.em = em
        with em.at_entry():
            row, matrix = em.rem(em.lane, 8), em.div(em.lane, 8)
            late = em.div(row, 4)  # lanes 2 and 3 of four find the two matrices' pairs exchanged
            pair = em.rem(em.add(em.rem(matrix, 2), late), 2)
            k = em.add(em.add(em.mul(em.div(row, 2), 4), em.mul(pair, 2)), em.rem(row, 2))
            self.row = em.add(k, em.mul(em.div(matrix, 2), 16))  # of k, of 32
            in_order = em.less(em.rem(em.lane, 4), 2)
            self.selectors = [_either(em, in_order, *both) for both in ((0x6420, 0x2064), (0x7531, 0x3175))]

    def load(self, view: access.View, column: IndexValue, step: int, panel: IndexValue = 0) -> list[ir.Value]:
        """The pairs of sixteen columns, from a multiple of 16 on, in 32 rows of k; `view`: of pairs, its dimensions
        (columns, k), which may have panels in front of them, of which these are in one."""
        em = self.em
        assert view.shared is not None
        place = access.permuted(em, view.shared, em.rem(self.row, 8), em.div(column, 2))
        indices: list[IndexValue] = list(view.offsets)
        indices[view.dims[1]] = em.add(indices[view.dims[1]], em.add(self.row, STEP_K * step))
        indices[view.dims[0]] = em.add(indices[view.dims[0]], place)
        if view.panels:
            indices[-3] = em.add(indices[-3], panel)
        t = ir.VectorType.get([4, 2], ir.IntegerType.get_signless(16))
        return words_of(nvgpu.LdMatrixOp(t, view.base, [em.value(i) for i in indices], True, 4).result)

    def fours(self, pairs: list[ir.Value]) -> list[ir.Value]:
        """Of 16 columns the words of the even ones, 16 of k after the other, and of the odd ones."""
        return [_permuted(pairs[c], pairs[c + 1], s) for s in self.selectors for c in (0, 2)]


def _either(em: Emitter, condition: bool | ir.Value, one: int, other: int) -> ir.Value:
    i32 = ir.IntegerType.get_signless(32)
    x, y = (em.constant(ir.IntegerAttr.get(i32, n)) for n in (one, other))
    return arith.SelectOp(em.condition(condition), x, y).result


def _permuted(low: ir.Value, high: ir.Value, selector: ir.Value) -> ir.Value:
    mode = ir.Attribute.parse("#nvvm.permute_mode<default>")
    return nvvm.PermuteOp(low, selector, mode, hi=high).result
