"""The loop of `mlirc --watch`: compiles, then looks for changed files, and makes again what they change."""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from mlirc.driver.compilation import Compilation, is_mlir
from mlirc.driver.kernel_build import KernelJob
from mlirc.errors import MlircError
from mlirc.files.kept import cache_folder
from mlirc.watch import files
from mlirc.watch.files import Imports, Reads, Signatures
from mlirc.watch.parts import Parts, put_together, take_apart
from mlirc.watch.process import POLL, Superseded, in_copy

LOOKS_PER_OWN = 10


@dataclass(frozen=True)
class Wish:
    """What is to be made of the model in every round: `level` is the last one that is needed, `output` the PTX file,
    `options` are those of `mlirc.frontend.open_model`. `check` names the levels that are compared with PyTorch before
    anything is written, None for no check."""

    spec: str
    schedules: tuple[str, ...] = ()
    level: str = "ptx"
    output: Path | None = None
    weights: bool = True
    options: dict[str, Any] = field(default_factory=dict)
    check: tuple[str, ...] | None = None

    @property
    def files(self) -> list[str]:
        """The schedule files."""
        return [os.path.abspath(s) for s in self.schedules if s.endswith((".py", ".mlir"))]


@dataclass(frozen=True)
class _Answer:
    """A round's result, or its error, with the files that it read, as they were."""

    read: Signatures
    parts: Parts | None = None
    error: str = ""


class Watch:
    """A model that is watched, with its schedules.

    `new` makes an empty compilation. `done` is called with each finished one, after it was written; `say` prints a line
    for the user; `restart` starts the program anew because of files that this process cannot read again: the model's
    and mlirc's own. `run` runs a round apart from this process.
    """

    def __init__(
        self,
        wish: Wish,
        new: Callable[[], Compilation],
        *,
        say: Callable[[str], None],
        restart: Callable[[Sequence[str]], None],
        done: Callable[[Compilation], None] = lambda job: None,
        run: Callable[[Callable[[], Any], Callable[[], bool]], Any] = in_copy,
    ) -> None:
        self.wish, self.new, self.say, self.restart, self.done, self.run = wish, new, say, restart, done, run
        self.base: Compilation | None = None
        self._own = self._own_now = files.signatures(files.own_sources())
        self._looks = 0
        self._loaded_scripts = self._scripts = files.signatures(files.script_sources())
        self._model: Signatures = {}
        self._read: Signatures = files.signatures(wish.files)
        self._moving: Signatures | None = None
        self._weights: Signatures = {}

    def open(self) -> None:
        """Imports the model and takes it to the `linalg` level. Raises MlircError as `Compilation` does; the files in
        question are watched all the same."""
        self._model = files.signatures(map(os.path.abspath, files.model_files(self.wish.spec)))
        base = self.new()
        base.schedules = ()  # the user's scripts run in the rounds' processes only
        imports = Imports()
        try:
            with imports:
                base.open(self.wish.spec, **self.wish.options)
                base.derive(())
        finally:
            self._model |= imports.files
        if self.base is None:
            _warm_up(base)
        self.base = base

    def poll(self) -> bool:
        """Looks once. Files that changed, and have not moved since the last look (editors save in several steps), get
        a round, or another process; returns whether there was one."""
        now = self._look()
        changed = files.changed(self._seen(), now)
        settled = now == self._moving
        self._moving = now if changed else None
        if not changed or not settled:
            return False
        again = is_mlir(self.wish.spec)  # such a model takes no time to read
        lost = [p for p in changed if p in self._own or (p in self._model and not again)]
        if lost:
            self.restart(lost)
            return True
        if any(p in self._model for p in changed):
            self.base = None
        self.round(changed)
        return True

    def round(self, changed: Sequence[str] = ()) -> None:
        """Makes what is wished from the files as they are now. An error is said, and the next change may mend it."""
        start = time.perf_counter()
        before = self._look()
        try:
            if self.base is None:
                self.open()
                before = self._look()
            answer = self.run(self._work, lambda: bool(files.changed(before, self._look())))
        except Superseded:
            self.say("a file changed meanwhile: once more")
            return
        except MlircError as e:
            answer = _Answer({}, error=str(e))
        self._scripts = {p: before.get(p) for p in files.script_sources()}
        kept = self.wish.files if answer.parts else [*self._read, *self.wish.files]
        self._read = {p: before.get(p) for p in kept} | answer.read
        try:
            if answer.parts is None:
                # a module that is missing was never opened: its folder tells when it is there
                self._read |= files.signatures({os.path.dirname(p) + os.sep for p in self.wish.files})
                raise MlircError(answer.error)
            self._finish(answer.parts, changed, start)
        except MlircError as e:
            self.say(f"error: {' '.join(str(e).split())}")
            if self.wish.output:
                stays = "stays as it was" if self.wish.output.exists() else "is not written"
                self.say(f"{self.wish.output} {stays}; watching goes on")

    def _finish(self, parts: Parts, changed: Sequence[str], start: float) -> None:
        assert self.base is not None
        job = put_together(parts, self.base)
        self.base._earlier = job.results()
        output = self.wish.output
        if job.checked and not job.checked.ok:
            self.done(job)
            raise MlircError(job.checked.reason())
        if output:
            beside = [str(output.with_suffix(".safetensors"))]
            keep = bool(self._weights) and files.signatures(beside) == self._weights
            job.write(output, weights=self.wish.weights, keep_weights=keep)
            self._weights = files.signatures(beside)
        seconds = time.perf_counter() - start
        names = ", ".join(dict.fromkeys(os.path.basename(p.rstrip(os.sep)) for p in changed))
        what = [f"{names} changed: " if names else "", f"{len(job.records)} kernels scheduled"]
        if job.builds:
            shown = ", ".join(job.rebuilt[:4]) + (", ..." if len(job.rebuilt) > 4 else "")
            what.append(f", {len(job.rebuilt)} compiled" + (f" ({shown})" if shown else ""))
        what.append(f", {seconds:.2f} s" + (f": {output} written" if output else ""))
        self.done(job)
        self.say("".join(what))

    def _work(self) -> _Answer:
        """A round, in a process of its own."""
        assert self.base is not None
        if files.signatures(files.script_sources()) != self._loaded_scripts:
            from mlirc.schedule.registry import reload_scripts

            reload_scripts()
        read = Reads([str(cache_folder())])
        try:
            job = self.base.derive(self.wish.schedules)
            job.fork = True  # this process has no threads
            job.lower(self.wish.level)
            if self.wish.check is not None:
                _check(job, self.wish.check)
        except MlircError as e:
            return _Answer(read.result(), error=str(e))
        return _Answer(read.result(), take_apart(job, self.base))

    def _seen(self) -> Signatures:
        return {**self._own, **self._model, **self._scripts, **self._read}

    def _look(self) -> Signatures:
        """The files as they are. mlirc's own are many, and seldom change: they are looked at now and then."""
        self._looks += 1
        if self._looks % LOOKS_PER_OWN == 0:
            self._own_now = files.signatures(self._own)
        return self._own_now | files.signatures([*self._model, *self._scripts, *self._read, *files.script_sources()])

    def loop(self) -> NoReturn:
        """Watches until it is interrupted."""
        while True:
            self.poll()
            time.sleep(POLL)


def _check(job: Compilation, levels: Sequence[str]) -> None:
    import torch

    torch.set_num_threads(1)  # a copied process has none of the threads that PyTorch believes in
    job.check(levels)


# A row sum: its way down meets every step's modules.
_SMALL = """
func.func @main(%x: tensor<2x3xf32> {mlirc.name = "x", mlirc.kind = "input"}) -> (tensor<2xf32> {mlirc.name = "y"}) {
  %zero = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<2xf32>
  %f = linalg.fill ins(%zero : f32) outs(%e : tensor<2xf32>) -> tensor<2xf32>
  %y = linalg.reduce {arith.addf} ins(%x : tensor<2x3xf32>) outs(%f : tensor<2xf32>) dimensions = [1]
  return %y : tensor<2xf32>
}
"""


def _warm_up(base: Compilation) -> None:
    """Loads what every round needs, so that none has to, by a small model's way down."""
    from mlirc import mlir
    from mlirc.tools import kernel_table  # noqa: F401

    small = Compilation("small", base.target)
    small.modules["linalg"] = mlir.parse(_SMALL)
    small.lower("ptx")
    if base.cache:
        base.cache.key(KernelJob("", "", "", "tiles", base.target.name))  # takes the versions' digest
    gc.collect()
    gc.freeze()  # the collector of a forked process would copy all of it
