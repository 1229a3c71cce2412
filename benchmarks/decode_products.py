"""The products of a step of decoding, one row each, after each other as in a model, by other schedules.

    python benchmarks/decode_products.py compile DIR [--models smollm2-135m.bf16 ...] [--knobs down:rows=2/early ...]
    python benchmarks/decode_products.py run DIR [-o FILE.json] [--samples 11]      # on the GPU; needs no MLIR

A chain is some layers of a model without attention: norm and q/k/v, o, norm and gate and up, down; then the head. The
weights are made up on the GPU, exceed its L2 cache, and are the same in every arm. `--knobs` are for one of the
products (`qkv`, `o`, `up`, `down`, `head`), or for `all`; `early`, or `early:up,down`, has all launches, or those,
begin before the ones in front of them have ended; slashes stand between several of these. What differs between an arm
and the first one, over the layers, is what that costs or gains in the chain: the launches' gaps are in it, which a
product alone does not show."""

from __future__ import annotations

import argparse
import sys
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from schedules_tried import by_case, save, time_of


class Shape(NamedTuple):
    """Sizes of a model's layer, and how many of them exceed the L2 cache."""

    layers: int
    hidden: int
    queries: int
    keys: int
    inner: int
    vocabulary: int
    bias: bool = False


SHAPES = {
    "smollm2-135m": Shape(30, 576, 576, 192, 1536, 49152),
    "tinyllama-1.1b": Shape(6, 2048, 2048, 256, 5632, 32000),
    "llama-3.2-1b": Shape(4, 2048, 2048, 512, 8192, 128256),
    "qwen2.5-7b": Shape(3, 3584, 3584, 512, 18944, 152064, True),
}
MODELS = ("smollm2-135m.bf16", "tinyllama-1.1b.bf16", "tinyllama-1.1b.f32", "llama-3.2-1b.bf16", "qwen2.5-7b.bf16")
RUNS = 10  # of a chain, in a row
PARTS = ("qkv", "o", "up", "down", "head")


# -- where MLIR is


def chain(name: str) -> tuple[Any, tuple]:
    """A module of a model's products, with an input."""
    import torch
    from torch import nn

    shape, dtype = SHAPES[name.rpartition(".")[0]], {"bf16": torch.bfloat16, "f32": torch.float32}[name.split(".")[-1]]

    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.before, self.behind = nn.RMSNorm(shape.hidden, eps=1e-5), nn.RMSNorm(shape.hidden, eps=1e-5)
            self.qkv = nn.Linear(shape.hidden, shape.queries + 2 * shape.keys, bias=shape.bias)
            self.o = nn.Linear(shape.queries, shape.hidden, bias=False)
            self.gate = nn.Linear(shape.hidden, shape.inner, bias=False)
            self.up = nn.Linear(shape.hidden, shape.inner, bias=False)
            self.down = nn.Linear(shape.inner, shape.hidden, bias=False)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = x + self.o(self.qkv(self.before(x))[:, : shape.queries])
            h = self.behind(x)
            return x + self.down(nn.functional.silu(self.gate(h)) * self.up(h))

    class Chain(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(Layer() for _ in range(shape.layers))
            self.norm, self.head = nn.RMSNorm(shape.hidden), nn.Linear(shape.hidden, shape.vocabulary, bias=False)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for layer in self.layers:
                x = layer(x)
            return self.head(self.norm(x))

    with torch.device("meta"):
        module = Chain().to(dtype)
    return module.to_empty(device="cpu"), (torch.zeros(1, shape.hidden, dtype=dtype),)


def part_names(job: Any) -> dict[str, str]:
    """A product's kernel by its part's name, of a compilation that has its plan: told by the weight that it reads."""
    found: dict[str, str] = {}
    for launch in job.plan.launches:
        for argument in launch.args:
            if argument.space == "weight":
                name = job.plan.weights[argument.index].name
                found |= {part: launch.kernel for part in PARTS if f".{name}".endswith(f".{part}.weight")}
    return found


def without_plan(text: str) -> str:
    """A PTX file's text without the plan in it."""
    return "".join(line for line in text.splitlines(keepends=True) if not line.startswith("//mlirc: "))


def compile_arms(name: str, arms: list[str], folder: str) -> list[str]:
    """Writes a model's chain by each of `arms`, "" for the default schedules; what was refused."""
    from mlirc.driver.compilation import Compilation
    from mlirc.driver.kernel_cache import KernelCache
    from mlirc.errors import MlircError
    from mlirc.files.kept import cache_folder
    from mlirc.targets import get_target

    job = Compilation(name, get_target("sm_90a"), (), KernelCache(cache_folder()), helpers=0)
    job.import_module(*chain(name), {})
    job.lower("ptx")
    names, refused = part_names(job), []
    for text in arms:
        try:
            ptx = arm_text(job, names, text) if text else job.ptx
        except MlircError as e:
            refused.append(f"{name} {text}: {str(e)[:160]}")
            continue
        label = text.replace(":", "=").replace(",", "+").replace("/", "&") or "default"
        Path(folder, f"{name}__{label}.ptx").write_text(ptx)
    return refused


def arm_text(job: Any, names: dict[str, str], text: str) -> str:
    """The PTX file of one arm: `PART:knobs`, `early` and `early:PARTS`, with slashes between them."""
    from mlirc.runtime import plan_file

    schedules, early = [], None
    for one in text.split("/"):
        part, _, value = one.partition(":")
        if part == "early":
            schedules.append("graph:dependent=true")
            early = value
        else:
            schedules += [f"{names[p]}:{value}" for p in names if part in (p, "all")]
    made = job.reschedule(schedules)
    if not early:
        return made.ptx
    begin = {names[p] for p in early.split(",")}
    steps = [replace(s, dependent=s.kernel in begin) if hasattr(s, "dependent") else s for s in made.plan.steps]
    return plan_file.embed(without_plan(made.ptx), replace(made.plan, steps=steps))


def compile_all(args: argparse.Namespace) -> None:
    """Compiles the chains of `args.models` by all arms, `args.jobs` processes at a time."""
    Path(args.folder).mkdir(parents=True, exist_ok=True)
    with ProcessPoolExecutor(args.jobs) as pool:
        arms = ["", *args.knobs]
        each = max(8, -(-len(arms) * len(args.models) // args.jobs))  # a process's: importing costs as much as some
        parts = [arms[i : i + each] for i in range(0, len(arms), each)]
        jobs = [pool.submit(compile_arms, name, part, args.folder) for name in args.models for part in parts]
        for job in jobs:
            print("\n".join(job.result()) or "ok", flush=True)


# -- where the GPU is


def tensors_of(plan: Any) -> dict[str, Any]:
    """Random weights by name, on the GPU; norms' scales around 1."""
    import torch

    draw, made = torch.Generator("cuda").manual_seed(0), {}
    for spec in plan.weights:
        if spec.kind == "weight":
            found = torch.randn(spec.shape, device="cuda", generator=draw)
            found = found / spec.shape[-1] ** 0.5 if len(spec.shape) > 1 else 1 + found / 8
            made[spec.name] = found.to({"bf16": torch.bfloat16, "f32": torch.float32}[spec.dtype])
    return made


def right(name: str, tensors: dict[str, Any], x: Any) -> Any:
    """The chain's result by PyTorch in FP32."""
    import torch
    from torch.nn.functional import linear, rms_norm, silu

    shape = SHAPES[name.rpartition(".")[0]]

    def norm(x: Any, weight: str, eps: float) -> Any:
        return rms_norm(x, (shape.hidden,), tensors[weight].float(), eps)

    def product(x: Any, layer: str) -> Any:
        bias = tensors.get(f"{layer}.bias")
        return linear(x, tensors[f"{layer}.weight"].float(), None if bias is None else bias.float())

    x = x.float()
    for i in range(shape.layers):
        at = f"layers.{i}"
        x = x + product(product(norm(x, f"{at}.before.weight", 1e-5), f"{at}.qkv")[:, : shape.queries], f"{at}.o")
        h = norm(x, f"{at}.behind.weight", 1e-5)
        x = x + product(silu(product(h, f"{at}.gate")) * product(h, f"{at}.up"), f"{at}.down")
    eps = torch.finfo(torch.bfloat16 if name.endswith("bf16") else torch.float32).eps
    return product(norm(x, "norm.weight", eps), "head")


def run_model(name: str, files: list[Path], samples: int) -> list[dict[str, Any]]:
    """Every arm of a model: its error beside FP32, and its time, all in turn."""
    import torch

    from mlirc.bench.timing import summarize
    from mlirc.runtime.loading import load, read_model

    plan = read_model(files[0])[1]
    tensors = tensors_of(plan)
    hidden = SHAPES[name.rpartition(".")[0]].hidden
    x = torch.randn(1, hidden, device="cuda").to(torch.bfloat16 if name.endswith("bf16") else torch.float32)
    want, arms, errors = right(name, tensors, x), {}, {}
    for file in files:
        arm = file.stem.split("__")[1]
        try:
            model = load(str(file), tensors)
            model.bind(x)
            torch.from_dlpack(model.outputs[0]).view(torch.uint8).fill_(255)
            for _ in range(5):
                model.launch(torch.cuda.current_stream())
            torch.cuda.synchronize()
            got = torch.from_dlpack(model.outputs[0]).float()
            errors[arm] = float((got - want).norm() / want.norm())
            arms[arm] = model
        except Exception as e:  # a bad schedule must not hide the others' figures
            print(f"{file.stem}: {type(e).__name__}: {str(e)[:200]}", file=sys.stderr)
    times: dict[str, list[float]] = {arm: [] for arm in arms}
    for number in range(samples + 2):
        for arm, model in arms.items():
            us = time_of(model, RUNS)
            if number >= 2:
                times[arm].append(us)
    rows = [{"case": name, "arm": arm, "error": errors[arm], "grids": grids(model.plan),
             **summarize(times[arm]).to_json()} for arm, model in arms.items()]  # fmt: skip
    for model in arms.values():
        model.close()
    return rows


def grids(plan: Any) -> list[list[int]]:
    """Blocks and threads of the launches of a layer in the middle, and of the last one."""
    few = plan.launches[5:10] + plan.launches[-1:]
    return [[step.grid[0], step.block[0]] for step in few]


def run_all(args: argparse.Namespace) -> None:
    """Times every chain of a folder, and prints a line for each arm: what it costs of a layer (of the head: of one)."""
    import torch

    torch.backends.cuda.matmul.allow_tf32 = False
    rows: list[dict[str, Any]] = []
    with torch.cuda.stream(torch.cuda.Stream()):
        for name, files in by_case(args.folder).items():
            new = run_model(name, sorted(files, key=lambda f: (not f.stem.endswith("__default"), f.stem)), args.samples)
            rows += new
            layers, base = SHAPES[name.rpartition(".")[0]].layers, new[0]["median_us"]
            gate = 2e-2 if name.endswith("bf16") else 1e-5
            for r in new:
                per = 1 if r["arm"].startswith("head") else layers
                print(
                    f"{name:20s} {r['arm']:40s} {r['median_us']:9.2f} us ({r['p10_us']:.2f}, {r['p90_us']:.2f}), "
                    f"{(r['median_us'] - base) / per:+7.3f} | {r['error']:.1e}{' WRONG' * (not r['error'] < gate)}",
                    flush=True,
                )  # fmt: skip
            if args.output:
                save(args, rows)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    sub = parser.add_subparsers(dest="do", required=True)
    c = sub.add_parser("compile")
    c.add_argument("folder")
    c.add_argument("--models", nargs="*", default=list(MODELS), choices=MODELS)
    c.add_argument(
        "--knobs", nargs="*", default=[], help="PART:knobs of matvec, early, early:PARTS; or several, with / between"
    )
    c.add_argument("--jobs", type=int, default=2)
    r = sub.add_parser("run")
    r.add_argument("folder")
    r.add_argument("-o", "--output")
    r.add_argument("--samples", type=int, default=11)
    r.add_argument("--commit", help="the source's commit, for what is written")
    args = parser.parse_args()
    (compile_all if args.do == "compile" else run_all)(args)


if __name__ == "__main__":
    main()
