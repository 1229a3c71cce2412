"""How Hugging Face models are exported with attention as one op, and compute what they compute anyway.

A model keeps the attention implementation that it was built with, so it takes the paths and the masks that it takes in
PyTorch: a model that adds the mask to scores of its own does so here too. Three things are different during the export:

- `sdpa` leaves the sharing of key heads to PyTorch's op, which becomes `mlirc::attention` (see `attention.py`).
- The function of a model's `eager` implementation is tried out on small tensors; only where it computes what
  `mlirc::attention` computes does that op take its place.
- Masks have the values that transformers gives them, but are built so that `simplify.py` can tell a constant pattern
  (causal, window) from the padding.

Of a query row that sees no key at all PyTorch's attention makes zeros, transformers' eager masks the mean of all
values; `mlirc::attention` makes zeros. Such rows are padding, whose values nothing defines.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import os
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

import mlirc.frontend.attention  # noqa: F401  (registers the op)

_FORCE_GQA = "TRANSFORMERS_SDPA_FORCE_GQA"


@contextlib.contextmanager
def attention_for_export(module: torch.nn.Module) -> Iterator[None]:
    """Exports inside the body have the attention of the Hugging Face models in `module` as one op where that is right.

    Implementations other than PyTorch's and eager (flash, flex, paged), which compute the same with kernels of their
    own, are replaced by these two. Everything is as it was after the body.
    """
    with contextlib.ExitStack() as stack:
        if _is_from_transformers(module):
            stack.enter_context(_portable_implementations(module))
            stack.enter_context(_own_masks())
            stack.enter_context(_own_eager_attention())
            old = os.environ.get(_FORCE_GQA)
            stack.callback(
                lambda: os.environ.pop(_FORCE_GQA, None) if old is None else os.environ.__setitem__(_FORCE_GQA, old)
            )
            os.environ[_FORCE_GQA] = "1"
        yield


def _is_from_transformers(module: torch.nn.Module) -> bool:
    return any(t.__module__.startswith("transformers.") for m in module.modules() for t in type(m).__mro__)


@contextlib.contextmanager
def _portable_implementations(module: torch.nn.Module) -> Iterator[None]:
    from transformers import PreTrainedModel

    changed = []
    try:
        for model in (m for m in module.modules() if isinstance(m, PreTrainedModel)):
            name = getattr(model.config, "_attn_implementation", None)
            if name not in (None, "eager", "sdpa"):
                changed.append((model.config, name))
                model.config._attn_implementation_internal = "sdpa" if model._supports_sdpa else "eager"
        yield
    finally:
        for config, name in reversed(changed):
            config._attn_implementation_internal = name


@contextlib.contextmanager
def _own_masks() -> Iterator[None]:
    from transformers import AttentionMaskInterface, masking_utils

    originals: dict[str, Any] = {name: AttentionMaskInterface._global_mapping[name] for name in ("sdpa", "eager")}
    AttentionMaskInterface.register("sdpa", functools.partial(_sdpa_mask, masking_utils.sdpa_mask))
    AttentionMaskInterface.register("eager", functools.partial(_eager_mask, masking_utils.sdpa_mask))
    try:
        yield
    finally:
        for name, function in originals.items():
            AttentionMaskInterface.register(name, function)


def _sdpa_mask(
    original: Callable,
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: Any = 0,
    kv_offset: Any = 0,
    mask_function: Any = None,
    attention_mask: torch.Tensor | None = None,
    local_size: int | None = None,
    allow_is_causal_skip: bool = True,
    allow_is_bidirectional_skip: bool = False,
    **kwargs: Any,
) -> torch.Tensor | None:
    """transformers' `sdpa_mask`, bool [B,1,Sq,Sk] or None: the `and` of a constant pattern and the padding, expanded.

    None comes back in the cases without padding in which transformers has none outside of an export.
    """
    from transformers import masking_utils

    build = functools.partial(
        original,
        batch_size=batch_size,
        q_length=q_length,
        kv_length=kv_length,
        q_offset=q_offset,
        kv_offset=kv_offset,
        mask_function=mask_function or masking_utils.causal_mask_function,
        allow_is_causal_skip=False,
        allow_is_bidirectional_skip=False,
        **kwargs,
    )
    if isinstance(q_offset, torch.Tensor) or isinstance(kv_offset, torch.Tensor):
        return build(attention_mask=attention_mask)
    local = local_size is not None and kv_length >= local_size
    if attention_mask is None:
        square = q_length == 1 or kv_length == q_length or q_offset == 0
        if not local and (allow_is_bidirectional_skip or (allow_is_causal_skip and square)):
            return None
        return build(attention_mask=None)
    padding: Any = masking_utils.prepare_padding_mask(attention_mask, kv_length, kv_offset)
    if padding.dtype != torch.bool or padding.dim() != 2 or padding.shape[0] != batch_size:
        return build(attention_mask=attention_mask)
    padding = padding[:, None, None, kv_offset : kv_offset + kv_length].expand(-1, -1, q_length, -1)
    if mask_function is masking_utils.bidirectional_mask_function:
        return padding
    return build(attention_mask=None) & padding


def _eager_mask(original: Callable, *args: Any, dtype: torch.dtype = torch.float32, **kwargs: Any) -> Any:
    """transformers' `eager_mask`: 0 where `_sdpa_mask` is true, the lowest number of the dtype elsewhere."""
    mask = _sdpa_mask(original, *args, **kwargs | {"allow_is_causal_skip": False})
    if mask is None:
        return None
    return torch.where(mask, torch.zeros((), device=mask.device, dtype=dtype), torch.finfo(dtype).min)


@contextlib.contextmanager
def _own_eager_attention() -> Iterator[None]:
    """Puts `_tried` around every function that a model gives for `eager`; there is no registering of that name."""
    from transformers import AttentionInterface

    original = AttentionInterface.get_interface

    def get_interface(self: Any, name: Any, default: Callable) -> Callable:
        function = original(self, name, default)
        return _tried(function) if function is default else function

    AttentionInterface.get_interface = get_interface  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        AttentionInterface.get_interface = original  # type: ignore[method-assign]


def _tried(eager: Callable) -> Callable:
    """`eager`, with `mlirc::attention` for the output where that is the same; unused weights vanish from the graph."""

    @functools.wraps(eager)
    def attention(module: Any, query: Any, key: Any, value: Any, attention_mask: Any, *args: Any, **kwargs: Any) -> Any:
        result = eager(module, query, key, value, attention_mask, *args, **kwargs)
        bound = inspect.signature(eager).bind(module, query, key, value, attention_mask, *args, **kwargs)
        bound.apply_defaults()
        if not _agree(eager, bound):
            return result
        return _ours(**_named(bound)), result[1]

    return attention


def attention_arguments(
    function: Callable, *args: Any, **kwargs: Any
) -> tuple[float, float, torch.Tensor | None] | None:
    """Scale, softcap and sinks [Hq] of a call of an attention function of transformers whose output [B,Sq,Hq,Dv] is
    softmax(softcap(q k^T * scale), where the mask is) v, found out with small tensors; None for another one. A function
    may be given a softcap and take none: `sdpa` of transformers 5.17."""
    bound = inspect.signature(function).bind(*args, **kwargs)
    bound.apply_defaults()
    named = _named(bound)
    if named.get("position_bias") is not None:
        return None
    scale = named.get("scaling")
    scale = named["query"].shape[-1] ** -0.5 if scale is None else float(scale)
    for softcap in dict.fromkeys((named.get("softcap"), None)):
        if _agree(function, bound, softcap=softcap):
            return scale, float(softcap or 0.0), _sinks(named["module"], named["query"])
    return None


def _named(bound: inspect.BoundArguments) -> dict[str, Any]:
    """The arguments of a call by name, the first five under the names that `_ours` has for them."""
    named = dict(bound.arguments)
    for parameter in bound.signature.parameters.values():
        if parameter.kind == parameter.VAR_KEYWORD:
            named |= named.pop(parameter.name, {})
    first = ("module", "query", "key", "value", "attention_mask")
    return dict(zip(first, named.values(), strict=False)) | {k: v for k, v in list(named.items())[5:]}


def _ours(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    softcap: float | None = None,
    position_bias: torch.Tensor | None = None,
    **ignored: Any,
) -> torch.Tensor:
    """Attention [B,Sq,Hq,Dv] as transformers' eager functions mean it: no mask is no mask, a float mask is added."""
    mask, bias = None, position_bias
    if attention_mask is not None:
        attention_mask = attention_mask[..., : key.shape[-2]]
        if attention_mask.dtype == torch.bool:
            mask = attention_mask
        else:
            bias = attention_mask if bias is None else bias + attention_mask
    scale = query.shape[-1] ** -0.5 if scaling is None else float(scaling)
    sinks = _sinks(module, query)
    settings = (scale, False, 0, softcap or 0.0)
    out = torch.ops.mlirc.attention(query, key, value, mask, bias, [], *settings, sinks=sinks, padding_rows=True)
    return out.transpose(1, 2).contiguous()  # some models take a view of it


def _sinks(module: Any, query: torch.Tensor) -> torch.Tensor | None:
    """A logit for each head of queries, one more in its rows' softmax, where the layer has such (gpt-oss)."""
    sinks = getattr(module, "sinks", None)
    known = isinstance(sinks, torch.Tensor) and sinks.is_floating_point() and tuple(sinks.shape) == (query.shape[1],)
    return sinks if known else None


class _WithSinks:
    """A layer whose sinks have other values; everything else is the layer's."""

    def __init__(self, module: Any, sinks: torch.Tensor):
        self._module, self.sinks = module, sinks

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)


def _agree(eager: Callable, bound: inspect.BoundArguments, **changed: Any) -> bool:
    """Whether the call computes what `_ours` computes (of arguments some of which are `changed`), found out with a few
    queries and keys of random values.

    What `_ours` ignores is spoiled, so that a function that reads it disagrees; so does one that reads the module's
    parameters, which have no values here, but for its sinks, which get some.
    """
    try:
        # Nor the modes of an export apply here, those of tensors and those of functions.
        functions = torch._C.DisableTorchFunction()
        with _disable_current_modes(), functions, torch.random.fork_rng(devices=[]), torch.no_grad():
            small = _Small(bound)
            found = eager(*small.bound.args, **small.bound.kwargs)
            wanted = _ours(**(_named(small.bound) | changed))
            return isinstance(found, tuple) and len(found) == 2 and torch.allclose(found[0], wanted, 1e-5, 1e-5)
    except Exception:  # whatever goes wrong, the model's own function is right
        return False


class _Small:
    """A call like the given one, with at most 2 batches, 5 queries and 7 keys, of f32 values that depend on nothing."""

    def __init__(self, bound: inspect.BoundArguments):
        named = _named(bound)
        q, k, v = named["query"], named["key"], named["value"]
        self._sizes = {q.shape[0]: min(q.shape[0], 2)}
        self._q, self._k = (int(q.shape[2]), int(k.shape[2]))
        self._queries = min(self._q, 5)
        self._keys = self._queries if self._q == self._k else min(self._k, 7)
        self._generator = torch.Generator().manual_seed(0)
        scale = named.get("scaling")
        scale = q.shape[-1] ** -0.5 if scale is None else float(scale)
        spread = (2.0 / (abs(scale) * q.shape[-1] ** 0.5)) ** 0.5  # the scores have a deviation of about 4
        tensors = {
            "query": self._random(*self._batch(q), self._queries, q.shape[3]) * spread * 2**0.5,
            "key": self._random(*self._batch(k), self._keys, k.shape[3]) * spread * 2**0.5,
            "value": self._random(*self._batch(v), self._keys, v.shape[3]),
        }
        arguments: dict[str, Any] = {}
        sinks = _sinks(named["module"], q)
        for i, (name, value) in enumerate(bound.arguments.items()):
            known = list(tensors.values())
            if i == 0 and sinks is not None:
                arguments[name] = _WithSinks(value, self._random(*sinks.shape))
            elif 1 <= i <= 3:
                arguments[name] = known[i - 1]
            elif bound.signature.parameters[name].kind == inspect.Parameter.VAR_KEYWORD:
                arguments[name] = {k: self._other(k, v) for k, v in value.items()}
            else:
                arguments[name] = self._other("attention_mask" if i == 4 else name, value)
        self.bound = inspect.BoundArguments(bound.signature, arguments)  # type: ignore[arg-type]

    def _random(self, *shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=self._generator)

    def _batch(self, x: torch.Tensor) -> tuple[int, int]:
        return min(int(x.shape[0]), 2), int(x.shape[1])

    def _other(self, name: str, value: Any) -> Any:
        if name == "sliding_window" and isinstance(value, int):
            return min(value, 2)  # narrow enough to show
        if not isinstance(value, torch.Tensor):
            return value
        if name not in ("attention_mask", "position_bias"):
            wrong = float("nan") if value.is_floating_point() else value.dtype == torch.bool or 1 << 20
            return torch.full(tuple(value.shape), wrong, dtype=value.dtype)
        rows = self._queries if value.shape[2] == self._q else int(value.shape[2])
        columns = self._keys + (0 if value.shape[3] == self._k else int(value.shape[3]) - self._k)
        columns = 1 if value.shape[3] == 1 else columns
        bias = self._random(*self._batch(value), rows, columns)
        hidden = bias > 0.8
        hidden[..., 0] = False  # a row that sees nothing has no defined value
        if value.dtype == torch.bool:
            return ~hidden
        if not value.is_floating_point():
            raise TypeError("a mask of integers")
        return bias.masked_fill(hidden, torch.finfo(torch.float32).min)
