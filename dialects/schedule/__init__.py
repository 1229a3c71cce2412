"""Transform ops of our own (dialect `schedule`), one per file: a new op is a new file and nothing else.

A file defines one op with `@transform_op(...)`, and beside it the pure functions that analyse the payload. Files whose
name starts with an underscore hold shared analysis only. `load` imports every file and registers the dialect.
"""

from __future__ import annotations

import importlib
import pkgutil

from mlirc.dialects.schedule import _user_ops
from mlirc.dialects.schedule._base import LINALG, PayloadError, Schedule, attach, build, transform_op


def load(ctx) -> None:
    """Loads the dialect with all its ops into the context, once per process (there is one context per process)."""
    from mlirc.mlir import ir

    for info in sorted(pkgutil.iter_modules(__path__), key=lambda i: i.name):
        if not info.name.startswith("_"):
            importlib.import_module(f"{__name__}.{info.name}")
    with ctx, ir.Location.unknown():
        Schedule.load()
        for op in Schedule.operations:
            attach(op, ctx)
    _user_ops.loaded(ctx)


def defined_in(file: str) -> list[str]:
    """Names of the transform ops that a user's file defined."""
    return _user_ops.defined_in(file)


def users_ops() -> list[str]:
    """Names of the transform ops that users' files defined in this process."""
    return _user_ops.users_ops()


__all__ = ["LINALG", "PayloadError", "build", "defined_in", "load", "transform_op", "users_ops"]
