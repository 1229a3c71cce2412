"""Python-defined MLIR dialects: `mlirc` (payload ops that stay whole) and `schedule` (transform ops)."""

from __future__ import annotations

import importlib
import pkgutil


def load_all(ctx) -> None:
    """Loads every dialect module of this package into the context: each has a function `load(ctx)`."""
    for info in sorted(pkgutil.iter_modules(__path__), key=lambda i: i.name):
        module = importlib.import_module(f"{__name__}.{info.name}")
        if hasattr(module, "load"):
            module.load(ctx)
