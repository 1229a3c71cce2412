"""Tensors of PyTorch whose memory does not have their numbers: lazily negated or conjugated ones, as `torch._neg_view`
and `conj()` make them. DLPack and `data_ptr` know nothing of that: every tensor is resolved where it comes in."""

from __future__ import annotations

from typing import Any


def is_lazy(tensor: Any) -> bool:
    """Whether a value is such a tensor."""
    return hasattr(tensor, "is_neg") and hasattr(tensor, "is_conj") and (tensor.is_neg() or tensor.is_conj())


def resolved(tensor: Any) -> Any:
    """A tensor of PyTorch without a gradient, whose memory has its numbers: its own, or, where it is lazy, a copy."""
    return tensor.detach().resolve_conj().resolve_neg()
