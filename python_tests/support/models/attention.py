"""Tiny configurations of Hugging Face models for text that treat attention and its mask in their own ways: variants that
the list of architectures (`support/architectures/list.txt`), which has each class as its config makes it, does not have."""

from __future__ import annotations

from typing import Any

_BERT = dict(hidden_size=32, intermediate_size=44, num_hidden_layers=1, num_attention_heads=4, vocab_size=97,
             max_position_embeddings=64, pad_token_id=0, bos_token_id=1, eos_token_id=2)  # fmt: skip
_LLAMA = _BERT | dict(num_key_value_heads=2)
_GPT = dict(n_embd=32, n_layer=1, n_head=4, vocab_size=97, n_positions=64, bos_token_id=1, eos_token_id=2)
_T5 = dict(d_model=32, d_kv=8, d_ff=44, num_layers=1, num_decoder_layers=1, num_heads=4, vocab_size=97)
_FALCON = dict(hidden_size=32, num_hidden_layers=1, num_attention_heads=4, vocab_size=97, bos_token_id=1,
               eos_token_id=2, max_position_embeddings=64)  # fmt: skip


def _config(architecture: str, model_type: str, *fields: dict[str, Any], **more: Any) -> dict[str, Any]:
    config: dict[str, Any] = {"architectures": [architecture], "model_type": model_type}
    for part in (*fields, more):
        config |= part
    return config


DECODERS = {
    "falcon-alibi": _config("FalconForCausalLM", "falcon", _FALCON, alibi=True, multi_query=False),
    "falcon-new": _config("FalconForCausalLM", "falcon", _FALCON, new_decoder_architecture=True, num_kv_heads=2),
    "falcon-eager": _config("FalconForCausalLM", "falcon", _FALCON, attn_implementation="eager"),
    "gpt2-by-layer": _config("GPT2LMHeadModel", "gpt2", _GPT, n_layer=2, scale_attn_by_inverse_layer_idx=True,
                             attn_implementation="eager"),
    "gpt_neo": _config("GPTNeoForCausalLM", "gpt_neo", hidden_size=32, num_layers=2, num_heads=4, vocab_size=97,
                       max_position_embeddings=64, window_size=3, attention_types=[[["global", "local"], 1]]),
    "llama-eager": _config("LlamaForCausalLM", "llama", _LLAMA, attn_implementation="eager"),
}  # fmt: skip

ENCODERS = {
    "bert-eager": _config("BertModel", "bert", _BERT, attn_implementation="eager"),
    "blip-text": _config("BlipTextModel", "blip_text_model", _BERT, encoder_hidden_size=32),
    "canine": _config("CanineModel", "canine", _BERT, num_hash_buckets=50, local_transformer_stride=16,
                      downsampling_rate=2),
}  # fmt: skip

SEQ2SEQ = {
    "t5-eager": _config("T5ForConditionalGeneration", "t5", _T5, attn_implementation="eager"),
}
