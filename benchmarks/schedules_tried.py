"""What `products.py` and `attentions.py` share: cases compiled with several schedules, in processes of their own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any


def file_name(case: str, knobs: str) -> str:
    """The name, without suffix, of what a case and a schedule make."""
    return case + (f"__{knobs.replace(',', '+')}" if knobs else "")


def compile_schedule(script: str, built: tuple[Any, tuple], knobs: str, path: Path) -> tuple[str, str]:
    """Compiles a module with its inputs, knobs for a script or its default; (file's name, "" or why there is none)."""
    from mlirc.driver.compilation import Compilation
    from mlirc.errors import MlircError
    from mlirc.targets import get_target

    job = Compilation(script, get_target("sm_90a"), (f"{script}:{knobs}",) if knobs else (), helpers=0)
    try:
        job.import_module(*built, {})
        job.lower("ptx")
        job.write(path.with_name(path.name + ".ptx"))
    except MlircError as e:
        return path.name, str(e)
    return path.name, ""


def compile_all(compile_case: Callable[[tuple, str, str], tuple[str, str]], cases: Sequence[tuple], args: Any) -> None:
    """Compiles every case with every schedule of `args.knobs` into `args.folder`, `args.jobs` at a time, and says what
    is refused."""
    Path(args.folder).mkdir(parents=True, exist_ok=True)
    with ProcessPoolExecutor(args.jobs) as pool:
        jobs = [pool.submit(compile_case, c, k, args.folder) for c in cases for k in args.knobs or [""]]
        for name, problem in (j.result() for j in jobs):
            if problem:
                print(f"{name}: {problem[:200]}")
