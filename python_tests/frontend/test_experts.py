"""Mixtures of experts, attention sinks and dimensions counted from the end: at `linalg` they equal PyTorch."""

from __future__ import annotations

import json

import pytest
import torch

from mlirc.frontend import from_torch, open_model
from mlirc.frontend.experts import experts_forward, most_groups, rows_of_group, sort_by_expert
from support.models.small import check
from support.randomness import generator

_MOE = dict(
    hidden_size=32, intermediate_size=44, moe_intermediate_size=20, num_hidden_layers=2, num_attention_heads=4,
    num_key_value_heads=2, vocab_size=97, max_position_embeddings=64, head_dim=8, num_experts=7, num_local_experts=7,
    num_experts_per_tok=2, n_routed_experts=7, pad_token_id=0, sliding_window=5,
)  # fmt: skip


@pytest.mark.parametrize(
    "name, architecture, tokens, changes",
    [
        ("gpt_oss", "GptOssForCausalLM", 11, {}),  # sinks, biases, transposed and interleaved weights
        ("granitemoe", "GraniteMoeForCausalLM", 3, {}),  # returns a cache unless its config says no
    ],
)
def test_mixtures_of_experts(tmp_path, name, architecture, tokens, changes):
    config = dict(architectures=[architecture], model_type=name, **(_MOE | changes))
    (tmp_path / "config.json").write_text(json.dumps(config))
    check(open_model(str(tmp_path), random_weights=3, inputs=[f"input_ids=i64[1,{tokens}]"]))


class _Experts(torch.nn.Module):
    """What `experts_forward` asks of a module, with weights of its own."""

    def __init__(self, count: int, transposed: bool, bias: bool, gate: bool, norm: bool) -> None:
        super().__init__()
        self.num_experts, self.is_transposed, self.has_bias, self.has_gate = count, transposed, bias, gate
        self.has_post_expert_norm, self._is_expert_parallel, self.act_fn = norm, False, torch.tanh
        self.up = "gate_up_proj" if gate else "up_proj"
        self.wide = 6 * (2 if gate else 1)
        for name, inner, outer in ((self.up, 5, self.wide), ("down_proj", 6, 5)):
            shape = (count, inner, outer) if transposed else (count, outer, inner)
            self.register_parameter(name, torch.nn.Parameter(torch.randn(shape)))
            self.register_parameter(f"{name}_bias", torch.nn.Parameter(torch.randn(count, outer)))
        self.post_expert_norm = torch.nn.LayerNorm(5)

    def _apply_gate(self, x: torch.Tensor) -> torch.Tensor:
        gate, up = x.chunk(2, -1)
        return torch.tanh(gate) * up

    def forward(self, x: torch.Tensor, index: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        """One token and one expert after the other."""
        out = torch.zeros_like(x)
        for t in range(x.shape[0]):
            for k in range(index.shape[1]):
                e = int(index[t, k])
                y = self._linear(x[t], self.up, e)
                y = self._linear(self._apply_gate(y) if self.has_gate else torch.tanh(y), "down_proj", e)
                out[t] += weights[t, k] * (self.post_expert_norm(y) if self.has_post_expert_norm else y)
        return out

    def _linear(self, x: torch.Tensor, name: str, e: int) -> torch.Tensor:
        weight = getattr(self, name)[e]
        out = x @ weight if self.is_transposed else weight @ x
        return out + getattr(self, f"{name}_bias")[e] if self.has_bias else out


@pytest.mark.parametrize("tokens, count", [(1, 13), (9, 3), (300, 40)])
@pytest.mark.parametrize("transposed, bias, gate, norm", [(0, 0, 1, 0), (1, 1, 1, 0), (0, 1, 0, 1), (1, 0, 1, 1)])
def test_experts_equal_one_token_after_the_other(tokens, count, transposed, bias, gate, norm):
    torch.manual_seed(tokens)
    module = _Experts(count, bool(transposed), bool(bias), bool(gate), bool(norm))
    x, weights = torch.randn(tokens, 5), torch.rand(tokens, 2)
    index = torch.stack([torch.randperm(count)[:2] for _ in range(tokens)])
    torch.testing.assert_close(experts_forward(module, x, index, weights), module(x, index, weights))


_CHOICES = {
    "random": lambda g, pairs, experts: g.integers(0, experts, pairs),
    "one": lambda g, pairs, experts: [experts - 1] * pairs,
    "all but the middle": lambda g, pairs, experts: [experts - 1 if i % 3 else 0 for i in range(pairs)],
    "in turn": lambda g, pairs, experts: [i % experts for i in range(pairs)],
}


@pytest.mark.parametrize("kind", _CHOICES)
@pytest.mark.parametrize(
    "pairs, experts, rows", [(1, 1, 8), (14, 8, 8), (67, 3, 16), (256, 64, 8), (600, 7, 64), (771, 128, 8)]
)
def test_pairs_are_sorted_into_groups_of_one_expert(kind, pairs, experts, rows):
    chosen = [int(e) for e in _CHOICES[kind](generator(), pairs, experts)]
    places, table = (x.tolist() for x in sort_by_expert(torch.tensor(chosen), experts, rows))
    assert len(set(places)) == pairs and len(table) == most_groups(pairs, experts, rows)
    assert [table[p // rows] for p in places] == chosen
    used = [e for e in table if e >= 0]
    assert table == used + [-1] * (len(table) - len(used)) and used == sorted(used)
    assert len(used) == sum(-(-chosen.count(e) // rows) for e in set(chosen))
    for e in set(chosen):  # in their order, one behind the other
        own = [p for p, c in zip(places, chosen, strict=True) if c == e]
        assert own == list(range(own[0], own[0] + len(own))) and own[0] % rows == 0


def test_no_choice_needs_more_groups():
    for pairs, experts, rows in ((1, 1, 8), (9, 8, 8), (100, 7, 16), (33, 64, 8)):
        chosen = min(pairs, experts)
        most = torch.tensor([*range(chosen), *[0] * (pairs - chosen)])
        _, table = sort_by_expert(most, experts, rows)
        assert (table >= 0).all() and len(table) == most_groups(pairs, experts, rows)


def test_rows_of_a_group_are_about_those_of_a_mean_expert():
    assert [rows_of_group(pairs, 64) for pairs in (2, 256, 257, 1536, 4096, 16384)] == [8, 8, 16, 32, 64, 128]


def test_an_expert_that_was_not_chosen_may_overflow():
    torch.manual_seed(0)
    module = _Experts(3, False, False, False, False)
    module.act_fn = torch.nn.Identity()
    with torch.no_grad():
        module.up_proj[2] = float("inf")
    index = torch.tensor([[0, 1]]).expand(4, 2)
    assert experts_forward(module, torch.randn(4, 5), index, torch.rand(4, 2)).isfinite().all()


class _Dims(torch.nn.Module):
    def forward(self, x, index):
        return (
            x.scatter(-1, index, 2.0),
            x.scatter(-2, index, x[:1, :1, :3] * 2),
            torch.cat([torch.zeros(0), x.reshape(-1)], -1),  # an empty operand of another rank
            torch.stack([x, x], -1).sum(-1),
            x.unsqueeze(-1).squeeze(-1).transpose(-1, -3).flip(-1, 0),
            x.topk(3, -2, sorted=False)[0].sum(-2),
            x.amax((-1, -3)),
        )


def test_dimensions_counted_from_the_end():
    torch.manual_seed(5)
    x = torch.randn(3, 4, 5)
    check(from_torch(_Dims(), (x, torch.randint(0, 4, (1, 1, 3))), {}, "dims"))
