"""Models with recurrent layers, alone and beside attention, beside transformers' `generate`."""

from __future__ import annotations

import os

import pytest
import torch
from transformers.cache_utils import DynamicLayer, LinearAttentionLayer

from mlirc.errors import MlircError
from mlirc.generate.compilation import compile_generation
from mlirc.generate.engine import Sampling
from mlirc.generate.families import open_generator
from mlirc.generate.mixed import _keeps_nothing
from support.generation import VOCABULARY, assert_greedy, eager_engine, greedy, tiny
from support.randomness import generator

HEADS = dict(mamba_n_heads=8, mamba_d_head=16, mamba_d_state=16, mamba_n_groups=2)
CHANNELS = dict(state_size=8, time_step_rank=4)
MAMBA2 = dict(num_heads=8, head_dim=16, state_size=16, n_groups=2, chunk_size=16)
MODELS = {
    "mamba2": ("Mamba2ForCausalLM", MAMBA2),
    "mamba": ("MambaForCausalLM", CHANNELS),
    "falcon-mamba": ("FalconMambaForCausalLM", CHANNELS),
    "bamba": ("BambaForCausalLM", {**HEADS, "attn_layer_indices": [1], "mamba_chunk_size": 16}),
    "jamba": ("JambaForCausalLM", dict(mamba_d_state=8, mamba_dt_rank=4, attn_layer_period=2, attn_layer_offset=1,
              num_experts=4, expert_layer_period=2, expert_layer_offset=1)),
    "granite": ("GraniteMoeHybridForCausalLM", {**HEADS, "layer_types": ["mamba", "attention"],
                "shared_intermediate_size": 64, "num_local_experts": 0}),
    "nemotron-h": ("NemotronHForCausalLM", dict(layers_block_type=["mlp", "mamba", "moe", "attention"],
                   num_hidden_layers=4, mamba_num_heads=8, mamba_head_dim=16, ssm_state_size=16, n_groups=2, head_dim=16,
                   n_routed_experts=4, num_experts_per_tok=2, moe_intermediate_size=32,
                   moe_shared_expert_intermediate_size=32)),
}  # fmt: skip
ALWAYS = ["mamba2", "mamba", "bamba", "nemotron-h"]
NAMES = list(MODELS) if os.environ.get("MLIRC_GENERATION") == "all" else ALWAYS


def prompts(*lengths: int) -> list[list[int]]:
    g = generator()
    return [[int(t) for t in g.integers(0, VOCABULARY, n)] for n in lengths]


@pytest.mark.parametrize("name", NAMES)
def test_greedy_tokens_are_those_of_generate(name):
    kind, sizes = MODELS[name]
    model = tiny(kind, **{"max_position_embeddings": 400, **sizes})
    steps = open_generator(model, slots=3, context=340, page_size=16, chunks=(1, 24))
    engine = eager_engine(steps)
    for given in (prompts(1, 7, 33), prompts(300, 24, 25)):  # the second ones in slots that have been used
        for prompt, made in zip(given, greedy(engine, given, 20), strict=True):
            assert_greedy(model, prompt, made)


def test_compiled():
    model = tiny("Mamba2ForCausalLM", **MAMBA2, num_hidden_layers=1)
    compiled = compile_generation(model, slots=3, context=60, page_size=16, chunks=(1, 16), level="kernels")
    engine, given = compiled.engine("cpu"), prompts(1, 7, 33)
    for prompt, made in zip(given, greedy(engine, given, 12), strict=True):
        assert_greedy(model, prompt, made)


def test_what_a_slot_held_before_is_forgotten():
    """Whatever it is: infinities and NaN, too."""
    model = tiny("Mamba2ForCausalLM", **MAMBA2, num_hidden_layers=1)
    steps = open_generator(model, context=30, chunks=(1, 8))
    for row in steps.steps["decode"].module.rows:
        row.inputs.fill_(float("nan")), row.state.fill_(float("inf"))
    engine, [prompt] = eager_engine(steps), prompts(5)
    engine.assign(0, [1], Sampling(), prompt)
    made = [engine.prefill(0, prompt, 0), *(int(engine.decode()[0]) for _ in range(5))]
    assert_greedy(model, prompt, made)


def test_bf16_keeps_its_state_as_f32():
    model = tiny("Mamba2ForCausalLM", **MAMBA2).to(torch.bfloat16)
    step = open_generator(model, context=30, chunks=(1, 8)).steps["decode"].module
    assert {row.inputs.dtype for row in step.rows} == {torch.bfloat16}
    assert {row.state.dtype for row in step.rows} == {torch.float32}


def test_layers_that_keep_something_else_are_refused():
    sizes = dict(mamba_d_state=16, n_mamba_heads=8, mamba_headdim=16, mamba_ngroups=1, num_mem_blocks=1,
                 layers_block_type=["mamba", "hybrid"], attention_head_dim=32)  # fmt: skip
    with pytest.raises(MlircError, match="Zamba2ForCausalLM: a layer keeps something else"):
        open_generator(tiny("Zamba2ForCausalLM", **sizes), context=32)


def test_layers_in_which_a_step_leaves_nothing():
    """Of experts and gated layers between: transformers 5.17 gives them recurrent entries in its cache."""
    layer = LinearAttentionLayer()
    assert _keeps_nothing(layer)
    assert not _keeps_nothing(DynamicLayer()), "attention that does not use its cache is not known"
    layer.update_conv_state(torch.zeros(1, 4, 3), conv_kernel_size=3)
    assert not _keeps_nothing(layer)
