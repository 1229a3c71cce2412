"""What a run on the host device found: one finding per kind and place, with the first case and how many there were."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass, field

import numpy as np

from mlirc.errors import MlircError
from mlirc.schedule.places import script_line, without_tag

_LINE = re.compile(r'":(\d+):\d+')

# What counts if anything depends on it, and else is cleared.
MAY_BE_HARMLESS = frozenset(("uninitialized read", "undefined arithmetic"))


@dataclass
class Finding:
    """One thing that is wrong with a kernel. `kind` is a short fixed word, `message` tells the first case seen,
    `location` is the operation's MLIR location, `op` its name ("" for what is found at a level above), `count` the
    number of threads or bytes concerned, `origin` the modules of the model that the kernel came from, divided by
    commas, `script` the line of the schedule script that made the operation, where known, `seed` that of the run, and
    `calls` in how many calls of the kernel it was found."""

    kind: str
    message: str
    op: str
    location: str
    kernel: str
    count: int = 1
    origin: str = ""
    script: str = ""
    seed: int = 0
    calls: int = 1
    inputs: str = ""  # the set of made-up inputs that it was found on, "" for those of the model

    def __str__(self) -> str:
        others = [f"{self.count - 1} more"] if self.count > 1 else []
        others += [f"in {self.calls} calls of the kernel"] if self.calls > 1 else []
        more = f" (and {', '.join(others)})" if others else ""
        modules = self.origin.split(", ")
        origin = self.origin if len(modules) <= 3 else f"{', '.join(modules[:2])} and {len(modules) - 2} more"
        kernel = f"{self.kernel} ({origin})" if origin else self.kernel
        made = f", made by {self.script}" if self.script else ""
        order = f", with seed {self.seed}" if self.seed else ""
        order += f", on made-up inputs '{self.inputs}'" if self.inputs else ""
        what = f"{self.op}: {self.message}" if self.op else self.message
        return f"{kernel}: {self.kind}: {what}{more} at {self.location}{made}{order}"


@dataclass
class Report:
    """The findings of one or several launches, and their counters (kernel name to counter to value)."""

    findings: list[Finding] = field(default_factory=list)
    counters: dict[str, dict[str, int]] = field(default_factory=dict)
    by_operation: dict[tuple, list[int]] = field(default_factory=dict)
    calls: dict[str, int] = field(default_factory=dict)  # of each kernel
    blocks: int = 0  # that ran
    compared: int = 0  # calls whose results were compared with a reference
    sets: dict[str, list[str]] = field(default_factory=dict)  # of made-up inputs that each kernel was tried on
    judged: dict[str, tuple[int, int]] = field(default_factory=dict)  # of each kernel, see `judge`
    ended: bool = True  # whether every launch ran to its end
    bad_since: float | None = None  # when the first finding was made, on the monotonic clock
    seed: int = 0  # of the run
    source: str = ""  # the name of the text that was parsed, for its lines
    scripts: list[str] = field(default_factory=list, repr=False)  # for each line of it the line of the schedule script
    _places: dict = field(default_factory=dict, repr=False)

    @property
    def ok(self) -> bool:
        return not self.findings

    def kinds(self) -> set[str]:
        """The kinds of what was found."""
        return {f.kind for f in self.findings}

    def add(self, kind: str, message: str, op, kernel: str, count: int = 1) -> None:
        """Notes a case; cases of one kind at one operation are counted, not listed. `op` is an Operation, or None for
        the kernel as a whole."""
        name, location = ("gpu.func", "kernel") if op is None else (op.name, self.place(op))
        if self.bad_since is None and kind not in MAY_BE_HARMLESS:  # which may be cleared
            self.bad_since = time.monotonic()
        key = (kind, kernel, name, location, None if op is None else hash(op))
        if key in self._places:
            self._places[key].count += count
            return
        self._places[key] = Finding(
            kind, message, name, location, kernel, count, script=self.script(op), seed=self.seed
        )
        self.findings.append(self._places[key])

    def add_at(self, kind: str, message: str, location: str, kernel: str, count: int = 1) -> None:
        """Notes what was found at a level above, at a place there."""
        if self.bad_since is None:
            self.bad_since = time.monotonic()
        self.findings.append(Finding(kind, message, "", location, kernel, count, seed=self.seed))

    def place(self, op) -> str:
        """The location of an operation: file, line and column, and what it came from where that is known."""
        text = without_tag(str(op.location).removeprefix("loc(").removesuffix(")"))
        return text.replace('"-"', self.source or "line") if '"-":' in text else text

    def script(self, op) -> str:
        """The `file:line` of the schedule script that made an operation, or ""; for None that of the whole text."""
        if op is None:
            return ""
        text = str(op.location)
        line = _LINE.search(text)
        if not self.scripts or line is None:
            return script_line(text)
        return self.scripts[min(int(line[1]), len(self.scripts)) - 1]

    def count(self, kernel: str, counter: str, amount: int) -> None:
        table = self.counters.setdefault(kernel, {})
        table[counter] = table.get(counter, 0) + amount

    def judge(self, kernel: str, elements: np.ndarray, known: np.ndarray | None = None) -> None:
        """Adds to how many elements of its results a kernel is judged by, and how many (`known`) it has computed."""
        computed = elements.size if known is None else int(known.sum())
        here = int((elements if known is None else elements & known).sum())
        before = self.judged.get(kernel, (0, 0))
        self.judged[kernel] = before[0] + here, before[1] + computed

    def shares(self) -> dict[str, float]:
        """The share of its elements that each kernel was judged by, in percent, on the model's own inputs."""
        return {kernel: 100 * here / total for kernel, (here, total) in self.judged.items() if total}

    def traffic(self, kernel: str, op, space: str, requests: int, taken: int, least: int) -> None:
        """Adds to an operation's memory traffic: requests, wavefronts or sectors taken, and the fewest possible."""
        row = self.by_operation.setdefault((kernel, space, op.name, self.place(op)), [0, 0, 0])
        for i, x in enumerate((requests, taken, least)):
            row[i] += x

    def merge(self, other: Report) -> None:
        """Adds another report's findings and counters to this one; what is found in several calls of a kernel is one
        finding."""
        known = {(f.kind, f.kernel, f.op, f.location): f for f in self.findings}
        for finding in other.findings:
            same = known.get((finding.kind, finding.kernel, finding.op, finding.location))
            if same is None:
                self.findings.append(finding)
            else:
                same.count, same.calls = same.count + finding.count, same.calls + finding.calls
        self.ended = self.ended and other.ended
        self.sets.update(other.sets)
        for kernel, calls in other.calls.items():
            self.calls[kernel] = self.calls.get(kernel, 0) + calls
        self.blocks, self.compared = self.blocks + other.blocks, self.compared + other.compared
        for kernel, counts in other.judged.items():
            before = self.judged.get(kernel, (0, 0))
            self.judged[kernel] = before[0] + counts[0], before[1] + counts[1]
        for key, row in other.by_operation.items():
            mine = self.by_operation.setdefault(key, [0, 0, 0])
            mine[:] = [a + b for a, b in zip(mine, row, strict=True)]
        for kernel, table in other.counters.items():
            for name, value in table.items():
                self.count(kernel, name, value)

    def raise_if_bad(self) -> None:
        """Raises MlircError with the first finding, if there is one; a bad index in the data comes before what a kernel
        then does with it."""
        if self.findings:
            others = len(self.findings) - 1
            more = f"; {others} further finding{'s' if others > 1 else ''}" if others else ""
            first = next((f for f in self.findings if f.kind == "bad index"), self.findings[0])
            raise MlircError(f"host device: {first}{more}")
