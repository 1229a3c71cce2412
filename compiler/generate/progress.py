"""Telling who waits how far compiling or opening a generating model is."""

from __future__ import annotations

from collections.abc import Callable

Progress = Callable[[str], None]  # is called with a line for each stage, when that begins


def silent(stage: str) -> None:
    """Says nothing."""
