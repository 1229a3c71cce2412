"""Work in processes side by side: what the programs that try mutants and right kernels share."""

from __future__ import annotations

import argparse
import multiprocessing
import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from typing import TypeVar

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


def shared(
    function: Callable[[Part], T], names: Iterable[str], workers: int, parts: int | None = None
) -> Iterator[tuple[str, T]]:
    """Each name's work cut into parts (one per worker, unless said otherwise), done by fresh processes: (name, what a
    part gave), in order."""
    count = parts or workers
    work = [(name, part, count) for name in names for part in range(count)]
    with ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn")) as pool:
        for (name, _, _), found in zip(work, pool.map(function, work), strict=True):
            yield name, found
