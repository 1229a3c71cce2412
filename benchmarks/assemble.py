"""Has NVIDIA's assembler try every model of the `models` suite for every target, without a GPU.

    python benchmarks/assemble.py -o benchmarks/results/ptxas.json [--filter REGEX] [--targets sm_80,sm_90a]

Each model is imported once and compiled for each target; ptxas assembles the whole PTX file. The JSON (and a page
beside it) is rewritten after every model; what it already holds is not done again.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import time
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from mlirc.backend.ptx import check_ptxas, find_ptxas
from mlirc.bench.cases import Case
from mlirc.bench.compiling import _IMPORTERS
from mlirc.bench.models import CONFIGS, NETWORKS, lengths, model_case
from mlirc.bench.ptxas import entries, summarize
from mlirc.bench.report import commit
from mlirc.driver.compilation import Compilation, _versions
from mlirc.errors import MlircError
from mlirc.ir import levels
from mlirc.targets import TARGETS, get_target
from mlirc.tools.cli import run_main


def cases() -> list[Case]:
    """Every model, at two lengths (images: batches), in bf16 and f32; Qwen2.5-7B in f32 with 2 layers."""
    found = []
    for dtype in ("bf16", "f32"):
        for name in (*CONFIGS, *NETWORKS):
            for length in [n for n in lengths(name) if n in (7, 128)] or [7]:
                short = 2 if name == "qwen2.5-7b" and dtype == "f32" else None
                found.append(model_case(name, length, dtype, layers=short))
    return found


def assemble(case: Case, targets: list[str], pool: ThreadPoolExecutor) -> dict[str, dict[str, Any]]:
    """What ptxas says of one model, by target: registers and spills, or an `error`."""
    first = Compilation(case.name, get_target(targets[0]), helpers=0)
    _IMPORTERS[case.builder](first, case)
    first.lower("linalg")
    verdicts: dict[str, Future] = {}
    results: dict[str, dict[str, Any]] = {}
    for name in targets:
        job = Compilation(case.name, get_target(name), helpers=0)
        job.modules["linalg"] = levels.copy(first.modules["linalg"])
        try:
            job.lower("ptx")
        except MlircError as e:
            results[name] = {"error": " ".join(str(e).split())[:1000]}
            continue
        verdicts[name] = pool.submit(check_ptxas, job.ptx, job.target)
    for name, verdict in verdicts.items():
        try:
            log = verdict.result()
            results[name] = {**summarize(log), "entries": entries(log)}
        except MlircError as e:
            results[name] = {"error": " ".join(str(e).split())[:1000]}
    return {name: results[name] for name in targets}


def page(data: dict[str, Any], targets: list[str]) -> str:
    """The results as a page: one table of models by targets, and the kernels with the most registers and spills."""
    verdicts = [r for by_target in data["results"].values() for r in by_target.values()]
    right = sum("error" not in r for r in verdicts)
    about = data["about"]
    later = f" (what was done again: {about['later']})" if "later" in about else ""
    if "alone" in about:
        later = f" (the {about['alone']} kernels that spilled then: each alone, without its model, at {about['later']})"
    lines = [
        "# ptxas, every model for every target",
        "",
        f"{right} of {len(verdicts)} PTX files accepted. {data['about']['ptxas']}; compiled at commit "
        f"{data['about']['commit']}{later} with torch-mlir {data['about']['torch-mlir']}, llvmlite "
        f"{data['about']['llvmlite']}. Mistral-7B has 2 layers, Qwen2.5-7B in f32, too; all other models are whole.",
        "Made by `python benchmarks/assemble.py -o benchmarks/results/ptxas.json`, on a machine without a GPU.",
        "",
        "A cell is kernels / the most registers of any kernel / kernels that spill (bytes of spill stores).",
        "",
        "| model | " + " | ".join(targets) + " |",
        "|---|" + "---|" * len(targets),
    ]
    for name, by_target in data["results"].items():
        lines.append(f"| {name} | " + " | ".join(_cell(by_target.get(t)) for t in targets) + " |")
    worst = [
        (numbers["spill_bytes"], target, name, kernel, numbers["registers"])
        for name, by_target in data["results"].items()
        for target, result in by_target.items()
        for kernel, numbers in result.get("entries", {}).items()
        if numbers["spill_bytes"]
    ]
    if not worst:
        return "\n".join([*lines, "", "No kernel spills."]) + "\n"
    lines += ["", "## Kernels that spill most", "", "| target | model | kernel | registers | spill stores, bytes |"]
    lines.append("|---|---|---|---|---|")
    for spilled, target, name, kernel, registers in sorted(worst, reverse=True)[:15]:
        lines.append(f"| {target} | {name} | {kernel} | {registers} | {spilled} |")
    return "\n".join(lines) + "\n"


def _cell(result: dict[str, Any] | None) -> str:
    if result is None:
        return "not run"
    if "error" in result:
        return "**refused**"
    spills = f"{result['spilling']} ({result['spill_bytes']})" if result["spilling"] else "0"
    return f"{result['kernels']} / {result['registers']} / {spills}"


def _ptxas_version() -> str:
    path = find_ptxas()
    if path is None:
        raise MlircError("no ptxas: install the nvidia-cuda-nvcc package or put ptxas on PATH")
    text = subprocess.run([path, "--version"], capture_output=True, text=True, check=True).stdout
    match = re.search(r"release [\d.]+, V[\d.]+", text)
    return f"ptxas {match[0]}" if match else "ptxas"


def main() -> int:
    """The program; returns its exit status: 0 when ptxas accepts everything."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="OUT.json")
    parser.add_argument("--filter", default="", metavar="REGEX", help="only the cases whose name matches")
    parser.add_argument("--targets", default=",".join(TARGETS), help="default: %(default)s")
    options = parser.parse_args()
    targets = options.targets.split(",")
    about = {"ptxas": _ptxas_version(), "commit": commit(), **_versions()}
    data: dict[str, Any] = {"about": about, "results": {}}
    if options.output.exists():
        data = json.loads(options.output.read_text())
        if data["about"]["commit"] != about["commit"]:
            data["about"]["later"] = about["commit"]
            data["about"].pop("alone", None)
    with ThreadPoolExecutor(1) as pool:
        for case in cases():
            known = data["results"].get(case.name, {})
            missing = [t for t in targets if t not in known]
            if not missing or not re.search(options.filter, case.name):
                continue
            start = time.perf_counter()
            data["results"][case.name] = {**known, **assemble(case, missing, pool)}
            options.output.write_text(json.dumps(data, separators=(",", ":")) + "\n")
            options.output.with_suffix(".md").write_text(page(data, list(TARGETS)))
            cells = "; ".join(f"{t} {_cell(r)}" for t, r in data["results"][case.name].items())
            print(f"{case.name}: {cells} ({time.perf_counter() - start:.0f} s)", file=sys.stderr, flush=True)
    return 0 if all("error" not in r for by in data["results"].values() for r in by.values()) else 1


if __name__ == "__main__":
    sys.exit(run_main(main))
