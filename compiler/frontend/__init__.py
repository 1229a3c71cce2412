"""Model files in, `torch` and `linalg` levels out."""

from __future__ import annotations

from mlirc.frontend.huggingface import random_state_dict
from mlirc.frontend.importer import ImportedModel, import_torch
from mlirc.frontend.lower import lower_to_linalg
from mlirc.frontend.open import open_model
from mlirc.frontend.source import SourceModel, from_torch
from mlirc.frontend.weights import write_weights

__all__ = [
    "ImportedModel",
    "SourceModel",
    "from_torch",
    "import_torch",
    "lower_to_linalg",
    "open_model",
    "random_state_dict",
    "write_weights",
]
