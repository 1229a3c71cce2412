"""Tensors that are negated or conjugated lazily have the numbers that PyTorch sees, wherever they come in."""

from __future__ import annotations

import pytest
import torch

import mlirc
from mlirc.errors import MlircError
from mlirc.frontend.weights import write_weights
from mlirc.host.tensors import from_numpy, to_numpy
from mlirc.runtime import load_text
from mlirc.runtime.plan_file import embed
from mlirc.runtime.weights import WeightFile
from support.devices.fake_gpu import FakeDriver
from support.plans.tiny import KERNELS, PTX, N, W, expected, make_plan, randn


def negated(tensor: torch.Tensor) -> torch.Tensor:
    """The same numbers, with the others in memory."""
    found = torch._neg_view(-tensor)
    assert found.is_neg() and torch.equal(found, tensor)
    return found


class Own(torch.nn.Module):
    """A parameter, a buffer and a constant, all lazily negated, of which one decides another constant."""

    def __init__(self, dtype: torch.dtype):
        super().__init__()
        self.weight = torch.nn.Parameter(negated(torch.randn(3, 7, dtype=dtype)))
        self.register_buffer("bias", negated(torch.randn(3, dtype=dtype)))
        self.register_buffer("scale", negated(torch.rand(3, dtype=dtype)), persistent=False)

    def forward(self, x):
        return torch.nn.functional.linear(x, self.weight, self.bias) * self.scale + torch.cumsum(self.scale, 0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_inputs_weights_and_constants(dtype):
    net, x = Own(dtype), torch.randn(2, 7, dtype=dtype)
    with torch.no_grad():
        wanted = net(x)
    for example in (x, negated(x)):
        model = mlirc.compile(net, (example,), device="host")
        for given in (x, negated(x)):
            torch.testing.assert_close(model(given), wanted, rtol=1.6e-2, atol=1e-2)


def test_weights_that_are_given():
    x, w = randn(), torch.from_numpy(W)
    for weight in (w, negated(w)):
        model = load_text(embed(PTX, make_plan()), {"m.w": weight}, driver=FakeDriver(KERNELS))
        assert torch.equal(torch.as_tensor(model(negated(torch.from_numpy(x)))[0]), torch.as_tensor(expected(x)[0]))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.int64, torch.int8])
def test_files_and_arrays(tmp_path, dtype):
    tensor = (torch.randn(3, 5) * 9).to(dtype)
    write_weights(tmp_path / "w.safetensors", {"w": negated(tensor)})
    assert torch.equal(from_numpy(WeightFile(tmp_path / "w.safetensors").array("w").copy()), tensor)
    assert torch.equal(from_numpy(to_numpy(negated(tensor))), tensor)


class Writes(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("count", negated(torch.arange(3.0)))

    def forward(self, x):
        self.count += x
        x += self.count
        return x * 2


def test_states_are_resolved_and_inputs_that_are_written_refused():
    x = torch.ones(3)
    model = mlirc.compile(Writes(), (x.clone(),), device="host")
    assert torch.equal(model(x.clone()), torch.tensor([4.0, 6.0, 8.0]))
    model.state["count"] = negated(x)
    assert torch.equal(model(x.clone()), torch.full((3,), 6.0))
    with pytest.raises(MlircError, match="'x' is changed by the model, and lazily negated: give a resolved one"):
        model(negated(x))


class Complex(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(5, dtype=torch.complex64).conj())
        self.register_buffer("bias", torch._neg_view(torch.randn(5, dtype=torch.complex64).conj()))

    def forward(self, z):
        return z * self.weight + self.bias


def test_complex_tensors():
    net, z = Complex(), torch.randn(N, 5, dtype=torch.complex64)
    model = mlirc.compile(net, (torch._neg_view(z.conj()),), device="host")
    for given in (z, z.conj(), torch._neg_view(z), torch._neg_view(z.conj())):
        torch.testing.assert_close(model(given), net(given).detach(), rtol=1e-4, atol=1e-5)
    parts = mlirc.compile(torch.nn.Softsign(), (z.real,), device="host")
    torch.testing.assert_close(parts(z.conj().imag), torch.nn.functional.softsign(z.conj().imag))
