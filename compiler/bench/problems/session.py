"""All problems of a folder: compiled side by side, and run on the GPU one at a time as they become ready."""

from __future__ import annotations

import json
import queue
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mlirc.bench.artifacts import Entry
from mlirc.bench.cases import Case
from mlirc.bench.pool import Task, Worker, run_tasks
from mlirc.bench.problems import report
from mlirc.bench.problems.find import counted
from mlirc.errors import MlircError
from mlirc.files.marks import marked_json
from mlirc.files.outputs import Outputs
from mlirc.precision import DEFAULT_FP32

Record = dict[str, Any]  # {"case", "info", "result"}, as every benchmark's


@dataclass
class Session:
    """One run of `mlirc-bench` over problems. `records` has what is known of each, by name; with `output` it is written
    after each event, since a machine may be taken away at any time."""

    cases: list[Case]
    folder: Path
    about: dict[str, Any]
    target: str
    schedule: Sequence[str] = ()
    fp32: str = DEFAULT_FP32
    compile_jobs: int = 1
    compile_memory: float = 0.0  # bytes for each compiling process; 0: no limit
    timeout: float = 300.0
    deadline: float = float("inf")
    gpu: bool = True
    running: dict[str, Any] = field(default_factory=dict)  # settings of `running.run_problem`
    warm_jobs: int = 1  # processes that fill the compiling peers' caches, for problems that are compiled already
    output: Path | None = None
    records: dict[str, Record] = field(default_factory=dict)

    def run(self, compiled: Sequence[Entry] = ()) -> list[Record]:
        """Compiles and runs what `records` does not have yet; `compiled` need no compiling. Returns all, in order."""
        events: queue.SimpleQueue[Any] = queue.SimpleQueue()
        ready: queue.SimpleQueue[Any] = queue.SimpleQueue()
        todo = [c for c in self.cases if c.name not in self.records]
        have = {e.case.name: e for e in compiled}
        self._warm([have[c.name] for c in todo if c.name in have])
        threads = [threading.Thread(target=self._guard, args=(self._compile, todo, have, events), daemon=True)]
        if self.gpu:
            threads.append(threading.Thread(target=self._guard, args=(self._measure, ready, events), daemon=True))
        for thread in threads:
            thread.start()
        by_name = {c.name: c for c in todo}
        waiting, compiling, done = 0, True, 0
        while compiling or waiting:
            event = events.get()
            if isinstance(event, BaseException):
                raise event
            kind, name, found = event
            if kind == "end":
                compiling = False
                continue
            if kind == "compiled":
                self.records[name] = {"case": by_name[name].to_json(), "info": found, "result": {}}
                if self.gpu and "error" not in found and "skipped" not in found:
                    ready.put((by_name[name], found))
                    waiting += 1
                    continue
                if "skipped" in found:
                    self.records[name] |= {"info": {}, "result": found}
            else:
                self.records[name]["result"] = found
                waiting -= 1
            done += 1
            line = f"[{done}/{len(todo)}] {name}: {report.outcome(self.records[name])}"
            print(line[:300], file=sys.stderr, flush=True)
            self.write()
        ready.put(None)
        for thread in threads:
            thread.join()
        return self.ordered()

    def ordered(self) -> list[Record]:
        """The records that there are, in the cases' order."""
        return [self.records[c.name] for c in self.cases if c.name in self.records]

    def write(self) -> dict[str, Any]:
        """Writes what is known so far, where an output was asked for; returns the data."""
        everything = sorted(self.records.values(), key=lambda r: counted(r["case"]["name"]))  # others of an earlier run
        data = {"about": self.about, "results": everything}
        if self.output:
            with Outputs() as outputs:
                outputs.add(self.output, lambda temporary: temporary.write_text(marked_json(data)))
                outputs.add_text(self.output.with_suffix(".md"), report.markdown(data), "page")
        return data

    def _warm(self, entries: list[Entry]) -> None:
        """Has the peers that compile do so, many side by side, those of most launches first; errors show when they
        are timed."""
        settings = {"folder": str(self.folder), **self.running, "warm": True}
        if not self.gpu or self.warm_jobs < 2 or not set(self.running["peers"]) - {"eager"} or not self.running["time"]:
            return
        entries = sorted((e for e in entries if "launches" in e.info), key=lambda e: -e.info["launches"])
        tasks = [Task([{"name": e.case.name, "case": e.case.to_json(), "info": e.info}]) for e in entries]
        results = run_tasks(
            tasks, "problem", settings, jobs=self.warm_jobs, timeout=self.timeout, deadline=self.deadline
        )
        for done, (name, result) in enumerate(results, 1):
            line = f"[{done}/{len(tasks)}] {name}: peers compiled, {result.get('warm_s', result)} s"
            print(line[:300], file=sys.stderr, flush=True)

    def _guard(self, body: Callable[..., None], *args: Any) -> None:
        """An error in a thread reaches the loop that waits for it."""
        try:
            body(*args)
        except BaseException as e:
            args[-1].put(e)

    def _compile(self, todo: list[Case], have: dict[str, Entry], events: Any) -> None:
        settings: dict[str, Any] = {"folder": str(self.folder), "target": self.target, "schedule": list(self.schedule)}
        settings |= {"ptxas": False, "fp32": self.fp32, "memory": self.compile_memory}
        for case in todo:
            if case.name in have:
                events.put(("compiled", case.name, have[case.name].info))
        tasks = [Task([{"name": c.name, "case": c.to_json()}]) for c in todo if c.name not in have]
        for name, info in run_tasks(
            tasks, "compile", settings, jobs=self.compile_jobs, timeout=self.timeout, deadline=self.deadline
        ):
            events.put(("compiled", name, info))
        events.put(("end", "", {}))

    def _measure(self, ready: Any, events: Any) -> None:
        worker = Worker("problem", {"folder": str(self.folder), **self.running})
        try:
            while (item := ready.get()) is not None:
                case, info = item
                if time.monotonic() > self.deadline:
                    events.put(("run", case.name, {"skipped": "out of time"}))
                    continue
                task = Task([{"name": case.name, "case": case.to_json(), "info": info}])
                for name, result in worker.run(task, self.timeout, self.deadline):
                    events.put(("run", name, result))
        finally:
            worker.stop()


def read_records(path: Path, *, gpu: bool, retry: bool) -> dict[str, Record]:
    """The problems that an earlier run finished, by name, with `retry` without those that failed; raises MlircError for
    a file that is none of ours. No file is no problem."""
    if not path.exists():
        return {}
    try:
        data = json.loads(path.read_text())
        records = {r["case"]["name"]: r for r in data["results"]}
    except (OSError, ValueError, KeyError, TypeError) as e:
        raise MlircError(f"--resume: {path} is not a result of mlirc-bench ({type(e).__name__})") from e
    finished = {name: r for name, r in records.items() if report.is_finished(r, gpu)}
    return {name: r for name, r in finished.items() if not (retry and report.has_failed(r))}
