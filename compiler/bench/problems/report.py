"""What a run over problems says: a line per problem, and per level how many are right and how fast."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mlirc.bench.compiling import geometric_mean
from mlirc.bench.report import is_right, kernel_lines, markdown_table, rows

FAST = (0.5, 0.8, 1.0, 1.5, 2.0)
HEAD = (
    "problem",
    "verdict",
    "error",
    "eager's",
    "mlirc us",
    "eager us",
    "compile us",
    "bound us",
    "of bound",
    "vs best",
)


def is_finished(record: dict[str, Any], gpu: bool = True) -> bool:
    """Whether nothing is left to do: it ran (or compiled, without a `gpu`), or it could not be compiled or run."""
    result = record.get("result", {})
    return has_failed(record) or "check" in result or (not gpu and "launches" in record.get("info", {}))


def has_failed(record: dict[str, Any]) -> bool:
    """Whether it could not be compiled or run, or was wrong."""
    result = record.get("result", {})
    wrong = "check" in result and not is_right(record)
    return "error" in record.get("info", {}) or "error" in result or wrong


def outcome(record: dict[str, Any]) -> str:
    """One line about one problem."""
    info, result = record.get("info", {}), record.get("result", {})
    if "error" in info:
        return f"compile: {info['error']}"
    if "skipped" in result:
        return str(result["skipped"])
    if "error" in result:
        return f"run: {result['error']}"
    if "check" not in result:
        peak = info.get("peak_bytes", 0) / 2**30
        return f"{info['launches']} launches, {info['cpu_seconds']:.1f} s of CPU time, at most {peak:.1f} GiB"
    errors = ", ".join(f"{o['error']:.1e}" for o in result["check"]["outputs"])
    times = ", ".join(f"{n} {t['median_us']:.1f} us" for n, t in result.get("times", {}).items())
    bound = f", bound {result['bound_us']:.1f} us" if "bound_us" in result else ""
    return f"{result['check']['verdict']} {errors}; {times}{bound}"


def speedup(record: dict[str, Any], peer: str = "eager") -> float | None:
    """The peer's time over ours, for a problem that is right; None where either was not measured."""
    times = record.get("result", {}).get("times", {})
    if not is_right(record) or "mlirc" not in times or peer not in times:
        return None
    return float(times[peer]["median_us"]) / float(times["mlirc"]["median_us"])


def level_line(name: str, records: Sequence[dict[str, Any]]) -> list[str]:
    """A level's row: problems, compiled, right, the geometric means against the peers, fast_p for each p of FAST."""
    compiled = [r for r in records if r.get("info", {}).get("launches") is not None]
    cells = [name, str(len(records)), str(len(compiled)), str(sum(map(is_right, records)))]
    for peer in ("eager", "compile"):
        found = [s for r in records if (s := speedup(r, peer)) is not None]
        cells.append(f"{geometric_mean(found):.2f}x of {len(found)}" if found else "")
    speeds = [speedup(r) for r in records]
    for p in FAST:
        cells.append(f"{100 * sum(s is not None and s > p for s in speeds) / len(records):.0f}%" if any(speeds) else "")
    return cells


LEVEL_HEAD = ("level", "problems", "compiled", "right", "vs eager", "vs torch.compile", *(f"fast_{p:g}" for p in FAST))


def level_rows(records: Sequence[dict[str, Any]]) -> list[list[str]]:
    """A row per level, and one for all where there are several."""
    levels: dict[str, list[dict[str, Any]]] = {}
    for record in records:
        levels.setdefault(record["case"]["suite"], []).append(record)
    found = [level_line(name, members) for name, members in levels.items()]
    return found + [level_line("all", records)] if len(found) > 1 else found


def markdown(data: dict[str, Any]) -> str:
    """The whole result file as a Markdown page."""
    about = ", ".join(f"{k} {v}" for k, v in data["about"].items() if v and not isinstance(v, (dict, list)))
    lines = ["# Results: problems", "", about + ".", ""]
    lines += [
        "Medians in microseconds, L2 cache cold. `vs`: geometric mean of the peer's time over ours, over the problems"
    ]
    lines += ["that are right; fast_p: the share of all problems that are right and faster than eager by p.", ""]
    lines += markdown_table(LEVEL_HEAD, level_rows(data["results"])) + [""]
    lines += markdown_table(HEAD, rows(data["results"]))
    for record in data["results"]:
        lines += kernel_lines(record)
    return "\n".join(lines) + "\n"


def print_table(records: Sequence[dict[str, Any]]) -> None:
    """What failed, and the levels, last on the terminal."""
    for record in records:
        if not is_right(record) and not ("launches" in record.get("info", {}) and not record.get("result")):
            print(f"{record['case']['name']}: {outcome(record)}"[:200])
    body = [list(LEVEL_HEAD), *level_rows(records)]
    widths = [max(len(row[i]) for row in body) for i in range(len(LEVEL_HEAD))]
    for row in body:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
