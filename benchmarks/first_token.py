"""The reading of a prompt into an empty cache, up to the first token, with bf16 weights and with packed ones.

    python benchmarks/first_token.py compile DIR [--cases qwen2.5-7b.512 qwen2.5-7b.int4.512]
    python benchmarks/first_token.py run DIR [-o FILE.json] [--samples 20]      # on the GPU; needs no MLIR

A case is MODEL.TOKENS or MODEL.SCHEME.TOKENS: a model of `mlirc-bench generation`, one of the schemes of
`dependent_launch.py` for its weights, the head's, too, and the tokens of the prompt. Weights are made up on the GPU;
all layers of the model are there. Plans of one number of tokens are run in turn, captured in graphs."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from dependent_launch import SCHEMES, tensors_of
from schedules_tried import by_case, save, time_of

CASES = tuple(f"qwen2.5-7b{scheme}.{tokens}" for tokens in (512, 2048) for scheme in ("", ".int4", ".int8"))


def job_of(case: str) -> Any:
    """The compilation of the plan that reads a case's prompt, not lowered yet."""
    from mlirc.bench.generation.build import open_generating
    from mlirc.bench.generation.cases import GENERATING, generation_case
    from mlirc.driver.compilation import Compilation
    from mlirc.driver.kernel_cache import KernelCache
    from mlirc.files.kept import cache_folder
    from mlirc.generate.export import exported, open_generator
    from mlirc.targets import get_target

    name, scheme, tokens = parts_of(case)
    model = dict(zip(("model", "config_class", "config"), GENERATING[name], strict=True))
    described = generation_case(name, model, "bf16", context=tokens, batch=1, prefill=tokens)
    generator = open_generator(
        open_generating(described), slots=1, context=tokens, chunks=[1, tokens], quantize=SCHEMES.get(scheme)
    )
    job = Compilation(case, get_target("sm_90a"), (), KernelCache(cache_folder()), helpers=0)
    job.import_source(exported(generator, f"prefill-{tokens}"))
    return job


def parts_of(case: str) -> tuple[str, str, int]:
    """The model of a case, its scheme ("": bf16), and its tokens."""
    name, _, tokens = case.rpartition(".")
    scheme = next((s for s in SCHEMES if name.endswith(f".{s}")), "")
    return name.removesuffix(f".{scheme}") if scheme else name, scheme, int(tokens)


def compile_cases(args: argparse.Namespace) -> None:
    """Writes the plan of every case, without weights."""
    Path(args.folder).mkdir(parents=True, exist_ok=True)
    for case in args.cases:
        job = job_of(case)
        job.lower("ptx")
        job.write(Path(args.folder) / f"{case}.ptx", weights=False)
        print(f"{case}: {len(job.plan.launches)} launches", flush=True)


def load_case(file: Path) -> Any:
    """A loaded plan with weights made up, bound to a prompt of all its tokens."""
    import torch

    from mlirc.runtime.loading import load, read_model

    plan = read_model(file)[1]
    model = load(str(file), tensors_of(plan))
    [(_, tokens)] = [spec.shape for spec in plan.inputs if spec.name == "tokens"]
    numbers = {"slot": 0, "start": 0, "count": tokens}
    prompt = torch.arange(1, 1 + tokens, device="cuda")[None]
    model.bind(tokens=prompt, **{name: torch.tensor(n, device="cuda") for name, n in numbers.items()})
    return model


def run_all(args: argparse.Namespace) -> None:
    """Times every case of a folder, those of one number of tokens in turn, and prints a line for each."""
    import torch

    from mlirc.bench.timing import summarize

    rows: list[dict[str, Any]] = []
    files = {f.stem: f for fs in by_case(args.folder).values() for f in fs}
    with torch.cuda.stream(torch.cuda.Stream()):
        for tokens in sorted({parts_of(case)[2] for case in files}):
            models = {case: load_case(f) for case, f in files.items() if parts_of(case)[2] == tokens}
            times: dict[str, list[float]] = {case: [] for case in models}
            for number in range(args.samples + 2):
                for case, model in models.items():
                    us = time_of(model, 3)
                    times[case] += [us] if number >= 2 else []
            own = {case: summarize(t) for case, t in times.items()}
            base = next((s.median for case, s in own.items() if not parts_of(case)[1]), None)
            for case, s in own.items():
                ratio = f"{s.median / base:.3f} of bf16's" if base else ""
                print(
                    f"{case:24s} {s.median / 1e3:8.3f} ms, {len(models[case].plan.launches)} launches {ratio}",
                    flush=True,
                )
                rows.append({"case": case, **s.to_json()})
            for model in models.values():
                model.close()
            torch.cuda.empty_cache()
    if args.output:
        save(args, rows)


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
    r.add_argument("--samples", type=int, default=20)
    r.add_argument("--commit", help="the source's commit, for what is written")
    args = parser.parse_args()
    (compile_cases if args.do == "compile" else run_all)(args)


if __name__ == "__main__":
    main()
