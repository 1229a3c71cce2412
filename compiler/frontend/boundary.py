"""What a module takes and returns: lists, dicts and records around its tensors, and complex tensors, which are pairs of
real numbers in a compiled model."""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.export.graph_signature import OutputKind

from mlirc.errors import MlircError
from mlirc.runtime.structure import ABSENT, COMPLEX, TENSOR, Structure, Tree, object_text

_pytree = torch.utils._pytree
_NUMBERS_AND_TEXTS = (type(None), bool, int, float, str)


def as_real(value: Any) -> Any:
    """A complex tensor as pairs of real numbers, in its memory unless it is lazily conjugated or negated; anything
    else as it is."""
    if isinstance(value, torch.Tensor) and value.is_complex():
        return torch.view_as_real(value.resolve_conj().resolve_neg())
    return value


def like_example(value: Any, example: Any) -> Any:
    """A tensor, or the complex one that it holds the pairs of where the example is complex."""
    is_pairs = isinstance(example, torch.Tensor) and example.is_complex() and not value.is_complex()
    return torch.view_as_complex(value.contiguous()) if is_pairs else value


def register_records(value: Any) -> None:
    """Has PyTorch's pytrees, and so torch.export, take a value's dataclasses apart, for the rest of the process."""
    todo = [value]
    while todo:
        top = todo.pop()
        if isinstance(top, Mapping):
            todo += top.values()
        elif isinstance(top, (list, tuple)):
            todo += top
        elif dataclasses.is_dataclass(top) and not isinstance(top, type):
            if type(top) not in _pytree.SUPPORTED_NODES:
                torch.export.register_dataclass(type(top))
            todo += [getattr(top, f.name) for f in dataclasses.fields(top)]


@contextlib.contextmanager
def real_boundary(module: torch.nn.Module, examples: tuple[tuple, dict]) -> Iterator[list[bool]]:
    """Inside, calls of the module take pairs of real numbers where the examples are complex, and return them where it
    returns complex tensors. Gives a list that tells of each tensor of the last result whether it was complex."""
    known = _pytree.tree_leaves(examples)
    found: list[bool] = []

    def before(_module: Any, args: tuple, kwargs: dict) -> tuple[tuple, dict]:
        leaves, spec = _pytree.tree_flatten((args, kwargs))
        if len(leaves) != len(known):
            return args, kwargs
        return _pytree.tree_unflatten([like_example(v, e) for v, e in zip(leaves, known, strict=True)], spec)

    def after(_module: Any, _args: tuple, _kwargs: dict, result: Any) -> Any:
        register_records(result)
        leaves, spec = _pytree.tree_flatten(result)
        found[:] = [isinstance(v, torch.Tensor) and v.is_complex() for v in leaves]
        return _pytree.tree_unflatten([as_real(v) for v in leaves], spec) if any(found) else None

    hooks = [module.register_forward_hook(after, with_kwargs=True)]
    if any(isinstance(v, torch.Tensor) and v.is_complex() for v in known):
        hooks.append(module.register_forward_pre_hook(before, with_kwargs=True))
    try:
        yield found
    finally:
        for hook in hooks:
            hook.remove()


def structure_of(
    module: torch.nn.Module | None, args: tuple, kwargs: Mapping[str, Any], result: Tree
) -> Structure | None:
    """The structure of a call with these examples; None for one that cannot be said as data."""
    names: tuple[str, ...] = ()
    more: dict[str, Any] = {}  # what is not given, and may be given as it is by default
    if module is not None:
        parameters = inspect.signature(module.forward).parameters.values()
        names = tuple(p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD))
        taken = {*names[: len(args)], *kwargs}
        more = {p.name: p.default for p in parameters if p.default is not p.empty and p.name not in taken}
    try:
        trees = [(name, _tree(value)) for name, value in (*kwargs.items(), *more.items())]
        return Structure(names, tuple(map(_tree, args)), tuple(trees), result)
    except MlircError:
        return None


def _tree(value: Any) -> Tree:
    if isinstance(value, torch.Tensor):
        return COMPLEX if value.is_complex() else TENSOR
    kind = _pytree._get_node_type(value)
    if kind not in _pytree.SUPPORTED_NODES:
        if isinstance(value, _NUMBERS_AND_TEXTS):
            return Tree("constant", value=value)
        return Tree("object", value=object_text(value))
    children, context = _pytree.SUPPORTED_NODES[kind].flatten_fn(value)
    return _container(type(value), context, [_tree(child) for child in children])


def _container(kind: Any, context: Any, children: Sequence[Tree]) -> Tree:
    """A container of these children, by its type and the context that pytrees keep of it."""
    parts = tuple(children)
    if kind in (list, tuple):
        return Tree(kind.__name__, parts)
    if issubclass(kind, tuple) and hasattr(kind, "_fields"):
        return Tree("named", parts, tuple(kind._fields), kind.__name__)
    keys = record_keys(context, len(parts))
    if keys is None:
        return Tree("node", parts, (), kind.__name__)
    is_dict = issubclass(kind, dict) and not dataclasses.is_dataclass(kind)
    if any(type(k) not in ((str, int) if is_dict else (str,)) for k in keys):
        raise MlircError(f"a dict with the keys {keys} cannot be written down")
    name = "" if kind is dict else kind.__name__
    none = context[1] if dataclasses.is_dataclass(kind) and _is_record(context) else []
    parts += tuple(Tree("constant") for _ in none)
    return Tree("dict" if is_dict else "record", parts, (*keys, *none), name)


def _is_record(context: Any) -> bool:
    """Whether a context is that of a registered dataclass: the names of its fields, and of those that are None."""
    return isinstance(context, (list, tuple)) and len(context) == 2 and all(isinstance(c, list) for c in context)


def record_keys(context: Any, count: int) -> list[Any] | None:
    """The keys, or names of fields, that a pytree's context has for its `count` children; None where it has none."""
    if _is_record(context) and len(context[0]) == count:
        return list(context[0])
    if isinstance(context, (list, tuple)) and len(context) == count and not any(isinstance(c, list) for c in context):
        return list(context)
    if isinstance(context, (list, tuple)) and context and isinstance(context[0], (list, tuple)):
        return list(context[0]) if len(context[0]) == count else None
    if isinstance(context, (list, tuple)) and len(context) == 2 and isinstance(context[1], (list, tuple)):
        return list(context[1]) if len(context[1]) == count else None  # a defaultdict's: its factory, and its keys
    return None


def result_tree(program: Any, names: Sequence[str | None], are_complex: Sequence[bool]) -> Tree | None:
    """The tree of what a program returns; None where it cannot be said. Of each of its leaves `names` has None for a
    by-product, and `are_complex` whether it is pairs of real numbers there."""
    output = next(n for n in program.graph.nodes if n.op == "output")
    specs = program.graph_signature.output_specs
    values = [v for v, s in zip(output.args[0], specs, strict=True) if s.kind == OutputKind.USER_OUTPUT]
    leaves = iter(zip(values, names, [*are_complex, *[False] * len(values)], strict=False))

    def visit(spec: Any) -> Tree:
        if spec.is_leaf():
            leaf = next(leaves, None)
            if leaf is None:
                raise MlircError("the program returns less than its module")  # a cache, in some versions
            value, name, is_complex = leaf
            if name is None:
                return ABSENT
            if isinstance(value, torch.fx.Node):
                return COMPLEX if is_complex else TENSOR
            return Tree("constant", value=value)
        children = [visit(child) for child in spec.children()]
        if children and all(c == ABSENT for c in children):
            return ABSENT
        kind = spec.context if isinstance(spec.context, type) else spec.type
        return _container(kind, spec.context, children)

    try:
        return visit(program.module_call_graph[0].signature.out_spec)
    except MlircError:
        return None


def rebuilding(program: Any, tree: Tree) -> Callable[[Sequence[Any]], Any]:
    """A function from the tensors of a result, in order, to what the module returns; by-products are None there."""
    whole = program.module_call_graph[0].signature.out_spec

    def rebuild(tensors: Sequence[Any]) -> Any:
        left = iter(tensors)

        def visit(spec: Any, tree: Tree) -> Any:
            if tree.kind in ("tensor", "complex"):
                return next(left)
            if spec.is_leaf() or tree == ABSENT:
                return tree.value
            parts = [visit(s, t) for s, t in zip(spec.children(), tree.children, strict=False)]
            return _pytree.SUPPORTED_NODES[spec.type].unflatten_fn(parts, spec.context)

        return visit(whole, tree)

    return rebuild
