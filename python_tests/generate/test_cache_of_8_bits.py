"""Generation whose keys and values are kept as 8-bit floats, beside transformers with a cache that rounds them so."""

from __future__ import annotations

import pytest
import torch
from transformers import DynamicCache

from mlirc.errors import MlircError
from mlirc.generate.compilation import compile_generation
from mlirc.generate.families import open_generator
from support.generation import NEAR, VOCABULARY, greedy, tiny
from support.randomness import generator

SIZES = dict(context=40, page_size=8, chunks=(1,))


class Rounding(DynamicCache):
    """Rounds what it keeps to e4m3."""

    def update(self, key_states, value_states, *args, **kwargs):
        rounded = (x.float().clamp(-448, 448).to(torch.float8_e4m3fn).to(x.dtype) for x in (key_states, value_states))
        return super().update(*rounded, *args, **kwargs)


def logits_of(model, tokens: list[int], cache) -> torch.Tensor:
    with torch.no_grad():
        return model(torch.tensor([tokens]), past_key_values=cache, use_cache=True).logits[0].float()


@pytest.mark.parametrize("name", ["LlamaForCausalLM", "BloomForCausalLM"])  # the latter gathers all pages
def test_tokens_are_those_of_a_model_that_rounds_its_cache(name):
    model = tiny(name)
    for linear in (m for m in model.modules() if isinstance(m, torch.nn.Linear)):
        linear.weight.data *= 4  # so that keys and values are far apart, and their rounding counts
    compiled = compile_generation(model, level="kernels", cache_dtype="fp8", **SIZES)
    prompt = [int(t) for t in generator().integers(0, VOCABULARY, 7)]
    [made] = greedy(compiled.engine("cpu"), [prompt], 12)
    whole = [*prompt, *made]
    rounded, plain = (logits_of(model, whole, c(config=model.config))[6:-1] for c in (Rounding, DynamicCache))
    missing = rounded.amax(-1) - rounded[torch.arange(len(made)), torch.tensor(made)]
    assert float(missing.max()) <= NEAR < float((rounded - plain).abs().max()) / 4
    pools = [t for n, t in compiled.generator.steps["decode"].weights.items() if n.endswith((".keys", ".values"))]
    assert pools and all(t.dtype == torch.float8_e4m3fn for t in pools)


def test_what_is_too_large_for_8_bits_becomes_the_largest_number():
    from mlirc.generate.paged_cache import Place, _written

    place = Place(*(torch.tensor([[1]]) for _ in range(4)), torch.tensor([1]))
    pool = torch.zeros(2, 1, 2, 4, dtype=torch.float8_e4m3fn)
    rows = torch.tensor([1e4, -500.0, 2.0**-9, 17.0], dtype=torch.bfloat16).reshape(1, 1, 1, 4)
    assert _written(pool, rows, place)[1, 0, 1].float().tolist() == [448, -448, 2.0**-9, 16]


def test_what_has_no_such_cache_is_refused():
    with pytest.raises(MlircError, match="cache_dtype 'int8': give fp8"):
        open_generator(tiny("LlamaForCausalLM"), cache_dtype="int8", **SIZES)
    with pytest.raises(MlircError, match="causal language models whose whole cache"):
        open_generator(tiny("MambaForCausalLM"), cache_dtype="fp8", **SIZES)
    with pytest.raises(MlircError, match="f16, bf16 or f32"):
        open_generator(tiny("LlamaForCausalLM").double(), cache_dtype="fp8", **SIZES)
