"""Copies between tensors of a call's sizes and the buffers at the bound, on a GPU and to and from the host."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from mlirc.errors import MlircError
from mlirc.runtime.arrays import NUMPY_DTYPES, View
from mlirc.runtime.fitting import Rows, put, rows_of, shape_of
from mlirc.runtime.plan import DTYPE_BYTES, Plan, TensorSpec
from mlirc.runtime.resources import upload
from mlirc.runtime.sizes import Dims

_MAX_PITCH = (1 << 31) - 1  # bytes, CU_DEVICE_ATTRIBUTE_MAX_PITCH of every GPU so far


def solve(plan: Plan, seen: list[View], specs: list[TensorSpec]) -> dict[str, int]:
    """The sizes that inputs have, none where the plan has none. Raises MlircError where they do not fit it."""
    return plan.sizes.solve(plan.sizes.shapes([s.name for s in specs], seen)) if plan.sizes else {}


def actual(plan: Plan, spec: TensorSpec, sizes: Mapping[str, int]) -> TensorSpec:
    """An input or output as a call with these sizes has it."""
    dims = dims_of(plan, spec)
    return replace(spec, shape=shape_of(dims, sizes)) if dims and sizes else spec


def dims_of(plan: Plan, spec: TensorSpec) -> Dims | None:
    """The symbolic dimensions of an input or output; None for one of static shape."""
    if plan.sizes is None:
        return None
    return (plan.sizes.outputs if spec.kind == "output" else plan.sizes.inputs).get(spec.name)


def host_array(seen: View) -> np.ndarray:
    """A dense tensor on the host as a NumPy array of the same memory."""
    dtype = NUMPY_DTYPES[seen.dtype]
    if not seen.nbytes:
        return np.empty(seen.shape, dtype)
    memory = (ctypes.c_uint8 * seen.nbytes).from_address(seen.pointer)
    array = np.ctypeslib.as_array(memory).view(dtype).reshape(seen.shape)
    memory.owner = seen.owner  # type: ignore[attr-defined]  # which the array keeps alive through its base
    return array


def put_input(
    driver: Any, target: int, seen: View, spec: TensorSpec, dims: Dims, sizes: Mapping[str, int], stream: int
) -> None:
    """Copies an input into its buffer at the bound."""
    if seen.device is None:
        room = np.zeros(spec.shape, NUMPY_DTYPES[spec.dtype])
        put(host_array(seen), room, dims, sizes)
        upload(driver, target, View(room.ctypes.data, None, spec.dtype, spec.shape, True, room, "numpy"), stream)
        return
    for rows in rows_of(dims, sizes, DTYPE_BYTES[spec.dtype]):
        _copy(driver, target + rows.outer, rows.pitch, seen.pointer + rows.inner, rows.width, rows, stream)


def take_output(driver: Any, source: int, made: View, dims: Dims, sizes: Mapping[str, int], stream: int) -> None:
    """Copies an output out of its buffer at the bound, to where it lies on the device or on the host."""
    for rows in rows_of(dims, sizes, DTYPE_BYTES[made.dtype]):
        target, start = made.pointer + rows.inner, source + rows.outer
        if made.device is not None:
            _copy(driver, target, rows.width, start, rows.pitch, rows, stream)
            continue
        for i in range(rows.count):
            driver.copy_out(target + i * rows.width, start + i * rows.pitch, rows.width, stream)


def _copy(driver: Any, target: int, target_pitch: int, source: int, source_pitch: int, rows: Rows, stream: int) -> None:
    if rows.count == 1:
        driver.copy(target, source, rows.width, stream)
    elif rows.pitch <= _MAX_PITCH:
        driver.copy_rows(target, target_pitch, source, source_pitch, rows.width, rows.count, stream)
    else:
        for i in range(rows.count):
            driver.copy(target + i * target_pitch, source + i * source_pitch, rows.width, stream)


def check_sized(seen: View, spec: TensorSpec) -> None:
    """Raises MlircError unless a tensor has the dtype that the plan says, and is dense; its shape is judged by
    `solve`."""
    if seen.dtype != spec.dtype:
        raise MlircError(f"{spec.kind} '{spec.name}': got {seen}, but the model was compiled for {spec.dtype}")
    if not seen.contiguous:
        raise MlircError(f"{spec.kind} '{spec.name}': not contiguous: call .contiguous() on it first")
