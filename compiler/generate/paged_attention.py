"""A transformers model over a paged cache: its attention reads the pages, its masks are those of the positions.

A model keeps the attention implementation that it was built with. Its cache gives all keys and values that there may
be, and its masks are computed from the positions of the step, so that whatever it does with them is right. Where it
hands these very tensors to attention through transformers' interface, and that computes what `mlirc::attention` does,
`cached_attention` reads the pages in their place, and the gathered copies vanish from the graph.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import _disable_current_modes

import mlirc.frontend.attention  # noqa: F401  (registers the op)
from mlirc.errors import MlircError
from mlirc.frontend.cached_attention import cached_attention
from mlirc.frontend.transformers_attention import attention_arguments
from mlirc.generate.paged_cache import PagedCache, PastLength, Place

_ROWS = 64  # queries at which a mask is looked at


@dataclass
class Found:
    """What a step of a model did: in how many layers attention reads the pages, and which masks were made."""

    fused: int = 0
    made: int = 0
    masks: dict[int, tuple[torch.Tensor, int]] = field(default_factory=dict)  # by id: the mask, its window (0: none)


@contextlib.contextmanager
def paged_attention(cache: PagedCache) -> Iterator[Found]:
    """Models that run inside the body with this cache compute what the class says."""
    from transformers import AttentionInterface, AttentionMaskInterface

    found = Found()
    get_interface = AttentionInterface.get_interface
    masks: dict[str, Any] = {name: AttentionMaskInterface._global_mapping[name] for name in ("sdpa", "eager")}

    def patched(self: Any, name: Any, default: Callable) -> Callable:
        return _attention(get_interface(self, name, default), cache, found)

    AttentionInterface.get_interface = patched  # type: ignore[method-assign, assignment]
    AttentionMaskInterface.register("sdpa", lambda *a, **k: _mask(cache.place, found, False, *a, **k))
    AttentionMaskInterface.register("eager", lambda *a, **k: _mask(cache.place, found, True, *a, **k))
    try:
        with _NoLengths(), _UnchangedGradients():
            yield found
    finally:
        AttentionInterface.get_interface = get_interface  # type: ignore[method-assign]
        for name, function in masks.items():
            AttentionMaskInterface.register(name, function)


class _NoLengths(torch.overrides.TorchFunctionMode):
    """Refuses tensors that are computed from a `PastLength`: it is no sequence's length."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(isinstance(a, PastLength) for a in (*args, *(kwargs or {}).values())):
            raise MlircError(
                "the model computes positions from the length of its cache, and takes no position_ids: sequences of "
                "different lengths cannot be run together: generation is not supported for this model"
            )
        return func(*args, **(kwargs or {}))


class _UnchangedGradients(torch.overrides.TorchFunctionMode):
    """Keeps `torch.no_grad` in a model's code out of a graph that is traced without gradients anyway: torch.export
    divides a graph at every such call, and puts its parts together again, which takes a quarter of an export."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch._C._set_grad_enabled and args and args[0] == torch.is_grad_enabled():
            return None
        return func(*args, **(kwargs or {}))


def _attention(function: Callable, cache: PagedCache, found: Found) -> Callable:
    """An attention function of transformers, with `cached_attention` where that computes the same."""

    def attention(module: Any, query: Any, key: Any, value: Any, attention_mask: Any, *args: Any, **kwargs: Any) -> Any:
        layer = cache.layer_of(key, value)
        if layer is not None and attention_mask is None:
            raise MlircError(
                "the model's attention reads its cache without a mask: generation is not supported for this model"
            )
        mask = found.masks.get(id(attention_mask))
        if layer is not None and mask is not None:
            inner = inspect.unwrap(function)
            known = attention_arguments(inner, module, query, key, value, attention_mask, *args, **kwargs)
            if known is not None:
                scale, softcap, sinks = known
                place = cache.place
                at = (*layer.pools, place.pages, place.lengths)
                out = cached_attention(query, *at, scale, mask[1], softcap, sinks=sinks)
                found.fused += 1
                return out.transpose(1, 2).contiguous(), None
        return function(module, query, key, value, attention_mask, *args, **kwargs)

    return attention


def _mask(
    place: Place,
    found: Found,
    additive: bool,
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: Any = 0,
    kv_offset: Any = 0,
    mask_function: Any = None,
    attention_mask: torch.Tensor | None = None,
    dtype: torch.dtype = torch.float32,
    **_: Any,
) -> torch.Tensor:
    """The mask [B,1,S,T P] of a step: bool (true: visible), or numbers to add."""
    from transformers import masking_utils

    if q_length != place.positions.shape[1] or not _hides_nothing(attention_mask):
        raise MlircError("the model masks its cache in a way of its own: generation is not supported for this model")
    function = mask_function or masking_utils.causal_mask_function
    key = torch.arange(kv_length, device=place.positions.device)
    query = place.positions[:, None, :, None]
    window = _window(function, kv_length)
    if window is not None:
        visible = key <= query
        if window:
            visible = visible & (key > query - window)
    else:
        batch = torch.arange(batch_size, device=key.device)[:, None, None, None]
        visible = function(batch, torch.zeros_like(key[:1]), query, key)
    mask = visible.expand(batch_size, 1, q_length, kv_length)
    if additive:
        zero = torch.zeros((), device=mask.device, dtype=dtype)
        mask = torch.where(mask, zero, torch.finfo(dtype).min)
    found.made += 1
    if window is not None:
        found.masks[id(mask)] = (mask, window)
    return mask


def _hides_nothing(mask: torch.Tensor | None) -> bool:
    """Whether a mask of tokens [B,S], which a model that is given none makes for itself, has every token: OPT's and
    Bloom's of transformers 5.17. What a tracer makes of it has no values, and was looked at before: steps run in
    PyTorch before they are traced."""
    if mask is None:
        return True
    if mask.ndim != 2 or mask.dtype.is_floating_point and mask.dtype != torch.float32:
        return False
    return isinstance(mask, FakeTensor) or bool((mask == 1).all())


def _window(function: Callable, length: int) -> int | None:
    """The window of a causal mask, 0 for one without; None for one that hides more than that. Looked at in rows where
    a window would show. Raises MlircError for one that lets a query see keys behind it, or that cannot be looked at."""
    with _disable_current_modes(), torch._C.DisableTorchFunction():
        key, batch = torch.arange(length), torch.zeros(1, dtype=torch.int64)

        def rows(query: torch.Tensor) -> torch.Tensor:
            return function(batch[:, None], batch[:, None], query[:, None], key).expand(len(query), length)

        try:
            window = int(rows(torch.tensor([length - 1])).sum())
            near = length - window + torch.arange(-1, 2)
            query = torch.cat([torch.arange(length)[:: max(1, length // _ROWS)], near.clamp(0, length - 1)])
            seen = rows(query)
        except Exception as e:  # whatever it needs, it is no function of positions alone
            raise MlircError("the model's masks are no functions of positions: its generation is not supported") from e
        causal = key <= query[:, None]
        if (seen & ~causal).any():
            raise MlircError("the model's tokens see later ones: it cannot be run token by token")
        if not torch.equal(seen, causal & (key > query[:, None] - window)):
            return None
        return 0 if window >= length else window
