"""The worker process of `pool`: `python -m mlirc.bench.worker MODE SETTINGS`, tasks on standard input."""

from __future__ import annotations

import gc
import json
import os
import resource
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mlirc.bench.cases import Case
from mlirc.bench.children import end_with_parent
from mlirc.collecting import THRESHOLDS
from mlirc.errors import MlircError


def main() -> None:
    """Serves tasks until standard input ends. Results go to a private copy of standard output: libraries print."""
    end_with_parent()
    mode, settings = sys.argv[1], json.loads(sys.argv[2])
    if settings.get("memory"):  # of the host, in bytes
        resource.setrlimit(resource.RLIMIT_DATA, (int(settings["memory"]),) * 2)
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    serve = {"compile": _compiler, "run": _runner, "problem": _problem_runner}[mode](settings)
    for line in sys.stdin:
        for item in json.loads(line)["cases"]:
            case = Case.from_json(item["case"])
            result, fatal = _guarded(serve, case, item)
            fatal |= bool(result.pop("spent", False))
            out.write(json.dumps({"name": case.name, "result": result, "fatal": fatal}) + "\n")
            out.flush()
            if fatal:
                return


def _guarded(serve: Callable[[Case, dict], dict], case: Case, item: dict) -> tuple[dict[str, Any], bool]:
    """The case's result, or its error; the second value says whether this process is of no use any more."""
    try:
        return serve(case, item), False
    except MlircError as e:
        text = " ".join(str(e).split())
        return {"error": text[:2000], "stage": "mlirc"}, "CUDA" in text
    except Exception as e:
        text = " ".join(str(e).split())
        trace = traceback.format_exc().splitlines()[-6:]
        broken = (
            "CUDA" in text
            or "not enough memory" in text
            or "Accelerator" in type(e).__name__
            or isinstance(e, MemoryError)
        )
        return {"error": f"{type(e).__name__}: {text}"[:2000], "stage": "python", "trace": trace}, broken


def _compiler(settings: dict[str, Any]) -> Callable[[Case, dict], dict]:
    from mlirc.bench.compiling import compile_case

    gc.set_threshold(*THRESHOLDS)
    folder, target, schedule = Path(settings["folder"]), settings["target"], settings["schedule"]
    return lambda case, item: compile_case(case, folder, target, schedule, settings["ptxas"], settings["fp32"])


def _problem_runner(settings: dict[str, Any]) -> Callable[[Case, dict], dict]:
    _limit_threads(settings)
    from mlirc.bench.problems.running import run_problem

    return lambda case, item: run_problem(case, item["info"], Path(settings["folder"]), settings)


def _runner(settings: dict[str, Any]) -> Callable[[Case, dict], dict]:
    _limit_threads(settings)
    from mlirc.bench.running import Runner

    runner = Runner(Path(settings["folder"]), settings)
    return lambda case, item: runner.run(case, item["info"])


def _limit_threads(settings: dict[str, Any]) -> None:
    if settings.get("warm"):  # many of these processes at once: no more compiler processes under each
        os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"


if __name__ == "__main__":
    main()
