"""Configurations of causal language models drawn at random: switches, sizes that fit nothing, prompts at edges of pages."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

CONTEXT = 320
_ACTIVATIONS = ["silu", "gelu", "relu", "gelu_pytorch_tanh"]


def _rope(draw: Random, size: int, kinds: str = "default linear dynamic yarn llama3 longrope") -> dict[str, Any]:
    kind = draw.choice(kinds.split())
    made: dict[str, Any] = {"rope_type": kind, "rope_theta": draw.choice([100.0, 10000.0, 500000.0])}
    if kind in ("linear", "dynamic", "yarn"):
        made["factor"] = draw.choice([2.0, 8.5])
    if kind == "yarn":
        made["original_max_position_embeddings"] = CONTEXT // draw.choice([1, 4])
    if kind == "llama3":
        made |= {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
        made["original_max_position_embeddings"] = CONTEXT // 4
    if kind == "longrope":
        made |= {"short_factor": [draw.uniform(1, 2) for _ in range(size // 2)], "long_factor": [4.0] * (size // 2)}
        made["original_max_position_embeddings"] = CONTEXT
    return made


def _partial(draw: Random, size: int) -> dict[str, Any]:
    part = draw.choice([0.25, 0.5, 1.0])
    return {**_rope(draw, int(size * part), "default linear dynamic"), "partial_rotary_factor": part}


def _switches(draw: Random, *names: str) -> dict[str, bool]:
    return {name: draw.random() < 0.5 for name in names}


def _windows(draw: Random) -> dict[str, Any]:
    kinds = ["sliding_attention", "full_attention"]
    return {"sliding_window": draw.choice([2, 5, 63, 65]), "layer_types": [draw.choice(kinds) for _ in range(2)]}


def _llama(draw: Random, size: int) -> dict[str, Any]:
    return {"rope_parameters": _rope(draw, size), "head_dim": size, "hidden_act": draw.choice(_ACTIVATIONS),
            "rms_norm_eps": draw.choice([0.0, 1e-5, 1.0]), **_switches(draw, "attention_bias", "mlp_bias")}  # fmt: skip


def _opt(draw: Random, size: int) -> dict[str, Any]:
    names = ("do_layer_norm_before", "enable_bias", "layer_norm_elementwise_affine")
    return {"ffn_dim": 96, "word_embed_proj_dim": draw.choice([32, 50]), **_switches(draw, *names)}


def _falcon(draw: Random, size: int) -> dict[str, Any]:
    own = _switches(draw, "alibi", "new_decoder_architecture", "multi_query", "bias")
    norms = draw.choice([1, 2]) if own["new_decoder_architecture"] else None  # others have one, and fail with two
    return {"num_kv_heads": 1, "parallel_attn": True, "num_ln_in_parallel_attn": norms, **own}


def _gemma3(draw: Random, size: int) -> dict[str, Any]:
    both = {"full_attention": _rope(draw, size, "default linear"), "sliding_attention": _rope(draw, size, "default")}
    return {**_windows(draw), "head_dim": size, "query_pre_attn_scalar": draw.choice([16, 200]),
            "final_logit_softcapping": draw.choice([None, 3.0]), "rope_parameters": both}  # fmt: skip


def _granite(draw: Random, size: int) -> dict[str, Any]:
    return {"attention_multiplier": draw.choice([0.05, 1.0]), "embedding_multiplier": draw.choice([1.0, 12.0]),
            "residual_multiplier": 0.22, "logits_scaling": draw.choice([0.5, 8.0]),
            **_switches(draw, "attention_bias", "mlp_bias")}  # fmt: skip


FAMILIES: dict[str, tuple[str, Callable[[Random, int], dict[str, Any]]]] = {
    "llama": ("LlamaForCausalLM", _llama),
    "opt": ("OPTForCausalLM", _opt),
    "falcon": ("FalconForCausalLM", _falcon),
    "gemma3": ("Gemma3ForCausalLM", _gemma3),
    "granite": ("GraniteForCausalLM", _granite),
    "mistral": ("MistralForCausalLM", lambda d, n: {"head_dim": n, "sliding_window": d.choice([None, 2, 31, 64, 65])}),
    "phi3": ("Phi3ForCausalLM", lambda d, n: {"rope_parameters": _rope(d, n, "default longrope"),
             "original_max_position_embeddings": CONTEXT, "sliding_window": d.choice([None, 7, 64])}),
    "gpt-neox": ("GPTNeoXForCausalLM", lambda d, n: {"rope_parameters": _partial(d, n),
                 **_switches(d, "use_parallel_residual", "attention_bias")}),
    "stablelm": ("StableLmForCausalLM", lambda d, n: {"rope_parameters": _partial(d, n),
                 **_switches(d, "qk_layernorm", "use_parallel_residual", "use_qkv_bias")}),
    "qwen2": ("Qwen2ForCausalLM", lambda d, n: {"sliding_window": d.choice([5, 64]), "max_window_layers": d.choice([0, 1]),
              "rope_parameters": _rope(d, n), **_switches(d, "use_sliding_window")}),
    "cohere2": ("Cohere2ForCausalLM", lambda d, n: {**_windows(d), "head_dim": n, **_switches(d, "attention_bias")}),
}  # fmt: skip


def drawn(family: str, draw: Random) -> tuple[str, dict[str, Any], list[list[int]], dict[str, Any]]:
    """The name of a model's class, its sizes, prompts, and the sizes of its steps."""
    kind, own = FAMILIES[family]
    size, heads = draw.choice([32, 64, 80, 128]), draw.choice([2, 3, 4])
    vocabulary, page = draw.choice([97, 255, 257]), draw.choice([16, 50, 64])
    sizes = {
        "vocab_size": vocabulary, "hidden_size": size * heads, "intermediate_size": draw.choice([64, 130]),
        "num_attention_heads": heads, "num_key_value_heads": draw.choice([1, heads]), "tie_word_embeddings": draw.random() < 0.5,
        "max_position_embeddings": CONTEXT, **own(draw, size),
    }  # fmt: skip
    lengths = draw.choice([(1, 7, 33), (250, 2), (63, 64, 65), (page - 1, page, page + 1)])
    prompts = [[draw.randrange(vocabulary) for _ in range(n)] for n in lengths]
    steps = {
        "context": CONTEXT - draw.choice([0, 1, 7]),
        "page_size": page,
        "chunks": draw.choice([(1, 8, 64), (1, 24)]),
    }
    return kind, sizes, prompts, steps
