"""The sizes of a model as JSON in its plan, written and read."""

from __future__ import annotations

from typing import Any, NoReturn

from mlirc.errors import MlircError
from mlirc.runtime.sizes import Sizes, dims_text, parse_dims, parse_symbol

KEYS = ("symbols", "inputs", "outputs", "conditions")


def sizes_out(sizes: Sizes) -> dict[str, Any]:
    """As JSON: the symbols' ranges, rows of names and dimensions, and conditions, all as texts."""
    return {
        "symbols": [str(s) for s in sizes.symbols],
        "inputs": [[name, dims_text(dims)] for name, dims in sizes.inputs.items()],
        "outputs": [[name, dims_text(dims)] for name, dims in sizes.outputs.items()],
        "conditions": list(sizes.conditions),
    }


def read_sizes(data: Any) -> Sizes:
    """Reads it back; raises MlircError for anything that is not of this form."""
    if not isinstance(data, dict) or set(data) != set(KEYS):
        _wrong(sorted(data) if isinstance(data, dict) else data, f"an object with {', '.join(KEYS)}")
    for key in KEYS:
        if not isinstance(data[key], list):
            _wrong(data[key], "a list")
    try:
        return Sizes(
            tuple(parse_symbol(_text(s)) for s in data["symbols"]),
            {name: parse_dims(text) for name, text in map(_row, data["inputs"])},
            {name: parse_dims(text) for name, text in map(_row, data["outputs"])},
            tuple(_text(c) for c in data["conditions"]),
        )
    except MlircError as e:
        raise MlircError(f"plan: {e}: compile the model again") from e


def _row(value: Any) -> tuple[str, str]:
    if not isinstance(value, list) or len(value) != 2:
        _wrong(value, "a name and dimensions")
    return _text(value[0]), _text(value[1])


def _text(value: Any) -> str:
    if not isinstance(value, str):
        _wrong(value, "a text")
    return value


def _wrong(value: Any, wanted: str) -> NoReturn:
    raise MlircError(f"plan: sizes: {ascii(value)[:80]} where {wanted} must be: compile the model again")
