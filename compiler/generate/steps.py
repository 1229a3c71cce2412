"""What a model that generates runs, as modules to compile: a step of decoding, the reading of a chunk of a prompt, and
what chooses other tokens than the most probable ones behind either.

All that lasts lies in buffers, which the plans share: see `make_states`. Page 0 of the pools belongs to no sequence,
and nothing is written there: idle slots write nothing, and the rows that fill a chunk up lie behind what anybody sees.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import torch

from mlirc.errors import MlircError
from mlirc.generate.paged_attention import Found, paged_attention
from mlirc.generate.paged_cache import PagedCache, Place, Pools
from mlirc.generate.repeated_layers import layers_traced_once
from mlirc.generate.sampling import chosen, most_probable
from mlirc.generate.sizes import VERIFY_LIMIT, Sizes
from mlirc.ir.layer_names import Layers


def make_states(sizes: Sizes) -> dict[str, torch.Tensor]:
    """The buffers of all steps but the cache, by name, one row per slot.

    `table` i64[slots,T]: the pages of the slot's sequence, 0 where it has none. `token`, `position` i64[slots]: its
    next input, and where that belongs. `active` bool[slots]: whether `decode` moves it on. `seen` bool[slots,V]: the
    tokens that it has, for the repetition penalty. `last_logits` f32[slots,V] and `fresh` bool[slots]: what the last
    run has left for `sample`, and for which slots; `fed` i64[slots]: the last token that it read of each. The others
    are those of `Sampling`.
    """
    n, whole = sizes.slots, torch.int64
    return {
        "table": torch.zeros(n, sizes.pages_each, dtype=whole),
        "token": torch.zeros(n, dtype=whole),
        "position": torch.zeros(n, dtype=whole),
        "active": torch.zeros(n, dtype=torch.bool),
        "seen": torch.zeros(n, sizes.vocabulary, dtype=torch.bool),
        "last_logits": torch.zeros(n, sizes.vocabulary),
        "fresh": torch.zeros(n, dtype=torch.bool),
        "fed": torch.zeros(n, dtype=whole),
        "temperature": torch.zeros(n),
        "top_k": torch.zeros(n, dtype=whole),
        "top_p": torch.ones(n),
        "min_p": torch.zeros(n),
        "penalty": torch.ones(n),
        "seed": torch.zeros(n, dtype=whole),
    }


class Run(torch.nn.Module):
    """The states as buffers. What a run writes it returns, by the buffers' names: a graph without writes is traced call
    by call (`decomposer.py`)."""

    table: torch.Tensor
    token: torch.Tensor
    position: torch.Tensor
    active: torch.Tensor
    seen: torch.Tensor
    last_logits: torch.Tensor
    fresh: torch.Tensor
    fed: torch.Tensor

    def __init__(self, states: dict[str, torch.Tensor], sizes: Sizes):
        super().__init__()
        self.sizes = sizes
        for name, tensor in states.items():
            self.register_buffer(name, tensor)

    def states(self) -> dict[str, torch.Tensor]:
        """All states, by name."""
        return {name: b for name, b in self.named_buffers() if not name.startswith("network.")}

    def results(self, tokens: torch.Tensor, written: dict[str, torch.Tensor]) -> dict[str, Any]:
        """What a run returns. Every state has a new value, if only its old one: so each is a state in every plan."""
        return {"tokens": tokens, "states": {**self.states(), **written}}


class Sample(Run):
    """Chooses the token of every fresh slot again, as it says, from the logits that the last run has left: i64[slots],
    which are the slots' next inputs."""

    def forward(self) -> dict[str, Any]:
        """Reads and writes the states alone."""
        names = ("temperature", "top_k", "top_p", "min_p", "penalty", "seed")
        how = {name: self.get_buffer(name) for name in names}
        seen = self.seen | (torch.arange(self.sizes.vocabulary) == self.fed[:, None])
        made = chosen(self.last_logits, seen, **how, position=self.position)
        made = torch.where(self.fresh, made, self.token)
        return self.results(made, {"token": made.clone(), "seen": seen})


class Step(Run):
    """A causal language model `network` with its cache, and the states."""

    def __init__(self, network: Any, pools: Sequence[Pools], states: dict[str, torch.Tensor], sizes: Sizes):
        super().__init__(states, sizes)
        self.network, self.cache = network, torch.nn.ModuleList(pools)
        self.found = Found()  # of the last run; torch.export puts lists and numbers back
        self.few: Layers | None = None  # the layers that a trace is to have; all of them where it is None
        self._takes = inspect.signature(network.forward).parameters

    def logits(
        self, tokens: torch.Tensor, place: Place, last: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """f32 [B,S,V] of tokens [B,S]; of number `last` ([1], of S) alone, where that is given: [B,1,V]. And the cache
        with these tokens, by the buffers' names."""
        pools: Any = list(self.cache)
        cache = PagedCache(pools, place)
        given = {"position_ids": place.positions.clamp(max=self.sizes.context - 1), "use_cache": True}
        if last is not None:
            given["logits_to_keep"] = last
        known = {name: value for name, value in given.items() if name in self._takes}
        with paged_attention(cache) as found, layers_traced_once(self.network, cache, found, self.few):
            made = self.network(input_ids=tokens, past_key_values=cache, **known).logits
        unused = [i for i, layer in enumerate(cache.layers) if layer.gathered is None]
        if unused or not found.made:
            what = f"layer {unused[0]} does not use its cache" if unused else "it makes masks of its own"
            raise MlircError(f"{type(self.network).__name__}: {what}: generation is not supported for this model")
        self.found.fused = found.fused
        if last is not None and "logits_to_keep" not in known:
            made = made.index_select(1, last)
        written: dict[str, torch.Tensor] = {}
        left_out = self.few.left_out if self.few else ()
        for i, layer in enumerate(cache.layers):
            if i in left_out:
                continue
            written |= {f"cache.{i}.keys": layer.pools[0], f"cache.{i}.values": layer.pools[1]}
        return made.float(), written

    def results(self, tokens: torch.Tensor, written: dict[str, torch.Tensor]) -> dict[str, Any]:
        """As of every run, without the cache of layers that are left out."""
        made = super().results(tokens, written)
        gone = {f"cache.{i}.{name}" for i in (self.few.left_out if self.few else ()) for name in ("keys", "values")}
        return {**made, "states": {name: tensor for name, tensor in made["states"].items() if name not in gone}}


class Decode(Step):
    """One token of every slot, the most probable one, i64[slots], which is its next input unless `sample` chooses
    another. Slots that are not active stay as they are."""

    def place(self) -> Place:
        """Of the slots' next inputs."""
        sizes = self.sizes
        position = self.position.clamp(0, sizes.context - 1)
        page = self.table.gather(1, (position // sizes.page_size)[:, None])[:, 0]
        page = torch.where(self.active, page, 0)
        return Place(self.table, page[:, None], (position % sizes.page_size)[:, None], position[:, None], position + 1)

    def forward(self) -> dict[str, Any]:
        """Reads and writes the states alone."""
        place = self.place()
        logits, written = self.logits(self.token[:, None], place)
        made = torch.where(self.active, most_probable(logits[:, 0]), self.token)
        position = torch.where(self.active, place.lengths, self.position)
        left = {"last_logits": logits[:, 0], "fresh": self.active.clone(), "fed": self.token.clone()}
        return self.results(made, {**written, **left, "token": made.clone(), "position": position})


class Prefill(Step):
    """A chunk of a slot's tokens, which makes the slot active."""

    def place(self, chunk: int, slot: torch.Tensor, start: torch.Tensor) -> Place:
        """Of a chunk of so many tokens."""
        sizes = self.sizes
        pages = self.table.index_select(0, slot[None])  # [1,T]
        positions = (start + torch.arange(chunk))[None]
        number = positions // sizes.page_size
        page = pages.gather(1, number.clamp(0, sizes.pages_each - 1))
        page = torch.where(number < sizes.pages_each, page, 0)
        return Place(pages, page, positions % sizes.page_size, positions, (start + chunk)[None])

    def forward(
        self, tokens: torch.Tensor, slot: torch.Tensor, start: torch.Tensor, count: torch.Tensor
    ) -> dict[str, Any]:
        """`tokens` i64[1,C], of which the first `count` are real, belong at `start` and behind it in the sequence of
        `slot` (i64[] each; start + C may be no more than the pages of a slot hold). Returns i64: for chunks of up to
        `VERIFY_LIMIT` [C], the token after each, else [1], the one after the last, the most probable ones. The last one
        is the slot's next input unless `sample` chooses another."""
        chunk, one = tokens.shape[1], slot[None]
        last = (count - 1)[None]
        every = chunk <= VERIFY_LIMIT
        logits, written = self.logits(tokens, self.place(chunk, slot, start), None if every else last)
        made = most_probable(logits[0])
        left = logits[0].index_select(0, last) if every and chunk > 1 else logits[0]
        own = torch.arange(self.sizes.slots) == one
        states = {
            "last_logits": left if self.sizes.slots == 1 else torch.where(own[:, None], left, self.last_logits),
            "fresh": own,
            "fed": torch.where(own, tokens[0].index_select(0, last), self.fed),
            "token": torch.where(own, made.index_select(0, last) if every else made, self.token),
            "position": torch.where(own, start + count, self.position),
            "active": self.active | own,
        }
        return self.results(made, {**written, **states})
