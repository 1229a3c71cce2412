"""Attention that a model spells out, as `mlirc::attention`: a softmax of what is made of a product's scores, times the
values; or what is made of the scores itself, times the values. Scaling, capping, masks and biases become its attributes
and operands, anything else that is done element by element a function of the score (`score_trace.py`). It is found in a
decomposed graph (`simplify.py`), where softmax is a maximum, a difference, an exponential, a sum and a quotient.

Only what is the same for all inputs is replaced: a mask hides keys with -inf, everything finite that is added is a
bias, and a row of nothing but -inf stays NaN. Scores or weights that something else reads stay as they are."""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.fx import Graph, Node

import mlirc.frontend.gather_matrices  # noqa: F401  registers the op
from mlirc.frontend.attention import is_lowest, pattern_of
from mlirc.frontend.score_trace import ARITHMETIC, NoScore, Places, Score
from mlirc.frontend.spelled_logsumexp import log_sums, replace
from mlirc.frontend.spelled_softmax import DTYPES, VIEWS, NotAttention, Softmax, through, value_of

aten = torch.ops.aten
WIDEST = 256  # elements of a head: beyond, two products with the scores in memory are faster


@dataclass
class _Scores:
    """What was found between the scores' product and the softmax."""

    scale: float = 1.0
    softcap: float = 0.0
    # Each with the rank of the op that reads it.
    bias: list[tuple[Node, int, float]] = field(default_factory=list)  # and what it is multiplied with
    mask: list[tuple[Node, int, bool]] = field(default_factory=list)  # and the value of a key that is seen
    finite: bool = False  # a mask hides with the lowest number, and so that each row sees some key
    capped: bool = False  # a tanh is further out
    factor: float = 1.0  # of that, and of what is further in


def find_attention(graph: Graph, constants: Any, call: Callable[..., Node]) -> list[Node]:
    """Replaces attention that is spelled out; returns the new nodes. `constants` are those of `simplify`, `call` makes
    a node like another one."""
    made = []
    for node in list(graph.nodes):
        if node.target is aten.bmm.default:
            try:
                new = _replace(graph, node, constants, call)
            except NotAttention:
                continue
            made.append(new)
    return made


def _scalar(x: Any, constants: Any) -> float | None:
    """A number, or the one of a constant tensor of one element."""
    if isinstance(x, (int, float)) and not isinstance(x, bool):
        return float(x)
    if x in constants and value_of(x).numel() == 1 and value_of(x).is_floating_point():
        return float(constants.value(x))
    return None


def _read_scores(node: Any, constants: Any, users: int) -> tuple[Node, _Scores, list[int]]:
    """The product that scores are made of, what is done to them, and their shape of rank 4, if they have one."""
    found, shape = _Scores(), []
    while True:
        if value_of(node).dim() == 4:
            shape = list(value_of(node).shape)
        if node.target is aten.bmm.default:
            return node, found, shape
        inner = through(node, users)
        node, users = (_step(node, found, constants) if inner is node else inner), 1
        if len(node.users) > 1:
            raise NotAttention


def _step(node: Node, found: _Scores, constants: Any) -> Any:
    """Takes one op off the scores, from the outermost inwards."""
    inside = found.scale != 1.0 or found.capped
    args: Any = node.args
    if node.target in (aten.mul.Tensor, aten.div.Tensor, aten.mul.Scalar, aten.div.Scalar):
        for i in (0, 1) if node.target is aten.mul.Tensor else (1,):
            number = _scalar(args[i], constants)
            if number is not None and number > 0:
                found.scale *= number if node.target in (aten.mul.Tensor, aten.mul.Scalar) else 1.0 / number
                return args[1 - i]
    elif node.target is aten.tanh.default and not found.capped:
        found.capped, found.softcap, found.scale = True, found.scale, 1.0
        return args[0]
    elif node.target in (aten.add.Tensor, aten.sub.Tensor) and not inside and not node.kwargs:
        sign = 1.0 if node.target is aten.add.Tensor else -1.0
        scores, bias = _sides(args, constants, both=sign > 0)
        found.bias.append((bias, value_of(node).dim(), sign))
        return scores
    elif node.target is aten.where.self and not inside and not found.bias:
        numbers, dtype = [_scalar(x, constants) for x in args[1:]], value_of(node).dtype
        hidden = [x is not None and bool(is_lowest(torch.tensor(x, dtype=dtype))) for x in numbers]
        if any(hidden):
            seen = hidden[1]
            finite = numbers[seen] != float("-inf")
            if finite and not (args[0] in constants and bool((constants.value(args[0]) == seen).any(-1).all())):
                raise NotAttention  # a row of no key weighs all of them
            found.finite |= finite
            found.mask.append((args[0], value_of(node).dim(), seen))
            return args[1 if seen else 2]
    raise NotAttention


def _sides(args: Any, constants: Any, both: bool) -> tuple[Node, Node]:
    """(scores, what is added to them): the first one that has a product not far away."""
    sides = ((args[0], args[1]), (args[1], args[0]))[: 2 if both else 1]
    for sums in (False, True):
        for scores, bias in sides:
            if isinstance(bias, Node) and isinstance(scores, Node) and _has_product(scores, constants, sums):
                if value_of(bias).dtype in DTYPES:
                    return scores, bias
    raise NotAttention


def _has_product(node: Any, constants: Any, sums: bool, depth: int = 8) -> bool:
    """`sums`: whether it may be the second one of two that are added."""
    if not isinstance(node, Node) or node in constants or not node.args or not depth:
        return False
    if node.target is aten.bmm.default:
        return True
    inner = node.args[1:2] if node.target is aten.where.self else node.args[:1]
    if sums and node.target in (aten.add.Tensor, aten.where.self):
        inner = node.args[:2] if node.target is aten.add.Tensor else node.args[1:]
    return any(_has_product(x, constants, sums, depth - 1) for x in inner)


def _replace(graph: Graph, product: Node, constants: Any, call: Callable[..., Node]) -> Node:
    weights, values = product.args
    if _chooses(values):
        raise NotAttention  # experts, whose products read the matrices where they lie
    rows, score, sums = None, None, []
    try:
        rows = Softmax.of(weights)
        sums = log_sums(rows.scores) if rows.sinks is None else []
        scored, found, shape = _read_scores(rows.scores, constants, rows.readers)
        heads = shape[:2] or [1, value_of(scored).shape[0]]
        _check_terms(found, [*heads, *value_of(scored).shape[1:]], constants)
    except NotAttention:
        root, found = _outer_mask(rows.scores if rows else through(weights), bool(rows), constants)
        score = _score(root, bool(rows), rows.readers if rows and not found.mask else 1, constants)
        assert score.product is not None
        scored, shape = score.product, score.rank4
    queries, keys = scored.args
    q, k, v = value_of(queries), value_of(keys), value_of(values)
    heads = shape[:2] or [1, q.shape[0]]
    same = q.dtype == k.dtype == v.dtype == value_of(product).dtype and q.dtype in DTYPES
    if not same or q.shape[1] < 2 or max(q.shape[2], v.shape[2]) > WIDEST or not all((*q.shape, *v.shape)):
        raise NotAttention
    if heads[0] * heads[1] != q.shape[0] or v.shape[0] != q.shape[0]:
        raise NotAttention
    with graph.inserting_before(product):
        q4 = _heads(queries, heads, product, call)
        k4 = call(graph, product, aten.permute.default, _heads(keys, heads, product, call), [0, 1, 3, 2])
        v4 = _heads(values, heads, product, call)
        k4, v4 = _shared(k4, v4)
        mask, bias = _merged(graph, product, found, heads, call)
        cap, scale = (found.softcap, found.scale * found.softcap) if found.capped else (0.0, found.scale)
        inputs = _inputs(score, heads, product, call) if score else []
        sinks = rows.vector_of_sinks(heads, constants, product, call) if rows else None
        lines = "\n".join(score.lines) if score else ""
        nan_rows = rows is not None and sinks is None and not rows.zero_rows
        args: tuple[Any, ...] = (q4, k4, v4, mask, bias, inputs, scale, False, 0, cap, nan_rows)
        if score or sinks:
            args += (lines, bool(rows), *(() if sinks is None else (sinks,)))
        if sums:
            both = call(graph, product, torch.ops.mlirc.attention_lse.default, *args[:12])
            new, lse = (call(graph, product, operator.getitem, both, n) for n in range(2))
        else:
            new = call(graph, product, torch.ops.mlirc.attention.default, *args)
        flat = call(graph, product, aten.view.default, new, list(value_of(product).shape))
    if sums:
        replace(sums, lse, call)
    product.replace_all_uses_with(flat)
    graph.erase_node(product)
    return new


def _chooses(matrices: Any) -> bool:
    """Whether a batch of matrices is one that numbers choose."""
    moves = (aten.permute.default, aten.transpose.int, *VIEWS)
    while isinstance(matrices, Node) and matrices.target in moves:
        matrices = matrices.args[0]
    return isinstance(matrices, Node) and matrices.target is torch.ops.mlirc.gather_matrices.default


def _check_terms(found: _Scores, full: list[int], constants: Any) -> None:
    """Whether masks and biases broadcast to the scores, and are the same as one mask."""
    for node, rank, *_ in (*found.bias, *found.mask):
        if not _broadcasts(node, rank, full):
            raise NotAttention
    distances = Places(constants, ARITHMETIC)
    if any(distances.computes(node) for node, *_ in found.bias):
        raise NotAttention  # as a function of the score it is computed where it is read
    if found.finite and not all(n in constants and bool(constants.value(n).isfinite().all()) for n, *_ in found.bias):
        raise NotAttention  # where a bias of -inf hides all that a row sees, it would weigh the hidden keys
    if found.bias and found.mask and not _is_pattern(found.mask, full, constants):
        raise NotAttention  # as one float mask, -inf would be added to what is infinite, too


def _outer_mask(root: Any, softmax: bool, constants: Any) -> tuple[Any, _Scores]:
    """The outermost masks that are limits by position, so that keys that they hide are not computed at all; and what
    they mask."""
    found, hidden = _Scores(), float("-inf") if softmax else 0.0
    while isinstance(root, Node) and root.target is aten.where.self:
        args: Any = root.args
        values = [_scalar(x, constants) for x in args[1:]]
        if hidden not in values:
            break
        seen = values[1] == hidden
        mask = (args[0], value_of(root).dim(), seen)
        if not _is_pattern([*found.mask, mask], list(value_of(root).shape)[-2:], constants):
            break
        inner = args[1 if seen else 2]
        if not isinstance(inner, Node) or len(inner.users) != 1:
            break
        found.mask.append(mask)
        root = through(inner)
    return root, found


def _score(root: Any, softmax: bool, readers: int, constants: Any) -> Score:
    """The function that makes `root` of a product, if there is one worth it. So many `readers` does that have."""
    try:
        score = Score(root, readers, constants)
    except NoScore:
        raise NotAttention from None
    if not softmax and score.linear:
        raise NotAttention  # two products, which are faster each by itself
    product = score.product
    assert product is not None
    heads = score.rank4[:2] or [1, value_of(product).shape[0]]
    full = [*heads, *value_of(product).shape[1:]]
    if not all(_broadcasts(node, rank, full) for node, rank in score.inputs):
        raise NotAttention
    return score


def _broadcasts(node: Node, rank: int, full: list[int]) -> bool:
    """Whether what an op of such a rank reads broadcasts to scores [B, H, Sq, Sk], or [B * H, Sq, Sk]."""
    sizes = list(value_of(node).shape)
    wanted = full if rank == 4 else [full[0] * full[1], *full[2:]]
    return len(sizes) <= len(wanted) and all(n in (1, m) for n, m in zip(sizes[::-1], wanted[::-1], strict=False))


def _inputs(score: Score, heads: list[int], like: Node, call: Callable[..., Node]) -> list[Node]:
    """The inputs of a function of scores, of one type: the op takes no others."""
    found = [_input(x, rank, heads, like, call) for x, rank in score.inputs]
    shape = torch.broadcast_shapes(*[value_of(x).shape for x in found]) if found else []
    for i, x in enumerate(found):
        if value_of(x).dtype != score.dtype:
            found[i] = call(like.graph, like, torch.ops.prims.convert_element_type.default, x, score.dtype)
        if list(value_of(x).shape) != list(shape):
            found[i] = call(like.graph, like, aten.expand.default, found[i], list(shape))
    return found


def _input(x: Node, rank: int, heads: list[int], like: Node, call: Callable[..., Node]) -> Node:
    """An input of a function of scores, of rank 4. `rank`: of the op that reads it."""
    sizes = [1] * (rank - len(value_of(x).shape)) + list(value_of(x).shape)
    if rank < 4:
        sizes = [1] * (3 - len(sizes)) + sizes
        sizes = [*(heads if sizes[0] != 1 else [1, 1]), *sizes[1:]]
    return x if sizes == list(value_of(x).shape) else call(like.graph, like, aten.view.default, x, sizes)


def _is_pattern(masks: list[tuple[Node, int, bool]], full: list[int], constants: Any) -> bool:
    """Whether masks are constant, and together what attributes of the attention say."""
    full = full[-2:]
    seen = torch.ones(full, dtype=torch.bool)
    for node, _, value in masks:
        if node not in constants:
            return False
        seen = seen & (constants.value(node) == value)
    return pattern_of(seen, *full) is not None


def _heads(node: Any, heads: list[int], like: Node, call: Callable[..., Node]) -> Node:
    """A tensor [B * H, ...] as [B, H, ...]: what it is a view of, where that is one."""
    shape = [*heads, *value_of(node).shape[1:]]
    source = node.args[0] if node.target in VIEWS else None
    if source is not None and list(value_of(source).shape) == shape:
        return source
    return call(like.graph, like, aten.view.default, node, shape)


def _shared(keys: Node, values: Node) -> tuple[Node, Node]:
    """Keys and values [B, H, S, D] as [B, Hkv, S, D] where both are so many heads, each repeated for H / Hkv of the
    queries'; else as they are."""
    one, other = _unrepeated(keys), _unrepeated(values)
    if one is None or other is None or value_of(one).shape[1] != value_of(other).shape[1]:
        return keys, values
    return one, other


def _unrepeated(node: Any) -> Node | None:
    """What heads [B, H, S, D] are repetitions of, [B, Hkv, S, D]."""
    turned = 0
    while node.target is aten.permute.default and list(node.args[1]) == [0, 1, 3, 2]:
        node, turned = node.args[0], 1 - turned
    shape = list(value_of(node).shape)
    while node.target in VIEWS and list(value_of(node.args[0]).shape) == shape:
        node = node.args[0]
    inner = node.args[0] if node.target in VIEWS else None
    while inner is not None and inner.target is aten.clone.default:
        inner = inner.args[0]
    if turned or inner is None or inner.target is not aten.expand.default or value_of(inner).dim() != 5:
        return None
    wide, source = list(value_of(inner).shape), inner.args[0]
    batch, heads, group, *matrix = wide
    if [batch, heads * group, *matrix] != shape or list(value_of(source).shape) != [batch, heads, 1, *matrix]:
        return None
    base = source.args[0] if source.target in (aten.unsqueeze.default, *VIEWS) else None
    return base if base is not None and list(value_of(base).shape) == [batch, heads, *matrix] else None


def _merged(
    graph: Graph, like: Node, found: _Scores, heads: list[int], call: Callable[..., Node]
) -> tuple[Node | None, Node | None]:
    """All masks as one, and all biases, of rank 4."""
    mask = bias = None
    for node, rank, seen in found.mask:
        node = _input(node, rank, heads, like, call)
        term = node if seen else call(graph, like, aten.logical_not.default, node)
        mask = term if mask is None else call(graph, like, aten.logical_and.default, mask, term)
    for node, rank, sign in found.bias:
        node = _input(node, rank, heads, like, call)
        term = node if sign > 0 else call(graph, like, aten.mul.Tensor, node, sign)
        bias = term if bias is None else call(graph, like, aten.add.Tensor, bias, term)
    return mask, bias
