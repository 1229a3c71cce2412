"""Mixtures of experts that compute what the router chose, through transformers' experts interface.

Which expert a token goes to is data, and a compiled model has fixed shapes. So the pairs of a token and one of its
experts are sorted by expert into groups of a fixed number of rows, each of one expert, the last of an expert filled up;
a product of groups reads for each of them its expert's weights where they lie (`gather_matrices.py`). There are as many
groups as the worst choice needs; those that are left over have no expert, and cost nothing. (MegaBlocks: Gale et al.,
2022, has blocks of one expert each; vLLM's fused kernels take a table of experts per block of rows.)
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch

from mlirc.frontend.gather_matrices import gather_matrices
from mlirc.frontend.row_writes import put_rows
from mlirc.frontend.sizes.at_bound import cut_to, filled_up, rows_of_part

IMPLEMENTATION = "mlirc"
# Rows of a group, by how many a mean expert has: most are full then, and most experts have one.
_ROWS = ((4, 8), (12, 16), (24, 32), (96, 64))
_MOST_ROWS = 128
_CHUNK = 256  # pairs that are compared with each other


def experts_forward(
    self: Any, hidden_states: torch.Tensor, top_k_index: torch.Tensor, top_k_weights: torch.Tensor
) -> torch.Tensor:
    """What transformers calls for `experts_implementation="mlirc"`, as a method of a module of experts.

    `hidden_states` [T,H], `top_k_index` (which experts, int) and `top_k_weights` [T,K]; the result is [T,H].
    """
    if getattr(self, "_is_expert_parallel", False):
        raise ValueError("experts spread over several devices are not supported: load the model on one")
    tokens = top_k_index.shape[0]
    bound = rows_of_part(tokens)
    if bound is None and isinstance(tokens, int):
        return _chosen_experts(self, hidden_states, top_k_index, top_k_weights)
    if bound is None:
        return _every_expert(self, hidden_states, top_k_index, top_k_weights)
    x, weights = filled_up(hidden_states, bound, 0), filled_up(top_k_weights, bound, 0)
    index = filled_up(top_k_index, bound, -1)
    return cut_to(_chosen_experts(self, x, index, weights, padded=True), hidden_states)


def _chosen_experts(
    self: Any, hidden_states: torch.Tensor, top_k_index: torch.Tensor, top_k_weights: torch.Tensor, padded: bool = False
) -> torch.Tensor:
    """As `experts_forward`, for a fixed number of tokens; of those that are `padded` the experts are -1: they are in no
    group, and their rows of the result are of no use."""
    tokens, chosen = top_k_index.shape
    flat = top_k_index.reshape(-1).to(torch.int64)
    if tokens == 1:  # each expert has one row: nothing to sort
        rows = hidden_states.unsqueeze(1).expand(chosen, 1, -1)
        out = _experts(self, rows, flat, False).reshape(1, chosen, -1)
    else:
        count = rows_of_group(tokens * chosen, self.num_experts)
        places, experts = sort_by_expert(flat, self.num_experts, count, padded)
        numbers = torch.arange(tokens * chosen, device=flat.device) // chosen
        unfilled = torch.zeros(experts.shape[0] * count, 1, dtype=torch.int64, device=flat.device)
        tokens_of_rows = put_rows(unfilled, numbers.unsqueeze(1), places).squeeze(1)
        rows = hidden_states.index_select(0, tokens_of_rows).reshape(-1, count, hidden_states.shape[-1])
        out = _experts(self, rows, experts, True)
        places = places.clamp(min=0) if padded else places
        out = out.reshape(-1, out.shape[-1]).index_select(0, places).reshape(tokens, chosen, -1)
    return (out * top_k_weights.unsqueeze(-1)).sum(1).to(hidden_states.dtype)


def rows_of_group(pairs: int, experts: int) -> int:
    """Rows of a group, for so many pairs of a token and an expert."""
    return next((rows for most, rows in _ROWS if pairs <= most * experts), _MOST_ROWS)


def most_groups(pairs: int, experts: int, rows: int) -> int:
    """The groups of `rows` that any choice needs at most: one of one row for all experts but the first, which has the
    rest."""
    chosen = min(pairs, experts)
    return chosen + (pairs - chosen) // rows


def sort_by_expert(
    flat: torch.Tensor, experts: int, rows: int, padded: bool = False
) -> tuple[torch.Tensor, torch.Tensor]:
    """A counting sort into groups of `rows` rows. `flat` int64 [S] says each pair's expert; -1, where pairs may be
    `padded`: none.

    Returns each pair's place among all groups' rows (int64 [S]; pairs of one expert keep their order; -1: it has none),
    and each group's expert (int64 [most_groups]; -1 for groups without one, which are the last).
    """
    known = flat.clamp(min=0) if padded else flat
    pairs, device = flat.shape[0], flat.device
    numbers = torch.arange(experts, device=device)
    chunks = -(-pairs // _CHUNK)
    each = flat if chunks == 1 else torch.nn.functional.pad(flat, (0, chunks * _CHUNK - pairs), value=experts)
    each = each.reshape(chunks, -1)
    found = _count(each.unsqueeze(2) == numbers, 1)  # [chunks, experts]
    order = torch.arange(each.shape[1], device=device)
    same = (each.unsqueeze(2) == each.unsqueeze(1)) & (order < order.unsqueeze(1))
    rank = _count(same, 2).reshape(-1)[:pairs]  # of a pair among those of its chunk and expert
    groups = (found.sum(0) + (rows - 1)) // rows
    ends = (groups * (numbers <= numbers.unsqueeze(1))).sum(1)  # behind each expert's groups
    if chunks > 1:
        at = torch.arange(chunks, device=device)
        before = (found * (at < at.unsqueeze(1)).unsqueeze(2)).sum(1)  # [chunks, experts]
        chunk = torch.arange(pairs, device=device) // _CHUNK
        rank = rank + before.reshape(-1).index_select(0, chunk * experts + known)
    places = (ends - groups).index_select(0, known) * rows + rank
    places = torch.where(flat < 0, -1, places) if padded else places
    number = torch.arange(most_groups(pairs, experts, rows), device=device)
    expert = _count(ends <= number.unsqueeze(1), 1)
    return places, torch.where(expert < experts, expert, -1)


def _count(found: torch.Tensor, dim: int) -> torch.Tensor:
    """How many are true along a dimension, int64."""
    return torch.where(found, 1, 0).sum(dim)


def _experts(self: Any, x: torch.Tensor, which: torch.Tensor | None, may_miss: bool) -> torch.Tensor:
    """Groups x [G,M,H], each through the expert numbered `which` [G] (int64; -1, where some `may_miss`: none,
    whose rows are of no use), or all E of them (None): [G,M,H]."""

    def linear(x: torch.Tensor, name: str, part: int | None = None) -> torch.Tensor:
        weight, bias = getattr(self, name), getattr(self, f"{name}_bias") if self.has_bias else None
        packed = not isinstance(weight, torch.Tensor)  # `QuantizedMatrices`, [N, K] whatever the parameter was
        dim, start = (2 if self.is_transposed else 1), 0
        size = weight.out_features if packed else weight.shape[dim]
        if part is not None:
            size //= 2
            start = part * size
            bias = None if bias is None else bias[:, start : start + size]
        if packed and which is not None and which.shape[0] >= self.num_experts:
            # Each expert's weights are unpacked once, not for each of its groups.
            matrices = gather_matrices(weight.chosen(None, start, size), which, 1, 0, size, may_miss)
        elif packed:
            matrices = weight.chosen(which, start, size)
        elif which is None:
            matrices = weight.narrow(dim, start, size)
        else:
            matrices = gather_matrices(weight, which, dim, start, size, may_miss)
        if which is not None:
            bias = None if bias is None else bias.index_select(0, which.clamp(min=0))
        as_it_is = self.is_transposed and not packed
        out = torch.bmm(x.to(matrices.dtype), matrices if as_it_is else matrices.transpose(1, 2))
        return out if bias is None else out + bias.unsqueeze(1)

    if not self.has_gate:
        x = self.act_fn(linear(x, "up_proj"))
    elif _gates_by_halves(self):  # two products that share their loop
        x = self.act_fn(linear(x, "gate_up_proj", 0)) * linear(x, "gate_up_proj", 1)
    else:
        x = self._apply_gate(linear(x, "gate_up_proj"))
    x = linear(x, "down_proj")
    return self.post_expert_norm(x) if getattr(self, "has_post_expert_norm", False) else x  # 5.17 has none


def _gates_by_halves(self: Any) -> bool:
    """Whether the gate is transformers' own: act(first half) * second half."""
    from transformers.integrations import moe

    default = getattr(moe, "_default_apply_gate", None)
    return default is not None and getattr(self._apply_gate, "__func__", None) is default


def _every_expert(self: Any, x: torch.Tensor, index: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """Every expert sees every token, and what the router did not choose is masked: for any number of tokens."""
    numbers = torch.arange(self.num_experts, device=index.device)
    out = _experts(self, x.unsqueeze(0).expand(self.num_experts, -1, -1), None, False)  # [E,T,H]
    hit = index.unsqueeze(-1) == numbers  # [T,K,E]
    of_expert = torch.where(hit, weights.unsqueeze(-1), 0).sum(1).t().unsqueeze(-1)  # [E,T,1]
    # An expert that was not chosen may overflow on a token: nothing of it may reach the sum, not even as 0 * inf.
    weighted = torch.where(hit.any(1).t().unsqueeze(-1), out * of_expert, 0)
    return weighted.sum(0).to(x.dtype)


@contextlib.contextmanager
def routed_experts(module: torch.nn.Module) -> Iterator[None]:
    """Runs the body with `experts_forward` in every mixture of experts inside `module` that takes an implementation."""
    with experts_by(module, IMPLEMENTATION):
        yield


@contextlib.contextmanager
def experts_by(module: torch.nn.Module, implementation: str) -> Iterator[None]:
    """The same by the name of an implementation. `eager` is the model's own code, which takes experts of any size:
    PyTorch's grouped products, transformers' default, want rows of multiples of 16 bytes."""
    configs: dict[int, Any] = {}
    for child in module.modules():
        if hasattr(child, "has_gate") and hasattr(child, "is_transposed") and hasattr(child, "config"):
            configs[id(child.config)] = child.config
    if configs:  # other models need no transformers, whose import takes seconds
        from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS

        ALL_EXPERTS_FUNCTIONS.register(IMPLEMENTATION, experts_forward)
    old = {key: config._experts_implementation_internal for key, config in configs.items()}
    try:
        for config in configs.values():
            config._experts_implementation_internal = implementation
        yield
    finally:
        for key, config in configs.items():
            config._experts_implementation_internal = old[key]
