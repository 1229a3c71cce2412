"""What a schedule script may know of a kernel before it is transformed: shapes, types and the roles of dimensions."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod

from mlirc.dialects.mlirc_dialect import ATTENTIONS, AttentionInfo, Pages
from mlirc.dialects.schedule._base import PayloadError
from mlirc.dialects.schedule._dims import (
    Dims,
    Structure,
    body_of,
    contraction,
    producer,
    structure,
    structured_ops,
)
from mlirc.dialects.schedule.collapse_dims import collapse
from mlirc.dialects.schedule.generalize import generalize_all
from mlirc.dialects.schedule.match_root import root_of
from mlirc.dialects.schedule.partial_results import detach_partials
from mlirc.dialects.schedule.place_results import detach
from mlirc.dialects.sort import SortInfo
from mlirc.ir import recurrences
from mlirc.ir.combiners import combining
from mlirc.ir.levels import FP32
from mlirc.ir.scans import Scan, is_scan
from mlirc.ir.tensors import ELEMENT_BYTES
from mlirc.mlir import ir
from mlirc.precision import DEFAULT_FP32
from mlirc.schedule.contraction_info import ContractionInfo, contraction_info, is_chosen
from mlirc.schedule.stencils import DepthwiseInfo, depthwise, neighbors

_FREE_OPS = {"tensor.empty", "tensor.collapse_shape", "tensor.expand_shape", "tensor.extract_slice", "arith.constant"}


@dataclass(frozen=True)
class TensorInfo:
    """Shape and element type (`f32`, `bf16`, `i64`, ...) of an argument or result."""

    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True)
class RootDim:
    """One iteration dimension of the kernel's root op: its size, and whether blocks must take it whole, because an op
    of the kernel reduces it (or, in a kernel of row reductions, because it is no row)."""

    extent: int
    whole: bool


@dataclass(frozen=True)
class MatvecInfo:
    """A kernel of matrix-vector products, or of products with one row or column, as reductions of the matrices' rows.
    `dims` are the root op's dimensions after `schedule.collapse_vectors`."""

    dims: tuple[RootDim, ...]
    row_length: int  # elements
    matrix_bytes: int  # of an element
    chosen: bool = False  # the matrices are such that numbers choose
    reduces: bool = False  # something else than products: what blocks read waits for barriers of that
    parts: int = 0  # of a row, which are added up beside the products (`mlirc-partial-rows`)


@dataclass(frozen=True)
class AttentionShape:
    """A kernel that is one `mlirc.attention`, or with `pages` one `mlirc.cached_attention`."""

    batch: int
    q_heads: int
    kv_heads: int
    q_len: int
    kv_len: int
    head_dim: int
    value_dim: int
    dtype: str
    causal: bool
    window: int = 0
    rows: bool = True  # keys and values have contiguous rows: the elements of a head are their last dimension
    pages: Pages | None = None
    packs: bool = False  # the queries of the heads that share a head of keys lie next to each other

    def divides_pages(self, keys: int) -> bool:
        """Whether steps of so many keys end with a page, where there are pages."""
        return self.pages is None or self.pages.size % keys == 0


@dataclass(frozen=True)
class RecurrenceInfo:
    """A kernel that is a recurrence: `steps` steps over a state [batch, units], which is multiplied with a matrix of
    `gates` rows for each unit, of `dtype`."""

    steps: int
    batch: int
    units: int
    gates: int
    dtype: str
    k_last: bool  # rows of the matrix run along k
    count: int = 1  # of recurrences that are alike in all this, and do not depend on each other


@dataclass(frozen=True)
class ScanInfo:
    """A kernel with one scan along dimension `dim` of the kernel's, of `length` elements. `linear`: it is a
    linear recurrence, whose steps are made one after the other; `ends`: the kernel returns what it ends with, too."""

    dim: int
    length: int
    linear: bool
    ends: bool
    count: int  # of the values that it hands on


@dataclass(frozen=True)
class KernelInfo:
    """A kernel as scripts see it. `dims` are the root op's dimensions after `schedule.collapse_dims`.

    `obstacle` says why the kernel's ops cannot be tiled together into one block program ("" when they can). `fp32` is
    how FP32 products may be made (`mlirc.precision`). Of a kernel whose last ops say where its rows go
    (`schedule.place_results`), an obstacle to scripts that do not place them, `places` is how many of these follow each
    other.
    """

    name: str
    kind: str
    arguments: tuple[TensorInfo, ...]
    results: tuple[TensorInfo, ...]
    ops: tuple[str, ...]  # names of the ops of the function's body, in order
    dims: tuple[RootDim, ...] = ()
    row_length: int = 0  # elements per row of a kernel of row reductions; 0 for others
    reductions: int = 0  # how many ops reduce these rows
    contraction: ContractionInfo | None = None
    matvec: MatvecInfo | None = None
    attention: AttentionShape | None = None
    permuted: bool = False  # some operand is read with its dimensions in another order than the root's
    neighbors: int = 0  # elements that a map reads beside its own (`mlirc.schedule.stencils`)
    depthwise: DepthwiseInfo | None = None  # a depthwise convolution within the map
    scan: ScanInfo | None = None
    obstacle: str = ""
    # Where the kernel's last ops reduce its result in parts (`schedule.partial_results`): elements of a row in each.
    partial: int = 0
    recurrence: RecurrenceInfo | None = None
    sort: SortInfo | None = None  # of a kernel that is one `mlirc.sort`
    fp32: str = DEFAULT_FP32
    places: int = 0

    @property
    def element_bytes(self) -> int:
        """Bytes of the widest element type among the large tensors (as large as the results, or half that)."""
        large = max((prod(r.shape) for r in self.results), default=1) // 2
        return max(ELEMENT_BYTES.get(t.dtype, 8) for t in self.arguments + self.results if prod(t.shape) >= large)


def _tensor_info(type_: ir.Type) -> TensorInfo:
    if not isinstance(type_, ir.RankedTensorType):
        return TensorInfo((), str(type_))
    tensor = ir.RankedTensorType(type_)
    return TensorInfo(tuple(tensor.shape), str(tensor.element_type))


def describe(function: ir.Operation) -> KernelInfo:
    """Analyses a kernel function, which it leaves as it is. Never fails: what it cannot analyse becomes `obstacle`."""
    type_ = ir.FunctionType(ir.TypeAttr(function.attributes["function_type"]).value)
    block = function.regions[0].blocks[0]
    attributes = function.attributes
    basic = dict(
        name=ir.StringAttr(attributes["sym_name"]).value,
        kind=ir.StringAttr(attributes["mlirc.kind"]).value if "mlirc.kind" in attributes else "generic",
        arguments=tuple(map(_tensor_info, type_.inputs)),
        results=tuple(map(_tensor_info, type_.results)),
        ops=tuple(o.operation.name for o in block.operations),
        fp32=ir.StringAttr(attributes[FP32]).value if FP32 in attributes else DEFAULT_FP32,
    )
    if basic["kind"] == recurrences.KIND:
        return KernelInfo(**basic, recurrence=_recurrence(function), obstacle="it is a loop over time steps")  # type: ignore[arg-type]
    if any(name in basic["ops"] for name in ATTENTIONS):  # type: ignore[operator]
        return KernelInfo(**basic, attention=_attention_shape(block), obstacle="it holds attention")  # type: ignore[arg-type]
    if basic["kind"] == "sort":
        return KernelInfo(**basic, sort=SortInfo.of(block.operations[0]), obstacle="it sorts rows")  # type: ignore[arg-type]
    if any(0 in r.shape for r in basic["results"]):  # type: ignore[attr-defined]
        return KernelInfo(**basic, obstacle="a result is empty")  # type: ignore[arg-type]
    with function.location:
        module = ir.Module.create()
        clone = function.clone(ip=ir.InsertionPoint(module.body)).operation
        matvec, places = None, 0
        try:
            generalize_all(clone)
            places, partial = detach(clone), detach_partials(clone)
            _check_ops(clone)
            matvec = _matvec(clone)
            collapse(clone)
            about = dict(basic, **_analyse(clone), matvec=matvec, partial=partial, places=places)
            found = KernelInfo(**about)  # type: ignore[arg-type]
            return replace(found, obstacle=_special(found))
        except PayloadError as e:
            return KernelInfo(**basic, matvec=matvec, obstacle=str(e), places=places)  # type: ignore[arg-type]


def _recurrence(function: ir.Operation) -> RecurrenceInfo | None:
    infos = set()
    for r in (found := recurrences.read(function)):
        dtype = _tensor_info(function.regions[0].blocks[0].arguments[r.matrix].type).dtype
        infos.add(RecurrenceInfo(r.steps, r.batch, r.units, r.gates, dtype, r.k_last, len(found)))
    return infos.pop() if len(infos) == 1 else None


def _special(kernel: KernelInfo) -> str:
    """Why scripts that were not written for it must not take a kernel whose ops can be tiled together."""
    if kernel.places:
        return "its last ops say where rows go"
    if kernel.partial:
        return "its last ops reduce its result in parts"
    return "a contraction together with another reduction" if kernel.contraction and kernel.contraction.scaled else ""


def _matvec(function: ir.Operation) -> MatvecInfo | None:
    """The kernel as reductions of matrices' rows; None where it has no product of one row or column, or where a matrix
    has its rows along another dimension than the one that is summed."""
    matrix_bytes, chosen, reduces, parts = 0, False, False, 0
    for op in structured_ops(function.regions[0].blocks[0]):
        roles, s = contraction(op), structure(op)
        if roles is None:
            reduces |= not all(s.parallel)
            if not all(s.parallel) and isinstance(s.inputs[0].owner, ir.Block) and len(list(s.inputs[0].uses)) == 1:
                parts = s.extents[s.parallel.index(False)]
            continue
        vectors = [all(s.extents[d] == 1 for d in own) for own in (roles.m, roles.n)]
        if not any(vectors):
            return None
        chooser = producer(s.inputs[1])
        if is_chosen(chooser):
            if all(vectors) or any(o.operation.name == "arith.select" for o in body_of(chooser).operations):
                return None  # one of these may be none: a loop is skipped, and there is none here
            chosen = True
        element = ir.RankedTensorType(s.inputs[1 if vectors[0] else 0].type).element_type
        matrix_bytes = max(matrix_bytes, ELEMENT_BYTES.get(str(element), 8))
    if not matrix_bytes:
        return None
    clone = function.clone(ip=ir.InsertionPoint(function)).operation
    try:
        collapse(clone, vectors=True)
        found = _analyse(clone)
    except PayloadError:
        return None
    finally:
        clone.erase()
    if not found["row_length"]:
        return None
    return MatvecInfo(found["dims"], found["row_length"], matrix_bytes, chosen, reduces, parts=parts)


def _attention_shape(block: ir.Block) -> AttentionShape | None:
    """The shape of the one attention op that, but for reshapes, is the kernel; None when there is more."""
    ops = [o.operation for o in block.operations]
    found = [o for o in ops if o.name in ATTENTIONS]
    if len(found) != 1 or any(o.name not in _FREE_OPS | {*ATTENTIONS, "func.return"} for o in ops):
        return None
    a = AttentionInfo.of(found[0])
    sizes = (a.batch, a.q_heads, a.kv_heads, a.q_len, a.kv_len, a.head_dim, a.value_dim)
    rows = all(layout.endswith("d") for layout in a.layouts[1:3])
    return AttentionShape(*sizes, str(a.element_type), a.causal, a.window, rows, a.pages, a.packs)


def _check_ops(function: ir.Operation) -> None:
    block = function.regions[0].blocks[0]
    ops = structured_ops(block)
    if all(op.name == "linalg.fill" for op in ops):
        raise PayloadError("it computes nothing but fills")
    if not ops:
        raise PayloadError("it holds no linalg op")
    produced = {r for op in ops for r in op.results}
    late: set[ir.Value] = set()
    for op in list(block.operations)[:-1]:
        op = op.operation
        if op in ops:
            if any(v in late for v in op.operands):
                raise PayloadError("a reshape stands between its ops", op)
            _check_body(op, produced)
        elif op.name not in _FREE_OPS:
            raise PayloadError(f"it holds a {op.name}", op)
        elif any(v in produced or v in late for v in op.operands):
            late.update(op.results)
        for v in [*op.operands, *op.results]:
            if isinstance(v.type, ir.RankedTensorType) and not _plain(v.type):
                raise PayloadError(f"it holds a value of type {v.type}", op)


def _plain(type_: ir.Type) -> bool:
    tensor = ir.RankedTensorType(type_)
    return tensor.has_static_shape and str(tensor.element_type) in ELEMENT_BYTES.keys() - {"index"}


def _check_body(op: ir.Operation, produced: set[ir.Value]) -> None:
    for inner in body_of(op).operations:
        inner = inner.operation
        name = inner.name
        if name == "tensor.extract":
            if inner.operands[0] in produced:
                raise PayloadError("it gathers from a tensor that it computes itself", op)
        elif name.split(".")[0] not in ("arith", "math") and name not in ("linalg.index", "linalg.yield"):
            raise PayloadError(f"the body of an op holds a {name}", op)


def is_reduction_body(s: Structure) -> bool:
    """True when every result is one combiner applied to the accumulator and something that does not read it."""
    block = body_of(s.op)
    accumulators = list(block.arguments)[len(s.inputs) :]
    for acc, value in zip(accumulators, list(block.operations)[-1].operation.operands, strict=True):
        if combining(value, acc) is None:
            return False
    return True


def _analyse(function: ir.Operation) -> dict:
    ops = structured_ops(function.regions[0].blocks[0])
    dims = Dims(ops)
    root = root_of(function)
    row = dims.of[dims.ops.index(root.operation)]
    if any(map(is_scan, ops)):
        return _scanned(dims, row, root)
    found = contraction_info(dims, row)
    for s in dims.structures:
        if not all(s.parallel) and not is_reduction_body(s):
            raise PayloadError("a reduction's body is not one combining op", s.op)
        if not all(s.parallel) and len(s.outputs) != 1:
            raise PayloadError("a reduction has several results", s.op)
    reduces = bool(dims.reduced) and not found
    if reduces:
        _check_rows(dims)
        loose = [c for c in row if c in dims.row_classes()]
    else:
        loose = [c for c in row if c not in dims.reduced]
        if {c for r in dims.of for c in r} - set(row) - dims.reduced:
            raise PayloadError("its ops do not share one iteration space", root)
    for value in dims.escaping():
        if any(c not in dims.value_classes(value) and dims.extent[c] > 1 for c in loose):
            raise PayloadError("a result lacks a dimension that others have", value.owner)
    return dict(
        dims=tuple(RootDim(dims.extent[c], c not in loose) for c in row),
        row_length=max(prod(dims.extent[c] for c in r if c not in loose) for r in dims.of) if reduces else 0,
        reductions=sum(not all(s.parallel) for s in dims.structures) if reduces else 0,
        contraction=found,
        permuted=_is_permuted(dims, row),
        neighbors=neighbors(root),
        depthwise=depthwise(root),
    )


def _scanned(dims: Dims, row: tuple[int, ...], root: ir.Operation) -> dict:
    """What `_analyse` says of a kernel with a scan."""
    scans = [i for i, op in enumerate(dims.ops) if is_scan(op)]
    i, about = scans[0], Scan.of(dims.ops[scans[0]])
    along = dims.of[i][about.dim]
    others = [n for n, s in enumerate(dims.structures) if n != i and not all(s.parallel)]
    reduced = {c for n in others for c, p in zip(dims.of[n], dims.structures[n].parallel, strict=True) if not p}
    if len(scans) > 1 or len(reduced) > 1 or along in reduced:
        raise PayloadError("it has another scan, or reduces along the scan or several dimensions", dims.ops[scans[-1]])
    if not all(is_reduction_body(dims.structures[n]) and len(dims.structures[n].outputs) == 1 for n in others):
        raise PayloadError("a reduction's body is not one combining op", dims.ops[others[0]])
    if {c for r in dims.of for c in r} != set(row):
        raise PayloadError("its ops do not share one iteration space", root)
    values = dims.escaping()
    ends = [v for v in values if along not in dims.value_classes(v)]
    rows = [c for c in row if c != along and c not in reduced and dims.extent[c] > 1]
    if any(c not in dims.value_classes(v) for v in values for c in rows):
        raise PayloadError("a result lacks a dimension that others have", dims.ops[i])
    return dict(
        dims=tuple(RootDim(dims.extent[c], c == along or c in reduced) for c in row),
        permuted=_is_permuted(dims, row),
        scan=ScanInfo(row.index(along), dims.extent[along], about.linear, bool(ends), about.count),
    )


def _check_rows(dims: Dims) -> None:
    """Row reductions: each reduces one dimension, the last of every operand that has it, and keeps all rows, or none:
    what all rows have in common, which every block computes."""
    rows = dims.row_classes()
    if rows & dims.reduced:
        raise PayloadError("a dimension is a row of one reduction and reduced by another", dims.ops[-1])
    for i, s in enumerate(dims.structures):
        reduced = [c for c, parallel in zip(dims.of[i], s.parallel, strict=True) if not parallel]
        own = rows & set(dims.of[i])
        if reduced and (len(reduced) > 1 or own and own != rows):
            raise PayloadError("it reduces several dimensions, or not all rows alike", s.op)
        for m in s.maps:
            if any(c in dims.reduced for c in dims.map_classes(i, m)[:-1]):
                raise PayloadError("it reduces a dimension that is not the last", s.op)


def _is_permuted(dims: Dims, row: tuple[int, ...]) -> bool:
    order = {c: p for p, c in enumerate(row)}
    for i, s in enumerate(dims.structures):
        for m in s.maps:
            places = [order[c] for c in dims.map_classes(i, m) if c in order]
            if places != sorted(places):
                return True
    return False
