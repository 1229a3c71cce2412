"""The suites of cases, by name."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from mlirc.bench import models, operators
from mlirc.bench.cases import Case
from mlirc.bench.generation.cases import generation
from mlirc.errors import MlircError


@dataclass(frozen=True)
class Suite:
    """A named list of cases, made when asked for."""

    name: str
    about: str
    make: Any = field(repr=False)


def suites() -> dict[str, Suite]:
    """Every suite by name."""
    found = [
        Suite("fp32", "84 f32 operators of TinyLlama-1.1B and Qwen2.5-7B at 32, 128 and 512 tokens", operators.fp32),
        Suite("bf16-basics", "bf16 matmul, RMSNorm, softmax and attention at one large shape each", operators.basics),
        Suite("anchors", "products, attention and memory-bound operators at the usual shapes", operators.anchors),
        Suite("models", "14 models in f32 and bf16 at sequence lengths 1, 7, 128 and 512", models.models),
        Suite("speed", "models whose speed is claimed: TinyLlama, Qwen2.5-7B, MiniLM, BERT", models.speed),
        Suite("generation", "4 models that generate: a step of decoding at 1,024 tokens, a prompt of 512", generation),
    ]
    return {s.name: s for s in found}


def suite_cases(name: str) -> list[Case]:
    """The cases of a suite; raises MlircError for a name that is none."""
    known = suites()
    if name not in known:
        raise MlircError(f"no suite '{name}': there are {', '.join(known)}; a model needs a path that exists")
    found = list(known[name].make())
    names = [c.name for c in found]
    if len(set(names)) != len(names):
        raise MlircError(f"suite {name}: two cases have one name")
    return found
