"""Launches that begin before those in front of them have ended, beside the same plans without.

    python benchmarks/dependent_launch.py compile DIR [--cases chain decode1 decode16]
    python benchmarks/dependent_launch.py run DIR [-o FILE.json] [--samples 40]     # on the GPU; needs no MLIR

`chain` is 200 small kernels, products of a row with 256x256 weights, of which each reads the result of the one before.
`decodeN` is a step of decoding of TinyLlama-1.1B in bf16, of N sequences at position 1,000, `verifyK` the judging of K
tokens there; `MODEL.decodeN` that of another model of `mlirc-bench generation`, `MODEL.SCHEME.decodeN` with packed
weights, the head's, too, or f32 ones (`f32`). Weights are made up on the GPU. All plans of a case run the same steps
first, and must give the same bits; then their graphs are timed in turn, several runs in a row, as a server would run
them, with no other work between."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from schedules_tried import by_case, save, time_of

ARMS = {"after": ("graph:dependent=false",), "early": ("graph:dependent=true",), "rules": ()}
CASES = ("chain", "decode1", "decode16")
SCHEMES = {"f32": None, "int4": "int4:group=128,head", "int8": "int8:head"}
KERNELS, WIDTH = 200, 256  # of the chain
CONTEXT, POSITION, RUNS = 1024, 1000, 20  # of a sequence; runs of a sample


# -- where MLIR is


def chain() -> tuple[Any, tuple]:
    """A module of products one after the other, with an input."""
    import torch

    class Chain(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.products = torch.nn.ModuleList(torch.nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(KERNELS))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for product in self.products:
                x = product(x)
            return x

    return Chain().to(torch.bfloat16), (torch.randn(1, WIDTH, dtype=torch.bfloat16),)


def job_of(case: str, schedule: tuple[str, ...]) -> Any:
    """The compilation of a case, not lowered yet."""
    from mlirc.driver.compilation import Compilation
    from mlirc.driver.kernel_cache import KernelCache
    from mlirc.files.kept import cache_folder
    from mlirc.targets import get_target

    job = Compilation(case, get_target("sm_90a"), schedule, KernelCache(cache_folder()), helpers=2)
    if case == "chain":
        module, inputs = chain()
        job.import_module(module, inputs, {})
        return job
    from mlirc.bench.generation.build import open_generating
    from mlirc.bench.generation.cases import GENERATING, generation_case
    from mlirc.generate.export import exported, open_generator

    name, scheme, slots, chunk = sizes_of(case)
    model = dict(zip(("model", "config_class", "config"), GENERATING[name], strict=True))
    dtype = "f32" if scheme == "f32" else "bf16"
    described = generation_case(name, model, dtype, context=CONTEXT, batch=slots, prefill=None)
    generator = open_generator(
        open_generating(described),
        slots=slots,
        context=CONTEXT,
        chunks=sorted({1, chunk}),
        quantize=SCHEMES.get(scheme),
    )
    job.import_source(exported(generator, "decode" if chunk == 1 else f"prefill-{chunk}"))
    return job


def sizes_of(case: str) -> tuple[str, str | None, int, int]:
    """The model of a case, one of SCHEMES for its weights, its sequences, and the tokens that each run reads of one."""
    name, _, plan = case.rpartition(".")
    scheme = next((s for s in SCHEMES if name.endswith(f".{s}")), None)
    name = name.removesuffix(f".{scheme}") or "tinyllama-1.1b"
    kind, number = plan[:6], int(plan[6:])
    return name, scheme, number if kind == "decode" else 1, number if kind == "verify" else 1


def compile_cases(args: argparse.Namespace) -> None:
    """Writes both plans of every case, without weights."""
    Path(args.folder).mkdir(parents=True, exist_ok=True)
    for case in args.cases:
        for arm, schedule in ARMS.items():
            job = job_of(case, schedule)
            job.lower("ptx")
            job.write(Path(args.folder) / f"{case}__{arm}.ptx", weights=False)
            early = sum(launch.dependent for launch in job.plan.launches)
            print(f"{case} {arm}: {len(job.plan.launches)} launches, {early} of them early", flush=True)


# -- where the GPU is


def tensors_of(plan: Any) -> dict[str, Any]:
    """Weights and states by name: random numbers on the GPU, norms' scales ones, sequences in the middle of theirs."""
    import numpy as np
    import torch

    from mlirc.runtime.arrays import NUMPY_DTYPES

    made: dict[str, Any] = {}
    draw = torch.Generator("cuda").manual_seed(0)
    for spec in plan.weights:
        if spec.kind == "weight" and spec.dtype in ("bf16", "f32"):
            dtype = torch.bfloat16 if spec.dtype == "bf16" else torch.float32
            if len(spec.shape) == 1:
                made[spec.name] = torch.ones(spec.shape, dtype=dtype, device="cuda")
            else:
                found = torch.randn(spec.shape, dtype=dtype, device="cuda", generator=draw)
                made[spec.name] = found / spec.shape[-1] ** 0.5
        elif spec.kind == "weight" and spec.dtype == "i32":  # words
            made[spec.name] = torch.randint(
                -(2**31), 2**31, spec.shape, dtype=torch.int32, device="cuda", generator=draw
            )
        elif spec.kind == "state":
            made[spec.name] = np.zeros(spec.shape, NUMPY_DTYPES[spec.dtype])
    return made | states_of(plan)


def states_of(plan: Any) -> dict[str, Any]:
    """What is not zero of the states of a step of decoding; nothing of another plan."""
    import numpy as np

    shapes = {spec.name: spec.shape for spec in plan.weights if spec.kind == "state"}
    if "table" not in shapes:
        return {}
    slots, pages = shapes["table"]
    return {
        "table": 1 + np.arange(slots * pages, dtype=np.int64).reshape(slots, pages),
        "token": 1 + np.arange(slots, dtype=np.int64),
        "position": np.full(slots, POSITION, np.int64),
        "active": np.ones(slots, np.bool_),
        "top_p": np.ones(slots, np.float32),
        "penalty": np.ones(slots, np.float32),
    }


def inputs_of(plan: Any) -> dict[str, Any]:
    """What a plan is given: a row of random numbers, or the tokens that are judged."""
    import torch

    if [spec.name for spec in plan.inputs] != ["tokens", "slot", "start", "count"]:
        return {s.name: torch.randn(1, WIDTH, dtype=torch.bfloat16, device="cuda") for s in plan.inputs}
    [(_, chunk)] = [spec.shape for spec in plan.inputs if spec.name == "tokens"]
    numbers = {"slot": 0, "start": POSITION, "count": chunk}
    tokens = torch.arange(1, 1 + chunk, device="cuda")[None]
    return {"tokens": tokens} | {name: torch.tensor(n, device="cuda") for name, n in numbers.items()}


class Arm:
    """A loaded plan, which is run from the same states each time."""

    def __init__(self, file: Path, x: dict[str, Any], tensors: dict[str, Any]):
        from mlirc.runtime.loading import load

        self.model = load(str(file), tensors)
        self.again = states_of(self.model.plan)
        if x:
            self.model.bind(**x)

    def start(self) -> None:
        """Puts the sequences back to where they began."""
        for name, value in self.again.items():
            self.model.state[name] = value

    def first_runs(self) -> list[Any]:
        """The result of each of the first runs, and the states behind them."""
        import numpy as np
        import torch

        self.start()
        found = []
        for _ in range(RUNS):
            self.model.launch(torch.cuda.current_stream())
            torch.cuda.synchronize()
            found.append(torch.from_dlpack(self.model.outputs[0]).cpu().view(torch.uint8).numpy().copy())
        return found + [np.asarray(self.model.state[name]) for name in self.again]

    def time(self) -> float:
        """Microseconds of a run, of `RUNS` in a row."""
        self.start()
        return time_of(self.model, RUNS)


def run_case(case: str, files: list[Path], samples: int) -> list[dict[str, Any]]:
    """Both plans of a case: whether they give the same bits, and their times in turn."""
    import numpy as np

    from mlirc.bench.timing import summarize
    from mlirc.runtime.loading import read_model

    plan = read_model(files[0])[1]
    tensors = tensors_of(plan)
    x = inputs_of(plan)
    arms = {f.stem.split("__")[1]: Arm(f, x, tensors) for f in files}
    base = "after" if "after" in arms else next(iter(arms))
    right = arms[base].first_runs()
    same = {
        n: all(np.array_equal(a, b) for _ in range(5) for a, b in zip(right, arm.first_runs(), strict=True))
        for n, arm in arms.items()
    }
    times: dict[str, list[float]] = {name: [] for name in arms}
    for number in range(samples + 3):
        for name, arm in arms.items():
            us = arm.time()
            if number >= 3:
                times[name].append(us)
    rows = []
    for name, arm in arms.items():
        launches = arm.model.plan.launches
        early = sum(launch.dependent for launch in launches)
        rows.append({"case": case, "arm": name, "launches": len(launches), "early": early, "same": same[name],
                     **summarize(times[name]).to_json()})  # fmt: skip
    for arm in arms.values():
        arm.model.close()
    return rows


def run_all(args: argparse.Namespace) -> None:
    """Times every case of a folder, and prints a line for each plan."""
    import torch

    rows: list[dict[str, Any]] = []
    with torch.cuda.stream(torch.cuda.Stream()):
        for case, files in by_case(args.folder).items():
            new = run_case(case, files, args.samples)
            base = next((r["median_us"] for r in new if r["arm"] == "after"), new[0]["median_us"])
            for r in new:
                print(
                    f"{case:10s} {r['arm']:6s} {r['launches']:4d} launches, {r['early']:4d} early | "
                    f"{r['median_us']:9.2f} us ({r['p10_us']:.2f}, {r['p90_us']:.2f}), "
                    f"{r['median_us'] / r['launches']:6.2f} us a launch, {base / r['median_us']:.3f}x | "
                    f"{'the same bits' if r['same'] else 'DIFFERENT RESULTS'}", flush=True,
                )  # fmt: skip
            rows += new
    if args.output:
        save(args, rows)
    if not all(r["same"] for r in rows):
        sys.exit("error: plans that give different results")


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    sub = parser.add_subparsers(dest="do", required=True)
    c = sub.add_parser("compile")
    c.add_argument("folder")
    c.add_argument("--cases", nargs="*", default=list(CASES))
    r = sub.add_parser("run")
    r.add_argument("folder")
    r.add_argument("-o", "--output")
    r.add_argument("--samples", type=int, default=40)
    r.add_argument("--commit", help="the source's commit, for what is written")
    args = parser.parse_args()
    (compile_cases if args.do == "compile" else run_all)(args)


if __name__ == "__main__":
    main()
