"""Buffers, views of them, and steps over views: what a launch plan is made of before its buffers have places."""

from __future__ import annotations

from dataclasses import dataclass

from mlirc.errors import MlircError
from mlirc.ir.tensors import ELEMENT_BYTES
from mlirc.mlir import ir
from mlirc.runtime.plan import POINTER_ALIGNMENT, KernelLaunch
from mlirc.runtime.repeats import Motion


@dataclass
class Buffer:
    """One allocation: a boundary tensor (`space` and `index` say which) or an intermediate (`space` is `arena`)."""

    space: str
    size: int
    index: int = 0
    first: int = 0
    last: int = 0
    static: bool = False  # the same for every run: a weight or a constant, or computed from those alone
    looped: bool = False  # the steps of a loop use it


@dataclass(frozen=True)
class View:
    """`size` bytes of a buffer from `offset` on: what a tensor value of `@main` is in memory; in a loop, how it moves
    with the iterations."""

    buffer: int
    offset: int
    size: int
    motion: Motion = Motion()


@dataclass(frozen=True)
class Step:
    """A launch, or a copy (no kernel), whose arguments are still views; `written` are those that it may write."""

    views: tuple[View, ...]
    launch: KernelLaunch | None = None
    written: tuple[View, ...] = ()


def tensor_bytes(type_: ir.Type, where: str) -> int:
    """Bytes of a static tensor type, i1 as one byte per element."""
    if not isinstance(type_, ir.RankedTensorType) or not type_.has_static_shape:
        raise MlircError(f"{where}: {type_} is not a tensor of static shape")
    size = ELEMENT_BYTES.get(str(type_.element_type))
    if size is None:
        raise MlircError(f"{where}: element type {type_.element_type} is not supported")
    for extent in type_.shape:
        size *= extent
    return size


def is_aligned(view: View) -> bool:
    """Whether kernels may load 16 bytes at a time from a view, in every iteration. One that starts elsewhere is copied
    first."""
    return view.offset % POINTER_ALIGNMENT == 0 and view.motion.move % POINTER_ALIGNMENT == 0
