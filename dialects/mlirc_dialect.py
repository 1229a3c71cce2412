"""The dialect `mlirc`, and its payload ops that stay whole until a schedule takes them apart: `mlirc.attention`,
`mlirc.sink_attention`, `mlirc.table_attention` and `mlirc.cached_attention`. Its op of the `gpu` level is in
`tensor_map.py`.

    %o = "mlirc.attention"(%q, %k, %v [, %mask]) {scale : f64, causal : bool, window : i64, softcap : f64,
                                                 layouts = ["bhsd", "bhsd", "bhsd", "bhsd"] [, nan_rows]}
    %o = "mlirc.attention"(%q, %k, %v, inputs) {..., score = [lines] [, no_softmax]}

computes softmax(softcap(q k^T * scale) + mask) v, accumulating in f32 (f64 for f64). Logical shapes: q [B,Hq,Sq,D],
k [B,Hkv,Sk,D], v [B,Hkv,Sk,Dv], o [B,Hq,Sq,Dv]; `layouts` gives each one's physical order of dimensions.
A row that sees no key gives 0, with `nan_rows` NaN, as a softmax that is written out. `score` is a function of a score,
its place and one element of each input (`score_functions.py`; they are of one type), which makes another score in the
mask's stead; with
`no_softmax` it makes the weight, and keys that the causal and window limits hide weigh 0.

    %o, %lse = "mlirc.attention"(...) {...}

gives the natural logarithm of each row's sum of exponentials, too: lse [B,Hq,Sq], f32 (f64 for f64), -inf for a row
that sees no key. Two attentions of the same queries over different keys are combined by it. (Not of sinks, nor of a
cache in pages.)

    %o = "mlirc.sink_attention"(%q, %k, %v, %sinks [, %mask]) {as of attention}

is the same with one more key in each row's softmax, whose value is 0 and whose score is its head's: sinks [Hq], floats
("attention sinks": Xiao et al., 2024; of sinks 0 it is softmax-plus-one). A row that sees no key gives 0.

    %o = "mlirc.table_attention"(%q, %k, %v, %table, inputs) {as of attention, score = [lines]}

has a function of the score whose first input is a table, of rank 1 to 3, of which it reads any elements: the bias of
each distance between key and query, say.

    %o = "mlirc.cached_attention"(%q, %keys, %values, %pages, %lengths [, %slopes] [, %sinks])
        {scale, window, softcap, layouts [, slopes] [, sinks]}

is causal attention over a cache in pages: keys [N,Hkv,P,D] and values [N,Hkv,P,Dv] are pools of N pages of P tokens
each. Sequence b is the pages `pages`[b] (i64 [B,T]), of which its first `lengths`[b] tokens count (i64 [B], 0 to T P):
this is its Sk. What lies behind is never part of a result, NaNs neither. With the attribute `sinks` its last operand is
sinks as above; with `slopes`, [Hq] of the same type, slope * (j - (Sk - 1)) is added to the score of key j, behind
scale and soft cap (ALiBi: Press et al., 2022). A schedule that takes it apart reads

    %k = "mlirc.gather_pages"(%keys, %pages, %lengths) {layout = "bhsd"}

keys [B,Hkv,T P,D] whose pages lie one behind the other, with zeros behind each length, until `schedule.read_pages`
makes slices of the pool of it.
"""

# No `from __future__ import annotations` here: the bindings read the op class's annotations as types.
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from mlirc.dialects import score_functions
from mlirc.mlir import ext, ir

ATTENTION = "mlirc.attention"
CACHED_ATTENTION = "mlirc.cached_attention"
STORED = "f8E4M3FN"  # what a cache may be of, beside the type of the queries
SINK_ATTENTION = "mlirc.sink_attention"
TABLE_ATTENTION = "mlirc.table_attention"
WHOLE_ATTENTIONS = (ATTENTION, SINK_ATTENTION, TABLE_ATTENTION)  # keys and values are tensors of their own
ATTENTIONS = (*WHOLE_ATTENTIONS, CACHED_ATTENTION)
# On a map that unpacks the weights of a product, which is computed where it is read: bits of a number, or nothing.
DEQUANTIZE = "mlirc.dequantize"
GATHER_PAGES = "mlirc.gather_pages"
# On a map [G,R,C] whose part g is the matrix of a number g of a table, or zeros where that is negative.
GATHER_MATRICES = "mlirc.gather_matrices"
# On the last ops of a kernel that reduce its result in groups of a row, each of which one block has (a unit attribute).
PARTIAL = "mlirc.partial"
_ATTRIBUTES = {
    "scale": ir.FloatAttr,
    "causal": ir.BoolAttr,
    "window": ir.IntegerAttr,
    "softcap": ir.FloatAttr,
    "layouts": ir.ArrayAttr,
}
PLAIN_LAYOUTS = ("bhsd", "bhsd", "bhsd", "bhsd")
HEAD_VECTORS = ("slopes", "sinks")  # operands with a number for each head, in this order


class Mlirc(ext.Dialect, name="mlirc"):  # type: ignore[call-arg]
    """The dialect object."""


def checked(check: Callable[[ir.Operation], Any]) -> Any:
    """A verifier that emits one error at the op for what `check` raises."""

    def verify_invariants(op: ir.Operation) -> bool:
        try:
            check(op)
        except KeyError:  # MLIR looks for attributes that are not there later than it calls this
            op.operation.location.emit_error(f"'{op.operation.name}' op lacks an attribute")
            return False
        except ValueError as e:
            op.operation.location.emit_error(f"'{op.operation.name}' op {e}")
            return False
        return True

    return staticmethod(verify_invariants)


class AttentionOp(Mlirc.Operation, name="attention", traits=[ext.Pure]):  # type: ignore
    """Scaled dot-product attention as one op; see the module's docstring."""

    q: ext.Operand[Any]
    k: ext.Operand[Any]
    v: ext.Operand[Any]
    scale: Any
    causal: Any
    window: Any
    softcap: Any
    layouts: Any
    result: ext.Result[Any]
    lse: ext.Result[Any] | None
    more: Sequence[ext.Operand[Any]]  # the mask, or the score's inputs

    verify_invariants = checked(lambda op: AttentionInfo.of(op))


class SinkAttentionOp(Mlirc.Operation, name="sink_attention", traits=[ext.Pure]):  # type: ignore
    """Attention with a sink for each head as one op; see the module's docstring. An op of its own, since all of `more`
    is of one type."""

    q: ext.Operand[Any]
    k: ext.Operand[Any]
    v: ext.Operand[Any]
    sinks: ext.Operand[Any]
    scale: Any
    causal: Any
    window: Any
    softcap: Any
    layouts: Any
    result: ext.Result[Any]
    more: Sequence[ext.Operand[Any]]  # the mask, or the score's inputs

    verify_invariants = checked(lambda op: AttentionInfo.of(op))


class TableAttentionOp(Mlirc.Operation, name="table_attention", traits=[ext.Pure]):  # type: ignore
    """Attention with a function of the scores that reads a table as one op; see the module's docstring. An op of its
    own, since all of `more` is of one type."""

    q: ext.Operand[Any]
    k: ext.Operand[Any]
    v: ext.Operand[Any]
    table: ext.Operand[Any]  # the score's first input, of rank 1 to 3
    scale: Any
    causal: Any
    window: Any
    softcap: Any
    layouts: Any
    result: ext.Result[Any]
    lse: ext.Result[Any] | None
    more: Sequence[ext.Operand[Any]]  # the score's other inputs

    verify_invariants = checked(lambda op: AttentionInfo.of(op))


class CachedAttentionOp(Mlirc.Operation, name="cached_attention", traits=[ext.Pure]):  # type: ignore
    """Causal attention over a paged cache as one op; see the module's docstring."""

    q: ext.Operand[Any]
    keys: ext.Operand[Any]
    values: ext.Operand[Any]
    pages: ext.Operand[Any]
    lengths: ext.Operand[Any]
    scale: Any
    window: Any
    softcap: Any
    layouts: Any
    result: ext.Result[Any]
    more: Sequence[ext.Operand[Any]]  # slopes and sinks

    verify_invariants = checked(lambda op: AttentionInfo.of(op))


class GatherPagesOp(Mlirc.Operation, name="gather_pages", traits=[ext.Pure]):  # type: ignore
    """The sequences of a cache in pages, each in one piece; see the module's docstring."""

    pool: ext.Operand[Any]
    pages: ext.Operand[Any]
    lengths: ext.Operand[Any]
    layout: Any
    result: ext.Result[Any]

    verify_invariants = checked(lambda op: GatherInfo.of(op))


@dataclass(frozen=True)
class Pages:
    """A cache in pages: `pool` pages of `size` tokens each, of which a sequence has `count` at most."""

    pool: int
    size: int
    count: int

    @classmethod
    def of(cls, batch: int, k: dict, more: list[ir.Type]) -> "Pages":
        """What the pools of keys and the operands behind the values say; raises ValueError naming the broken rule."""
        types = [ir.RankedTensorType(t) for t in more]
        if len(types) != 2 or any(str(t.element_type) != "i64" or not t.has_static_shape for t in types):
            raise ValueError(f"it takes pages and lengths of i64, not {', '.join(map(str, more))}")
        pages, lengths = (tuple(t.shape) for t in types)
        if len(pages) != 2 or pages[0] != batch or lengths != (batch,):
            raise ValueError(f"pages and lengths are [B,T] and [B] of {batch} sequences, not {more[0]} and {more[1]}")
        if not (k["b"] and k["s"] and pages[1]):
            raise ValueError(f"a cache of {k['b']} pages of {k['s']} tokens, of which a sequence has {pages[1]}")
        return cls(k["b"], k["s"], pages[1])


@dataclass(frozen=True)
class GatherInfo:
    """What a gather_pages says: the pages, and the layout of the pool."""

    pages: Pages
    layout: str

    @classmethod
    def of(cls, op: Any) -> "GatherInfo":
        """Reads and checks the op; raises ValueError naming the broken rule."""
        op = op.operation
        layout = op.attributes["layout"]
        if not isinstance(layout, ir.StringAttr) or sorted(layout.value) != sorted("bhsd"):
            raise ValueError(f"layout is a permutation of 'bhsd', not {layout}")
        pool, result = (ir.RankedTensorType(v.type) for v in (op.operands[0], op.results[0]))
        if pool.rank != 4 or result.rank != 4 or not (pool.has_static_shape and result.has_static_shape):
            raise ValueError(f"the pool and the result are static rank-4 tensors, not {pool} and {result}")
        sizes = dict(zip(layout.value, pool.shape, strict=True))
        pages = Pages.of(result.shape[0], sizes, [v.type for v in list(op.operands)[1:]])
        shape = [result.shape[0], sizes["h"], pages.count * pages.size, sizes["d"]]
        wider = str(pool.element_type) == STORED and str(result.element_type) in ("f16", "bf16", "f32")
        if list(result.shape) != shape or not (wider or result.element_type == pool.element_type):
            raise ValueError(f"the result is {shape} of {pool.element_type}, not {result}")
        return cls(pages, layout.value)


def head_vectors(op: Any) -> dict[str, ir.Value]:
    """The operands of an attention that have a number for each head, by their names; raises ValueError where it has
    fewer than it says."""
    op = op.operation
    operands = list(op.operands)
    if op.name == SINK_ATTENTION:
        return {"sinks": operands[3]}
    names = [name for name in HEAD_VECTORS if op.name == CACHED_ATTENTION and name in op.attributes]
    if op.name == CACHED_ATTENTION and len(operands) != 5 + len(names):
        raise ValueError(
            f"it has {len(operands) - 5} operands behind the lengths, for {' and '.join(names) or 'nothing'}"
        )
    return dict(zip(names, operands[5:], strict=False))


def scores_operands(op: Any) -> list[ir.Value]:
    """What an attention reads beside queries, keys, values and numbers of heads: the mask, the inputs of a function of
    the scores, or pages and lengths."""
    op = op.operation
    first, last = 4 if op.name == SINK_ATTENTION else 3, 5 if op.name == CACHED_ATTENTION else None
    return list(op.operands)[first:last]


@dataclass(frozen=True)
class AttentionInfo:
    """What an attention op says, with logical sizes: what a schedule or a lowering needs to know."""

    batch: int
    q_heads: int
    kv_heads: int
    q_len: int
    kv_len: int
    head_dim: int
    value_dim: int
    element_type: ir.Type
    scale: float
    causal: bool
    window: int
    softcap: float
    layouts: tuple[str, str, str, str]
    mask_shape: tuple[int, ...] | None
    nan_rows: bool = False
    score: tuple[str, ...] = ()
    softmax: bool = True
    input_shapes: tuple[tuple[int, ...], ...] = ()  # of the score's inputs
    pages: "Pages | None" = None  # of a cache in pages; then `kv_len` is the longest sequence's
    vectors: tuple[str, ...] = ()  # those of `HEAD_VECTORS` that there are
    table: bool = False  # the score's first input is one
    lse: bool = False  # the log-sum-exp of each row is a result, too

    @classmethod
    def of(cls, op: Any) -> "AttentionInfo":
        """Reads and checks an attention op; raises ValueError naming the broken rule."""
        op = op.operation
        vectors, attributes = head_vectors(op), op.attributes
        operands = [*list(op.operands)[:3], *scores_operands(op)]
        cached = op.name == CACHED_ATTENTION
        for name, kind in _ATTRIBUTES.items():
            if name == "causal" and cached:
                continue
            if not isinstance(attributes[name], kind):
                raise ValueError(f"attribute '{name}' must be a {kind.__name__}, not {attributes[name]}")
        layouts = tuple(ir.StringAttr(a).value for a in ir.ArrayAttr(attributes["layouts"]))
        if len(layouts) != 4 or any(sorted(layout) != sorted("bhsd") for layout in layouts):
            raise ValueError(f"layouts must be four permutations of 'bhsd' (q, k, v, o), not {list(layouts)}")
        types = [ir.RankedTensorType(x.type) for x in (*operands[:3], op.results[0])]
        if any(t.rank != 4 or not t.has_static_shape for t in types):
            raise ValueError(f"q, k, v and the result must be static rank-4 tensors, not {', '.join(map(str, types))}")
        element = types[0].element_type
        stored = types[1].element_type if cached and str(types[1].element_type) == STORED else element
        kinds = [element, stored, stored, element]
        if str(element) not in ("f16", "bf16", "f32", "f64") or [t.element_type for t in types] != kinds:
            raise ValueError(f"q, k, v and the result must share one float type, not {', '.join(map(str, types))}")
        q, k, v, o = (dict(zip(layout, t.shape, strict=True)) for layout, t in zip(layouts, types, strict=True))
        score = tuple(ir.StringAttr(a).value for a in attributes["score"]) if "score" in attributes else ()
        shapes = [tuple(ir.RankedTensorType(x.type).shape) for x in operands[3:]]
        pages = None
        if cached:
            pages = Pages.of(q["b"], k, [x.type for x in operands[3:]])
            operands, shapes = operands[:3], []
            longest = {"b": q["b"], "s": pages.count * pages.size}
            k, v = k | longest, v | longest if (v["b"], v["s"]) == (k["b"], k["s"]) else v
        info = cls(
            q["b"], q["h"], k["h"], q["s"], k["s"], q["d"], v["d"], element,
            ir.FloatAttr(attributes["scale"]).value, cached or ir.BoolAttr(attributes["causal"]).value,
            ir.IntegerAttr(attributes["window"]).value, ir.FloatAttr(attributes["softcap"]).value,
            layouts, shapes[0] if shapes and not score else None, "nan_rows" in attributes,
            score, "no_softmax" not in attributes, tuple(shapes) if score else (), pages, tuple(vectors),
            op.name == TABLE_ATTENTION, len(op.results) > 1,
        )  # fmt: skip
        info._check(k, v, o, [x.type for x in operands[3:]])
        info._check_vectors({name: v.type for name, v in vectors.items()})
        info._check_lse([r.type for r in op.results][1:])
        return info

    def _check(self, k: dict, v: dict, o: dict, more: list[ir.Type]) -> None:
        expected = {
            "k": (k, dict(b=self.batch, h=self.kv_heads, s=self.kv_len, d=self.head_dim)),
            "v": (v, dict(b=self.batch, h=self.kv_heads, s=self.kv_len, d=self.value_dim)),
            "the result": (o, dict(b=self.batch, h=self.q_heads, s=self.q_len, d=self.value_dim)),
        }
        for name, (found, wanted) in expected.items():
            if found != wanted:
                raise ValueError(f"{name} has sizes {found} but q, k and v ask for {wanted}")
        if self.kv_heads == 0 or self.q_heads % self.kv_heads:
            raise ValueError(f"{self.q_heads} query heads are no multiple of {self.kv_heads} key heads")
        if self.window < 0 or self.softcap < 0:
            raise ValueError(f"window ({self.window}) and softcap ({self.softcap}) must be 0 (none) or positive")
        if not self.softmax and not self.score:
            raise ValueError("no_softmax: without a function of the scores there are no weights")
        if self.table and not self.score:
            raise ValueError("a table without a function of the scores, which reads it")
        if len(more) > 1 and not self.score:
            raise ValueError(f"{len(more)} operands behind q, k and v: there is one mask")
        what = "an input of the score" if self.score else "the mask"
        full = (self.batch, self.q_heads, self.q_len, self.kv_len)
        for n, type_ in enumerate(more):
            shape, element = ir.RankedTensorType(type_).shape, str(ir.RankedTensorType(type_).element_type)
            if self.table and not n:
                if not 0 < len(shape) < 4:
                    raise ValueError(f"the table of the score, {type_}, is of rank 1 to 3")
            elif len(shape) != 4 or any(m not in (1, n) for m, n in zip(shape, full, strict=True)):
                raise ValueError(f"{what}, {type_}, does not broadcast to {list(full)}")
            if element not in ("i1", "f16", "bf16", "f32", "f64"):
                raise ValueError(f"{what} must be i1 or float, not {element}")
        if self.score:
            score_functions.parse(self.score, self.sum_type, [score_input(ir.RankedTensorType(t)) for t in more])

    def _check_vectors(self, types: "dict[str, ir.Type]") -> None:
        for name, type_ in types.items():
            if not self.softmax:
                raise ValueError(f"{name}: without a softmax there is nothing that they are part of")
            vector = ir.RankedTensorType(type_) if isinstance(type_, ir.RankedTensorType) else None
            floats = vector is not None and str(vector.element_type) in ("f16", "bf16", "f32", "f64")
            if vector is None or list(vector.shape) != [self.q_heads] or not floats:
                raise ValueError(f"{name} are {self.q_heads} floats, one for each head of queries, not {type_}")

    def _check_lse(self, types: "list[ir.Type]") -> None:
        for type_ in types:
            if not self.softmax:
                raise ValueError("a log-sum-exp of weights without a softmax")
            shape = [self.batch, self.q_heads, self.q_len]
            tensor = ir.RankedTensorType(type_) if isinstance(type_, ir.RankedTensorType) else None
            if tensor is None or list(tensor.shape) != shape or tensor.element_type != self.sum_type:
                raise ValueError(f"the log-sum-exp is {shape} of {self.sum_type}, not {type_}")

    @property
    def packs(self) -> bool:
        """Whether the queries (and results) of the heads that share a head of keys lie next to each other in memory,
        and scores depend on the query's position alone."""
        plain = ("bhsd", "bshd") if self.q_len == 1 else ("bhsd",)
        same = self.mask_shape is None or self.mask_shape[1:3] == (1, 1)
        return not self.score and same and self.layouts[0] in plain and self.layouts[3] in plain

    @property
    def sum_type(self) -> ir.Type:
        """What scores and sums are of."""
        kind = ir.F64Type if str(self.element_type) == "f64" else ir.F32Type
        return kind.get(self.element_type.context)


def score_input(type_: ir.RankedTensorType) -> ir.Type:
    """What a function of scores sees of an input: an element, or all of a table."""
    return type_.element_type if type_.rank == 4 else type_


def attention(
    q: ir.Value,
    k: ir.Value,
    v: ir.Value,
    mask: ir.Value | None = None,
    *,
    scale: float,
    causal: bool = False,
    window: int = 0,
    softcap: float = 0.0,
    layouts: Sequence[str] = PLAIN_LAYOUTS,
    nan_rows: bool = False,
    score: Sequence[str] = (),
    softmax: bool = True,
    inputs: Sequence[ir.Value] = (),
    sinks: ir.Value | None = None,
    lse: bool = False,
    loc: ir.Location | None = None,
) -> ir.Value:
    """Builds `mlirc.attention`, or with sinks `mlirc.sink_attention`, or where the first input is a table
    `mlirc.table_attention`, at the current insertion point and returns its result, of inferred shape. With `lse` the op
    has the log-sum-exp as its second one."""
    more = (
        {"causal": ir.BoolAttr.get(causal)}
        | ({"nan_rows": ir.UnitAttr.get()} if nan_rows else {})
        | ({"score": ir.ArrayAttr.get([ir.StringAttr.get(line) for line in score])} if score else {})
        | ({} if softmax else {"no_softmax": ir.UnitAttr.get()})
    )
    operands = [q, k, v, *(x for x in (sinks, mask) if x is not None), *inputs]
    table = inputs and ir.RankedTensorType(inputs[0].type).rank < 4
    name = TABLE_ATTENTION if table else SINK_ATTENTION if sinks is not None else ATTENTION
    return _create(name, operands, scale, window, softcap, layouts, more, loc, lse)


def cached_attention(
    operands: Sequence[ir.Value],
    *,
    scale: float,
    window: int = 0,
    softcap: float = 0.0,
    layouts: Sequence[str] = PLAIN_LAYOUTS,
    slopes: ir.Value | None = None,
    sinks: ir.Value | None = None,
    loc: ir.Location | None = None,
) -> ir.Value:
    """Builds `mlirc.cached_attention` of queries, keys, values, pages and lengths, as `attention` does."""
    given = {name: x for name, x in (("slopes", slopes), ("sinks", sinks)) if x is not None}
    more: dict[str, ir.Attribute] = {name: ir.UnitAttr.get() for name in given}
    return _create(CACHED_ATTENTION, [*operands, *given.values()], scale, window, softcap, layouts, more, loc)


def gather_pages(
    pool: ir.Value, pages: ir.Value, lengths: ir.Value, layout: str = "bhsd", element: ir.Type | None = None
) -> ir.Value:
    """Builds `mlirc.gather_pages` at the current insertion point and returns its result, of another type of elements
    than the pool's where one is given."""
    type_ = ir.RankedTensorType(pool.type)
    sizes = dict(zip(layout, type_.shape, strict=True))
    batch, count = ir.RankedTensorType(pages.type).shape
    shape = [batch, sizes["h"], count * sizes["s"], sizes["d"]]
    result = ir.RankedTensorType.get(shape, element or type_.element_type)
    attributes = {"layout": ir.StringAttr.get(layout)}
    return ir.Operation.create(GATHER_PAGES, [result], [pool, pages, lengths], attributes).results[0]


def _create(
    name: str, operands: Sequence[ir.Value], scale: float, window: int, softcap: float, layouts: Sequence[str],
    more: dict[str, ir.Attribute], loc: ir.Location | None, lse: bool = False,
) -> ir.Value:  # fmt: skip
    q, _, v = operands[:3]
    sizes = dict(zip(layouts[0], ir.RankedTensorType(q.type).shape, strict=True))
    sizes["d"] = ir.RankedTensorType(v.type).shape[layouts[2].index("d")]
    element = ir.RankedTensorType(q.type).element_type
    results = [ir.RankedTensorType.get([sizes[c] for c in layouts[3]], element)]
    if lse:
        wide = ir.F64Type.get() if isinstance(element, ir.F64Type) else ir.F32Type.get()
        results.append(ir.RankedTensorType.get([sizes[c] for c in "bhs"], wide))
    attributes = {
        "scale": ir.FloatAttr.get(ir.F64Type.get(), scale),
        "window": ir.IntegerAttr.get(ir.IntegerType.get_signless(64), window),
        "softcap": ir.FloatAttr.get(ir.F64Type.get(), softcap),
        "layouts": ir.ArrayAttr.get([ir.StringAttr.get(layout) for layout in layouts]),
    }
    return ir.Operation.create(name, results, list(operands), attributes | more, loc=loc).results[0]


def load(ctx: ir.Context) -> None:
    """Loads the dialect into the context, once per process."""
    with ctx, ir.Location.unknown():
        Mlirc.load()
