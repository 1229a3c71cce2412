"""A part of a program that has the bound's size whatever a call's is, so that its shapes are fixed.

What goes in is filled up to the bound with a value that the part knows to leave out; what comes out is cut to the size
again. Both are ops in the exported program alone: their rules (`rules/at_bound.py`) make them a mask and nothing.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any

import torch

_GIVEN: ContextVar[Iterator[int] | None] = ContextVar("rows of the parts of an export", default=None)


def rows_of_part(size: Any) -> int | None:
    """The rows of a part that gets so many of an export: the most that they may be. None for a number, which may be
    used as it is, and for a size that nothing bounds."""
    given = _GIVEN.get()
    if given is not None:
        return next(given, None)
    if not isinstance(size, torch.SymInt):
        return None
    node: Any = size.node
    upper = node.shape_env.bound_sympy(node.expr).upper
    return int(upper) if upper.is_Integer and upper < 1 << 31 else None


@contextlib.contextmanager
def parts_as_in(program: Any) -> Iterator[None]:
    """Runs the body, which exports the model for other sizes, with parts as large as those of this program."""
    cuts = program.graph.find_nodes(op="call_function", target=torch.ops.mlirc.cut_to.default)
    token = _GIVEN.set(iter([int(n.args[0].meta["val"].shape[0]) for n in cuts]))
    try:
        yield
    finally:
        _GIVEN.reset(token)


def filled_up(x: torch.Tensor, rows: int, value: float) -> torch.Tensor:
    """`x` [T,...] as [rows,...], whose rows from T on are `value`."""
    return torch.ops.mlirc.filled_up(x, rows, value)


def cut_to(x: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """The first T rows of `x` [rows,...], for `like` [T,...]."""
    return torch.ops.mlirc.cut_to(x, like)


@torch.library.custom_op("mlirc::filled_up", mutates_args=())
def filled_up_op(x: torch.Tensor, rows: int, value: float) -> torch.Tensor:
    """The function above, in PyTorch."""
    out = x.new_full((rows, *x.shape[1:]), int(value) if not x.dtype.is_floating_point else value)
    out[: x.shape[0]] = x
    return out


@filled_up_op.register_fake
def _(x, rows, value):
    return x.new_empty((rows, *x.shape[1:]))


@torch.library.custom_op("mlirc::cut_to", mutates_args=())
def cut_to_op(x: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """The function above, in PyTorch."""
    return x[: like.shape[0]].clone()


@cut_to_op.register_fake
def _(x, like):
    return x.new_empty((like.shape[0], *x.shape[1:]))
