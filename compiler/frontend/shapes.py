"""`--shapes`: a kernel's extents, dtypes and constants by name. Needs neither PyTorch nor MLIR."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mlirc.errors import MlircError


def parse_shapes(text: str) -> dict[str, Any]:
    """`M=128,T=bf16,scale=0.5` as a dictionary of numbers and words. Raises MlircError for another form."""
    found: dict[str, Any] = {}
    for item in filter(None, (part.strip() for part in text.split(","))):
        name, equals, value = (part.strip() for part in item.partition("="))
        if not equals or not name.isidentifier() or not value:
            raise MlircError(f"--shapes '{text}': '{item}' is not of the form M=128")
        if name in found:
            raise MlircError(f"--shapes '{text}': '{name}' is given twice")
        found[name] = _value(value)
    return found


def _value(text: str) -> Any:
    words: Mapping[str, Any] = {"true": True, "false": False, "none": None}
    if text.lower() in words:
        return words[text.lower()]
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text
