"""On the GPU: a compiled model draws the numbers that PyTorch draws there after `torch.manual_seed`."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import mlirc
from support.devices.gpu_kernel import on_gpu

pytestmark = on_gpu
SIZES = [1, 7, 1023, 4096, 1 << 20, 3_000_001]


def _filled(x, dtype=None):
    return torch.empty_like(x, dtype=dtype)


# To the last bit. Each takes a float32 tensor x.
EXACT = {
    "rand": lambda x: torch.rand(x.shape, device=x.device),
    "rand f64": lambda x: torch.rand(x.shape, device=x.device, dtype=torch.float64),
    "rand bf16": lambda x: torch.rand(x.shape, device=x.device, dtype=torch.bfloat16),
    "rand_like": lambda x: torch.rand_like(x),
    "bernoulli p": lambda x: torch.bernoulli(x, 0.3),
    "bernoulli tensor": lambda x: torch.bernoulli(torch.sigmoid(x)),
    "dropout": lambda x: F.dropout(x, 0.3, True),
    "dropout f64": lambda x: F.dropout(x.double(), 0.3, True),
    "dropout bf16": lambda x: F.dropout(x.bfloat16(), 0.6, True),
    "dropout2d": lambda x: F.dropout2d(x.reshape(1, -1, 1, 1), 0.5, True),
    "randint": lambda x: torch.randint(-5, 1000, x.shape, device=x.device),
    "randint wide": lambda x: torch.randint(0, 1 << 40, x.shape, device=x.device),
    "random_ i32": lambda x: _filled(x, torch.int32).random_(),
    "random_ i64": lambda x: _filled(x, torch.int64).random_(),
}
SORTED = {"randperm": lambda x: torch.randperm(x.numel(), device=x.device)}
# To about single precision: here a product and a sum are one operation, or PyTorch takes the GPU's fast functions.
CLOSE = {
    "uniform_": lambda x: _filled(x).uniform_(-2, 3),
    "randn": lambda x: torch.randn(x.shape, device=x.device),
    "randn f64": lambda x: torch.randn(x.shape, device=x.device, dtype=torch.float64),
    "normal_": lambda x: _filled(x).normal_(1, 3),
    "normal tensors": lambda x: torch.normal(x, x.abs()),
    "exponential_": lambda x: _filled(x).exponential_(2.0),
    "log_normal_": lambda x: _filled(x).log_normal_(0, 0.5),
}


class Several(torch.nn.Module):
    """Draws by all of these functions, one after the other."""

    def __init__(self, functions):
        super().__init__()
        self.functions = list(functions)

    def forward(self, x):
        return tuple(f(x) for f in self.functions)


@pytest.mark.parametrize("size", SIZES)
def test_numbers_are_those_of_pytorch_call_after_call(size):
    exact = EXACT | SORTED if size <= 4096 else EXACT
    drawn = exact | CLOSE
    several = Several(drawn.values())
    x = torch.randn(size, generator=torch.Generator().manual_seed(1))
    model = mlirc.compile(several, (x,))
    x = x.cuda()
    wrong = []
    for seed in (0, 12345678901234567):
        torch.manual_seed(seed)
        model.manual_seed(seed)
        for call in range(2):
            for name, got, want in zip(drawn, model(x), several(x), strict=True):
                difference = (got.double() - want.double()).abs()
                equal = torch.equal(got, want) if name in exact else bool((difference <= 2e-5 * (1 + want.abs())).all())
                if not equal:
                    wrong.append(
                        f"{name}, size {size}, seed {seed}, call {call}: {int((difference > 0).sum())} differ, by up to "
                        f"{difference.max().item():.3g}; first {got.flatten()[:4].tolist()} for {want.flatten()[:4].tolist()}"
                    )
    assert not wrong, "\n".join(wrong)


def test_dropout_follows_memory_and_attention_drops_its_weights():
    class Net(torch.nn.Module):
        def forward(self, x):
            y = F.dropout(x.transpose(1, 2), 0.4, True)
            scores = torch.softmax(y @ y.transpose(-1, -2), -1)
            return y, F.dropout(scores, 0.1, True) @ y, torch.rand_like(x.transpose(0, 2))

    x = torch.randn(3, 33, 8, generator=torch.Generator().manual_seed(1))
    net = Net()
    model = mlirc.compile(net, (x,))
    torch.manual_seed(5)
    model.manual_seed(5)
    for got, want in zip(model(x.cuda()), net(x.cuda()), strict=True):
        assert torch.allclose(got, want, atol=1e-5), (got.flatten()[:8], want.flatten()[:8])


def test_a_model_without_a_graph_and_on_arrays_draws_the_same():
    class Net(torch.nn.Module):
        def forward(self, x):
            return x + torch.rand(1000)

    x = torch.zeros(1000)
    with_graph = mlirc.compile(Net(), (x,))
    without = mlirc.compile(Net(), (x,), graph=False)
    for model in (with_graph, without):
        model.manual_seed(3)
    calls = [(with_graph(x.cuda()).cpu(), torch.from_numpy(without(x.numpy()))) for _ in range(3)]
    assert all(torch.equal(a, b) for a, b in calls)
    assert not torch.equal(calls[0][0], calls[1][0])
