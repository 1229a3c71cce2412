"""Tensors on a GPU: the kernels, PyTorch's stream, and its random numbers."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from support.devices.gpu_kernel import on_gpu

pytestmark = on_gpu


def test_a_model_on_the_gpu_follows_its_weights_and_writes_its_buffers(compiled, same):
    model = nn.Sequential(nn.Linear(7, 5), nn.BatchNorm1d(5), nn.GELU()).cuda()
    other = nn.Sequential(nn.Linear(7, 5), nn.BatchNorm1d(5), nn.GELU()).cuda()
    other.load_state_dict(model.state_dict())
    call = compiled(model)
    with torch.no_grad():
        for batch in (3, 5, 3):
            x = torch.randn(batch, 7, device="cuda")
            same(call(x), other(x))
            for m in (model, other):
                m[0].weight.mul_(1.5)
    same(dict(model.state_dict()), dict(other.state_dict()))


def test_numbers_on_the_cpu_views_and_other_streams(compiled, same):
    def function(x, n):
        return x.t(), x * n

    call = compiled(function)
    x, n = torch.randn(3, 5, device="cuda"), torch.tensor(2.5)
    with torch.cuda.stream(torch.cuda.Stream()):
        same(call(x, n), function(x, n))
    torch.cuda.synchronize()


def test_dropout_is_that_of_pytorch(compiled):
    x = torch.ones(33, 47, device="cuda")
    call = compiled(lambda x: (F.dropout(x, 0.3, True), F.dropout(x, 0.5, True)))
    torch.manual_seed(5)
    wanted = F.dropout(x, 0.3, True), F.dropout(x, 0.5, True), torch.rand(3, device="cuda")
    torch.manual_seed(5)
    found = *call(x), torch.rand(3, device="cuda")
    for a, b in zip(found, wanted, strict=True):
        assert torch.equal(a, b)


def test_gradients_on_the_gpu(compiled):
    model = nn.Sequential(nn.Linear(7, 5), nn.LayerNorm(5), nn.GELU()).cuda()
    x = torch.randn(3, 7, device="cuda")
    compiled(model, fallback=True)(x).sum().backward()
    found = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    model(x).sum().backward()
    for p, grad in zip(model.parameters(), found, strict=True):
        torch.testing.assert_close(grad, p.grad, rtol=1e-4, atol=1e-4)
