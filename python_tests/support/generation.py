"""Tiny causal language models of transformers, and engines beside transformers' own `generate`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from mlirc.generate.engine import Sampling
from mlirc.generate.export import Generator, with_fixed_frequencies
from mlirc.generate.loading import engine_class
from mlirc.generate.plan_engine import PlanEngine

NEAR = 1e-4  # logits that are nearer to each other than this may come in another order
VOCABULARY, CONTEXT = 97, 96
# What any architecture is made small with; config classes ignore what they do not know.
SMALL = dict(
    vocab_size=VOCABULARY, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
    num_key_value_heads=2, max_position_embeddings=CONTEXT, pad_token_id=None, bos_token_id=None, eos_token_id=None,
)  # fmt: skip


def tiny(name: str, seed: int = 0, **sizes: Any) -> Any:
    """A model of transformers with random weights, by the name of its class, made small."""
    import transformers

    model_class = getattr(transformers, name)
    torch.manual_seed(seed)
    model = model_class(model_class.config_class(**{**SMALL, **sizes})).eval().requires_grad_(False)
    with torch.no_grad():
        for parameter in model.parameters():  # so that attention matters beside the embeddings
            if parameter.dim() > 1:
                parameter.mul_(4)
    return model


class EagerModel:
    """A step as PyTorch runs it, called as a loaded plan is."""

    def __init__(self, step: Any, generator: Generator):
        self._step, self._generator = step, generator
        self.state = self

    def __setitem__(self, name: str, array: np.ndarray) -> None:
        self._step.get_buffer(name).copy_(torch.from_numpy(array))

    def __call__(self, **inputs: np.ndarray) -> np.ndarray:
        with torch.no_grad(), with_fixed_frequencies(self._generator):
            made = self._step(**{n: torch.from_numpy(np.asarray(a)) for n, a in inputs.items()})
            for name, tensor in made["states"].items():
                self._step.get_buffer(name).copy_(tensor.clone())
            return made["tokens"].numpy()

    def close(self) -> None:
        """Nothing to free."""


def eager_engine(generator: Generator) -> PlanEngine:
    """An engine of the steps as PyTorch runs them."""
    models = {name: EagerModel(source.module, generator) for name, source in generator.steps.items()}
    return engine_class(generator.sizes)(models, generator.sizes)


def greedy(engine: PlanEngine, prompts: Sequence[Sequence[int]], count: int) -> list[list[int]]:
    """`count` tokens behind each prompt, all sequences at once, whose pages are shuffled among each other."""
    each = engine.sizes.pages_each
    order = np.random.default_rng(len(prompts)).permutation(np.arange(1, engine.pages)).tolist()
    made = []
    for slot, prompt in enumerate(prompts):
        engine.assign(slot, order[slot * each : (slot + 1) * each], Sampling(), prompt)
        made.append([engine.prefill(slot, prompt, 0)])
    for _ in range(count - 1):
        tokens = engine.decode()
        for slot, row in enumerate(made):
            row.append(int(tokens[slot]))
    for slot in range(len(prompts)):
        engine.release(slot)
    return made


def assert_greedy(model: Any, prompt: Sequence[int], made: Sequence[int]) -> None:
    """Raises unless each token is the one that the model finds most probable behind those in front of it, or as near to
    that as numbers go; and unless `generate` gives the same up to the first such place."""
    whole = torch.tensor([[*prompt, *made]])
    with torch.no_grad():
        logits = model(whole, use_cache=False).logits[0, len(prompt) - 1 : -1].float()
        wanted = model.generate(
            whole[:, : len(prompt)], attention_mask=torch.ones(1, len(prompt), dtype=torch.int64),
            max_new_tokens=len(made), do_sample=False, pad_token_id=0,
        )[0, len(prompt) :].tolist()  # fmt: skip
    missing = logits.amax(-1) - logits[torch.arange(len(made)), torch.tensor(made)]
    assert float(missing.max()) <= NEAR, f"token {int(missing.argmax())} of {list(made)} is not the most probable one"
    close = logits.topk(2).values.diff().abs()[:, 0] <= NEAR
    first = int(close.int().argmax()) if close.any() else len(made)
    assert list(made[:first]) == wanted[:first]
