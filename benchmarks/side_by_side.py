"""Work in processes side by side: what the programs that try mutants and right kernels share."""

from __future__ import annotations

import argparse
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, TypeVar

os.environ.setdefault("OMP_NUM_THREADS", "1")  # each process has a core of its own

T = TypeVar("T")
Part = tuple[str, int, int]  # a name, and which of how many parts of its work


def jobs(doc: str | None) -> int:
    """How many processes the command line asks for: one per core, unless --jobs says otherwise."""
    return parser(doc).parse_args().jobs


def parser(doc: str | None) -> argparse.ArgumentParser:
    """What knows the option --jobs."""
    made = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("-j", "--jobs", type=int, default=os.cpu_count() or 1, help="processes (one per core)")
    return made


class _Worker:
    """A fresh process that does one piece of work after another."""

    def __init__(self, function: Callable[[Part], Any]) -> None:
        spawn = multiprocessing.get_context("spawn")
        self.pipe, theirs = spawn.Pipe()
        self.process = spawn.Process(target=_serve, args=(theirs, function), daemon=True)
        self.process.start()
        theirs.close()

    def do(self, work: Part) -> Any:
        """What the function gives; raises what it raises, and EOFError if the process dies of it."""
        try:
            self.pipe.send(work)
            result, error = self.pipe.recv()
        except (BrokenPipeError, ConnectionResetError) as e:
            raise EOFError from e
        if error is not None:
            raise error
        return result

    def end(self) -> str:
        """Ends the process; how it ended."""
        self.pipe.close()
        self.process.join()
        code = self.process.exitcode or 0
        return signal.Signals(-code).name if code < 0 else f"exit status {code}"


def _serve(pipe: Connection, function: Callable[[Part], Any]) -> None:
    while True:
        try:
            work = pipe.recv()
        except EOFError:
            return
        try:
            done = function(work), None
        except Exception as e:
            e.add_note(f"in part {work[1]} of {work[0]}")
            done = None, e
        pipe.send(done)


def shared(
    function: Callable[[Part], T], names: Iterable[str], workers: int, died: list[str], parts: int | None = None
) -> Iterator[tuple[str, T]]:
    """Each name's work cut into parts (one per worker, unless said otherwise), done by fresh processes: (name, what a
    part gave), in order. A part whose process dies is left out, and said in `died`: the others go on."""
    count, own = parts or workers, threading.local()

    def do(work: Part) -> list[T]:
        own.worker = getattr(own, "worker", None) or _Worker(function)
        try:
            return [own.worker.do(work)]
        except EOFError:
            how, own.worker = own.worker.end(), None
            died.append(f"{work[0]}, part {work[1]} of {work[2]}: its process died ({how})")
            print(died[-1], flush=True)
            return []

    work = [(name, part, count) for name in names for part in range(count)]
    with ThreadPoolExecutor(workers) as pool:
        for (name, _, _), found in zip(work, pool.map(do, work), strict=True):
            yield from ((name, x) for x in found)


def write(name: str, page: str, died: list[str]) -> int:
    """Writes a page of results, with what is missing in it; returns the exit status."""
    if died:
        page += "\n## Not done\n\n" + "".join(f"- {line}\n" for line in died)
    (Path(__file__).resolve().with_name("results") / name).write_text(page)
    return int(bool(died))
