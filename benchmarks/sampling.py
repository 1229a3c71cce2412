"""Choosing tokens by sampling: what `sample` computes of logits, beside nothing at all.

    python benchmarks/sampling.py compile DIR [--shapes main more]
    python benchmarks/sampling.py run DIR [-o FILE.json] [--samples 40]     # on the GPU; needs no MLIR

A case is (slots, logits of each). Tokens must be those that PyTorch chooses on the CPU, for several ways to
sample, each of which is timed: `RUNS` one behind the other, in a graph; and `after others`, what a launch costs in a
graph behind the writing of 96 MB, as behind a step: its instructions and logits are in no cache."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from schedules_tried import by_case, compile_schedule, file_name, program, save

SETS = {
    "main": [(1, 32_000), (1, 152_064)],
    "more": [(1, 128_256), (1, 262_144), (16, 32_000), (16, 152_064)],
}
WAYS = {
    "all limits": {"top_k": 50, "top_p": 0.9, "min_p": 0.02},
    "top-p": {"top_p": 0.9},
    "top-k": {"top_k": 20},
    "none": {},
}
RUNS, WRITTEN = 20, 96 << 20


def inputs(case: tuple, way: str, seed: int = 0) -> tuple:
    """Arguments of `choose` on the CPU."""
    import torch

    slots, size = case
    g = torch.Generator().manual_seed(seed)
    how = {"temperature": 0.8, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "penalty": 1.1} | WAYS[way]
    columns = [torch.full((slots,), v, dtype=torch.int64 if n == "top_k" else torch.float32) for n, v in how.items()]
    logits = (torch.randn(slots, size, generator=g) * 3).bfloat16().float()
    seen = torch.rand(slots, size, generator=g) < 0.01
    return logits, seen, *columns, torch.arange(slots) + seed, torch.full((slots,), 77)


def compile_case(case: tuple, knobs: str, folder: str) -> tuple[str, str]:
    """Compiles `choose`."""
    import torch

    from mlirc.generate.sampling import choose

    class Choose(torch.nn.Module):
        def forward(self, *arguments: Any) -> Any:
            return choose(*arguments)

    path = Path(folder) / file_name(f"{case[0]}x{case[1]}", knobs)
    return compile_schedule("reduction", (Choose(), inputs(case, "none")), knobs, path)


def behind_writes(name: str, launch: Any, sets: list[tuple]) -> Any:
    """A graph of launches, each behind a large write; without `launch` the writes alone."""
    import torch

    from mlirc.bench import timing

    buffer = torch.empty(WRITTEN, dtype=torch.int8, device="cuda")

    def run(s: tuple) -> None:
        buffer.zero_()
        if launch:
            launch(s)

    return timing.capture(name, run, sets, RUNS)


def run_file(file: Path, samples: int, flush: Any) -> list[dict[str, Any]]:
    """A row for each way to sample."""
    import torch

    from mlirc.bench import timing
    from mlirc.generate.sampling import choose
    from mlirc.runtime.loading import load

    case = tuple(int(n) for n in file.stem.split("__")[0].split("x"))
    model = load(str(file), graph=False)

    def launch(s: tuple) -> None:
        model.bind(*s)
        model.launch(torch.cuda.current_stream())

    rows = []
    for way in WAYS:
        wrong = 0
        for seed in range(4):
            given = inputs(case, way, seed)
            want = choose(*given)
            launch(tuple(x.cuda() for x in given))
            torch.cuda.synchronize()
            wrong += int((torch.from_dlpack(model.outputs[0]).cpu() != want).sum())
        sets = [tuple(x.cuda() for x in inputs(case, way, seed)) for seed in range(4)]
        arms = [timing.capture("runs", launch, sets, RUNS), behind_writes("writes", None, sets)]
        arms.append(behind_writes("both", launch, sets))
        timed = timing.interleave(arms, samples, flush)
        after = timed["both"].median - timed["writes"].median
        rows.append({"file": file.stem, "way": way, "wrong": wrong, "after_us": after, **timed["runs"].to_json()})
    model.close()
    return rows


def run_all(args: Any) -> None:
    """Times every file of a folder, and prints a line for each."""
    import torch

    from mlirc.bench import timing

    print(torch.cuda.get_device_name(), torch.__version__, "us: after others (in a row)")
    flush, rows = timing.Flusher(), []
    for file in (f for files in by_case(args.folder).values() for f in files):
        new = run_file(file, args.samples, flush)
        rows += new
        times = ", ".join(f"{r['way']} {r['after_us']:.1f} ({r['median_us']:.1f})" for r in new)
        print(f"{file.stem}: {times}, {sum(r['wrong'] for r in new)} wrong", flush=True)
    if args.output:
        save(args, rows)
    if any(r["wrong"] for r in rows):
        sys.exit("error: tokens that PyTorch would not choose")


def main() -> None:
    """The command line."""
    program("reduction", __doc__, SETS, 20, compile_case, run_all)


if __name__ == "__main__":
    main()
