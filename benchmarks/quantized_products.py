"""Products with packed weights beside our own with bf16 weights and cuBLAS's, in CUDA graphs with the L2 cache cold,
interleaved in one run.

    python benchmarks/quantized_products.py compile DIR [--shapes qwen] [--knobs warps=7]...
    python benchmarks/quantized_products.py run DIR [-o FILE.json] [--samples 60]     # on the GPU; needs no MLIR

A case is (weights, M, N, K): x [M, K] of bf16 times [N, K] weights. `compile` makes one PTX file for each, and for each
of `--knobs` (of the script `packed_rows`, or of `matmul` as `matmul:stages=2`); `run` checks every one against an FP32
product of the unpacked weights (of w8a8 the difference has the rounding of activations in it), and prints its time, the
bytes that it has to read and write per second, and how many times as fast as our bf16 product of these sizes it is."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import torch
from schedules_tried import arms_of, by_case, compile_schedule, file_name, program, save
from torch import Tensor

SCHEMES = {"bf16": "", "int8": "int8", "int4": "int4:group=128", "fp8": "fp8", "w8a8": "fp8:dynamic"}
GATED = "-gated"  # behind a scheme's name: silu(x g) * (x u), of two weights [N, K]
ROWS = (1, 8, 16, 64, 512)
# N, K: layers of Qwen2.5-7B, and of TinyLlama-1.1B.
QWEN = [(4608, 3584), (3584, 3584), (18944, 3584), (3584, 18944)]
TOKEN = [(37888, 3584), (3584, 18944), (4608, 3584), (3584, 3584)]  # of Qwen2.5-7B's step of decoding
TINY = [(2048, 2048), (5632, 2048), (2048, 5632)]
SETS = {
    name: [(scheme, m, *s) for s in shapes for m in rows for scheme in SCHEMES]
    for name, shapes, rows in (("all", QWEN + TINY, ROWS), ("qwen", QWEN, ROWS), ("one", QWEN + TINY, (1,)),
                               ("few", QWEN[:1], ROWS), ("token", TOKEN, (1,)))
}  # fmt: skip
LAYER = {"gate-up": (18944, 3584), "down": (3584, 18944), "qkv": (4608, 3584), "o": (3584, 3584)}  # of the same
for rows in (1, 8, 16):
    for name, sizes in LAYER.items():
        SETS[f"{name}-{rows}"] = [(s + GATED * (name == "gate-up"), rows, *sizes) for s in ("bf16", "int8", "int4")]
        SETS |= {f"{case[0].removesuffix(GATED)}-{name}-{rows}": [case] for case in SETS[f"{name}-{rows}"]}
Case = tuple[str, int, int, int]


def module(case: Case) -> tuple[torch.nn.Module, tuple[Tensor, ...]]:
    """The module that computes a case, and inputs of its shapes."""
    from mlirc.frontend.quantize import parse_scheme
    from mlirc.frontend.quantize.dequantize import dequantize
    from mlirc.frontend.quantize.layers import placeholder
    from mlirc.frontend.quantize.scaled import scaled_linear

    dtype, m, n, k = case
    name = dtype.removesuffix(GATED)
    x = torch.empty(m, k, dtype=torch.bfloat16)
    scheme = parse_scheme(SCHEMES[name]) if SCHEMES[name] else None

    def linear(x: Tensor, parts: tuple[Tensor, ...]) -> Tensor:
        if scheme is None:
            return torch.nn.functional.linear(x, *parts)
        if scheme.activations:  # their rounding is a part of what is timed
            return scaled_linear(x, *parts)
        w = dequantize(*parts, None, scheme.format.name, k, scheme.group)
        return torch.nn.functional.linear(x, w)

    if scheme is None:
        own: tuple[Tensor, ...] = (torch.empty(n, k, dtype=torch.bfloat16),)
    else:
        own = tuple(placeholder((n, k), scheme, torch.bfloat16).parts().values())
    count = len(own)

    class Product(torch.nn.Module):
        def forward(self, x: Tensor, *parts: Tensor) -> Tensor:
            if dtype == name:
                return linear(x, parts)
            return torch.nn.functional.silu(linear(x, parts[:count])) * linear(x, parts[count:])

    return Product().eval(), (x, *own, *(torch.empty_like(p) for p in own if dtype != name))


def compile_case(case: Case, knobs: str, folder: str) -> tuple[str, str]:
    """(file's name, "" or why there is none)."""
    script, _, rest = knobs.rpartition(":")
    name = "_".join(map(str, case))
    path = Path(folder) / file_name(name, knobs.replace(":", "."))
    return compile_schedule(script or "packed_rows", module(case), rest if not case[0].startswith("bf16") else "", path)


def weights(case: Case) -> tuple[tuple[Tensor, ...], Tensor]:
    """What a case reads beside x, and the weight [N, K] that this is, or the two one below the other, on the GPU."""
    from mlirc.frontend.quantize import parse_scheme
    from mlirc.frontend.quantize.rounding import quantize

    dtype, _, n, k = case
    name, parts, wide = dtype.removesuffix(GATED), [], []
    for _ in range(1 + (dtype != name)):
        weight = torch.randn(n, k, dtype=torch.bfloat16, device="cuda") / k**0.5
        if name == "bf16":
            parts, wide = [*parts, weight], [*wide, weight]
            continue
        scheme = parse_scheme(SCHEMES[name])
        packed = quantize(weight, scheme)
        parts, wide = [*parts, *packed.parts().values()], [*wide, packed.floats(scheme, k)]
    return tuple(parts), torch.cat(wide)


def run_case(case: Case, files: list[Path], samples: int, flush: Any) -> list[dict[str, Any]]:
    """One row per file of a case; of bf16 also one of cuBLAS."""
    from mlirc.bench import timing

    parts, weight = weights(case)
    x = torch.randn(case[1], case[3], dtype=torch.bfloat16, device="cuda")
    size = sum(t.nbytes for t in (x, *parts)) + 2 * case[1] * case[2]
    gated, bf16 = case[0].endswith(GATED), case[0].startswith("bf16")
    want = x.float() @ weight.float().t()
    if gated:
        gate, up = want.chunk(2, 1)
        want = torch.nn.functional.silu(gate) * up
    count, runs = timing.copies_for(size, size / 4e6)
    sets = [(x, *parts), *((x.clone(), *(t.clone() for t in parts)) for _ in range(count - 1))]

    def error(got: Tensor) -> float:
        return float((got.float() - want).norm() / want.norm())

    arms, errors = arms_of(files, sets, runs, error)
    if bf16 and not gated:
        errors["cublas"] = error(torch.nn.functional.linear(x, weight))
        arms.append(timing.capture("cublas", lambda s: torch.nn.functional.linear(*s), sets, runs))
    timed = timing.interleave(arms, samples, flush) if arms else {}
    return [
        {"case": list(case), "arm": name, "error": errors[name], "bytes": size, "gb_s": size / s.median / 1e3,
         **s.to_json()} for name, s in timed.items()
    ]  # fmt: skip


def run_all(args: argparse.Namespace) -> None:
    """Times every file of a folder, and prints a line for each."""
    from mlirc.bench import timing

    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
    cases: dict[tuple, list[Path]] = {}
    for key, files in by_case(args.folder).items():
        dtype, *sizes = key.split("_")
        cases[dtype, *map(int, sizes)] = files
    flush, rows, base = timing.Flusher(), [], {}
    for case in sorted(cases, key=lambda c: (c[2:], c[1], list(SCHEMES).index(c[0].removesuffix(GATED)))):
        new = run_case(case, cases[case], args.samples, flush)
        key = case[1:], case[0].endswith(GATED)
        if case[0].startswith("bf16"):
            base |= {key: min((r["median_us"] for r in new if r["arm"] != "cublas"), default=None)}
        for r in new:
            own = base.get(key)
            r["vs_bf16"] = own / r["median_us"] if own else None
            ratio = f"{r['vs_bf16']:.2f}x bf16" if own else ""
            knobs = r["arm"].partition("__")[2] or ("cublas" if r["arm"] == "cublas" else "")
            print(
                f"{case[0]:10s} M {case[1]:4d} N {case[2]:6d} K {case[3]:6d} {r['median_us']:8.2f} us "
                f"{r['gb_s']:6.0f} GB/s {ratio:12s} err {r['error']:.1e} {knobs}", flush=True,
            )  # fmt: skip
        rows += new
        torch.cuda.empty_cache()
    if args.output:
        save(args, rows)


def main() -> None:
    """The command line."""
    program("packed_rows", __doc__, SETS, 60, compile_case, run_all)


if __name__ == "__main__":
    main()
