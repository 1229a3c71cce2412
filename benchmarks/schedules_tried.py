"""What `products.py`, `quantized_products.py`, `attentions.py` and `decode_attention.py` share: their command lines,
cases compiled with several schedules in processes of their own, and what is made of them in CUDA graphs."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any


def program(
    script: str,
    about: str | None,
    sets: Mapping[str, Sequence[tuple]],
    samples: int,
    compile_case: Callable[[tuple, str, str], tuple[str, str]],
    run_all: Callable[[argparse.Namespace], None],
) -> None:
    """A script's whole program: its command line (`command_line`), then compiles its cases or times them."""
    args = command_line(script, about, sets, samples)
    if args.do == "compile":
        compile_all(compile_case, args)
    else:
        run_all(args)


def command_line(
    script: str, about: str | None, sets: Mapping[str, Sequence[tuple]], samples: int
) -> argparse.Namespace:
    """The arguments of `compile DIR` and `run DIR`: `sets` are cases by name, of which the first are the default;
    `cases` are then those that were asked for."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    sub = parser.add_subparsers(dest="do", required=True)
    c = sub.add_parser("compile")
    c.add_argument("folder")
    c.add_argument("--shapes", nargs="*", default=[next(iter(sets))], choices=list(sets))
    c.add_argument("--knobs", nargs="*", default=[], help=f"knobs of the {script} script; '' is the default schedule")
    c.add_argument("--jobs", type=int, default=2)
    r = sub.add_parser("run")
    r.add_argument("folder")
    r.add_argument("-o", "--output")
    r.add_argument("--samples", type=int, default=samples)
    r.add_argument("--compiled", action="store_true", help="beside torch.compile, too, where a script can")
    r.add_argument("--commit", help="the source's commit, for what is written")
    args = parser.parse_args()
    args.cases = [case for name in getattr(args, "shapes", ()) for case in sets[name]]
    return args


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


def compile_all(compile_case: Callable[[tuple, str, str], tuple[str, str]], args: argparse.Namespace) -> None:
    """Compiles every case of `args` with every schedule of `args.knobs` into `args.folder`, `args.jobs` at a time, and
    says what is refused."""
    Path(args.folder).mkdir(parents=True, exist_ok=True)
    with ProcessPoolExecutor(args.jobs) as pool:
        jobs = [pool.submit(compile_case, c, k, args.folder) for c in args.cases for k in args.knobs or [""]]
        for name, problem in (j.result() for j in jobs):
            if problem:
                print(f"{name}: {problem[:200]}")


def by_case(folder: str) -> dict[str, list[Path]]:
    """The files of a folder by the name of their case."""
    files: dict[str, list[Path]] = {}
    for f in sorted(Path(folder).glob("*.ptx")):
        files.setdefault(f.stem.split("__")[0], []).append(f)
    return files


def arms_of(
    files: Sequence[Path], sets: Sequence[tuple], runs: int, error_of: Callable[[Any], float]
) -> tuple[list[Any], dict[str, float]]:
    """What is timed of compiled files, on sets of inputs, `runs` of them to a graph; and the error of each by its name,
    by what `error_of` makes of its output on the first set, which is full of NaN before. One that fails is left out,
    and says why."""
    import torch

    from mlirc.bench import timing
    from mlirc.runtime.loading import load

    arms, errors = [], {}
    for file in files:
        try:
            model = load(str(file), graph=False)

            def launch(inputs: tuple, model: Any = model) -> None:
                model.bind(*inputs)
                model.launch(torch.cuda.current_stream())

            for o in model.outputs:
                torch.from_dlpack(o).view(torch.uint8).fill_(255)
            launch(sets[0])
            torch.cuda.synchronize()
            errors[file.stem] = error_of(torch.from_dlpack(model.outputs[0]))
            arm = timing.capture(file.stem, launch, sets, runs)
            arm.keep = (arm.keep, model)  # a graph does not keep its kernels loaded
            arms.append(arm)
        except Exception as e:  # a bad schedule must not hide the others' figures
            print(f"{file.stem}: {type(e).__name__}: {str(e)[:200]}", file=sys.stderr)
    return arms, errors


def time_of(model: Any, runs: int) -> float:
    """Microseconds of a run, of `runs` in a row."""
    import torch

    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    model.launch(torch.cuda.current_stream())  # so that the host is ahead
    begin.record()
    for _ in range(runs):
        model.launch(torch.cuda.current_stream())
    end.record()
    end.synchronize()
    return 1e3 * begin.elapsed_time(end) / runs


def save(args: argparse.Namespace, rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Writes what was measured, and on what, to `args.output`; returns the latter."""
    from mlirc.bench.report import environment

    about = environment() | {"commit": args.commit or ""}
    Path(args.output).write_text(json.dumps({"about": about, "rows": rows}, indent=0))
    return about
