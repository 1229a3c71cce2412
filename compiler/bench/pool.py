"""Worker processes that survive what they run: a crash, a hang or a broken CUDA context costs one case.

Parent and worker speak JSON lines: a task `{"cases": [...]}` goes in, one `{"name", "result", "fatal"}` per case comes
out, in order.
"""

from __future__ import annotations

import json
import os
import queue
import select
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass
class Task:
    """Cases (as JSON, each with a "name") for one worker, in order; `memory` is what they take of the pool's limit."""

    cases: list[dict[str, Any]]
    memory: float = 0.0


class _Room:
    """A counter of memory that callers wait for."""

    def __init__(self, limit: float) -> None:
        self.free, self.limit, self.changed = limit, limit, threading.Condition()

    def take(self, amount: float) -> float:
        amount = min(amount, self.limit)
        with self.changed:
            self.changed.wait_for(lambda: self.free >= amount)
            self.free -= amount
        return amount

    def give(self, amount: float) -> None:
        with self.changed:
            self.free += amount
            self.changed.notify_all()


def run_tasks(
    tasks: Sequence[Task],
    mode: str,
    settings: dict[str, Any],
    *,
    jobs: int = 1,
    timeout: float = 300.0,
    memory: float = float("inf"),
    deadline: float = float("inf"),
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Runs the tasks in `jobs` worker processes and yields (case name, result) as they come.

    A case that crashes its worker, or takes longer than `timeout` seconds, gives {"error": ...}; the rest of its task
    goes on in a new worker. Past `deadline` (time.monotonic) the remaining cases give {"skipped": ...}.
    """
    todo: queue.SimpleQueue[Task] = queue.SimpleQueue()
    done: queue.SimpleQueue[Any] = queue.SimpleQueue()
    room = _Room(memory)
    for task in tasks:
        todo.put(task)

    def work() -> None:
        worker = Worker(mode, settings)
        try:
            while True:
                try:
                    task = todo.get_nowait()
                except queue.Empty:
                    return
                taken = room.take(task.memory)
                try:
                    for event in worker.run(task, timeout, deadline):
                        done.put(event)
                finally:
                    if task.memory:
                        worker.stop()  # gives its GPU memory back
                    room.give(taken)
        except Exception as e:  # a bug here must not leave the caller waiting
            done.put(e)
        finally:
            worker.stop()

    threads = [threading.Thread(target=work, daemon=True) for _ in range(max(1, min(jobs, len(tasks))))]
    for thread in threads:
        thread.start()
    for _ in range(sum(len(t.cases) for t in tasks)):
        event = done.get()
        if isinstance(event, Exception):
            raise event
        yield event
    for thread in threads:
        thread.join()


class Worker:
    """One subprocess, started when there is work and again after it died."""

    def __init__(self, mode: str, settings: dict[str, Any]) -> None:
        self.mode, self.settings = mode, settings
        self.process: subprocess.Popen | None = None
        self.buffer = b""

    def run(self, task: Task, timeout: float, deadline: float) -> Iterator[tuple[str, dict[str, Any]]]:
        """The results of a task's cases, one for each, whatever happens."""
        left = list(task.cases)
        while left:
            if time.monotonic() > deadline:
                yield from ((c["name"], {"skipped": "out of time"}) for c in left)
                return
            self._send({"cases": left})
            while left:
                until = min(time.monotonic() + timeout, max(deadline + 20, time.monotonic() + 1))
                line = self._read_line(until)
                if line is None:
                    case = left.pop(0)
                    yield case["name"], {"error": self._end(timeout), "stage": "process"}
                    break
                event = json.loads(line)
                left.pop(0)
                yield event["name"], event["result"]
                if event.get("fatal"):
                    self.stop()
                    break
                if time.monotonic() > deadline and left:
                    self.stop()
                    break

    def _send(self, message: dict[str, Any]) -> None:
        if self.process is None or self.process.poll() is not None:
            command = [sys.executable, "-P", "-m", "mlirc.bench.worker", self.mode, json.dumps(self.settings)]
            environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
            self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment)
            self.buffer = b""
        assert self.process.stdin
        try:
            self.process.stdin.write(json.dumps(message).encode() + b"\n")
            self.process.stdin.flush()
        except OSError:
            pass  # it died: the next read says so

    def _read_line(self, until: float) -> bytes | None:
        """The next line, or None when the process ended or `until` (time.monotonic) passed."""
        assert self.process and self.process.stdout
        descriptor = self.process.stdout.fileno()
        while b"\n" not in self.buffer:
            ready, _, _ = select.select([descriptor], [], [], max(0.0, until - time.monotonic()))
            chunk = os.read(descriptor, 1 << 16) if ready else b""
            if not chunk:
                return None
            self.buffer += chunk
        line, _, self.buffer = self.buffer.partition(b"\n")
        return line

    def _end(self, timeout: float) -> str:
        """Ends the process and says why."""
        assert self.process
        try:
            status = self.process.wait(timeout=2)
            why = f"the worker process ended with status {status}"
        except subprocess.TimeoutExpired:
            why = f"took longer than {timeout:.0f} s"
        self.stop()
        return why

    def stop(self) -> None:
        """Ends the process, if there is one."""
        if self.process is None:
            return
        self.process.kill()
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout):
            if stream:
                try:
                    stream.close()
                except OSError:
                    pass
        self.process = None
