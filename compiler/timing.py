"""Time and memory per level, and a progress line on a terminal."""

from __future__ import annotations

import resource
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

# A terminal hears of the progress only when the work takes longer than this, in seconds.
PROGRESS_DELAY = 1.0


def counted(number: int, noun: str) -> str:
    """A number with its noun: `1 kernel`, `2,000 kernels`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


class Timer:
    """Seconds spent per named step, in order of first entry; a step entered again adds up."""

    def __init__(self, progress: Progress | None = None) -> None:
        self.seconds: dict[str, float] = {}
        self.helper_seconds: dict[str, float] = {}
        self._progress = progress
        self._start = time.perf_counter()

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        """Counts the body's time under `name`."""
        if self._progress:
            self._progress.describe(name)
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - start

    def add_helper_time(self, seconds: Mapping[str, float]) -> None:
        """Adds time by step that helper processes spent inside of the current step, side by side."""
        for name, value in seconds.items():
            self.helper_seconds[name] = self.helper_seconds.get(name, 0.0) + value

    def advance(self, done: int, total: int) -> None:
        """Tells the progress line that `done` of `total` parts of the current step are ready."""
        if self._progress:
            self._progress.count(done, total)

    def report(self) -> str:
        """A table: seconds per step, the total, and the process's peak memory (with its helper processes')."""
        total = time.perf_counter() - self._start
        rows = [*self.seconds.items(), ("other", total - sum(self.seconds.values())), ("total", total)]
        lines = [f"{name:<12}{seconds:9.2f} s" for name, seconds in rows]
        if self.helper_seconds:
            parts = "; ".join(f"{name} {seconds:.2f} s" for name, seconds in self.helper_seconds.items())
            lines.append(f"kernels, summed over helper processes: {parts}")
        own = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        helpers = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
        lines.append(f"{'peak memory':<12}{own / 1024:9.0f} MiB (largest helper process: {helpers / 1024:.0f} MiB)")
        return "\n".join(lines)


class Progress:
    """A progress bar on standard error, there only when that is a terminal and the work takes more than a second."""

    def __init__(self) -> None:
        self._bar: Any = None
        self._task: Any = None
        self._text = ""
        self._timer = threading.Timer(PROGRESS_DELAY, self._show)
        self._timer.daemon = True
        if sys.stderr.isatty():
            self._timer.start()

    def _show(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
        from rich.progress import Progress as Bar

        columns = (TextColumn("{task.description}"), BarColumn(bar_width=30), TimeElapsedColumn())
        bar = Bar(*columns, console=Console(stderr=True), transient=True)
        self._task = bar.add_task(self._text, total=None)
        bar.start()
        self._bar = bar

    def describe(self, text: str) -> None:
        """Names the step that runs now."""
        self._text = text
        if self._bar:
            self._bar.update(self._task, description=text, total=None, completed=0)

    def count(self, done: int, total: int) -> None:
        """Shows how far the current step is."""
        if self._bar:
            self._bar.update(self._task, completed=done, total=total)

    def close(self) -> None:
        """Removes the bar."""
        self._timer.cancel()
        if self._bar:
            self._bar.stop()
            self._bar = None
