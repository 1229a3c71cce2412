"""Gradients: those of PyTorch, or an error."""

from __future__ import annotations

import copy

import torch
from torch import nn
from torch.nn import functional as F


def trained(module, call, inputs, steps=2):
    """The gradients and the module's state after some steps of gradient descent."""
    found = []
    for _ in range(steps):
        module.zero_grad()
        output = call(*inputs)
        output.square().sum().backward()
        found += [p.grad.clone() for p in module.parameters()]
        with torch.no_grad():
            for p in module.parameters():
                p -= 0.05 * p.grad
    return [output.detach(), *found, *module.state_dict().values()]


def close(found, wanted):
    for a, b in zip(found, wanted, strict=True):
        torch.testing.assert_close(a, b, rtol=2e-3, atol=1e-4)


def test_an_mlp_learns_as_in_pytorch(compiled):
    model = nn.Sequential(nn.Linear(7, 5), nn.LayerNorm(5), nn.GELU(), nn.Linear(5, 3))
    other = copy.deepcopy(model)
    x = torch.randn(3, 7)
    close(trained(model, compiled(model), [x]), trained(other, other, [x]))


def test_convolution_and_batch_norm_in_training(compiled):
    model = nn.Sequential(
        nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(12, 2)
    )
    other = copy.deepcopy(model)
    x = torch.randn(3, 2, 7, 7)
    close(trained(model, compiled(model, fallback=True), [x]), trained(other, other, [x]))


def test_attention_and_the_gradients_of_its_inputs(compiled):
    inputs = [torch.randn(2, 3, 5, 4, requires_grad=True) for _ in range(3)]
    others = [x.detach().clone().requires_grad_() for x in inputs]

    def function(q, k, v):
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)

    for call, tensors in ((compiled(function), inputs), (function, others)):
        call(*tensors).sin().sum().backward()
    close([x.grad for x in inputs], [x.grad for x in others])


def test_gradients_through_a_write_into_a_buffer(compiled):
    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(4))
            self.register_buffer("seen", torch.zeros(4))

        def forward(self, x):
            self.seen.add_(x.detach().sum(0))
            return x * self.weight + self.seen

    model, other = Scaled(), Scaled()
    x = torch.randn(3, 4)
    close(trained(model, compiled(model), [x]), trained(other, other, [x]))


def test_a_backward_that_cannot_be_compiled_runs_in_eager(compiled, caplog):
    def function(x):
        return torch.special.bessel_j1(x.detach()) + x.sin()

    x = torch.randn(5, requires_grad=True)
    compiled(function, fallback=True)(x).sum().backward()
    torch.testing.assert_close(x.grad, x.detach().cos())
    assert "bessel_j1" in caplog.text and "forward runs in eager" in caplog.text


def test_dropout_in_training_drops_what_it_lets_no_gradient_through(compiled):
    x = torch.ones(40, 11, requires_grad=True)
    y = compiled(lambda x: F.dropout(x, 0.5, True))(x)
    y.sum().backward()
    assert torch.equal(x.grad, y.detach()) and set(y.unique().tolist()) == {0.0, 2.0}


def test_a_second_order_gradient_is_no_wrong_one(compiled):
    x = torch.randn(3, requires_grad=True)
    (first,) = torch.autograd.grad(compiled(lambda x: (x * x * x).sum())(x), x, create_graph=True)
    torch.testing.assert_close(first, 3 * x.detach() ** 2)
    try:
        (second,) = torch.autograd.grad(first.sum(), x)
    except RuntimeError as e:
        assert "aot_autograd" in str(e) or "double backward" in str(e)
    else:
        torch.testing.assert_close(second, 6 * x.detach())


def test_gradients_that_the_graph_asks_for_itself_are_not_lost(compiled):
    layer = nn.Linear(3, 2)

    def function(x):
        with torch.enable_grad():
            return layer(x)

    with torch.no_grad():
        assert compiled(function, fallback=True)(torch.randn(4, 3)).requires_grad


def test_results_and_gradients_have_the_strides_of_pytorch(compiled):
    def function(a, b, c, d, e):
        image = F.conv2d(e, torch.ones(2, 2, 1, 1)).relu()
        return (a * 2)[:, ::2], b.sum(0), c.t() * 2, d.expand(3, 4, 6) * 1.5, image, F.logsigmoid(a).mT

    def inputs():
        generator = torch.Generator().manual_seed(0)
        xs = [torch.randn(4, 6, generator=generator) for _ in range(4)]
        xs[2] = xs[2].t().contiguous().t()
        image = torch.randn(2, 2, 3, 5, generator=generator).to(memory_format=torch.channels_last)
        return [x.requires_grad_() for x in (*xs, image)]

    found = []
    for call in (compiled(function), function):
        xs = inputs()
        results = call(*xs)
        found.append([*results, *torch.autograd.grad(sum((r * r).sum() for r in results), xs)])
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs, check_stride=True)
