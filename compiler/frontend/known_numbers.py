"""Whole numbers that a module keeps as tensors, as a stride of EnCodec: known to an export that decides by them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import torch
from torch._subclasses.fake_tensor import FakeTensor


@contextlib.contextmanager
def known_numbers(module: torch.nn.Module) -> Iterator[Callable[[], bool]]:
    """Makes constants of the buffers that hold a single integer and are in no state dict, while it lasts: torch.export
    knows the number then wherever shapes or branches depend on it. What it yields says whether the module has written
    to one of them meanwhile: then what was exported is wrong."""
    read: list[tuple[torch.Tensor, int]] = []
    kinds: list[tuple[torch.nn.Module, type]] = []
    buffers: list[tuple[dict[str, torch.Tensor | None], dict[str, torch.Tensor | None]]] = []
    try:
        for part in module.modules():
            found = {n: t for n in part._non_persistent_buffers_set if (t := _number(part._buffers.get(n))) is not None}
            if found:
                kinds.append((part, type(part)))
                buffers.append((part._buffers, dict(part._buffers)))
                for name in found:
                    del part._buffers[name]
                made = {name: property(_reader(tensor, read)) for name, tensor in found.items()}
                part.__class__ = type(type(part).__name__, (type(part),), made)
        yield lambda: any(tensor._version != version for tensor, version in read)
    finally:
        for part, kind in kinds:
            part.__class__ = kind
        for now, before in buffers:
            now.clear()
            now.update(before)


def _number(buffer: torch.Tensor | None) -> torch.Tensor | None:
    """The tensor that holds a buffer's integer; None for other buffers, and where nobody knows it."""
    tensor = buffer.constant if isinstance(buffer, FakeTensor) else buffer
    if tensor is None or tensor.dim() or tensor.is_meta or tensor.is_floating_point() or tensor.is_complex():
        return None
    return tensor


def _reader(tensor: torch.Tensor, read: list[tuple[torch.Tensor, int]]) -> Callable[[torch.nn.Module], torch.Tensor]:
    value, dtype = tensor.item(), tensor.dtype

    def get(_: torch.nn.Module) -> torch.Tensor:
        made = torch.tensor(value, dtype=dtype)
        read.append((made, made._version))
        return made

    return get
