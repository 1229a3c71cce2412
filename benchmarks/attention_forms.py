"""Other forms of attention beside PyTorch's: `flex_attention` over listed blocks, attention that returns its
log-sum-exp, and sigmoid attention; each in CUDA graphs with the L2 cache cold, interleaved in one run.

    python benchmarks/attention_forms.py compile DIR [--shapes forms]
    python benchmarks/attention_forms.py run DIR [-o FILE.json] [--samples 20] [--compiled]    # on the GPU

With `--compiled` beside `torch.compile`, too. Errors are relative (Frobenius) to FP32 math of the first two heads."""

from __future__ import annotations

import argparse
import math
import sys
from pathlib import Path
from typing import Any

from schedules_tried import arms_of, by_case, compile_schedule, file_name, program, save

# form, heads, tokens, elements of a head, percent of the blocks that are listed (100: no list)
SETS = {
    "forms": [
        ("documents", 16, 2048, 128, 25),
        ("lse", 16, 4096, 128, 100),
        ("lse", 16, 16384, 128, 100),
        ("sigmoid", 16, 4096, 128, 100),
        ("sigmoid", 16, 16384, 128, 100),
    ],
    "lists": [  # that the lists leave blocks out of what mlirc computes is yet to come: it computes every one
        ("documents", 16, 4096, 128, 10),
        ("documents", 16, 4096, 128, 25),
        ("blocks", 16, 4096, 128, 25),
    ],
}
BLOCK = 128


def documents_of(tokens: int, percent: int) -> Any:
    """The document of each token, i64: documents of equal lengths, no multiples of a block, which see `percent` of all
    pairs or so."""
    import torch

    return torch.arange(tokens) // (tokens * percent // 100 - 37)


def listed(tokens: int, percent: int) -> Any:
    """bool [blocks, blocks]: which blocks of keys the queries of a block see, drawn at random, each one its own."""
    import torch

    count = tokens // BLOCK
    drawn = torch.rand(count, count, generator=torch.Generator().manual_seed(1)) < percent / 100
    return drawn | torch.eye(count, dtype=torch.bool)


def block_mask(form: str, tokens: int, percent: int, device: str) -> Any:
    """What `flex_attention` is given."""
    import torch
    from torch.nn.attention.flex_attention import BlockMask, create_block_mask

    if form == "documents":
        documents = documents_of(tokens, percent).to(device)
        return create_block_mask(
            lambda b, h, i, j: documents[i] == documents[j], None, None, tokens, tokens, device=device
        )
    blocks = listed(tokens, percent).to(device)
    counts = blocks.sum(-1, dtype=torch.int32)[None, None]
    order = torch.argsort(blocks.to(torch.int32), dim=-1, descending=True, stable=True).to(torch.int32)[None, None]
    none = torch.zeros_like(counts)
    return BlockMask.from_kv_blocks(none, torch.zeros_like(order), counts, order, BLOCK_SIZE=BLOCK)


def module(case: tuple, device: str = "cpu") -> Any:
    """The module that computes one form."""
    import torch
    from torch.nn.attention.flex_attention import flex_attention

    form, _, tokens, dim, percent = case
    mask = block_mask(form, tokens, percent, device) if form in ("documents", "blocks") else None

    class Form(torch.nn.Module):
        def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Any:
            if form == "lse":
                return flex_attention(q, k, v, return_lse=True)
            if form != "sigmoid":
                return flex_attention(q, k, v, block_mask=mask)
            scores = q @ k.transpose(-1, -2) / math.sqrt(dim) - math.log(tokens)
            weights = torch.sigmoid(scores)
            return weights.masked_fill(~torch.ones(tokens, tokens, dtype=torch.bool, device=q.device).tril(), 0.0) @ v

    return Form().eval()


def compile_case(case: tuple, knobs: str, folder: str) -> tuple[str, str]:
    """(file's name, "" or why there is none)."""
    import torch

    _, heads, tokens, dim, _ = case
    name = file_name("_".join(map(str, case)), knobs)
    inputs = tuple(torch.empty(1, heads, tokens, dim, dtype=torch.bfloat16) for _ in range(3))
    return compile_schedule("attention", (module(case), inputs), knobs, Path(folder) / name)


def case_of(name: str) -> tuple:
    """What a file's name was made of."""
    form, *numbers = name.split("_")
    return (form, *map(int, numbers))


def exact(case: tuple, q: Any, k: Any, v: Any) -> Any:
    """The result in FP32 math, of the first batch's first two heads."""
    import torch

    form, _, tokens, dim, percent = case
    q, k, v = (x[:1, :2].float() for x in (q, k, v))
    scores = q @ k.transpose(-1, -2) / math.sqrt(dim)
    if form == "sigmoid":
        return torch.sigmoid(scores - math.log(tokens)).tril() @ v
    if form == "documents":
        documents = documents_of(tokens, percent).cuda()
        scores = scores.masked_fill(documents[:, None] != documents[None], -math.inf)
    if form == "blocks":
        seen = listed(tokens, percent).cuda().repeat_interleave(BLOCK, 0).repeat_interleave(BLOCK, 1)
        scores = scores.masked_fill(~seen, -math.inf)
    return torch.softmax(scores, -1) @ v


def peers(case: tuple, compiled: bool) -> dict[str, Any]:
    """What to measure beside mlirc, by name."""
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel

    def dense(s: Any) -> Any:
        with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
            return torch.nn.functional.scaled_dot_product_attention(*s)

    def flash(s: Any) -> Any:
        return torch.ops.aten._scaled_dot_product_flash_attention(*s, return_debug_mask=False)[:2]

    found = {"lse": {"flash": flash}, "sigmoid": {}}.get(case[0], {"dense": dense})
    if compiled:
        torch._dynamo.reset()
        call = torch.compile(module(case, "cuda"), dynamic=False)
        found["compiled"] = lambda s: call(*s)
    return found


def run_case(case: tuple, files: list[Path], samples: int, flush: Any, compiled: bool) -> list[dict[str, Any]]:
    """One row per file of a case and per peer."""
    import torch

    from mlirc.bench import timing

    form, heads, tokens, dim, percent = case
    work = 4 * heads * tokens * tokens * dim * percent / 100
    count, runs = timing.copies_for(2 * 4 * heads * tokens * dim, work / 500e6)
    sets = [tuple(torch.randn(1, heads, tokens, dim, device="cuda").bfloat16() for _ in range(3)) for _ in range(count)]
    want = exact(case, *sets[0])

    def error(got: Any) -> float:
        got = got[0] if isinstance(got, tuple) else got
        return float((got[:1, :2].to(want.dtype) - want).norm() / want.norm())

    arms, own = [], {}
    for name, run in peers(case, compiled).items():
        try:
            own[name] = error(run(sets[0]))
            arms.append(timing.capture(name, run, sets, runs))
        except RuntimeError as e:
            print(f"{name}: {str(e)[:120]}", file=sys.stderr)
    compiled_arms, errors = arms_of(files, sets, runs, error)
    timed = timing.interleave(arms + compiled_arms, samples, flush)
    return [{"case": list(case), "arm": n, "error": (own | errors)[n], **s.to_json()} for n, s in timed.items()]


def run_all(args: argparse.Namespace) -> None:
    """Times every file of a folder, and prints a line for each."""
    import torch

    from mlirc.bench import timing

    print(torch.cuda.get_device_name(), torch.__version__)
    flush, rows = timing.Flusher(), []
    for key, found in by_case(args.folder).items():
        new = run_case(case_of(key), found, args.samples, flush, args.compiled)
        rows += new
        times = {r["arm"]: r["median_us"] for r in new}
        base = times.get("compiled", times.get("flash", times.get("dense", math.nan)))
        for r in new:
            print(
                f"{key:28s} {r['median_us']:9.1f} us {base / r['median_us']:.3f}x err {r['error']:.1e} {r['arm']}",
                flush=True,
            )
        torch.cuda.empty_cache()
    if args.output:
        save(args, rows)


def main() -> None:
    """The command line."""
    program("attention", __doc__, SETS, 20, compile_case, run_all)


if __name__ == "__main__":
    main()
