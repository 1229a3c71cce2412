"""Layers of experts of transformers' models, with weights of their own."""

from __future__ import annotations

import importlib

import torch

# Module, class of its experts and of its configuration; sizes; experts and those of a token.
_SIZES = {"hidden_size": 136, "num_attention_heads": 4, "num_key_value_heads": 4}
LAYERS = {
    "olmoe": ("olmoe", "OlmoeExperts", "OlmoeConfig", {"intermediate_size": 72, "num_experts": 16}, 16, 3),
    "qwen2-moe": ("qwen2_moe", "Qwen2MoeExperts", "Qwen2MoeConfig",
                  {"moe_intermediate_size": 200, "num_experts": 7}, 7, 2),
    "qwen3-moe": ("qwen3_moe", "Qwen3MoeExperts", "Qwen3MoeConfig",
                  {"moe_intermediate_size": 64, "num_experts": 9}, 9, 4),
    "mixtral": ("mixtral", "MixtralExperts", "MixtralConfig", {"intermediate_size": 77, "num_local_experts": 5}, 5, 2),
}  # fmt: skip


def layer(name: str, dtype: torch.dtype) -> tuple[torch.nn.Module, int, int]:
    """(the experts of one layer, whose forward takes x [T,H], index and weights [T,K]; how many they are; K)."""
    module, kind, config, sizes, experts, chosen = LAYERS[name]
    found = importlib.import_module(f"transformers.models.{module}.modeling_{module}")
    made = getattr(importlib.import_module("transformers"), config)(**_SIZES, **sizes)
    made._experts_implementation = "eager"
    layer = getattr(found, kind)(made)
    g = torch.Generator().manual_seed(len(name))
    for p in layer.parameters():
        p.data = (torch.randn(p.shape, generator=g) * p.shape[-1] ** -0.5).to(dtype)
    layer.hidden_dim = made.hidden_size
    return layer.eval(), experts, chosen
