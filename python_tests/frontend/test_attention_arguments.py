"""What attention functions of transformers compute, found out by trying them."""

from __future__ import annotations

import pytest
import torch
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.models.gemma2.modeling_gemma2 import eager_attention_forward

from mlirc.frontend.transformers_attention import attention_arguments


class Layer(torch.nn.Module):
    """What the functions ask of a layer."""

    num_key_value_groups, is_causal = 2, True


def without_softcap(module, query, key, value, attention_mask, dropout=0.0, scaling=None, softcap=None, **kwargs):
    """Is given one, and takes none, as `sdpa` of transformers 5.17."""
    return sdpa_attention_forward(module, query, key, value, attention_mask, dropout=dropout, scaling=scaling)


def half_of_it(module, query, key, value, attention_mask, scaling=None, softcap=None, **kwargs):
    """Takes another softcap than it is given."""
    return eager_attention_forward(module, query, key, value, attention_mask, scaling=scaling, softcap=softcap / 2)


@pytest.mark.parametrize(
    "function, softcap, found",
    [
        (eager_attention_forward, 3.0, 3.0),
        (eager_attention_forward, None, 0.0),
        (without_softcap, 3.0, 0.0),
        (without_softcap, None, 0.0),
        (half_of_it, 3.0, None),
    ],
)
def test_a_softcap_is_what_the_function_takes(function, softcap, found):
    q, k, v = torch.randn(3, 4, 1, 16), torch.randn(3, 2, 9, 16), torch.randn(3, 2, 9, 16)
    mask = torch.zeros(3, 1, 1, 9) if function is not without_softcap else torch.ones(3, 1, 1, 9, dtype=torch.bool)
    known = attention_arguments(function, Layer().eval(), q, k, v, mask, scaling=0.5, softcap=softcap)
    assert known == (None if found is None else (0.5, found, None))
