"""`mlirc-expand-math`: math ops become arithmetic."""

from __future__ import annotations


def expand_math(gpu_module, approx: bool = True) -> None:
    """Expands the math ops nested in an operation, in place."""
