"""Model files in, `torch` and `linalg` levels out.

The parts are imported when they are asked for: opening a model needs PyTorch only, so that `mlirc-bench` can do it on a
machine without MLIR.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mlirc.frontend.huggingface import random_state_dict
    from mlirc.frontend.importer import ImportedModel, import_torch
    from mlirc.frontend.lower import lower_to_linalg
    from mlirc.frontend.open import open_model, packed_as
    from mlirc.frontend.own_kernel import kernel_reference
    from mlirc.frontend.source import SourceModel, from_torch
    from mlirc.frontend.weights import weights_writer, write_weights

_HOME = {
    "ImportedModel": "importer",
    "SourceModel": "source",
    "from_torch": "source",
    "import_torch": "importer",
    "kernel_reference": "own_kernel",
    "lower_to_linalg": "lower",
    "open_model": "open",
    "packed_as": "open",
    "random_state_dict": "huggingface",
    "weights_writer": "weights",
    "write_weights": "weights",
}

__all__ = [
    "ImportedModel",
    "SourceModel",
    "from_torch",
    "import_torch",
    "kernel_reference",
    "lower_to_linalg",
    "open_model",
    "packed_as",
    "random_state_dict",
    "weights_writer",
    "write_weights",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)
