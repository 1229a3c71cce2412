"""PyTorch in FP64, whatever a model asks for, with the model's own scalars and constants.

A tensor of the FP64 run remembers the dtype that it has in the model. A Python number beside it, an integer that
becomes a float, and a constant that the model makes have the values that this dtype gives them: `x >= 0.7` compares
with f32's 0.7, as PyTorch does, and so does what it is the reference for.
"""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from mlirc.frontend.opmath import HALF, OPMATH, rounded

aten = torch.ops.aten
_NARROW = (torch.float32, torch.float16, torch.bfloat16)
_FLOATS = (*_NARROW, torch.float64)
_CASTS = {
    Tensor.float: torch.float32,
    Tensor.half: torch.float16,
    Tensor.bfloat16: torch.bfloat16,
    Tensor.double: torch.float64,
}
_DTYPE = "mlirc_dtype"  # attribute of a tensor in FP64: its dtype in the model
_LIMITS = {getattr(torch.finfo(torch.float64), name): name for name in ("max", "eps", "tiny")}
_OF_GRIDS = (aten.nextafter.default,)  # whose results are neighbours among the dtype's numbers
_RMS_NORMS = (torch.nn.functional.rms_norm, torch.rms_norm)  # which add eps in f32 where their input has 16 bits
_FILLS = (aten.fill_.Scalar, aten.fill.Scalar, aten.full_like.default, aten.new_full.default)
# Whose numbers are f32 ones beside 16-bit floats, and no elements of the tensor's dtype.
_F32_NUMBERS = {f"aten::{name}" for name in ("mul", "div", "mul_", "div_", "threshold", "huber_loss", "smooth_l1_loss")}
_F32_NUMBERS |= {name for op in OPMATH for name in (op._schema.name, op._schema.name + "_")}


def remember(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """The tensor, which stands for one of `dtype`."""
    if tensor.dtype == torch.float64:
        setattr(tensor, _DTYPE, dtype)
    return tensor


@contextlib.contextmanager
def in_float64(default: torch.dtype) -> Iterator[None]:
    """Inside, PyTorch computes in FP64. `default`: what a tensor of no given dtype has in the model."""
    dtypes = ModelDtypes(default)
    with dtypes, Float64Mode(dtypes):
        yield


class Float64Mode(TorchFunctionMode):
    """Inside, a request for a narrower float type asks for FP64: models write `.to(torch.float32)` in their norms."""

    def __init__(self, dtypes: ModelDtypes | None = None) -> None:
        super().__init__()
        self._dtypes = dtypes

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in _RMS_NORMS and self._dtypes is not None:
            return _rms_norm(self._dtypes, *args, **kwargs)
        asked = next((v for v in (*args, *kwargs.values()) if isinstance(v, torch.dtype) and v in _FLOATS), None)
        asked = _CASTS.get(func, asked)
        func = Tensor.double if func in _CASTS else func
        given = [v for v in tree_leaves((args, kwargs)) if isinstance(v, Tensor)]
        with self._dtypes.asked_for(asked, given) if self._dtypes else contextlib.nullcontext():
            out = func(*map(_widened, args), **{k: _widened(v) for k, v in kwargs.items()})
        if asked is None:
            return out
        if self._dtypes is None or not isinstance(out, Tensor) or out.dtype != torch.float64:
            return out
        if any(out is v for v in given):
            out = out.clone()
        if given and not any(v.is_floating_point() for v in given):
            out = out.to(asked).double()
        return remember(out, asked)


def _rms_norm(
    dtypes: ModelDtypes, input: Tensor, normalized_shape: Any, weight: Tensor | None = None, eps: float | None = None
) -> Tensor:
    """PyTorch's function of that name: an eps of None is that of the dtype in which it computes."""
    dtype = dtypes.of(input)
    wide = torch.float32 if dtype in HALF else dtype
    eps = torch.finfo(wide).eps if eps is None else eps
    return remember(torch.rms_norm(remember(input.clone(), wide), normalized_shape, weight, eps), dtype)


class ModelDtypes(TorchDispatchMode):
    """Inside, FP64 tensors remember the model's dtypes, and numbers are rounded to them."""

    def __init__(self, default: torch.dtype) -> None:
        super().__init__()
        self._default, self._asked = default, default

    @contextlib.contextmanager
    def asked_for(self, dtype: torch.dtype | None, given: list[Tensor]) -> Iterator[None]:
        """Inside, tensors that are made of numbers have `dtype`, or that of the tensors `given`."""
        before, self._asked = self._asked, dtype or self._promoted(given, False) or self._default
        try:
            yield
        finally:
            self._asked = before

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        tensors = [v for v in tree_leaves((args, kwargs)) if isinstance(v, Tensor)]
        if not tensors or func is aten.lift_fresh.default:
            out = func(*args, **kwargs)
            if isinstance(out, Tensor) and out.dtype == torch.float64 and not hasattr(out, _DTYPE):
                out = remember(out.to(self._asked).double(), self._asked)
            return out
        numbers = [v for v in (*args, *kwargs.values()) if isinstance(v, float)]
        dtype = self._promoted(tensors, bool(numbers))
        if dtype is not None and (torch.Tag.pointwise in func.tags or func in _FILLS):
            args, kwargs = self._rounded(func, dtype, args, kwargs)
        if dtype is not None and func in _OF_GRIDS:
            args = tuple(t.to(dtype) for t in args)
        out = func(*args, **kwargs)
        if dtype is not None:
            out = out.double() if func in _OF_GRIDS else out
            tree_map(lambda t: self._settle(t, dtype), out)
        return out

    def _promoted(self, tensors: list[Tensor], has_numbers: bool) -> torch.dtype | None:
        """The model's dtype of what is computed of these; None where that is no float."""
        floats = [t for t in tensors if t.dtype == torch.float64]
        if not floats:
            return self._default if has_numbers else None
        ranked = [t for t in floats if t.dim()] or floats
        return functools.reduce(torch.promote_types, map(self.of, ranked))

    def of(self, tensor: Tensor) -> torch.dtype:
        """The dtype that a tensor in FP64 has in the model."""
        return getattr(tensor, _DTYPE, self._default)

    def _settle(self, value: Any, dtype: torch.dtype) -> None:
        if isinstance(value, Tensor) and not hasattr(value, _DTYPE):
            remember(value, dtype)

    def _rounded(self, func: Any, dtype: torch.dtype, args: Any, kwargs: Any) -> tuple[tuple, dict[str, Any]]:
        """An elementwise op's numbers, and its integers that it computes with as floats, as the model has them."""
        wide = torch.float32 if dtype in HALF and func._schema.name in _F32_NUMBERS else dtype
        has_floats = any(v.dtype == torch.float64 for v in tree_leaves((args, kwargs)) if isinstance(v, Tensor))

        def settled(argument: Any, value: Any) -> Any:
            is_number = str(argument.type).removeprefix("Optional[").startswith(("number", "Tensor"))
            if isinstance(value, float) or isinstance(value, int) and is_number and has_floats:
                if abs(value) in _LIMITS:  # finfo's of a tensor that the model has narrower
                    return math.copysign(getattr(torch.finfo(dtype), _LIMITS[abs(value)]), value)
                return rounded(value, wide)
            is_integer = isinstance(value, Tensor) and not value.is_floating_point() and not value.is_complex()
            if is_integer and value.dtype != torch.bool and not func._schema.is_mutable:
                return remember(value.to(dtype).double(), dtype)
            return value

        schema = func._schema.arguments
        named = {a.name: a for a in schema}
        new = tuple(settled(a, v) for a, v in zip(schema, args, strict=False))
        return new, {k: settled(named[k], v) for k, v in kwargs.items()}


def remember_module(module: torch.nn.Module, dtypes: Mapping[str, torch.dtype]) -> None:
    """Has the parameters and buffers of a module in FP64 stand for those of `dtypes`, by name."""
    for name, tensor in (*module.named_parameters(), *module.named_buffers()):
        remember(tensor, dtypes.get(name, torch.float64))


def _widened(value: Any) -> Any:
    return torch.float64 if isinstance(value, torch.dtype) and value in _NARROW else value
