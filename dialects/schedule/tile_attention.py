"""`schedule.tile_attention`: `mlirc.attention` as a block program with an online softmax.

One block computes `block_q` query rows of one head; loops over the keys carry the running maximum, the sum of
exponentials and the unnormalized output, as in FlashAttention-2 (Dao, 2023): each step rescales them by
2^(old max - new max). Exponentials are powers of two, with log2(e) folded into the scale.
"""

from __future__ import annotations

import math as py_math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from mlirc.dialects.mlirc_dialect import ATTENTION, AttentionInfo
from mlirc.dialects.schedule import _build
from mlirc.dialects.schedule._base import PayloadError, transform_op
from mlirc.dialects.schedule._build import Size
from mlirc.dialects.schedule.tile_to_blocks import mapping_of
from mlirc.mlir import affine, arith, ir, linalg, math, scf

LOG2E = py_math.log2(py_math.e)
# Where nothing was seen yet the running maximum is finite, so that (-inf) - max is never (-inf) - (-inf).
LOWEST_RAW = -1.0e30
LOWEST_F32 = -3.4028234663852886e38  # also below a float mask's finfo.min, whose rows must come out as PyTorch's do


@dataclass
class _Tile:
    """A tile value, and the loop of each of its dimensions: i query, j key, d head dimension, e value dimension."""

    value: ir.Value
    letters: str


class AttentionTiler:
    """Builds the block program of one attention op."""

    def __init__(self, op: ir.Operation, block_q: int, block_kv: int, split: bool) -> None:
        self.op, self.split = op, split
        self.info = info = AttentionInfo.of(op)
        self.block_q, self.block_kv = min(block_q, info.q_len), block_kv
        self.acc = ir.F64Type.get() if str(info.element_type) == "f64" else ir.F32Type.get()
        self.index = ir.IndexType.get()
        self.extent: dict[str, Size] = {}  # of each loop letter, in the step being built
        self.mask_type = ir.RankedTensorType(op.operands[3].type).element_type if info.mask_shape is not None else None
        float_mask = self.mask_type is not None and not isinstance(self.mask_type, ir.IntegerType)
        # With nothing between q k^T and the softmax but a positive factor, the factor waits for the exponent.
        self.raw = not info.softcap and not float_mask and info.scale > 0
        self.exponent_scale = info.scale * LOG2E if self.raw else LOG2E
        self.shift = info.kv_len - info.q_len  # query i stands at key position i + shift
        self.contractions: list[ir.Operation] = []
        self.loops: list[ir.Operation] = []

    # -- small builders ------------------------------------------------------------------------------------------

    def constant(self, value: float) -> ir.Value:
        return arith.ConstantOp(self.acc, value).result

    def affine_value(self, kind: type, exprs: Sequence[ir.AffineExpr], operands: Sequence[ir.Value]) -> ir.Value:
        return kind(ir.AffineMap.get(len(operands), 0, list(exprs)), list(operands)).result

    def sizes(self, letters: str) -> list[Size]:
        return [self.extent[c] for c in letters]

    def generic(self, inputs: Sequence[_Tile], out: _Tile, letters: str, body: Callable[..., ir.Value]) -> _Tile:
        """A generic over `letters`; dimensions that the output lacks are reduced."""
        maps = [[letters.index(c) for c in t.letters] for t in (*inputs, out)]
        op = _build.generic([t.value for t in inputs], [out.value], maps, [c in out.letters for c in letters])
        types = [ir.RankedTensorType(t.value.type).element_type for t in (*inputs, out)]
        block = op.regions[0].blocks.append(*types)
        with ir.InsertionPoint(block):
            linalg.YieldOp([body(*block.arguments)])
        return _Tile(op.results[0], out.letters)

    def empty(self, letters: str, element: ir.Type | None = None) -> _Tile:
        return _Tile(_build.empty(self.sizes(letters), element or self.acc), letters)

    def filled(self, letters: str, value: float) -> _Tile:
        return _Tile(linalg.fill(self.constant(value), outs=[self.empty(letters).value]), letters)

    def widen(self, x: ir.Value) -> ir.Value:
        if x.type == self.acc:
            return x
        wider = ir.FloatType(x.type).width > ir.FloatType(self.acc).width
        return arith.TruncFOp(self.acc, x).result if wider else arith.ExtFOp(self.acc, x).result

    def narrow(self, x: ir.Value) -> ir.Value:
        return x if x.type == self.info.element_type else arith.TruncFOp(self.info.element_type, x).result

    def contract(self, a: _Tile, b: _Tile, out: _Tile, letters: str) -> _Tile:
        def body(x: ir.Value, y: ir.Value, acc: ir.Value) -> ir.Value:
            return arith.AddFOp(acc, arith.MulFOp(self.widen(x), self.widen(y)).result).result

        result = self.generic([a, b], out, letters, body)
        self.contractions.append(result.value.owner.operation)
        return result

    def load(self, operand: int, layout: str, at: dict[str, Size], letters: dict[str, str]) -> _Tile:
        """The tile of an operand: `at` gives offsets by layout letter; `letters` the loop letters of s and d."""
        offsets = [at.get(c, 0) for c in layout]
        sizes: list[Size] = [1 if c in "bh" else self.extent[letters[c]] for c in layout]
        dropped = [j for j, c in enumerate(layout) if c in "bh"]
        value = _build.extract_slice(self.op.operands[operand], offsets, sizes, dropped)
        return _Tile(value, "".join(letters[c] for c in layout if c not in "bh"))

    def load_mask(self, batch: ir.Value, head: ir.Value, key: ir.Value) -> _Tile:
        shape = self.info.mask_shape or ()
        offsets: list[Size] = []
        sizes: list[Size] = []
        for size, offset, letter in zip(shape, (batch, head, self.row0, key), ("", "", "i", "j"), strict=True):
            offsets.append(offset if size != 1 else 0)
            sizes.append(self.extent[letter] if letter and size != 1 else 1)
        dropped = [d for d, c in enumerate(("", "", "i", "j")) if not c or shape[d] == 1]
        letters = "".join(c for d, c in enumerate("bhij") if d not in dropped)
        return _Tile(_build.extract_slice(self.op.operands[3], offsets, sizes, dropped), letters)

    # -- the program ---------------------------------------------------------------------------------------------

    def build(self) -> ir.Value:
        """Adds the forall at the insertion point and returns the attention's result."""
        info = self.info
        blocks = -(-info.q_len // self.block_q)
        type_ = ir.RankedTensorType(self.op.results[0].type)
        out = _build.empty(list(type_.shape), type_.element_type)
        bounds = [info.batch, info.q_heads, blocks]
        forall = scf.ForallOp([0] * 3, bounds, [1] * 3, [out], mapping=mapping_of(3))
        self.forall = forall.operation
        with ir.InsertionPoint(forall.body):
            batch, head, block = forall.induction_variables
            d0 = ir.AffineExpr.get_dim(0)
            # with a causal mask the last rows have the most keys: they start first
            number = (blocks - 1) - d0 if info.causal else d0
            self.row0 = self.affine_value(affine.AffineApplyOp, [number * self.block_q], [block])
            edge = info.q_len % self.block_q
            rows: Size = _build.remaining(self.row0, info.q_len, self.block_q) if edge else self.block_q
            self.extent = {"i": rows, "d": info.head_dim, "e": info.value_dim, "j": self.block_kv}
            group = info.q_heads // info.kv_heads
            kv_head = head
            if group > 1:
                kv_head = self.affine_value(affine.AffineApplyOp, [ir.AffineExpr.get_floor_div(d0, group)], [head])
            result = self.attend(batch, head, kv_head)
            terminator = scf.InParallelOp()
        with ir.InsertionPoint(terminator.region.blocks[0]):
            place: dict[str, tuple[Size, Size]] = {"b": (batch, 1), "h": (head, 1), "s": (self.row0, rows)}
            place["d"] = (0, info.value_dim)
            cut = [place[c] for c in info.layouts[3]]
            _build.parallel_insert_slice(
                result.value, forall.inner_iter_args[0], [c[0] for c in cut], [c[1] for c in cut]
            )
        return forall.results[0]

    def attend(self, batch: ir.Value, head: ir.Value, kv_head: ir.Value) -> _Tile:
        at: dict[str, Size] = {"b": batch, "h": head, "s": self.row0}
        q = self.load(0, self.info.layouts[0], at, {"s": "i", "d": "d"})
        state = [
            self.filled("i", LOWEST_RAW if self.raw else LOWEST_F32),
            self.filled("i", 0.0),
            self.filled("ie", 0.0),
        ]
        for start, end, tested in self.key_ranges():
            bounds = [_build.index(x) if isinstance(x, int) else x for x in (start, end)]
            loop = scf.ForOp(*bounds, _build.index(self.block_kv), [t.value for t in state])
            with ir.InsertionPoint(loop.body):
                carried = [_Tile(v, t.letters) for v, t in zip(loop.inner_iter_args, state, strict=True)]
                after = self.step(q, carried, loop.induction_variable, batch, head, kv_head, tested)
                scf.YieldOp([t.value for t in after])
            state = [_Tile(v, t.letters) for v, t in zip(loop.results, state, strict=True)]
            self.loops.append(loop.operation)
        _, total, output = state
        layout = "".join({"s": "i", "d": "e"}[c] for c in self.info.layouts[3] if c in "sd")

        def quotient(x: ir.Value, total: ir.Value, _: ir.Value) -> ir.Value:
            zero = self.constant(0.0)
            nothing = arith.CmpFOp(arith.CmpFPredicate.OEQ, total, zero).result
            return self.narrow(arith.SelectOp(nothing, zero, arith.DivFOp(x, total).result).result)

        return self.generic([output, total], self.empty(layout, self.info.element_type), "ie", quotient)

    def key_ranges(self) -> list[tuple[Size, Size, bool]]:
        """(first key, end, tested) of each loop: steps that every row sees whole need no tests on positions."""
        info, step = self.info, self.block_kv
        whole = info.kv_len // step * step
        if not info.causal and not info.window:
            ranges: list[tuple[Size, Size, bool]] = [(0, whole, False), (whole, info.kv_len, True)]
            return [r for r in ranges if r[0] != r[1]]
        row = ir.AffineExpr.get_dim(0)
        constant = ir.AffineExpr.get_constant
        start: Size = 0
        end: Size = info.kv_len
        if info.window:
            start = self.affine_value(
                affine.AffineApplyOp, [ir.AffineExpr.get_floor_div(row, step) * step], [self._key(1 - info.window)]
            )
        if info.causal:
            last = [constant(info.kv_len), row + (self.block_q + self.shift)]
            end = self.affine_value(affine.AffineMinOp, last, [self.row0])
        if info.window or not self.split or not whole:
            return [(start, end, True)]
        # keys that the block's first row sees, in whole steps
        if self.shift < 0:
            seen, of = ir.AffineExpr.get_floor_div(row, step) * step, self._key(1)
        else:
            seen, of = ir.AffineExpr.get_floor_div(row + (self.shift + 1), step) * step, self.row0
        middle = self.affine_value(affine.AffineMinOp, [constant(whole), seen], [of])
        return [(0, middle, False), (middle, end, True)]

    def _key(self, offset: int) -> ir.Value:
        """The key beside the block's first row, `offset` further on, or the first: steps are counted without a sign."""
        moved = ir.AffineExpr.get_dim(0) + (self.shift + offset)
        return self.affine_value(affine.AffineMaxOp, [ir.AffineExpr.get_constant(0), moved], [self.row0])

    def step(
        self,
        q: _Tile,
        state: list[_Tile],
        key: ir.Value,
        batch: ir.Value,
        head: ir.Value,
        kv_head: ir.Value,
        tested: bool,
    ) -> list[_Tile]:
        """One block of keys: returns the new (maximum, sum, output)."""
        info = self.info
        edge = tested and info.kv_len % self.block_kv != 0
        self.extent["j"] = _build.remaining(key, info.kv_len, self.block_kv) if edge else self.block_kv
        top, total, output = state
        at: dict[str, Size] = {"b": batch, "h": kv_head, "s": key}
        k = self.load(1, info.layouts[1], at, {"s": "j", "d": "d"})
        v = self.load(2, info.layouts[2], at, {"s": "j", "d": "e"})
        scores = self.contract(q, k, self.filled("ij", 0.0), "ijd")
        mask = self.load_mask(batch, head, key) if info.mask_shape is not None else None
        scores = self.mask(scores, mask, key, tested)
        new_top = self.generic([scores], top, "ij", lambda s, m: arith.MaximumFOp(m, s).result)
        scale = self.exponent_scale

        def alpha(old: ir.Value, new: ir.Value, _: ir.Value) -> ir.Value:
            return math.Exp2Op(arith.MulFOp(arith.SubFOp(old, new).result, self.constant(scale)).result).result

        def power(s: ir.Value, m: ir.Value, _: ir.Value) -> ir.Value:
            c = self.constant(scale)
            if self.raw:  # s c - m c: one fused multiply-add per score
                return math.Exp2Op(arith.SubFOp(arith.MulFOp(s, c).result, arith.MulFOp(m, c).result).result).result
            return math.Exp2Op(arith.MulFOp(arith.SubFOp(s, m).result, c).result).result

        factor = self.generic([top, new_top], self.empty("i"), "i", alpha)
        weights = self.generic([scores, new_top], self.empty("ij"), "ij", power)
        scaled = self.generic([total, factor], self.empty("i"), "i", lambda x, f, _: arith.MulFOp(x, f).result)
        new_total = self.generic([weights], scaled, "ij", lambda p, t: arith.AddFOp(t, p).result)
        if info.element_type != self.acc:
            weights = self.generic([weights], self.empty("ij", info.element_type), "ij", lambda p, _: self.narrow(p))
        rescaled = self.generic([output, factor], self.empty("ie"), "ie", lambda x, f, _: arith.MulFOp(x, f).result)
        return [new_top, new_total, self.contract(weights, v, rescaled, "iej")]

    def mask(self, scores: _Tile, mask: _Tile | None, key: ir.Value, tested: bool) -> _Tile:
        """Scale (unless it waits), soft cap, mask and, in tested steps, the limits by position."""
        info = self.info
        if self.raw and mask is None and not tested:
            return scores

        def body(x: ir.Value, *rest: ir.Value) -> ir.Value:
            if not self.raw:
                x = arith.MulFOp(x, self.constant(info.scale)).result
            if info.softcap:
                inner = arith.MulFOp(x, self.constant(1.0 / info.softcap)).result
                x = arith.MulFOp(math.TanhOp(inner).result, self.constant(info.softcap)).result
            if mask is not None and isinstance(self.mask_type, ir.IntegerType):
                x = arith.SelectOp(rest[0], x, self.constant(float("-inf"))).result
            elif mask is not None:
                x = arith.AddFOp(x, self.widen(rest[0])).result
            return self.limit(x, key) if tested else x

        inputs = [scores] + ([mask] if mask is not None else [])
        return self.generic(inputs, self.empty("ij"), "ij", body)

    def limit(self, x: ir.Value, key: ir.Value) -> ir.Value:
        info = self.info
        lowest = self.constant(float("-inf"))
        column = arith.AddIOp(linalg.IndexOp(1).result, key).result

        def keep(predicate: arith.CmpIPredicate, bound: ir.Value, x: ir.Value) -> ir.Value:
            return arith.SelectOp(arith.CmpIOp(predicate, column, bound).result, x, lowest).result

        if info.kv_len % self.block_kv:  # what pads an edge tile must not weigh
            x = keep(arith.CmpIPredicate.slt, _build.index(info.kv_len), x)
        if info.causal or info.window:
            row = arith.AddIOp(linalg.IndexOp(0).result, self.row0).result
            if info.causal:
                x = keep(arith.CmpIPredicate.sle, arith.AddIOp(row, _build.index(self.shift)).result, x)
            if info.window:
                x = keep(arith.CmpIPredicate.sgt, arith.AddIOp(row, _build.index(self.shift - info.window)).result, x)
        return x


@transform_op(
    "tile_attention",
    operands=("attention",),
    consumes=("attention",),
    results=("forall", "loops", "contractions"),
    attributes={"block_q": int, "block_kv": int, "split": bool},
)
def tile_attention(rewriter, targets, block_q, block_kv, split):
    """Replaces one `mlirc.attention` by its block program: `block_q` queries a block, `block_kv` keys a step.

    `split`: keys that all rows of the block see go through a loop of their own, without tests on positions. Results:
    the forall, the key loops, and the contractions in them.
    """
    if len(targets) != 1 or targets[0].operation.name != ATTENTION:
        raise PayloadError(f"tile_attention needs one {ATTENTION}", targets[0] if targets else None)
    if min(block_q, block_kv) < 1:
        raise PayloadError(f"block_q {block_q}, block_kv {block_kv}: blocks have 1 or more rows", targets[0])
    op = targets[0].operation
    with ir.InsertionPoint(op), op.location:
        tiler = AttentionTiler(op, block_q, block_kv, split)
        op.results[0].replace_all_uses_with(tiler.build())
    rewriter.erase_op(op)
    return [[tiler.forall], tiler.loops, tiler.contractions]
