"""A transformers cache whose keys and values lie in pages of pools, buffers of the module that is exported."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from transformers.cache_utils import Cache, CacheLayerMixin

from mlirc.errors import MlircError
from mlirc.frontend.row_writes import put_rows

FP8 = torch.float8_e4m3fn


class Pools(torch.nn.Module):
    """The cache of one layer: `keys` [pages,Hkv,P,D] and `values` [pages,Hkv,P,Dv], zeros at first. They are of the
    model's dtype, or of 8-bit floats (e4m3), to which keys and values are rounded when they are written."""

    keys: torch.Tensor
    values: torch.Tensor

    def __init__(self, keys: Sequence[int], values: Sequence[int], dtype: torch.dtype):
        super().__init__()
        self.register_buffer("keys", torch.zeros(*keys, dtype=dtype))
        self.register_buffer("values", torch.zeros(*values, dtype=dtype))


@dataclass(frozen=True)
class Place:
    """Where the tokens of one step lie: int64 tensors. `pages` [B,T] are the pages of each row's sequence; its tokens
    go to `page`, `offset` [B,S] of the pools (no two to one place, those of page 0 to none), and are the positions
    `positions` [B,S] of the sequence, one behind the other; `lengths` [B] tokens are there then, those of this step
    included."""

    pages: torch.Tensor
    page: torch.Tensor
    offset: torch.Tensor
    positions: torch.Tensor
    lengths: torch.Tensor


class PastLength(int):
    """How many keys there are before those of the step, as far as shapes go: sequences are of different lengths, and
    nothing may be computed of it but shapes. `paged_attention` refuses tensors that are made with it."""


class PagedLayer(CacheLayerMixin):
    """One layer of a `PagedCache`."""

    is_compileable = True
    supports_early_init = False
    is_sliding = False

    def __init__(self, pools: Pools, place: Place):
        super().__init__()
        self.pools = (pools.keys, pools.values)  # as they are after the step
        self.place, self.is_initialized = place, True
        self.gathered: tuple[torch.Tensor, torch.Tensor] | None = None

    @property
    def length(self) -> int:
        """Keys of a sequence that is as long as it can be."""
        return self.place.pages.shape[1] * self.pools[0].shape[2]

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        """Nothing to do: the pools are there."""

    def update(self, key_states: torch.Tensor, value_states: torch.Tensor, *_: Any, **__: Any) -> Any:
        """Writes the step's keys [B,Hkv,S,D] and values; returns all keys and values of each sequence, [B,Hkv,T P,D],
        of which those behind its length are whatever is there."""
        if self.gathered is not None:
            raise MlircError("a layer of the model writes its cache twice in one step: that is not supported")
        keys, values = self.pools
        self.pools = _written(keys, key_states, self.place), _written(values, value_states, self.place)
        self.gathered = (
            _gathered(self.pools[0], self.place).to(key_states.dtype),
            _gathered(self.pools[1], self.place).to(value_states.dtype),
        )
        return self.gathered

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Masks are over all keys that there may be."""
        return self.length, 0

    def get_seq_length(self) -> int:
        """What is to be added to the queries' number to get the keys'."""
        return PastLength(self.length - self.place.page.shape[1])

    def get_max_length(self) -> int:
        """The longest sequence."""
        return self.length

    get_max_cache_shape = get_max_length  # as transformers 5.17 calls it


class PagedCache(Cache):
    """The pools of all layers as a cache for one step of a model."""

    def __init__(self, pools: Sequence[Pools], place: Place):
        super().__init__(layers=[PagedLayer(p, place) for p in pools])
        self.place = place

    def layer_of(self, keys: Any, values: Any) -> PagedLayer | None:
        """The layer whose whole keys and values these are."""
        for layer in self.layers:
            if layer.gathered is not None and layer.gathered[0] is keys and layer.gathered[1] is values:
                return layer
        return None


class _NoLayers(list):
    """What a model that looks at layers of its cache finds: only keys and values are known here."""

    def __getitem__(self, index: Any) -> Any:
        raise MlircError(
            "the model keeps something else than keys and values in a layer: its generation is not supported"
        )


class ShapesOfCache(Cache):
    """Finds out what a model keeps: the shapes of keys and values by layer, from one step of one token."""

    def __init__(self) -> None:
        super().__init__(layers=_NoLayers())
        self.found: dict[int, tuple[tuple[int, int], tuple[int, int], torch.dtype]] = {}

    def update(self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *_: Any, **__: Any) -> Any:
        """Notes heads and size of the layer's keys and values."""
        k, v = key_states.shape, value_states.shape
        if layer_idx in self.found or len(k) != 4 or len(v) != 4 or key_states.dtype != value_states.dtype:
            raise MlircError("the model's cache is not one of keys and values [batch, heads, tokens, size] per layer")
        self.found[layer_idx] = ((k[1], k[3]), (v[1], v[3]), key_states.dtype)
        return key_states, value_states

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Nothing is there yet."""
        return 0

    def get_mask_sizes(self, query_length: int, layer_idx: int = 0) -> tuple[int, int]:
        """The step's own keys."""
        return query_length, 0


def _written(pool: torch.Tensor, rows: torch.Tensor, place: Place) -> torch.Tensor:
    """A pool [pages,H,P,D] with rows [B,H,S,D] in their places; those of page 0 are in none."""
    heads, size, width = pool.shape[1:]
    head = torch.arange(heads, device=pool.device)[:, None]
    at = (place.page[:, None] * heads + head) * size + place.offset[:, None]  # [B,H,S]
    at = torch.where(place.page[:, None] > 0, at, -1)
    rows = rows.reshape(-1, width)
    if pool.dtype == FP8:  # what is too large becomes the largest number in every version of PyTorch
        most = torch.finfo(FP8).max
        rows = rows.float().clamp(-most, most)
    flat = put_rows(pool.reshape(-1, width), rows.to(pool.dtype), at.reshape(-1))
    return flat.reshape(pool.shape)


def _gathered(pool: torch.Tensor, place: Place) -> torch.Tensor:
    """All rows of each sequence: [B,H,T P,D]."""
    batch, count = place.pages.shape
    heads, size, width = pool.shape[1:]
    return pool[place.pages].transpose(1, 2).reshape(batch, heads, count * size, width)
