"""Results as tables: short ones for the terminal, Markdown ones to keep."""

from __future__ import annotations

import datetime
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mlirc.bench.compiling import geometric_mean

PEERS = {
    "transformers": "transformers without a CUDA graph", "eager": "eager", "compile": "torch.compile",
    "max-autotune": "max-autotune",
}  # fmt: skip


def environment() -> dict[str, Any]:
    """What a reader needs to judge the figures: date, GPU, driver, versions, clocks, commit. Works without a GPU."""
    import torch
    import transformers

    import mlirc

    found: dict[str, Any] = {
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "mlirc": mlirc.__version__,
        "torch": torch.__version__,
        "transformers": transformers.__version__,
    }
    if torch.cuda.is_available():
        found |= {"gpu": torch.cuda.get_device_name(), "cuda": torch.version.cuda}
        query = "driver_version,clocks.sm,clocks.mem,power.limit,temperature.gpu"
        answer = _output(["nvidia-smi", f"--query-gpu={query}", "--format=csv,noheader", "-i", "0"])
        found |= dict(zip(query.split(","), [a.strip() for a in answer.split(",")], strict=False))
    return found


def commit() -> str:
    """The source's commit, with `+` after it when files differ from it; "" outside of a checkout."""
    here = str(Path(__file__).resolve().parent)
    head = _output(["git", "-C", here, "rev-parse", "--short=12", "HEAD"])
    changed = _output(["git", "-C", here, "status", "--porcelain", "--untracked-files=no"])
    return head + ("+" if head and changed else "")


def _output(command: list[str]) -> str:
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ""


HEAD = (
    "case", "verdict", "error", "eager's", "mlirc us", "eager us", "compile us", "bound us", "of bound", "vs best",
    "no graph us",
)  # fmt: skip


def rows(results: Sequence[dict[str, Any]]) -> list[tuple[str, ...]]:
    """One row of text per result, in HEAD's columns."""
    return [_row(r) for r in results]


def timed_parts(results: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Results of which each has one set of times: one with several parts (a step of decoding, a prompt) is several."""
    found = []
    for record in results:
        parts = record.get("result", {}).get("parts", {})
        for name, part in parts.items():
            case, rest = record["case"], {k: v for k, v in record["result"].items() if k != "parts"}
            shown = f"{re.split(r'[.](?:decode|verify|prefill)[0-9]', case['name'])[0]}.{name}"
            found.append({**record, "case": {**case, "name": shown}, "result": {**rest, **part}})
        found += [] if parts else [record]
    return found


def _row(record: dict[str, Any]) -> tuple[str, ...]:
    result = record.get("result", {})
    if "check" not in result:
        why = result.get("error") or result.get("skipped") or record["info"].get("error") or "not run"
        stage = "compile" if record["info"].get("error") else "skipped" if "skipped" in result else "run"
        return (record["case"]["name"], f"{stage}: {why}"[:90], *[""] * (len(HEAD) - 2))
    check = result["check"]
    worst = max(check["outputs"], key=lambda o: (o["verdict"] == "FAIL", o["error"]))
    verdict = check["verdict"] + (f" ({', '.join(check['changed'])} changed)" if check["changed"] else "")
    if "time_error" in result:
        verdict += f"; timing: {result['time_error']}"[:60]
    times = {n: t["median_us"] for n, t in result.get("times", {}).items()}
    mine = times.get("mlirc")
    peers = [t for n, t in times.items() if n != "mlirc"]
    bound = result.get("bound_us")
    return (
        record["case"]["name"],
        verdict,
        f"{worst['error']:.1e}",
        "" if worst["eager_error"] is None else f"{worst['eager_error']:.1e}",
        _us(mine),
        _us(times.get("eager")),
        _us(times.get("max-autotune") or times.get("compile")),
        _us(bound),
        f"{100 * bound / mine:.0f}%" if bound and mine else "",
        f"{min(peers) / mine:.2f}x" if peers and mine else "",
        _us(times.get("transformers")),
    )


def _us(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:.2f}" if value < 100 else f"{value:,.0f}"


def summary(results: Sequence[dict[str, Any]]) -> list[str]:
    """Lines that sum up: how many are right, and the geometric mean of the speed-up over each peer.

    A case that failed counts with the speed of PyTorch eager, to which a user would fall back.
    """
    right = [r for r in results if is_right(r)]
    lines = [f"{len(right)} of {len(results)} right"]
    for peer, shown in PEERS.items():
        ratios, wins = [], 0
        for record in results:
            times = record.get("result", {}).get("times", {})
            if peer not in times or "mlirc" not in times:
                continue
            failed = not is_right(record)
            mine = times.get("eager", times[peer]) if failed else times["mlirc"]
            ratios.append(times[peer]["median_us"] / mine["median_us"])
            wins += ratios[-1] > 1 and not failed
        if ratios:
            mean = geometric_mean(ratios)
            lines.append(f"against {shown}: {mean:.2f}x (geometric mean of {len(ratios)}), faster in {wins}")
    suspicious = [r["case"]["name"] for r in results if _too_fast(r)]
    if suspicious:
        lines.append(f"faster than the bound, so the measurement is wrong: {', '.join(suspicious)}")
    return lines


def is_right(record: dict[str, Any]) -> bool:
    """Whether a case ran and its result passed."""
    return str(record.get("result", {}).get("check", {}).get("verdict", "error")).startswith("ok")


def _too_fast(record: dict[str, Any]) -> bool:
    result = record.get("result", {})
    return any(t["median_us"] < 0.97 * result["bound_us"] for t in result.get("times", {}).values())


def worst(results: Sequence[dict[str, Any]], count: int = 10) -> list[tuple[str, float]]:
    """The cases furthest behind their best peer: (name, our time over the peer's)."""
    found = []
    for record in results:
        times = {n: t["median_us"] for n, t in record.get("result", {}).get("times", {}).items()}
        mine = times.pop("mlirc", None)
        if mine and times:
            found.append((record["case"]["name"], mine / min(times.values())))
    return sorted(found, key=lambda x: -x[1])[:count]


def kernel_rows(record: dict[str, Any], limit: int = 16) -> list[tuple[str, ...]]:
    """The costliest kernels of one result: kernel, script, calls, us per call, bound, us per run, MB that a call moves,
    GB/s, origin."""
    found = record.get("result", {}).get("kernels", [])[:limit]
    return [
        (
            k["kernel"], k["script"], str(k["calls"]), _us(k["us_per_call"]) + (" (hot)" if k["hot"] else ""),
            _us(k["bound_us_per_call"]), _us(k["us_per_run"]), f"{k['bytes_per_call'] / 1e6:.3g}",
            f"{k['bytes_per_call'] / k['us_per_call'] / 1e3:,.0f}" if k["us_per_call"] else "",
            ", ".join(k["origin"][:1]),
        )
        for k in found
    ]  # fmt: skip


KERNEL_HEAD = ("kernel", "script", "calls", "us/call", "bound", "us/run", "MB", "GB/s", "origin")


def kernel_sum(record: dict[str, Any]) -> str:
    """What all kernels take alone beside what the whole takes, as one line."""
    kernels, whole = record["result"]["kernels"], record["result"]["times"]["mlirc"]["median_us"]
    total, launches = sum(k["us_per_run"] for k in kernels), sum(k["launches"] for k in kernels)
    return f"{launches} launches take {total:,.1f} us one by one, and {whole:,.1f} us as one graph"


def kernel_lines(record: dict[str, Any]) -> list[str]:
    """A page's part about the kernels of one result; nothing where they were not timed."""
    if not (found := kernel_rows(record)):
        return []
    table = markdown_table(KERNEL_HEAD, found)
    return ["", f"## Kernels of {record['case']['name']}", "", *table, "", f"{kernel_sum(record)}."]


def details(record: dict[str, Any]) -> list[str]:
    """What else is known of a result, a line each: memory, the time to the first token, peers that failed, notes."""
    result, lines = record.get("result", {}), []
    if "first_token" in result:
        found = {name: f"{name} {t['median_us'] / 1e3:,.3f} ms" for name, t in result["first_token"].items()}
        lines.append(f"time to the first token: {', '.join(found.values())}, by the host's clock")
    if "through_engine" in result:
        found = result["through_engine"]["median_us"]
        lines.append(f"{found:,.1f} us a step through the engine, with each token on the host, by the host's clock")
    if "through_engine_ahead" in result:
        found = result["through_engine_ahead"]["median_us"]
        lines.append(
            f"{found:,.1f} us where the next step begins before that, as the scheduler has it (L2 not flushed)"
        )
    if "sampling" in result:
        lines.append(f"{result['sampling']['median_us']:,.1f} us a step that samples, in its graph")
    if "memory" in result:
        lines.append(_memory(result["memory"]))
    lines += [f"{name}: {why}" for name, why in result.get("peer_errors", {}).items()]
    return [*lines, *(f"note: {note}" for note in record.get("info", {}).get("notes", []))]


def _memory(found: dict[str, Any]) -> str:
    arena = max(found["arenas"].values())
    text = f"memory: weights {_mb(found['weights'])}, cache {_mb(found['cache'])}, activations {_mb(arena)}"
    text += f", together {_mb(found['needed'])}"
    if "peak" in found:
        text += f"; peak {_mb(found['peak'])}, {100 * found['over']:+.1f} %"
    return text


def _mb(count: int) -> str:
    return f"{count / 1e6:,.1f} MB"


def markdown(data: dict[str, Any]) -> str:
    """The whole result file as a Markdown page."""
    about = data["about"]
    results = timed_parts(data["results"])
    title = ", ".join(dict.fromkeys(r["case"]["suite"] for r in results))
    lines = [f"# Results: {title}", ""]
    lines += [", ".join(f"{k} {v}" for k, v in about.items() if v and not isinstance(v, dict)) + ".", ""]
    lines += [
        "Medians in microseconds; every contender in CUDA graphs, interleaved, L2 cache cold; errors are relative"
    ]
    lines += ["Frobenius norms against FP64; docs/benchmarking.md says how each figure is taken.", ""]
    lines += [f"- {line}" for line in summary(results)] + [""]
    shown = _shown(rows(results))
    lines += markdown_table([HEAD[i] for i in shown], [[row[i] for i in shown] for row in rows(results)])
    behind = worst(results)
    if behind:
        lines += ["", "Furthest behind the best peer: " + ", ".join(f"{n} {x:.1f}x" for n, x in behind) + "."]
    for record in results:
        if found := details(record):
            lines += ["", f"## {record['case']['name']}", "", *(f"- {line}" for line in found)]
        lines += kernel_lines(record)
    return "\n".join(lines) + "\n"


def _shown(body: Sequence[tuple[str, ...]]) -> list[int]:
    """The columns in which something is, the last one only then."""
    last = len(HEAD) - 1
    return [i for i in range(len(HEAD)) if i < last or any(row[i] for row in body)]


def markdown_table(head: Sequence[str], body: Sequence[Sequence[str]]) -> list[str]:
    """The lines of a table; `|` and line breaks in cells are escaped."""

    def line(cells: Sequence[str]) -> str:
        return "| " + " | ".join(c.replace("|", "\\|").replace("\n", " ") for c in cells) + " |"

    return [line(head), "|" + "---|" * len(head), *map(line, body)]


def print_table(data: dict[str, Any]) -> None:
    """The short table, last on the terminal."""
    from rich.console import Console
    from rich.table import Table

    console = Console(width=None if _is_terminal() else 200)
    results = timed_parts(data["results"])
    table = Table(box=None, header_style="bold", pad_edge=False)
    shown = [i for i in range(len(HEAD)) if i < 2 or any(r[i] for r in rows(results))]
    for i in shown:
        table.add_column(HEAD[i], justify="left" if i < 2 else "right", overflow="fold")
    for row in rows(results):
        colour = "red" if not row[1].startswith("ok") else ""
        table.add_row(*[row[i] for i in shown], style=colour)
    console.print(table)
    for line in summary(results):
        console.print(line, highlight=False)
    for record in results:
        _print_details(console, record)


def _print_details(console: Any, record: dict[str, Any]) -> None:
    """What else is known of one result, with its costliest kernels."""
    from rich.markup import escape
    from rich.table import Table

    found, kernels = details(record), kernel_rows(record)
    if not found and not kernels:
        return
    console.print(f"\n{record['case']['name']}", style="bold", highlight=False)
    for line in found:
        console.print(escape(line), highlight=False)
    if kernels:
        table = Table(box=None, pad_edge=False)
        for i, name in enumerate(KERNEL_HEAD):
            table.add_column(name, justify="left" if i in (0, 1, 8) else "right", overflow="fold")
        for row in kernels:
            table.add_row(*map(escape, row))
        console.print(table)
        console.print(kernel_sum(record), highlight=False)


def _is_terminal() -> bool:
    import sys

    return sys.stdout.isatty()
