"""Mixtures of experts as products of fixed shapes, through transformers' experts interface.

transformers sorts the tokens by expert and multiplies groups whose sizes depend on the router's choice. A compiled
model has fixed shapes, and so every expert sees every token and what the router did not choose is masked; or, where few
tokens meet many experts, each token's own experts are gathered.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch

IMPLEMENTATION = "mlirc"
# A gathered expert is read, written and read again; a masked one is read once.
_GATHER_COST = 3


def experts_forward(
    self: Any, hidden_states: torch.Tensor, top_k_index: torch.Tensor, top_k_weights: torch.Tensor
) -> torch.Tensor:
    """What transformers calls for `experts_implementation="mlirc"`, as a method of a module of experts.

    `hidden_states` [T,H], `top_k_index` (which experts, int) and `top_k_weights` [T,K]; the result is [T,H].
    """
    if getattr(self, "_is_expert_parallel", False):
        raise ValueError("experts spread over several devices are not supported: load the model on one")
    tokens, chosen = top_k_index.shape
    if _GATHER_COST * tokens * chosen < self.num_experts:
        flat = top_k_index.reshape(-1)
        rows = hidden_states.unsqueeze(1).expand(-1, chosen, -1).reshape(tokens * chosen, 1, -1)
        out = _expert(self, rows, flat).reshape(tokens, chosen, -1)  # [T,K,H]
        weighted = out * top_k_weights.unsqueeze(-1)
        return weighted.sum(1).to(hidden_states.dtype)
    out = _expert(self, hidden_states.unsqueeze(0).expand(self.num_experts, -1, -1), None)  # [E,T,H]
    numbers = torch.arange(self.num_experts, device=top_k_index.device)
    hit = top_k_index.unsqueeze(-1) == numbers  # [T,K,E]
    weights = torch.where(hit, top_k_weights.unsqueeze(-1), 0).sum(1).t().unsqueeze(-1)  # [E,T,1]
    # An expert that was not chosen may overflow on a token: nothing of it may reach the sum, not even as 0 * inf.
    weighted = torch.where(hit.any(1).t().unsqueeze(-1), out * weights, 0)
    return weighted.sum(0).to(hidden_states.dtype)


def _expert(self: Any, x: torch.Tensor, which: torch.Tensor | None) -> torch.Tensor:
    """x [N,M,H] through the experts numbered `which` [N], or through all N of them, one each: [N,M,H]."""

    def linear(x: torch.Tensor, name: str) -> torch.Tensor:
        weight, bias = getattr(self, name), getattr(self, f"{name}_bias") if self.has_bias else None
        if which is not None:
            weight, bias = weight[which], None if bias is None else bias[which]
        out = torch.bmm(x.to(weight.dtype), weight if self.is_transposed else weight.transpose(1, 2))
        return out if bias is None else out + bias.unsqueeze(1)

    x = self._apply_gate(linear(x, "gate_up_proj")) if self.has_gate else self.act_fn(linear(x, "up_proj"))
    x = linear(x, "down_proj")
    return self.post_expert_norm(x) if getattr(self, "has_post_expert_norm", False) else x  # 5.17 has none


@contextlib.contextmanager
def masked_experts(module: torch.nn.Module) -> Iterator[None]:
    """Runs the body with `experts_forward` in every mixture of experts inside `module` that takes an implementation."""
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
            config._experts_implementation_internal = IMPLEMENTATION
        yield
    finally:
        for key, config in configs.items():
            config._experts_implementation_internal = old[key]
