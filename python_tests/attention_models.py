"""Tiny configurations of Hugging Face models for text that treat attention and its mask in their own ways."""

from __future__ import annotations

from typing import Any

_BERT = dict(hidden_size=32, intermediate_size=44, num_hidden_layers=1, num_attention_heads=4, vocab_size=97,
             max_position_embeddings=64, pad_token_id=0, bos_token_id=1, eos_token_id=2)  # fmt: skip
_LLAMA = _BERT | dict(num_key_value_heads=2)
_GPT = dict(n_embd=32, n_layer=1, n_head=4, vocab_size=97, n_positions=64, bos_token_id=1, eos_token_id=2)
_BART = dict(d_model=32, encoder_layers=1, decoder_layers=1, encoder_attention_heads=4, decoder_attention_heads=4,
             encoder_ffn_dim=44, decoder_ffn_dim=44, vocab_size=97, max_position_embeddings=64, pad_token_id=0,
             bos_token_id=1, eos_token_id=2, decoder_start_token_id=1)  # fmt: skip
_T5 = dict(d_model=32, d_kv=8, d_ff=44, num_layers=1, num_decoder_layers=1, num_heads=4, vocab_size=97)
_FALCON = dict(hidden_size=32, num_hidden_layers=1, num_attention_heads=4, vocab_size=97, bos_token_id=1,
               eos_token_id=2, max_position_embeddings=64)  # fmt: skip


def _config(architecture: str, model_type: str, *fields: dict[str, Any], **more: Any) -> dict[str, Any]:
    config: dict[str, Any] = {"architectures": [architecture], "model_type": model_type}
    for part in (*fields, more):
        config |= part
    return config


DECODERS = {
    "bloom": _config("BloomForCausalLM", "bloom", hidden_size=32, n_layer=1, n_head=4, vocab_size=97),
    "falcon": _config("FalconForCausalLM", "falcon", _FALCON, multi_query=True),
    "falcon-alibi": _config("FalconForCausalLM", "falcon", _FALCON, alibi=True, multi_query=False),
    "falcon-new": _config("FalconForCausalLM", "falcon", _FALCON, new_decoder_architecture=True, num_kv_heads=2),
    "falcon-eager": _config("FalconForCausalLM", "falcon", _FALCON, attn_implementation="eager"),
    "mpt": _config("MptForCausalLM", "mpt", d_model=32, n_layers=1, n_heads=4, vocab_size=97, max_seq_len=64),
    "xglm": _config("XGLMForCausalLM", "xglm", d_model=32, ffn_dim=44, num_layers=1, attention_heads=4, vocab_size=97,
                    max_position_embeddings=64),
    "git": _config("GitForCausalLM", "git", _BERT,
                   vision_config=dict(hidden_size=16, intermediate_size=20, num_hidden_layers=1, num_attention_heads=2,
                                      image_size=16, patch_size=8)),
    "gpt2": _config("GPT2LMHeadModel", "gpt2", _GPT),
    "gpt2-by-layer": _config("GPT2LMHeadModel", "gpt2", _GPT, n_layer=2, scale_attn_by_inverse_layer_idx=True,
                             attn_implementation="eager"),
    "gpt_neo": _config("GPTNeoForCausalLM", "gpt_neo", hidden_size=32, num_layers=2, num_heads=4, vocab_size=97,
                       max_position_embeddings=64, window_size=3, attention_types=[[["global", "local"], 1]]),
    "gptj": _config("GPTJForCausalLM", "gptj", _GPT, rotary_dim=4),
    "codegen": _config("CodeGenForCausalLM", "codegen", _GPT, rotary_dim=4, n_ctx=64),
    "opt": _config("OPTForCausalLM", "opt", hidden_size=32, ffn_dim=44, num_hidden_layers=1, num_attention_heads=4,
                   vocab_size=97, max_position_embeddings=64, word_embed_proj_dim=32),
    "llama": _config("LlamaForCausalLM", "llama", _LLAMA),
    "llama-eager": _config("LlamaForCausalLM", "llama", _LLAMA, attn_implementation="eager"),
    "mistral": _config("MistralForCausalLM", "mistral", _LLAMA, sliding_window=3),
    "gemma2": _config("Gemma2ForCausalLM", "gemma2", _LLAMA, num_hidden_layers=2, head_dim=8, sliding_window=3,
                      query_pre_attn_scalar=16,
                      attn_logit_softcapping=2.0),
    "gpt_bigcode": _config("GPTBigCodeForCausalLM", "gpt_bigcode", _GPT, multi_query=True),
    "gemma3": _config("Gemma3ForCausalLM", "gemma3_text", _LLAMA, num_hidden_layers=2, head_dim=8, sliding_window=3,
                      layer_types=["sliding_attention", "full_attention"], query_pre_attn_scalar=16),
    "bert-decoder": _config("BertLMHeadModel", "bert", _BERT, is_decoder=True),
}  # fmt: skip

ENCODERS = {
    "bert": _config("BertModel", "bert", _BERT),
    "bert-eager": _config("BertModel", "bert", _BERT, attn_implementation="eager"),
    "squeezebert": _config("SqueezeBertModel", "squeezebert", _BERT, embedding_size=32),
    "megatron-bert": _config("MegatronBertModel", "megatron-bert", _BERT),
    "blip-text": _config("BlipTextModel", "blip_text_model", _BERT, encoder_hidden_size=32),
    "mpnet": _config("MPNetModel", "mpnet", _BERT),
    "canine": _config("CanineModel", "canine", _BERT, num_hash_buckets=50, local_transformer_stride=16,
                      downsampling_rate=2),
    "roformer": _config("RoFormerModel", "roformer", _BERT, embedding_size=32),
    "convbert": _config("ConvBertModel", "convbert", _BERT, embedding_size=32, conv_kernel_size=3, head_ratio=2),
    "rembert": _config("RemBertModel", "rembert", _BERT, input_embedding_size=16),
    "deberta-v2": _config("DebertaV2Model", "deberta-v2", _BERT, relative_attention=True,
                          pos_att_type=["p2c", "c2p"], position_buckets=8),
    "distilbert": _config("DistilBertModel", "distilbert", dim=32, hidden_dim=44, n_layers=1, n_heads=4, vocab_size=97,
                          max_position_embeddings=64),
    "modernbert": _config("ModernBertModel", "modernbert", _BERT, num_hidden_layers=2, local_attention=4, global_attn_every_n_layers=2,
                          cls_token_id=1, sep_token_id=2),
    "ibert": _config("IBertModel", "ibert", _BERT),
    "xlnet": _config("XLNetModel", "xlnet", d_model=32, n_layer=1, n_head=4, d_inner=44, vocab_size=97),
    "layoutlm": _config("LayoutLMModel", "layoutlm", _BERT),
    "nystromformer": _config("NystromformerModel", "nystromformer", _BERT, num_landmarks=7, segment_means_seq_len=7),
}  # fmt: skip

SEQ2SEQ = {
    "bart": _config("BartForConditionalGeneration", "bart", _BART),
    "t5": _config("T5ForConditionalGeneration", "t5", _T5),
    "t5-eager": _config("T5ForConditionalGeneration", "t5", _T5, attn_implementation="eager"),
    "mvp": _config("MvpForConditionalGeneration", "mvp", _BART),
}
