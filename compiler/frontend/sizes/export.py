"""torch.export with the sizes that a user asks for as symbols."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch.fx.experimental import _config as symbolic

from mlirc.errors import MlircError
from mlirc.frontend.sizes.request import SizeRequest, combine


def dynamic_shapes(source: Any) -> Any:
    """torch.export's `dynamic_shapes` of a source with symbolic sizes."""
    request: SizeRequest = source.sizes
    dims = {name: torch.export.Dim(name, min=low, max=high) for name, (low, high) in request.ranges.items()}
    wanted: dict[int, Any] = {}
    args, kwargs = source.bind_real()
    tensors = [t for t in torch.utils._pytree.tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)]
    for spec, tensor in zip(source.input_specs(), tensors, strict=True):
        symbols = request.dims.get(spec.name, ())
        wanted[id(tensor)] = {i: dims[s] for i, s in enumerate(symbols) if s} or None
    combined = combine(source.module, args, kwargs)
    return torch.utils._pytree.tree_map(lambda leaf: wanted.get(id(leaf)), combined)


@contextlib.contextmanager
def with_symbols(source: Any) -> Iterator[dict[str, Any]]:
    """Options of torch.export.export for the source, inside of which sizes of 1 are not taken for special ones:
    what holds for some sizes alone is asserted by the program."""
    if source.sizes is None:
        yield {}
        return
    names = {spec.name for spec in source.input_specs()}
    for symbol in source.sizes.ranges:
        if symbol in names:
            raise MlircError(f"{source.name}: '{symbol}' is an input: give the size another name")
    unknown = [name for name in source.sizes.dims if name not in names]
    if unknown:
        raise MlircError(f"{source.name}: no input '{unknown[0]}': its inputs are {', '.join(sorted(names))}")
    with symbolic.patch(backed_size_oblivious=True):  # type: ignore[attr-defined]
        yield dict(dynamic_shapes=dynamic_shapes(source), prefer_deferred_runtime_asserts_over_guards=True)


def input_names(program: Any, source: Any) -> dict[str, str]:
    """The source's name of each tensor that a user gives, by its placeholder's."""
    nodes = {n.name: n.meta.get("val") for n in program.graph.find_nodes(op="placeholder")}
    user = [n for n in program.graph_signature.user_inputs if isinstance(nodes.get(n), torch.Tensor)]
    return dict(zip(user, (spec.name for spec in source.input_specs()), strict=True))


def example_shapes(source: Any) -> dict[str, tuple[int, ...]]:
    """The shapes of the example inputs, by name."""
    return {spec.name: tuple(t.shape) for spec, t in zip(source.input_specs(), source.example_inputs(), strict=True)}
