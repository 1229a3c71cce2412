"""What is known of the kernel that is being built."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from mlirc.kernel.places import error
from mlirc.kernel.signature import Shaped
from mlirc.mlir import ir


@dataclass
class Building:
    """A kernel that is being built: its level, its results where they are annotated, and for a block program the
    attributes of its function, and which attributes must be honoured."""

    level: str
    results: Sequence[Shaped | None]
    attributes: dict[str, ir.Attribute] = field(default_factory=dict)
    demands: set[str] = field(default_factory=set)


_stack: list[Building] = []


@contextlib.contextmanager
def building(what: Building) -> Iterator[Building]:
    """What `current` gives in the body."""
    _stack.append(what)
    try:
        yield what
    finally:
        _stack.pop()


def current(level: str) -> Building:
    """The kernel that is being built. Raises KernelError where none is, or one of another level."""
    if not _stack or _stack[-1].level != level:
        raise error(f"this is for a kernel at level {level}: @kernel(level='{level}')")
    return _stack[-1]
