"""The table that `mlirc -v` prints: one row per distinct kernel."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any


def kernel_table(job: Any, *, full: bool = False) -> str:
    """The kernels of a finished compilation, in order of first call, and a summary line. `full` adds the scripts' knobs
    and keeps long cells whole, and says below what was chosen for the products."""
    from mlirc.ir import levels

    functions = levels.kernels(job.modules["kernels"])
    calls = Counter(launch.kernel for launch in job.plan.launches)
    head = ("kernel", "calls", "origin", "shapes", "script", "grid", "block", "shared", "compile")
    rows = []
    for name, build in job.builds.items():
        launches = [x for x in build.launches if hasattr(x, "grid")]
        function = functions.get(name)
        rows.append(
            (
                name,
                str(calls[name] // max(len(launches), 1)),
                _shorten(_origin(levels.strings(function, "mlirc.origin") if function else []), 40, full),
                _shorten(_shapes(function) if function else "", 56, full),
                shown_script(job.records.get(name), full),
                " ".join("x".join(map(str, _trim(x.grid))) for x in launches),
                " ".join(str(x.block[0] * x.block[1] * x.block[2]) for x in launches),
                " ".join(f"{x.smem + _static_shared(build.ptx, x.symbol)}" for x in launches),
                "cached" if build.cached else f"{sum(build.seconds.values()):.2f} s",
            )
        )
    total = f"{len(rows)} kernels, {len(job.plan.launches)} launches, arena {job.plan.arena_size / 2**20:.1f} MiB"
    if job.plan.unpacked_size:
        total += f" ({job.plan.unpacked_size / 2**20:.1f} MiB unpacked)"
    return "\n".join([table(head, rows), total, *_reasons(job), *_waste(job), *(_notes(job) if full else [])])


def _reasons(job: Any) -> list[str]:
    """Why kernels got the generic script, equal reasons together."""
    kernels: dict[str, list[str]] = {}
    for name in job.builds:
        if (record := job.records.get(name)) and record.reason:
            kernels.setdefault(record.reason, []).append(name)
    return [f"{_origin(names, 6)}: generic, a thread an element: {reason}" for reason, names in kernels.items()]


def _waste(job: Any) -> list[str]:
    """What the kernels' tiles waste."""
    from mlirc.passes.distribute.products.notes import noted_waste

    return [f"{name}: {line}" for name, build in job.builds.items() for line in noted_waste(build.gpu)]


def _notes(job: Any) -> list[str]:
    """What was chosen for the products and layouts of each kernel."""
    from mlirc.passes.distribute.products.notes import noted

    return [f"{name}: {line}" for name, build in job.builds.items() for line in noted(build.gpu)]


def table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    """Plain text columns, two spaces apart."""
    widths = [max(len(row[i]) for row in [head, *rows]) for i in range(len(head))]
    lines = ["  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip() for row in [head, *rows]]
    return "\n".join([lines[0], "-" * max(map(len, lines)), *lines[1:]])


def _trim(dims: tuple[int, ...]) -> list[int]:
    kept = list(dims)
    while len(kept) > 1 and kept[-1] == 1:
        kept.pop()
    return kept


def _origin(paths: list[str], limit: int = 2) -> str:
    shown = ", ".join(paths[:limit])
    return shown + (f" +{len(paths) - limit}" if len(paths) > limit else "")


def _shorten(text: str, limit: int, full: bool) -> str:
    """Cuts the middle out of a long cell: paths and shapes differ at both ends."""
    if full or len(text) <= limit:
        return text
    return text[: limit // 2 - 1] + ".." + text[len(text) - limit // 2 + 1 :]


def shown_script(record: Any, full: bool) -> str:
    """A script as `--schedule` takes it back; `full`: with the knobs that were given or chosen."""
    if record is None:
        return "given"
    if not full:
        return record.script
    shown = ",".join(f"{k}={v}" for k, v in record.knobs.items() if v is not None)
    return record.script + (f":{shown}" if shown else "")


def _shapes(function: Any) -> str:
    def short(type_: Any) -> str:
        return f"{type_.element_type}[{','.join(map(str, type_.shape))}]"

    return f"{' '.join(map(short, function.type.inputs))} -> {' '.join(map(short, function.type.results))}"


def _static_shared(ptx: str, symbol: str) -> int:
    """Bytes of the `.shared` arrays that the entry declares for itself, or that the file declares for its entries."""
    import re

    sizes = re.findall(r"^\s*\.shared \.align \d+ \.b8 (\w+)\[(\d+)\];", ptx, flags=re.MULTILINE)
    return sum(int(size) for name, size in sizes if name.startswith(symbol) or "$" not in name)
