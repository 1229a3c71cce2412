"""What PyTorch leaves undefined, so that its own results differ between processors: integers made of floats that are
NaN or infinite, or that 32 bits (or those of the integer, if it has more) cannot hold; the sign of a NaN; and Fourier
transforms of infinities, which the order of the sums makes infinite or NaN."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

aten = torch.ops.aten
Results = Sequence[torch.Tensor]


class Undefined(TorchDispatchMode):
    """Inside, what is undefined is `fill`, or, with None, what PyTorch gives; `found` tells of a case."""

    def __init__(self, fill: int | None = None) -> None:
        super().__init__()
        self.fill, self.found = fill, False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        key = torch._C.DispatchKey.CompositeExplicitAutograd
        if func.namespace != "aten" and torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), str(key.name)):
            with self:  # an operation that is written in others, such as quantize_per_tensor
                return func._op_dk(key, *args, **kwargs)
        result = func(*args, **kwargs)
        if func is aten._to_copy.default:
            self._settle(args[0], result)
        elif func is aten.copy_.default:
            self._settle(args[1], result)
        elif func in (aten.signbit.default, aten.copysign.Tensor):
            self._settle_sign(args[-1], result)
        elif func in _TRANSFORMS:
            self._settle_transform(args[0], args[1], result)
        return result

    def _settle(self, source: torch.Tensor, result: torch.Tensor) -> None:
        if not source.is_floating_point() or result.dtype not in _LIMITS:
            return
        low, high = _LIMITS[result.dtype]
        whole = source.double().trunc()
        undefined = ~((whole >= low) & (whole < high))
        if bool(undefined.any()):
            self.found = True
            if self.fill is not None:
                result.masked_fill_(undefined.expand(result.shape), self.fill)

    def _settle_sign(self, source: torch.Tensor, result: torch.Tensor) -> None:
        undefined = torch.isnan(source).expand(result.shape)
        if bool(undefined.any()):
            self.found = True
            if self.fill is not None:
                filled = result.abs() * (1 - 2 * self.fill) if result.is_floating_point() else torch.tensor(self.fill)
                result.copy_(torch.where(undefined, filled.to(result.dtype), result))

    def _settle_transform(self, source: torch.Tensor, dims: list[int], result: torch.Tensor) -> None:
        """A NaN alone goes to every bin."""
        undefined = torch.isinf(source).any(dims, True) & ~torch.isnan(source).any(dims, True)
        if bool(undefined.any()):
            self.found = True
            if self.fill is not None:
                filled = complex(2 * self.fill - 1, 3) if result.is_complex() else self.fill  # no phase of 0
                result.masked_fill_(undefined.expand(result.shape), filled)


_TRANSFORMS = (aten._fft_r2c.default, aten._fft_c2r.default, aten._fft_c2c.default)
_WORD, _LONG = (-(2.0**31), 2.0**31), (-(2.0**63), 2.0**63)
_LIMITS = {torch.int8: _WORD, torch.uint8: _WORD, torch.int16: _WORD, torch.int32: _WORD, torch.int64: _LONG}


def depending(run: Callable[[], Results], results: Results) -> list[torch.Tensor]:
    """Of each result of `run` the elements that depend on what is undefined, as masks. `results`: those
    of a run."""
    masks = [torch.zeros(r.shape, dtype=torch.bool) for r in results]
    for fill in (0, 1):
        try:
            with Undefined(fill):
                others = run()
        except (IndexError, RuntimeError):  # an index that there is not, say
            continue
        if any(other.shape != r.shape for other, r in zip(others, results, strict=True)):
            continue
        pairs = zip(masks, others, results, strict=True)
        masks = [m | ~((o == r) | (o != o) & (r != r)) for m, o, r in pairs]
    return masks
