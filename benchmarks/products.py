"""Products of two matrices beside cuBLAS, each in CUDA graphs with the L2 cache cold, interleaved in one run.

    python benchmarks/products.py compile DIR [--shapes bf16] [--knobs block_n=128,cluster_size=1]...
    python benchmarks/products.py run DIR [-o FILE.json] [--samples 60]     # on the GPU; needs no MLIR

`compile` makes one PTX file per shape and schedule (the default one, and each of `--knobs`); `run` checks every one
against an FP32 product (an FP64 one for f32) and times it beside `torch.matmul`, TF32 off; 8-bit floats beside
`torch._scaled_mm`, bytes beside `torch._int_mm`. What a shape's words mean is in `product_kinds.py`."""

from __future__ import annotations

import argparse
import math
import random
from pathlib import Path
from typing import Any

import product_kinds
from schedules_tried import arms_of, by_case, compile_schedule, file_name, program, save

# dtype, M, N, K: the layers of Qwen2.5-7B at several numbers of rows, and squares.
BF16 = [
    (4096, 4096, 4096), (8192, 8192, 8192), (16384, 8192, 4096), (512, 4608, 3584), (512, 3584, 3584),
    (512, 37888, 3584), (512, 3584, 18944), (2048, 4608, 3584), (2048, 3584, 3584), (2048, 37888, 3584),
    (2048, 3584, 18944), (16, 37888, 3584), (16, 3584, 18944), (64, 37888, 3584), (128, 37888, 3584),
    (256, 3584, 18944),
]  # fmt: skip
# The layers of TinyLlama-1.1B and Qwen2.5-7B at 32, 128 and 512 tokens.
FP32 = [(s, n, k) for h, i, kv in ((2048, 5632, 256), (3584, 18944, 512)) for s in (32, 128, 512)
        for n, k in ((h, h), (kv, h), (i, h), (h, i))]  # fmt: skip
# N, K: layers of TinyLlama-1.1B and Qwen2.5-7B, and their heads.
ROWS = [
    (256, 2048), (2048, 2048), (5632, 2048), (2048, 5632), (32000, 2048), (512, 3584), (3584, 3584), (4608, 3584),
    (37888, 3584), (3584, 18944), (152064, 3584),
]  # fmt: skip
# Gated layers of the same models, at 16 to 2048 tokens.
GATED = [(m, n, k) for n, k in ((5632, 2048), (18944, 3584)) for m in (16, 128, 512, 2048)]
# Of 8-bit operands.
EIGHT = [
    (4096, 4096, 4096), (8192, 8192, 8192), (512, 37888, 3584), (2048, 3584, 18944), (2048, 37888, 3584),
    (512, 3584, 3584), (128, 37888, 3584), (16384, 8192, 4096),
]  # fmt: skip
# Whose tiles fill few waves of a H200's 132 multiprocessors, and the last one in part.
WAVES = [
    (2048, 2304, 8192), (1024, 4608, 8192), (2304, 2304, 16384), (2304, 2304, 8192), (1664, 2816, 12288),
    (1280, 3584, 16384), (2048, 4608, 3584), (3072, 3072, 3072), (4096, 4608, 4096), (2176, 2304, 4096),
    (1408, 3328, 8192), (4352, 4352, 4352), (2560, 2560, 10240),
]  # fmt: skip


def drawn(count: int) -> list[tuple]:
    """Products of 17 to 400 rows and columns and 1,000 to 20,000 elements of K, every other one of even rows alone, of
    all types and layouts in turn: the same ones every time."""
    draw, cases = random.Random(20261123), []
    for i in range(count):
        even = 8 if i % 2 else 1
        m, n = (max(draw.randint(17, 400) // even * even, 17 if even == 1 else 24) for _ in range(2))
        k = int(1000 * 20 ** draw.random()) // even * even
        cases.append((("bf16", "f16", "f32")[i // 2 % 3], m, n, k, ("nk", "kn", "tnk", "tkn")[i // 2 % 4]))
    return cases


SETS = {
    "bf16": [("bf16", *s, "nk") for s in BF16],
    "layouts": [("bf16", *s, layout) for s in ((4096, 4096, 4096), (512, 37888, 3584), (2048, 3584, 18944))
                for layout in ("nk", "kn", "tnk", "tkn")],
    "fp32": [("f32", *s, "kn") for s in FP32],
    "rows": [("bf16", m, *s, layout) for s in ROWS for m in (1, 4, 16) for layout in ("nk", "kn")]
    + [("f32", 1, *s, "nk") for s in ROWS],
    "few": [("bf16", m, *s, layout) for s in ROWS[:8] for m in (4, 16) for layout in ("nk", "kn")],
    "gated": [("bf16", *s, "gated") for s in GATED],
    "fp8": [("fp8", *s, "nk") for s in EIGHT] + [("fp8rows", *s, "nk") for s in EIGHT[1:4]],
    "i8": [("i8", *s, "nk") for s in EIGHT],
    "drawn": drawn(24),
    "waves": [("bf16", *s, "nk") for s in WAVES],
    "odd": [("bf16", 1000, 1288, 520, "nk"), ("bf16", 333, 1032, 520, "kn"), ("bf16", 129, 136, 4104, "tnk")],
}  # fmt: skip


def name_of(case: tuple, knobs: str) -> str:
    """The file's name without suffix."""
    dtype, m, n, k, layout = case
    return file_name(f"{dtype}_{m}_{n}_{k}_{layout}", knobs)


def compile_case(case: tuple, knobs: str, folder: str) -> tuple[str, str]:
    """(file's name, "" or why there is none)."""
    return compile_schedule("matmul", product_kinds.module(case), knobs, Path(folder) / name_of(case, knobs))


def run_case(case: tuple, files: list[Path], samples: int, flush: Any) -> list[dict[str, Any]]:
    """One row per file of a case, with its time and cuBLAS's."""
    from mlirc.bench import timing

    count, runs = timing.copies_for(product_kinds.nbytes(case), rate(case, 600))
    sets = [product_kinds.inputs(case, "cuda") for _ in range(count)]
    want = product_kinds.right(case, *sets[0])
    arms, own = [], {}

    def error(got: Any) -> float:
        return float((got.to(want.dtype) - want).norm() / want.norm())

    for name, peer in product_kinds.peers(case).items():
        own[name] = error(peer(*sets[0]))
        arms.append(timing.capture(name, lambda s, peer=peer: peer(*s), sets, runs))
    compiled, errors = arms_of(files, sets, runs, error)
    arms, own = arms + compiled, own | errors
    timed = timing.interleave(arms, samples, flush)
    return [
        {"case": list(case), "arm": name, "error": own[name], **s.to_json(), "vs": timed["cublas"].median / s.median}
        for name, s in timed.items()
    ]


def run_all(args: argparse.Namespace) -> None:
    """Times every file of a folder, and prints a line for each."""
    import torch

    from mlirc.bench import timing

    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
    torch.backends.cuda.matmul.allow_tf32 = False
    flush, rows = timing.Flusher(), []
    for key, found in by_case(args.folder).items():
        dtype, m, n, k, layout = key.split("_")
        case = (dtype, int(m), int(n), int(k), layout)
        new = run_case(case, found, args.samples, flush)
        rows += new
        cublas, peers = new[0]["median_us"], len(product_kinds.peers(case))
        best = max(new[peers:], key=lambda r: r["vs"], default=None)
        for r in new[1:]:
            mark = "*" if r is best else " "
            knobs = r["arm"].partition("__")[2] or ("default" if r["arm"].startswith(dtype) else r["arm"])
            print(
                f"{key:28s} cublas {cublas:8.1f} us {rate(case, cublas):4.0f} TF | "
                f"{r['median_us']:8.1f} us {r['vs']:.3f}x "
                f"err {r['error']:.1e} (cublas {new[0]['error']:.1e}) {mark} {knobs}", flush=True,
            )  # fmt: skip
    if args.output:
        about = save(args, rows)
        Path(args.output).with_suffix(".md").write_text(page(about, rows))


def rate(case: tuple, us: float) -> float:
    """TFLOP/s of a case that takes so many microseconds."""
    return 2 * product_kinds.weights(case[4]) * case[1] * case[2] * case[3] / us / 1e6


ROWS_OF = {
    "gated": "silu([M, K] x [N, K]) * ([M, K] x [N, K])",
    "nk": "[M, K] x [N, K]",
    "kn": "[M, K] x [K, N]",
    "tnk": "[K, M] x [N, K]",
    "tkn": "[K, M] x [K, N]",
}


def page(about: dict[str, Any], rows: list[dict[str, Any]]) -> str:
    """The results as Markdown: the first schedule of every product beside cuBLAS."""
    peers = {tuple(r["case"]): r for r in rows if r["arm"] == "cublas"}
    own: dict[tuple, dict[str, Any]] = {}
    for r in rows:
        if not r["arm"].startswith("cublas"):
            own.setdefault(tuple(r["case"]), r)
    sets = ("bf16", "fp32", "fp8", "i8")
    shapes = [c for c in own if any(c in SETS[s] for s in sets)]
    lines = [
        "# Products beside cuBLAS", "", ", ".join(f"{k} {v}" for k, v in about.items()), "",
        "Made by `benchmarks/products.py`. Medians in microseconds (10th and 90th percentile), both in CUDA graphs,",
        "interleaved, L2 cache cold; errors are relative Frobenius norms against an FP32 product (FP64: of f32, i8).",
        "cuBLAS of 8-bit floats is `torch._scaled_mm` as it is by default, without `use_fast_accum`.",
    ]  # fmt: skip
    for dtype in dict.fromkeys(c[0] for c in shapes):
        ratios = [own[c]["vs"] for c in shapes if c[0] == dtype]
        mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
        lines += ["", f"{dtype}, {len(ratios)} shapes of one layout: {mean:.3f}x cuBLAS (geometric mean), the least "
                  f"{min(ratios):.3f}x."]  # fmt: skip
    lines += ["", "| dtype | M, N, K | operands | error | mlirc us | TFLOP/s | cuBLAS us | its error | vs cuBLAS |",
              "|---|---|---|---|---|---|---|---|---|"]  # fmt: skip
    for c in sorted(own, key=lambda c: (c not in shapes, c)):
        dtype, m, n, k, layout = c
        r, p = own[c], peers[c]
        speed = rate(c, r["median_us"])
        spread = [f"{x['median_us']:.1f} ({x['p10_us']:.1f}, {x['p90_us']:.1f})" for x in (r, p)]
        lines.append(
            f"| {dtype} | {m}, {n}, {k} | {ROWS_OF[layout]} | {r['error']:.1e} | {spread[0]} | {speed:.0f} "
            f"| {spread[1]} | {p['error']:.1e} | {r['vs']:.3f}x |"
        )
    return "\n".join(lines) + "\n"


def main() -> None:
    """The command line."""
    program("matmul", __doc__, SETS, 60, compile_case, run_all)


if __name__ == "__main__":
    main()
