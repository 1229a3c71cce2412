"""Integers and booleans as the levels below know them: signless bytes, signed arithmetic of 32 and 64 bits.

Every 8- and 16-bit integer is stored as it is (uint8 as the int8 with the same bits), moved as it is, and computed with
as int32: extended by its own sign before an op, cut to its width after it. Both cost nothing inside a kernel. Booleans
go the same way where an op computes with them; logic stays with bits. Operands and scalars are converted to the dtype
that PyTorch computes in first, since the conversion may wrap.

The rewrite comes after the constants have been folded and before the import.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch
from torch._prims_common import ELEMENTWISE_TYPE_PROMOTION_KIND, elementwise_dtypes
from torch.fx import Graph, Node

from mlirc.errors import MlircError
from mlirc.frontend.evaluate import evaluate_fake, place
from mlirc.frontend.fx_import import module_path
from mlirc.frontend.integer_ops import REWRITES

aten = torch.ops.aten
_NARROW = (torch.uint8, torch.int8, torch.int16, torch.bool)
_INTEGERS = (*_NARROW, torch.int32, torch.int64)

# What moves elements without looking at them. `_operator` names come without overloads.
MOVES = frozenset(
    "view _unsafe_view reshape _reshape_copy permute transpose t expand slice select unsqueeze squeeze clone alias "
    "detach flip roll index _unsafe_index index_select gather embedding repeat as_strided split split_with_sizes "
    "unbind chunk narrow diagonal tril triu constant_pad_nd slice_scatter select_scatter stack cat contiguous "
    "lift_fresh_copy unfold where new_empty empty full new_full full_like movedim expand_copy view_copy scatter "
    "scatter_elements".split()
)
# What torch-mlir computes on single bits as PyTorch does.
_LOGIC = MOVES | frozenset(
    "logical_and logical_or logical_xor logical_not bitwise_and bitwise_or bitwise_xor bitwise_not any all eq ne "
    "_to_copy convert_element_type masked_fill copy "
    "_assert_async _assert_tensor_metadata".split()
)
_CASTS = ("_to_copy", "convert_element_type")
_CONDITIONS = ("mask", "condition")  # arguments that are booleans and not numbers


def legalize_integers(graph: Graph) -> dict[Node, torch.dtype]:
    """Rewrites the graph in place. Returns the dtype of the model for nodes that are stored as another: uint8 ones.

    Raises MlircError, with the module, for an op that cannot be given another integer dtype.
    """
    return _Legalizer(graph).run()


class _Legalizer:
    def __init__(self, graph: Graph):
        self.graph = graph
        self.meant: dict[Node, torch.dtype] = {}  # of nodes stored as another dtype
        self.wide: dict[Node, Node] = {}
        self.like: Node | None = None

    def run(self) -> dict[Node, torch.dtype]:
        fixed = next((n.meta["val"] for n in self.graph.nodes if hasattr(n.meta.get("val"), "fake_mode")), None)
        for node in list(self.graph.nodes):
            if node.op == "placeholder" and self.dtype(node) == torch.uint8:
                with node.meta["val"].fake_mode:
                    self.mark(node)
            elif node.op == "call_function" and node.target is not operator.getitem and fixed is not None:
                with fixed.fake_mode, torch.no_grad():
                    self.visit(node)
        self.graph.eliminate_dead_code()
        return {n: d for n, d in self.meant.items() if n.graph is self.graph}

    # -- nodes and their dtypes

    def dtype(self, node: Any) -> torch.dtype | None:
        """The dtype that the model means by a node; None for what is no tensor."""
        if node in self.meant:
            return self.meant[node]
        value = node.meta.get("val") if isinstance(node, Node) else None
        return value.dtype if isinstance(value, torch.Tensor) else None

    def mark(self, node: Node) -> Node:
        """Makes a node one of uint8 in int8."""
        if node.meta["val"].dtype == torch.uint8:
            node.meta["val"] = node.meta["val"].to(torch.int8)
            node.meta.pop("tensor_meta", None)  # the importer would take its dtype
        self.meant[node] = torch.uint8
        return node

    def call(self, target: Any, *args: Any, **kwargs: Any) -> Node:
        """A new node before the one that is visited."""
        assert self.like is not None
        node = self.graph.call_function(target, args, kwargs)
        node.meta = {"val": evaluate_fake(target, args, kwargs), **place(self.like)}
        return node

    def convert(self, node: Node, dtype: torch.dtype) -> Node:
        """A node's values in another dtype, cut to its width as PyTorch does."""
        source = self.dtype(node)
        if source == dtype:
            return node
        if source == torch.uint8 and dtype not in (torch.int8, torch.bool):
            node = self.widen(node)
        elif source is not None and source.is_floating_point and dtype in (torch.uint8, torch.int8, torch.int16):
            node = self.call(aten._to_copy.default, node, dtype=torch.int32)  # rounds towards zero, then wraps
        stored = torch.int8 if dtype == torch.uint8 else dtype
        if dtype == torch.bool:  # torch-mlir's cast loses the least int64
            node = self.call(aten.ne.Scalar, node, 0)
        elif node.meta["val"].dtype != stored:
            node = self.call(aten._to_copy.default, node, dtype=stored)
        elif stored == torch.int8:
            node = self.same_bits(node)
        return self.mark(node) if dtype == torch.uint8 else node

    def widen(self, node: Node) -> Node:
        """A node of a narrow dtype as int32."""
        if node not in self.wide:
            wide = self.call(aten._to_copy.default, node, dtype=torch.int32)
            if self.dtype(node) == torch.uint8:
                wide = self.call(aten.bitwise_and.Scalar, wide, 255)
            self.wide[node] = wide
        return self.wide[node]

    def number(self, value: int, dtype: torch.dtype) -> Node:
        return self.call(aten.full.default, [], value, dtype=dtype)

    def shape(self, node: Node) -> list[int]:
        return list(node.meta["val"].shape)

    # -- visits

    def visit(self, node: Node) -> None:
        wanted = node.meta.get("val")
        results = list(wanted) if isinstance(wanted, (tuple, list)) else [wanted]
        dtypes = {self.dtype(n) for n in node.all_input_nodes}
        dtypes |= {r.dtype for r in results if isinstance(r, torch.Tensor)}
        name = op_name(node)
        rewrite = REWRITES.get(name) if isinstance(wanted, torch.Tensor) and wanted.dtype in _INTEGERS else None
        if not dtypes & set(_NARROW) and rewrite is None or is_own(node):
            return
        if name in _LOGIC and not dtypes & {torch.uint8, torch.int8, torch.int16} and self.is_uniform(node, name):
            return
        self.like = node
        self.wide = {}  # made where it is needed: a copy that is used far below would have to be kept in memory
        with self.graph.inserting_before(node):
            if name in _CASTS:
                new: Any = self.copy(node)
            elif name == "view" and node.target is aten.view.dtype:
                new = self.reinterpret(node)
            elif name in MOVES:
                new = self.move(node, results)
            else:
                new = self.compute(node, rewrite, results)
        self.replace(node, new)

    def is_uniform(self, node: Node, name: str) -> bool:
        """Whether torch-mlir has nothing to convert in an op on booleans."""
        if name in ("where", "cat", "stack"):
            values = node.args[1:] if name == "where" else node.args[0]
            return all(isinstance(v, Node) and self.dtype(v) == node.meta["val"].dtype for v in values)  # type: ignore
        if name in _CASTS:
            return node.meta["val"].dtype != torch.bool
        return not name.startswith(("eq", "ne", "bitwise")) or all(
            isinstance(v, Node) and self.dtype(v) == torch.bool for v in node.args
        )

    def replace(self, node: Node, new: Any) -> None:
        if isinstance(new, list):
            for user in list(node.users):
                assert user.target is operator.getitem
                user.replace_all_uses_with(new[user.args[1]])  # type: ignore[index]
                self.graph.erase_node(user)
        else:
            node.replace_all_uses_with(new)
        self.graph.erase_node(node)

    def copy(self, node: Node) -> Node:
        out = self.convert(node.args[0], node.meta["val"].dtype)  # type: ignore[arg-type]
        return out

    def reinterpret(self, node: Node) -> Node:
        """`x.view(dtype)` of one width."""
        (source, dtype), value = node.args, node.meta["val"]
        if value.element_size() != source.meta["val"].element_size() or dtype not in (torch.uint8, torch.int8):  # type: ignore
            raise self.refusal(node)
        new = self.same_bits(source)  # type: ignore[arg-type]
        return self.mark(new) if dtype == torch.uint8 else new

    def same_bits(self, node: Node) -> Node:
        """A node of its own for bits that mean another number."""
        return self.call(aten.view.default, node, self.shape(node))

    def move(self, node: Node, results: list[Any]) -> Any:
        """An op that only moves elements, on what is stored."""
        dtype = results[0].dtype
        stored = torch.int8 if dtype == torch.uint8 else dtype

        def argument(name: str, value: Any) -> Any:
            if isinstance(value, Node) and name not in (*_CONDITIONS, "indices", "index"):
                return self.convert(value, dtype)
            if isinstance(value, (list, tuple)) and name == "tensors":
                return [self.convert(v, dtype) for v in value]
            if isinstance(value, int) and name in ("value", "fill_value", "self", "other"):
                return wrapped(value, stored)
            if isinstance(value, torch.dtype):
                return stored
            return value

        if op_name(node) == "where" and dtype in _INTEGERS:
            condition, *sides = node.args
            made = [self.convert(s, dtype) if isinstance(s, Node) else
                    self.number(wrapped(s, stored), stored) for s in sides]  # type: ignore  # fmt: skip
            new = self.call(aten.where.self, condition, *made)
        else:
            args, kwargs = map_arguments(node, argument)
            new = self.call(node.target, *args, **kwargs)
        return self.finish(new, results, lambda part: self.mark(part) if dtype == torch.uint8 else part)

    def compute(self, node: Node, rewrite: Callable | None, results: list[Any]) -> Any:
        """An op that looks at its operands' values, on int32 where they are narrower."""
        common = self.common_dtype(node)

        def argument(name: str, value: Any) -> Any:
            if name in (*_CONDITIONS, "indices", "index"):
                return value
            if isinstance(value, Node) and self.dtype(value) is not None:
                if common is not None:
                    value = self.convert(value, common)
                return self.widen(value) if self.dtype(value) in _NARROW else value
            if isinstance(value, (list, tuple)) and any(isinstance(v, Node) for v in value):
                return [argument(name, v) for v in value]
            if isinstance(value, torch.dtype):
                return torch.int32 if value in _NARROW else value
            if isinstance(value, int) and not isinstance(value, bool) and common in _NARROW and name in _SCALARS:
                return wrapped(value, common)
            return value

        args, kwargs = map_arguments(node, argument)
        try:
            if rewrite is not None:
                wide = torch.int32 if results[0].dtype in _NARROW else results[0].dtype
                new = rewrite(self, wide, results[0].dtype, *args, **kwargs)
            else:
                new = self.call(node.target, *args, **kwargs)
        except MlircError:
            raise
        except Exception as e:
            raise self.refusal(node) from e
        return self.finish(new, results)

    def common_dtype(self, node: Node) -> torch.dtype | None:
        """The narrow dtype to which an elementwise op of PyTorch brings its operands before it computes, if it does."""
        if torch.Tag.pointwise not in node.target.tags:  # type: ignore[union-attr]
            return None
        operands: list[Any] = []

        def visit(name: str, value: Any) -> Any:
            if isinstance(value, Node) and name not in _CONDITIONS:
                dtype = self.dtype(value)
                operands.append(value.meta["val"].to(dtype) if dtype else None)
            elif isinstance(value, (int, float)) and name in _SCALARS and name != "alpha":
                operands.append(value)
            return value

        map_arguments(node, visit)
        operands = [o for o in operands if o is not None]
        kind = ELEMENTWISE_TYPE_PROMOTION_KIND.DEFAULT
        dtype = elementwise_dtypes(*operands, type_promotion_kind=kind)[1] if operands else None
        return dtype if dtype in _NARROW else None

    def finish(self, new: Any, results: list[Any], each: Callable | None = None) -> Any:
        """The result or results of a new node in the dtypes that the old one had."""
        if not isinstance(new.meta["val"], (tuple, list)):
            return each(new) if each else self.convert(new, results[0].dtype)
        parts = []
        for i, result in enumerate(results):
            part = self.graph.call_function(operator.getitem, (new, i))
            part.meta = {**new.meta, "val": new.meta["val"][i]}
            parts.append(each(part) if each else self.convert(part, result.dtype))
        return parts

    def refusal(self, node: Node) -> MlircError:
        dtypes = sorted({str(self.dtype(n)).removeprefix("torch.") for n in node.all_input_nodes if self.dtype(n)})
        where = module_path(node)
        return MlircError(
            f"op {node.target.name()} in {f'module {where!r}' if where else 'the model'} is not supported for "  # type: ignore[union-attr]
            f"{' and '.join(dtypes)}: convert its input to int32 or a float first"
        )


_SCALARS = ("other", "self", "min", "max", "value", "alpha", "exponent")


def wrapped(value: int, dtype: torch.dtype) -> int:
    """A number as an integer dtype holds it."""
    if dtype not in _INTEGERS or dtype == torch.bool:
        return value
    info = torch.iinfo(dtype)
    return (int(value) - info.min) % (info.max - info.min + 1) + info.min


def is_own(node: Node) -> bool:
    """Whether an op is ours and knows by itself which dtypes it has; one of MOVES takes any."""
    return node.target.namespace == "mlirc" and op_name(node) not in MOVES  # type: ignore[union-attr]


def op_name(node: Node) -> str:
    """The op's name without namespace and overload."""
    return node.target._schema.name.split("::")[-1]  # type: ignore[union-attr]


def map_arguments(node: Node, function: Callable[[str, Any], Any]) -> tuple[tuple, dict[str, Any]]:
    names = [a.name for a in node.target._schema.arguments]  # type: ignore[union-attr]
    args = tuple(function(name, value) for name, value in zip(names, node.args, strict=False))
    return args, {name: function(name, value) for name, value in node.kwargs.items()}
