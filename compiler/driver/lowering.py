"""Lowers models in processes of their own, while this one imports the next.

The plans of a model that generates are compilations which do not depend on each other, and importing one from PyTorch
takes about as long as all that follows: with a second process these go on side by side.
"""

from __future__ import annotations

import queue
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from mlirc import internal
from mlirc.driver.compilation import Compilation
from mlirc.driver.kernel_cache import KernelCache
from mlirc.driver.modules import FewLayers, Modules
from mlirc.driver.start import spawn
from mlirc.driver.workers import HelperThread
from mlirc.ir.layer_names import Layers
from mlirc.targets import Target

# What a lowered compilation has beside its modules.
_STATE = ("records", "schedule_text", "builds", "plan", "ptx", "_graph", "_jobs")


@dataclass(frozen=True)
class Ready:
    """Has a helper import what lowering needs, which takes seconds, before there is anything to lower."""

    name: str = "mlirc"

    def run(self) -> None:
        """Imports it."""
        from mlirc.driver.ready import prepare

        prepare()


@dataclass(frozen=True)
class Lowering:
    """What is to be lowered: the `torch` level as text with locations, and all that decides what becomes of it. Plain
    data: it travels to helper processes."""

    name: str
    text: str
    target: Target
    schedules: tuple[str, ...]
    cache: KernelCache | None
    fp32: str
    helpers: int
    level: str
    layers: Layers | None = None  # the few that are in the text, and stand for all

    def run(self) -> Lowered:
        """Lowers it, in this process. Raises MlircError as `Compilation.lower` does."""
        from mlirc import frontend

        job = Compilation(self.name, self.target, self.schedules, self.cache, helpers=self.helpers, fp32=self.fp32)
        if self.layers is not None:
            job.of_few_layers(FewLayers(self.layers, self.text))
        else:
            with job.timer.step("linalg"), internal.step("lowering the torch level to linalg"):
                job.modules["linalg"] = frontend.lower_to_linalg(self.text)
        job.lower(self.level)
        made = (name for name in job.modules if name != "torch")
        texts = {name: job.modules[name].operation.get_asm(enable_debug_info=True) for name in made}
        state = {name: getattr(job, name) for name in _STATE}
        return Lowered(self.name, texts, state, job.timer.seconds, job.timer.helper_seconds)


@dataclass(frozen=True)
class Lowered:
    """What came of a `Lowering`, as plain data: levels as text with locations, and the rest of the compilation."""

    name: str
    texts: dict[str, str]
    state: dict[str, Any]
    seconds: dict[str, float]
    helper_seconds: dict[str, float]

    def put_into(self, job: Compilation) -> None:
        """Makes a compilation one that has been lowered."""
        from mlirc import mlir

        makers = {level: partial(mlir.parse, text, level) for level, text in self.texts.items()}
        job.modules = Modules(job.modules, makers)  # type: ignore[assignment]
        for name, value in self.state.items():
            setattr(job, name, value)
        job.timer.seconds |= self.seconds
        job.timer.add_helper_time(self.helper_seconds)


@dataclass
class Lowerings:
    """Compilations on their way down in `count` helper processes, which start at once. A context manager, whose end
    ends them. `helpers`: how many further processes each may compile kernels in."""

    count: int
    helpers: int
    _todo: queue.PriorityQueue = field(default_factory=queue.PriorityQueue)
    _done: queue.SimpleQueue = field(default_factory=queue.SimpleQueue)
    _threads: list[HelperThread] = field(default_factory=list)
    _jobs: dict[str, Compilation] = field(default_factory=dict)

    def __enter__(self) -> Lowerings:
        processes = [spawn() for _ in range(self.count)]  # all of them before the first thread
        for number, process in enumerate(processes):
            self._todo.put((-1, number, Ready()))
            self._threads.append(HelperThread(process, self._todo, self._done))
        return self

    def __exit__(self, *_: object) -> None:
        for _thread in self._threads:
            self._todo.put((1, 0, None))
        for thread in self._threads:
            thread.stop()

    def add(self, job: Compilation, level: str) -> None:
        """Takes an imported compilation, of a name of its own, to be lowered as `Compilation.lower` does."""
        layers, module = (job.few.layers, job.few.torch) if job.few else (None, job.modules["torch"])
        text = module.operation.get_asm(enable_debug_info=True)
        made = Lowering(job.name, text, job.target, job.schedules, job.cache, job.fp32, self.helpers, level, layers)
        self._todo.put((0, len(self._jobs), made))
        self._jobs[job.name] = job

    def finish(self) -> None:
        """Lowers what no helper has begun in this process, and waits for the helpers; raises the first error."""
        missing = len(self._jobs) + len(self._threads)  # each helper says once that it is ready
        while (made := self._not_begun()) is not None:
            missing -= 1
            if isinstance(made, Lowering):
                job = self._jobs[made.name]
                job.helpers = self.helpers
                job.lower(made.level)
        while missing:
            answer = self._done.get()
            missing -= 1
            if isinstance(answer, BaseException):
                raise answer
            if answer is not None:
                answer.put_into(self._jobs[answer.name])

    def _not_begun(self) -> Ready | Lowering | None:
        try:
            return self._todo.get_nowait()[2]
        except queue.Empty:
            return None
