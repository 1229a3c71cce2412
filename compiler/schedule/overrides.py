"""`--schedule` values that name a kernel, a kind or a script: how they are written, and what knobs take."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from mlirc.errors import MlircError
from mlirc.schedule.script import Script

KNOB_TYPES = ("int", "bool", "str")
LARGEST = 2**31 - 1


@dataclass
class Override:
    """`TARGET[=SCRIPT][:knob=value,...]`; the target is a kernel's name, its kind, a script's name or `*`. `obstacle`
    says why a kernel that it names did not take it."""

    text: str
    target: str
    script: str | None
    knobs: dict[str, Any]
    used: bool = False
    obstacle: str = ""


def parse_override(text: str) -> Override:
    """Parses `TARGET[=SCRIPT][:knob=value,...]`; raises MlircError for another form."""
    head, colon, tail = text.partition(":")
    target, equals, script = head.partition("=")
    form = "expected FILE.py, FILE.mlir, or TARGET[=SCRIPT][:knob=value,...]"
    if not target or (equals and not script) or not (equals or colon) or (colon and not tail):
        raise MlircError(f"--schedule '{text}': {form}")
    knobs: dict[str, Any] = {}
    for item in tail.split(",") if tail else []:
        name, eq, value = (part.strip() for part in item.partition("="))
        if not eq or not name or not value:
            raise MlircError(f"--schedule '{text}': '{item}' is not of the form knob=value: {form}")
        if name in knobs:
            raise MlircError(f"--schedule '{text}': knob '{name}' is given twice")
        knobs[name] = _parse_value(value)
    return Override(text, target, script or None, knobs)


def _parse_value(text: str) -> Any:
    words = {"true": True, "false": False, "none": None}
    if text.lower() in words:
        return words[text.lower()]
    return int(text) if re.fullmatch(r"[+-]?[0-9]{1,40}", text) else text


def check_knobs(override: Override, script: Script) -> None:
    """Raises MlircError for a knob that the script does not have, or a value that its annotation does not allow."""
    for knob, value in override.knobs.items():
        if knob not in script.knobs:
            valid = ", ".join(script.knobs) or "none"
            what = f"script '{script.name}' has no knob '{knob}': it has {valid}"
            raise MlircError(f"--schedule '{override.text}': {what}")
        wanted = _wanted(script, knob, value)
        if wanted:
            what = f"knob '{knob}' of script '{script.name}' takes {wanted}, not {value}"
            raise MlircError(f"--schedule '{override.text}': {what}")


def knob_types(build: Callable, knob: str) -> set[str]:
    """What a knob may be, of `int`, `bool`, `str`, `None` and whatever else its annotation names; its default's type
    where it has no annotation; empty when neither tells."""
    annotation = inspect.get_annotations(build).get(knob)
    if annotation is None:
        default = inspect.signature(build).parameters[knob].default
        return set() if default is None else {type(default).__name__}
    text = annotation if isinstance(annotation, str) else getattr(annotation, "__name__", "") or str(annotation)
    if "UnionType" in type(annotation).__name__ or "typing." in str(annotation):
        text = str(annotation)
    text = _LITERAL.sub("str", text)
    return {"None" if w == "Optional" else w for w in re.findall(r"\w+", text)} - {"typing", "Union", "NoneType"}


_LITERAL = re.compile(r"""(?:\w+\.)?Literal\[(\s*(?:"\w+"|'\w+')(?:\s*,\s*(?:"\w+"|'\w+'))*)\s*\]""")


def knob_words(build: Callable, knob: str) -> list[str]:
    """The words that a knob may be, where its annotation lists them: `Literal["cp_async", "tma"]`; else none."""
    found = _LITERAL.search(str(inspect.get_annotations(build).get(knob)))
    return re.findall(r"\w+", found[1]) if found else []


def _wanted(script: Script, knob: str, value: Any) -> str:
    """What a knob takes, when that is not `value`; "" when it is."""
    allowed = knob_types(script.build, knob)
    default = script.knobs[knob]
    if value is None:
        return "" if default is None or "None" in allowed or not allowed else "a value"
    words = knob_words(script.build, knob)
    least = least_of(default)
    checks = {
        "int": (isinstance(value, int) and not isinstance(value, bool) and least <= value <= LARGEST,
                f"an integer of at least {least}" + (f" and at most {LARGEST}" if _too_large(value) else "")),
        "bool": (isinstance(value, bool), "true or false"),
        "str": (isinstance(value, str) and (not words or value in words), " or ".join(words) or "a word"),
    }  # fmt: skip
    asked = [checks[t] for t in KNOB_TYPES if t in allowed]
    return "" if not asked or any(fits for fits, _ in asked) else " or ".join(words for _, words in asked)


def least_of(default: Any) -> int:
    """The least value of an integer knob: 1, or its default where that is less."""
    return min(1, default) if isinstance(default, int) else 1


def _too_large(value: Any) -> bool:
    return isinstance(value, int) and value > LARGEST
