"""Attention of many queries beside cuDNN and FlashAttention-2 (as torch has them; in f32 what torch takes by itself),
each in CUDA graphs with the L2 cache cold, interleaved in one run.

    python benchmarks/attentions.py compile DIR [--shapes prefill] [--knobs block_kv=64]...
    python benchmarks/attentions.py run DIR [-o FILE.json] [--samples 40]     # on the GPU; needs no MLIR

`compile` makes one PTX file per shape and schedule (the default one, and each of `--knobs`); `run` checks every one
against FP32 math (f32: FP64) and times it beside `torch.nn.functional.scaled_dot_product_attention`. Times of causal
shapes are counted with half the products."""

from __future__ import annotations

import argparse
import contextlib
import math
import sys
from pathlib import Path
from typing import Any

from schedules_tried import arms_of, by_case, compile_schedule, file_name, program, save

# batch, heads of queries, heads of keys, queries, keys, elements of a head, causal
SETS = {
    "prefill": [
        ("bf16", 4, 32, 32, 4096, 4096, 128, True),
        ("bf16", 1, 32, 32, 16384, 16384, 128, True),
        ("bf16", 4, 32, 32, 4096, 4096, 128, False),
        ("bf16", 4, 32, 32, 4096, 4096, 64, True),
        ("bf16", 1, 28, 4, 2048, 2048, 128, True),
        ("bf16", 1, 28, 4, 512, 512, 128, True),
    ],
    "main": [("bf16", 4, 32, 32, 4096, 4096, 128, True), ("bf16", 4, 32, 32, 4096, 4096, 64, True)],
    "odd": [
        ("f16", 2, 8, 2, 1009, 1531, 128, True),
        ("bf16", 1, 16, 16, 777, 1300, 64, False),
        ("bf16", 2, 8, 8, 1024, 1024, 256, True),
    ],
    "few": [
        ("bf16", 1, 32, 8, 1, 4096, 128, False),
        ("bf16", 1, 28, 4, 1, 32768, 128, False),
        ("bf16", 64, 32, 8, 1, 4096, 128, False),
        ("bf16", 8, 32, 8, 4, 4096, 128, False),
        ("bf16", 1, 16, 16, 32, 8191, 64, False),
    ],
    "fp32": [
        ("f32", 1, 32, 4, 32, 32, 64, True),
        ("f32", 1, 28, 4, 32, 32, 128, True),
        ("f32", 1, 32, 4, 128, 128, 64, True),
        ("f32", 1, 28, 4, 128, 128, 128, True),
        ("f32", 1, 32, 4, 512, 512, 64, True),
        ("f32", 1, 28, 4, 512, 512, 128, True),
        ("f32", 1, 28, 28, 512, 512, 128, True),
        ("f32", 2, 16, 16, 2048, 2048, 64, False),
    ],
}
DTYPES = {"bf16": "bfloat16", "f16": "float16", "f32": "float32"}  # fmt: skip


def module(case: tuple) -> tuple[Any, tuple]:
    """The module that computes one attention, and inputs of its shapes."""
    import torch

    dtype, batch, heads, kv_heads, queries, keys, dim, causal = case

    class Attention(torch.nn.Module):
        def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
            return torch.nn.functional.scaled_dot_product_attention(
                q, k, v, is_causal=causal, enable_gqa=heads != kv_heads
            )

    t = getattr(torch, DTYPES[dtype])
    return Attention().eval(), tuple(torch.empty(s, dtype=t) for s in shapes(case))


def shapes(case: tuple) -> tuple[tuple[int, ...], ...]:
    """Of queries, keys and values."""
    _, batch, heads, kv_heads, queries, keys, dim, _ = case
    return (batch, heads, queries, dim), (batch, kv_heads, keys, dim), (batch, kv_heads, keys, dim)


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
    """The result in FP32 math (FP64 for f32) of the first batch's first heads of queries: those that share a head of
    keys, or two."""
    import torch

    group = max(q.shape[1] // k.shape[1], 1)
    count = max(group, 2)
    wide = torch.float64 if q.dtype == torch.float32 else torch.float32
    q = q[:1, :count].to(wide)
    k, v = (x[:1, : -(-count // group)].to(wide).repeat_interleave(group, 1)[:, :count] for x in (k, v))
    scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
    if causal:
        keep = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool, device="cuda").tril()
        scores = scores.masked_fill(~keep, -math.inf)
    return torch.softmax(scores, -1) @ v


def peers(causal: bool, grouped: bool, dtype: str) -> dict[str, Any]:
    """What to measure beside mlirc, by name: of f32 what PyTorch takes by itself."""
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel

    def arm(backend: Any) -> Any:
        def run(s: Any) -> Any:
            with sdpa_kernel(backend) if backend is not None else contextlib.nullcontext():
                return torch.nn.functional.scaled_dot_product_attention(*s, is_causal=causal, enable_gqa=grouped)

        return run

    if dtype == "f32":
        return {"eager": arm(None)}
    return {"cudnn": arm(SDPBackend.CUDNN_ATTENTION), "flash2": arm(SDPBackend.FLASH_ATTENTION)}


def run_case(case: tuple, files: list[Path], samples: int, flush: Any) -> list[dict[str, Any]]:
    """One row per file of a case and per peer."""
    import torch

    from mlirc.bench import timing

    dtype, batch, heads, kv_heads, queries, keys, dim, causal = case
    t = getattr(torch, DTYPES[dtype])
    elements = batch * dim * (2 * heads * queries + 2 * kv_heads * keys)
    work = 4 * batch * heads * queries * keys * dim // (2 if causal else 1)
    count, runs = timing.copies_for(t.itemsize * elements, work / 500e6)
    sets = []
    for _ in range(count):
        sets.append(tuple(torch.randn(s, device="cuda").to(t) for s in shapes(case)))
    want = exact(*sets[0], causal)

    def error(got: Any) -> float:
        return float((got[:1, : want.shape[1]].to(want.dtype) - want).norm() / want.norm())

    arms, own = [], {}
    for name, run in peers(causal, heads != kv_heads, dtype).items():
        try:
            own[name] = error(run(sets[0]))
            arms.append(timing.capture(name, run, sets, runs))
        except RuntimeError as e:
            print(f"{name}: {str(e)[:120]}", file=sys.stderr)
    compiled, errors = arms_of(files, sets, runs, lambda got: error(got) if bool(got.isfinite().all()) else math.nan)
    arms, own = arms + compiled, own | errors
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
    for key, found in by_case(args.folder).items():
        new = run_case(case_of(key), found, args.samples, flush)
        rows += new
        fastest = {r["arm"]: r["median_us"] for r in new}
        for r in new:
            ratio = fastest.get("cudnn", fastest.get("eager", math.nan)) / r["median_us"]
            print(
                f"{key:36s} {r['median_us']:9.1f} us {r['tflops']:4.0f} TF {ratio:.3f}x err {r['error']:.1e} "
                f"{r['arm'].partition('__')[2] or r['arm'].split('_')[0]}", flush=True,
            )  # fmt: skip
        torch.cuda.empty_cache()
    if args.output:
        save(args, rows)


def main() -> None:
    """The command line."""
    program("attention", __doc__, SETS, 40, compile_case, run_all)


if __name__ == "__main__":
    main()
