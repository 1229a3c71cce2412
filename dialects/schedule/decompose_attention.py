"""`schedule.decompose_attention`: attention as linalg ops on whole tensors, in the form that tiles well.

    scores  = q k^T                                  contraction, [b, h, i, j]
    masked  = scale, soft cap, mask, limits by position         elementwise; left out where it does nothing
    top     = max_j masked                           reduction, [b, h, i]
    weights = exp(masked - top)                      elementwise
    total   = sum_j weights                          reduction, [b, h, i]
    output  = weights v                              contraction, [b, h, i, e]
    result  = output / total                         elementwise, as the op's layout has it
    lse     = top + log total                        elementwise, [b, h, i]; where the op has it as a result

Loops: b batch, h head of queries, i query, j key, d element of a head, e element of a value. A head of keys that
several heads of queries share is read at `h floordiv group`. Accumulation is in f32 (f64 of f64).

Of attention over a cache in pages, keys and values are those of `mlirc.gather_pages`, and positions count from each
sequence's length. There the queries of all heads that share a head of keys may be the rows of one product (`pack`): h
is the head of keys then, and i = (head in the group) Sq + query.

Sinks, which are keys without a value, are in the result's op alone: total + exp(sink - top) takes the place of total.
So a sink is counted once, whatever steps or parts the keys are looked at in.

`mlirc-decompose-attention` builds these ops, too, as their exact meaning (`exact`): heads of queries are two dimensions
there, so that every map is a projected permutation; weights stay as wide as sums; quotients are quotients.
"""

from __future__ import annotations

import math as py_math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from mlirc.dialects import score_functions
from mlirc.dialects.mlirc_dialect import (
    ATTENTION,
    ATTENTIONS,
    AttentionInfo,
    gather_pages,
    head_vectors,
    scores_operands,
)
from mlirc.dialects.pages import length_of
from mlirc.dialects.schedule import _build
from mlirc.dialects.schedule._base import PayloadError, transform_op
from mlirc.ir.levels import WEIGHT
from mlirc.mlir import arith, ir, linalg, math, tensor

LOG2E = py_math.log2(py_math.e)
# Where nothing was seen yet the maximum is finite, so that (-inf) - max is never (-inf) - (-inf).
LOWEST_RAW = -1.0e30
LOWEST_F32 = -3.4028234663852886e38  # also below a float mask's finfo.min, whose rows must come out as PyTorch's do


@dataclass
class _Tensor:
    """A value, and the loop of each of its dimensions (`h` of two, where heads are split)."""

    value: ir.Value
    letters: str


class Decomposer:
    """Builds the linalg ops of one attention op. With `base2` exponentials are powers of two, and a positive factor
    with nothing between it and the softmax waits for the exponent: of 16-bit heads s c - max c, one fused multiply-add
    per score, whose error beside the rounded max c is the same along a row, but no power of two of f32 where max c
    exceeds 2^31; of f32 and f64 (s - max) c, which is right for any scores."""

    def __init__(self, op: ir.Operation, base2: bool, pack: bool = False, exact: bool = False) -> None:
        self.op, self.base2, self.pack, self.exact = op, base2, pack, exact
        self.info = info = AttentionInfo.of(op)
        self.acc = info.sum_type
        self.group = info.q_heads // info.kv_heads
        self.split = exact and self.group > 1
        self.vectors, self.more = head_vectors(op), scores_operands(op)
        self.nan_rows = info.nan_rows and "sinks" not in self.vectors
        self.sizes = {"b": info.batch, "h": info.q_heads, "i": info.q_len, "j": info.kv_len, "e": info.value_dim}
        if pack:
            self.group, rows = 1, info.q_heads // info.kv_heads * info.q_len
            self.sizes |= {"h": info.kv_heads, "i": rows}
        self.mask_type = ir.RankedTensorType(self.more[0].type).element_type if info.mask_shape is not None else None
        float_mask = self.mask_type is not None and not isinstance(self.mask_type, ir.IntegerType)
        changed = info.softcap or float_mask or info.score or "slopes" in self.vectors
        self.raw = base2 and not changed and info.scale > 0
        self.shift = info.kv_len - info.q_len  # query i stands at key position i + shift
        self.zero = self.constant(0.0)

    def constant(self, value: float) -> ir.Value:
        return arith.ConstantOp(self.acc, value).result

    def empty(self, letters: str, element: ir.Type | None = None) -> _Tensor:
        sizes: list[int] = []
        for c in letters:
            sizes += [self.info.kv_heads, self.group] if c == "h" and self.split else [self.sizes[c]]
        return _Tensor(_build.empty(sizes, element or self.acc), letters)

    def filled(self, letters: str, value: float) -> _Tensor:
        start = self.zero if value == 0 else self.constant(value)
        return _Tensor(linalg.fill(start, outs=[self.empty(letters).value]), letters)

    def generic(self, inputs: Sequence[_Tensor], out: _Tensor, loops: str, body: Callable[..., ir.Value]) -> _Tensor:
        """A generic over these loops; those that the output lacks are reduced. `k` reads `h` in groups."""
        first, head = self.positions(loops), loops.index("h")
        dims = {c: [first[c]] for c in loops} | {"k": [_build.Grouped(head, self.group) if self.group > 1 else head]}
        if self.split:
            dims |= {"h": [head, head + 1], "k": [head]}
        maps = [[d for c in t.letters for d in dims[c]] for t in (*inputs, out)]
        parallel = [c in out.letters for c in loops for _ in dims[c]]
        op = _build.generic([t.value for t in inputs], [out.value], maps, parallel)
        types = [ir.RankedTensorType(t.value.type).element_type for t in (*inputs, out)]
        block = op.regions[0].blocks.append(*types)
        with ir.InsertionPoint(block):
            linalg.YieldOp([body(*block.arguments)])
        return _Tensor(op.results[0], out.letters)

    def positions(self, loops: str) -> dict[str, int]:
        """The number of each loop, of split heads the one of keys."""
        return {c: i + (self.split and "h" in loops[:i]) for i, c in enumerate(loops)}

    def index(self, letter: str, loops: str = "bhij") -> ir.Value:
        """In a body over these loops, the number of the batch, head of queries, query or key; of packed heads, those of
        the head of keys and of the row."""
        at = self.positions(loops)[letter]
        here = linalg.IndexOp(at).result
        if letter != "h" or not self.split:
            return here
        first = arith.MulIOp(here, _build.index(self.group)).result
        return arith.AddIOp(first, linalg.IndexOp(at + 1).result).result

    def query(self, loops: str = "bhij") -> ir.Value:
        """In a body, the number of the query, also of packed heads."""
        row = self.index("i", loops)
        if not self.pack:
            return row
        return arith.RemUIOp(row, _build.index(self.info.q_len)).result if self.info.q_len > 1 else _build.index(0)

    def of_head(self, name: str, loops: str = "bhij") -> ir.Value:
        """In a body over these loops, the number that a vector has for its head."""
        head = self.index("h", loops)
        if self.pack:
            in_group = arith.DivUIOp(self.index("i", loops), _build.index(self.info.q_len)).result
            count = self.info.q_heads // self.info.kv_heads
            head = arith.AddIOp(arith.MulIOp(head, _build.index(count)).result, in_group).result
        return self.widen(tensor.ExtractOp(self.vectors[name], [head]).result)

    def operand(self, i: int, letters: dict[str, str]) -> _Tensor:
        return self.with_heads(self.op.operands[i], "".join(letters[c] for c in self.info.layouts[i]))

    def with_heads(self, value: ir.Value, letters: str) -> _Tensor:
        """A tensor that the op reads, with split heads where they are."""
        if self.split and "h" in letters:
            type_ = ir.RankedTensorType(value.type)
            at = letters.index("h")
            shape = [*type_.shape[:at], self.info.kv_heads, self.group, *type_.shape[at + 1 :]]
            split = ir.RankedTensorType.get(shape, type_.element_type)
            value = tensor.ExpandShapeOp(split, value, _pair_at(type_.rank, at), [], shape).result
        return _Tensor(value, letters)

    def widen(self, x: ir.Value) -> ir.Value:
        if x.type == self.acc:
            return x
        wider = ir.FloatType(x.type).width > ir.FloatType(self.acc).width
        return arith.TruncFOp(self.acc, x).result if wider else arith.ExtFOp(self.acc, x).result

    def narrow(self, x: ir.Value) -> ir.Value:
        return x if x.type == self.info.element_type else arith.TruncFOp(self.info.element_type, x).result

    def contract(self, a: _Tensor, b: _Tensor, start: _Tensor, loops: str) -> _Tensor:
        def body(x: ir.Value, y: ir.Value, acc: ir.Value) -> ir.Value:
            term = arith.MulFOp(self.widen(x), self.widen(y))
            if self.exact and "e" in b.letters:  # whose first factors a kernel may round to this
                term.attributes[WEIGHT] = ir.StringAttr.get(str(self.info.element_type))
            return arith.AddFOp(acc, term.result).result

        return self.generic([a, b], start, loops, body)

    def build(self) -> tuple[list[ir.Value], list[ir.Operation]]:
        """Adds the ops at the insertion point; returns the attention's results, and both products."""
        q = self.packed() if self.pack else self.operand(0, {"b": "b", "h": "h", "s": "i", "d": "d"})
        k = self.keys(1, {"b": "b", "h": "k", "s": "j", "d": "d"})
        v = self.keys(2, {"b": "b", "h": "k", "s": "j", "d": "e"})
        scores = self.contract(q, k, self.filled("bhij", 0.0), "bhijd")
        start = self.filled("bhie", 0.0)
        lowest = float("-inf") if self.exact else LOWEST_RAW if self.raw else LOWEST_F32
        state = [] if not self.info.softmax else [self.filled("bhi", lowest), self.filled("bhi", 0.0)]
        masked = self.masked(scores)
        if state:
            weights, top, total = self.softmax(masked, *state)
            sums = [total, top] if "sinks" in self.vectors else [total]
        else:
            weights, sums = masked, []
        output = self.contract(self.narrowed(weights), v, start, "bhiej")
        products = [scores.value.owner.operation, output.value.owner.operation]
        results = [self.result(output, *sums).value]
        if self.info.lse:
            results.append(self.log_sum(top, total).value)
        return results, products

    def keys(self, i: int, letters: dict[str, str]) -> _Tensor:
        if self.info.pages is None:
            return self.operand(i, letters)
        pages, lengths = self.more
        whole = gather_pages(self.op.operands[i], pages, lengths, self.info.layouts[i], self.info.element_type)
        return _Tensor(whole, "".join(letters[c] for c in "bhsd"))

    def packed(self) -> _Tensor:
        """The queries with the rows of each head of keys beside each other, which is how they lie in memory."""
        sizes = [self.info.batch, self.info.kv_heads, self.sizes["i"], self.info.head_dim]
        return _Tensor(_reshaped(self.op.operands[0], sizes), "bhid")

    def softmax(self, scores: _Tensor, lowest: _Tensor, zero: _Tensor) -> tuple[_Tensor, _Tensor, _Tensor]:
        """The exponentials of the scores beside their maximum, that, and their sum."""
        top = self.generic([scores], lowest, "bhij", lambda s, m: arith.MaximumFOp(m, s).result)

        def power(s: ir.Value, m: ir.Value, _: ir.Value) -> ir.Value:
            if not self.base2:
                found = math.ExpOp(arith.SubFOp(s, m).result).result
                if not self.exact or self.nan_rows:
                    return found
                nothing = arith.CmpFOp(arith.CmpFPredicate.OEQ, m, self.constant(float("-inf"))).result
                return arith.SelectOp(nothing, self.zero, found).result
            c = self.constant(self.info.scale * LOG2E if self.raw else LOG2E)
            half = self.info.element_type != self.acc
            # Beside a weight of 1, one below 2^-126 is none, and need not be right for the next 23 powers of two.
            flags = arith.FastMathFlags.afn if half else None
            if self.raw and half:
                difference = arith.SubFOp(arith.MulFOp(s, c).result, arith.MulFOp(m, c).result).result
            else:
                difference = arith.MulFOp(arith.SubFOp(s, m).result, c).result
            return math.Exp2Op(difference, fastmath=flags).result

        weights = self.generic([scores, top], self.empty("bhij"), "bhij", power)
        return weights, top, self.generic([weights], zero, "bhij", lambda p, t: arith.AddFOp(t, p).result)

    def log_sum(self, top: _Tensor, total: _Tensor) -> _Tensor:
        """The natural logarithm of the sum of a row's exponentials. A row that sees nothing has a sum of 0, or of NaN
        beside a maximum of -inf; a maximum of infinity is the logarithm itself."""

        def body(top: ir.Value, total: ir.Value, _: ir.Value) -> ir.Value:
            if self.raw:
                top = arith.MulFOp(top, self.constant(self.info.scale)).result
            found = arith.AddFOp(top, math.LogOp(total).result).result
            size = math.AbsFOp(top).result
            infinite = arith.CmpFOp(arith.CmpFPredicate.OEQ, size, self.constant(float("inf"))).result
            return arith.SelectOp(infinite, top, found).result

        return self.generic([top, total], self.empty("bhi"), "bhi", body)

    def with_sink(self, total: ir.Value, top: ir.Value) -> ir.Value:
        """The sum of a row's exponentials, and that of its head's sink. It is infinite where the row sees no key, or
        none that weighs anything beside the sink: then the result is 0."""
        sink = self.of_head("sinks", "bhie")
        if self.base2:
            c = self.constant(self.info.scale * LOG2E if self.raw else LOG2E)
            sink2 = arith.MulFOp(sink, self.constant(LOG2E)).result
            share = math.Exp2Op(arith.SubFOp(sink2, arith.MulFOp(top, c).result).result).result
        else:
            share = math.ExpOp(arith.SubFOp(sink, top).result).result
        nothing = arith.CmpFOp(arith.CmpFPredicate.OEQ, sink, self.constant(float("-inf"))).result
        return arith.AddFOp(total, arith.SelectOp(nothing, self.zero, share).result).result

    def narrowed(self, weights: _Tensor) -> _Tensor:
        """The weights as the second product takes them."""
        if self.info.element_type == self.acc or self.exact:
            return weights
        out = self.empty("bhij", self.info.element_type)
        return self.generic([weights], out, "bhij", lambda p, _: self.narrow(p))

    def result(self, output: _Tensor, *sums: _Tensor) -> _Tensor:
        layout = "bhsd" if self.pack else self.info.layouts[3]
        letters = "".join({"b": "b", "h": "h", "s": "i", "d": "e"}[c] for c in layout)
        out = self.empty(letters, self.info.element_type)
        if not sums:
            return self.generic([output], out, "bhie", lambda x, _: self.narrow(x))

        def quotient(x: ir.Value, total: ir.Value, *rest: ir.Value) -> ir.Value:
            zero = self.constant(0.0)
            if "sinks" in self.vectors:
                total = self.with_sink(total, rest[0])
            if self.exact:
                result = arith.DivFOp(x, total).result
            else:
                share = arith.DivFOp(self.constant(1.0), total).result  # the same along a row: one division for it
                result = arith.MulFOp(x, share).result
            if not self.nan_rows:  # 0 times infinity
                nothing = arith.CmpFOp(arith.CmpFPredicate.OEQ, total, zero).result
                result = arith.SelectOp(nothing, zero, result).result
            return self.narrow(result)

        return self.generic([output, *sums], out, "bhie", quotient)

    def unit_free(self, value: ir.Value) -> _Tensor:
        """The mask or an input, without its dimensions of size 1, along which it is the same."""
        type_ = ir.RankedTensorType(value.type)
        kept = [d for d, n in enumerate(type_.shape) if n != 1]
        if len(kept) < 4:
            # every dimension that goes joins the kept one in front of it; those in front of all join the first
            groups: list[list[int]] = []
            for d in range(4):
                if not groups or (d in kept and any(g in kept for g in groups[-1])):
                    groups.append([])
                groups[-1].append(d)
            new = ir.RankedTensorType.get([type_.shape[d] for d in kept], type_.element_type)
            value = tensor.CollapseShapeOp(new, value, groups if kept else []).result
        return self.with_heads(value, "".join("bhij"[d] for d in kept))

    def masked(self, scores: _Tensor) -> _Tensor:
        """Scale (unless it waits), soft cap, mask or function of the score, and limits by position."""
        info = self.info
        if self.raw and info.mask_shape is None and not info.causal and not info.window:
            return scores
        tables = {n: x for n, x in enumerate(self.more) if ir.RankedTensorType(x.type).rank < 4}
        more = [] if info.pages else [self.unit_free(x) for n, x in enumerate(self.more) if n not in tables]

        def body(x: ir.Value, *rest: ir.Value) -> ir.Value:
            if not self.raw:
                x = arith.MulFOp(x, self.constant(info.scale)).result
            if info.softcap:
                if self.exact:
                    inner = arith.DivFOp(x, self.constant(info.softcap)).result
                else:
                    inner = arith.MulFOp(x, self.constant(1.0 / info.softcap)).result
                x = arith.MulFOp(math.TanhOp(inner).result, self.constant(info.softcap)).result
            if info.score:
                elements = iter(rest)
                inputs = [tables[n] if n in tables else next(elements) for n in range(len(self.more))]
                x = score_functions.inline(info.score, x, lambda n: self.index("bhij"[n]), inputs)
            elif more and isinstance(self.mask_type, ir.IntegerType):
                x = arith.SelectOp(rest[0], x, self.constant(float("-inf"))).result
            elif more:
                x = arith.AddFOp(x, self.widen(rest[0])).result
            if "slopes" in self.vectors:
                x = arith.AddFOp(x, arith.MulFOp(self.of_head("slopes"), self.from_last_key()).result).result
            return self.limit(x)

        return self.generic([scores, *more], self.empty("bhij"), "bhij", body)

    def from_last_key(self) -> ir.Value:
        """In a body over scores, how far the key stands behind the last one: 0 or a negative number."""
        pages = self.info.pages
        length = length_of(self.more[1], self.index("b"), pages) if pages else _build.index(self.info.kv_len)
        distance = arith.SubIOp(self.index("j"), arith.SubIOp(length, _build.index(1)).result).result
        as_i32 = arith.IndexCastOp(ir.IntegerType.get_signless(32), distance).result
        return arith.SIToFPOp(self.acc, as_i32).result

    def limit(self, x: ir.Value) -> ir.Value:
        """Hides keys behind the query, and those that a window is past: as scores of -inf, or weights of 0."""
        hidden = float("-inf") if self.info.softmax else 0.0
        info, place = self.info, arith.CmpIPredicate
        if info.pages:
            return self.limit_by_length(x)
        for wanted, predicate, offset in (
            (info.causal, place.sle, self.shift),
            (info.window, place.sgt, self.shift - info.window),
        ):
            if wanted:
                column, row = self.index("j"), self.index("i")
                seen = arith.CmpIOp(predicate, column, arith.AddIOp(row, _build.index(offset)).result).result
                x = arith.SelectOp(seen, x, self.constant(hidden)).result
        return x

    def limit_by_length(self, x: ir.Value) -> ir.Value:
        """The same, of a query whose position counts from its sequence's length."""
        info, place = self.info, arith.CmpIPredicate
        assert info.pages is not None
        column, row = self.index("j"), self.query()
        length = length_of(self.more[1], self.index("b"), info.pages)
        last = arith.AddIOp(row, arith.SubIOp(length, _build.index(info.q_len)).result).result
        seen = [arith.CmpIOp(place.sle, column, last).result]
        if info.window:
            first = arith.SubIOp(last, _build.index(info.window)).result
            seen.append(arith.CmpIOp(place.sgt, column, first).result)
        for condition in seen:
            x = arith.SelectOp(condition, x, self.constant(float("-inf"))).result
        return x


def _reshaped(value: ir.Value, sizes: Sequence[int]) -> ir.Value:
    """A tensor as another one of the same elements in the same order; the first dimension is the same."""
    type_ = ir.RankedTensorType(value.type)
    flat = ir.RankedTensorType.get([sizes[0], py_math.prod(sizes[1:])], type_.element_type)
    rest = [list(range(1, type_.rank))]
    value = tensor.CollapseShapeOp(flat, value, [[0], *rest]).result
    new = ir.RankedTensorType.get(list(sizes), type_.element_type)
    return tensor.ExpandShapeOp(new, value, [[0], list(range(1, len(sizes)))], [], list(sizes)).result


def _pair_at(rank: int, at: int) -> list[list[int]]:
    """The reassociation of `rank` dimensions where dimension `at` is a pair."""
    return [[d] if d < at else [d, d + 1] if d == at else [d + 1] for d in range(rank)]


def exact_attention(op: ir.Operation) -> list[ir.Value]:
    """Builds what an attention means at the insertion point, on whole tensors; returns its results."""
    decomposer = Decomposer(op, base2=False, exact=True)
    results, _ = decomposer.build()
    if not decomposer.split:
        return results
    joined = []
    for value, old, at in zip(results, op.results, (decomposer.info.layouts[3].index("h"), 1), strict=False):
        type_ = ir.RankedTensorType(old.type)
        joined.append(tensor.CollapseShapeOp(type_, value, _pair_at(type_.rank, at)).result)
    return joined


@transform_op(
    "decompose_attention",
    operands=("attention",),
    consumes=("attention",),
    results=("result", "products"),
    attributes={"base2": bool, "pack": bool},
    defaults={"pack": False},
)
def decompose_attention(rewriter, targets, base2, pack):
    """Replaces one `mlirc.attention` or `mlirc.cached_attention` by linalg ops on whole tensors; returns the op that
    makes its result, and its two products. `base2`: exponentials are powers of two, and a positive scale goes into the
    exponent. `pack`: the queries of all heads that share a head of keys are the rows of one product."""
    if len(targets) != 1 or targets[0].operation.name not in ATTENTIONS:
        raise PayloadError(f"decompose_attention needs one {ATTENTION}", targets[0] if targets else None)
    op = targets[0].operation
    if pack and not AttentionInfo.of(op).packs:
        raise PayloadError(
            "pack: query heads that share keys do not lie next to each other, or a mask tells them apart", op
        )
    with ir.InsertionPoint(op), op.location:
        results, products = Decomposer(op, base2, pack).build()
        for old, new in zip(op.results, results, strict=True):
            old.replace_all_uses_with(_reshaped(new, list(old.type.shape)) if pack else new)
    rewriter.erase_op(op)
    return [[results[0].owner.operation], products]
