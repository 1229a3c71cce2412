"""Compiles a lowered module with MLIR's ExecutionEngine and calls it with NumPy arrays."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from mlirc.errors import MlircError
from mlirc.host.bounds import Strays
from mlirc.host.lowering import find_function, lower_to_llvm
from mlirc.host.object_code import load_object, object_file
from mlirc.host.within import within
from mlirc.ir import levels
from mlirc.ir.slices_inside import require_slices_inside
from mlirc.mlir import context, execution_engine, ir
from mlirc.runtime.arrays import NUMPY_DTYPES

_DTYPES = {**NUMPY_DTYPES, "index": np.dtype(np.int64)}


@dataclass(frozen=True)
class TensorSpec:
    """Shape and NumPy dtype of one argument or result."""

    shape: tuple[int, ...]
    dtype: np.dtype


def tensor_spec(type_: ir.Type, dtype: str | None = None) -> TensorSpec:
    """The spec of a static ranked tensor type, as `dtype` where that is what its integers mean; raises MlircError for
    any other type."""
    if not isinstance(type_, ir.RankedTensorType):
        raise MlircError(f"a value of type {type_} cannot be passed on the CPU: only static ranked tensors can")
    tensor = ir.RankedTensorType(type_)
    if not tensor.has_static_shape or str(tensor.element_type) not in _DTYPES:
        raise MlircError(
            f"a tensor of type {type_} cannot be passed on the CPU: static shape and f64 f32 f16 bf16 f8 i1-i64"
        )
    return TensorSpec(tuple(tensor.shape), _DTYPES[dtype or str(tensor.element_type)])


class HostFunction:
    """One function of a module, compiled for this CPU. The engine and its code live as long as this object. `source`:
    the name of the text that the module was parsed from, for errors. With `bounds` it gives after the results an f64
    array for each, what rounding may do to its elements (`mlirc.host.rounding`), or raises Unbounded. Raises MlircError
    for a slice that leaves its tensor."""

    def __init__(self, module: ir.Module, function: str = "main", source: str = "", bounds: bool = False):
        with context():
            require_slices_inside(module, source)
            entry = find_function(module, function)
            self.name = function
            self.inputs = _specs(entry, "arg_attrs", entry.type.inputs)
            self.outputs = _specs(entry, "res_attrs", entry.type.results)
            lowered = levels.copy(module)
            self.strays, self.effort = lower_to_llvm(lowered, function, source, bounds)
            if bounds:
                self.outputs += [TensorSpec(spec.shape, np.dtype(np.float64)) for spec in self.outputs]
            self._engine: Any = execution_engine.ExecutionEngine(lowered, opt_level=self.effort)
            self.strays.register(self._engine)
            self._call = self._engine.lookup(function)

    @staticmethod
    def loaded(
        code: bytes, inputs: list[TensorSpec], outputs: list[TensorSpec], places: list[tuple[int, str]]
    ) -> HostFunction:
        """The function `main` of an object file that `object_file` made with the same tools, on the same kind of
        processor; `places` are its `strays.places`. Whoever calls this vouches for the file: it is run."""
        function = object.__new__(HostFunction)
        function.name, function.inputs, function.outputs = "main", inputs, outputs
        function.strays = Strays(places=places)
        function._engine, function._call = load_object(code, "main", function.strays)
        return function

    def object_file(self) -> bytes:
        """The compiled code, for `loaded`. Raises OSError where it cannot be had."""
        return object_file(self._engine)

    def __call__(self, *args: np.ndarray) -> list[np.ndarray]:
        """Runs with one array per argument; returns fresh arrays. Raises MlircError for arguments that do not fit, and
        for an index from the arguments' values that is outside of its tensor."""
        results = self.run(*args)
        self.strays.raise_if_any(self.name)
        return results

    def run(self, *args: np.ndarray) -> list[np.ndarray]:
        """As a call, but leaves indices outside of their tensors to be asked for: `strays.take()`."""
        if len(args) != len(self.inputs):
            raise MlircError(f"'{self.name}' takes {len(self.inputs)} arguments, not {len(args)}")
        arrays = []
        for i, (array, spec) in enumerate(zip(args, self.inputs, strict=True)):
            arrays.append(_checked(array, spec, f"argument {i} of '{self.name}'"))
        results = [np.empty(spec.shape, spec.dtype) for spec in self.outputs]
        descriptors = [descriptor(a) for a in arrays + results]
        packed = (ctypes.c_void_p * len(descriptors))(*[ctypes.addressof(d) for d in descriptors])
        pointers = (ctypes.c_void_p * len(descriptors))()
        for i in range(len(descriptors)):
            pointers[i] = ctypes.addressof(packed) + i * ctypes.sizeof(ctypes.c_void_p)
        self._call(pointers)
        return results


def _specs(entry: ir.Operation, key: str, types: Sequence[ir.Type]) -> list[TensorSpec]:
    return [tensor_spec(t, d) for t, d in zip(types, levels.boundary_dtypes(entry, key, len(types)), strict=True)]


def _checked(array: np.ndarray, spec: TensorSpec, what: str) -> np.ndarray:
    array = np.asarray(array)
    if array.shape != spec.shape or array.dtype != spec.dtype:
        raise MlircError(f"{what} is {array.dtype}{list(array.shape)}, but must be {spec.dtype}{list(spec.shape)}")
    return np.ascontiguousarray(array).reshape(spec.shape)


def descriptor(array: np.ndarray) -> ctypes.Array:
    """MLIR's ranked memref descriptor: allocated, aligned, offset, sizes, strides (in elements)."""
    rank = array.ndim
    words = [array.ctypes.data, array.ctypes.data, 0, *array.shape]
    strides = [1] * rank
    for i in range(rank - 2, -1, -1):
        strides[i] = strides[i + 1] * array.shape[i + 1]
    return (ctypes.c_int64 * (3 + 2 * rank))(*words, *strides)


def run_module(
    module: ir.Module,
    args: Sequence[np.ndarray],
    function: str = "main",
    source: str = "",
    seconds: float | None = None,
) -> list[np.ndarray]:
    """Runs a `linalg`-, `kernels`- or `tiles`-level function on the CPU.

    `args`: one array per argument (bf16 and f8 as `ml_dtypes`' types, i1 as bool). Returns one array per result. The
    module and the arrays are left unchanged. Raises MlircError for arguments that do not fit, and for an index, such as
    a token's number, that is outside of its tensor, with its line in the text called `source`, and for a run that is
    still at work after `seconds` (None: as long as it takes).
    """
    return within(seconds, f"'{function}'", HostFunction(module, function, source=source), *args)
