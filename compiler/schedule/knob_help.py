"""What the knobs of a script are: name, type, range, default and meaning, as `mlirc-opt --knobs` prints them."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from mlirc.schedule.overrides import KNOB_TYPES, knob_types, knob_words, least_of
from mlirc.schedule.script import Script

_ENTRY = re.compile(r"(\w+): (.*)")


@dataclass(frozen=True)
class Knob:
    """One knob of a script. `values` says what it may be, `default` what it is without a `--schedule` value."""

    name: str
    type: str
    values: str
    default: str
    meaning: str


def knobs_of(script: Script) -> list[Knob]:
    """The knobs of a script, in its order; a meaning is empty where its docstring has no entry for the knob."""
    meanings = knob_meanings(script.build)
    return [_knob(script, name, default, meanings.get(name, "").rstrip(".")) for name, default in script.knobs.items()]


def knob_meanings(build: Callable) -> dict[str, str]:
    """The entries `name: meaning` that follow a line `Knobs:` in a script's docstring, which may go on over lines that
    are indented further."""
    meanings: dict[str, str] = {}
    _, _, text = (build.__doc__ or "").partition("Knobs:\n")
    name, indent = "", None
    for line in text.splitlines():
        entry, depth = _ENTRY.fullmatch(line.strip()), len(line) - len(line.lstrip())
        if entry and (indent is None or depth <= indent):
            name, indent = entry[1], depth
            meanings[name] = entry[2]
        elif name and line.strip() and indent is not None and depth > indent:
            meanings[name] += " " + line.strip()
        elif line.strip():
            break
    return meanings


def _knob(script: Script, name: str, default: Any, meaning: str) -> Knob:
    types = [t for t in KNOB_TYPES if t in knob_types(script.build, name)]
    words = knob_words(script.build, name)
    ranges = {
        "int": f"{least_of(default)} or more",
        "bool": "true or false",
        "str": " or ".join(words) or "a word",
    }
    values = " or ".join(ranges[t] for t in types) or "anything"
    shown = {None: "chosen", True: "true", False: "false"}.get(default, str(default))
    return Knob(name, " or ".join(types) or "any", values, shown, meaning)
