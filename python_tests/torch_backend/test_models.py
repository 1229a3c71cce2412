"""Models of transformers, tiny and with random weights, as they are used."""

from __future__ import annotations

import torch
from transformers import BertConfig, BertModel, LlamaConfig, LlamaForCausalLM

LLAMA = LlamaConfig(
    hidden_size=16, num_hidden_layers=1, num_attention_heads=4, num_key_value_heads=2, intermediate_size=24,
    vocab_size=31, max_position_embeddings=32, pad_token_id=0,
)  # fmt: skip


def test_bert_with_a_padded_batch(compiled):
    config = BertConfig(hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=24, vocab_size=31)
    model = BertModel(config).eval()
    ids, mask = torch.randint(0, 31, (2, 7)), torch.ones(2, 7, dtype=torch.long)
    mask[1, 4:] = 0
    with torch.no_grad():
        found = compiled(model)(input_ids=ids, attention_mask=mask)
        wanted = model(input_ids=ids, attention_mask=mask)
    assert type(found) is type(wanted)
    for name, seen in (("last_hidden_state", mask.bool()), ("pooler_output", ...)):
        torch.testing.assert_close(found[name][seen], wanted[name][seen], rtol=1e-4, atol=1e-5)


def test_llama_generates_by_a_compiled_forward_with_a_static_cache(compiled, caplog):
    model = LlamaForCausalLM(LLAMA).eval()
    ids, mask = torch.randint(1, 31, (2, 5)), torch.ones(2, 5, dtype=torch.long)
    ids[1, :2], mask[1, :2] = 0, 0
    options = dict(attention_mask=mask, max_new_tokens=4, do_sample=False, cache_implementation="static")
    wanted = model.generate(ids, **options)
    model.forward = compiled(model.forward)
    assert torch.equal(model.generate(ids, **options), wanted)
    assert "eager" not in caplog.text
