"""Architectures of transformers that generate, as PyTorch runs their steps: pages, masks and positions beside
`generate`. What is compiled of them is tested in test_compiled_generation.py."""

from __future__ import annotations

import functools
import os
import random

import pytest
import torch

from mlirc.errors import MlircError
from mlirc.generate.export import open_generator
from support.generate.drawn import FAMILIES, drawn
from support.generation import CONTEXT, VOCABULARY, assert_greedy, eager_engine, greedy, tiny
from support.randomness import generator

LLAMA3 = {"rope_type": "llama3", "rope_theta": 10000.0, "factor": 8.0, "low_freq_factor": 1.0,
          "high_freq_factor": 4.0, "original_max_position_embeddings": 32}  # fmt: skip
LONGROPE = {"rope_type": "longrope", "rope_theta": 10000.0, "short_factor": [1.0] * 8, "long_factor": [2.0] * 8,
            "original_max_position_embeddings": CONTEXT}  # fmt: skip
DYNAMIC = {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 4.0}
GEMMA = {"head_dim": 16, "sliding_window": 5, "query_pre_attn_scalar": 16}
MODELS = {
    "llama": ("LlamaForCausalLM", {"rope_parameters": LLAMA3}, 2),
    "llama-dynamic": ("LlamaForCausalLM", {"rope_parameters": DYNAMIC}, 2),
    "qwen2": ("Qwen2ForCausalLM", {}, 2),
    "qwen3": ("Qwen3ForCausalLM", {"head_dim": 32}, 2),
    "mistral": ("MistralForCausalLM", {"sliding_window": 11}, 2),
    "gemma2": ("Gemma2ForCausalLM", GEMMA, 2),
    "gemma3": ("Gemma3ForCausalLM", {**GEMMA, "layer_types": ["sliding_attention", "full_attention"]}, 2),
    "phi3": ("Phi3ForCausalLM", {}, 2),
    "phi3-longrope": ("Phi3ForCausalLM", {"rope_parameters": LONGROPE, "original_max_position_embeddings": CONTEXT}, 2),
    "gpt2": ("GPT2LMHeadModel", {"n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": CONTEXT}, 2),
    "gpt-neox": ("GPTNeoXForCausalLM", {}, 2),
    "opt": ("OPTForCausalLM", {"ffn_dim": 96, "word_embed_proj_dim": 64}, 2),
    "stablelm": ("StableLmForCausalLM", {}, 2),
    "falcon": ("FalconForCausalLM", {"alibi": False}, 0),
    "falcon-alibi": ("FalconForCausalLM", {"alibi": True, "new_decoder_architecture": False}, 0),
    "bloom": ("BloomForCausalLM", {"n_layer": 2, "n_head": 4}, None),
    "olmo2": ("Olmo2ForCausalLM", {}, 2),
    "granite": ("GraniteForCausalLM", {"attention_multiplier": 0.3}, 2),
    "olmoe": ("OlmoeForCausalLM", {"num_experts": 8, "num_experts_per_tok": 2}, 2),
    "qwen2-moe": ("Qwen2MoeForCausalLM", {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32,
                  "shared_expert_intermediate_size": 32}, 2),  # fmt: skip
    "mixtral": ("MixtralForCausalLM", {"num_local_experts": 4}, 2),
    "gpt-j": ("GPTJForCausalLM", {"n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": CONTEXT, "rotary_dim": 8}, None),
    "gpt-oss": ("GptOssForCausalLM", {"head_dim": 16, "sliding_window": 7, "num_local_experts": 4}, 2),
    "cohere": ("CohereForCausalLM", {}, 2),
    "starcoder2": ("Starcoder2ForCausalLM", {"sliding_window": 9}, 2),
    "mpt": ("MptForCausalLM", {"d_model": 64, "n_layers": 2, "n_heads": 4, "max_seq_len": CONTEXT}, None),
}  # fmt: skip


ALWAYS = ["llama", "llama-dynamic", "mistral", "gemma2", "gpt2", "bloom", "mixtral", "gpt-oss"]
NAMES = list(MODELS) if os.environ.get("MLIRC_GENERATION") == "all" else ALWAYS


@pytest.mark.parametrize("name", NAMES)
def test_greedy_tokens_are_those_of_generate(name):
    kind, sizes, fused = MODELS[name]
    model = tiny(kind, **sizes)
    steps = open_generator(model, slots=4, context=70, page_size=16, chunks=(1, 8, 24))
    engine, g = eager_engine(steps), generator()
    prompts = [[int(t) for t in g.integers(0, VOCABULARY, n)] for n in (1, 7, 33)]
    for prompt, made in zip(prompts, greedy(engine, prompts, 20), strict=True):
        assert_greedy(model, prompt, made)
    if fused is not None:
        assert (
            max(x.module.found.fused for name, x in steps.steps.items() if name != "sample") == fused
        )  # of those that ran


SHORT = 40


@pytest.mark.parametrize(
    ("rope", "most"),
    [({**LONGROPE, "factor": 4.0, "original_max_position_embeddings": SHORT}, CONTEXT), (DYNAMIC, SHORT)],
    ids=["longrope", "dynamic"],
)
def test_what_a_model_has_read_before_and_will_read_does_not_matter(rope, most):
    """Such models keep the frequencies of the last text, or of the longest one."""
    model = tiny("LlamaForCausalLM", rope_parameters=rope, max_position_embeddings=most)
    long, prompt = (torch.from_numpy(generator().integers(0, VOCABULARY, (1, n))) for n in (CONTEXT, 7))
    with torch.no_grad():
        alone = model(prompt, use_cache=False).logits
        wanted = model(long, use_cache=False).logits
        steps = open_generator(model, slots=1, context=SHORT, page_size=8, chunks=(1, 8))
        [made] = greedy(eager_engine(steps), [prompt[0].tolist()], 20)
        assert torch.equal(model(long, use_cache=False).logits, wanted), "the module is as it was"
        assert torch.equal(model(prompt, use_cache=False).logits, alone)
    assert_greedy(model, prompt[0].tolist(), made)


@pytest.mark.parametrize("seed", range(20) if os.environ.get("MLIRC_GENERATION") == "all" else [2, 7])
@pytest.mark.parametrize("family", list(FAMILIES) if os.environ.get("MLIRC_GENERATION") == "all" else ["llama", "opt"])
def test_switches_and_sizes_drawn_at_random(family, seed):
    draw = random.Random(f"{family} {seed}")
    kind, sizes, prompts, steps = drawn(family, draw)
    model = tiny(kind, seed, **sizes)
    engine = eager_engine(open_generator(model, slots=len(prompts), **steps))
    for prompt, made in zip(prompts, greedy(engine, prompts, 24), strict=True):
        assert_greedy(model, prompt, made)


def test_experts_whose_rows_are_no_multiples_of_16_bytes():
    """PyTorch's grouped products, which transformers computes experts by, take none; compiled ones are."""
    open_generator(tiny("OlmoeForCausalLM", num_experts=4, num_experts_per_tok=2, intermediate_size=33), context=32)


def test_masks_of_its_own_that_do_not_know_of_pages_are_refused():
    """GPT-Neo's take the queries for the last ones of all keys."""
    sizes = {"num_layers": 2, "num_heads": 4, "attention_types": [[["global", "local"], 1]], "window_size": 7}
    with pytest.raises(MlircError, match="GPTNeoForCausalLM: run token by token, its logits differ by"):
        open_generator(tiny("GPTNeoForCausalLM", **sizes), context=32)


def with_a_mask_of_its_own(hidden: int):
    """A model that makes a mask of tokens where it is given none, as OPT and Bloom of transformers 5.17; the first
    `hidden` tokens are not in it."""
    model = tiny("LlamaForCausalLM")
    forward = model.model.forward

    @functools.wraps(forward)
    def masked(input_ids=None, attention_mask=None, past_key_values=None, **rest):
        if attention_mask is None:
            past = 0 if past_key_values is None else past_key_values.get_seq_length()
            attention_mask = torch.ones(input_ids.shape[0], past + input_ids.shape[1])
            attention_mask[:, :hidden] = 0
        return forward(input_ids, attention_mask=attention_mask, past_key_values=past_key_values, **rest)

    model.model.forward = masked
    return model


def test_a_mask_of_its_own_that_hides_nothing_is_as_none():
    model = with_a_mask_of_its_own(0)
    steps = open_generator(model, slots=2, context=40, page_size=8, chunks=(1, 8))
    prompt = [int(t) for t in generator().integers(0, VOCABULARY, 11)]
    [made] = greedy(eager_engine(steps), [prompt], 8)
    assert_greedy(tiny("LlamaForCausalLM"), prompt, made)
    assert max(x.module.found.fused for name, x in steps.steps.items() if name != "sample") == 2


def test_a_mask_of_its_own_that_hides_tokens_is_refused():
    with pytest.raises(MlircError, match="masks its cache in a way of its own"):
        open_generator(with_a_mask_of_its_own(1), context=40, chunks=(1, 8))


@pytest.mark.parametrize(
    ("kind", "sizes", "options", "message"),
    [
        ("LlamaForCausalLM", {}, {"context": CONTEXT + 1}, "context 97: the model has 96 positions"),
        ("LlamaForCausalLM", {}, {"slots": 0}, "slots must be a whole number from 1"),
        ("LlamaForCausalLM", {}, {"chunks": (8, 1)}, "give ascending numbers"),
        ("LlamaForCausalLM", {}, {"page_size": 16, "pages": 6}, "pages 6: give at least 7"),
        ("LlamaForCausalLM", {}, {"dtype": "bf16"}, "leave dtype and random_weights out"),
        ("LlamaModel", {}, {}, "a causal language model"),
        ("BertForMaskedLM", {}, {}, "generation is not supported|a causal language model"),
        ("Mamba2ForCausalLM", {"num_heads": 8, "head_dim": 16, "state_size": 16, "n_groups": 2}, {}, "past_key_values"),
        ("Lfm2ForCausalLM", {"layer_types": ["conv", "full_attention"]}, {}, "something else than keys and values"),
        ("Phi3ForCausalLM", {"rope_parameters": LONGROPE, "original_max_position_embeddings": 40}, {},
         "give a context of at most 40"),
    ],
)  # fmt: skip
def test_what_cannot_be_right_is_refused(kind, sizes, options, message):
    with pytest.raises(MlircError, match=message):
        open_generator(tiny(kind, **sizes), **options)
