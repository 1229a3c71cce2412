"""Counters for speed work, per kernel and per operation.

- Shared memory: requests (one per warp and instruction) and wavefronts, the passes over the 32 four-byte banks that
  they take. A wavefront serves a whole warp for accesses of up to 4 bytes, 16 lanes for 8 bytes and 8 lanes for 16
  bytes, twice as many where neighbours (lanes i and i xor 1, or i and i xor 2) all want the same; ldmatrix reads eight
  rows of 16 bytes at a time. Lanes of a wavefront that want different words of one bank take turns.
- Global memory: requests, and the 32-byte sectors that they touch.
  Both in total and by path: load, store, copy (cp.async, which reads global and writes shared memory), matrix
  (ldmatrix and stmatrix), wgmma (what it reads through descriptors).
- Bytes that the threads asked for, and warp instructions by kind (operations of the `gpu` level; a vector operation
  counts once per element).
"""

from __future__ import annotations

import numpy as np

from mlirc.host.device.numbers import vector_shape
from mlirc.host.device.report import Report

_BANK, _BANKS, _SECTOR, WARP = 4, 32, 32, 32
# Accesses that are neither plain loads nor plain stores: hardware counters keep them apart, too.
_PATHS = {"nvgpu.device_async_copy": "copy", "nvgpu.ldmatrix": "matrix", "nvvm.ldmatrix": "matrix",
          "nvvm.stmatrix": "matrix", "nvvm.cp.async.shared.global": "copy"}  # fmt: skip


def wavefronts(byte: np.ndarray, size: int, active: np.ndarray | None, merge: bool = True) -> tuple[int, int]:
    """(wavefronts, the fewest possible) of shared accesses: `byte` [warps, lanes] first bytes, `size` bytes each.
    `merge`: neighbours that want the same share a wavefront."""
    lanes = min(byte.shape[1], max(8, min(32, 128 // size)))
    active = np.ones(byte.shape, bool) if active is None else active
    if size < 8 or byte.shape[1] < 32 or not merge:
        return _turns(byte.reshape(-1, lanes), size, active.reshape(-1, lanes))
    rows, on = byte.reshape(-1, 2 * lanes), active.reshape(-1, 2 * lanes)
    lane = np.arange(2 * lanes)
    same = [((rows == rows[:, lane ^ k]) | ~on | ~on[:, lane ^ k]).all(axis=1) for k in (1, 2)]
    pairs = same[0] | same[1]
    together = _turns(rows[pairs], size, on[pairs])
    apart = _turns(rows[~pairs].reshape(-1, lanes), size, on[~pairs].reshape(-1, lanes))
    return together[0] + apart[0], together[1] + apart[1]


def _turns(byte: np.ndarray, size: int, active: np.ndarray) -> tuple[int, int]:
    """Wavefronts of rows of lanes that each would like to be one, and the number of rows with an active lane."""
    if not len(byte):
        return 0, 0
    per = max(size // _BANK, 1)
    words = (byte[..., None] // _BANK + np.arange(per)).reshape(len(byte), -1)
    words = np.where(np.repeat(active, per, axis=1), words, -1)
    words.sort(axis=1)
    fresh = np.ones(words.shape, bool)
    fresh[:, 1:] = words[:, 1:] != words[:, :-1]
    fresh &= words >= 0
    bank = np.where(fresh, words % _BANKS, _BANKS)
    row = np.arange(len(words))[:, None]
    table = np.bincount((row * (_BANKS + 1) + bank).ravel(), minlength=len(words) * (_BANKS + 1))
    most = table.reshape(-1, _BANKS + 1)[:, :_BANKS].max(axis=1)
    return int(most.sum()), int((most > 0).sum())


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

    def access(self, space: str, byte: np.ndarray, size: int, mask: np.ndarray | None, write: bool, op) -> None:
        """Counts an access of every active thread: `byte` [blocks, threads] addresses within a block's memory or the
        buffer."""
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
        self.report.traffic(self.kernel, op, space, requests, taken, least)

    def wgmma(self, chunks: np.ndarray) -> None:
        """Counts a wgmma's read of an operand: first bytes [n, 8] of chunks of 16 bytes that are read together."""
        taken, least = wavefronts(chunks, 16, None, merge=False)
        self.add("shared wavefronts", taken)
        self.add("shared wgmma wavefronts", taken)
        self.add("shared bank conflicts", taken - least)

    def add(self, counter: str, amount: int) -> None:
        self.report.count(self.kernel, counter, amount)


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
    dialect, _, name = op.name.partition(".")
    if dialect not in ("arith", "math") or name in ("constant", "index_cast", "index_castui", "bitcast"):
        return None
    elements = int(np.prod(vector_shape(op.results[0].type)))
    if name in _INTEGER_NAMES:
        return "integer", elements
    if name.startswith("ext") or name.startswith("trunc") or "tofp" in name or "fpto" in name:
        return "convert", elements
    return "float", elements
