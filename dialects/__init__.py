"""Python-defined MLIR dialects: `mlirc` (payload ops that stay whole) and `schedule` (transform ops)."""

from __future__ import annotations

import importlib
import pkgutil


def load_all(ctx) -> None:
    """Loads every dialect module of this package into the context, by its function `load(ctx)`. All modules are there
    before that: a dialect has the ops that are defined when it is loaded."""
    names = sorted(info.name for info in pkgutil.iter_modules(__path__))
    for module in [importlib.import_module(f"{__name__}.{name}") for name in names]:
        if hasattr(module, "load"):
            module.load(ctx)
