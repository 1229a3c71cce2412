"""Recurrent layers (Mamba, Mamba-2 and what mixes them with attention) in steps: their states have one row per slot.

transformers' mixers ask their cache for the inputs of the last positions and the state behind them, and call functions
of their module for the convolution and the recurrence. A step gives them the slots' rows, and functions that write
nothing in place, go on from the rows for several tokens, too, and pass over what fills a chunk up.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from transformers.activations import ACT2FN
from transformers.cache_utils import LinearAttentionCacheLayerMixin

from mlirc.errors import MlircError
from mlirc.generate.no_cache import DummyLayer
from mlirc.generate.paged_attention import paged_attention
from mlirc.generate.paged_cache import PagedCache, PagedLayer, Place, Pools
from mlirc.generate.sizes import Sizes
from mlirc.generate.steps import Decode, Prefill, Step

Tensor = torch.Tensor
_NEEDED = ("causal_conv1d_fn", "causal_conv1d_update")
# By the functions of a module that know a recurrence: of one token, and of several.
_RECURRENCES = (
    ("mamba2_selective_state_update", "mamba2_chunk_scan"),
    ("mamba_selective_state_update", "mamba_selective_scan"),
)


class Rows(torch.nn.Module):
    """What one recurrent layer keeps: `inputs` [slots,C,K], the last inputs of its convolution, and `state`
    [slots,...], that of its recurrence, zeros at first."""

    inputs: Tensor
    state: Tensor

    def __init__(self, slots: int, inputs: Sequence[int], state: Sequence[int], dtype: torch.dtype):
        super().__init__()
        self.register_buffer("inputs", torch.zeros(slots, *inputs, dtype=dtype))
        self.register_buffer("state", torch.zeros(slots, *state))  # f32: sums over the whole sequence


@dataclass(frozen=True)
class RowPlace(Place):
    """A place, with the slot of its only row, whether a sequence begins there (bool []), and how many of its tokens are
    real (i64 []); all None for a token of every slot."""

    slot: Tensor | None
    fresh: Tensor | None
    count: Tensor | None


class _RowLayer(LinearAttentionCacheLayerMixin):
    """A recurrent layer of the cache of one step."""

    is_compileable, supports_early_init = True, False
    gathered = None  # as of `PagedLayer`

    def __init__(self, rows: Rows, place: RowPlace):
        super().__init__()
        self.inputs, self.state = (self._of(buffer, place) for buffer in (rows.inputs, rows.state))
        self.place, self.written = place, 0
        self.record_past = True  # or else the model writes the inputs of one token in place
        self.conv_states, self.recurrent_states = {0: self.inputs}, {0: self.state}
        self.has_previous_state = {0: True}

    @staticmethod
    def _of(buffer: Tensor, place: RowPlace) -> Tensor:
        if place.slot is None or place.fresh is None:
            return buffer
        row = buffer.index_select(0, place.slot)
        return torch.where(place.fresh, torch.zeros_like(row), row)

    def lazy_initialization(self, *_: Any, **__: Any) -> None:
        """Nothing to do: the rows are there."""

    def update_conv_state(self, conv_states: Tensor, state_idx: int = 0, **_: Any) -> Tensor:
        """Takes inputs [B,C,S]; returns them behind the last ones, [B,C,K+S]."""
        kept = self.inputs.shape[-1]
        whole = torch.cat([self.inputs, conv_states.to(self.inputs.dtype)], dim=-1)
        if self.place.count is None:
            self.inputs = whole[..., -kept:]
        else:
            self.inputs = whole.index_select(-1, self.place.count + torch.arange(kept))
        return whole

    def update_recurrent_state(self, recurrent_states: Tensor, state_idx: int = 0, **_: Any) -> Tensor:
        """Takes the state behind the step's tokens."""
        if state_idx or recurrent_states.shape != self.state.shape:
            raise MlircError("the model's recurrence keeps what is not known: its generation is not supported")
        self.state, self.written = recurrent_states.float(), self.written + 1
        return self.state

    def get_max_length(self) -> int:
        """There is no longest sequence."""
        return -1


class _NoLayer(DummyLayer):
    """A layer that keeps nothing, such as one of experts alone."""

    gathered = None  # as of `PagedLayer`


class _MixedCache(PagedCache):
    """Pages of the layers with attention, rows of the recurrent ones; `current` is the layer whose inputs or
    state were asked for last: a recurrence that is begun anew by the model goes on from there."""

    def __init__(self, layers: Sequence[PagedLayer | _RowLayer | _NoLayer], place: Place):
        super().__init__([], place)
        self.layers = list(layers)
        self.current: _RowLayer | None = None

    def update_conv_state(self, conv_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any) -> Tensor:
        """As of the layer, whose state comes next: transformers 5.17 reads that of its attribute."""
        layer = self.layers[layer_idx]
        self.current = layer if isinstance(layer, _RowLayer) else None
        return super().update_conv_state(conv_states, layer_idx, *args, **kwargs)

    def get_recurrent_state(self, layer_idx: int, state_idx: int = 0) -> Tensor:
        """The state of a layer's rows."""
        layer = self.layers[layer_idx]
        if not isinstance(layer, _RowLayer) or state_idx:
            raise MlircError("the model's recurrence keeps what is not known: its generation is not supported")
        self.current = layer
        return layer.state


class _WithRows(Step):
    """What the steps of a model with recurrent layers share. `order` has for each layer its pools, rows or nothing."""

    def __init__(
        self, network: Any, pools: Sequence[Pools], rows: Sequence[Rows], order: Sequence[tuple[str, int]],
        states: dict[str, Tensor], sizes: Sizes,
    ):  # fmt: skip
        super().__init__(network, pools, states, sizes)
        self.rows, self.order = torch.nn.ModuleList(rows), tuple(order)
        self._counts: list[Tensor] = []  # of the chunk that is read

    def logits(self, tokens: Tensor, place: Place, last: Tensor | None = None) -> tuple[Tensor, dict[str, Tensor]]:
        """As of the class: f32 [B,S,V] of tokens [B,S], and what is kept with them."""
        assert isinstance(place, RowPlace)
        pools, rows = list(self.cache), list(self.rows)
        make: dict[str, Any] = {
            "pages": lambda i: PagedLayer(pools[i], place),  # type: ignore[arg-type]
            "rows": lambda i: _RowLayer(rows[i], place),  # type: ignore[arg-type]
            "nothing": lambda i: _NoLayer(),
        }
        layers: list[Any] = [make[kind](i) for kind, i in self.order]
        cache = _MixedCache(layers, place)
        given: dict[str, Any] = {"position_ids": place.positions.clamp(max=self.sizes.context - 1), "use_cache": True}
        if last is not None:
            given["logits_to_keep"] = last
        given = {name: value for name, value in given.items() if name in self._takes}
        given["cache_params" if "cache_params" in self._takes else "past_key_values"] = cache
        with paged_attention(cache) as found, _own_recurrences(self.network, cache, place):
            made = self.network(input_ids=tokens, **given).logits
        self.found.fused = found.fused
        if last is not None and "logits_to_keep" not in given:
            made = made.index_select(1, last)
        written: dict[str, Tensor] = {}
        for (kind, i), layer in zip(self.order, layers, strict=True):
            if kind == "pages":
                if layer.gathered is None or not found.made:
                    raise MlircError(f"{type(self.network).__name__}: a layer does not use its cache as is known")
                written |= {f"cache.{i}.keys": layer.pools[0], f"cache.{i}.values": layer.pools[1]}
            if kind != "rows":
                continue
            if layer.written != 1:
                raise MlircError(f"{type(self.network).__name__}: a recurrent layer does not use its cache as is known")
            for name, value in (("inputs", layer.inputs), ("state", layer.state)):
                old = rows[i].get_buffer(name)
                value = value.to(old.dtype)
                written[f"rows.{i}.{name}"] = value if place.slot is None else old.index_copy(0, place.slot, value)
        return made.float(), written


class DecodeWithRows(_WithRows, Decode):
    """One token of every slot. The rows of idle slots mean nothing: a sequence begins with zeros."""

    def place(self) -> RowPlace:
        """Of the slots' next inputs."""
        place = super().place()
        return RowPlace(**vars(place), slot=None, fresh=None, count=None)


class PrefillWithRows(_WithRows, Prefill):
    """A chunk of a slot's tokens."""

    def place(self, chunk: int, slot: Tensor, start: Tensor, count: Tensor | None = None) -> RowPlace:
        """Of a chunk of so many tokens, of which `count` are real."""
        place = super().place(chunk, slot, start)
        count = self._counts[-1] if count is None else count
        return RowPlace(**vars(place), slot=slot[None], fresh=start == 0, count=count)

    def forward(self, tokens: Tensor, slot: Tensor, start: Tensor, count: Tensor) -> dict[str, Any]:
        """As of the class above."""
        self._counts.append(count)
        try:
            return super().forward(tokens, slot, start, count)
        finally:
            self._counts.pop()


def known_modules(network: Any) -> list[Any]:
    """The modules with the functions of the network's recurrent layers, one of them at least; none where one of these
    is not known."""
    found = []
    for name in {type(m).__module__ for m in network.modules() if hasattr(m, "conv1d") and hasattr(m, "A_log")}:
        module = sys.modules[name]
        if not any(all(hasattr(module, f) for f in (*_NEEDED, *pair)) for pair in _RECURRENCES):
            return []
        found.append(module)
    return found


@contextlib.contextmanager
def _own_recurrences(network: Any, cache: _MixedCache, place: RowPlace) -> Iterator[None]:
    """In the body the recurrent layers of `network` compute by the functions below."""
    state = _Recurrence(cache, place)
    ours: dict[str, Callable] = {
        "causal_conv1d_fn": convolved, "mamba2_selective_state_update": state.one, "mamba_selective_state_update":
        state.one_of_channels, "mamba2_chunk_scan": state.chunk, "mamba_selective_scan": state.chunk_of_channels,
    }  # fmt: skip
    changed = [(m, name, getattr(m, name)) for m in known_modules(network) for name in ours if hasattr(m, name)]
    try:
        for module, name, _ in changed:
            setattr(module, name, ours[name])
        yield
    finally:
        for module, name, function in changed:
            setattr(module, name, function)


def convolved(
    hidden_states: Tensor, weight: Tensor, bias: Tensor | None = None, activation: str | None = None, **_: Any
) -> Tensor:
    """The causal convolution [B,C,S] of inputs [B,C,K+S], of which the first K are earlier ones; weights [C,K]."""
    size = weight.shape[-1]
    count = hidden_states.shape[-1] - size
    x = hidden_states.to(weight.dtype)
    out = sum((x[..., k + 1 : k + 1 + count].float() * weight[:, k, None].float() for k in range(size)), 0.0)
    out = out if bias is None else out + bias[:, None].float()
    out = out.to(weight.dtype) if isinstance(out, Tensor) else x
    return (out if activation is None else ACT2FN[activation](out)).to(hidden_states.dtype)


class _Recurrence:
    """The recurrences h <- exp(dt A) h + dt B x, y = C h + D x (Mamba: arXiv 2312.00752; Mamba-2: 2405.21060)."""

    def __init__(self, cache: _MixedCache, place: RowPlace):
        self._cache, self._place = cache, place

    def _layer(self) -> _RowLayer:
        assert self._cache.current is not None
        return self._cache.current

    def _step(self, dt: Tensor, bias: Tensor | None, softplus: bool, limit: tuple[float, float] | None) -> Tensor:
        """The steps as f32: with bias, positive, in limits."""
        dt = dt.float() if bias is None else dt.float() + bias.float()
        dt = torch.nn.functional.softplus(dt) if softplus else dt
        return dt if limit is None or limit == (0.0, float("inf")) else dt.clamp(*limit)

    def one(
        self, state: Tensor, hidden_states: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor,
        D: Tensor | None = None, dt_bias: Tensor | None = None, dt_softplus: bool = False, z: Tensor | None = None,
        **_: Any,
    ) -> Tensor:  # fmt: skip
        """One token of Mamba-2: state [B,H,P,N], `hidden_states` and `dt` [B,H,P], A [H,P,N], B and C [B,G,N]."""
        x, groups = hidden_states.float(), B.shape[1]
        batch, heads, width = x.shape
        dt = self._step(dt, dt_bias, dt_softplus, None)

        def of_heads(t: Tensor) -> Tensor:  # [B,H,1,N]
            t = t.float()[:, :, None].expand(batch, groups, heads // groups, t.shape[-1])
            return t.reshape(batch, heads, 1, -1)

        new = state.float() * torch.exp(dt[..., None] * A.float()) + (dt * x)[..., None] * of_heads(B)
        self._layer().update_recurrent_state(new)
        y = (new * of_heads(C)).sum(-1)
        return self._out(y, x, D, z).to(hidden_states.dtype)

    def one_of_channels(
        self, state: Tensor, hidden_states: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor,
        D: Tensor | None = None, dt_bias: Tensor | None = None, dt_softplus: bool = False, z: Tensor | None = None,
        **_: Any,
    ) -> Tensor:  # fmt: skip
        """One token of Mamba: state [B,C,N], `hidden_states` and `dt` [B,C], A [C,N], B and C [B,N]."""
        x, dt = hidden_states.float(), self._step(dt, dt_bias, dt_softplus, None)
        new = state.float() * torch.exp(dt[..., None] * A.float()) + (dt * x)[..., None] * B.float()[:, None]
        self._layer().update_recurrent_state(new)
        y = (new * C.float()[:, None]).sum(-1)
        return self._out(y, x, D, z).to(hidden_states.dtype)

    @staticmethod
    def _out(y: Tensor, x: Tensor, skip: Tensor | None, gate: Tensor | None) -> Tensor:
        y = y if skip is None else y + x * skip.float()
        return y if gate is None else y * torch.nn.functional.silu(gate.float())

    def _real(self, dt: Tensor, dim: int) -> Tensor:
        """Steps of 0 where tokens only fill the chunk up: they leave the state as it is."""
        if self._place.count is None:
            return dt
        real = torch.arange(dt.shape[dim]) < self._place.count
        return torch.where(real.reshape([-1 if i == dim else 1 for i in range(dt.dim())]), dt, 0.0)

    def chunk(
        self, hidden_states: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, chunk_size: int,
        D: Tensor | None = None, dt_bias: Tensor | None = None, initial_states: Tensor | None = None,
        dt_softplus: bool = False, dt_limit: tuple[float, float] | None = None, **_: Any,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        """A chunk of Mamba-2: `hidden_states` [B,L,H,P], `dt` [B,L,H], A [H], B and C [B,L,G,N]; the outputs [B,L,H,P],
        and the state [B,H,P,N] behind the chunk, as attention with decaying scores (section 6 of the paper)."""
        x, groups = hidden_states.float(), B.shape[2]
        batch, length, heads, width = x.shape
        per, size = heads // groups, B.shape[-1]
        dt = self._real(self._step(dt, dt_bias, dt_softplus, dt_limit), 1)
        passed = torch.cumsum(dt * A.float(), 1).transpose(1, 2)  # [B,H,L], logarithms of decays since the beginning
        behind = torch.ones(length, length, dtype=torch.bool).tril()
        between = torch.where(behind, passed[..., :, None] - passed[..., None, :], -torch.inf).exp()  # [B,H,L,L]
        b, c = (t.float().transpose(1, 2) for t in (B, C))  # [B,G,L,N]
        scores = (c @ b.transpose(-1, -2))[:, :, None] * between.reshape(batch, groups, per, length, length)
        steps = (x * dt[..., None]).transpose(1, 2)  # [B,H,L,P]
        old = self._layer().state.float()  # [B,H,P,N]
        y = scores.reshape(batch, heads, length, length) @ steps
        seen = c @ old.reshape(batch, groups, per * width, size).transpose(-1, -2)  # [B,G,L,R P]
        seen = seen.reshape(batch, groups, length, per, width).transpose(2, 3).reshape(batch, heads, length, width)
        y = y + seen * passed.exp()[..., None]
        left = (passed[..., -1:] - passed).exp()[..., None]  # [B,H,L,1]
        added = (steps * left).reshape(batch, groups, per, length, width).transpose(3, 4)
        added = added.reshape(batch, groups, per * width, length) @ b
        new = old * passed[..., -1].exp()[..., None, None] + added.reshape(batch, heads, width, size)
        y = y.transpose(1, 2)
        return (y if D is None else y + x * D.float()[:, None]), new

    def chunk_of_channels(
        self, hidden_states: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor | None = None,
        z: Tensor | None = None, delta_bias: Tensor | None = None, delta_softplus: bool = False, **_: Any,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        """A chunk of Mamba: `hidden_states`, `dt` and `z` [B,C,L], A [C,N], B and C [B,N,L]; the outputs [B,C,L], and
        the state [B,C,N] behind the chunk, by doubling spans (a scan of pairs: what is kept of h, what is added)."""
        x, length = hidden_states.float(), hidden_states.shape[-1]
        bias = None if delta_bias is None else delta_bias[:, None]
        dt = self._real(self._step(dt, bias, delta_softplus, None), 2)
        kept = torch.exp(dt[:, :, None] * A.float()[None, ..., None])  # [B,C,N,L]
        added = (dt * x)[:, :, None] * B.float()[:, None]
        span = 1
        while span < length:
            earlier = torch.nn.functional.pad(added[..., :-span], (span, 0))
            before = torch.nn.functional.pad(kept[..., :-span], (span, 0), value=1.0)
            added, kept, span = added + kept * earlier, kept * before, 2 * span
        states = added + kept * self._layer().state.float()[..., None]
        y = (states * C.float()[:, None]).sum(2)
        skip = None if D is None else D[:, None]
        return self._out(y, x, skip, z).to(hidden_states.dtype), states[..., -1]
