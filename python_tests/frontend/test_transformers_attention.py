"""A model's own attention function becomes one op only where it is the same, and the model computes the same anyway."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.activations import GELUActivation
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from mlirc.frontend import from_torch
from mlirc.frontend.transformers_attention import attention_for_export
from support.models.small import attentions, check


def plain(module, query, key, value, attention_mask, scaling=None, dropout=0.0, softcap=None, **kwargs):
    scores = query @ key.transpose(2, 3) * (scaling or query.shape[-1] ** -0.5)
    scores = scores if softcap is None else torch.tanh(scores / softcap) * softcap
    scores = scores if attention_mask is None else scores + attention_mask
    weights = scores.softmax(-1, dtype=torch.float32).to(query.dtype)
    return (weights @ value).transpose(1, 2).contiguous(), weights


def shared_keys(module, query, key, value, attention_mask, **kwargs):
    group = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(group, 1), value.repeat_interleave(group, 1)
    return plain(module, query, key, value, attention_mask, **kwargs)


def scaled_by_layer(module, query, key, value, attention_mask, **kwargs):
    return plain(module, query, key, value, attention_mask, scaling=0.1 * module.layer)


def with_a_parameter(module, query, key, value, attention_mask, **kwargs):
    return plain(module, query, key, value + module.sink, attention_mask, **kwargs)


def sharper_later(module, query, key, value, attention_mask, position_ids=None, **kwargs):
    return plain(module, query * (1 + position_ids[:, None, :, None]), key, value, attention_mask, **kwargs)


def windowed(module, query, key, value, attention_mask, sliding_window=None, **kwargs):
    far = torch.ones(query.shape[2], key.shape[2]).tril(-sliding_window) * -1e30
    return plain(module, query, key, value, attention_mask + far, **kwargs)


def causal_without_a_mask(module, query, key, value, attention_mask, **kwargs):
    if attention_mask is None:
        attention_mask = torch.full((query.shape[2], key.shape[2]), -1e30).triu(1)
    return plain(module, query, key, value, attention_mask, **kwargs)


def masks_by_multiplying(module, query, key, value, attention_mask, **kwargs):
    out, weights = plain(module, query, key, value, None, **kwargs)
    weights = weights * (attention_mask == 0)
    return (weights @ value).transpose(1, 2), weights


def heads_last(module, query, key, value, attention_mask, **kwargs):
    out, weights = plain(module, query, key, value, attention_mask, **kwargs)
    return out.transpose(1, 2), weights


class Attends(nn.Module):
    """Calls the function as transformers' models do; without a mask where `masked` is false."""

    def __init__(self, function, masked=True, key_heads=4, use_weights=False, **kwargs):
        super().__init__()
        self.function, self.masked, self.use_weights, self.kwargs = function, masked, use_weights, kwargs
        self.shape, self.layer = (4, key_heads), 3
        self.act, self.sink = GELUActivation(), nn.Parameter(torch.tensor(0.7))

    def forward(self, x, bias):
        call = ALL_ATTENTION_FUNCTIONS.get_interface("eager", self.function)
        query, key = x.unflatten(-1, (4, 8)).transpose(1, 2), x.unflatten(-1, (4, 8)).transpose(1, 2)
        key = key[:, : self.shape[1]]
        places = torch.arange(x.shape[1])[None]
        out, weights = call(
            self, query, key, key * 2, bias if self.masked else None, position_ids=places, **self.kwargs
        )
        return out.sum(-1) + weights.amax(-1).transpose(1, 2) if self.use_weights else out


@pytest.mark.parametrize(
    ("function", "options", "fused"),  # as one function; or op by op, where a row of no key is NaN
    [
        (plain, {}, True),
        (plain, {"masked": False}, True),
        (plain, {"softcap": 2.0, "scaling": 0.3}, True),
        (plain, {"sliding_window": 3}, True),
        (plain, {"use_weights": True}, True),
        (shared_keys, {"key_heads": 2}, True),
        (scaled_by_layer, {}, "spelled"),
        (with_a_parameter, {}, "spelled"),
        (sharper_later, {}, "spelled"),
        (windowed, {"sliding_window": 6}, "spelled"),
        (causal_without_a_mask, {"masked": False}, "spelled"),
        (masks_by_multiplying, {}, False),
        (heads_last, {}, "spelled"),
    ],
)
def test_functions(function, options, fused):
    torch.manual_seed(0)
    bias = torch.randn(2, 1, 11, 11).masked_fill(torch.ones(11, 11).triu(1).bool(), torch.finfo(torch.float32).min)
    model = Attends(function, **options).requires_grad_(False)
    _, module = check(from_torch(model, (torch.randn(2, 11, 32), bias)))
    assert ["nan_rows" in a for a in attentions(module)] == ([fused == "spelled"] if fused else [])


def test_nothing_stays_behind():
    before = AttentionInterface.get_interface, dict(AttentionMaskInterface._global_mapping), torch.get_rng_state()
    with pytest.raises(ZeroDivisionError), attention_for_export(Attends(plain)):
        assert AttentionInterface.get_interface is not before[0]
        raise ZeroDivisionError
    assert AttentionInterface.get_interface is before[0]
    assert dict(AttentionMaskInterface._global_mapping) == before[1]
    assert torch.equal(torch.get_rng_state(), before[2])
