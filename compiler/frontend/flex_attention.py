"""PyTorch's `flex_attention` in an exported graph, written out as the ops that it stands for: two products, and between
them the score's function, the mask's and a softmax. What can be one kernel is found there like attention that a model
spells out (`spelled_attention.py`)."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch._dynamo._trace_wrapped_higher_order_op import TransformGetItemToIndex
from torch.fx import Graph, GraphModule, Node
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.node import map_arg
from torch.nn.attention.flex_attention import _vmap_for_bhqkv

from mlirc.frontend.evaluate import place

EMPTY = 1 << 30  # the size of the one block of no mask at all
ALL_SEEN = (torch.ops.aten.new_ones.default, torch.ops.aten.ones.default)  # what a mask without a function is
NATURAL = 3  # beside PyTorch's results: the natural logarithm
FLEX = torch.ops.higher_order.flex_attention


def write_out(graph: Graph, node: Node, owner: GraphModule) -> None:
    """Puts the ops of one `flex_attention` into its place. Its results are the output [B, H, Sq, Dv] in the queries'
    dtype, and f32[B, H, Sq] of each row: the base-2 log of its sum of exponentials, and its maximum over ln 2. Those
    that nobody reads are not computed. A row that sees no key gives 0."""
    q, k, v, score, block_mask, scale = node.args[:6]
    buffers: list[list[Any]] = [list(x) for x in (*node.args[7:9], (), ())[:2]]  # type: ignore[arg-type]
    functions = [owner.get_submodule(str(f.target)) for f in (score, block_mask[-1])]  # type: ignore[index, union-attr]
    for user in [u for u in node.users if u.args[1] == 1]:
        _take_natural(user)
    read = sorted({int(u.args[1]) for u in node.users})  # type: ignore[arg-type]

    lists = _lists(block_mask, functions[1])
    sizes: Any = block_mask[-3:-1]  # type: ignore[index]

    def results(*tensors: torch.Tensor) -> list[torch.Tensor]:
        queries, keys, values, *rest = tensors
        score_inputs, rest = rest[: len(buffers[0])], rest[len(buffers[0]) :]
        captured = score_inputs, rest[: len(buffers[1])]
        scores = _scores(queries, keys, functions, captured, scale)
        if lists:
            seen = _listed(rest[len(buffers[1]) :], sizes, scores.shape[2], scores.shape[3])
            scores = torch.where(seen, scores, -math.inf)
        return [_result(i, scores, queries, values) for i in read]

    given = [q, k, v, *buffers[0], *buffers[1], *lists]
    fakes = [x.meta["val"] for x in given]  # type: ignore[union-attr]
    with fakes[0].fake_mode, torch.no_grad():
        traced = make_fx(results, _allow_non_fake_inputs=True)(*fakes)
    parameters = [n for n in traced.graph.nodes if n.op == "placeholder"]
    for cast in traced.graph.find_nodes(op="call_function", target=torch.ops.aten._to_copy.default):
        if not isinstance(cast.args[0], Node):  # of a number in a function, as it is traced
            for reader in list(cast.users):
                reader.args = map_arg(reader.args, lambda n, cast=cast: cast.args[0] if n is cast else n)  # type: ignore[misc]
    traced.graph.eliminate_dead_code()
    with graph.inserting_before(node):
        known = dict(zip(parameters, given, strict=True))
        outputs = graph.graph_copy(traced.graph, known)  # type: ignore[arg-type]
    for made in known.values():
        if made not in given:
            made.meta |= place(node)  # type: ignore[union-attr]
    for user in list(node.users):
        user.replace_all_uses_with(outputs[read.index(int(user.args[1]))])  # type: ignore[arg-type, index]
        graph.erase_node(user)
    graph.erase_node(node)


def _lists(block_mask: Any, mask: Any) -> list[Node]:
    """The numbers and indices of the listed blocks of keys, [B, H, blocks of queries] and [B, H, blocks of queries,
    most], those seen whole behind the others; where they alone say what is seen. A mask's function says it by itself:
    eager PyTorch computes nothing else, and lists that `create_block_mask` makes say the same."""
    value: Any = next(n for n in mask.graph.nodes if n.op == "output").args[0]
    value = value[0] if isinstance(value, (tuple, list)) else value
    if value.target not in ALL_SEEN or block_mask[-2] >= EMPTY:
        return []
    return [x for x in block_mask[2:6] if x is not None]


def _listed(lists: Any, sizes: tuple[int, int], queries: int, keys: int) -> torch.Tensor:
    """bool [B, H, Sq, Sk]: the keys in the blocks (of `sizes`: queries, keys) that are listed for a query."""
    blocks = torch.arange(-(-keys // sizes[1]), dtype=torch.int32, device=lists[0].device)
    seen = None
    for counts, indices in zip(lists[::2], lists[1::2], strict=True):
        place = torch.arange(indices.shape[-1], dtype=torch.int32, device=lists[0].device)
        counted = (place < counts[..., None])[..., None]
        found = ((indices[..., None] == blocks) & counted).any(-2)
        seen = found if seen is None else seen | found
    assert seen is not None
    wide = seen.repeat_interleave(sizes[0], -2)[..., :queries, :]
    return wide.repeat_interleave(sizes[1], -1)[..., :keys]


def _take_natural(log: Node) -> None:
    """Takes what a result in base 2 times ln 2 is, which `flex_attention` returns, as result `NATURAL`."""
    products = [u for u in log.users if u.target is torch.ops.aten.mul.Tensor and u.args[1] == math.log(2)]
    if not products:
        return
    with log.graph.inserting_before(log):
        natural = log.graph.call_function(log.target, (log.args[0], NATURAL))  # type: ignore[arg-type]
        natural.meta = dict(log.meta)
    for product in products:
        product.replace_all_uses_with(natural)
        log.graph.erase_node(product)
    if not log.users:
        log.graph.erase_node(log)


def _scores(q: Any, k: Any, functions: list, captured: tuple, scale: Any) -> torch.Tensor:
    """What the softmax is taken of, f32[B, H, Sq, Sk] (f64 of f64): a key that a query does not see is -inf."""
    heads, group = k.shape[1], q.shape[1] // k.shape[1]
    keys = k[:, :, None].expand(q.shape[0], heads, group, *k.shape[2:]).reshape(q.shape[0], q.shape[1], *k.shape[2:])
    wide = torch.float64 if q.dtype == torch.float64 else torch.float32
    scores = (q @ keys.transpose(-2, -1)).to(wide) * scale
    places = [torch.arange(n, device=q.device) for n in scores.shape]
    suffixes = [(None,) * len(x) for x in captured]
    with TransformGetItemToIndex():
        changed = _vmap_for_bhqkv(functions[0], (0,), suffixes[0])(scores, *places, *captured[0])
        seen = _vmap_for_bhqkv(functions[1], (), suffixes[1])(*places, *captured[1])
    return torch.where(seen, changed, -math.inf)


def _result(index: int, scores: torch.Tensor, q: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    if index in (1, NATURAL):
        return scores.logsumexp(-1) / (math.log(2) if index == 1 else 1)
    if index == 2:
        return scores.amax(-1) / math.log(2)
    heads, group = v.shape[1], q.shape[1] // v.shape[1]
    values = v[:, :, None].expand(q.shape[0], heads, group, *v.shape[2:]).reshape(q.shape[0], q.shape[1], *v.shape[2:])
    return torch._safe_softmax(scores, -1).to(q.dtype) @ values.to(q.dtype)
