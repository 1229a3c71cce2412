"""What can be measured, as data: a case is JSON, so that another machine rebuilds the same module and inputs."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from mlirc.errors import MlircError
from mlirc.runtime.tensor_map import DTYPE_BYTES

# Input kinds: what random values an input gets (see `build.make_input`).
Input = dict[str, Any]


@dataclass(frozen=True)
class Case:
    """One thing to measure.

    `builder` is `operator`, `huggingface`, `network` (a small module of `networks.py`, compiled through a `.pt2`),
    `file` (a model that the user named) or `generation` (a model that generates, `generation/cases.py`). `options` is
    what that builder needs, in JSON's types; `inputs` maps each input's name to {dtype, shape, kind, ...}; `dtype` is
    the type computed in; `seed` fixes weights and inputs.
    """

    name: str
    suite: str
    builder: str
    options: dict[str, Any]
    inputs: dict[str, Input]
    dtype: str
    seed: int = 0

    @property
    def rotated(self) -> bool:
        """Whether it is all inputs and no weights: many copies of the inputs keep the cache cold."""
        return self.builder in ("operator", "mlir")

    @property
    def group(self) -> str:
        """Equal for cases that share one torch module, such as the sequence lengths of one model."""
        if self.rotated:
            return self.name
        return repr((self.builder, sorted(self.options.items(), key=str), self.dtype, self.seed))

    def to_json(self) -> dict[str, Any]:
        """The case as JSON data."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Case:
        """Reads `to_json` back; raises MlircError when fields are missing or unknown."""
        try:
            return cls(**data)
        except TypeError as e:
            raise MlircError(f"case {data.get('name', '?')}: not a benchmark case of this version ({e})") from e


def select(cases: Iterable[Case], pattern: str | None) -> list[Case]:
    """The cases whose name matches the regular expression anywhere; raises MlircError when none does."""
    found = list(cases)
    if pattern is None:
        return found
    try:
        regex = re.compile(pattern)
    except re.error as e:
        raise MlircError(f"--filter '{pattern}': not a regular expression: {e}") from e
    kept = [c for c in found if regex.search(c.name)]
    if not kept:
        raise MlircError(f"--filter '{pattern}': no case matches; --list prints their names")
    return kept


def tensor(dtype: str, *shape: int, kind: str = "normal", **more: Any) -> Input:
    """An input description: `kind` is normal, ids (integers below `upper`), tail_mask, or text."""
    return {"dtype": dtype, "shape": list(shape), "kind": kind, **more}


def input_bytes(inputs: dict[str, Input]) -> int:
    """The size of a case's inputs in bytes."""
    return sum(_nbytes(i) for i in inputs.values())


def _nbytes(one: Input) -> int:
    size = DTYPE_BYTES[one["dtype"]]
    for extent in one["shape"]:
        size *= extent
    return size
