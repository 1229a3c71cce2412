"""Errors of a kernel, and what a hand-written one may not say."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from mlirc.errors import MlircError
from mlirc.mlir import ir, nested
from mlirc.passes.distribute.emit.emitter import Unsupported
from mlirc.schedule import attributes as schedule_attributes
from mlirc.schedule.places import script_line


@contextmanager
def blamed(function) -> Iterator[None]:
    """Turns an Unsupported that is raised inside into an MlircError that names the kernel and the script's line."""
    name = ir.StringAttr(function.attributes["sym_name"]).value
    place = script_line(str(function.operation.location))
    try:
        yield
    except Unsupported as e:
        where = e.place or place
        raise MlircError(f"{where + ': ' if where else ''}kernel {name}: {e}") from e


def check_attributes(function) -> None:
    """Raises Unsupported for an attribute of a hand-written kernel that nothing knows, or with a wrong value."""
    for op in [function.operation, *nested(function.operation)]:
        for name, value in schedule_attributes.of(op).items():
            problem = schedule_attributes.wrong(name, value)
            if problem:
                raise Unsupported(f"{op.name}: {problem}", op, name)
