"""What a module takes and returns: tensors in lists, tuples, dicts and records, as data that a plan can hold.

A plan's inputs and outputs are flat. A `Structure` says which of them goes where, so that a compiled model is called as
the module is. It names no class that is looked up: what is read from a file becomes tuples, lists and dicts.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from mlirc.errors import MlircError
from mlirc.runtime.lazy import resolved

MAX_DEPTH = 64
_SEQUENCES = ("list", "tuple")
_KEYED = ("dict", "named", "record")
CONTAINERS = (*_SEQUENCES, *_KEYED, "node")
TENSORS = ("tensor", "complex")


@dataclass(frozen=True)
class Tree:
    """One value. `kind`: `tensor` (the next of the plan's), `complex` (the next, whose last dimension has the two
    parts of numbers that the caller has as complex ones), `constant` (`value`, a number, text or None), `object` (a
    constant of another type, by its text `value`), `absent` (a result that is not computed), or a container: `list`,
    `tuple`, `dict`, `named` (a named tuple), `record` (a dataclass, a Hugging Face output), `node` (of another
    type that PyTorch's pytrees know). `keys`: of a dict, or names of fields; `name`: of the class."""

    kind: str
    children: tuple[Tree, ...] = ()
    keys: tuple[str | int, ...] = ()
    name: str = ""
    value: Any = None

    @property
    def tensors(self) -> int:
        """How many tensors it holds."""
        return len(self.leaves)

    @property
    def leaves(self) -> list[Tree]:
        """Its tensors, in order."""
        return [self] if self.kind in TENSORS else [leaf for child in self.children for leaf in child.leaves]


TENSOR, COMPLEX, ABSENT = Tree("tensor"), Tree("complex"), Tree("absent")


@dataclass(frozen=True)
class Structure:
    """The arguments that a model was compiled for, and its result. `parameters`: the names of those that may be given
    by position, in order; `args`: what was given by position; `kwargs`: what was given by name."""

    parameters: tuple[str, ...]
    args: tuple[Tree, ...]
    kwargs: tuple[tuple[str, Tree], ...]
    result: Tree

    @property
    def inputs(self) -> list[Tree]:
        """The tensors that a call gives, in the plan's order."""
        return [leaf for tree in (*self.args, *(t for _, t in self.kwargs)) for leaf in tree.leaves]

    def tensors_of(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
        """The tensors of a call in the plan's order. Raises MlircError for arguments that the model does not take."""
        named = dict(self.kwargs)
        trees = {self._name(i): tree for i, tree in enumerate(self.args)} | named
        given: dict[str, Any] = {}
        for i, value in enumerate(args):
            name = self._name(i)
            if name not in trees:
                raise MlircError(f"{len(args)} arguments given by position, but the model takes {', '.join(trees)}")
            given[name] = value
        for name, value in kwargs.items():
            if name not in trees:
                raise MlircError(f"no argument is called '{name}': the model takes {', '.join(trees) or 'none'}")
            if name in given:
                raise MlircError(f"argument '{name}' is given twice, by position and by name")
            given[name] = value
        found: list[Any] = []
        for name, tree in trees.items():
            if name in given:
                _take(tree, given[name], name, found)
            elif tree.tensors:
                raise MlircError(f"argument '{name}' is missing: the model takes {', '.join(trees)}")
        return found

    def _name(self, place: int) -> str:
        return self.parameters[place] if place < len(self.parameters) else f"argument {place}"

    def texts(self) -> list[str]:
        """The names in it."""
        found, todo = [*self.parameters, *(name for name, _ in self.kwargs)], [self.result, *self.args]
        todo += [tree for _, tree in self.kwargs]
        while todo:
            tree = todo.pop()
            found += [k for k in (*tree.keys, tree.name) if isinstance(k, str) and k]
            todo += tree.children
        return found

    def is_flat(self, named: int) -> bool:
        """Whether a model takes and returns what a plan without a structure does: tensors alone, and of results one, or
        a tuple of several. `named`: how many of `kwargs` were given, and are no defaults."""
        trees = [*self.args, *(t for _, t in self.kwargs[:named])]
        result = self.result
        several = result.kind == "tuple" and len(result.children) > 1 and all(c == TENSOR for c in result.children)
        return all(t == TENSOR for t in trees) and (result == TENSOR or several)


def _take(tree: Tree, value: Any, where: str, found: list[Any]) -> None:
    """Appends the tensors of a value; raises MlircError where it is not of the tree's structure."""
    if tree.kind in TENSORS:
        if value is None or isinstance(value, (str, list, tuple, dict)):
            raise _other(where, "a tensor", value)
        found.append(value)
    elif tree.kind == "constant":
        same = type(value) is type(tree.value) and (value == tree.value or value != value and tree.value != tree.value)
        if not same:
            raise MlircError(
                f"{where} is {_shown(value)}, but the model was compiled for {tree.value!r}, a constant there: compile "
                "it for this one, too"
            )
    elif tree.kind == "object":
        if object_text(value) != tree.value:
            raise MlircError(f"{where} is {_shown(value)}, but the model was compiled for {tree.value}")
    else:
        for child, (part, name) in zip(tree.children, _parts(tree, value, where), strict=True):
            _take(child, part, name, found)


def _parts(tree: Tree, value: Any, where: str) -> Iterator[tuple[Any, str]]:
    """The parts of a container in the tree's order, each with its name."""
    if tree.kind in _KEYED and not (tree.kind == "named" and type(value) is tuple):
        keys = list(value) if isinstance(value, Mapping) else None
        if keys is None and tree.kind != "dict" and all(hasattr(value, str(k)) for k in tree.keys):
            for key in tree.keys:
                yield getattr(value, str(key)), f"{where}.{key}"
            return
        if keys is None or set(keys) - set(tree.keys) or any(k not in value for k in _present(tree)):
            what = tree.name or "a dict"
            raise _other(where, f"{what} with {', '.join(map(str, tree.keys)) or 'nothing'}", value)
        for key in tree.keys:
            yield value.get(key), f"{where}[{key!r}]"
        return
    parts = value if isinstance(value, (list, tuple)) else _registered(tree, value)
    if parts is None or len(parts) != len(tree.children):
        what = tree.name or f"a {tree.kind}"
        raise _other(where, f"{what} of {len(tree.children)}", value)
    for i, part in enumerate(parts):
        yield part, f"{where}[{i}]"


def _present(tree: Tree) -> list[str | int]:
    """The keys that have to be there: fields that are None may be left out."""
    empty = Tree("constant")
    return [k for k, c in zip(tree.keys, tree.children, strict=True) if tree.kind == "dict" or c != empty]


def _registered(tree: Tree, value: Any) -> Sequence[Any] | None:
    """The parts of an object that PyTorch's pytrees know, if PyTorch is there."""
    torch = sys.modules.get("torch")
    known = torch.utils._pytree.SUPPORTED_NODES.get(type(value)) if torch is not None else None
    if known is None or tree.kind != "node" or type(value).__name__ != tree.name:
        return None
    return list(known.flatten_fn(value)[0])


def _other(where: str, wanted: str, value: Any) -> MlircError:
    return MlircError(f"{where}: {wanted} is needed, not {_shown(value)}")


def _shown(value: Any) -> str:
    if isinstance(value, Mapping):
        return f"a {type(value).__name__} with {', '.join(map(str, value)) or 'nothing'}"
    if isinstance(value, (list, tuple)):
        return f"a {type(value).__name__} of {len(value)}"
    return repr(value) if isinstance(value, (type(None), bool, int, float, str)) else f"a {type(value).__name__}"


def object_text(value: Any) -> str:
    """What stands for a constant that is no number or text."""
    return f"{type(value).__name__} {value!r}"


def built(tree: Tree, tensors: Iterator[Any]) -> Any:
    """A result of the tree's structure, with these tensors: named tuples are tuples, and records are dicts."""
    if tree.kind in TENSORS:
        return next(tensors)
    if tree.kind in ("constant", "object", "absent"):
        return tree.value
    pairs = zip(tree.keys or range(len(tree.children)), tree.children, strict=True)
    parts = {key: built(child, tensors) for key, child in pairs if child != ABSENT}
    if tree.kind in ("dict", "record"):
        return parts
    return list(parts.values()) if tree.kind == "list" else tuple(parts.values())


def as_pairs(value: Any) -> Any:
    """A complex tensor of PyTorch, or array of NumPy, as real numbers with a last dimension of 2: in its own memory
    where it is dense and not lazily conjugated; anything else as it is."""
    if hasattr(value, "is_complex") and value.is_complex():
        return sys.modules["torch"].view_as_real(resolved(value))
    dtype = getattr(value, "dtype", None)
    if getattr(dtype, "kind", "") != "c" or not hasattr(value, "view"):
        return value
    array = np.ascontiguousarray(value).reshape(np.shape(value))
    return array[..., None].view(np.dtype(f"f{array.dtype.itemsize // 2}"))


def as_complex(pairs: Any) -> Any:
    """The complex tensor of pairs of real numbers, in their memory."""
    if isinstance(pairs, np.ndarray):
        return pairs.view(np.dtype(f"c{2 * pairs.dtype.itemsize}"))[..., 0]
    if type(pairs).__module__.partition(".")[0] == "torch":
        return sys.modules["torch"].view_as_complex(pairs)
    return pairs


# As JSON


def structure_out(structure: Structure) -> dict[str, Any]:
    """A structure as JSON's values."""
    return {
        "parameters": list(structure.parameters),
        "args": [_out(t) for t in structure.args],
        "kwargs": [[name, _out(t)] for name, t in structure.kwargs],
        "result": _out(structure.result),
    }


def _out(tree: Tree) -> Any:
    if tree.kind in (*TENSORS, "absent"):
        return [tree.kind]
    if tree.kind == "constant":
        return ["float", tree.value.hex()] if isinstance(tree.value, float) else ["constant", tree.value]
    if tree.kind == "object":
        return ["object", tree.value]
    children = [_out(c) for c in tree.children]
    if tree.kind in _SEQUENCES:
        return [tree.kind, children]
    return (
        [tree.kind, children, tree.name] if tree.kind == "node" else [tree.kind, children, tree.name, list(tree.keys)]
    )


def read_structure(data: Any, wrong: Callable[[Any, str, str], Any]) -> Structure:
    """A structure from JSON's values, of which nothing is taken for granted; `wrong(value, where, wanted)` raises."""
    keys = ("parameters", "args", "kwargs", "result")
    if not isinstance(data, dict) or set(data) != set(keys):
        wrong(data, "structure", f"an object with {', '.join(keys)}")
    for key in keys[:3]:
        if not isinstance(data[key], list):
            wrong(data[key], f"structure, {key}", "a list")
    named = [(n[0], n[1]) if isinstance(n, list) and len(n) == 2 else wrong(n, "structure, kwargs", "a pair")
             for n in data["kwargs"]]  # fmt: skip
    names = [*data["parameters"], *(name for name, _ in named)]
    for name in names:
        if not isinstance(name, str):
            wrong(name, "structure, parameters", "a name")
    own = [f"{n}" for n in data["parameters"][: len(data["args"])]] + [name for name, _ in named]
    if len(set(data["parameters"])) != len(data["parameters"]) or len(set(own)) != len(own):
        wrong(names, "structure, parameters", "names that differ")

    def read(item: Any, depth: int = 0) -> Tree:
        return _read(item, wrong, depth)

    args = tuple(read(item) for item in data["args"])
    kwargs = tuple((name, read(item)) for name, item in named)
    return Structure(tuple(data["parameters"]), args, kwargs, read(data["result"]))


def _read(item: Any, wrong: Callable[[Any, str, str], Any], depth: int) -> Tree:
    kind = item[0] if isinstance(item, list) and item and isinstance(item[0], str) else ""
    if depth > MAX_DEPTH:
        wrong(kind, "structure", f"at most {MAX_DEPTH} containers in each other")
    rest = item[1:] if isinstance(item, list) else []
    if kind in (*TENSORS, "absent") and not rest:
        return Tree(kind)
    if kind == "constant" and len(rest) == 1 and isinstance(rest[0], (type(None), bool, int, str)):
        return Tree(kind, value=rest[0])
    if kind == "object" and len(rest) == 1 and isinstance(rest[0], str):
        return Tree(kind, value=rest[0])
    if kind == "float" and len(rest) == 1 and isinstance(rest[0], str):
        try:
            return Tree("constant", value=float.fromhex(rest[0]))
        except (ValueError, OverflowError):
            wrong(rest[0], "structure", "a number in base 16")
    lengths: dict[str, int] = {"list": 1, "tuple": 1, "node": 2, "dict": 3, "named": 3, "record": 3}
    if lengths.get(kind) != len(rest) or not isinstance(rest[0], list):
        wrong(item, "structure", "a tensor, a constant or a container")
    children = tuple(_read(child, wrong, depth + 1) for child in rest[0])
    name, keys = rest[1] if len(rest) > 1 else "", rest[2] if len(rest) > 2 else []
    if not isinstance(name, str):
        wrong(name, "structure", "the name of a class")
    if len(rest) > 2:
        texts = isinstance(keys, list) and all(type(k) is str or (type(k) is int and kind == "dict") for k in keys)
        if not texts or len(keys) != len(children) or len(set(keys)) != len(keys):
            wrong(keys, "structure", "as many keys as parts, which differ")
    return Tree(kind, children, tuple(keys), name)
