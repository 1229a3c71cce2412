"""The host device against the GPU: the same kernels, the same inputs, bit for bit where the order of sums is fixed.

    python benchmarks/agreement.py compile DIR                            # where MLIR is
    sh benchmarks/run.sh benchmarks/agreement.py run DIR -o OUT.json      # where a GPU is; writes OUT.md, too

Exit status 1 if a kernel differs by more than it may."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import saved_kernels

from mlirc.errors import MlircError
from mlirc.runtime.cuda import Driver
from mlirc.tools.cli import run_main


def compile_all(folder: Path) -> None:
    """Writes every kernel with its inputs and the host device's results."""
    import kernel_cases as cases

    from support.kernels.payloads import attention, matmul, norm, row_reduction

    exact = {
        "row_sums": (row_reduction(5, 1000, "f32", "0.0", "addf"), "reduction:warps=4"),
        "row_sums_long": (row_reduction(3, 4097, "f32", "0.0", "addf"), "reduction:warps=16"),
        "f32_matmul": (matmul(65, 72, 96), "matmul:block_m=64,block_n=64,block_k=16,stages=3"),
        "f32_matmul_odd": (matmul(37, 41, 43, prologue=True), "matmul:block_m=32,block_n=32,block_k=16,stages=2"),
        "f64_matmul": (matmul(17, 33, 35, "f64"), "matmul:block_m=32,block_n=32,block_k=16"),
        "i32_matmul": (matmul(17, 33, 35, "i32"), "matmul:block_m=32,block_n=32,block_k=16"),
        "transpose_f32": (cases.transposed_sum(65, 130), ""),
        "transpose_bf16": (cases.transposed_sum(64, 257, "bf16"), ""),
        "bf16_mma": (matmul(65, 72, 96, "bf16"), "matmul:block_m=64,block_n=64,block_k=32,mma=mma"),
        "f16_mma": (matmul(33, 40, 71, "f16"), "matmul:block_m=32,block_n=32,block_k=16,stages=1"),
        "bf16_mma_f32_out": (
            matmul(128, 128, 512, "bf16", epilogue=False), "matmul:block_m=64,block_n=64,block_k=64,mma=mma"),
        "bf16_wgmma": (matmul(200, 136, 320, "bf16"), "matmul:block_m=128,block_n=128,block_k=64,stages=4,mma=wgmma"),
        "bf16_wgmma_f32_out": (
            matmul(128, 256, 512, "bf16", epilogue=False),
            "matmul:block_m=128,block_n=256,block_k=64,stages=4,mma=wgmma"),
    }  # fmt: skip
    causal = attention(lengths=(70, 130), dims=(64, 64), dtype="bf16", causal=True)
    close = {
        "norm": (norm(7, 384), "reduction:warps=4", 1e-5),
        "norm_bf16": (norm(3, 4096, "bf16"), "reduction:warps=16", 1e-2),
        "softmax": (cases.softmax(9, 1000), "", 1e-5),
        "softmax_bf16": (cases.softmax(4, 4096, "bf16"), "", 1e-2),
        "bf16_attention": (causal, "attention:block_q=64,block_kv=64", 2e-2),
        "f32_attention": (
            attention(lengths=(33, 33), dims=(16, 16), window=9, causal=True),
            "attention:block_q=16,block_kv=16", 1e-5),
    }  # fmt: skip
    for name, (text, knobs) in exact.items():
        cases.make(name, text, knobs, exact=True).save(folder)
    for name, (text, knobs, tolerance) in close.items():
        cases.make(name, text, knobs, tolerance=tolerance).save(folder)
    import instruction_cases

    from support.kernels import exact as exact_kernels

    for name in exact_kernels.CASES:
        module, inputs, result = exact_kernels.case(name, f"exact_{name}")
        cases.saved(f"exact_{name}", module, inputs, [result], exact=True).save(folder)
    single = instruction_cases.save_all(folder)
    size = sum(f.stat().st_size for f in folder.iterdir())
    many = len(exact) + len(close) + len(exact_kernels.CASES)
    print(f"{many} kernels and {single} of single instructions, {size / 1e6:.1f} MB, in {folder}")


def compare(kernel: saved_kernels.SavedKernel, card: dict[int, np.ndarray]) -> dict[str, Any]:
    """How far the GPU's results are from the host device's."""
    row: dict[str, Any] = {"exact": kernel.exact, "tolerance": kernel.tolerance, "elements": 0, "different": 0,
                           "largest": 0.0}  # fmt: skip
    for i, host in kernel.host.items():
        found, dtype = card[i], kernel.arguments[i].dtype
        row["elements"] += host.size
        plain = f"u{host.itemsize}"
        h, c = saved_kernels.widened(host, dtype), saved_kernels.widened(found, dtype)
        row["different"] += int(((found.view(plain) != host.view(plain)) & ~(np.isnan(h) & np.isnan(c))).sum())
        scale = float(np.abs(h[np.isfinite(h)]).max(initial=1e-30))
        error = np.where((h == c) | (np.isnan(h) & np.isnan(c)), 0.0, np.abs(h - c))
        error = np.where(np.isnan(error), np.inf, error)
        row["largest"] = max(row["largest"], float(error.max(initial=0.0)) / scale)
    row["ok"] = row["different"] == 0 if kernel.exact else row["largest"] <= kernel.tolerance
    return row


def run_one(path: Path) -> None:
    """Launches one kernel and prints the comparison as JSON."""
    kernel = saved_kernels.load(path)
    driver = Driver(0)
    with driver.current():
        row = compare(kernel, saved_kernels.launch(driver, kernel))
    row["gpu"] = driver.name
    driver.close()
    print(json.dumps(row))


def run_all(folder: Path, output: Path) -> bool:
    """Launches every kernel of a folder, each in a process of its own (one that faults spoils no other, one that hangs
    is ended), writes the tables, and tells whether all agree."""
    results: dict[str, dict[str, Any]] = {}
    gpu = ""
    for path in sorted(folder.glob("*.json")):
        command = [sys.executable, __file__, "one", str(path)]
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
            row = json.loads(done.stdout) if done.returncode == 0 else {"error": done.stderr.strip(), "ok": False}
        except subprocess.TimeoutExpired:
            row = {"error": "hangs", "ok": False}
        gpu = str(row.pop("gpu", gpu))
        results[path.stem] = row
        print(path.stem, row, flush=True)
    if not results:
        raise MlircError(f"{folder}: holds no saved kernels: make it with `compile`")
    about = {"gpu": gpu}
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(json.dumps({"about": about, "results": results}, indent=1) + "\n")
    output.with_suffix(".md").write_text(page(about, results))
    return all(r["ok"] for r in results.values())


def page(about: dict[str, str], results: dict[str, dict[str, Any]]) -> str:
    """The results as a page."""
    right = sum(r["ok"] for r in results.values())
    lines = [
        "# The host device against the GPU", "",
        f"{right} of {len(results)} kernels agree. {about['gpu']}. Made by `benchmarks/agreement.py`.", "",
        "Differences are the largest one, relative to the largest result. `bits`: the order of sums is fixed, so that "
        "all bits must be the same, those of tensor cores too; elsewhere approximate functions (exp2, rsqrt, division) "
        "have errors of their own.", "",
        "| kernel | must agree in | elements | with other bits | largest difference | |", "|---|---|---|---|---|---|",
    ]  # fmt: skip
    for name, r in results.items():
        if "error" in r:
            lines.append(f"| {name} | | | | | {r['error'][:200]} |")
            continue
        must = "bits" if r["exact"] else f"{r['tolerance']:.0e}"
        verdict = "yes" if r["ok"] else "**no**"
        lines.append(f"| {name} | {must} | {r['elements']:,} | {r['different']:,} | {r['largest']:.1e} | {verdict} |")
    return "\n".join(lines) + "\n"


def main() -> int:
    """The program; returns its exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["compile", "run", "one"])
    parser.add_argument("folder", type=Path)
    parser.add_argument("-o", "--output", type=Path, default=Path("agreement.json"), metavar="OUT.json")
    options = parser.parse_args()
    if options.what == "compile":
        compile_all(options.folder)
        return 0
    if options.what == "one":
        run_one(options.folder)
        return 0
    return 0 if run_all(options.folder, options.output) else 1


if __name__ == "__main__":
    sys.exit(run_main(main))
