"""What a check found, as data, as a table, and in one line."""

from __future__ import annotations

from dataclasses import dataclass, field

from mlirc.check.compare import Difference
from mlirc.ir.levels import LEVELS

_ABOVE = {"linalg": "torch", "kernels": "linalg", "tiles": "kernels", "gpu": "tiles", "ptx": "gpu"}


@dataclass
class Result:
    """`differences[level][kind]` of every level and kind of inputs, from the top; `skipped` says why kinds were left
    out, `notes` what was looked at where that is not everything, and `blank` which outputs (by number) have no finite
    element in PyTorch itself, so that there was nothing to compare."""

    model: str
    levels: list[str] = field(default_factory=list)
    kinds: list[str] = field(default_factory=list)
    differences: dict[str, dict[str, Difference]] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)
    notes: dict[str, str] = field(default_factory=dict)
    blank: dict[str, list[int]] = field(default_factory=dict)
    stated: list[str] = field(default_factory=list)  # what the user's code says of how near is near enough
    reference: str = "PyTorch in FP64"
    start: str = "torch"  # the level that is right by definition, or in words what is
    entry: str = "torch"  # the level that the compilation started from

    @property
    def wrong(self) -> list[str]:
        """The levels that are wrong on some inputs, from the top."""
        return [level for level, row in self.differences.items() if any(d.wrong for d in row.values())]

    @property
    def ok(self) -> bool:
        """Whether every level is right on every kind of inputs."""
        return not self.wrong

    @property
    def worst(self) -> float:
        """The largest relative error of an output."""
        return max((d.error for row in self.differences.values() for d in row.values()), default=0.0)

    def culprit(self) -> str:
        """The step that made the first wrong level, in words."""
        first = self.wrong[0]
        above = self.levels[self.levels.index(first) - 1] if first != self.levels[0] else self.start
        if above not in LEVELS:  # a kernel's reference, which is no level
            first_of_all = first == self.entry
            return "the kernel as it is written gives it" + (
                "" if first_of_all else f", or a step: check {self.entry} too"
            )
        text = f"made by the step {above} -> {first}"
        between = [x for x in LEVELS[LEVELS.index(above) + 1 : LEVELS.index(first)] if x in _ABOVE]
        return text + (f": check {' '.join(between)} too, to find which part of it" if between else "")

    def reason(self) -> str:
        """The first wrong level, on which inputs, how, and whose step made it."""
        first = self.wrong[0]
        kind, difference = next((k, d) for k, d in self.differences[first].items() if d.wrong)
        return f"level {first} is wrong on inputs '{kind}': {difference.reason} ({self.culprit()})"

    def line(self) -> str:
        """The check in one line."""
        if not self.ok:
            return f"check: WRONG: {self.reason()}"
        text = f"check: {', '.join(self.levels)} right on {len(self.kinds)} inputs (worst {self.worst:.1e})"
        parts = [text, *self.stated, *([f"plain: {self._blank('plain')}"] if "plain" in self.blank else [])]
        return "; ".join(parts)

    def _blank(self, kind: str) -> str:
        numbers = ", ".join(str(i) for i in self.blank[kind])
        return f"output {numbers} is nothing but NaN and infinities in PyTorch too"

    def table(self) -> str:
        """Kinds of inputs by levels, the largest relative error of an output each, and what there is to say of them."""
        width = max([len(k) for k in self.kinds] + [6]) + 2
        lines = [f"{self.model} beside {self.reference}: largest relative error of an output"]
        lines.append(" " * width + "".join(f"{level:<16}" for level in self.levels).rstrip())
        for kind in self.kinds:
            cells = [_cell(self.differences[level][kind]) for level in self.levels]
            said = [*self.notes.get(kind, "").split("; "), *([self._blank(kind)] if kind in self.blank else [])]
            note = f"({'; '.join(filter(None, said))})" if any(said) else ""
            lines.append(f"{kind:<{width}}" + ("".join(f"{c:<16}" for c in cells) + note).rstrip())
        lines += self.stated
        lines += [f"{kind}: skipped: {why}" for kind, why in self.skipped.items()]
        return "\n".join(lines)


def _cell(difference: Difference) -> str:
    return f"{difference.error:.1e} {'WRONG' if difference.wrong else 'ok'}"
