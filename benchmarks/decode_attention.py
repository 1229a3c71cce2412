"""Attention of one new token over a cache in pages, as a step of decoding calls it, beside cuDNN and FlashAttention-2
(as torch has them), which read keys and values without pages; in CUDA graphs with the L2 cache cold, interleaved in one
run.

    python benchmarks/decode_attention.py compile DIR [--shapes odd] [--knobs block_kv=64]...
    python benchmarks/decode_attention.py run DIR [-o FILE.json] [--samples 100]     # on the GPU; needs no MLIR

`compile` makes one PTX file per shape and schedule (the default one, and each of `--knobs`); `run` checks every one
against FP32 math (f32: FP64) and times it. A peer is called in two ways: `cudnn`, `flash2` with `enable_gqa`, and
`cudnn folded`, `flash2 folded` with the queries that share a head of keys as rows of one head. The rate is of the keys
and values of the sequences, once."""

from __future__ import annotations

import contextlib
import math
import sys
from pathlib import Path
from typing import Any

from attentions import DTYPES
from schedules_tried import arms_of, by_case, compile_schedule, file_name, program, save

# batch, heads of queries, heads of keys, keys of each sequence, elements of a head, tokens of a page[, room for keys]
SETS = {
    "decode": [
        ("bf16", 1, 32, 8, 4096, 128, 64),
        ("bf16", 1, 28, 4, 32768, 128, 64),
        ("bf16", 64, 32, 8, 4096, 128, 64),
    ],
    "models": [
        ("bf16", 1, 9, 3, 1024, 64, 64),
        ("bf16", 1, 32, 4, 1024, 64, 64),
        ("bf16", 1, 28, 4, 1024, 128, 64),
        ("bf16", 16, 28, 4, 1024, 128, 64),
        ("bf16", 16, 32, 4, 1024, 64, 64),
        ("f32", 1, 32, 4, 1024, 64, 64),
        ("bf16", 1, 9, 3, 1024, 64, 64, 1536),
        ("bf16", 1, 28, 4, 1024, 128, 64, 1536),
    ],
    "odd": [("f16", 3, 14, 2, 1009, 64, 16), ("f32", 1, 7, 7, 517, 80, 32)],
}


def module(case: tuple) -> tuple[Any, tuple]:
    """The module that computes one attention, and inputs of its shapes."""
    import torch

    from mlirc.frontend.cached_attention import cached_attention

    class Attention(torch.nn.Module):
        def forward(self, q: Any, keys: Any, values: Any, pages: Any, lengths: Any) -> Any:
            return cached_attention(q, keys, values, pages, lengths, case[5] ** -0.5)

    return Attention().eval(), inputs(case, 0, "cpu")


def inputs(case: tuple, seed: int, device: str) -> tuple:
    """Queries [B,Hq,1,D], pools of keys and values [pages,Hkv,P,D], the pages of each sequence in no order, lengths."""
    import torch

    dtype, batch, heads, kv_heads, keys, dim, page, *room = case
    generator = torch.Generator(device).manual_seed(seed)
    each = -(-max(keys, *room, 1) // page)
    count = batch * each + 1

    def normal(*shape: int) -> Any:
        return torch.randn(shape, generator=generator, device=device).to(getattr(torch, DTYPES[dtype]))

    pages = torch.randperm(count - 1, generator=generator, device=device)[: batch * each].view(batch, each) + 1
    lengths = torch.full((batch,), keys, device=device)
    return normal(batch, heads, 1, dim), normal(count, kv_heads, page, dim), normal(count, kv_heads, page, dim), \
        pages, lengths  # fmt: skip


def gathered(case: tuple, given: tuple) -> tuple:
    """Queries, and keys and values as [B,Hkv,keys,D]."""
    q, *pools, pages, _ = given
    return q, *(pool[pages].transpose(1, 2).flatten(2, 3)[:, :, : case[4]].contiguous() for pool in pools)


def name_of(case: tuple, knobs: str) -> str:
    """The file's name without suffix."""
    return file_name("_".join(map(str, case)), knobs)


def case_of(name: str) -> tuple:
    """What `name_of` was made of."""
    dtype, *numbers = name.split("__")[0].split("_")
    return (dtype, *map(int, numbers))


def compile_case(case: tuple, knobs: str, folder: str) -> tuple[str, str]:
    """(file's name, "" or why there is none)."""
    return compile_schedule("cached_attention", module(case), knobs, Path(folder) / name_of(case, knobs))


def exact(q: Any, k: Any, v: Any) -> Any:
    """The result of the first sequence in FP32 math (FP64 for f32)."""
    import torch

    wide = torch.float64 if q.dtype == torch.float32 else torch.float32
    group = q.shape[1] // k.shape[1]
    q, k, v = q[:1].to(wide), *(x[:1].to(wide).repeat_interleave(group, 1) for x in (k, v))
    return torch.softmax(q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1]), -1) @ v


def grouped(backend: Any) -> Any:
    """SDPA of a backend, called with heads of keys that several heads of queries share."""
    import torch
    from torch.nn.attention import sdpa_kernel

    def run(s: tuple) -> Any:
        with sdpa_kernel(backend):
            return torch.nn.functional.scaled_dot_product_attention(*s, enable_gqa=s[0].shape[1] != s[1].shape[1])

    return run


def folded(backend: Any) -> Any:
    """The same with the queries that share a head of keys as rows of one head; None takes what PyTorch takes."""
    import torch
    from torch.nn.attention import sdpa_kernel

    def run(s: tuple) -> Any:
        q, k, v = s
        with contextlib.nullcontext() if backend is None else sdpa_kernel(backend):
            rows = q.view(q.shape[0], k.shape[1], -1, q.shape[3])
            return torch.nn.functional.scaled_dot_product_attention(rows, k, v).view(q.shape)

    return run


def peers() -> dict[str, Any]:
    """What to measure beside mlirc, by name: functions of queries, keys and values."""
    from torch.nn.attention import SDPBackend

    backends = {"cudnn": SDPBackend.CUDNN_ATTENTION, "flash2": SDPBackend.FLASH_ATTENTION}
    backends |= {"efficient": SDPBackend.EFFICIENT_ATTENTION}
    calls = {"": grouped, " folded": folded}
    return {name + how: call(backend) for name, backend in backends.items() for how, call in calls.items()}


def run_case(case: tuple, files: list[Path], samples: int, flush: Any, device: str = "cuda") -> list[dict[str, Any]]:
    """One row per file of a case and per peer."""
    from mlirc.bench import timing

    dtype, batch, heads, kv_heads, keys, dim = case[:6]
    width = 4 if dtype == "f32" else 2
    moved = width * dim * batch * (2 * kv_heads * keys + 2 * heads)
    count, runs = timing.copies_for(moved, moved / 4e6)
    sets = [inputs(case, i, device) for i in range(count)]
    plain = [gathered(case, s) for s in sets]
    want = exact(*plain[0])

    def error(got: Any) -> float:
        return float((got[:1].to(want.dtype) - want).norm() / want.norm())

    arms, own = [], {}
    for name, run in peers().items():
        try:
            own[name] = error(run(plain[0]))
            arms.append(timing.capture(name, run, plain, runs))
        except RuntimeError as e:
            print(f"{name}: {str(e)[:120]}", file=sys.stderr)
    compiled, errors = arms_of(files, sets, runs, lambda got: error(got) if bool(got.isfinite().all()) else math.nan)
    timed = timing.interleave(arms + compiled, samples, flush)
    own |= errors
    return [
        {"case": list(case), "arm": n, "error": own[n], **s.to_json(), "gb_per_s": moved / s.median / 1e3}
        for n, s in timed.items()
    ]


def run_all(args: Any) -> None:
    """Times every file of a folder, and prints a line for each: the last ratio is to the fastest peer."""
    import torch

    from mlirc.bench import timing

    print(torch.cuda.get_device_name(), torch.__version__)
    flush, rows = timing.Flusher(), []
    for key, found in by_case(args.folder).items():
        new = run_case(case_of(key), found, args.samples, flush)
        rows += new
        best = min((r["median_us"] for r in new if not r["arm"].startswith(key)), default=math.nan)
        for r in new:
            shown = r["arm"].partition("__")[2] or r["arm"].replace(key, "mlirc")
            print(
                f"{key:30s} {r['median_us']:9.1f} us {r['gb_per_s']:6.0f} GB/s {best / r['median_us']:.3f}x "
                f"err {r['error']:.1e} {shown}", flush=True,
            )  # fmt: skip
        torch.cuda.empty_cache()
    if args.output:
        save(args, rows)


def main() -> None:
    """The command line."""
    program("cached_attention", __doc__, SETS, 100, compile_case, run_all)


if __name__ == "__main__":
    main()
