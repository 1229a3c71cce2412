"""Fields that the general rules of `tiny.py` get wrong, by model type."""

from __future__ import annotations

from typing import Any

_ROTARY = {"rotary_dim": 4, "n_embd": 32, "n_head": 4}
_SWIN = {"embed_dim": 16, "depths": [1, 1], "num_heads": [2, 4], "window_size": 2, "patch_size": 4}

OVERRIDES: dict[str, dict[str, Any]] = {
    "bailing_hybrid": {"head_dim": 8, "partial_rotary_factor": 0.5},
    "nemotron": {"num_key_value_heads": 2}, "ministral": {"head_dim": 8}, "hunyuan_v1_dense": {"head_dim": 8},
    "hunyuan_v1_moe": {"head_dim": 8}, "dots1": {"head_dim": 8, "n_routed_experts": 4, "n_shared_experts": 1},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"], "num_dense_layers": 1},
    "moonshine": {"encoder_num_key_value_heads": 4, "decoder_num_key_value_heads": 4},
    "timesformer": {"image_size": 16, "patch_size": 8, "num_frames": 2},
    "videomae": {"image_size": 16, "patch_size": 8, "num_frames": 4, "tubelet_size": 2},
    "vivit": {"image_size": 16, "num_frames": 4, "tubelet_size": [2, 8, 8]},
    "depth_anything": {"neck_hidden_sizes": [16, 32], "reassemble_factors": [2, 1], "fusion_hidden_size": 16,
                       "head_hidden_size": 8, "backbone_config.out_indices": [1, 2]},
    "codegen": _ROTARY,
    "gptj": _ROTARY,
    "gpt_neo": {"attention_types": [[["global", "local"], 1]], "num_layers": 2},
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1, "expert_layer_period": 2, "expert_layer_offset": 1,
              "use_mamba_kernels": False},
    "bamba": {"attn_layer_indices": [1]},
    "mamba2": {"num_heads": 8, "head_dim": 8, "expand": 2, "hidden_size": 32},
    "deepseek_v2": {"num_experts_per_tok": 2, "topk_method": "greedy", "n_group": None, "topk_group": None},
    "longcat_flash": {"qk_nope_head_dim": 8, "qk_rope_head_dim": 8, "head_dim": 8, "qk_head_dim": 16},
    "longformer": {"attention_window": 4},
    "led": {"attention_window": 4},
    "esm": {"vocab_size": 33, "pad_token_id": 1, "mask_token_id": 3},
    "mobilebert": {"true_hidden_size": 32, "intra_bottleneck_size": 32, "embedding_size": 32},
    "xlnet": {"d_model": 32, "n_head": 4, "d_head": 8},
    "xmod": {"default_language": "en_XX"},
    "reformer": {"is_decoder": True, "attention_head_size": 8, "axial_pos_shape": [4, 16], "axial_pos_embds_dim": [16, 16],
                 "attn_layers": ["local", "local"], "local_attn_chunk_length": 8},
    "swin": _SWIN, "swinv2": _SWIN, "donut-swin": _SWIN, "maskformer-swin": _SWIN,
    "swin2sr": {"embed_dim": 16, "depths": [1, 1], "num_heads": [2, 2], "window_size": 4, "patch_size": 1},
    "convnext": {"hidden_sizes": [16, 24], "depths": [1, 1], "num_stages": 2},
    "convnextv2": {"hidden_sizes": [16, 24], "depths": [1, 1], "num_stages": 2},
    "levit": {"image_size": 64, "patch_size": 16, "hidden_sizes": [16, 24, 32], "num_attention_heads": [2, 2, 2], "depths": [1, 1, 1],
              "key_dim": [8, 8, 8]},
    "mobilevitv2": {"patch_size": 2, "image_size": 64},
    "efficientnet": {"width_coefficient": 0.25, "depth_coefficient": 0.25, "hidden_dim": 320},
    "speech_to_text": {"conv_channels": 32, "input_feat_per_channel": 10, "input_channels": 1},
    "wav2vec2-bert": {"vocab_size": 99, "feature_projection_input_dim": 16},
    "wav2vec2-conformer": {"vocab_size": 99},
    "audio-spectrogram-transformer": {"max_length": 64, "num_mel_bins": 16},
    "hiera": {"embed_dim": 16, "depths": [1, 1, 1], "num_heads": [1, 2, 4], "query_stride": [2, 2], "num_query_pool": 2,
              "image_size": [64, 64], "masked_unit_size": [4, 4]},
    "pvt": {"hidden_sizes": [16, 32, 48, 64], "num_attention_heads": [1, 2, 3, 4]},
    "pvt_v2": {"hidden_sizes": [16, 32, 48, 64], "num_attention_heads": [1, 2, 3, 4]},
    "glpn": {"hidden_sizes": [16, 32, 48, 64], "num_attention_heads": [1, 2, 3, 4]},
    "perceiver": {"d_model": 32, "d_latents": 32, "num_latents": 8, "num_self_attends_per_block": 2},
}  # fmt: skip

# Inputs that the general rules of `runner.py` get wrong, by model type.
INPUTS: dict[str, list[str]] = {
    "speech_to_text": ["input_features=f32[2,40,10]", "decoder_input_ids=i64[2,7]"],
    "audio-spectrogram-transformer": ["input_values=f32[2,64,16]"],
    "wav2vec2-bert": ["input_features=f32[2,24,16]"],
    "videomae": ["pixel_values=f32[1,4,3,16,16]"],
    "timesformer": ["pixel_values=f32[1,2,3,16,16]"],
    "vivit": ["pixel_values=f32[1,4,3,16,16]"],
    "hiera": ["pixel_values=f32[2,3,64,64]"],
    "levit": ["pixel_values=f32[2,3,64,64]"],
    "mobilevitv2": ["pixel_values=f32[2,3,64,64]"],
    "kosmos-2": ["input_ids=i64[2,9]", "pixel_values=f32[2,3,32,32]"],
}
