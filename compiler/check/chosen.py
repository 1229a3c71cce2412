"""Which levels a check may be of, and which were asked for."""

from __future__ import annotations

from collections.abc import Sequence

from mlirc.errors import MlircError

LEVELS = ("linalg", "kernels", "tiles", "gpu", "ptx")
DEFAULT_LEVELS = ("linalg", "kernels", "tiles", "gpu")


def parse_levels(words: Sequence[str]) -> list[str]:
    """The levels that the words after `--check` name; raises MlircError for one that there is not."""
    levels = [level for word in words for level in word.split(",") if level]
    for level in levels:
        if level not in LEVELS:
            raise MlircError(f"--check: '{level}' is not one of {', '.join(LEVELS)} (MODEL goes before --check)")
    return levels
