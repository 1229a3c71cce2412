"""Steps of encoder-decoders: one that encodes a source and keeps what the decoder's cross-attention reads of it, and
those of the decoder, which are the ones of other models with that beside their cache.

Keys and values of the cross-attention are states with one row per slot, `cross.N.keys` and `cross.N.values`
[slots,H,S,D], of which a slot's first `encoded` positions are those of its own source.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from transformers.cache_utils import Cache, CacheLayerMixin, DynamicCache, EncoderDecoderCache
from transformers.modeling_outputs import BaseModelOutput

from mlirc.errors import MlircError
from mlirc.frontend.experts import routed_experts
from mlirc.generate.paged_attention import paged_attention
from mlirc.generate.paged_cache import PagedCache, Place, Pools, ShapesOfCache
from mlirc.generate.sizes import Sizes
from mlirc.generate.steps import Decode, Prefill, Step


@dataclass(frozen=True)
class SourcePlace(Place):
    """A place, with the slot of each row (None: all of them in order)."""

    slot: torch.Tensor | None


@dataclass(frozen=True)
class Barred:
    """Tokens that a model never makes, makes not as the first one, and the only ones that may follow the first token of
    all (none: any may)."""

    always: tuple[int, ...] = ()
    first: tuple[int, ...] = ()
    languages: tuple[int, ...] = ()


def encoder_input(network: Any, lengths: Sequence[int]) -> tuple[str, int, tuple[int, ...]]:
    """What the encoder takes (`tokens` or `features`), how many numbers each frame has, and the lengths of its runs."""
    if network.main_input_name == "input_ids":
        return "tokens", 0, tuple(lengths)
    config, encoder = network.config, network.get_encoder()
    bins, positions = getattr(config, "num_mel_bins", None), getattr(config, "max_source_positions", None)
    strides = [getattr(encoder, name).stride[0] for name in ("conv1", "conv2") if hasattr(encoder, name)]
    if network.main_input_name != "input_features" or not bins or not positions or len(strides) != 2:
        raise MlircError(
            f"{type(network).__name__}: its encoder reads {network.main_input_name}: generation is supported for text "
            "and for the log-mel frames of Whisper"
        )
    return "features", int(bins), (int(positions) * strides[0] * strides[1],)


def example_source(kind: str, bins: int, length: int) -> torch.Tensor:
    """Zeros as an encoder takes them: i64 [1,N] tokens or f32 [1,bins,N] features."""
    return torch.zeros(1, length, dtype=torch.int64) if kind == "tokens" else torch.zeros(1, bins, length)


def encoded(network: Any, source: torch.Tensor, count: torch.Tensor | None) -> torch.Tensor:
    """The encoder's last hidden states [1,S,H], of the first `count` tokens (i64 []) of a source, or of all frames."""
    encoder = network.get_encoder()
    if source.dim() == 3:
        return encoder(source.to(network.dtype)).last_hidden_state
    mask = None if count is None else (torch.arange(source.shape[1]) < count)[None].long()  # as tokenizers give it
    return encoder(input_ids=source, attention_mask=mask).last_hidden_state


class _Taken(Cache):
    """Takes the keys and values that a decoder makes of the encoder's states."""

    def __init__(self) -> None:
        super().__init__(layers=[])
        self.made: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def update(self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *_: Any, **__: Any) -> Any:
        """Notes them."""
        self.made[layer_idx] = (key_states, value_states)
        return key_states, value_states


def shapes_of(network: Any, kind: str, bins: int, lengths: Sequence[int]) -> tuple[dict, dict, int, int]:
    """Shapes of the decoder's cache and of its cross-attention's by layer, the number of logits, and of the encoder's
    states for the longest source. To be called where tensors are fake."""
    own, cross = ShapesOfCache(), ShapesOfCache()
    with routed_experts(network):
        hidden = encoded(network, example_source(kind, bins, lengths[-1]), None)
        made = network(
            decoder_input_ids=torch.zeros(1, 1, dtype=torch.int64), use_cache=True,
            encoder_outputs=BaseModelOutput(last_hidden_state=hidden), past_key_values=EncoderDecoderCache(own, cross),
        )  # fmt: skip
    return own.found, cross.found, int(made.logits.shape[-1]), int(hidden.shape[1])


class Cross(torch.nn.Module):
    """What one layer's cross-attention reads: `keys` [slots,H,S,D] and `values` [slots,H,S,Dv], zeros at first."""

    keys: torch.Tensor
    values: torch.Tensor

    def __init__(self, slots: int, positions: int, keys: tuple, values: tuple, dtype: torch.dtype):
        super().__init__()
        self.register_buffer("keys", torch.zeros(slots, keys[0], positions, keys[1], dtype=dtype))
        self.register_buffer("values", torch.zeros(slots, values[0], positions, values[1], dtype=dtype))


class _CrossLayer(CacheLayerMixin):
    """A layer of the cache of the cross-attention, as the models read it."""

    is_compileable, supports_early_init, is_sliding = True, False, False

    def __init__(self, keys: torch.Tensor, values: torch.Tensor):
        super().__init__()
        self.keys, self.values, self.is_initialized = keys, values, True

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        """Nothing to do: they are there."""

    def update(self, key_states: torch.Tensor, value_states: torch.Tensor, *_: Any, **__: Any) -> Any:
        """Raises MlircError: the encode plan has written them."""
        raise MlircError("the model encodes its source again in every step: its generation is not supported")

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """All positions that there may be."""
        return self.get_seq_length(), 0

    def get_seq_length(self) -> int:
        """The longest source."""
        assert self.keys is not None
        return self.keys.shape[2]

    def get_max_length(self) -> int:
        """The same."""
        return self.get_seq_length()

    get_max_cache_shape = get_max_length  # as transformers 5.17 calls it


class _WithCross(Step):
    """What the steps of an encoder-decoder share."""

    def __init__(
        self, network: Any, pools: Sequence[Pools], states: dict[str, torch.Tensor], sizes: Sizes,
        cross: Sequence[Cross], barred: Barred,
    ):  # fmt: skip
        super().__init__(network, pools, states, sizes)
        self.cross = torch.nn.ModuleList(cross)
        self._barred = {name: _marks(ids, sizes.vocabulary) for name, ids in vars(barred).items() if ids}
        if barred.languages:
            self._barred["languages"] = ~self._barred["languages"]

    def _hidden(self, positions: torch.Tensor, slot: torch.Tensor | None) -> torch.Tensor | None:
        """bool [B,S,V] of tokens that cannot follow those at `positions` [B,S]."""
        hidden, following = None, positions[:, :, None] + 1  # the place of the token that is chosen
        for name, marks in self._barred.items():
            rows = self.get_buffer("begin") if slot is None else self.get_buffer("begin").index_select(0, slot)
            behind = following > 1 if "languages" in self._barred else following > 0
            first = following == rows[:, None, None]
            part = marks & {"always": behind, "first": first, "languages": following == 1}[name]
            hidden = part if hidden is None else hidden | part
        return hidden

    def logits(
        self, tokens: torch.Tensor, place: Place, last: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """As of the class: f32 [B,S,V] of tokens [B,S], and the cache with them."""
        assert isinstance(place, SourcePlace)

        def rows(x: torch.Tensor) -> torch.Tensor:
            return x if place.slot is None else x.index_select(0, place.slot)

        layers: Any = [_CrossLayer(rows(c.get_buffer("keys")), rows(c.get_buffer("values"))) for c in self.cross]
        positions = layers[0].keys.shape[2]
        pools: Any = list(self.cache)
        cache = PagedCache(pools, place)
        config = self.network.get_encoder().config
        nothing = torch.zeros(tokens.shape[0], positions, config.hidden_size, dtype=self.network.dtype)
        given: dict[str, Any] = {"decoder_position_ids": place.positions.clamp(max=self.sizes.context - 1)}
        known = {name: value for name, value in given.items() if name in self._takes}
        if self.sizes.source is not None and self.sizes.source.kind == "tokens":
            known["attention_mask"] = (torch.arange(positions) < rows(self.get_buffer("encoded"))[:, None]).long()
        masks = _registered_masks()
        positions_of_rows = _relative_positions(self.network, place), _embedded_positions(self.network, place)
        with paged_attention(cache) as found, _masks_of_sources(masks), positions_of_rows[0], positions_of_rows[1]:
            made = self.network(
                decoder_input_ids=tokens, encoder_outputs=BaseModelOutput(last_hidden_state=nothing),
                past_key_values=_both(self.network, cache, Cache(layers=layers)), use_cache=True, **known,
            ).logits  # fmt: skip
        unused = [i for i, layer in enumerate(cache.layers) if layer.gathered is None]
        if unused or not found.made:
            what = f"layer {unused[0]} does not use its cache" if unused else "it makes masks of its own"
            raise MlircError(f"{type(self.network).__name__}: {what}: generation is not supported for this model")
        self.found.fused = found.fused
        if last is not None:
            made = made.index_select(1, last)
        hidden = self._hidden(place.positions if last is None else place.positions.index_select(1, last), place.slot)
        written: dict[str, torch.Tensor] = {}
        for i, layer in enumerate(cache.layers):
            written |= {f"cache.{i}.keys": layer.pools[0], f"cache.{i}.values": layer.pools[1]}
        made = made.float()
        return made if hidden is None else made.masked_fill(hidden, -torch.inf), written


class DecodeWithSource(_WithCross, Decode):
    """One token of every slot."""

    def place(self) -> SourcePlace:
        """Of the slots' next inputs."""
        return SourcePlace(**vars(super().place()), slot=None)


class PrefillWithSource(_WithCross, Prefill):
    """A chunk of the decoder's tokens."""

    def place(self, chunk: int, slot: torch.Tensor, start: torch.Tensor) -> SourcePlace:
        """Of a chunk of so many tokens."""
        return SourcePlace(**vars(super().place(chunk, slot, start)), slot=slot[None])


class Encode(_WithCross):
    """Encodes the source of a slot, and keeps what the decoder's cross-attention reads of it."""

    def kept(self, source: torch.Tensor, slot: torch.Tensor, count: torch.Tensor) -> dict[str, torch.Tensor]:
        """The states with the source of which `count` are real, by name."""
        hidden = encoded(self.network, source, count)
        taken, start = _Taken(), torch.zeros(1, 1, dtype=torch.int64)
        self.network(
            decoder_input_ids=start, encoder_outputs=BaseModelOutput(last_hidden_state=hidden), use_cache=True,
            past_key_values=EncoderDecoderCache(DynamicCache(), taken),
        )  # fmt: skip
        count = count if source.dim() == 2 else torch.full_like(count, hidden.shape[1])
        one, written = slot[None], {"encoded": self.get_buffer("encoded").index_copy(0, slot[None], count[None])}
        for i, cross in enumerate(self.cross):
            for name, made in zip(("keys", "values"), taken.made[i], strict=True):
                state = cross.get_buffer(name)
                row = torch.nn.functional.pad(made.to(state.dtype), (0, 0, 0, state.shape[2] - made.shape[2]))
                written[f"cross.{i}.{name}"] = state.index_copy(0, one, row)
        return written

    def forward(self, source: torch.Tensor, slot: torch.Tensor, count: torch.Tensor) -> dict[str, Any]:
        """`source` i64[1,N], of which the first `count` (i64[]) are real, or f32[1,bins,N], all real, for `slot`.
        Returns i64[1]: the count."""
        return self.results(count[None].clone(), self.kept(source, slot, count))


class _BothCaches(EncoderDecoderCache):
    """Of a decoder whose positions are those of `_embedded_positions`, whatever length it asks for."""

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """A number of which nothing is made that anybody reads."""
        return int(super().get_seq_length(layer_idx))


def _both(network: Any, own: Cache, cross: Cache) -> EncoderDecoderCache:
    return (_BothCaches if _embeddings(network) else EncoderDecoderCache)(own, cross)


def _embeddings(network: Any) -> list[Any]:
    """The modules of the decoder that embed positions which they take as `position_ids` (BART and its like)."""
    named = [m for n, m in network.get_decoder().named_modules() if n.rpartition(".")[2] == "embed_positions"]
    return [m for m in named if "position_ids" in inspect.signature(type(m).forward).parameters]


@contextlib.contextmanager
def _embedded_positions(network: Any, place: SourcePlace) -> Iterator[None]:
    """In the body embeddings of positions are those of each row's own positions, [B,S,H]."""
    found = _embeddings(network)
    most = getattr(network.config, "max_position_embeddings", None)

    def forward_of(module: Any) -> Callable:
        forward = module.forward

        def embed(input_ids: Any, *_: Any, **__: Any) -> torch.Tensor:
            positions = place.positions if most is None else place.positions.clamp(max=most - 1)
            made = forward(input_ids, position_ids=positions)  # BART's adds a dimension in front
            return made.reshape(*positions.shape, -1)

        return embed

    try:
        for module in found:
            module.forward = forward_of(module)
        yield
    finally:
        for module in found:
            vars(module).pop("forward", None)


def _marks(ids: Sequence[int], vocabulary: int) -> torch.Tensor:
    marks = torch.zeros(vocabulary, dtype=torch.bool)
    marks[list(ids)] = True
    return marks


def _registered_masks() -> dict[str, Callable]:
    from transformers import AttentionMaskInterface

    return {name: AttentionMaskInterface._global_mapping[name] for name in ("sdpa", "eager")}


@contextlib.contextmanager
def _masks_of_sources(masks: dict[str, Callable]) -> Iterator[None]:
    """In the body masks of the cross-attention, which hide what fills a source up and no more, are made by `masks`."""
    from transformers import AttentionMaskInterface, masking_utils

    inner = _registered_masks()

    def either(name: str) -> Callable:
        def mask(*args: Any, **kwargs: Any) -> Any:
            if kwargs.get("mask_function") is masking_utils.bidirectional_mask_function:
                return masks[name](*args, **kwargs)
            # No token of the decoder is hidden: a mask of them is one that the model makes itself (BART), of ones.
            return inner[name](*args, **{**kwargs, "attention_mask": None})

        return mask

    try:
        for name in inner:
            AttentionMaskInterface.register(name, either(name))
        yield
    finally:
        for name, function in inner.items():
            AttentionMaskInterface.register(name, function)


@contextlib.contextmanager
def _relative_positions(network: Any, place: Place) -> Iterator[None]:
    """In the body biases of relative positions (T5's) are those of each row's own positions, [B,H,S,K]."""
    found = [m for m in network.get_decoder().modules() if hasattr(m, "compute_bias") and hasattr(m, "is_decoder")]

    def bias_of(module: Any) -> Callable:
        names = {"num_buckets": "relative_attention_num_buckets", "max_distance": "relative_attention_max_distance"}

        def compute_bias(query_length: int, key_length: int, **_: Any) -> torch.Tensor:
            distance = torch.arange(key_length)[None, None] - place.positions[:, :, None]  # [B,S,K]
            sizes = {name: getattr(module, attribute) for name, attribute in names.items()}
            sizes["bidirectional"] = not module.is_decoder
            takes = inspect.signature(module._relative_position_bucket).parameters  # UMT5's knows its own sizes
            sizes = {name: value for name, value in sizes.items() if name in takes}
            bucket = module._relative_position_bucket(distance, **sizes)
            return module.relative_attention_bias(bucket).permute(0, 3, 1, 2)

        return compute_bias

    try:
        for module in found:
            module.compute_bias = bias_of(module)
        yield
    finally:
        for module in found:
            vars(module).pop("compute_bias", None)
