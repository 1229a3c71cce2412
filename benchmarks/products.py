"""Products of two matrices beside cuBLAS, each in CUDA graphs with the L2 cache cold, interleaved in one run.

    python benchmarks/products.py compile DIR [--shapes bf16] [--knobs block_n=128,cluster_size=1]...
    python benchmarks/products.py run DIR [-o FILE.json] [--samples 60]     # on the GPU; needs no MLIR

`compile` makes one PTX file per shape and schedule (the default one, and each of `--knobs`); `run` checks every one
against an FP32 product (an FP64 one for f32) and times it beside `torch.matmul`, TF32 off. x is [M, K]; the other
operand is [N, K] (`nk`) or [K, N] (`kn`), and `t` before it says that x is given as [K, M]."""

from __future__ import annotations

import argparse
import json
import math
import sys
from pathlib import Path
from typing import Any

from schedules_tried import compile_all, compile_schedule, file_name

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
SETS = {
    "bf16": [("bf16", *s, "nk") for s in BF16],
    "layouts": [("bf16", *s, layout) for s in ((4096, 4096, 4096), (512, 37888, 3584), (2048, 3584, 18944))
                for layout in ("nk", "kn", "tnk", "tkn")],
    "fp32": [("f32", *s, "kn") for s in FP32],
    "rows": [("bf16", m, *s, layout) for s in ROWS for m in (1, 4, 16) for layout in ("nk", "kn")]
    + [("f32", 1, *s, "nk") for s in ROWS],
    "odd": [("bf16", 1000, 1288, 520, "nk"), ("bf16", 333, 1032, 520, "kn"), ("bf16", 129, 136, 4104, "tnk")],
}  # fmt: skip


def module(dtype: str, m: int, n: int, k: int, layout: str) -> tuple[Any, tuple]:
    """The module that computes one product, and inputs of its shapes."""
    import torch

    class Product(torch.nn.Module):
        def forward(self, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
            x = x.t() if layout.startswith("t") else x
            return x @ (w.t() if layout.endswith("nk") else w)

    t = {"bf16": torch.bfloat16, "f16": torch.float16, "f32": torch.float32}[dtype]
    x = torch.empty((k, m) if layout.startswith("t") else (m, k), dtype=t)
    w = torch.empty((n, k) if layout.endswith("nk") else (k, n), dtype=t)
    return Product().eval(), (x, w)


def name_of(case: tuple, knobs: str) -> str:
    """The file's name without suffix."""
    dtype, m, n, k, layout = case
    return file_name(f"{dtype}_{m}_{n}_{k}_{layout}", knobs)


def compile_case(case: tuple, knobs: str, folder: str) -> tuple[str, str]:
    """(file's name, "" or why there is none)."""
    return compile_schedule("matmul", module(*case), knobs, Path(folder) / name_of(case, knobs))


def run_case(case: tuple, files: list[Path], samples: int, flush: Any) -> list[dict[str, Any]]:
    """One row per file of a case, with its time and cuBLAS's."""
    import torch

    from mlirc.bench import timing
    from mlirc.runtime.loading import load

    dtype, m, n, k, layout = case
    size = {"bf16": 2, "f16": 2, "f32": 4}[dtype]
    count, runs = timing.copies_for((m * k + n * k + m * n) * size, 2 * m * n * k / 600e6)
    t = {"bf16": torch.bfloat16, "f16": torch.float16, "f32": torch.float32}[dtype]
    sets = []
    for _ in range(count):
        x = torch.randn((k, m) if layout.startswith("t") else (m, k), device="cuda").to(t)
        w = torch.randn((n, k) if layout.endswith("nk") else (k, n), device="cuda").to(t)
        sets.append((x, w))

    def seen(x: Any, w: Any) -> tuple[Any, Any]:
        return (x.t() if layout.startswith("t") else x), (w.t() if layout.endswith("nk") else w)

    out = torch.empty(m, n, device="cuda", dtype=t)
    want = torch.matmul(*(v.double() if t == torch.float32 else v.float() for v in seen(*sets[0])))
    arms = [timing.capture("cublas", lambda s: torch.matmul(*seen(*s), out=out), sets, runs)]
    own = {"cublas": float((out_of(out, sets[0], seen) - want).norm() / want.norm())}
    for file in files:
        try:
            model = load(str(file), graph=False)
            for o in model.outputs:
                torch.from_dlpack(o).fill_(math.nan)
            model.bind(*sets[0])
            model.launch(torch.cuda.current_stream())
            torch.cuda.synchronize()
            got = torch.from_dlpack(model.outputs[0]).to(want.dtype)
            own[file.stem] = float((got - want).norm() / want.norm())

            def run(s: Any, model: Any = model) -> None:
                model.bind(*s)
                model.launch(torch.cuda.current_stream())

            arm = timing.capture(file.stem, run, sets, runs)
            arm.keep = (arm.keep, model)  # a graph does not keep its kernels loaded
            arms.append(arm)
        except Exception as e:  # a bad schedule must not hide the others' figures
            print(f"{file.stem}: {type(e).__name__}: {str(e)[:200]}", file=sys.stderr)
    timed = timing.interleave(arms, samples, flush)
    return [
        {"case": list(case), "arm": name, "error": own[name], **s.to_json(), "vs": timed["cublas"].median / s.median}
        for name, s in timed.items()
    ]


def out_of(out: Any, first: tuple, seen: Any) -> Any:
    """cuBLAS's own result for a set."""
    import torch

    torch.matmul(*seen(*first), out=out)
    return out.float() if out.dtype != torch.float32 else out.double()


def run_all(args: argparse.Namespace) -> None:
    """Times every file of a folder, and prints a line for each."""
    import torch

    from mlirc.bench import timing

    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
    torch.backends.cuda.matmul.allow_tf32 = False
    flush, rows = timing.Flusher(), []
    files: dict[str, list[Path]] = {}
    for f in sorted(Path(args.folder).glob("*.ptx")):
        files.setdefault(f.stem.split("__")[0], []).append(f)
    for key, found in files.items():
        dtype, m, n, k, layout = key.split("_")
        case = (dtype, int(m), int(n), int(k), layout)
        new = run_case(case, found, args.samples, flush)
        rows += new
        cublas = new[0]["median_us"]
        best = max(new[1:], key=lambda r: r["vs"], default=None)
        for r in new[1:]:
            mark = "*" if r is best else " "
            knobs = r["arm"].partition("__")[2] or "default"
            print(
                f"{key:28s} cublas {cublas:8.1f} us {2 * case[1] * case[2] * case[3] / cublas / 1e6:4.0f} TF | "
                f"{r['median_us']:8.1f} us {r['vs']:.3f}x "
                f"err {r['error']:.1e} (cublas {new[0]['error']:.1e}) {mark} {knobs}", flush=True,
            )  # fmt: skip
    if args.output:
        from mlirc.bench.report import environment

        about = environment() | {"commit": args.commit or ""}
        path = Path(args.output)
        path.write_text(json.dumps({"about": about, "rows": rows}, indent=0))
        path.with_suffix(".md").write_text(page(about, rows))


ROWS_OF = {"nk": "[M, K] x [N, K]", "kn": "[M, K] x [K, N]", "tnk": "[K, M] x [N, K]", "tkn": "[K, M] x [K, N]"}


def page(about: dict[str, Any], rows: list[dict[str, Any]]) -> str:
    """The results as Markdown: the first schedule of every product beside cuBLAS."""
    peers = {tuple(r["case"]): r for r in rows if r["arm"] == "cublas"}
    own: dict[tuple, dict[str, Any]] = {}
    for r in rows:
        if r["arm"] != "cublas":
            own.setdefault(tuple(r["case"]), r)
    shapes = [c for c in own if c[:4] in {("bf16", *s) for s in BF16} and c[4] == "nk"]
    ratios = [own[c]["vs"] for c in shapes]
    lines = [
        "# Products beside cuBLAS", "", ", ".join(f"{k} {v}" for k, v in about.items()), "",
        "Made by `benchmarks/products.py`. Medians in microseconds (10th and 90th percentile), both in CUDA graphs,",
        "interleaved, L2 cache cold; errors are relative Frobenius norms against an FP32 product (FP64 for f32).",
    ]  # fmt: skip
    if ratios:
        mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
        lines += ["", f"The {len(ratios)} shapes of one layout: {mean:.3f}x cuBLAS (geometric mean), the least "
                  f"{min(ratios):.3f}x."]  # fmt: skip
    lines += ["", "| dtype | M, N, K | operands | error | mlirc us | TFLOP/s | cuBLAS us | its error | vs cuBLAS |",
              "|---|---|---|---|---|---|---|---|---|"]  # fmt: skip
    for c in sorted(own, key=lambda c: (c not in shapes, c)):
        dtype, m, n, k, layout = c
        r, p = own[c], peers[c]
        spread = [f"{x['median_us']:.1f} ({x['p10_us']:.1f}, {x['p90_us']:.1f})" for x in (r, p)]
        rate = 2 * m * n * k / r["median_us"] / 1e6
        lines.append(
            f"| {dtype} | {m}, {n}, {k} | {ROWS_OF[layout]} | {r['error']:.1e} | {spread[0]} | {rate:.0f} "
            f"| {spread[1]} | {p['error']:.1e} | {r['vs']:.3f}x |"
        )
    return "\n".join(lines) + "\n"


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    sub = parser.add_subparsers(dest="do", required=True)
    c = sub.add_parser("compile")
    c.add_argument("folder")
    c.add_argument("--shapes", nargs="*", default=["bf16"], choices=list(SETS))
    c.add_argument("--knobs", nargs="*", default=[], help="knobs of the matmul script; '' is the default schedule")
    c.add_argument("--jobs", type=int, default=2)
    r = sub.add_parser("run")
    r.add_argument("folder")
    r.add_argument("-o", "--output")
    r.add_argument("--samples", type=int, default=60)
    r.add_argument("--commit", help="the source's commit, for the page")
    args = parser.parse_args()
    if args.do == "compile":
        compile_all(compile_case, [c for s in args.shapes for c in SETS[s]], args)
    else:
        run_all(args)


if __name__ == "__main__":
    main()
