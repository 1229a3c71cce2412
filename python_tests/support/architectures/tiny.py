"""Tiny configurations of Hugging Face architectures, made from the defaults of their config classes by general rules."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

VOCABULARY = 99
IMAGE = 32

# What a field becomes, by its name; the first pattern that matches the whole name decides.
_RULES: tuple[tuple[str, Any], ...] = (
    (r".*vocab(ulary)?_size.*|n_?vocab|vocab_size", VOCABULARY),
    (r"type_vocab_size", 2),
    (r"pad_token_id|pad_token", 0),
    (r"bos_token_id|cls_token_id", 1),
    (r"eos_token_id|sep_token_id", 2),
    (r"(decoder_start|forced_bos|forced_eos|mask|unk)_token_id", 3),
    (r"(num|n)_(hidden_)?layers?|num_(encoder|decoder)_layers|(encoder|decoder)_(num_hidden_)?layers|n_layers?|"
     r"num_(local|context|self_attends|cross)_layers|.*_num_layers|depth|num_blocks|encoder_depth", 2),
    (r"num_(hidden_)?groups", 1),
    (r"num_(key_value|kv)_heads|n_head_kv|num_key_value_heads|kv_heads|multi_query_group_num", 2),
    (r"(encoder_|decoder_|vision_|text_)?num_(attention_)?heads|n_heads?|(encoder|decoder)_(num_)?attention_heads|"
     r"num_decoder_heads|attention_heads|heads|num_attention_heads", 4),
    (r"(attention_|v_|qk_|qk_nope_|kv_)?head_dim|d_kv|qk_nope_head_dim|v_head_dim|attention_head_size", 8),
    (r"qk_rope_head_dim", 8),
    (r"q_lora_rank|kv_lora_rank|o_lora_rank", 16),
    (r"hidden_size|d_model|n_embd|embed_dim|dim|hidden_dim|d_embed|embedding_size|embedding_dim|word_embed_proj_dim|"
     r"decoder_hidden_size|encoder_hidden_size|projection_dim|model_dim|attention_hidden_size|lru_width|emb_dim|"
     r"decoder_embed_dim|encoder_embed_dim|d_latents|text_embed_dim|image_embed_dim|out_dim|"
     r".*_hidden_size|n_embed|width|embed_size", 32),
    (r"(encoder_|decoder_|moe_|shared_expert_|dense_|vision_|shared_)?(intermediate|ffn|mlp)(_size|_dim|_hidden_size)|"
     r"d_ff|n_inner|hidden_dim_ff|(encoder|decoder)_ffn_dim|ffn_hidden_size|d_inner|feed_forward_size|dim_feedforward|"
     r"ff_dim|moe_intermediate_size|intermediate_size_mlp|.*intermediate_size|.*ffn_dim|conv_dim_ff", 48),
    (r"max_position_embeddings|n_positions|max_(source|target)_positions|n_ctx|max_seq_len|max_sequence_length|seq_length|"
     r"max_length|original_max_position_embeddings", 64),
    (r"(sliding|attention)_window(_size)?|window_size|local_attention|attention_window_size", 5),
    (r"(num|n)(_local|_routed|_router)?_experts", 4),
    (r"num_experts_per_tok(en)?|moe_topk|top_k|moe_top_k|num_selected_experts|expert_capacity", 2),
    (r"n_shared_experts|num_shared_experts", 1),
    (r"n_group|topk_group", 1),
    (r"first_k_dense_replace|num_dense_layers|decoder_sparse_step|encoder_sparse_step|moe_layer_start_index", 1),
    (r"image_size|input_size|img_size", IMAGE),
    (r"patch_size|vision_patch_size", 8),
    (r"num_mel_bins|n_mels|num_mels", 10),
    (r"num_frames", 4),
    (r"num_queries", 5),
    (r"expand_ratio", 2),
    (r"num_labels", 3),
    (r"state_size|mamba_d_state|d_state|ssm_state_size", 8),
    (r"mamba_n_heads|mamba_num_heads", 8),
    (r"mamba_d_head|mamba_head_dim", 8),
    (r"mamba_n_groups|n_groups|mamba_ngroups", 2),
    (r"chunk_size|mamba_chunk_size", 8),
    (r"time_step_rank|mamba_dt_rank", 4),
    (r"linear_(num_)?(key|value)_head_dim|linear_key_head_dim|linear_value_head_dim", 8),
    (r"linear_num_(key|value)_heads", 4),
    (r"num_conv_pos_embeddings", 6),
    (r"num_conv_pos_embedding_groups", 2),
    (r"num_feat_extract_layers", 2),
    (r"num_codevectors_per_group", 8),
)  # fmt: skip

_PATTERNS = [(re.compile(pattern), value) for pattern, value in _RULES]
# What follows from other fields, and would contradict them.
_DERIVED = {"out_features", "out_indices", "stage_names", "per_layer_config", "transformers_version", "_out_features",
            "_out_indices", "layer_scale_init_value", "max_window_layers", "torch_dtype", "dtype", "attention_layers"}  # fmt: skip


def shrunk(name: str, value: Any) -> Any:
    """One field's tiny value."""
    if isinstance(value, (bool, str)):
        return value
    if isinstance(value, (list, tuple)):
        return _shrunk_list(name, list(value))
    if isinstance(value, int):
        for pattern, tiny in _PATTERNS:
            if pattern.fullmatch(name):
                return tiny
        if name.endswith(("_token_id", "_token_index", "token_ids")):
            return min(value, VOCABULARY - 1)
    return value


def _shrunk_list(name: str, value: list) -> list | int:
    if name.endswith("eos_token_id"):
        return 2
    if name in ("depths", "num_blocks"):
        return [1] * len(value)
    if name in ("hidden_sizes", "encoder_hidden_sizes", "embed_dims", "dims", "neck_hidden_sizes", "hidden_size"):
        return [16 * (i + 1) for i in range(len(value))]
    if "heads" in name:
        return [2] * len(value)
    if name in _WAVES:
        return _WAVES[name]
    if name in ("image_size", "input_size", "img_size"):
        return [IMAGE] * len(value)
    if name in ("layer_types", "layers_block_type", "block_types", "mlp_layer_types"):
        kinds = list(dict.fromkeys(value))
        return (kinds * 2)[:2]
    return value


_WAVES = {"conv_dim": [16, 16], "conv_stride": [5, 4], "conv_kernel": [10, 3], "tdnn_dim": [16, 16],
          "tdnn_kernel": [3, 1], "tdnn_dilation": [1, 1]}  # fmt: skip


def shrink(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a config, and of the configs inside it, made tiny."""
    result: dict[str, Any] = {}
    for name, value in fields.items():
        if name in _DERIVED:
            continue
        if isinstance(value, Mapping) and (name.endswith("config") or name in ("encoder", "decoder")):
            result[name] = shrink(value)
        else:
            result[name] = shrunk(name, value)
    if result.get("num_key_value_heads") and fields.get("num_attention_heads") == fields.get("num_key_value_heads"):
        result["num_key_value_heads"] = result["num_attention_heads"]
    return result


def merge(fields: dict[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
    """`fields` with those of `overrides`, which go into the configs inside where their names have dots."""
    for path, value in overrides.items():
        *inside, name = path.split(".")
        place = fields
        for part in inside:
            place = place.setdefault(part, {})
        place[name] = value
    return fields
