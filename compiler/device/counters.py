"""Counters for speed work, per kernel and per operation.

- Shared memory: requests (one per warp and instruction) and wavefronts, the passes over the banks that they take
  (`mlirc.banks`); ldmatrix reads eight rows of 16 bytes at a time.
- Global memory: requests, and the 32-byte sectors that they touch.
  Both in total and by path: load, store, copy (cp.async, which reads global and writes shared memory), matrix
  (ldmatrix and stmatrix), wgmma (what it reads through descriptors).
- Bytes that the threads asked for, and warp instructions by kind (operations of the `gpu` level; a vector operation
  counts once per element).
- The sectors of global memory that a launch reads and writes, each once: what DRAM has to move at the least.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mlirc.banks import wavefronts
from mlirc.device.memory import Buffer
from mlirc.device.numbers import vector_shape
from mlirc.device.report import Report

_SECTOR, WARP = 32, 32
# Accesses that are neither plain loads nor plain stores: hardware counters keep them apart, too.
_PATHS = {"nvgpu.device_async_copy": "copy", "nvgpu.ldmatrix": "matrix", "nvvm.ldmatrix": "matrix",
          "nvvm.stmatrix": "matrix", "nvvm.cp.async.shared.global": "copy"}  # fmt: skip


def sectors(byte: np.ndarray, size: int, active: np.ndarray | None) -> tuple[int, int]:
    """(sectors touched, the fewest that hold as many bytes) of global accesses; arguments as of `wavefronts`."""
    spans = np.stack([byte // _SECTOR, (byte + size - 1) // _SECTOR], axis=-1).reshape(len(byte), -1)
    if active is not None:
        spans = np.where(np.repeat(active, 2, axis=1), spans, -1)
    spans.sort(axis=1)
    fresh = np.ones(spans.shape, bool)
    fresh[:, 1:] = spans[:, 1:] != spans[:, :-1]
    fresh &= spans >= 0
    lanes = np.full(len(byte), byte.shape[1]) if active is None else active.sum(axis=1)
    return int(fresh.sum()), int((-(-lanes * size // _SECTOR)).sum())


class Counters:
    """What one launch adds to a report's counters."""

    def __init__(self, report: Report, kernel: str, threads: int):
        self.report, self.kernel, self.threads = report, kernel, threads

    def access(self, buffer: Buffer, byte: np.ndarray, size: int, mask: np.ndarray | None, write: bool, op) -> None:
        """Counts an access of every active thread: `byte` [blocks, threads] addresses within a block's memory or the
        buffer."""
        space = buffer.space
        lanes = min(WARP, self.threads)
        rows = np.ascontiguousarray(byte).reshape(-1, lanes)
        active = None if mask is None else np.ascontiguousarray(np.broadcast_to(mask, byte.shape)).reshape(rows.shape)
        requests = len(rows) if active is None else int(active.any(axis=1).sum())
        threads = rows.size if active is None else int(active.sum())
        verb = "stored" if write else "loaded"
        add, unit = self.add, _PATHS.get(op.name, "store" if write else "load")
        add(f"{space} requests", requests)
        add(f"{space} bytes {verb}", threads * size)
        if space not in ("shared", "global"):
            return
        add(f"{space} {unit} requests", requests)
        add(f"{space} {unit} bytes", threads * size)
        if space == "shared":
            taken, least = wavefronts(rows, size, active, unit != "matrix")
            add("shared wavefronts", taken)
            add(f"shared {unit} wavefronts", taken)
            add("shared bank conflicts", taken - least)
            add(f"shared {unit} bank conflicts", taken - least)
        else:
            taken, least = sectors(rows, size, active)
            add("global sectors", taken)
            add(f"global {unit} sectors", taken)
            self.touch(buffer, rows if active is None else rows[active], size, write)
        least = min(taken, least)  # threads may want the same
        add(f"{space} {unit} fewest", least)
        self.report.traffic(self.kernel, op, space, requests, taken, least)

    def copy(self, buffer: Buffer, first: np.ndarray, nbytes: int, write: bool, op) -> None:
        """Counts a tensor copy of `nbytes` bytes from each of `first` [n] on."""
        self.touch(buffer, first, nbytes, write)
        taken = int(((first + nbytes - 1) // _SECTOR - first // _SECTOR + 1).sum())
        least = min(taken, -(-len(first) * nbytes // _SECTOR))
        numbers = {"requests": 1, "bytes": len(first) * nbytes, "sectors": taken, "fewest": least}
        for what, amount in numbers.items():
            self.add(f"global tma {what}", amount)
        self.add("global requests", 1)
        self.add("global sectors", taken)
        self.add(f"global bytes {'stored' if write else 'loaded'}", len(first) * nbytes)
        self.report.traffic(self.kernel, op, "global", 1, taken, least)

    def touch(self, buffer: Buffer, byte: np.ndarray, size: int, write: bool) -> None:
        """Notes the sectors of a buffer that are read or written in this launch."""
        if buffer.sectors is None:
            buffer.sectors = np.zeros((2, len(buffer.data) // _SECTOR + 1), bool)
        for at in range(0, size + _SECTOR - 1, _SECTOR):
            buffer.sectors[int(write)][(byte + min(at, size - 1)) // _SECTOR] = True

    def wgmma(self, chunks: np.ndarray) -> None:
        """Counts a wgmma's read of an operand: first bytes [n, 8] of chunks of 16 bytes that are read together."""
        taken, least = wavefronts(chunks, 16, None, merge=False)
        self.add("shared wavefronts", taken)
        self.add("shared wgmma requests", 1)
        self.add("shared wgmma bytes", chunks.size * 16)
        self.add("shared wgmma wavefronts", taken)
        self.add("shared wgmma fewest", least)
        self.add("shared bank conflicts", taken - least)

    def add(self, counter: str, amount: int) -> None:
        self.report.count(self.kernel, counter, amount)


def count_sectors(report: Report, kernel: str, buffers: Sequence[Buffer]) -> None:
    """Adds what a launch read and wrote of global memory, each sector once."""
    for which, verb in enumerate(("read", "written")):
        touched = sum(int(b.sectors[which].sum()) for b in buffers if b.sectors is not None)
        report.count(kernel, f"global sectors {verb}, each once", touched)


def table(report: Report) -> str:
    """The counters as text, kernel by kernel: a line per path to memory, DRAM's least, the instructions, and the
    operations that take more sectors or wavefronts than their bytes need."""
    lines = []
    for kernel, c in report.counters.items():
        lines += [kernel, f"  {'':14}{'requests':>13}{'bytes':>17}{'sectors*':>15}{'per request':>13}{'fewest':>9}"]
        for path in sorted({n.removesuffix(" requests") for n in c if n.endswith(" requests") and n.count(" ") == 2}):
            requests, taken, least = (c.get(f"{path} {x}", 0) for x in ("requests", _UNITS[path.split()[0]], "fewest"))
            row = f"  {path:14}{requests:13,}{c.get(f'{path} bytes', 0):17,}{taken:15,}"
            lines.append(row + f"{taken / max(requests, 1):13.2f}{least / max(requests, 1):9.2f}")
        once = [_SECTOR * c.get(f"global sectors {verb}, each once", 0) for verb in ("read", "written")]
        lines.append(f"  DRAM, at the least: {once[0]:,} bytes read, {once[1]:,} bytes written")
        kinds = {n.removeprefix("instructions: "): v for n, v in sorted(c.items()) if n.startswith("instructions: ")}
        listed = ", ".join(f"{kind} {n:,}" for kind, n in kinds.items())
        lines.append(f"  warp instructions: {sum(kinds.values()):,} ({listed})")
        lines += _wasteful(report, kernel)
    lines.append("* of 32 bytes in global memory; wavefronts in shared memory")
    return "\n".join(lines)


_UNITS = {"global": "sectors", "shared": "wavefronts"}


def _wasteful(report: Report, kernel: str) -> list[str]:
    """The ten operations that take the most sectors or wavefronts beyond the fewest."""
    rows = [(t - n, key, r, t, n) for key, (r, t, n) in report.by_operation.items() if key[0] == kernel and t > n]
    lines = []
    for _, (_, space, op, place), requests, taken, least in sorted(rows, key=lambda row: -row[0])[:10]:
        much = f"{taken / requests:.2f} {_UNITS[space]} per request, {least / requests:.2f} suffice"
        lines.append(f"  {op} at {place}: {much}")
    return lines


_KINDS = {
    "nvgpu.mma.sync": "mma", "nvvm.mma.sync": "mma", "nvvm.wgmma.mma_async": "wgmma", "nvgpu.ldmatrix": "ldmatrix",
    "nvvm.ldmatrix": "ldmatrix", "nvvm.stmatrix": "stmatrix", "math.fma": "float", "vector.fma": "float",
    "gpu.shuffle": "shuffle", "gpu.barrier": "barrier", "nvvm.bar.warp.sync": "barrier",
    "nvgpu.device_async_copy": "cp.async", "memref.load": "load", "vector.load": "load", "memref.store": "store",
    "vector.store": "store",
}  # fmt: skip
_INTEGER_NAMES = ("addi", "subi", "muli", "divsi", "divui", "remsi", "remui", "andi", "ori", "xori", "shli", "shrsi",
                  "shrui", "cmpi", "minsi", "maxsi", "minui", "maxui")  # fmt: skip


def kind_of(op) -> tuple[str, int] | None:
    """The kind of instruction that an operation is, and how many of them it takes per warp; None for those that are
    none (views, conversions between index types, register shuffling)."""
    if op.name in _KINDS:
        elements = int(np.prod(vector_shape(op.results[0].type))) if op.name.endswith("fma") else 1
        return _KINDS[op.name], elements
    if op.name.startswith("nvvm.convert."):
        return "convert", 1
    dialect, _, name = op.name.partition(".")
    if dialect not in ("arith", "math") or name in ("constant", "index_cast", "index_castui", "bitcast"):
        return None
    elements = int(np.prod(vector_shape(op.results[0].type)))
    if name in _INTEGER_NAMES:
        return "integer", elements
    if name.startswith("ext") or name.startswith("trunc") or "tofp" in name or "fpto" in name:
        return "convert", elements
    return "float", elements
