"""Python numbers in an exported graph as tensors of no dimension: int64, float64 or bool.

`int(x)`, `x.item()` and what is computed from them are numbers to torch.export. A compiled model has no host code
between its kernels, and none is needed as long as no shape and no branch depends on such a number. A number that a
model returns is an output of no dimension, also where it is a constant.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx import Graph, Node

from mlirc.errors import MlircError
from mlirc.frontend.evaluate import evaluate_fake, place
from mlirc.frontend.fx_import import module_path
from mlirc.frontend.source import NUMBERS

aten = torch.ops.aten
_SYMBOLS = (torch.SymInt, torch.SymFloat, torch.SymBool)
_READS = (aten.item.default, aten._local_scalar_dense.default)
_CHECKS = ("_assert_scalar", "sym_constrain_range", "sym_constrain_range_for_size", "_assert_async", "_assert_tensor")


def is_number(value: Any) -> bool:
    """Whether a value is a Python number, known or not."""
    return isinstance(value, (bool, int, float, *_SYMBOLS))


def has_numbers(graph: Graph) -> bool:
    """Whether a graph computes with numbers, or returns some."""
    output = next(n for n in graph.nodes if n.op == "output")
    return any(is_number(v) for v in output.args[0]) or any(
        n.op == "call_function" and (isinstance(n.meta.get("val"), _SYMBOLS) or n.target in _READS) for n in graph.nodes
    )


def numbers_to_tensors(graph: Graph) -> None:
    """Rewrites the graph in place. What takes a number that no tensor can stand for, such as a size, keeps it.

    Raises MlircError for an operation on numbers that has no op on tensors.
    """
    _Rewriter(graph).run()


class _Rewriter:
    def __init__(self, graph: Graph):
        self.graph = graph
        self.tensors: dict[Node, Node] = {}  # of nodes that are numbers
        values = (n.meta.get("val") for n in graph.nodes)
        self.mode = next((v.fake_mode for v in values if hasattr(v, "fake_mode")), None) or FakeTensorMode()
        self.like: Any = None

    def run(self) -> None:
        with self.mode, torch.no_grad():
            for node in list(self.graph.nodes):
                self.like = node
                with self.graph.inserting_before(node):
                    self.visit(node)
        for node in reversed(list(self.graph.nodes)):
            if node.op == "call_function" and not node.users and (_is_check(node) or self.is_dead(node)):
                self.graph.erase_node(node)

    def is_dead(self, node: Node) -> bool:
        return node in self.tensors or node.target in _READS

    def visit(self, node: Node) -> None:
        if node.op == "output":
            values: Any = node.args[0]
            node.args = (tuple(self.tensor(v) if self.takes(v) or type(v) in NUMBERS else v for v in values),)
        elif node.op != "call_function" or _is_check(node):
            return
        elif node.target in _READS:
            source: Any = node.args[0]
            flat = self.call(aten.reshape.default, source, [])
            self.tensors[node] = self.to(flat, _kind(source.meta["val"].dtype))
        elif isinstance(node.meta.get("val"), _SYMBOLS) or (_takes_numbers(node) and node.target in _OPERATIONS):
            self.compute(node)
        elif any(self.takes(n) for n in node.all_input_nodes):
            self.use(node)

    def compute(self, node: Node) -> None:
        """An operation on numbers."""
        make = _OPERATIONS.get(node.target)
        if make is None:
            if any(self.takes(n) for n in node.all_input_nodes):
                raise _refusal(node)
            return  # sizes
        self.tensors[node] = make(self, *[self.tensor(a) for a in node.args])

    def use(self, node: Node) -> None:
        """An op on tensors that takes a number."""
        make = _USES.get(node.target)
        new = make(self, *node.args, **node.kwargs) if make else None
        if new is None:
            return  # whoever needs static shapes says so
        dtype = node.meta["val"].dtype
        new = self.to(new, dtype)
        node.replace_all_uses_with(new)
        self.graph.erase_node(node)

    # -- nodes

    def takes(self, value: Any) -> bool:
        """Whether a value is a number that has become a tensor."""
        return isinstance(value, Node) and value in self.tensors

    def call(self, target: Any, *args: Any, **kwargs: Any) -> Node:
        node = self.graph.call_function(target, args, kwargs)
        node.meta = {"val": evaluate_fake(target, args, kwargs), **place(self.like)}
        return node

    def tensor(self, value: Any) -> Node:
        """A number as a tensor; what is one already stays."""
        if isinstance(value, Node):
            return self.tensors.get(value, value)
        return self.call(aten.full.default, [], value, dtype=NUMBERS[type(value)])

    def to(self, node: Node, dtype: torch.dtype) -> Node:
        return node if node.meta["val"].dtype == dtype else self.call(aten._to_copy.default, node, dtype=dtype)


def _kind(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype.is_floating_point else torch.bool if dtype == torch.bool else torch.int64


def _is_check(node: Node) -> bool:
    return isinstance(node.target, torch._ops.OpOverload) and node.target._schema.name.split("::")[-1] in _CHECKS


def _takes_numbers(node: Node) -> bool:
    return type(node.meta.get("val")) in NUMBERS


def _refusal(node: Node) -> MlircError:
    name = getattr(node.target, "__name__", str(node.target))
    where = module_path(node)
    return MlircError(
        f"'{name}' of a number that is read from a tensor, in {f'module {where!r}' if where else 'the model'}, is not "
        "supported: compute with the tensor"
    )


def _promoted(r: _Rewriter, operands: tuple[Node, ...], least: torch.dtype = torch.bool) -> list[Node]:
    """Operands in the kind that Python computes in, at least `least`."""
    dtype = least
    for x in operands:
        dtype = torch.promote_types(dtype, x.meta["val"].dtype)
    return [r.to(x, dtype) for x in operands]


def _arithmetic(op: Any, least: torch.dtype = torch.int64, *options: Any, **named: Any) -> Callable:
    return lambda r, *operands: r.call(op, *_promoted(r, operands, least), *options, **named)


def _rounded(op: Any) -> Callable:
    """A float's integer."""

    def make(r: _Rewriter, x: Node) -> Node:
        return r.to(r.call(op, x) if x.meta["val"].dtype.is_floating_point else x, torch.int64)

    return make


def _power(r: _Rewriter, x: Node, y: Node) -> Node:
    if not any(v.meta["val"].dtype.is_floating_point for v in (x, y)):
        raise _refusal(r.like)  # an int or a float, by the exponent's sign
    return r.call(aten.pow.Tensor_Tensor, *_promoted(r, (x, y)))


def _bits(op: Any) -> Callable:
    return lambda r, *operands: r.call(op, *_promoted(r, operands))


_OPERATIONS: dict[Any, Callable] = {
    operator.add: _arithmetic(aten.add.Tensor),
    operator.sub: _arithmetic(aten.sub.Tensor),
    operator.mul: _arithmetic(aten.mul.Tensor),
    operator.truediv: _arithmetic(aten.div.Tensor, torch.float64),
    operator.floordiv: _arithmetic(aten.div.Tensor_mode, rounding_mode="floor"),
    operator.mod: _arithmetic(aten.remainder.Tensor),
    operator.pow: _power,
    operator.neg: _arithmetic(aten.neg.default),
    operator.pos: lambda r, x: r.to(x, torch.int64) if x.meta["val"].dtype == torch.bool else x,
    operator.abs: _arithmetic(aten.abs.default),
    abs: _arithmetic(aten.abs.default),
    operator.and_: _bits(aten.bitwise_and.Tensor),
    operator.or_: _bits(aten.bitwise_or.Tensor),
    operator.xor: _bits(aten.bitwise_xor.Tensor),
    torch.sym_not: lambda r, x: r.call(aten.logical_not.default, x),
    operator.not_: lambda r, x: r.call(aten.logical_not.default, x),
    torch.sym_float: lambda r, x: r.to(x, torch.float64),
    torch.sym_int: _rounded(aten.trunc.default),
    torch.sym_max: _arithmetic(aten.maximum.default),
    torch.sym_min: _arithmetic(aten.minimum.default),
    torch.sym_ite: lambda r, c, x, y: r.call(aten.where.self, c, *_promoted(r, (x, y))),
    math.ceil: _rounded(aten.ceil.default),
    math.floor: _rounded(aten.floor.default),
    math.trunc: _rounded(aten.trunc.default),
    round: _rounded(aten.round.default),
}
for _name in ("lt", "le", "gt", "ge", "eq", "ne"):
    _OPERATIONS[getattr(operator, _name)] = _arithmetic(getattr(aten, _name).Tensor)
for _name in ("sqrt", "exp", "log", "log2", "sin", "cos", "tan", "sinh", "cosh", "tanh", "asin", "acos", "atan"):
    for _function in (getattr(torch, f"_sym_{_name}", None), getattr(math, _name)):
        if _function is not None:
            _OPERATIONS[_function] = _arithmetic(getattr(aten, _name).default, torch.float64)


def _number(r: _Rewriter, value: Any, dtype: torch.dtype) -> Node:
    return r.to(r.tensor(value), dtype)


def _elementwise(op: Any) -> Callable:
    """An op that takes a number for a tensor: in the result's dtype, or for a comparison in the operands'."""

    def make(r: _Rewriter, *args: Any, **kwargs: Any) -> Node | None:
        wanted = r.like.meta["val"].dtype
        tensors = [a for a in args if isinstance(a, Node) and not r.takes(a)]
        if wanted == torch.bool and tensors:
            wanted = torch.result_type(tensors[0].meta["val"], 1.0 if _is_float(r, args) else 1)
        if wanted in (torch.float16, torch.bfloat16):  # where PyTorch has numbers in f32
            wanted = torch.float32
        return r.call(op, *[_number(r, a, wanted) if r.takes(a) else a for a in args], **kwargs)

    return make


def _is_float(r: _Rewriter, args: tuple[Any, ...]) -> bool:
    return any(r.tensor(a).meta["val"].dtype.is_floating_point for a in args if r.takes(a))


def _filled(r: _Rewriter, shape: Any, value: Any) -> Node:
    return r.call(aten.expand.default, _number(r, value, r.like.meta["val"].dtype), list(shape))


def _scatter(r: _Rewriter, x: Node, dim: int, index: Node, value: Any) -> Node:
    source = _number(r, value, x.meta["val"].dtype)
    shape = list(index.meta["val"].shape)
    return r.call(aten.scatter.src, x, dim, index, r.call(aten.expand.default, source, shape))


def _clamp(r: _Rewriter, x: Node, *args: Any, **kwargs: Any) -> Node:
    bounds = dict(zip(("min", "max"), args, strict=False)) | kwargs
    dtype = r.like.meta["val"].dtype
    made = {k: None if v is None else _number(r, v, dtype) for k, v in bounds.items()}
    return r.call(aten.clamp.Tensor, r.to(x, dtype), **made)


def _where(r: _Rewriter, condition: Node, *sides: Any) -> Node:
    dtype = r.like.meta["val"].dtype
    return r.call(aten.where.self, condition, *[_number(r, s, dtype) for s in sides])


def _select(r: _Rewriter, x: Node, dim: int, index: Any) -> Node:
    size = x.meta["val"].shape[dim]
    place = r.tensor(index)
    wrapped = r.call(aten.add.Tensor, place, r.call(aten.full.default, [], size, dtype=torch.int64))
    place = r.call(aten.where.self, r.call(aten.lt.Scalar, place, 0), wrapped, place)
    found = r.call(aten.index_select.default, x, dim, r.call(aten.reshape.default, place, [1]))
    return r.call(aten.squeeze.dim, found, dim)


_USES: dict[Any, Callable] = {
    aten.scalar_tensor.default: lambda r, value, **_: _number(r, value, r.like.meta["val"].dtype),
    aten.full.default: lambda r, size, value, **_: _filled(r, size, value),
    aten.full_like.default: lambda r, x, value, **_: _filled(r, x.meta["val"].shape, value),
    aten.fill.Scalar: lambda r, x, value: _filled(r, x.meta["val"].shape, value),
    aten.new_full.default: lambda r, x, size, value, **_: _filled(r, size, value),
    aten.scatter.value: _scatter,
    aten.select.int: _select,
    aten.clamp.default: _clamp,
    aten.clamp_min.default: lambda r, x, low: _clamp(r, x, low),
    aten.clamp_max.default: lambda r, x, high: _clamp(r, x, None, high),
    aten.where.self: _where,
    aten.where.Scalar: _where,
    aten.where.ScalarOther: _where,
    aten.where.ScalarSelf: _where,
    aten.masked_fill.Scalar: lambda r, x, m, v: r.call(aten.where.self, m, _number(r, v, x.meta["val"].dtype), x),
}
_ELEMENTWISE = "add sub mul div remainder fmod lt le gt ge eq ne"
for _name in _ELEMENTWISE.split():
    for _overload in ("Tensor", "Scalar"):
        _USES[getattr(getattr(aten, _name), _overload)] = _elementwise(getattr(aten, _name).Tensor)
for _overload in ("Tensor_Tensor", "Tensor_Scalar", "Scalar"):
    _USES[getattr(aten.pow, _overload)] = _elementwise(aten.pow.Tensor_Tensor)
