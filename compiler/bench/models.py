"""Whole models, from their public configurations, written out because nothing is downloaded."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from mlirc.bench.cases import Case, tensor

LENGTHS = (1, 7, 128, 512)

_LLAMA: dict[str, Any] = {"hidden_act": "silu", "attention_bias": False, "rms_norm_eps": 1e-5}

# name: (class in transformers, configuration class, configuration). Dropout never matters: models run in eval mode.
CONFIGS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "minilm": (
        "BertModel", "BertConfig",
        {"vocab_size": 30522, "hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 12,
         "intermediate_size": 1536, "max_position_embeddings": 512},
    ),
    "tinyllama-1.1b": (
        "LlamaForCausalLM", "LlamaConfig",
        {**_LLAMA, "vocab_size": 32000, "hidden_size": 2048, "intermediate_size": 5632, "num_hidden_layers": 22,
         "num_attention_heads": 32, "num_key_value_heads": 4, "max_position_embeddings": 2048,
         "rope_theta": 10000.0, "tie_word_embeddings": False},
    ),
    "llama-3.2-1b": (
        "LlamaForCausalLM", "LlamaConfig",
        {**_LLAMA, "vocab_size": 128256, "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16,
         "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 64, "max_position_embeddings": 131072,
         "rope_theta": 500000.0, "tie_word_embeddings": True,
         "rope_scaling": {"rope_type": "llama3", "factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                          "original_max_position_embeddings": 8192}},
    ),
    "qwen2.5-7b": (
        "Qwen2ForCausalLM", "Qwen2Config",
        {"vocab_size": 152064, "hidden_size": 3584, "intermediate_size": 18944, "num_hidden_layers": 28,
         "num_attention_heads": 28, "num_key_value_heads": 4, "max_position_embeddings": 131072,
         "rope_theta": 1000000.0, "rms_norm_eps": 1e-6, "tie_word_embeddings": False},
    ),
    "qwen3-0.6b": (
        "Qwen3ForCausalLM", "Qwen3Config",
        {"vocab_size": 151936, "hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 28,
         "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128, "max_position_embeddings": 40960,
         "rope_theta": 1000000.0, "rms_norm_eps": 1e-6, "tie_word_embeddings": True},
    ),
    "mistral-7b": (
        "MistralForCausalLM", "MistralConfig",
        {"vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 2,
         "num_attention_heads": 32, "num_key_value_heads": 8, "max_position_embeddings": 32768,
         "rope_theta": 10000.0, "rms_norm_eps": 1e-5, "sliding_window": 4096, "tie_word_embeddings": False},
    ),
    "gpt2": (
        "GPT2LMHeadModel", "GPT2Config",
        {"vocab_size": 50257, "n_positions": 1024, "n_embd": 768, "n_layer": 12, "n_head": 12},
    ),
    "bert-base": (
        "BertModel", "BertConfig",
        {"vocab_size": 30522, "hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12,
         "intermediate_size": 3072, "max_position_embeddings": 512},
    ),
    "t5-small": (
        "T5ForConditionalGeneration", "T5Config",
        {"vocab_size": 32128, "d_model": 512, "d_kv": 64, "d_ff": 2048, "num_layers": 6, "num_heads": 8,
         "feed_forward_proj": "relu", "decoder_start_token_id": 0},
    ),
    "whisper-tiny": (
        "WhisperForConditionalGeneration", "WhisperConfig",
        {"vocab_size": 51865, "d_model": 384, "encoder_layers": 4, "decoder_layers": 4, "encoder_attention_heads": 6,
         "decoder_attention_heads": 6, "encoder_ffn_dim": 1536, "decoder_ffn_dim": 1536, "num_mel_bins": 80,
         "max_source_positions": 1500, "max_target_positions": 448},
    ),
    "vit-b16": (
        "ViTForImageClassification", "ViTConfig",
        {"hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12, "intermediate_size": 3072,
         "image_size": 224, "patch_size": 16, "num_labels": 1000},
    ),
    "resnet18": (
        "ResNetForImageClassification", "ResNetConfig",
        {"embedding_size": 64, "hidden_sizes": [64, 128, 256, 512], "depths": [2, 2, 2, 2], "layer_type": "basic",
         "num_labels": 1000},
    ),
}  # fmt: skip
NETWORKS = ("mlp", "cnn")
_DECODERS = ("tinyllama-1.1b", "llama-3.2-1b", "qwen2.5-7b", "qwen3-0.6b", "mistral-7b", "gpt2")


def model_case(name: str, length: int, dtype: str, *, suite: str = "models", layers: int | None = None) -> Case:
    """One model at one length: tokens for language models, rows for the MLP, batch for images.

    `layers` shortens a decoder; the case's name says so.
    """
    shown = f"{name}.{dtype}.s{length}"
    if name in NETWORKS:
        shape = (length, 784) if name == "mlp" else (length, 3, 32, 32)
        return Case(shown, suite, "network", {"network": name}, {"x": tensor(dtype, *shape)}, dtype)
    model_class, config_class, config = CONFIGS[name]
    call: dict[str, Any] = {"use_cache": False}
    if layers is not None:
        config, shown = {**config, "num_hidden_layers": layers}, f"{name}.{layers}layers.{dtype}.s{length}"
    ids = tensor("i64", 1, length, kind="ids", upper=config.get("vocab_size", 0))
    if name in ("minilm", "bert-base"):
        call = {}
        mask = tensor("i64", 1, length, kind="tail_mask")
        inputs = {"input_ids": {**ids, "kind": "text"} if name == "minilm" else ids, "attention_mask": mask}
    elif name in _DECODERS:
        inputs = {"input_ids": ids}
    elif name == "t5-small":
        inputs = {"input_ids": ids, "decoder_input_ids": ids}
    elif name == "whisper-tiny":
        inputs = {"input_features": tensor(dtype, 1, 80, 3000), "decoder_input_ids": ids}
    else:
        call = {}
        inputs = {"pixel_values": tensor(dtype, length, 3, 224, 224)}
    options = {"model": model_class, "config_class": config_class, "config": config, "call": call}
    options["weights"] = "minilm" if name == "minilm" else "random"
    return Case(shown, suite, "huggingface", options, inputs, dtype)


def lengths(name: str) -> tuple[int, ...]:
    """The lengths at which a model is checked: Whisper's decoder ends at 448 tokens; images come in batches of 1, 7."""
    if name in ("vit-b16", "resnet18", "cnn"):
        return (1, 7)
    return (1, 7, 128, 448) if name == "whisper-tiny" else LENGTHS


def models() -> Iterator[Case]:
    """Every model in f32 and bf16; Qwen2.5-7B in f32 with 2 layers, as its FP64 reference would not fit otherwise."""
    for name in (*CONFIGS, *NETWORKS):
        for dtype in ("f32", "bf16"):
            for length in lengths(name):
                short = 2 if name == "qwen2.5-7b" and dtype == "f32" else None
                yield model_case(name, length, dtype, layers=short)


def speed() -> Iterator[Case]:
    """The models to time with a claim in mind, most important first."""
    for name, length in (("tinyllama-1.1b", 512), ("tinyllama-1.1b", 2048), ("qwen2.5-7b", 512), ("qwen2.5-7b", 2048)):
        yield model_case(name, length, "bf16", suite="speed")
    for dtype in ("f32", "bf16"):
        yield model_case("minilm", 128, dtype, suite="speed")
    yield model_case("tinyllama-1.1b", 1, "bf16", suite="speed")
    yield model_case("bert-base", 128, "bf16", suite="speed")
    yield model_case("tinyllama-1.1b", 512, "f32", suite="speed")
