"""Turns `mlirc.attention` and `mlirc.cached_attention` into linalg ops: for the CPU, for the generic GPU path, and as
the ops' exact meaning.

The scores are materialized (f32, or f64 for f64 inputs). Heads are kept as two dimensions, key head and group, so that
grouped-query attention needs no copies of k and v: every indexing map stays a projected permutation.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from mlirc.dialects.mlirc_dialect import ATTENTIONS, GATHER_PAGES, AttentionInfo, GatherInfo, gather_pages
from mlirc.dialects.pages import length_of, page_of
from mlirc.dialects.score_functions import inline
from mlirc.ir.levels import WEIGHT
from mlirc.mlir import arith, ir, linalg, math, tensor
from mlirc.passes import register

_LOOPS = "bhgijd"  # batch, key head, group, query, key, head or value dimension


@register("mlirc-decompose-attention")
def run(module: ir.Module, wide_f32: str = "0") -> None:
    """Replaces every attention and gather of pages of the module, or with `wide_f32` the attentions of several queries
    whose heads have more elements of f32 than that: their results do not fit registers. A query row that sees no key
    gives 0."""
    found: list[ir.Operation] = []

    def visit(op: ir.Operation) -> ir.WalkResult:
        if op.name == GATHER_PAGES and wide_f32 == "0":
            found.append(op)
        if op.name in ATTENTIONS and (wide_f32 == "0" or _is_wide(AttentionInfo.of(op), int(wide_f32))):
            found.append(op)
        return ir.WalkResult.ADVANCE

    module.operation.walk(visit)
    for op in found:
        with module.context, op.location, ir.InsertionPoint(op):
            op.results[0].replace_all_uses_with(_gathered(op) if op.name == GATHER_PAGES else _decompose(op))
        op.erase()


def _is_wide(info: AttentionInfo, limit: int) -> bool:
    return str(info.element_type) == "f32" and info.q_len > 1 and max(info.head_dim, info.value_dim) > limit


def _decompose(op: ir.Operation) -> ir.Value:
    info = AttentionInfo.of(op)
    acc = info.sum_type
    group = info.q_heads // info.kv_heads
    sizes = dict(b=info.batch, h=info.kv_heads, g=group, i=info.q_len, j=info.kv_len)
    lowest = arith.constant(acc, float("-inf"))
    zero = arith.constant(acc, 0.0)

    q, q_loops = _split_heads(op.operands[0], info.layouts[0], "hg", group, "i")
    k, k_loops = _keys(op, info, 1)

    def fill(loops: str, value: ir.Value, **more: int) -> ir.Value:
        empty = tensor.empty([(sizes | more)[c] for c in loops], acc)
        return linalg.fill(value, outs=[empty])

    def product(x: ir.Value, y: ir.Value, sum_: ir.Value) -> ir.Value:
        return arith.addf(arith.mulf(_widen(x, acc), _widen(y, acc)), sum_)

    scores = _generic("bhgijd", [(q, q_loops), (k, k_loops)], (fill("bhgij", zero), "bhgij"), product)
    visible = _mask_scores(op, info, scores, sizes, lowest)
    empty = tensor.empty([sizes[c] for c in "bhgij"], acc)
    if not info.softmax:
        return _weigh(op, info, visible, None, sizes)
    top = _generic("bhgij", [(visible, "bhgij")], (fill("bhgi", lowest), "bhgi"), arith.maximumf)

    def weight(score: ir.Value, highest: ir.Value, _: ir.Value) -> ir.Value:
        power = math.exp(arith.subf(score, highest))
        if info.nan_rows:
            return power
        return arith.select(arith.cmpf(arith.CmpFPredicate.OEQ, highest, lowest), zero, power)

    weights = _generic("bhgij", [(visible, "bhgij"), (top, "bhgi")], (empty, "bhgij"), weight)
    total = _generic("bhgij", [(weights, "bhgij")], (fill("bhgi", zero), "bhgi"), arith.addf)
    return _weigh(op, info, weights, total, sizes)


def _weigh(
    op: ir.Operation, info: AttentionInfo, weights: ir.Value, total: ir.Value | None, sizes: dict[str, int]
) -> ir.Value:
    """The weights [b,h,g,i,j] times the values, divided by their total [b,h,g,i] if there is one: the op's result."""
    acc = ir.RankedTensorType(weights.type).element_type
    v, v_loops = _keys(op, info, 2)
    zero = arith.constant(acc, 0.0)
    sums = linalg.fill(zero, outs=[tensor.empty([(sizes | {"d": info.value_dim})[c] for c in "bhgid"], acc)])

    def weigh(weight: ir.Value, value: ir.Value, sum_: ir.Value) -> ir.Value:
        term = arith.mulf(weight, _widen(value, acc))
        term.owner.attributes[WEIGHT] = ir.StringAttr.get(str(info.element_type))
        return arith.addf(term, sum_)

    weighted = _generic("bhgijd", [(weights, "bhgij"), (v, v_loops)], (sums, "bhgid"), weigh)

    def quotient(x: ir.Value, *rest: ir.Value) -> ir.Value:
        if total is None:
            return _narrow(x, info.element_type)
        result, total_ = arith.divf(x, rest[0]), rest[0]
        if not info.nan_rows:
            result = arith.select(arith.cmpf(arith.CmpFPredicate.OEQ, total_, zero), zero, result)
        return _narrow(result, info.element_type)

    o_loops = info.layouts[3].replace("h", "hg").replace("s", "i")
    empty = tensor.empty([(sizes | {"d": info.value_dim})[c] for c in o_loops], info.element_type)
    inputs = [(weighted, "bhgid")] + ([(total, "bhgi")] if total is not None else [])
    out = _generic("bhgid", inputs, (empty, o_loops), quotient)
    at = o_loops.index("h")
    return tensor.collapse_shape(op.results[0].type, out, _groups(4, at))


def _keys(op: ir.Operation, info: AttentionInfo, number: int) -> tuple[ir.Value, str]:
    """Keys (1) or values (2) with their loops: of a cache in pages gathered, and zero behind each sequence's length."""
    value, layout = op.operands[number], info.layouts[number]
    if info.pages is None:
        return value, layout.replace("s", "j")
    return _gathered(gather_pages(value, op.operands[3], op.operands[4], layout).owner, erase=True), "bhjd"


def _gathered(op: ir.Operation, erase: bool = False) -> ir.Value:
    """A gather of pages, as the gather of each element."""
    info, type_ = GatherInfo.of(op), ir.RankedTensorType(op.results[0].type)
    pool, pages, lengths = op.operands

    def body(_: ir.Value) -> ir.Value:
        b, h, j, d = (linalg.IndexOp(n).result for n in range(4))
        page = page_of(pages, b, arith.divui(j, _index(info.pages.size)), info.pages)
        at = {"b": page, "h": h, "s": arith.remui(j, _index(info.pages.size)), "d": d}
        inside = arith.cmpi(arith.CmpIPredicate.slt, j, length_of(lengths, b, info.pages))
        found = tensor.extract(pool, [at[c] for c in info.layout])
        return arith.select(inside, found, arith.constant(type_.element_type, 0.0))

    out = tensor.empty(list(type_.shape), type_.element_type)
    made = _generic("bhjd", [], (out, "bhjd"), body)
    if erase:
        op.erase()
    return made


def _index(value: int) -> ir.Value:
    return arith.constant(ir.IndexType.get(), value)


def _groups(rank: int, at: int) -> list[list[int]]:
    """The reassociation of `rank` dimensions where dimension `at` is a pair."""
    return [[d] if d < at else [d, d + 1] if d == at else [d + 1] for d in range(rank)]


def _split_heads(x: ir.Value, layout: str, heads: str, group: int, s: str) -> tuple[ir.Value, str]:
    """Splits the dimension `h` into (h / group, group), or (1, 1) when it has size 1; returns it with its loops."""
    type_ = ir.RankedTensorType(x.type)
    at = layout.index("h")
    size = type_.shape[at]
    pair = [1, 1] if size == 1 else [size // group, group]
    shape = [*type_.shape[:at], *pair, *type_.shape[at + 1 :]]
    split = ir.RankedTensorType.get(shape, type_.element_type)
    expanded = tensor.expand_shape(split, x, _groups(4, at), [], shape)
    return expanded, layout.replace("h", heads).replace("s", s)


def _mask_scores(
    op: ir.Operation, info: AttentionInfo, scores: ir.Value, sizes: dict[str, int], lowest: ir.Value
) -> ir.Value:
    """Scale, soft cap, mask or function of the score, and the causal and window limits: scores [b,h,g,i,j] in and out,
    or weights."""
    acc = ir.RankedTensorType(scores.type).element_type
    inputs = [(scores, "bhgij")]
    group = info.q_heads // info.kv_heads
    for operand in [] if info.pages else list(op.operands)[3:]:
        mask, _ = _split_heads(operand, "bhij", "hg", group, "s")
        shape = ir.RankedTensorType(mask.type).shape
        inputs.append((mask, "".join(c if n != 1 else "1" for c, n in zip("bhgij", shape, strict=True))))
    hidden = lowest if info.softmax else arith.constant(acc, 0.0)

    def place(number: int) -> ir.Value:
        """The index of batch, head, query or key."""
        if number == 1:
            key_head = arith.muli(linalg.IndexOp(1).result, _index(group))
            return arith.addi(key_head, linalg.IndexOp(2).result)
        return linalg.IndexOp(number and number + 1).result

    def body(score: ir.Value, *rest: ir.Value) -> ir.Value:
        x = arith.mulf(score, arith.constant(acc, info.scale))
        if info.softcap:
            cap = arith.constant(acc, info.softcap)
            x = arith.mulf(cap, math.tanh(arith.divf(x, cap)))
        if info.score:
            x = inline(info.score, x, place, rest[:-1])
        elif len(rest) > 1:
            x = _apply_mask(x, rest[0], acc, lowest)
        if info.causal or info.window:
            if info.pages:
                shift = arith.subi(length_of(op.operands[4], linalg.IndexOp(0).result, info.pages), _index(info.q_len))
            else:
                shift = _index(info.kv_len - info.q_len)
            last = arith.addi(linalg.IndexOp(3).result, shift)
            key = linalg.IndexOp(4).result
        if info.causal:
            x = arith.select(arith.cmpi(arith.CmpIPredicate.sle, key, last), x, hidden)
        if info.window:
            first = arith.subi(last, _index(info.window))
            x = arith.select(arith.cmpi(arith.CmpIPredicate.sgt, key, first), x, hidden)
        return x

    empty = tensor.empty([sizes[c] for c in "bhgij"], acc)
    return _generic("bhgij", inputs, (empty, "bhgij"), body)


def _apply_mask(x: ir.Value, mask: ir.Value, acc: ir.Type, lowest: ir.Value) -> ir.Value:
    if isinstance(mask.type, ir.IntegerType):
        return arith.select(mask, x, lowest)
    narrower = ir.FloatType(mask.type).width > ir.FloatType(acc).width
    return arith.addf(x, _narrow(mask, acc) if narrower else _widen(mask, acc))


def _generic(
    loops: str, inputs: Sequence[tuple[ir.Value, str]], output: tuple[ir.Value, str], body: Callable
) -> ir.Value:
    """A linalg.generic over named loops; each operand has one letter per dimension (`1`: a dimension of size 1)."""
    out, out_loops = output
    zero = ir.AffineConstantExpr.get(0)

    def map_(letters: str) -> ir.AffineMap:
        exprs = [zero if c == "1" else ir.AffineDimExpr.get(loops.index(c)) for c in letters]
        return ir.AffineMap.get(len(loops), 0, exprs)

    maps = [map_(letters) for _, letters in inputs] + [map_(out_loops)]
    iterators = ["parallel" if c in out_loops else "reduction" for c in loops]
    op = linalg.GenericOp(
        [out.type],
        [x for x, _ in inputs],
        [out],
        ir.ArrayAttr.get([ir.AffineMapAttr.get(m) for m in maps]),
        ir.ArrayAttr.get([ir.Attribute.parse(f"#linalg.iterator_type<{i}>") for i in iterators]),
    )
    elements = [ir.RankedTensorType(x.type).element_type for x in (*[x for x, _ in inputs], out)]
    block = op.regions[0].blocks.append(*elements)
    with ir.InsertionPoint(block):
        linalg.yield_([body(*block.arguments)])
    return op.results[0]


def _widen(x: ir.Value, to: ir.Type) -> ir.Value:
    return x if x.type == to else arith.extf(to, x)


def _narrow(x: ir.Value, to: ir.Type) -> ir.Value:
    return x if x.type == to else arith.truncf(to, x)
