"""The host device's counters against Nsight Compute's, for five kernels.

    python benchmarks/counters.py compile DIR                            # where MLIR is
    sh benchmarks/run.sh benchmarks/counters.py run DIR -o OUT.json      # where a GPU and ncu are; writes OUT.md, too

`run` asks ncu which of the metrics it knows, profiles every kernel in a process of its own, and prints what is missing.
Every metric that was read and is not zero is in the JSON. `page DIR -o OUT.json` takes the host's counters from DIR
again and makes the page."""

from __future__ import annotations

import argparse
import csv
import io
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import saved_kernels

from mlirc.errors import MlircError
from mlirc.runtime.cuda import Driver
from mlirc.tools.cli import run_main

# Base names (without `.sum`) that the table is made of; whatever else matches _MORE is read for the record.
_WANTED = (
    "l1tex__data_bank_conflicts_pipe_lsu_mem_shared", "l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_ld",
    "l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_st", "l1tex__data_pipe_lsu_wavefronts_mem_shared",
    "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_ld", "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_st",
    "l1tex__t_sectors_pipe_lsu_mem_global_op_ld", "l1tex__t_requests_pipe_lsu_mem_global_op_ld",
    "l1tex__t_sectors_pipe_lsu_mem_global_op_st", "l1tex__t_requests_pipe_lsu_mem_global_op_st",
    "smsp__inst_executed", "smsp__inst_executed_op_shared_ld", "smsp__inst_executed_op_shared_st",
    "smsp__inst_executed_op_global_ld", "smsp__inst_executed_op_global_st", "smsp__inst_executed_op_ldsm",
    "smsp__inst_executed_op_ldgsts", "smsp__inst_executed_op_shared", "smsp__inst_executed_pipe_tensor_op_hmma",
    "smsp__inst_executed_pipe_tensor_op_gmma", "lts__t_sectors_srcunit_tex_op_read_lookup_miss",
)  # fmt: skip
_MORE = re.compile(
    r"(l1tex__(t_sectors|t_requests|data_bank_conflicts|data_bank_reads|data_bank_writes|data_pipe_lsu_wavefronts)"
    r"(_pipe_lsu)?(_mem_(shared|global|lg)\w*)?|l1tex__m_(xbar2l1tex|l1tex2xbar)_\w*(sectors|bytes)\w*"
    r"|smsp__sass_(l1tex|inst_executed)\w*(shared|global|ldsm|ldgsts|stsm|gmma|hmma|mma|shfl|bar)\w*"
    r"|smsp__sass_l1tex_\w+|smsp?__inst_executed\w*(op|pipe)_\w+|lts__t_sectors_(op_(read|write)|srcunit_tex\w*))"
)
# Sums over the instructions of what each moves in theory; not in ncu's list of metrics.
_SOURCE = (
    "memory_l1_wavefronts_shared", "memory_l1_wavefronts_shared_ideal", "memory_l2_theoretical_sectors_global",
    "memory_l2_theoretical_sectors_global_ideal", "memory_l1_tag_requests_global", "inst_executed",
)  # fmt: skip
# Loads of one warp from shared memory: f32 per lane, and the first of them as an expression in the lane `t`.
_PROBES = (
    (1, "t"), (1, "t * 2"), (1, "t * 8"), (1, "t * 32"), (1, "t * 33"), (1, "t floordiv 4"),
    (2, "t * 2"), (2, "t * 4"), (2, "t * 32"), (2, "t * 34"), (2, "(t floordiv 2) * 2"), (2, "(t mod 16) * 2"),
    (2, "(t mod 4) * 2 + (t floordiv 4) * 32"),
    (4, "t * 4"), (4, "t * 8"), (4, "t * 32"), (4, "t * 36"), (4, "(t floordiv 2) * 4"), (4, "(t floordiv 4) * 4"),
    (4, "(t mod 8) * 4"), (4, "(t mod 4) * 4 + (t floordiv 4) * 32"), (4, "(t floordiv 8) * 4"),
)  # fmt: skip
_AT_ONCE = 60  # metrics per run of ncu


def compile_all(folder: Path) -> None:
    """Writes the five kernels with the host device's counters."""
    import kernel_cases as cases

    from support.kernels.payloads import attention, matmul

    kernels = {
        "row_softmax": (cases.softmax(8, 4096), "", 1e-5),
        "transposed_sum": (cases.transposed_sum(128, 256), "", 0.0),
        "mma_gemm": (matmul(256, 256, 256, "bf16"), "matmul:block_m=128,block_n=128,block_k=64,stages=3,mma=mma", 1e-2),
        "wgmma_gemm": (
            matmul(256, 256, 256, "bf16"), "matmul:block_m=128,block_n=128,block_k=64,stages=4,mma=wgmma", 1e-2),
        "attention": (
            attention(lengths=(256, 256), dims=(64, 64), dtype="bf16", causal=True, scale=0.125),
            "attention:block_q=64,block_kv=64", 2e-2),
    }  # fmt: skip
    for name, (text, knobs, tolerance) in kernels.items():
        cases.make(name, text, knobs, tolerance=tolerance, count=True).save(folder)
    for i, (width, first) in enumerate(_PROBES):
        cases.probe(f"probe{i:02}_{width}", width, first).save(folder)
    print(f"{len(kernels)} kernels and {len(_PROBES)} probes in {folder}")


def launch_one(path: Path) -> None:
    """Launches a kernel once: what ncu profiles."""
    driver = Driver(0)
    with driver.current():
        saved_kernels.launch(driver, saved_kernels.load(path))
    driver.close()


# -- reading ncu


def known_metrics() -> set[str]:
    """The base names that ncu lists for this GPU."""
    done = subprocess.run(["ncu", "--query-metrics"], capture_output=True, text=True, check=False)
    names = set(re.findall(r"^([a-z]\w*__\w+)", done.stdout, flags=re.MULTILINE))
    if not names:
        print(f"ncu --query-metrics lists nothing: {(done.stderr or done.stdout).strip()[-400:]}", flush=True)
    return names


def profile(kernel: Path, metrics: list[str]) -> list[dict[str, str]]:
    """One row per launch, in order: metric name to value, and "Kernel Name". Raises MlircError with what ncu says."""
    with tempfile.TemporaryDirectory() as scratch:
        log = Path(scratch) / "ncu.csv"
        command = ["ncu", "--clock-control", "none", "--cache-control", "all", "--csv", "--page", "raw",
                   "--print-units", "base", "--print-fp", "--log-file", str(log), "--metrics", ",".join(metrics),
                   sys.executable, __file__, "launch", str(kernel)]  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        text = log.read_text() if log.exists() else ""
    start = text.find('"ID"')
    if done.returncode or start < 0:
        said = " ".join((text + done.stdout + done.stderr).split())
        raise MlircError(f"ncu ended with {done.returncode}: {said[:1500]}")
    rows = list(csv.DictReader(io.StringIO(text[start:])))
    return [row for row in rows if row["ID"]]  # the line behind the head holds units


def profile_best(kernel: Path, metrics: list[str]) -> Iterator[list[dict[str, str]]]:
    """Profiles as many of the metrics as ncu takes: a list that fails twice (ncu crashes at times) goes without what
    its message names, or in halves."""
    if not metrics:
        return
    for last in (False, True):
        try:
            yield profile(kernel, metrics)
            return
        except MlircError as e:
            said = str(e)
            if last:
                print(f"{kernel.stem}, {len(metrics)} metrics: {said[:600]}", flush=True)
    named = [m for m in metrics if re.search(rf"\b{re.escape(m)}\b", said)]
    if len(metrics) == 1:
        return
    if named and len(named) < len(metrics):
        yield from profile_best(kernel, [m for m in metrics if m not in named])
    elif "ERR_NVGPUCTRPERM" in said or "Failed to initialize" in said:
        return
    else:
        middle = len(metrics) // 2
        yield from profile_best(kernel, metrics[:middle])
        yield from profile_best(kernel, metrics[middle:])


def run_all(folder: Path, output: Path) -> None:
    """Profiles every kernel and writes the tables."""
    kernels = saved_kernels.load_all(folder)
    known = known_metrics()
    wanted = [m for m in _WANTED if not known or m in known]
    print("not known to ncu:", ", ".join(m for m in _WANTED if m not in wanted) or "nothing", flush=True)
    more = sorted(m for m in known if _MORE.fullmatch(m) and m not in wanted)
    basic = [[f"{m}.sum" for m in wanted], list(_SOURCE)]
    wide = [[f"{m}.sum" for m in more[i : i + _AT_ONCE]] for i in range(0, len(more), _AT_ONCE)]
    read: dict[str, dict[str, float]] = {k.name: {} for k in kernels}
    for lists in (basic, wide):
        for k in kernels:
            for metrics in [] if lists is wide and k.name.startswith("probe") else lists:
                for rows in profile_best(folder / f"{k.name}.json", metrics):
                    for row in rows:
                        _add(read[k.name], row)
            _write(output, kernels, read)  # what there is so far, should the machine's time end
    print(output.with_suffix(".md").read_text())


def _add(into: dict[str, float], row: dict[str, str]) -> None:
    for key, value in row.items():
        number = re.match(r"[\d,]+(\.\d+)?", value or "")
        if number and (key.endswith(".sum") or key in _SOURCE):
            base = key.removesuffix(".sum")
            into[base] = into.get(base, 0) + float(number[0].replace(",", ""))


def _write(output: Path, kernels: list[saved_kernels.SavedKernel], read: dict[str, dict[str, float]]) -> None:
    driver = Driver(0)
    gpu = driver.name
    driver.close()
    version = subprocess.run(["ncu", "--version"], capture_output=True, text=True, check=False).stdout
    match = re.search(r"(?<=Version )[\d.]+", version)
    data = {
        "about": {"gpu": gpu, "ncu": match[0] if match else "unknown"},
        "kernels": {
            k.name: {
                "knobs": k.note,
                "host": k.counters,
                "ncu": {m: v for m, v in read[k.name].items() if v or m in _WANTED},
            }
            for k in kernels
        },
    }
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(json.dumps(data, indent=1, sort_keys=True) + "\n")
    output.with_suffix(".md").write_text(page(data))


# -- the table

Pick = Callable[[dict[str, float]], float | None]


def one(name: str) -> Pick:
    """A metric, if it was read."""
    return lambda read: read.get(name)


def _conflicts(read: dict[str, float]) -> float | None:
    found = [read.get(f"memory_l1_wavefronts_shared{x}") for x in ("", "_ideal")]
    return None if found[0] is None or found[1] is None else found[0] - found[1]


# What is compared: (in words, host counters that are added up, ncu's metric).
COMPARED: tuple[tuple[str, tuple[str, ...], Pick], ...] = (
    ("global load requests, with cp.async", ("global load requests", "global copy requests"),
     one("l1tex__t_requests_pipe_lsu_mem_global_op_ld")),
    ("global load sectors, with cp.async", ("global load sectors", "global copy sectors"),
     one("l1tex__t_sectors_pipe_lsu_mem_global_op_ld")),
    ("global store requests", ("global store requests",), one("l1tex__t_requests_pipe_lsu_mem_global_op_st")),
    ("global store sectors", ("global store sectors",), one("l1tex__t_sectors_pipe_lsu_mem_global_op_st")),
    ("global sectors read, each once; misses of L2", ("global sectors read, each once",),
     one("lts__t_sectors_srcunit_tex_op_read_lookup_miss")),
    ("shared load wavefronts, with ldmatrix", ("shared load wavefronts", "shared matrix wavefronts"),
     one("l1tex__data_pipe_lsu_wavefronts_mem_shared_op_ld")),
    ("shared store wavefronts", ("shared store wavefronts",), one("l1tex__data_pipe_lsu_wavefronts_mem_shared_op_st")),
    ("shared wavefronts of wgmma", ("shared wgmma wavefronts",),
     one("l1tex__data_pipe_lsu_wavefronts_mem_shared_op_gmma")),
    ("shared wavefronts, all", ("shared wavefronts",), one("memory_l1_wavefronts_shared")),
    ("shared bank conflicts", ("shared bank conflicts",), _conflicts),
    ("cp.async instructions", ("instructions: cp.async",), one("smsp__inst_executed_op_ldgsts")),
    ("ldmatrix instructions", ("instructions: ldmatrix",), one("smsp__inst_executed_op_ldsm")),
    ("mma.sync instructions", ("instructions: mma",), one("smsp__inst_executed_pipe_tensor_op_hmma")),
    ("wgmma instructions", ("instructions: wgmma",), one("smsp__inst_executed_pipe_tensor_op_gmma")),
)  # fmt: skip


def page(data: dict[str, Any]) -> str:
    """The comparison as a page."""
    about = data["about"]
    lines = [
        "# The host device's counters against Nsight Compute's", "",
        f"{about['gpu']}, Nsight Compute {about['ncu']}. Made by `benchmarks/counters.py`; every metric that was read "
        "is in the JSON.", "",
        "Bank conflicts are Nsight Compute's wavefronts less the fewest possible (`memory_l1_wavefronts_shared` and "
        "`_ideal`); its `l1tex__data_bank_conflicts` holds waiting for other reasons, too. The host counts the `gpu` "
        "level: LLVM reads neighbouring elements that every thread wants with one wider load (row_softmax), and ptxas "
        "adds instructions of its own. Misses of L2 are no fewer than the sectors that are touched, and more where "
        "blocks ask for a sector again before it has come.", "",
    ]  # fmt: skip
    probes = {n: k for n, k in data["kernels"].items() if n.startswith("probe")}
    for name, kernel in data["kernels"].items():
        if name in probes:
            continue
        lines += [f"## {name}", "", "| counter | host | Nsight Compute | ratio |", "|---|---|---|---|"]
        for words, keys, pick in COMPARED:
            host, card = sum(kernel["host"].get(k, 0) for k in keys), pick(kernel["ncu"])
            if words == "shared bank conflicts" and not kernel["host"].get("shared wavefronts"):
                continue
            if words != "shared bank conflicts" and not host and (not card or words.startswith("mma.sync")):
                continue
            ratio = "" if card is None else "1.00" if host == card else f"{host / card:.2f}" if card else "-"
            shown = "not read" if card is None else f"{card:,.0f}"
            lines.append(f"| {words} | {host:,} | {shown} | {ratio} |")
        kinds = {k.removeprefix("instructions: "): v for k, v in kernel["host"].items() if k.startswith("instructions")}
        total = kernel["ncu"].get("smsp__inst_executed")
        listed = ", ".join(f"{k} {v:,}" for k, v in sorted(kinds.items()))
        executed = "not read" if total is None else f"{total:,.0f}"
        made = f"{sum(kinds.values()):,} at the `gpu` level ({listed})"
        lines += ["", f"Warp instructions: {made}; {executed} executed.", ""]
    return "\n".join([*lines, *_probe_table(probes)]) + "\n"


def _probe_table(probes: dict[str, dict[str, Any]]) -> list[str]:
    lines = [
        "## Loads of one warp from shared memory", "", "f32 per lane, from the element that the expression in the lane "
        "`t` gives; the passes over the banks that the load takes.", "",
        "| f32 | from element | wavefronts, host | Nsight Compute | conflicts, host | Nsight Compute |",
        "|---|---|---|---|---|---|",
    ]  # fmt: skip
    for name, p in probes.items():
        cells = []
        metrics = {"wavefronts": "data_pipe_lsu_wavefronts", "bank conflicts": "data_bank_conflicts_pipe_lsu"}
        for key, metric in metrics.items():
            card = p["ncu"].get(f"l1tex__{metric}_mem_shared_op_ld")
            cells += [f"{p['host'][f'shared load {key}']}", "not read" if card is None else f"{card:.0f}"]
        lines.append(f"| {name.split('_')[1]} | `{p['knobs']}` | {' | '.join(cells)} |")
    return lines


def main() -> int:
    """The program; returns its exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["compile", "run", "launch", "page"])
    parser.add_argument("folder", type=Path, help="the saved kernels; for `launch` the JSON file of one")
    parser.add_argument("-o", "--output", type=Path, default=Path("counters.json"), metavar="OUT.json")
    options = parser.parse_args()
    if options.what == "compile":
        compile_all(options.folder)
    elif options.what == "launch":
        launch_one(options.folder)
    elif options.what == "run":
        run_all(options.folder, options.output)
    else:
        data = json.loads(options.output.read_text())
        for kernel in saved_kernels.load_all(options.folder):
            data["kernels"][kernel.name]["host"] = kernel.counters
        options.output.write_text(json.dumps(data, indent=1, sort_keys=True) + "\n")
        options.output.with_suffix(".md").write_text(page(data))
    return 0


if __name__ == "__main__":
    sys.exit(run_main(main))
