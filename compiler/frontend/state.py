"""What a model's `forward` writes: to buffers and inputs, whose new values a compiled model returns after its results
and keeps nowhere; and to other attributes, which is refused where the next call would read them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch.export.graph_signature import InputKind, OutputKind, TensorArgument

from mlirc.errors import MlircError

Written = list[str | int]  # names of buffers, and positions of input tensors


def written_state(signature: Any) -> Written:
    """What an exported program writes, in the order of its outputs."""
    user = [s.arg for s in signature.input_specs if s.kind == InputKind.USER_INPUT]
    inputs = [arg.name for arg in user if isinstance(arg, TensorArgument)]
    found: Written = []
    for spec in signature.output_specs:
        if spec.kind == OutputKind.BUFFER_MUTATION:
            found.append(spec.target)
        elif spec.kind == OutputKind.USER_INPUT_MUTATION:
            found.append(inputs.index(spec.target))
    return found


def call_and_restore(
    module: torch.nn.Module, args: tuple, kwargs: dict[str, Any], written: Written
) -> tuple[Any, list[torch.Tensor]]:
    """What `module` returns, and what it has written then. Its buffers are put back; inputs are not."""
    leaves = torch.utils._pytree.tree_leaves((args, kwargs))
    inputs = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
    buffers = {name: module.get_buffer(name) for name in written if isinstance(name, str)}
    before = {name: buffer.clone() for name, buffer in buffers.items()}
    try:
        output = module(*args, **kwargs)
        after = [inputs[w] if isinstance(w, int) else module.get_buffer(w).clone() for w in written]
    finally:
        for name, buffer in buffers.items():
            owner, _, key = name.rpartition(".")
            module.get_submodule(owner)._buffers[key] = buffer.copy_(before[name])
    return output, after


@contextlib.contextmanager
def replaced_attributes(module: torch.nn.Module) -> Iterator[dict[str, torch.Tensor]]:
    """The tensors, neither parameters nor buffers, that attributes held before the body gave them others, by the
    attributes' paths."""
    paths = {id(child): path for path, child in module.named_modules()}
    old: dict[str, torch.Tensor] = {}
    assign = torch.nn.Module.__setattr__

    def noted(self: torch.nn.Module, name: str, value: Any) -> None:
        held = self.__dict__.get(name)
        if id(self) in paths and isinstance(held, torch.Tensor) and held is not value:
            old.setdefault(".".join(filter(None, (paths[id(self)], name))), held)
        assign(self, name, value)

    torch.nn.Module.__setattr__ = noted  # type: ignore[assignment]
    try:
        yield old
    finally:
        torch.nn.Module.__setattr__ = assign  # type: ignore[method-assign]


def require_no_state(name: str, program: Any, replaced: dict[str, torch.Tensor]) -> None:
    """Raises MlircError where the program reads a tensor that an attribute held before it got another."""
    read: Sequence[Any] = [c for c in program.constants.values() if isinstance(c, torch.Tensor)]
    for path, tensor in replaced.items():
        if any(c is tensor or (c.data_ptr() == tensor.data_ptr() and c.numel()) for c in read):
            raise MlircError(
                f"{name}: forward reads the tensor '{path}' and replaces it, so that the next call would see another: "
                "make it a buffer (register_buffer); its new value is an output of the compiled model then"
            )
