"""Cases that run one after another in processes which may die of any: what suites of programs share.

A suite is a list of names and a command that reads names and answers each with a line of JSON (`case_check.serve`)."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import queue
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

LEVELS = ("linalg", "kernels", "tiles", "gpu", "ptx")
ORDER = ("right", "wrong", "crash", "time-out", "too large", "refused", "not imported", "nothing to compare")
_START = 300.0  # seconds for importing PyTorch, MLIR and the suite
_LOOK = 0.25  # seconds between looks at a worker's memory


class Worker:
    """A process that runs cases in turn, and is replaced when it dies or has to be ended. `gpu`: it may see one."""

    def __init__(self, command: list[str], timeout: float, memory: float, gpu: bool = False):
        self._command, self._timeout, self._memory = command, timeout, memory
        self._hidden = {} if gpu else {"CUDA_VISIBLE_DEVICES": ""}
        self._process: Any = None

    def run(self, name: str) -> dict[str, Any]:
        """How a case ended."""
        if self._process is None:
            self._start()
            if (answer := self._answer(_START))[0] is None:
                return self._ended(name, 0.0, answer[1])
        start = time.monotonic()
        with contextlib.suppress(OSError):  # of a process that has died; the answer says so
            self._process.stdin.write(name + "\n")
            self._process.stdin.flush()
        at = ""
        while True:
            line, why = self._answer(self._timeout)
            if line is None:
                return self._ended(name, time.monotonic() - start, why, at)
            answer = json.loads(line)
            if "at" not in answer:
                return answer
            at = answer["at"]

    def stop(self) -> None:
        """Ends the process and what it started."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._errors.close()
            self._process = None

    def _start(self) -> None:
        self._errors = tempfile.TemporaryFile()
        pipe = subprocess.PIPE
        environment = {"OMP_NUM_THREADS": "1", **os.environ, **self._hidden}
        self._process = subprocess.Popen(
            self._command, stdin=pipe, stdout=pipe, stderr=self._errors, text=True, env=environment,
            start_new_session=True,
        )  # fmt: skip
        self._lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        threading.Thread(target=self._listen, args=(self._process.stdout, self._lines), daemon=True).start()

    @staticmethod
    def _listen(stream: Any, lines: queue.SimpleQueue[str]) -> None:
        for line in stream:
            lines.put(line)
        lines.put("")

    def _answer(self, timeout: float) -> tuple[str | None, str]:
        """The process's next line; None, and why, if it ends or does too much instead."""
        end = time.monotonic() + timeout
        while time.monotonic() < end:
            with contextlib.suppress(queue.Empty):
                return self._lines.get(timeout=_LOOK) or None, ""
            if resident(self._process.pid) > self._memory:
                return None, "too large"
        return None, "time-out"

    def _ended(self, name: str, seconds: float, why: str, at: str = "") -> dict[str, Any]:
        """The outcome of a case that gave none, and the end of its process."""
        if why:
            limits = {"time-out": f"over {self._timeout:g} s", "too large": f"over {self._memory:g} GiB of memory"}
            outcome, why = why, f"{limits[why]} in {at or 'its start'}"
        else:
            outcome, why = "crash", self._last_words()
        if at == "PyTorch":
            outcome = "nothing to compare"
        self.stop()
        return {"name": name, "outcome": outcome, "why": why, "seconds": round(seconds, 2)}

    def _last_words(self) -> str:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(10)
        self._errors.seek(0, os.SEEK_END)
        self._errors.seek(max(0, self._errors.tell() - 4000))
        lines = [line for line in self._errors.read().decode(errors="replace").splitlines() if line.strip()]
        return f"its process ended with status {self._process.poll()}" + (f": {lines[-1][:300]}" if lines else "")


def resident(pid: int) -> float:
    """The memory that a process holds, in GiB; 0 where it is gone or the system does not tell."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**30
    except (OSError, IndexError):
        return 0.0


def run_all(names: list[str], command: list[str], options: argparse.Namespace, results: list[dict[str, Any]]) -> None:
    """Runs the cases in `options.jobs` processes and adds how they end to `results`, which it writes on the way."""
    todo: queue.SimpleQueue[str] = queue.SimpleQueue()
    for name in names:
        todo.put(name)
    lock = threading.Lock()

    def work() -> None:
        worker = Worker(command, options.timeout, options.memory, gpu=options.level == "ptx")
        try:
            while True:
                found = worker.run(todo.get_nowait())
                with lock:
                    results.append(found)
                    if options.verbose:
                        print(f"{len(results)} {found['name']} {found['seconds']} {found['outcome']} {found['why']}")
                    if options.output and len(results) % 20 == 0:
                        write(options, results)
        except queue.Empty:
            pass
        finally:
            worker.stop()

    threads = [threading.Thread(target=work) for _ in range(options.jobs)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def write(options: argparse.Namespace, results: list[dict[str, Any]]) -> None:
    """The results as JSON, whole or not at all."""
    new = options.output.with_suffix(".new")
    ordered = sorted(results, key=lambda r: r["name"])
    new.write_text(json.dumps({"level": options.level, "results": ordered}, indent=1) + "\n")
    new.replace(options.output)


def report(results: list[dict[str, Any]]) -> str:
    """Counts of the outcomes, and for all but `right` the messages, equal ones together, with their first cases."""
    counts = Counter(r["outcome"] for r in results)
    lines = []
    for outcome in ORDER[1:]:
        groups: dict[str, list[str]] = defaultdict(list)
        for r in results:
            if r["outcome"] == outcome:
                groups[same(r["why"])].append(r["name"])
        for why, names in sorted(groups.items(), key=lambda group: (-len(group[1]), group[0])):
            some = ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")
            lines.append(f"{outcome} {len(names)}: {why} [{some}]")
    lines += [f"{counts[outcome]:6} {outcome}" for outcome in ORDER if counts[outcome]]
    return "\n".join([*lines, f"{len(results):6} cases"])


def same(why: str) -> str:
    """A message without what differs between cases: numbers, places and names in quotes."""
    why = re.sub(r" \(at [^()]*:\d+\)", "", why)
    why = re.sub(r"'[^']*'", "'...'", why)
    return re.sub(r"-?\b\d[\d.e+-]*\b", "N", why)


def parser_of(description: str) -> argparse.ArgumentParser:
    """The options that every suite has."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--level", default="tiles", choices=LEVELS, help="gpu is the host device, ptx a real GPU")
    parser.add_argument("-o", dest="output", type=Path, metavar="OUT.json")
    parser.add_argument("-j", dest="jobs", type=int, default=1, help="processes")
    parser.add_argument("--filter", default="", help="only cases whose names this regular expression is found in")
    parser.add_argument("--only", nargs="*", default=[], metavar="OUTCOME", help="with --resume: run these again")
    parser.add_argument("--resume", action="store_true", help="keep what OUT.json has, and run the rest")
    parser.add_argument("--timeout", type=float, default=120, help="seconds for one case")
    parser.add_argument("--memory", type=float, default=8, help="GiB for one process")
    parser.add_argument("-v", dest="verbose", action="store_true", help="print each case as it ends")
    return parser


def run_suite(
    parser: argparse.ArgumentParser, options: argparse.Namespace, names: list[str], script: str, *words: str
) -> int:
    """Runs the cases `names` by the program `script WORDS LEVEL` beside this file, writes and prints how they ended.

    Returns the exit status: 1 if a case is wrong, crashes or does not end."""
    names = [n for n in names if re.search(options.filter, n)]
    results: list[dict[str, Any]] = []
    if options.resume and options.output and options.output.exists():
        earlier = json.loads(options.output.read_text())
        if earlier["level"] != options.level:
            parser.error(f"{options.output} has results of level {earlier['level']}")
        selected = set(names)
        results = [r for r in earlier["results"] if r["name"] not in selected or r["outcome"] not in options.only]
    done = {r["name"] for r in results}
    command = [sys.executable, str(Path(__file__).with_name(script)), *words, options.level]
    run_all([n for n in names if n not in done], command, options, results)
    if options.output:
        write(options, results)
    print(report(results))
    return int(any(r["outcome"] in ("wrong", "crash", "time-out") for r in results))
