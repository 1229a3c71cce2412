"""Kernels on disk, with inputs and what the host device made of them: written where MLIR is, launched where a GPU is.

`NAME.ptx`, `NAME.npz` (a0, a1, ... the arguments, h1, ... the host device's results) and `NAME.json`. Reading them
needs NumPy and cuda-bindings only; `sh benchmarks/run.sh SCRIPT ...` runs a script from a checkout that is not
installed."""

from __future__ import annotations

import ctypes
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from mlirc.errors import MlircError
from mlirc.runtime.cuda import CopyCall, Driver, KernelCall
from mlirc.runtime.tensor_map import maps_from_json

FORMAT = 1


@dataclass
class Argument:
    """One argument: dtype by name (bf16 and the 8-bit floats travel as unsigned integers), whether the kernel writes
    it, and for a tensor map the box (innermost dimension last) and the swizzle in bytes. For im2col the box is pixels
    and channels, and the corners are those of mlirc.device.tensor_maps."""

    dtype: str
    written: bool
    box: list[int] = field(default_factory=list)
    swizzle: int = 0
    lower: list[int] = field(default_factory=list)
    upper: list[int] = field(default_factory=list)


@dataclass
class SavedKernel:
    """A kernel, its launches (as of mlirc.backend.kernel, as dictionaries) and its arguments. `exact`: the GPU must
    give the host's bits; else `tolerance` is the largest difference allowed, relative to the largest result."""

    name: str
    ptx: str
    launches: list[dict[str, Any]]
    workspaces: list[int]
    arguments: list[Argument]
    data: list[np.ndarray]
    host: dict[int, np.ndarray]
    exact: bool = False
    tolerance: float = 0.0
    counters: dict[str, int] = field(default_factory=dict)
    note: str = ""

    def save(self, folder: Path) -> None:
        """Writes the three files."""
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{self.name}.ptx").write_text(self.ptx)
        arrays = {f"a{i}": _plain(a) for i, a in enumerate(self.data)}
        arrays |= {f"h{i}": _plain(a) for i, a in self.host.items()}
        np.savez_compressed(folder / f"{self.name}.npz", **arrays)  # type: ignore[arg-type]
        about = {
            "format": FORMAT, "name": self.name, "launches": self.launches, "workspaces": self.workspaces,
            "arguments": [vars(a) for a in self.arguments], "exact": self.exact, "tolerance": self.tolerance,
            "counters": self.counters, "note": self.note,
        }  # fmt: skip
        (folder / f"{self.name}.json").write_text(json.dumps(about, indent=1) + "\n")


def load(path: Path) -> SavedKernel:
    """Reads a kernel by its `.json`."""
    about = json.loads(path.read_text())
    if about.get("format") != FORMAT:
        raise MlircError(f"{path}: format {about.get('format')}, not {FORMAT}: make the folder again")
    arrays = np.load(path.with_suffix(".npz"))
    arguments = [Argument(**a) for a in about["arguments"]]
    data = [arrays[f"a{i}"] for i in range(len(arguments))]
    host = {i: arrays[f"h{i}"] for i in range(len(arguments)) if f"h{i}" in arrays}
    return SavedKernel(
        about["name"], path.with_suffix(".ptx").read_text(), about["launches"], about["workspaces"], arguments, data,
        host, about["exact"], about["tolerance"], about["counters"], about["note"],
    )  # fmt: skip


def load_all(folder: Path) -> list[SavedKernel]:
    """Every kernel of a folder, by name."""
    found = sorted(folder.glob("*.json"))
    if not found:
        raise MlircError(f"{folder}: holds no saved kernels: make it with `compile`")
    return [load(path) for path in found]


def _plain(a: np.ndarray) -> np.ndarray:
    """An array whose dtype NumPy alone can read back."""
    if a.dtype.kind in "biuf" and a.dtype.isbuiltin == 1:
        return a
    return a.view(f"u{a.dtype.itemsize}")


def widened(a: np.ndarray, dtype: str) -> np.ndarray:
    """A saved array's numbers as f64."""
    if dtype == "bfloat16":
        return (a.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    return a.astype(np.float64)


def launch(driver: Driver, kernel: SavedKernel) -> dict[int, np.ndarray]:
    """Runs a kernel's launches once, in order; returns the arguments that it writes. The driver must be current."""
    loaded = driver.load(kernel.ptx, kernel.name)
    stream = driver.stream()
    arrays = [np.ascontiguousarray(a).copy() for a in kernel.data]
    buffers = [driver.alloc(a.nbytes) for a in arrays] + [driver.alloc(n) for n in kernel.workspaces]
    try:
        for pointer, a in zip(buffers, arrays, strict=False):
            driver.copy_in(pointer, a.ctypes.data, a.nbytes, stream)
        maps = {i: tensor_map(driver, buffers[i], a, arrays[i]) for i, a in enumerate(kernel.arguments) if a.box}
        for step in kernel.launches:
            _step(driver, loaded, step, buffers, maps, stream)
        written = [i for i, a in enumerate(kernel.arguments) if a.written]
        for i in written:
            driver.copy_out(arrays[i].ctypes.data, buffers[i], arrays[i].nbytes, stream)
        driver.synchronize(stream)
        return {i: arrays[i] for i in written}
    finally:
        for pointer in buffers:
            driver.free(pointer)
        driver.destroy_stream(stream)
        driver.unload(loaded)


def _step(driver: Driver, loaded, step: Mapping, buffers: Sequence[int], maps: Mapping, stream: int) -> None:
    if "symbol" not in step:
        source, target = (buffers[step[end]] + step[f"{end}_offset"] for end in ("source", "target"))
        driver.launch(CopyCall(target, source, step["size"]), stream)
        return
    function = driver.function(loaded, step["symbol"], step["smem"])
    grid, block = tuple(step["grid"]), tuple(step["block"])
    cluster = tuple(step["cluster"]) if step.get("cluster") else None
    if not maps:
        pointers = [buffers[i] + offset for i, offset in zip(step["args"], step["offsets"], strict=True)]
        specs = maps_from_json(step.get("maps", {}))
        call = KernelCall(function, step["symbol"], grid, block, step["smem"], pointers, cluster, specs)
        driver.launch(call, stream)
        return
    if cluster:
        raise MlircError("a launch with tensor maps and clusters: not supported by the saved kernels' launcher")
    # Tensor maps are passed by value: the driver wants the address of each parameter.
    values = [maps[i] if i in maps else ctypes.c_uint64(buffers[i]) for i in step["args"]]
    addresses = [v.getPtr() if hasattr(v, "getPtr") else ctypes.addressof(v) for v in values]
    table = (ctypes.c_void_p * len(addresses))(*addresses)
    result = driver.cu.cuLaunchKernel(function, *grid, *block, step["smem"], stream, ctypes.addressof(table), 0)
    driver._check(result, f"launching kernel {step['symbol']}")


def tensor_map(driver: Driver, pointer: int, a: Argument, array: np.ndarray) -> Any:
    """A CUtensorMap of a global array, as cuTensorMapEncodeTiled or cuTensorMapEncodeIm2col makes it."""
    cu, n = driver.cu, array.ndim
    types, swizzles = cu.CUtensorMapDataType, cu.CUtensorMapSwizzle
    kind = {
        "bfloat16": types.CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, "float16": types.CU_TENSOR_MAP_DATA_TYPE_FLOAT16,
        "float32": types.CU_TENSOR_MAP_DATA_TYPE_FLOAT32, "int32": types.CU_TENSOR_MAP_DATA_TYPE_INT32,
        "uint32": types.CU_TENSOR_MAP_DATA_TYPE_UINT32,
    }.get(a.dtype, types.CU_TENSOR_MAP_DATA_TYPE_UINT8)  # fmt: skip
    mode = {
        0: swizzles.CU_TENSOR_MAP_SWIZZLE_NONE, 32: swizzles.CU_TENSOR_MAP_SWIZZLE_32B,
        64: swizzles.CU_TENSOR_MAP_SWIZZLE_64B, 128: swizzles.CU_TENSOR_MAP_SWIZZLE_128B,
    }[a.swizzle]  # fmt: skip
    sizes = [cu.cuuint64_t(s) for s in array.shape[::-1]]
    strides = [cu.cuuint64_t(s) for s in array.strides[::-1][1:]]
    ones = [cu.cuuint32_t(1)] * n
    rest = (
        ones, cu.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE, mode,
        cu.CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_NONE,
        cu.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
    )  # fmt: skip
    if a.lower:
        pixels, channels = a.box
        corners = a.lower[::-1], a.upper[::-1]
        made = cu.cuTensorMapEncodeIm2col(kind, n, pointer, sizes, strides, *corners, channels, pixels, *rest)
    else:
        made = cu.cuTensorMapEncodeTiled(
            kind, n, pointer, sizes, strides, [cu.cuuint32_t(s) for s in a.box[::-1]], *rest
        )
    return driver._check(made, "encoding a tensor map")
