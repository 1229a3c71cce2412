"""Biases that depend on how far a key stands from its query, as tables that a function of the scores reads.

A bias [H, Sq, Sk] that is a function of head and key - query (ALiBi, T5's relative positions) has Sq + Sk - 1 numbers
for each head. Attention reads those (`dialects/score_functions.py`), and the bias is never in memory. Small ones stay:
their elements lie beside each other, as a kernel reads them.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable
from typing import Any

import torch
from torch.fx import Graph, Node

aten = torch.ops.aten
SMALL = 1 << 20  # bytes of a bias that is read as it is
_LARGEST = 1 << 27  # elements that are looked at
# What moves elements, and changes none.
_MOVES = (
    aten.view.default, aten._unsafe_view.default, aten.permute.default, aten.unsqueeze.default, aten.squeeze.dim,
    aten.expand.default, aten.clone.default, aten.transpose.int, aten.slice.Tensor,
)  # fmt: skip
_WORDS = {torch.float32: "f32", torch.float16: "f16", torch.bfloat16: "bf16", torch.float64: "f64"}
Call = Callable[..., Node]


def tabulate(
    graph: Graph, node: Node, mask: Node | None, bias: Node | None, inputs: list[Node], score: str, constants: Any,
    call: Call,
) -> tuple[Node | None, Node | None, list[Node], str]:  # fmt: skip
    """(mask, bias, inputs, score) of an attention `node`, with a table in the place of a large bias of rank 4, or input
    of the function, that allows it. What else a bias is made of becomes inputs of the function, too."""

    def make(target: Any, *args: Any) -> Node:
        new = call(graph, node, target, *args)
        constants.add(new)
        return new

    q: Any = node.args[0]
    parts, lines = inputs, score
    if bias is not None and not score:
        function = _Sum("f64" if q.meta["val"].dtype == torch.float64 else "f32", constants, make)
        lines = function.of(bias, mask)
        parts = function.inputs
    narrow = [unexpanded(x) for x in parts]
    first = next((n for n, x in enumerate(narrow) if _is_relative(x, constants)), None)
    others = next(
        (o for o in ([x for n, x in enumerate(xs) if n != first] for xs in (narrow, parts)) if _alike(o)), None
    )
    if first is None or others is None or (*node.args, *[None] * 14)[13] is not None:
        return mask, bias, inputs, score
    table = _table(narrow[first], constants, make)
    return None, None, [table, *others], _reading(lines, first, narrow[first].meta["val"], table.meta["val"])


def unexpanded(node: Any) -> Node:
    """The tensor that an expansion to the same rank repeats: masks and inputs of scores broadcast."""
    while node.target is aten.expand.default and node.args[0].meta["val"].dim() == node.meta["val"].dim():
        node = node.args[0]
    return node


def _alike(inputs: list[Node]) -> bool:
    """Whether they are of one type, as the op takes them."""
    return len({(x.meta["val"].dtype, x.meta["val"].shape) for x in inputs}) < 2


class _Sum:
    """The function that adds a bias to the score: its `lines`, in `acc`, over the `inputs` that the bias is made of by
    sums and choices between one of them and a number."""

    def __init__(self, acc: str, constants: Any, call: Call) -> None:
        self.acc, self.constants, self.call = acc, constants, call
        self.inputs: list[Node] = []
        self.lines: list[str] = []

    def of(self, bias: Node, mask: Node | None) -> str:
        hidden = None if mask is None else self.input(mask)
        result = self.line(f"arith.addf %score, {self.value(bias)} : {self.acc}")
        if hidden is not None:
            result = self.line(f"arith.select {hidden}, {result}, {self.number(float('-inf'))} : {self.acc}")
        return "\n".join([*self.lines, f"return {result} : {self.acc}"])

    def line(self, text: str) -> str:
        self.lines.append(f"%v{len(self.lines)} = {text}")
        return f"%v{len(self.lines) - 1}"

    def number(self, value: float) -> str:
        bits = struct.pack(">d" if self.acc == "f64" else ">f", value).hex().upper()
        return self.line(f"arith.constant 0x{bits} : {self.acc}")

    def input(self, node: Node) -> str:
        shape = node.meta["val"].shape
        self.inputs.append(
            node if len(shape) == 4 else self.call(aten.view.default, node, [*[1] * (4 - len(shape)), *shape])
        )
        return f"%in{len(self.inputs) - 1}"

    def value(self, node: Node) -> str:
        inner: Any = node
        while inner.target is aten.expand.default:
            inner = inner.args[0]
        dtype, args = node.meta["val"].dtype, inner.args
        same = [isinstance(x, Node) and x.meta["val"].dtype == dtype for x in args]
        if inner.target is aten.add.Tensor and same == [True, True] and not inner.kwargs:
            return self.line(f"arith.addf {self.value(args[0])}, {self.value(args[1])} : {self.acc}")
        if inner.target is aten.where.self and same[1:] == [True, True]:
            for number, other in ((1, 2), (2, 1)):
                if args[number] in self.constants and args[number].meta["val"].numel() == 1:
                    values = {other: self.value(args[other])}
                    values[number] = self.number(float(self.constants.value(args[number])))
                    return self.line(f"arith.select {self.input(args[0])}, {values[1]}, {values[2]} : {self.acc}")
        x, element = self.input(node), _WORDS[dtype]
        cast = "truncf" if element == "f64" else "extf"
        return x if element == self.acc else self.line(f"arith.{cast} {x} : {element} to {self.acc}")


def _reading(score: str, number: int, old: torch.Tensor, table: torch.Tensor) -> str:
    """The lines of a function, where input `number`, an element of `old`, is a `table` now, and the first one."""
    indices = [f"%{letter}" for letter, n in zip("bh", old.shape[:2], strict=True) if n > 1]
    shape = "x".join(map(str, table.shape))
    read = [
        "%t0 = arith.subi %j, %i : index",
        f"%t1 = arith.constant {old.shape[2] - 1} : index",
        "%t2 = arith.addi %t0, %t1 : index",
        f"%t = tensor.extract %in0[{', '.join([*indices, '%t2'])}] : tensor<{shape}x{_WORDS[old.dtype]}>",
    ]

    def renamed(found: re.Match) -> str:
        n = int(found[1])
        return "%t" if n == number else f"%in{n + (n < number)}"

    return "\n".join([*read, re.sub(r"%in(\d+)\b", renamed, score)])


def _table(bias: Node, constants: Any, make: Call) -> Node:
    """The bias of each distance, from the last query's of the first key on: [Sq + Sk - 1], with what it has of batches
    and heads in front."""
    known = bias in constants
    value: Any = constants.value(bias) if known else _sources(bias, constants)
    found = torch.cat([value[:, :, 1:, 0].flip(2), value[:, :, 0]], 2)
    found = found.reshape(*(n for n in found.shape[:2] if n > 1), found.shape[2])
    source: Any = bias if known else _lookup(bias).args[1]
    table = make(aten.new_full.default, source, list(found.shape), 0)  # a constant, of which this is known:
    constants.set(table, found.to(source.meta["val"].dtype))
    if known:
        return table
    weights = _lookup(bias).args[0]
    return make(aten.index.Tensor, make(aten.view.default, weights, [-1]), [table])


def _is_relative(bias: Node, constants: Any) -> bool:
    """Whether a bias is large, and all that it says of a query and a key depends on how far they are apart."""
    val = bias.meta["val"]
    if val.dim() != 4 or val.dtype not in _WORDS or min(val.shape[2:]) < 2:
        return False
    if not SMALL <= val.numel() * val.element_size() or val.numel() > _LARGEST:
        return False
    value = constants.value(bias) if bias in constants else _sources(bias, constants)
    if value is None:
        return False
    near, far = value[..., :-1, :-1], value[..., 1:, 1:]
    return bool(((near == far) | (near != near) & (far != far)).all())


def _sources(bias: Node, constants: Any) -> torch.Tensor | None:
    """Which element of a table of weights each element of a lookup at constant indices is, by a number; None for what
    is no such lookup with its elements moved."""
    node = _lookup(bias)
    if node.target is not aten.embedding.default or node.args[1] not in constants:
        return None
    width = node.args[0].meta["val"].shape[1]  # type: ignore[union-attr]
    numbers = constants.value(node.args[1])[..., None] * width + torch.arange(width)  # type: ignore[arg-type]
    moves: list[Any] = []
    while bias is not node:
        moves.append(bias)
        bias = bias.args[0]  # type: ignore[assignment]
    for move in reversed(moves):
        numbers = move.target(numbers, *move.args[1:], **move.kwargs)
    return numbers


def _lookup(node: Any) -> Node:
    """What a node moves the elements of."""
    while node.target in _MOVES:
        node = node.args[0]
    return node
