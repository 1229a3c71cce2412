"""What a step of decoding reads from memory, and what a model takes of it."""

from __future__ import annotations

from dataclasses import dataclass

from mlirc.generate.engine import Engine
from mlirc.runtime.plan import Plan, TensorSpec


@dataclass(frozen=True)
class Cost:
    """Bytes: of the weights that every step reads, of the whole weights, of one token of the cache, of the pool."""

    read: int
    weights: int
    token: int
    cache: int

    def step(self, tokens: float) -> float:
        """Bytes that a step of decoding reads for sequences of so many tokens in all, at least."""
        return self.read + self.token * tokens


def cost_of(plan: Plan, engine: Engine) -> Cost:
    """The cost of a decoding step's plan.

    Of a table of tokens with a head of the same shape a step reads a row or so; where there is one such tensor it is
    both, and is read as the head.
    """
    weights = [spec for spec in plan.weights if spec.kind != "state"]
    pools = [spec for spec in plan.weights if spec.kind == "state" and spec.name.startswith("cache.")]
    tables = [spec for spec in weights if len(spec.shape) == 2 and spec.shape[0] == engine.vocabulary]
    total, cache = _bytes(weights), _bytes(pools)
    looked_up = min((spec.nbytes for spec in tables), default=0) if len(tables) > 1 else 0
    return Cost(total - looked_up, total, cache // (engine.pages * engine.page_size), cache)


def known_bandwidth(gpu: str) -> float | None:
    """Bytes per second that a GPU was measured to read, by the driver's name of it; None for others."""
    from mlirc.bench.bound import H200

    return H200.bandwidth if gpu.startswith(H200.name) else None


def _bytes(specs: list[TensorSpec]) -> int:
    return sum(spec.nbytes for spec in specs)
