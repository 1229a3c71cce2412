"""Modules and functions without gradients, beside PyTorch."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F


def test_an_mlp_of_any_batch_follows_its_weights(compiled, same):
    model = nn.Sequential(nn.Linear(7, 5), nn.GELU(), nn.Linear(5, 3))
    call = compiled(model)
    with torch.no_grad():
        for batch in (1, 2, 3, 7, 2):
            x = torch.randn(batch, 7)
            same(call(x), model(x))
        model[0].weight.mul_(2)
        same(call(x), model(x))
        model.load_state_dict({name: value + 1 for name, value in model.state_dict().items()})
        same(call(x), model(x))
        model[2].bias = nn.Parameter(torch.randn(3))
        same(call(x), model(x))


def test_two_modules_of_one_class_keep_their_own_weights(compiled, same):
    layers = [nn.Linear(5, 5) for _ in range(2)]
    calls = [compiled(layer) for layer in layers]
    x = torch.randn(3, 5)
    with torch.no_grad():
        for call, layer in zip(calls, layers, strict=True):
            same(call(x), layer(x))


@pytest.mark.parametrize("training", [False, True])
def test_batch_norm_and_its_statistics(training, compiled, same):
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.AdaptiveAvgPool2d(1)).train(training)
    wanted = copy.deepcopy(model)
    call = compiled(model)
    with torch.no_grad():
        for _ in range(2):
            x = torch.randn(2, 3, 9, 7)
            torch.testing.assert_close(call(x), wanted(x), rtol=1e-4, atol=1e-5)
    same(dict(model.state_dict()), dict(wanted.state_dict()))


def test_attention_is_one_kernel(compiled, same, monkeypatch):
    from mlirc.driver.compilation import Compilation

    texts = []
    lower = Compilation.lower
    monkeypatch.setattr(
        Compilation, "lower", lambda self, level: (lower(self, level), texts.append(self.text("linalg")))[0]
    )

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.qkv, self.out = nn.Linear(12, 36), nn.Linear(12, 12)

        def forward(self, x, *, causal: bool):
            q, k, v = (t.unflatten(-1, (3, 4)).transpose(1, 2) for t in self.qkv(x).chunk(3, -1))
            y = F.scaled_dot_product_attention(q, k, v, is_causal=causal)
            return {"y": x + self.out(y.transpose(1, 2).flatten(2))}

    block = Block()
    with torch.no_grad():
        x = torch.randn(2, 5, 12)
        same(compiled(block, fullgraph=True)(x, causal=True), block(x, causal=True))
    assert "mlirc.attention" in texts[0]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_short_floats(dtype, compiled, same):
    model = nn.Sequential(nn.Linear(7, 5), nn.SiLU(), nn.LayerNorm(5)).to(dtype)
    x = torch.randn(3, 7, dtype=dtype)
    with torch.no_grad():
        same(compiled(model)(x), model(x), rtol=2e-2, atol=2e-2)


def test_integers_and_truth(compiled, same):
    table = nn.Embedding(11, 4)

    def function(ids, mask):
        return table(ids) * mask[..., None], ids // 3 + ids % 5, (ids > 4) & mask

    ids, mask = torch.randint(0, 11, (3, 5)), torch.rand(3, 5) < 0.5
    with torch.no_grad():
        same(compiled(function, fullgraph=True)(ids, mask), function(ids, mask))


def test_autocast_around_and_inside(compiled, same):
    layer = nn.Linear(7, 5)

    def inside(x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = layer(x)
        return y, y.float() * 2

    x = torch.randn(3, 7)
    with torch.no_grad():
        same(compiled(inside)(x), inside(x), rtol=2e-2, atol=2e-2)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            same(compiled(layer)(x), layer(x), rtol=2e-2, atol=2e-2)


def test_inference_mode_and_gradients_turned_off_inside(compiled, same):
    layer = nn.Linear(4, 3)
    x = torch.randn(2, 4)
    with torch.inference_mode():
        same(compiled(layer)(x), layer(x))

    def function(x):
        with torch.no_grad():
            y = x * 2
        return y + 1

    same(compiled(function, fullgraph=True)(x), function(x))


def test_dropout_follows_the_seed_of_pytorch(compiled):
    call = compiled(lambda x: F.dropout(x, 0.5, True))
    x = torch.ones(50, 41)
    torch.manual_seed(3)
    first, second = call(x), call(x)
    torch.manual_seed(3)
    assert torch.equal(call(x), first) and not torch.equal(first, second)
    assert set(first.unique().tolist()) == {0.0, 2.0} and 800 < int((first == 2).sum()) < 1250


def test_graph_breaks_and_branches_on_values(compiled, same, capsys):
    def function(x):
        y = x * 2
        y = y + 1 if y.sum() > 0 else y - 1
        print("between")
        return y.relu()

    call = compiled(function)
    for sign in (1, -1):
        x = torch.rand(3) * sign
        same(call(x), function(x))
    assert capsys.readouterr().out.count("between") == 4


def test_sizes_of_every_kind_that_vary(compiled, same):
    def function(x, n: int):
        return x.reshape(-1, 2) + n, x.shape[0] * n

    call = compiled(function, dynamic=True)
    for rows, n in ((2, 3), (3, 5), (7, 3), (3, 5)):
        x = torch.randn(rows, 4)
        same(call(x, n), function(x, n))
