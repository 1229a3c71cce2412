"""Facts about single ops that the grouping and the kernel builders share: what an op is and which elements it reads."""

from __future__ import annotations

from collections.abc import Collection
from math import prod

from mlirc.dialects.mlirc_dialect import (
    ATTENTIONS,
    CACHED_ATTENTION,
    DEQUANTIZE,
    GATHER_MATRICES,
    head_vectors,
    scores_operands,
)
from mlirc.ir.tensors import VIEWS, shape_of
from mlirc.mlir import ir, linalg, nested
from mlirc.passes.graph import classify
from mlirc.passes.graph.evaluate import Indices, is_move, loop_indices, map_results, owner_of, sources
from mlirc.passes.graph.index import Index, dim
from mlirc.passes.graph.outline import is_recomputed
from mlirc.passes.graph.scalar import EXPENSIVE, Scalar

INDEX_CHAIN = 32
SMALL, SMALL_BODY = 1024, 16  # elements and operations that a map may have which is as well computed again
WHOLE_DIVISIONS = {"arith.divsi", "arith.divui", "arith.remsi", "arith.remui"}
WIDENING = ("arith.extf", "arith.extsi", "arith.extui", "arith.sitofp", "arith.uitofp")
MANY_OPERANDS = 8
INNER_LOOPS = 2000  # the number of a contraction's first loop that it reduces
ATTENTION_LOOPS = "bphksutdec"
# Logical dimensions of q, k, v; the mask is "bhst". In pages: p of the pool, u of a page's tokens, c of a sequence.
ATTENTION_OPERANDS = ("bhsd", "bktd", "bkte")
PAGED_OPERANDS = ("bhsd", "pkud", "pkue")


def kind(op: ir.Operation) -> str:
    """`move`, `map`, `reduction`, `scan`, `matmul`, `attention` or `generic` (anything else)."""
    if is_move(op):
        return "move"
    found = classify.kind_of(op)
    if found in ("elementwise", "gather"):
        return "map" if is_map(op) else "generic"
    return found


def is_map(op: ir.Operation) -> bool:
    """Whether the op computes each element alone, with a body of plain scalar ops."""
    return classify.is_map_generic(op) and not any(True for inner in classify.body(op) for _ in inner.regions)


def is_plain_copy(op: ir.Operation) -> bool:
    """Whether a map only moves elements (a broadcast or transpose written as `linalg.generic`)."""
    return is_map(op) and len(classify.body(op)) == 1 and len(op.results) == 1 and len(op.operands) == 2


def is_expensive(op: ir.Operation) -> bool:
    return op.name == "linalg.generic" and any(inner.name in EXPENSIVE for inner in classify.body(op))


def is_small_index_map(op: ir.Operation) -> bool:
    """Whether a map is a few cheap operations for each of a few elements, and these are whole numbers (no booleans) or
    made of such, by no more than INDEX_CHAIN maps: positions, pages, lengths, angles."""
    waiting, seen = [op], {op}
    while waiting:
        here = waiting.pop()
        if not _is_small_and_cheap(here):
            continue
        if any(_is_whole(v) for v in (here.results[0], *here.operands)):
            return True
        for value in here.operands:
            for found in (owner_through_views(value), owner_through_moves(value)):
                if found is not None and found not in seen and len(seen) < INDEX_CHAIN:
                    seen.add(found)
                    waiting.append(found)
    return False


def _is_small_and_cheap(op: ir.Operation) -> bool:
    if not is_map(op) or prod(shape_of(op.results[0])) > SMALL or len(classify.body(op)) > SMALL_BODY:
        return False
    names = {inner.name for inner in classify.body(op)}
    # An embedding is no such map; the page of a position is one number.
    return not names & EXPENSIVE - WHOLE_DIVISIONS and ("tensor.extract" not in names or _is_whole(op.results[0]))


def _is_whole(value: ir.Value) -> bool:
    element = ir.ShapedType(value.type).element_type if isinstance(value.type, ir.ShapedType) else value.type
    return isinstance(element, ir.IntegerType) and element.width > 1


def is_of_log_sums(op: ir.Operation, depth: int = INDEX_CHAIN) -> bool:
    """Whether a map makes its elements of attentions' log-sum-exps alone: of one number a row, beside the elements of
    the rows that it is computed for, it is as well computed again."""
    if not is_map(op) or not depth:
        return False
    read = [v for v, _ in sources(op, first_element(op)) if not is_constant(v)]
    for value in read:
        owner = owner_of(value)
        while owner is not None and (owner.name in VIEWS or is_move(owner)):
            value = owner.operands[0]
            owner = owner_of(value)
        lse = owner is not None and owner.name in ATTENTIONS and ir.OpResult(value).result_number == 1
        if owner is None or not (lse or is_of_log_sums(owner, depth - 1)):
            return False
    return bool(read)


def is_widening_cast(op: ir.Operation) -> bool:
    """Whether a map only casts one tensor to a wider type."""
    return _is_cast(op, WIDENING)


def reads_many(op: ir.Operation) -> bool:
    """Whether a map reads many tensors, as those of windows do, or only narrows the result of one that does."""
    if _is_cast(op, ("arith.truncf",)):
        producer = owner_through_views(op.operands[0])
        return producer is not None and is_map(producer) and len(producer.operands) > MANY_OPERANDS
    return len(op.operands) > MANY_OPERANDS


def _is_cast(op: ir.Operation, names: Collection[str]) -> bool:
    """Whether a map only casts one tensor, by one of these ops."""
    if not is_map(op) or len(op.operands) != 2 or len(classify.body(op)) != 2:
        return False
    return classify.body(op)[0].name in names


def has_few_rows(contraction: ir.Operation) -> bool:
    """Whether a contraction's result has so few rows or columns that reading its larger operand is all the work."""
    shape = shape_of(contraction.results[0])
    return len(shape) < 2 or min(shape[-2:]) <= 16


def makes_halves(op: ir.Operation) -> bool:
    """Whether a widening cast makes 16-bit floats, of 8-bit ones or of integers."""
    return is_widening_cast(op) and str(ir.RankedTensorType(op.results[0].type).element_type) in ("bf16", "f16")


def is_free(op: ir.Operation) -> bool:
    """Whether every kernel that reads a map may as well compute it: casts to wider types, and maps of no tensors."""
    if is_expensive(op):
        return False
    return is_widening_cast(op) or all(is_constant(v) for v, _ in sources(op, first_element(op)))


def reduced_sizes(op: ir.Operation) -> list[int]:
    """The sizes of the loops that a reduction generic reduces, in loop order."""
    loops = classify.iterators(op)
    sizes = [0] * len(loops)
    for value, affine_map in zip(op.operands, classify.maps(op), strict=True):
        for expr, n in zip(affine_map.results, shape_of(value), strict=True):
            if isinstance(expr, ir.AffineDimExpr):
                sizes[expr.position] = n
    return [n for n, kind_ in zip(sizes, loops, strict=True) if kind_ == "reduction"]


def loop_sizes(op: ir.Operation) -> list[int]:
    """`reduced_sizes`, those of 1 left out."""
    return [n for n in reduced_sizes(op) if n != 1]


def reduction_loops(op: ir.Operation, read: Indices, cols: list[Index]) -> list[Index]:
    """All loop indices of a reduction whose result is read at `read` and whose reduced loops of size > 1 are `cols`."""
    loops, rest = loop_indices(op, 0, read), iter(cols)
    sizes = iter(reduced_sizes(op))
    for i, kind_ in enumerate(classify.iterators(op)):
        if kind_ == "reduction":
            loops[i] = next(rest) if next(sizes) != 1 else Index()
    return loops


def contraction_maps(op: ir.Operation) -> tuple[list[ir.AffineMap], list[str]]:
    """Indexing maps (lhs, rhs, result) and iterator types of a contraction, named or generic."""
    if op.name == "linalg.generic":
        return classify.maps(op), classify.iterators(op)
    all_maps = list(linalg.get_indexing_maps(op))
    all_maps = [m.value if isinstance(m, ir.AffineMapAttr) else m for m in all_maps]
    parallel = {e.position for e in all_maps[2].results}
    return all_maps, ["parallel" if i in parallel else "reduction" for i in range(all_maps[0].n_dims)]


def inner_loops(read: Indices | None) -> frozenset:
    """The loops that a contraction reduces among those of an operand's read."""
    return frozenset(d for d in dims_in(read) if INNER_LOOPS <= d < INNER_LOOPS + 1000)


def contraction_reads(op: ir.Operation, read: Indices) -> tuple[Indices, Indices]:
    """The indices at which a contraction's operands are read for the result element `read`; reduced loops are
    numbered from INNER_LOOPS."""
    all_maps, kinds = contraction_maps(op)
    loops = [Index()] * len(kinds)
    for expr, index in zip(all_maps[2].results, read, strict=True):
        loops[expr.position] = index
    sizes = {}
    for value, affine_map in zip(list(op.operands)[:2], all_maps, strict=False):
        for expr, n in zip(affine_map.results, shape_of(value), strict=True):
            sizes[expr.position] = n
    for i, kind_ in enumerate(kinds):
        if kind_ == "reduction":
            loops[i] = dim(INNER_LOOPS + i, sizes[i])
    lhs, rhs = (tuple(f(loops) for f in map_results(m)) for m in all_maps[:2])
    return lhs, rhs


def attention_operands(op: ir.Operation) -> tuple[str, str, str]:
    """The logical dimensions of q, k and v, in the order that a layout calls `bhsd`."""
    return PAGED_OPERANDS if op.name == CACHED_ATTENTION else ATTENTION_OPERANDS


def attention_reads(op: ir.Operation) -> list[Indices]:
    """The indices at which an attention reads q, k, v, the mask, the inputs or pages and lengths, and the numbers of
    heads, over loops named by the logical dimensions, numbered as in `ATTENTION_LOOPS`: each operand has its own in
    that order."""
    layouts = [a.value for a in op.attributes["layouts"]]
    sizes: dict[str, int] = {}
    names = []
    for value, logical, layout in zip(op.operands, attention_operands(op), layouts, strict=False):
        physical = [logical["bhsd".index(letter)] for letter in layout]
        sizes |= dict(zip(physical, shape_of(value), strict=True))
        names.append(physical)
    more = scores_operands(op)
    if op.name == CACHED_ATTENTION:
        sizes["c"] = shape_of(more[0])[1]
    loops = {letter: dim(i, sizes[letter]) for i, letter in enumerate(ATTENTION_LOOPS) if letter in sizes}
    found = [tuple(loops[letter] for letter in physical) for physical in names]
    heads = [(loops["h"],)] * len(head_vectors(op))
    if op.name == CACHED_ATTENTION:
        return [*found, (loops["b"], loops["c"]), (loops["b"],), *heads]
    for operand in more:
        mask = shape_of(operand)
        if len(mask) < 4:  # a table of the score, read anywhere: in loops of its own
            found.append(tuple(dim(len(ATTENTION_LOOPS) + i, n) for i, n in enumerate(mask)))
            continue
        found.append(tuple(loops[x] if n != 1 else Index() for x, n in zip("bhst", mask, strict=True)))
    return [*found[:3], *heads, *found[3:]]


def owner_through_views(value: ir.Value) -> ir.Operation | None:
    """The op that makes a value, looking through views."""
    op = owner_of(value)
    while op is not None and op.name in VIEWS:
        op = owner_of(op.operands[0])
    return op


def owner_through_moves(value: ir.Value) -> ir.Operation | None:
    """The op that makes a value, looking through views, moves and casts of elements."""
    op = owner_of(value)
    while op is not None and (op.name in VIEWS or is_move(op) or is_plain_copy(op) or is_widening_cast(op)):
        op = owner_of(op.operands[0])
    return op


def is_dequantization(op: ir.Operation | None) -> bool:
    """Whether an op is a map that unpacks the weights of a product: what it reads has fewer bytes than its result."""
    return op is not None and DEQUANTIZE in op.attributes and is_map(op)


# Packed weights that wgmma takes as its operand in registers: bits of a number, rows and columns at least, and what
# rows of the other operand are a multiple of, which tensor copies bring.
HELD_BITS, HELD_ROWS, HELD_COLUMNS, HELD_MULTIPLE = (4, 8), 64, 128, 8


def is_unpacked_in_registers(op: ir.Operation) -> bool:
    """Whether a packed weight [N, K] can be the operand of warpgroups' products that comes through registers."""
    bits, shape = ir.IntegerAttr(op.attributes[DEQUANTIZE]).value, shape_of(op.results[0])
    if len(shape) != 2 or str(ir.RankedTensorType(op.results[0].type).element_type) not in ("bf16", "f16"):
        return False
    n, k = shape
    return bits in HELD_BITS and n >= HELD_ROWS and k >= HELD_COLUMNS and k % HELD_MULTIPLE == 0


def is_gather_of_matrices(op: ir.Operation | None) -> bool:
    """Whether an op is a map that chooses a matrix for each group of a product."""
    return op is not None and GATHER_MATRICES in op.attributes and is_map(op)


def tensors_read(op: ir.Operation) -> list[ir.Value]:
    read = list(op.operands) + [v for inner in nested(op) for v in inner.operands]
    return [v for v in dict.fromkeys(read) if isinstance(v.type, ir.RankedTensorType)]


def is_constant(value: ir.Value) -> bool:
    op = owner_through_views(value)
    return op is not None and is_recomputed(op)


def without_cast(node: Scalar) -> Scalar:
    """What a scalar widens, if it is a widening cast; else the scalar itself."""
    return node.operands[0] if node.kind == "op" and node.data[0] in WIDENING else node


def first_element(op: ir.Operation) -> Indices:
    return tuple(Index() for _ in shape_of(op.results[0]))


def is_linear(indices: Indices | None) -> bool:
    return indices is not None and all(i.is_linear() for i in indices)


def dims_in(indices) -> frozenset:
    return frozenset(a[1] for i in indices or () for a in i.atoms() if a[0] == "d")


def is_generator_row(op: ir.Operation) -> bool:
    """Whether an op reads a part of the state of the generator of random numbers: an argument of kind `random`."""
    source = op.operands[0] if op.name == "tensor.extract_slice" else None
    while source is not None and not isinstance(source.owner, ir.Block):
        source = source.owner.operands[0] if source.owner.name in VIEWS else None
    return source is not None and _argument_kind(source) == "random"


def _argument_kind(argument: ir.Value) -> str:
    attributes, number = argument.owner.owner.attributes, ir.BlockArgument(argument).arg_number
    found = attributes["arg_attrs"][number] if "arg_attrs" in attributes else {}
    return ir.StringAttr(found["mlirc.kind"]).value if "mlirc.kind" in found else ""


def _sources_of(op: ir.Operation) -> list[ir.Value]:
    return [value for value, _ in sources(op, first_element(op))]


def is_made_of_numbers(op: ir.Operation) -> bool:
    """Whether a map's elements are made of their places, and of tensors that are much smaller: random numbers."""
    most = prod(shape_of(op.results[0])) // 64
    waiting, seen = [op], {op}
    while waiting:
        for value in _sources_of(waiting.pop()):
            maker = owner_through_views(value)
            if prod(shape_of(value)) <= most or is_constant(value) or maker in seen:
                continue
            if maker is None:
                while not isinstance(value.owner, ir.Block):
                    value = value.owner.operands[0]
                if _argument_kind(value) != "constant":
                    return False
            elif is_map(maker):
                seen.add(maker)
                waiting.append(maker)
            else:
                return False
    return True
