"""What a model that generates is timed against: transformers with its StaticCache."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import Tensor

from mlirc.bench import timing
from mlirc.errors import MlircError


class StaticStep:
    """Reads the last `count` of `tokens` [B,S] into a StaticCache of `capacity` tokens that has those before them, and
    takes the most probable next token, i64 [B]. Every call is at the same positions."""

    def __init__(self, module: Any, tokens: Tensor, count: int, capacity: int):
        from transformers import StaticCache

        self.forward: Any = module
        self.cache = StaticCache(config=module.config, max_cache_len=capacity)
        first = tokens.shape[1] - count
        self._keep = {"logits_to_keep": 1} if "logits_to_keep" in inspect.signature(module.forward).parameters else {}
        self._lengths: list[Tensor] = []
        if first:
            self._read(tokens[:, :first], 0)
        self.tokens, self.count = tokens[:, first:].contiguous(), count
        self.positions = torch.arange(first, tokens.shape[1], device=tokens.device).expand(len(tokens), -1).contiguous()
        self._read(self.tokens, first)  # outside of a graph and of what is compiled: the cache is made here
        self._lengths = _lengths(self.cache)
        torch._foreach_sub_(self._lengths, count)

    def _read(self, tokens: Tensor, start: int) -> Tensor:
        positions = torch.arange(start, start + tokens.shape[1], device=tokens.device)[None]
        return self._logits(tokens, positions.expand(len(tokens), -1))

    def _logits(self, tokens: Tensor, positions: Tensor) -> Tensor:
        found = self.forward(
            input_ids=tokens, position_ids=positions, past_key_values=self.cache, use_cache=True, **self._keep
        )
        return found.logits[:, -1]

    def __call__(self, _: Any = None) -> Tensor:
        made = self._logits(self.tokens, self.positions).argmax(-1)
        torch._foreach_sub_(self._lengths, self.count)  # one kernel for all layers
        return made


def _lengths(cache: Any) -> list[Tensor]:
    """How many tokens each layer counts that it has, which a call adds to. Raises MlircError where they are no tensors
    of the device."""
    from transformers.cache_utils import StaticLayer

    found = [getattr(layer, "cumulative_length", None) for layer in cache.layers]
    if any(type(layer) is not StaticLayer for layer in cache.layers) or not all(isinstance(n, Tensor) for n in found):
        import transformers

        kinds = ", ".join(sorted({type(layer).__name__ for layer in cache.layers}))
        raise MlircError(
            f"the StaticCache of transformers {transformers.__version__} ({kinds}) cannot be set back between calls: "
            "give --peers ''"
        )
    return found  # type: ignore[return-value]


def peer_arm(name: str, step: StaticStep, module: Any) -> timing.Arm:
    """A contender of `cases.PEERS` that runs a step over and over."""
    step.forward = module
    if name == "transformers":
        step()
        return timing.Arm(name, step, 1, step)
    if name != "eager":
        step.forward = compiled(name, module)
    return timing.capture(name, step, [None], 1)


def compiled(name: str, module: Any) -> Any:
    """torch.compile's module, for shapes that stay as they are."""
    torch._dynamo.reset()
    mode = None if name == "compile" else "max-autotune-no-cudagraphs"
    return torch.compile(module, dynamic=False, mode=mode)  # type: ignore[arg-type]
