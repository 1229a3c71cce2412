"""Mixtures of experts with a symbolic number of tokens compute what the router chose, and padding is in no group."""

from __future__ import annotations

import re

import torch
import transformers
from torch import nn

from mlirc.frontend.sizes.at_bound import cut_to, filled_up
from support.randomness import generator
from support.sizes import agree, compiled, runner

TINY = dict(hidden_size=32, intermediate_size=24, num_hidden_layers=1, num_attention_heads=4, num_key_value_heads=2,
            vocab_size=101)  # fmt: skip


def tokens(*shape: int) -> torch.Tensor:
    return torch.from_numpy(generator().integers(0, TINY["vocab_size"], shape))


class Logits(nn.Module):
    """Logits of a model of experts."""

    def __init__(self, experts: int, chosen: int):
        super().__init__()
        config = transformers.OlmoeConfig(**TINY, num_experts=experts, num_experts_per_tok=chosen, pad_token_id=0)
        self.model = transformers.OlmoeForCausalLM(config)
        with torch.no_grad():
            for parameter in self.model.parameters():  # so that tokens choose different experts
                parameter.mul_(4 if parameter.dim() > 1 else 1)

    def forward(self, ids):
        return self.model(ids, use_cache=False).logits


def test_every_number_of_tokens():
    module = Logits(experts=7, chosen=3).eval()
    job = compiled(module, (tokens(2, 5),), {"ids": "b<=2, s<=19"})
    run = runner(job, "kernels")
    text = str(job.modules["kernels"])
    kernels = [k for k in text.split("func.func private")[1:] if "mlirc.gather_matrices" in k]
    assert kernels and all('mlirc.kind = "matmul"' in k for k in kernels), "experts are read where they lie"
    assert not re.search(r"tensor<7x38x\d+xf32>", text), "not every expert sees every token"
    agree(run, module, [(tokens(b, s),) for b, s in ((1, 1), (2, 1), (1, 17), (2, 19))])


def test_the_two_ops_are_what_they_say():
    x = torch.arange(6.0).reshape(3, 2)
    wide = filled_up(x, 5, -1)
    assert torch.equal(wide[:3], x) and bool((wide[3:] == -1).all()) and torch.equal(cut_to(wide, x), x)
    assert filled_up(torch.arange(3), 4, -1).tolist() == [0, 1, 2, -1]
