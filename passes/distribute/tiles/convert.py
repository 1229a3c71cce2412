"""Emits the conversion of a tile from one register layout to another (`layouts/conversion.py` chooses it)."""

from __future__ import annotations

from mlirc.ir.tensors import element_bytes
from mlirc.mlir import arith, gpu, ir, llvm, memref, vector
from mlirc.passes.distribute.emit.emitter import Emitter, IndexValue
from mlirc.passes.distribute.layouts.conversion import Conversion, Exchange, Matrices, Moves, Scratch, cheapest
from mlirc.passes.distribute.layouts.registers import Layout
from mlirc.passes.distribute.layouts.shuffles import LANE_BITS, Choice, flip
from mlirc.passes.distribute.memory import access
from mlirc.passes.distribute.memory.access import InRegisters, View

HALF = ("bf16", "f16")


def converted(em: Emitter, tile: InRegisters, target: Layout) -> list[ir.Value]:
    """The registers of a tile in another layout, `target.piece` of them a value."""
    size = element_bytes(access.storage_type(tile.element))
    stmatrix = em.target is not None and em.target.has_stmatrix and str(tile.element) in HALF
    chosen = cheapest(target, tile.layout, em.team.warps, size, stmatrix)
    if isinstance(chosen, Moves):
        p = target.piece
        return [tile.read(list(chosen.registers[i : i + p])) for i in range(0, target.num_regs, p)]
    em.conversions.append(described(tile, target, chosen))
    if isinstance(chosen, Exchange):
        return _Exchange(em, tile, chosen).pieces(target)
    return _through_memory(em, tile, target, chosen)


def described(tile: InRegisters, target: Layout, chosen: Conversion) -> str:
    """A conversion in words."""
    shape = "x".join(map(str, tile.shape))
    return f"{tile.element} {shape} from {tile.layout} to {target}: {chosen}"


# -- shared memory


def _through_memory(em: Emitter, tile: InRegisters, target: Layout, chosen: Scratch) -> list[ir.Value]:
    shared = chosen.shared
    dims = list(range(len(shared.extents)))
    stored = access.storage_type(tile.element)
    view = View(em.alloc_smem(list(shared.extents), stored), [0] * len(dims), dims, shared)
    meet = em.warp_barrier if chosen.within_warp else em.team.meet
    meet()
    if chosen.matrices is None:
        access.store(em, tile, view, whole=True)
    else:
        _store_matrices(em, tile, view, chosen.matrices)
    meet()
    return access.load_pieces(em, view, tile.element, tile.shape, tile.sizes, target, whole=True)


def _store_matrices(em: Emitter, tile: InRegisters, view: View, matrices: Matrices) -> None:
    """Writes a tile by stmatrix (PTX ISA, "stmatrix"): lane l gives the address of row l mod 8 of matrix l / 8."""
    rows, shared = matrices.rows, view.shared
    assert shared is not None
    with em.at_entry():
        start = memref.ExtractAlignedPointerAsIndexOp(view.base).result
    i32, first = ir.IntegerType.get_signless(32), access.first_copy(em, tile.layout)
    with access.predicated(first):
        for r in range(rows.num_regs):
            at: list[IndexValue] = [em.team.coordinate(rows, d, r) for d in range(rows.rank)]
            at[-1] = em.mul(at[-1], shared.per_chunk)
            at = access.placed(em, view, at)
            element: IndexValue = 0
            for index, extent in zip(at, shared.extents, strict=True):
                element = em.add(em.mul(element, extent), index)
            pointer = em.shared_pointer(em.add(start, em.mul(element, shared.size)))
            words = [2 * (matrices.each * r + i) for i in range(matrices.each)]
            values = [llvm.BitcastOp(i32, tile.read([w, w + 1])).result for w in words]
            ir.Operation.create("nvvm.stmatrix", operands=[pointer, *values], attributes=_matrix_of_16_bits())


def _matrix_of_16_bits() -> dict[str, ir.Attribute]:
    return {
        "layout": ir.Attribute.parse("#nvvm.mma_layout<row>"),
        "shape": ir.Attribute.parse("#nvvm.ld_st_matrix_shape<m = 8, n = 8>"),
        "eltType": ir.Attribute.parse("#nvvm.ld_st_matrix_elt_type<b16>"),
    }


# -- shuffles


class _Exchange:
    """Shuffles of one tile."""

    def __init__(self, em: Emitter, tile: InRegisters, chosen: Exchange):
        self.em, self.tile, self.plan = em, tile, chosen.shuffles
        self.i32 = ir.IntegerType.get_signless(32)

    def pieces(self, target: Layout) -> list[ir.Value]:
        plan, word = self.plan, self.plan.word
        words = [self._word(x) for x in range(0, self.tile.layout.num_regs, word)]
        provided = self._chosen({i * word: w for i, w in enumerate(words)}, plan.before)
        found = {r.result: self._shuffled(provided[r.register], r.lane) for r in plan.rounds}
        found = self._chosen(found, plan.after)
        elements = [e for x in sorted(found) for e in self._elements(found[x])]
        return [self.em.pack(elements[i : i + target.piece]) for i in range(0, target.num_regs, target.piece)]

    def _chosen(self, values: dict[int, ir.Value], choices: tuple[Choice, ...]) -> dict[int, ir.Value]:
        for choice in choices:
            odd = self._odd(choice.mask)
            values = {x: arith.SelectOp(odd, values[flip(x, choice.bits)], value).result for x, value in values.items()}
        return values

    # -- lanes

    def _constant(self, n: int) -> ir.Value:
        return self.em.constant(ir.IntegerAttr.get(self.i32, n))

    def _lane(self) -> ir.Value:
        return arith.IndexCastOp(self.i32, self.em.lane).result

    def _odd(self, mask: int) -> ir.Value:
        """Whether the lane's number has an odd number of ones in a mask."""
        with self.em.at_entry():
            bits = arith.AndIOp(self._lane(), self._constant(mask)).result
            if mask & (mask - 1):
                from_ones = ir.Operation.create("math.ctpop", results=[self.i32], operands=[bits]).results[0]
                bits = arith.AndIOp(from_ones, self._constant(1)).result
            return arith.CmpIOp(arith.CmpIPredicate.ne, bits, self._constant(0)).result

    def _source(self, number: int) -> ir.Value:
        """The lane to read from."""
        em, plan = self.em, self.plan
        with em.at_entry():
            lane = self._lane()
            kept = sum(1 << i for i, s in enumerate(plan.lanes) if s == 1 << i)
            total = arith.AndIOp(lane, self._constant(kept)).result
            for i, moved in enumerate(plan.lanes):
                if moved and moved != 1 << i:
                    bit = arith.AndIOp(arith.ShRUIOp(lane, self._constant(i)).result, self._constant(1)).result
                    total = arith.XOrIOp(total, arith.MulIOp(bit, self._constant(moved)).result).result
            return arith.XOrIOp(total, self._constant(number)).result if number else total

    def _shuffled(self, x: ir.Value, lane: int) -> ir.Value:
        plan = self.plan
        if plan.direct and not lane:
            return x
        mode = gpu.ShuffleMode.XOR if plan.direct else gpu.ShuffleMode.IDX
        at = self._constant(lane) if plan.direct else self._source(lane)
        return gpu.ShuffleOp(x, at, self._constant(1 << LANE_BITS), mode).results[0]

    # -- words

    def _word(self, first: int) -> ir.Value:
        """Neighbouring registers as one of 32 or 64 bits."""
        x, t = self.tile.read(list(range(first, first + self.plan.word))), self.tile.element
        if self.plan.word > 1:
            bits = self.plan.word * element_bytes(t) * 8
            raw = llvm.BitcastOp(ir.IntegerType.get_signless(bits), x).result
        elif isinstance(t, ir.IndexType):
            raw = arith.IndexCastOp(ir.IntegerType.get_signless(64), x).result
        else:
            raw = (
                x if isinstance(t, ir.IntegerType) else arith.BitcastOp(ir.IntegerType.get_signless(t.width), x).result
            )
        narrow = ir.IntegerType(raw.type).width < 32
        return arith.ExtUIOp(self.i32, raw).result if narrow else raw

    def _elements(self, word: ir.Value) -> list[ir.Value]:
        t, count = self.tile.element, self.plan.word
        if isinstance(t, ir.IndexType):
            return [arith.IndexCastOp(t, word).result]
        bits = count * t.width
        if bits < ir.IntegerType(word.type).width:
            word = arith.TruncIOp(ir.IntegerType.get_signless(bits), word).result
        if count > 1:
            together = llvm.BitcastOp(ir.VectorType.get([count], t), word).result
            return [vector.ExtractOp(together, [], [i]).result for i in range(count)]
        return [word if isinstance(t, ir.IntegerType) else arith.BitcastOp(t, word).result]
