"""Ten thousand tokens in one process at the end of the context: neither memory nor speed nor tokens drift.

    python benchmarks/long_run.py [-o FILE.json] [--tokens 10000] [--context 8192]      # compiles, and runs on the GPU
    python benchmarks/long_run.py --model DIR --random-weights 0 --context 256 --tokens 400 --device cpu

In a lap every slot gets a prompt that goes on until the context is full, stop tokens or not. Each lap has prompts of
its own, but for the last, which has the first one's again; every second one samples. Where the context is not longer
than --tokens, a sequence follows that is as long as the context. A row is of at most 1,000 tokens of a sequence: tokens
a second by its median turn, on the host's clock; the device's memory in use and the process's; free pages.

Exit status 1 where the device's memory grows after the first lap, or the process's by more than --may-grow in the
second half; where, on a GPU, a row of the last lap takes --may-slow longer than the first one's at the same positions;
where their tokens differ; or where pages or slots are not free at the end.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

from mlirc.bench.generation.cases import GENERATING
from mlirc.bench.report import environment
from mlirc.generate.engine import Sampling
from mlirc.generate.opening import ABOUT, Opened, open_generating
from mlirc.generate.requests import Request
from mlirc.generate.scheduler import Progress, Scheduler
from mlirc.tools.cli import run_main
from mlirc.tools.generating import add_options

ROW = 1000
GREEDY, SAMPLED = Sampling(), Sampling(temperature=0.8, top_p=0.95, repetition_penalty=1.1)

# What serve_soak.py has of this, too.


class Louder(Mapping):
    """Random weights whose matrices are three times as large: of those of standard deviation 1/50 a text is soon one
    token again and again, whatever is in front of it."""

    def __init__(self, weights: Mapping[str, Any]) -> None:
        self.weights = weights

    def __getitem__(self, name: str) -> Any:
        tensor = self.weights[name]
        return tensor * 3 if tensor.dim() > 1 and tensor.is_floating_point() else tensor

    def __contains__(self, name: object) -> bool:
        return name in self.weights

    def __iter__(self) -> Iterator[str]:
        return iter(self.weights)

    def __len__(self) -> int:
        return len(self.weights)


def arguments(parser: argparse.ArgumentParser, model: str | None) -> None:
    """What says which model runs where, and where what is found goes."""
    names = ", ".join(GENERATING)
    parser.add_argument("--model", default=model, help=f"a compiled model, a Hugging Face folder, or one of {names}")
    add_options(parser)
    parser.add_argument("-o", "--output")
    parser.add_argument("--commit", help="the source's commit, for what is written")
    parser.set_defaults(dtype="bf16")


def opened(args: argparse.Namespace, **sizes: Any) -> Opened:
    """The model of `args` on its device; one that is not compiled yet is, with `sizes` and what `args` say."""
    if (Path(args.model) / ABOUT).exists():
        return open_generating(args.model, device=args.device)
    sizes |= {"quantize": args.quantize, "cache_dtype": args.cache_dtype, "target": args.target}
    known = GENERATING.get(args.model)
    if known is None and args.random_weights is None:
        return open_generating(args.model, device=args.device, dtype=args.dtype, **sizes)
    import transformers

    from mlirc.frontend.open import open_model

    with tempfile.TemporaryDirectory() as folder:
        if known is not None:
            getattr(transformers, known[1])(**known[2], architectures=[known[0]]).save_pretrained(folder)
        where = args.model if known is None else folder
        source = open_model(where, random_weights=args.random_weights or 0, dtype=args.dtype)
        source = replace(source, name=Path(args.model).name, weights=Louder(source.weights))
        return open_generating(source, device=args.device, **sizes)


def resident() -> int:
    """Bytes of memory that the process has now."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def device_memory(args: argparse.Namespace) -> int:
    """Bytes of the GPU's memory that are in use, by whomever; 0 without a GPU."""
    if not isinstance(args.device, int):
        return 0
    import torch

    torch.cuda.synchronize(args.device)
    free, total = torch.cuda.mem_get_info(args.device)
    return total - free


def all_free(scheduler: Scheduler) -> bool:
    """Whether nothing has a page or a slot."""
    engine: Any = scheduler.engine
    return not scheduler.busy and scheduler.pool.available == scheduler.pool.size and not engine._table.any()


def save(args: argparse.Namespace, **found: Any) -> None:
    """Writes what was found, and on what, to `args.output`."""
    about = environment() | {"commit": args.commit or ""}
    Path(args.output).write_text(json.dumps({"about": about, **found}, indent=0))


# The run.


def lap(
    args: argparse.Namespace, scheduler: Scheduler, rows: list[dict[str, Any]], name: str, prompt: int, count: int,
    sampling: Sampling, prompts: object, slots: int,
) -> list[Progress]:  # fmt: skip
    """So many sequences of `prompt` tokens, drawn from the seed `prompts`, and `count` behind them; their rows."""
    draw, vocabulary = random.Random(str(prompts)), scheduler.engine.vocabulary
    given = [[draw.randrange(vocabulary) for _ in range(prompt)] for _ in range(slots)]
    made = [scheduler.submit(Request(tokens, count, sampling)) for tokens in given]
    parts, times = -(-count // ROW), list[float]()
    ends = [count * (i + 1) // parts for i in range(parts)]
    while scheduler.busy:
        begin = time.perf_counter()
        if scheduler.step():
            times.append(time.perf_counter() - begin)
        if made[0].new < ends[0] or (len(ends) == 1 and scheduler.busy):
            continue
        seconds, free, pages = median(times), scheduler.pool.available, scheduler.pool.size
        device, host, end = device_memory(args), resident(), prompt + ends.pop(0)
        row = {"lap": name, "end": end, "median_us": 1e6 * seconds, "tokens_per_second": slots / seconds}
        rows.append({**row, "device": device, "resident": host, "free_pages": free})
        held = f"device {device / 1e6:,.1f} MB, host {host >> 10:,} KiB, {free} of {pages} pages free"
        print(f"{name:>8} to {end:6,}: {slots / seconds:8,.1f} tokens/s, {held}", flush=True)
        times = []
    return made


def drifted(args: argparse.Namespace, rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """What grows, and what slows down, a line each."""
    first, last = ([row for row in rows if row["lap"] == lap] for lap in ("first", "last"))
    half = rows[len(rows) // 2 :]
    device = max(row["device"] for row in rows[len(first) :]) - first[-1]["device"]
    host = (half[-1]["resident"] - half[0]["resident"]) / (1 << 20)
    slower = [b["median_us"] / a["median_us"] - 1 for a, b in zip(first, last, strict=True)]
    each = ", ".join(f"{x:+.1%}" for x in slower)
    print(f"device {device:+,} bytes after the first lap, host {host:+.1f} MiB in the second half, last lap {each}")
    found = [f"the device's memory grew by {device:,} bytes after the first lap"] * (device > 0)
    found += [f"the process grew by {host:.1f} MiB in the second half"] * (host > args.may_grow)
    slow = isinstance(args.device, int) and max(slower) > args.may_slow
    return found + [f"the last lap is slower than the first: {each}"] * slow


def run(args: argparse.Namespace) -> int:
    """All laps; the exit status."""
    model = opened(args, slots=args.slots or 1, context=args.context)
    scheduler, slots, context = Scheduler(model.engine), model.engine.slots, model.engine.context
    count = min(context // 4, -(-args.tokens // 5))
    prompt, laps = context - count, max(3, -(-args.tokens // count))
    print(f"{model.name}: {slots} slots, context {context:,}: {laps} laps of {count:,} tokens", flush=True)
    rows: list[dict[str, Any]] = []
    for chunk in model.engine.chunks:  # what is set up when it is first used
        for sampling in (GREEDY, SAMPLED):
            lap(args, scheduler, [], "begin", min(chunk, context - 4), 4, sampling, f"begin {chunk}", slots)
    first = lap(args, scheduler, rows, "first", prompt, count, GREEDY, 0, slots)
    for i in range(1, laps - 1):
        lap(args, scheduler, rows, str(i + 1), prompt, count, SAMPLED if i % 2 else GREEDY, i, slots)
    last = lap(args, scheduler, rows, "last", prompt, count, GREEDY, 0, slots)
    if context <= args.tokens:
        lap(args, scheduler, rows, "whole", 1, context - 1, GREEDY, "whole", 1)
    # Where more of a prompt was still in the cache, other plans have read the rest, which may round differently.
    pairs = [(a.tokens, b.tokens) for a, b in zip(first, last, strict=True) if a.reused == b.reused]
    distinct = len({token for tokens, _ in pairs for token in tokens[prompt:]})
    print(f"{len(pairs)} of {slots} sequences of the last lap are to be the first one's; {distinct} different tokens")
    wrong = drifted(args, rows)
    wrong += ["the last lap's tokens are not the first one's"] * any(a != b for a, b in pairs)
    wrong += ["pages or slots are not free at the end"] * (not all_free(scheduler))
    if args.output:
        sizes = {"slots": slots, "context": context, "prompt": prompt, "new": count}
        save(args, model=model.name, sizes=sizes, rows=rows, problems=wrong)
    model.close()
    print("\n".join(f"error: {line}" for line in wrong) or "nothing drifts", flush=True)
    return int(bool(wrong))


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments(parser, "smollm2-135m")
    parser.set_defaults(context=8192)
    parser.add_argument("--tokens", type=int, default=10_000, help="of each slot, in all laps")
    parser.add_argument("--may-grow", type=float, default=4, help="MiB of the process in the second half")
    parser.add_argument("--may-slow", type=float, default=0.03, help="share of a turn's time")
    args = parser.parse_args()
    return run_main(lambda: run(args))


if __name__ == "__main__":
    sys.exit(main())
