"""Compiles kernels in helper processes, one per core.

The helpers are plain subprocesses that read pickled jobs and write pickled results: unlike `multiprocessing`, they
never import the caller's main module, and so `mlirc.compile` works in a script without a main guard.
"""

from __future__ import annotations

import math
import os
import pickle
import queue
import signal
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import IO, Any, Protocol

from mlirc.collecting import collecting_rarely
from mlirc.driver.kernel_build import KernelBuild, KernelJob, build_kernel
from mlirc.driver.start import spawn
from mlirc.errors import MlircError
from mlirc.internal import show_traceback

# A helper's start takes about as long as compiling so many kernels does (0.95 s of CPU to 0.07 s each); a fork takes
# next to nothing, and so do helpers that wait.
START_JOBS = 14
MIN_JOBS = 4
MIN_JOBS_FORKED = 2


def _least_jobs(helpers: int) -> int:
    """The kernels from which on helpers that have to be started are done before this process alone would be."""
    return math.ceil(START_JOBS * helpers / max(helpers - 1, 1))


def cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0))


class Helpers:
    """Helper processes that wait for the next pool, as starting one takes as long as compiling several kernels. A
    context manager, whose end ends them."""

    def __init__(self) -> None:
        self._idle: list[subprocess.Popen] = []

    def __enter__(self) -> Helpers:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._idle:
            _stop(process)
        self._idle.clear()

    def take(self) -> subprocess.Popen:
        """One that waits, or a new one."""
        return self._idle.pop() if self._idle else spawn()

    def keep(self, process: subprocess.Popen) -> None:
        """Takes one back that has answered all that it was asked."""
        self._idle.append(process)


class Pool:
    """Compiles kernels in helper processes, while more are on their way: one that is added goes to a helper at once.

    `helpers`: the number of helper processes, by default one per core where their start pays; with 0 or 1, and for a
    few kernels, they are compiled in this process, when their results are asked for. `fork`: the helpers are copies of
    this process, which then has to be one without threads; they are made when the results are asked for. A context
    manager, whose end ends the helpers, or gives them back to `waiting`, which they came from, where all went well.
    """

    def __init__(self, helpers: int | None = None, *, fork: bool = False, waiting: Helpers | None = None) -> None:
        self._limit = cores() if helpers is None else helpers
        self._least = _least_jobs(self._limit) if helpers is None and waiting is None else MIN_JOBS
        self._fork = fork
        self._waiting = waiting
        self._here: list[KernelJob] = []  # those that no helper has been started for
        self._given = 0  # how many went to the helpers
        self._missing = 0  # how many of those have not been answered
        self._todo: queue.PriorityQueue[tuple[int, int, KernelJob | None]] = queue.PriorityQueue()
        self._done: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._helpers: list[HelperThread] = []

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self._end_of_jobs()
        for helper in self._helpers:
            if self._waiting is None or self._fork or kind is not None or self._missing:
                helper.stop()
            else:
                helper.thread.join()  # it ends where the jobs do
                self._waiting.keep(helper.process)  # type: ignore[arg-type]
        self._helpers.clear()

    def add(self, job: KernelJob) -> None:
        """Takes one kernel."""
        self._here.append(job)
        if not self._fork and (self._helpers or self._worth_helpers(self._least)):
            self._give()

    def results(self) -> Iterator[KernelBuild]:
        """The kernels added so far, as they are ready, in any order; raises the first error. To be asked for once."""
        if self._fork and self._worth_helpers(MIN_JOBS_FORKED):
            self._give()
        self._end_of_jobs()
        for _ in range(self._given):
            result = self._done.get()
            self._missing -= 1
            if isinstance(result, BaseException):
                raise result
            yield result
        yield from map(build_kernel, self._here)

    def _worth_helpers(self, least: int) -> bool:
        return self._limit >= 2 and len(self._here) >= least

    def _give(self) -> None:
        """Hands the kernels that lie here to the helpers, after starting those that are missing."""
        for job in self._here:
            self._todo.put((-len(job.text), self._given, job))  # the long ones first
            self._given += 1
            self._missing += 1
        self._here.clear()
        missing = min(self._limit, self._given) - len(self._helpers)
        start = _Fork if self._fork else self._waiting.take if self._waiting else spawn
        processes = [start() for _ in range(missing)]  # all of them before the first thread
        self._helpers += [HelperThread(process, self._todo, self._done) for process in processes]

    def _end_of_jobs(self) -> None:
        for _ in self._helpers:
            self._todo.put((1, 0, None))


def build_kernels(
    jobs: Sequence[KernelJob], helpers: int | None = None, *, fork: bool = False
) -> Iterator[KernelBuild]:
    """Compiles the jobs in a `Pool` and yields the results as they are ready, in any order; raises the first error."""
    with Pool(helpers, fork=fork) as pool:
        for job in jobs:
            pool.add(job)
        yield from pool.results()


class _Fork:
    """A copy of this process that serves, with as much of `Popen` as `HelperThread` needs."""

    def __init__(self) -> None:
        jobs, self._to = os.pipe()
        self._from, results = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            status = 1
            try:
                os.close(self._to)
                os.close(self._from)
                with os.fdopen(jobs, "rb") as source, os.fdopen(results, "wb") as sink:
                    _serve(source, sink)
                status = 0
            finally:
                os._exit(status)  # nothing of what the copied process would do at its end
        os.close(jobs)
        os.close(results)
        self.stdin, self.stdout = os.fdopen(self._to, "wb"), os.fdopen(self._from, "rb")
        self._status: int | None = None
        self._lock = threading.Lock()

    def kill(self) -> None:
        if self._status is None:
            os.kill(self.pid, signal.SIGKILL)

    def wait(self) -> int:
        with self._lock:  # a helper's thread and who ends the pool may both wait, and a process ends once
            if self._status is None:
                self._status = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
            return self._status


class Job(Protocol):
    """Other work for a helper process than a kernel; it and what `run` returns are pickled."""

    name: str

    def run(self) -> Any: ...


class HelperThread:
    """One process, fed by a thread of its own with what is in `todo` (a number to sort by, another, and the job), until
    that is None; its answers, exceptions among them, go to `done`."""

    def __init__(self, process: subprocess.Popen | _Fork, todo: queue.PriorityQueue, done: queue.SimpleQueue) -> None:
        self.process = process
        self.thread = threading.Thread(target=self._feed, args=(todo, done), daemon=True)
        self.thread.start()

    def _feed(self, todo: queue.PriorityQueue, done: queue.SimpleQueue) -> None:
        assert self.process.stdin and self.process.stdout
        while True:
            _, _, job = todo.get()
            if job is None:
                return
            try:
                _send(self.process.stdin, job)
                done.put(_receive(self.process.stdout))
            except (OSError, EOFError):
                status = self.process.wait()
                done.put(MlircError(f"{_described(job)}: the compiler process ended with status {status} on it"))
                return

    def stop(self) -> None:
        _stop(self.process, self.thread)


def _stop(process: subprocess.Popen | _Fork, thread: threading.Thread | None = None) -> None:
    process.kill()
    process.wait()
    if thread:
        thread.join()
    for stream in (process.stdin, process.stdout):
        if stream:
            try:
                stream.close()
            except OSError:
                pass  # the helper is gone, and what was on its way to it


def _described(job: KernelJob | Job) -> str:
    return f"kernel {job.name}" if isinstance(job, KernelJob) else job.name


def _send(stream: IO[bytes], value: Any) -> None:
    data = pickle.dumps(value)
    stream.write(struct.pack("<Q", len(data)) + data)
    stream.flush()


def _receive(stream: IO[bytes]) -> Any:
    header = stream.read(8)
    if len(header) < 8:
        raise EOFError
    return pickle.loads(stream.read(struct.unpack("<Q", header)[0]))


def _serve(jobs: IO[bytes], results: IO[bytes]) -> None:
    """The helper's main loop."""
    while True:
        try:
            job = _receive(jobs)
        except EOFError:
            return
        try:
            answer: Any = build_kernel(job) if isinstance(job, KernelJob) else job.run()
        except Exception as e:
            import traceback

            show_traceback(e)
            answer = e if isinstance(e, MlircError) else RuntimeError(f"{_described(job)}:\n{traceback.format_exc()}")
        try:
            _send(results, answer)
        except BrokenPipeError:  # whoever asked is gone
            return


def main(prepare: Callable[[], None] = lambda: None) -> None:
    """A helper process: serves until standard input ends, `prepare` first."""
    # Results go to a private copy of standard output: a script may print.
    results = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    with collecting_rarely():
        prepare()
        _serve(sys.stdin.buffer, results)


if __name__ == "__main__":
    main()
