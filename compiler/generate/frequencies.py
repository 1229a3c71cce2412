"""Rotary embeddings whose frequencies depend on how long the sequence is, kept at those of short ones."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from mlirc.errors import MlircError


@contextlib.contextmanager
def fixed_frequencies(network: Any, context: int | None = None) -> Iterator[None]:
    """In the body, rotary embeddings of transformers that choose their frequencies by the length of the sequence have
    those of short ones, whatever the model has read before. Behind it they are as they were.

    Raises MlircError where `context` is longer than a short sequence.
    """
    with contextlib.ExitStack() as stack:
        for module in network.modules():
            kind = getattr(module, "rope_type", None)
            kinds: dict[str, Any] = kind if isinstance(kind, dict) else {"": kind}
            changing = [layers for layers, k in kinds.items() if isinstance(k, str) and _depends(k)]
            if not changing:
                continue
            most = _short_limit(module)
            if context is not None and context > most:
                raise MlircError(
                    f"the model's positions are scaled in another way beyond {most} tokens: "
                    f"give a context of at most {most}"
                )
            module.rope_type = {**kinds, **dict.fromkeys(changing, "default")} if isinstance(kind, dict) else "default"
            stack.callback(setattr, module, "rope_type", kind)
            for layers in changing:  # the buffer in use is written by every call of the model
                name = f"{layers}_inv_freq" if layers else "inv_freq"
                first = getattr(module, f"{layers}_original_inv_freq" if layers else "original_inv_freq")
                stack.callback(setattr, module, name, getattr(module, name))
                setattr(module, name, first)
        yield


def _depends(kind: str) -> bool:
    return kind == "longrope" or "dynamic" in kind


def _short_limit(module: Any) -> int:
    found = []
    parameters = getattr(module.config, "rope_parameters", None) or {}
    for part in (parameters, *(p for p in parameters.values() if isinstance(p, dict))):
        if "original_max_position_embeddings" in part:
            found.append(int(part["original_max_position_embeddings"]))
    return min(found or [module.config.max_position_embeddings])
