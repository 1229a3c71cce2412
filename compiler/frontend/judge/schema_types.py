"""Whether a value read from JSON has the types that its dataclass says: PyTorch's reader takes what there is."""

from __future__ import annotations

import dataclasses
import enum
import functools
import types
import typing
from typing import Any


def wrong_type(value: Any, hint: Any, where: str = "") -> str:
    """Where the first value is that is not of the type that the dataclasses of PyTorch's schema say, and what is there,
    in words; "" for one that is right."""
    origin, parts = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Annotated:
        return wrong_type(value, parts[0], where)
    if origin in (typing.Union, types.UnionType):
        found = [wrong_type(value, part, where) for part in parts]
        return "" if "" in found else found[0]
    if origin in (list, dict):
        if not isinstance(value, origin):
            return _wrong(value, origin, where)
        items = value.items() if isinstance(value, dict) else enumerate(value)
        return next(filter(None, (wrong_type(v, parts[-1], f"{where}[{k!r:.40}]") for k, v in items)), "")
    if dataclasses.is_dataclass(hint):
        return _wrong_field(value, hint, where)
    if not isinstance(hint, type):
        return ""
    if issubclass(hint, enum.Enum):
        is_right = type(value) in (int, hint) and any(value == member for member in hint)
    else:
        is_right = isinstance(value, hint) and (hint is bool or not isinstance(value, bool))
    return "" if is_right else _wrong(value, hint, where)


def _wrong_field(value: Any, hint: Any, where: str) -> str:
    if not isinstance(value, hint):
        return _wrong(value, hint, where)
    is_union = hasattr(hint, "create")
    names = [str(value.type)] if is_union else [f.name for f in dataclasses.fields(hint)]
    hints = _hints(hint)
    return next(filter(None, (wrong_type(getattr(value, n), hints[n], f"{where}.{n}") for n in names)), "")


@functools.cache
def _hints(cls: Any) -> dict[str, Any]:
    return typing.get_type_hints(cls)


def _wrong(value: Any, hint: type, where: str) -> str:
    there = ascii(value) if isinstance(value, bool | int | float | str | None) else type(value).__name__
    return f"{where.lstrip('.')} is {there:.40}, not {hint.__name__}"
