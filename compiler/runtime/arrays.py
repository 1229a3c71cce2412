"""Tensors of other libraries seen as addresses: NumPy arrays, and anything with `__cuda_array_interface__` or
`__dlpack__`. No library is imported for it; a library's own module is taken from the tensor that came from it."""

from __future__ import annotations

import ctypes
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import ml_dtypes
import numpy as np

from mlirc.errors import MlircError
from mlirc.runtime.lazy import resolved
from mlirc.runtime.plan import DTYPE_BYTES, TensorSpec
from mlirc.runtime.tensor_map import FP8

NUMPY_DTYPES: dict[str, np.dtype] = {
    "f64": np.dtype(np.float64),
    "f32": np.dtype(np.float32),
    "f16": np.dtype(np.float16),
    "bf16": np.dtype(ml_dtypes.bfloat16),
    "f8E4M3FN": np.dtype(ml_dtypes.float8_e4m3fn),
    "f8E5M2": np.dtype(ml_dtypes.float8_e5m2),
    "i64": np.dtype(np.int64),
    "i32": np.dtype(np.int32),
    "i16": np.dtype(np.int16),
    "i8": np.dtype(np.int8),
    "u8": np.dtype(np.uint8),
    "i1": np.dtype(np.bool_),
}
_FROM_NUMPY = {v: k for k, v in NUMPY_DTYPES.items()}
_TORCH_NAMES = {"f64": "float64", "f32": "float32", "f16": "float16", "bf16": "bfloat16"}
_TORCH_NAMES |= {"i64": "int64", "i32": "int32", "i16": "int16", "i8": "int8", "u8": "uint8", "i1": "bool"}
_TORCH_NAMES |= {"f8E4M3FN": "float8_e4m3fn", "f8E5M2": "float8_e5m2"}
_FP8_OF_TORCH = {f"torch.{_TORCH_NAMES[name]}": name for name in FP8}
NOT_NUMPYS = ("bf16", *FP8)  # without a type string of NumPy's own


class _DLTensor(ctypes.Structure):
    """DLPack's DLTensor (dlpack.h)."""

    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


class _DLManagedTensor(ctypes.Structure):
    _fields_ = [("tensor", _DLTensor), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p)]


_DL_CPU, _DL_CUDA, _DL_CUDA_HOST, _DL_CUDA_MANAGED = 1, 2, 3, 13
_DL_TYPES = {"f64": (2, 64), "f32": (2, 32), "f16": (2, 16), "bf16": (4, 16), "i64": (0, 64), "i32": (0, 32)}
_DL_TYPES |= {"i16": (0, 16), "i8": (0, 8), "u8": (1, 8), "i1": (6, 8), "f8E4M3FN": (10, 8), "f8E5M2": (12, 8)}
_FROM_DL = {v: k for k, v in _DL_TYPES.items()}
_capsule_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)


@dataclass
class View:
    """A tensor's memory: `device` is None on the host. `owner` keeps it alive; `kind` is the library that it came from
    (`numpy`, `torch`, `cupy` or `other`)."""

    pointer: int
    device: int | None
    dtype: str
    shape: tuple[int, ...]
    contiguous: bool
    owner: Any
    kind: str

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * DTYPE_BYTES[self.dtype]

    def __str__(self) -> str:
        return f"{self.dtype}[{','.join(map(str, self.shape))}]"


def _is_contiguous(shape: tuple[int, ...], strides: tuple[int, ...] | None, unit: int) -> bool:
    """Whether strides (in `unit`s per element) are those of a dense row-major tensor."""
    if strides is None or 0 in shape:
        return True
    expected = unit
    for extent, stride in zip(reversed(shape), reversed(strides), strict=True):
        if extent != 1 and stride != expected:
            return False
        expected *= extent
    return True


def kind_of(tensor: Any) -> str:
    """The library that a tensor came from: `numpy`, `torch`, `cupy` or `other`."""
    if isinstance(tensor, np.ndarray | np.generic):
        return "numpy"
    for base in type(tensor).__mro__:
        root = base.__module__.partition(".")[0]
        if root in ("torch", "cupy"):
            return root
    return "other"


def view(tensor: Any, name: str) -> View:
    """Sees a tensor as memory, without a copy where it is dense (or not NumPy's); `name` is for errors."""
    kind = kind_of(tensor)
    if kind == "numpy":
        array = np.ascontiguousarray(tensor).reshape(np.shape(tensor))
        dtype = _FROM_NUMPY.get(array.dtype)
        if dtype is None or not array.dtype.isnative:
            raise MlircError(f"'{name}': NumPy dtype {array.dtype} is not supported: use one of {_numpy_names()}")
        return View(array.ctypes.data, None, dtype, array.shape, True, array, kind)
    if kind == "torch":
        tensor = resolved(tensor)  # DLPack refuses tensors that require a gradient
        if str(tensor.dtype) in _FP8_OF_TORCH:  # and, before DLPack 1.1, 8-bit floats
            seen = view(tensor.view(sys.modules["torch"].uint8), name)
            return replace(seen, dtype=_FP8_OF_TORCH[str(tensor.dtype)])
    if hasattr(tensor, "__dlpack__") and hasattr(tensor, "__dlpack_device__"):
        return _dlpack_view(tensor, name, kind)
    if hasattr(tensor, "__cuda_array_interface__"):
        return _cuda_view(tensor, name, kind)
    raise MlircError(f"'{name}': a {type(tensor).__name__} is no tensor: give a NumPy array, or one with DLPack")


def _numpy_names() -> str:
    return ", ".join(str(d) for d in NUMPY_DTYPES.values())


def _dlpack_view(tensor: Any, name: str, kind: str) -> View:
    try:
        device_type = int(tensor.__dlpack_device__()[0])
    except Exception:  # PyTorch's of a meta tensor
        device_type = 0
    on_gpu = device_type in (_DL_CUDA, _DL_CUDA_MANAGED)
    if not on_gpu and device_type not in (_DL_CPU, _DL_CUDA_HOST):
        raise MlircError(f"'{name}': lies on a device that is neither the host nor a CUDA GPU: copy it to one")
    try:
        # -1: no synchronization, because the model runs on the tensor's own stream.
        capsule = tensor.__dlpack__(stream=-1) if on_gpu else tensor.__dlpack__()
    except Exception as e:
        raise MlircError(f"'{name}': cannot be shared through DLPack: {' '.join(str(e).split())}") from e
    managed = ctypes.cast(_capsule_pointer(capsule, b"dltensor"), ctypes.POINTER(_DLManagedTensor)).contents
    t = managed.tensor
    dtype = _FROM_DL.get((t.code, t.bits))
    if dtype is None or t.lanes != 1:
        raise MlircError(f"'{name}': DLPack element type (code {t.code}, {t.bits} bits) is not supported")
    shape = tuple(t.shape[i] for i in range(t.ndim))
    strides = tuple(t.strides[i] for i in range(t.ndim)) if t.strides else None
    pointer = (t.data or 0) + t.byte_offset
    device = int(t.device_id) if on_gpu else None
    return View(pointer, device, dtype, shape, _is_contiguous(shape, strides, 1), (tensor, capsule), kind)


def _cuda_view(tensor: Any, name: str, kind: str) -> View:
    about = tensor.__cuda_array_interface__
    dtype = _FROM_NUMPY.get(np.dtype(about["typestr"]))
    if dtype is None:
        raise MlircError(f"'{name}': element type {about['typestr']} is not supported")
    shape, strides = tuple(about["shape"]), about.get("strides")
    contiguous = _is_contiguous(shape, tuple(strides) if strides else None, DTYPE_BYTES[dtype])
    device = int(getattr(getattr(tensor, "device", 0), "id", 0) or 0)
    return View(int(about["data"][0]), device, dtype, shape, contiguous, tensor, kind)


def match(specs: Sequence[TensorSpec], tensors: Sequence[Any], named: Mapping[str, Any]) -> list[Any]:
    """The inputs in the order of `specs`, from those given by position and those given by name; raises MlircError for
    one that is missing, unknown or given twice."""
    names = [spec.name for spec in specs]
    if len(tensors) > len(specs):
        raise MlircError(f"{len(tensors)} inputs given, but the model takes {len(specs)}: {', '.join(names)}")
    given = dict(zip(names, tensors, strict=False))
    for name, tensor in named.items():
        if name not in names:
            raise MlircError(f"no input is called '{name}': the model takes {', '.join(names) or 'none'}")
        if name in given:
            raise MlircError(f"input '{name}' is given twice, by position and by name")
        given[name] = tensor
    missing = [f"'{spec.name}' ({spec})" for spec in specs if spec.name not in given]
    if missing:
        raise MlircError(f"input {', '.join(missing)} is missing")
    return [given[name] for name in names]


def check(seen: View, spec: TensorSpec) -> None:
    """Raises MlircError unless a tensor has the dtype and shape that the plan says, and is dense."""
    if seen.dtype != spec.dtype or seen.shape != spec.shape:
        raise MlircError(f"{spec.kind} '{spec.name}': got {seen}, but the model was compiled for {spec}")
    if not seen.contiguous:
        raise MlircError(f"{spec.kind} '{spec.name}': not contiguous: call .contiguous() on it first")


def empty_like(seen: View, spec: TensorSpec, device: int) -> View | None:
    """A fresh tensor for an output, from the library and on the device that `seen` came from; None where the library
    has no way to make one (the caller makes a `DeviceTensor`)."""
    if seen.kind == "numpy":
        return view(np.empty(spec.shape, NUMPY_DTYPES[spec.dtype]), spec.name)
    if seen.kind == "torch":
        torch = sys.modules["torch"]
        where = "cpu" if seen.device is None else f"cuda:{device}"
        out = torch.empty(spec.shape, dtype=getattr(torch, _TORCH_NAMES[spec.dtype]), device=where)
        return View(out.data_ptr(), seen.device, spec.dtype, spec.shape, True, (out,), "torch")
    if seen.kind == "cupy" and spec.dtype not in NOT_NUMPYS:
        out = sys.modules["cupy"].empty(spec.shape, NUMPY_DTYPES[spec.dtype])
        return View(int(out.data.ptr), device, spec.dtype, spec.shape, True, (out,), "cupy")
    return None


def current_stream(seen: View, device: int) -> int | None:
    """The stream that a GPU tensor's library is working on, or None where that cannot be asked."""
    if seen.device is not None and seen.kind == "torch":
        return int(sys.modules["torch"].cuda.current_stream(device).cuda_stream)
    if seen.device is not None and seen.kind == "cupy":
        return int(sys.modules["cupy"].cuda.get_current_stream().ptr)
    return None


def stream_handle(stream: Any) -> int:
    """A stream's handle, from an integer, a torch or CuPy stream, or anything with `__cuda_stream__`."""
    if isinstance(stream, int):
        return stream
    for attribute in ("cuda_stream", "ptr"):
        if hasattr(stream, attribute):
            return int(getattr(stream, attribute))
    if hasattr(stream, "__cuda_stream__"):
        return int(stream.__cuda_stream__()[1])
    raise MlircError(f"stream: a {type(stream).__name__} is no CUDA stream")


class DeviceTensor:
    """A dense tensor in device memory that any library can take without a copy, through DLPack or (except bf16 and
    8-bit floats) `__cuda_array_interface__`. `synchronize` is called before the memory is shared or read; `owner` keeps
    it alive."""

    def __init__(
        self,
        pointer: int,
        spec: TensorSpec,
        device: int,
        synchronize: Callable[[], None],
        download: Callable,
        owner: Any,
    ):
        self.pointer, self.spec, self.device_id, self.owner = pointer, spec, device, owner
        self._synchronize, self._download = synchronize, download

    name = property(lambda self: self.spec.name)
    dtype = property(lambda self: self.spec.dtype)
    shape = property(lambda self: self.spec.shape)

    def __repr__(self) -> str:
        return f"DeviceTensor({self.spec.name}: {self.spec} on cuda:{self.device_id})"

    def numpy(self) -> np.ndarray:
        """A copy on the host; bf16 and 8-bit floats as ml_dtypes' types."""
        out = np.empty(self.shape, NUMPY_DTYPES[self.dtype])
        if out.nbytes:
            self._synchronize()
            self._download(out.ctypes.data, self.pointer, out.nbytes)
        return out

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.asarray(self.numpy(), dtype=dtype)

    def __getattr__(self, name: str) -> Any:
        # Not a property: for types that have no type string the attribute must look absent.
        if name == "__cuda_array_interface__" and self.spec.dtype not in NOT_NUMPYS:
            self._synchronize()
            typestr = NUMPY_DTYPES[self.dtype].str
            return {
                "shape": self.shape,
                "typestr": typestr,
                "data": (self.pointer, False),
                "version": 3,
                "stream": None,
            }
        raise AttributeError(name)

    def __dlpack_device__(self) -> tuple[int, int]:
        return (_DL_CUDA, self.device_id)

    def __dlpack__(self, *, stream: Any = None, **_options: Any) -> Any:
        self._synchronize()
        return _export(self)


# Exported tensors by address: each entry lives until the consumer calls its deleter.
_exported: dict[int, tuple] = {}


@ctypes.CFUNCTYPE(None, ctypes.c_void_p)
def _delete_exported(address: int) -> None:
    _exported.pop(address, None)


_capsule_new = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)(
    ("PyCapsule_New", ctypes.pythonapi)
)
_raw_is_valid = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p)(
    ("PyCapsule_IsValid", ctypes.pythonapi)
)
_raw_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)


@ctypes.PYFUNCTYPE(None, ctypes.c_void_p)
def _delete_capsule(capsule: int) -> None:
    # A consumer renames the capsule to "used_dltensor" and calls the deleter itself.
    if _raw_is_valid(capsule, b"dltensor"):
        _exported.pop(_raw_pointer(capsule, b"dltensor"), None)


def _export(tensor: DeviceTensor) -> Any:
    managed = _DLManagedTensor()
    rank = len(tensor.shape)
    shape = (ctypes.c_int64 * max(rank, 1))(*tensor.shape)
    managed.tensor.data = tensor.pointer
    managed.tensor.device_type, managed.tensor.device_id = _DL_CUDA, tensor.device_id
    managed.tensor.ndim, managed.tensor.lanes = rank, 1
    managed.tensor.code, managed.tensor.bits = _DL_TYPES[tensor.dtype]
    managed.tensor.shape = ctypes.cast(shape, ctypes.POINTER(ctypes.c_int64))
    strides = [math.prod(tensor.shape[i + 1 :]) for i in range(rank)]
    stored = (ctypes.c_int64 * max(rank, 1))(*strides)
    managed.tensor.strides = ctypes.cast(stored, ctypes.POINTER(ctypes.c_int64))
    managed.deleter = ctypes.cast(_delete_exported, ctypes.c_void_p)
    address = ctypes.addressof(managed)
    _exported[address] = (managed, shape, stored, tensor)
    return _capsule_new(address, b"dltensor", ctypes.cast(_delete_capsule, ctypes.c_void_p))
