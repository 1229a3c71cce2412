"""The list of Hugging Face architectures on a GPU: each tiny model compiled, run and compared with PyTorch.

    python benchmarks/architectures.py -o benchmarks/results/architectures-h200.json [-j 8] [--levels ptx]

Writes OUT.json and OUT.md. Exit status 1 if a model is wrong. The models are checked
in processes of their own: one that crashes costs that model only."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from datetime import date
from pathlib import Path
from typing import Any

import tests_path

ROOT = Path(__file__).resolve().parent.parent

_PART = 4  # models that one process checks
_SOME = """
import sys, time
import transformers
sys.path.insert(0, sys.argv[1])
from support.architectures.runner import check_architecture
for name in sys.argv[3:]:
    start = time.time()
    try:
        known = hasattr(transformers, name)
        outcome = check_architecture(name, sys.argv[2].split(",")) if known else "not in this transformers"
    except Exception as e:
        outcome = f"traceback: {type(e).__name__}: {' '.join(str(e).split())[:300]}"
    print(f"{name}\\t{time.time() - start:.1f}\\t{outcome}", flush=True)
"""


def check_some(names: list[str], levels: str, timeout: float, end: float) -> list[dict[str, Any]]:
    """The outcomes of architectures: `right`, `refused: why`, `WRONG: why`, or how the process ended on one.

    One process checks them in turn, since importing takes longer than checking; where one ends it, another goes on.
    None goes on after the time `end`, and what it was at then has no outcome.
    """
    results: list[dict[str, Any]] = []
    while names and time.time() < end:
        command = [sys.executable, "-c", _SOME, str(tests_path.FOLDER), levels, *names]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        watchdog = threading.Timer(max(0.0, min(timeout * len(names), end - time.time())), process.kill)
        watchdog.start()
        assert process.stdout
        for line in process.stdout:
            name, _, rest = line.rstrip("\n").partition("\t")
            if name == names[0]:
                seconds, _, outcome = rest.partition("\t")
                results.append({"name": names.pop(0), "outcome": outcome, "seconds": float(seconds)})
        watchdog.cancel()
        status = process.wait()
        if names and time.time() < end:
            results.append({"name": names.pop(0), "outcome": f"its process ended with status {status}", "seconds": 0.0})
    return results


def machine() -> dict[str, str]:
    """What the results depend on."""
    import torch
    import transformers

    query = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    seen = subprocess.run(query, capture_output=True, text=True).stdout if shutil.which(query[0]) else "none, none"
    gpu, _, driver = seen.strip().partition(", ")
    head = ["git", "-C", str(ROOT), "rev-parse", "--short", "HEAD"]
    commit = os.environ.get("MLIRC_COMMIT") or subprocess.run(head, capture_output=True, text=True).stdout.strip()
    versions = {"torch": torch.__version__, "transformers": transformers.__version__}
    return {"date": date.today().isoformat(), "GPU": gpu, "driver": driver, **versions, "commit": commit}


def report(about: dict[str, str], levels: str, results: list[dict[str, Any]]) -> str:
    """The table as Markdown: counts, then every architecture that is not right."""
    counts = Counter(r["outcome"].split(":")[0] for r in results)
    total = ", ".join(f"{n} {outcome}" for outcome, n in counts.most_common())
    lines = [
        "# Hugging Face architectures",
        "",
        ", ".join(f"{k} {v}" for k, v in about.items()),
        "",
        f"Tiny models with random weights at level {levels} beside PyTorch in FP64, on plain and padded inputs",
        f"and with another last token (`benchmarks/architectures.py`): of {len(results)} {total}.",
        "",
        "| not right | outcome |",
        "|---|---|",
        *(f"| {r['name']} | {r['outcome'].replace('|', ' ')} |" for r in results if r["outcome"] != "right"),
    ]
    return "\n".join(lines) + "\n"


def main() -> int:
    """The program; returns its exit status."""
    from support.architectures.runner import read_list

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-o", dest="output", type=Path, required=True, metavar="OUT.json")
    parser.add_argument("-j", dest="jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--levels", default="ptx", help="levels of mlirc --check, divided by commas")
    parser.add_argument("--timeout", type=float, default=120, help="seconds for one model")
    parser.add_argument("--names", nargs="*", help="only these model classes")
    parser.add_argument(
        "--time-limit", type=float, default=float("inf"), help="end after so many seconds, with what is done"
    )
    options = parser.parse_args()
    names = options.names or [a.name for a in read_list()]
    start = time.time()

    def some(part: list[str]) -> list[dict[str, Any]]:
        return check_some(part, options.levels, options.timeout, start + options.time_limit)

    parts = [names[i : i + _PART] for i in range(0, len(names), _PART)]
    with ThreadPoolExecutor(options.jobs) as pool:
        results = [r for part in pool.map(some, parts) for r in part]
    about = machine()
    options.output.write_text(json.dumps({"machine": about, "levels": options.levels, "results": results}, indent=1))
    options.output.with_suffix(".md").write_text(report(about, options.levels, results))
    print(report(about, options.levels, results))
    if len(results) < len(names):
        print(f"{len(names) - len(results)} were not done within the time limit")
    return int(any(r["outcome"].startswith("WRONG") for r in results))


if __name__ == "__main__":
    sys.exit(main())
