"""Attention of one new token per sequence over a paged cache, beside cuDNN and FlashAttention-2 (as torch has them)
over contiguous keys and values of the same lengths, each in CUDA graphs with the L2 cache cold, interleaved in one run.

    python benchmarks/decode_attention.py compile DIR [--shapes anchors] [--knobs parts=16,block_kv=32]...
    python benchmarks/decode_attention.py run DIR [-o FILE.json] [--samples 40]     # on the GPU; needs no MLIR

`compile` makes one PTX file per shape and schedule (the default one, and each of `--knobs`); `run` checks every one
against FP32 math, with pages in any order, and times it."""

from __future__ import annotations

import argparse
import math
import sys
from pathlib import Path
from typing import Any

from attentions import exact, peers
from schedules_tried import arms_of, by_case, command_line, compile_all, compile_schedule, file_name, save

PAGE = 64  # tokens
# batch, heads of queries, heads of keys, tokens of each sequence, tokens that there is room for, elements of a head
SETS = {
    "anchors": [(1, 32, 8, 4096, 4096, 128), (1, 28, 4, 32768, 32768, 128), (64, 32, 8, 4096, 4096, 128)],
    # TinyLlama-1.1B, Llama-3.2-1B, SmolLM2-135M and Qwen2.5-7B at 1,024 tokens of a context of 1,536.
    "models": [(1, 32, 4, 1024, 1536, 64), (1, 32, 8, 1024, 1536, 64), (1, 9, 3, 1024, 1536, 64),
               (1, 28, 4, 1024, 1536, 128), (16, 32, 4, 1024, 1536, 64)],
    "odd": [(3, 32, 8, 1000, 4096, 128), (1, 32, 4, 1, 2048, 64)],
}  # fmt: skip


def shapes(case: tuple) -> list[tuple[int, ...]]:
    """Of queries, pools of keys and of values, pages and lengths."""
    batch, heads, kv_heads, _, room, dim = case
    each = -(-room // PAGE)
    pool = (batch * each + 1, kv_heads, PAGE, dim)
    return [(batch, heads, 1, dim), pool, pool, (batch, each), (batch,)]


def module(case: tuple) -> tuple[Any, tuple]:
    """The module that computes one attention, and inputs of its shapes."""
    import torch

    from mlirc.frontend.cached_attention import cached_attention

    class Attention(torch.nn.Module):
        def forward(self, q, keys, values, pages, lengths):  # type: ignore[no-untyped-def]
            return cached_attention(q, keys, values, pages, lengths, case[-1] ** -0.5)

    types = [torch.bfloat16] * 3 + [torch.int64] * 2
    return Attention().eval(), tuple(torch.empty(s, dtype=t) for s, t in zip(shapes(case), types, strict=True))


def compile_case(case: tuple, knobs: str, folder: str) -> tuple[str, str]:
    """(file's name, "" or why there is none)."""
    name = file_name("_".join(map(str, case)), knobs)
    return compile_schedule("cached_attention", module(case), knobs, Path(folder) / name)


def inputs(case: tuple) -> tuple:
    """Fresh inputs on the GPU, and keys and values as the peers take them."""
    import torch

    batch, _, kv_heads, length, _, dim = case
    q, keys, values = (torch.randn(s, device="cuda").to(torch.bfloat16) for s in shapes(case)[:3])
    each = shapes(case)[3][1]
    pages = (torch.randperm(batch * each, device="cuda") + 1).reshape(batch, each)
    whole = [p[pages].transpose(1, 2).reshape(batch, kv_heads, -1, dim)[:, :, :length].contiguous()
             for p in (keys, values)]  # fmt: skip
    return (q, keys, values, pages, torch.full((batch,), length, device="cuda")), (q, *whole)


def run_case(case: tuple, files: list[Path], samples: int, flush: Any) -> list[dict[str, Any]]:
    """One row per file of a case and per peer."""
    from mlirc.bench import timing

    batch, heads, kv_heads, length, _, dim = case
    read = 4 * batch * kv_heads * length * dim
    count, runs = timing.copies_for(read, read / 4e6)
    sets = [inputs(case) for _ in range(count)]
    want = exact(*sets[0][1], False)

    def error(got: Any) -> float:
        return float((got[:1, : want.shape[1]].to(want.dtype) - want).norm() / want.norm())

    arms, own = [], {}
    for name, run in peers(False, heads != kv_heads, "bf16").items():
        try:
            own[name] = error(run(sets[0][1]))
            arms.append(timing.capture(name, run, [s[1] for s in sets], runs))
        except RuntimeError as e:
            print(f"{name}: {str(e)[:120]}", file=sys.stderr)
    paged = [s[0] for s in sets]
    compiled, errors = arms_of(files, paged, runs, lambda got: error(got) if bool(got.isfinite().all()) else math.nan)
    timed = timing.interleave(arms + compiled, samples, flush)
    own |= errors
    return [
        {"case": list(case), "arm": n, "error": own[n], **s.to_json(), "tbytes": read / s.median / 1e6}
        for n, s in timed.items()
    ]


def run_all(args: argparse.Namespace) -> None:
    """Times every file of a folder, and prints a line for each."""
    import torch

    from mlirc.bench import timing

    print(torch.cuda.get_device_name(), torch.__version__)
    flush, rows = timing.Flusher(), []
    for key, found in by_case(args.folder).items():
        new = run_case(tuple(map(int, key.split("_"))), found, args.samples, flush)
        rows += new
        peer = min((r["median_us"] for r in new if r["arm"] in ("cudnn", "flash2")), default=math.nan)
        for r in new:
            arm = r["arm"].partition("__")[2] or ("default" if r["arm"] == key else r["arm"])
            print(
                f"{key:28s} {r['median_us']:8.2f} us {r['tbytes']:5.2f} TB/s {peer / r['median_us']:6.3f}x "
                f"err {r['error']:.1e} {arm}", flush=True,
            )  # fmt: skip
        torch.cuda.empty_cache()
    if args.output:
        save(args, rows)


def main() -> None:
    """The command line."""
    args = command_line("cached_attention", __doc__, SETS, samples=40)
    if args.do == "compile":
        compile_all(compile_case, args)
    else:
        run_all(args)


if __name__ == "__main__":
    main()
