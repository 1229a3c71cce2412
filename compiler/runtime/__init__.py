"""Loads and runs compiled models. Imports neither MLIR nor PyTorch."""

from __future__ import annotations

from mlirc.runtime.loading import load, load_text
from mlirc.runtime.model import CompiledModel

__all__ = ["CompiledModel", "load", "load_text"]
