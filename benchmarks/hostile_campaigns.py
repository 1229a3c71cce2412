"""Writes results/hostile-campaigns.md: damaged files and caches, altered JSON, signals at any moment, threads at public
calls. Needs no GPU; goes on after what did not hold, lists it, and ends with status 1 then:

    python benchmarks/hostile_campaigns.py [--seconds 60] [--seed 0] [--only signals]
"""

from __future__ import annotations

import argparse
import datetime
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import numpy as np
import tests_path  # noqa: F401

from support.hostile.campaigns import CAMPAIGNS, Broken, World

RESULTS = Path(__file__).resolve().parent / "results" / "hostile-campaigns.md"


def run(name: str, world: World, seed: int, seconds: float) -> tuple[Counter, list[str], float]:
    """How the trials of one campaign ended, what did not hold, and how long they took."""
    generator, found, broken = np.random.default_rng(seed), Counter(), []
    start = time.monotonic()
    trials = CAMPAIGNS[name](world, generator)
    while time.monotonic() - start < seconds:
        try:
            found[next(trials)] += 1
        except Broken as e:
            found["broken"] += 1
            broken.append(f"{name}: {' '.join(str(e).split())[:300]}")
            print(broken[-1], flush=True)
            trials = CAMPAIGNS[name](world, generator)
    trials.close()
    return found, broken, time.monotonic() - start


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60, help="of each campaign")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", choices=list(CAMPAIGNS), action="append")
    parser.add_argument("--output", type=Path, default=RESULTS)
    options = parser.parse_args()
    lines = [
        "# Hostile campaigns", "",
        f"Made by `python benchmarks/hostile_campaigns.py --seconds {options.seconds:g} --seed {options.seed}`, "
        f"{datetime.date.today()}; the trials are those of `python_tests/support/hostile/campaigns.py`. A trial holds "
        "where what comes out is right, or is refused in one line, no file is half written and no process left.", "",
        "| campaign | trials | seconds | how they ended | did not hold |", "|---|---:|---:|---|---:|",
    ]  # fmt: skip
    every: list[str] = []
    with tempfile.TemporaryDirectory(prefix="mlirc-campaigns-") as folder:
        world = World.make(Path(folder))
        for name in options.only or CAMPAIGNS:
            found, broken, seconds = run(name, world, options.seed, options.seconds)
            every += broken
            ends = ", ".join(f"{how} {count}" for how, count in sorted(found.items()) if how != "broken")
            lines.append(f"| {name} | {found.total()} | {seconds:.0f} | {ends} | {len(broken)} |")
            print(lines[-1], flush=True)
    options.output.write_text("\n".join([*lines, *(["", *(f"- {b}" for b in every)] if every else [])]) + "\n")
    return 1 if every else 0


if __name__ == "__main__":
    sys.exit(main())
