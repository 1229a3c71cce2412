"""Attention of many queries beside cuDNN and FlashAttention-2 (as torch has them), each in CUDA graphs with the L2
cache cold, interleaved in one run.

    python benchmarks/attentions.py compile DIR [--shapes prefill] [--knobs block_kv=64]...
    python benchmarks/attentions.py run DIR [-o FILE.json] [--samples 40]     # on the GPU; needs no MLIR

`compile` makes one PTX file per shape and schedule (the default one, and each of `--knobs`); `run` checks every one
against FP32 math and times it beside `torch.nn.functional.scaled_dot_product_attention`. Times of causal shapes are
counted with half the products."""

from __future__ import annotations

import argparse
import json
import math
import sys
from pathlib import Path
from typing import Any

from schedules_tried import compile_all, compile_schedule, file_name

# batch, heads of queries, heads of keys, queries, keys, elements of a head, causal
SETS = {
    "prefill": [
        ("bf16", 4, 32, 32, 4096, 4096, 128, True), ("bf16", 1, 32, 32, 16384, 16384, 128, True),
        ("bf16", 4, 32, 32, 4096, 4096, 128, False), ("bf16", 4, 32, 32, 4096, 4096, 64, True),
        ("bf16", 1, 28, 4, 2048, 2048, 128, True), ("bf16", 1, 28, 4, 512, 512, 128, True),
    ],
    "main": [("bf16", 4, 32, 32, 4096, 4096, 128, True), ("bf16", 4, 32, 32, 4096, 4096, 64, True)],
    "odd": [("f16", 2, 8, 2, 1009, 1531, 128, True), ("bf16", 1, 16, 16, 777, 1300, 64, False),
            ("bf16", 2, 8, 8, 1024, 1024, 256, True)],
}  # fmt: skip


def module(case: tuple) -> tuple[Any, tuple]:
    """The module that computes one attention, and inputs of its shapes."""
    import torch

    dtype, batch, heads, kv_heads, queries, keys, dim, causal = case

    class Attention(torch.nn.Module):
        def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
            return torch.nn.functional.scaled_dot_product_attention(
                q, k, v, is_causal=causal, enable_gqa=heads != kv_heads
            )

    t = {"bf16": torch.bfloat16, "f16": torch.float16}[dtype]
    shapes = (batch, heads, queries, dim), (batch, kv_heads, keys, dim), (batch, kv_heads, keys, dim)
    return Attention().eval(), tuple(torch.empty(s, dtype=t) for s in shapes)


def name_of(case: tuple, knobs: str) -> str:
    """The file's name without suffix."""
    return file_name("_".join(str(int(x) if isinstance(x, bool) else x) for x in case), knobs)


def compile_case(case: tuple, knobs: str, folder: str) -> tuple[str, str]:
    """(file's name, "" or why there is none)."""
    return compile_schedule("attention", module(case), knobs, Path(folder) / name_of(case, knobs))


def case_of(name: str) -> tuple:
    """What `name_of` was made of."""
    dtype, *numbers = name.split("__")[0].split("_")
    return (dtype, *map(int, numbers[:-1]), numbers[-1] == "1")


def exact(q: Any, k: Any, v: Any, causal: bool) -> Any:
    """The result in FP32 math of the first batch's first heads of queries: those that share a head of keys, or two."""
    import torch

    group = max(q.shape[1] // k.shape[1], 1)
    count = max(group, 2)
    q = q[:1, :count].float()
    k, v = (x[:1, : -(-count // group)].float().repeat_interleave(group, 1)[:, :count] for x in (k, v))
    scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
    if causal:
        keep = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool, device="cuda").tril()
        scores = scores.masked_fill(~keep, -math.inf)
    return torch.softmax(scores, -1) @ v


def peers(causal: bool, grouped: bool) -> dict[str, Any]:
    """What to measure beside mlirc, by name."""
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel

    def arm(backend: Any) -> Any:
        def run(s: Any) -> Any:
            with sdpa_kernel(backend):
                return torch.nn.functional.scaled_dot_product_attention(*s, is_causal=causal, enable_gqa=grouped)

        return run

    return {"cudnn": arm(SDPBackend.CUDNN_ATTENTION), "flash2": arm(SDPBackend.FLASH_ATTENTION)}


def run_case(case: tuple, files: list[Path], samples: int, flush: Any) -> list[dict[str, Any]]:
    """One row per file of a case and per peer."""
    import torch

    from mlirc.bench import timing
    from mlirc.runtime.loading import load

    dtype, batch, heads, kv_heads, queries, keys, dim, causal = case
    t = {"bf16": torch.bfloat16, "f16": torch.float16}[dtype]
    elements = batch * dim * (2 * heads * queries + 2 * kv_heads * keys)
    work = 4 * batch * heads * queries * keys * dim // (2 if causal else 1)
    count, runs = timing.copies_for(2 * elements, work / 500e6)
    sets = []
    for _ in range(count):
        shapes = (batch, heads, queries, dim), (batch, kv_heads, keys, dim), (batch, kv_heads, keys, dim)
        sets.append(tuple(torch.randn(s, device="cuda").to(t) for s in shapes))
    want = exact(*sets[0], causal)

    def error(got: Any) -> float:
        return float((got[:1, : want.shape[1]].float() - want).norm() / want.norm())

    arms, own = [], {}
    for name, run in peers(causal, heads != kv_heads).items():
        try:
            own[name] = error(run(sets[0]))
            arms.append(timing.capture(name, run, sets, runs))
        except RuntimeError as e:
            print(f"{name}: {str(e)[:120]}", file=sys.stderr)
    for file in files:
        try:
            model = load(str(file), graph=False)
            for o in model.outputs:
                torch.from_dlpack(o).fill_(math.nan)
            model.bind(*sets[0])
            model.launch(torch.cuda.current_stream())
            torch.cuda.synchronize()
            got = torch.from_dlpack(model.outputs[0])
            own[file.stem] = error(got) if bool(got.isfinite().all()) else math.nan

            def launch(s: Any, model: Any = model) -> None:
                model.bind(*s)
                model.launch(torch.cuda.current_stream())

            arm = timing.capture(file.stem, launch, sets, runs)
            arm.keep = (arm.keep, model)  # a graph does not keep its kernels loaded
            arms.append(arm)
        except Exception as e:  # a bad schedule must not hide the others' figures
            print(f"{file.stem}: {type(e).__name__}: {str(e)[:200]}", file=sys.stderr)
    timed = timing.interleave(arms, samples, flush)
    return [
        {"case": list(case), "arm": n, "error": own[n], **s.to_json(), "tflops": work / s.median / 1e6}
        for n, s in timed.items()
    ]


def run_all(args: argparse.Namespace) -> None:
    """Times every file of a folder, and prints a line for each."""
    import torch

    from mlirc.bench import timing

    driver = torch.cuda.get_device_name(), torch.__version__
    print(*driver)
    flush, rows = timing.Flusher(), []
    files: dict[str, list[Path]] = {}
    for f in sorted(Path(args.folder).glob("*.ptx")):
        files.setdefault(f.stem.split("__")[0], []).append(f)
    for key, found in files.items():
        new = run_case(case_of(key), found, args.samples, flush)
        rows += new
        fastest = {r["arm"]: r["median_us"] for r in new}
        for r in new:
            ratio = fastest.get("cudnn", math.nan) / r["median_us"]
            print(
                f"{key:36s} {r['median_us']:9.1f} us {r['tflops']:4.0f} TF {ratio:.3f}x err {r['error']:.1e} "
                f"{r['arm'].partition('__')[2] or r['arm'].split('_')[0]}", flush=True,
            )  # fmt: skip
        torch.cuda.empty_cache()
    if args.output:
        Path(args.output).write_text(json.dumps(rows, indent=0))


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    sub = parser.add_subparsers(dest="do", required=True)
    c = sub.add_parser("compile")
    c.add_argument("folder")
    c.add_argument("--shapes", nargs="*", default=["prefill"], choices=list(SETS))
    c.add_argument("--knobs", nargs="*", default=[], help="knobs of the attention script; '' is the default schedule")
    c.add_argument("--jobs", type=int, default=2)
    r = sub.add_parser("run")
    r.add_argument("folder")
    r.add_argument("-o", "--output")
    r.add_argument("--samples", type=int, default=40)
    args = parser.parse_args()
    if args.do == "compile":
        compile_all(compile_case, [c for s in args.shapes for c in SETS[s]], args)
    else:
        run_all(args)


if __name__ == "__main__":
    main()
