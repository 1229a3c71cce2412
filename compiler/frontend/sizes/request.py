"""What sizes a user asks for: which dimensions of which inputs are symbolic, and how large they may become."""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from mlirc.errors import MlircError, require_type

_DIM = re.compile(r"(?:(\d{1,9})\s*<=\s*)?([A-Za-z_]\w*)(?:\s*<=\s*(\d{1,9}))?", re.ASCII)


@dataclass(frozen=True)
class SizeRequest:
    """`dims`: per input, by name, the symbol of each dimension, or None for a static one. `ranges`: the least and the
    most that a symbol may be."""

    dims: dict[str, tuple[str | None, ...]]
    ranges: dict[str, tuple[int, int]]

    def bound(self, name: str, shape: Sequence[int]) -> tuple[int, ...]:
        """An input's shape at the bound."""
        symbols = self.dims.get(name, (None,) * len(shape))
        return tuple(n if s is None else self.ranges[s][1] for n, s in zip(shape, symbols, strict=True))


class Ranges:
    """Collects the symbols of several inputs, each with one range."""

    def __init__(self) -> None:
        self.found: dict[str, tuple[int, int]] = {}
        self._open: dict[str, str] = {}  # symbols without a bound so far, and where

    def add(self, text: str, where: str) -> str:
        """The symbol of `s<=2048`, `2<=s<=2048`, or `s`, whose bound is said elsewhere."""
        match = _DIM.fullmatch(text.strip())
        if not match:
            raise MlircError(f"{where}: '{text.strip()}' is no size: write 128, or s<=2048 for one of up to 2048")
        least, name, most = match.groups()
        if most is None:
            if least is not None:
                raise MlircError(f"{where}: '{text.strip()}' has no bound: write {least}<={name}<=2048")
            self._open.setdefault(name, where)
            return name
        low, high = int(least or 1), int(most)
        if not 1 <= low <= high or high < 2:
            raise MlircError(f"{where}: '{text.strip()}': a size is from 1 to a bound of at least 2")
        if low == high:
            raise MlircError(f"{where}: '{text.strip()}' is one size alone: write {high}")
        if self.found.setdefault(name, (low, high)) != (low, high):
            raise MlircError(f"{where}: '{name}' has two ranges: give it one")
        return name

    def done(self) -> dict[str, tuple[int, int]]:
        """The ranges; raises MlircError for a symbol without one."""
        for name, where in self._open.items():
            if name not in self.found:
                raise MlircError(f"{where}: '{name}' has no bound: write {name}<=2048 where it is first used")
        return self.found


def of_sizes(sizes: Mapping[str, Any], shapes: Mapping[str, Sequence[int]]) -> SizeRequest:
    """A request from `mlirc.compile(..., sizes={"x": "b<=8, 7"})`, or a list such as `["b<=8", 7]`; None stands for
    the example's size. Raises MlircError for inputs that there are not, and dimensions that do not fit."""
    ranges, dims = Ranges(), {}
    for name, given in sizes.items():
        where = f"sizes['{name}']"
        if name not in shapes:
            raise MlircError(f"{where}: there is no such input: those are {', '.join(shapes)}")
        parts = _listed(given)
        shape = tuple(shapes[name])
        if len(parts) != len(shape):
            raise MlircError(f"{where}: {len(parts)} sizes, but the input has {len(shape)} dimensions")
        symbols: list[str | None] = []
        for part, size in zip(parts, shape, strict=True):
            fixed = part is None or isinstance(part, int) or str(part).strip().isdecimal()
            if fixed and part is not None and int(part) != size:
                raise MlircError(f"{where}: the size {part} is {size} in the example input")
            symbols.append(None if fixed else ranges.add(str(part), where))
        dims[name] = tuple(symbols)
    return SizeRequest(dims, ranges.done())


def _listed(given: Any) -> list[Any]:
    """The sizes of an input one by one: `"b<=8, 7"`, `["b<=8", 7]` and `["b<=8, 7"]` are the same."""
    require_type(given, (str, list, tuple), "sizes of an input", "them as 'b<=8, 7', or as ['b<=8', 7]")
    listed = [given] if isinstance(given, str) else list(given)
    return [part for item in listed for part in (item.split(",") if isinstance(item, str) else [item])]


def of_dynamic_shapes(
    dynamic_shapes: Any, module: torch.nn.Module, args: tuple, kwargs: dict, names: Sequence[str]
) -> SizeRequest:
    """A request from torch.export's `dynamic_shapes`, whose `Dim`s need a `max`. Raises MlircError for other kinds."""
    combined = combine(module, args, kwargs)
    require_type(dynamic_shapes, (Mapping, tuple, list), "dynamic_shapes", "dimensions by the inputs' names")
    if isinstance(dynamic_shapes, (tuple, list)):
        _require_length(dynamic_shapes, len(combined), "dynamic_shapes")
        dynamic_shapes = dict(zip(combined, dynamic_shapes, strict=True))
    ranges, dims = Ranges(), {}
    leaves: list[tuple[torch.Tensor, Any]] = []

    def visit(value: Any, given: Any, where: str) -> None:
        if isinstance(value, torch.Tensor):
            leaves.append((value, given))
        elif isinstance(value, Mapping):
            require_type(given, (Mapping, type(None)), where, "dimensions by name, or None")
            if unknown := [key for key in given or () if key not in value]:
                raise MlircError(f"{where}: there is no '{unknown[0]}': those are {', '.join(map(str, value))}")
            for key, child in value.items():
                visit(child, (given or {}).get(key), f"{where}['{key}']")
        elif isinstance(value, (tuple, list)):
            require_type(given, (tuple, list, type(None)), where, f"a list of {len(value)}, or None")
            _require_length(given or value, len(value), where)
            for i, child in enumerate(value):
                visit(child, given[i] if given else None, f"{where}[{i}]")

    visit(combined, dynamic_shapes, "dynamic_shapes")
    for name, (tensor, given) in zip(names, leaves, strict=True):
        where = f"dynamic_shapes of '{name}'"
        require_type(given, (Mapping, tuple, list, type(None)), where, "Dims by the numbers of dimensions, or None")
        if isinstance(given, (tuple, list)):
            _require_length(given, tensor.dim(), where)
        table = dict(enumerate(given)) if isinstance(given, (tuple, list)) else dict(given or {})
        for key in table:
            if type(key) is not int or not -tensor.dim() <= key < tensor.dim():
                raise MlircError(f"{where}: there is no dimension {key!r}: the input has {tensor.dim()}")
        symbols = []
        for i in range(tensor.dim()):
            dim = table.get(i, table.get(i - tensor.dim()))
            symbols.append(None if dim is None or isinstance(dim, int) else _dim(dim, ranges, where))
        if any(symbols):
            dims[name] = tuple(symbols)
    return SizeRequest(dims, ranges.done())


def _require_length(given: Any, count: int, where: str) -> None:
    if len(given) != count:
        raise MlircError(
            f"{where}: {len(given)} are given, and there are {count}: give as many, with None for those of one size"
        )


def _dim(dim: Any, ranges: Ranges, where: str) -> str:
    name, most = getattr(dim, "__name__", None), getattr(dim, "max", None)
    if name is None or not isinstance(most, int) or hasattr(dim, "root"):
        raise MlircError(f"{where}: {dim} has no bound of its own: give torch.export.Dim('{name or 's'}', max=...)")
    if most >= 1 << 31:
        raise MlircError(f"{where}: '{name}' has no bound: give torch.export.Dim('{name}', max=...)")
    least = max(1, getattr(dim, "min", 1))
    return ranges.add(f"{least}<={name}<={most}", where)


def combine(module: torch.nn.Module, args: tuple, kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a call by the names of `forward`'s parameters, as torch.export's `dynamic_shapes` has them."""
    bound = inspect.signature(module.forward).bind(*args, **kwargs).arguments
    found: dict[str, Any] = {}
    for name, value in bound.items():
        if inspect.signature(module.forward).parameters[name].kind is inspect.Parameter.VAR_KEYWORD:
            found |= value
        else:
            found[name] = value
    return found


def with_sizes(source: Any, sizes: Mapping[str, Any] | None, dynamic_shapes: Any) -> Any:
    """A source of a module with the sizes that a call decides, whose example inputs are at their bound then."""
    if sizes is not None and dynamic_shapes is not None:
        raise MlircError("sizes and dynamic_shapes say the same: give one of them")
    specs = source.input_specs()
    if sizes is not None:
        require_type(sizes, Mapping, "sizes", "them by the inputs' names, as {'x': 'b<=8, 7'}")
        pairs = source.complex_inputs()  # which have a last dimension of 2 that nobody has to know of
        whole = {name: [*_listed(given), 2] if name in pairs else given for name, given in sizes.items()}
        request = of_sizes(whole, {s.name: s.shape for s in specs})
    elif dynamic_shapes is not None:
        names = [s.name for s in specs]
        args, kwargs = source.bind_real()
        request = of_dynamic_shapes(dynamic_shapes, source.module, args, kwargs, names)
    else:
        return source
    if not request.ranges:
        return source
    tensors = [_resized(t, request.bound(s.name, s.shape)) for s, t in zip(specs, source.example_inputs(), strict=True)]
    source.args, source.kwargs = source.bind(tensors)
    source.sizes = request
    return source


def _resized(tensor: torch.Tensor, shape: Sequence[int]) -> torch.Tensor:
    """A tensor of another shape with the same values, which repeat."""
    for dim, size in enumerate(shape):
        if size != tensor.shape[dim]:
            if not tensor.shape[dim]:
                raise MlircError("an example input with a symbolic size is empty: give one that is not")
            tensor = tensor.index_select(dim, torch.arange(size, device=tensor.device) % tensor.shape[dim])
    return tensor
