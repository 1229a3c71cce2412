"""Random numbers: the generator, the distributions, and which ops are refused. test_models.py has compiled
models, and test_on_gpu.py compares with PyTorch's own numbers."""

from __future__ import annotations

import math

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional

from mlirc.errors import MlircError
from mlirc.frontend import from_torch, import_torch
from mlirc.frontend.decompositions import decomposition_table
from mlirc.frontend.random.distributions import DISTRIBUTIONS, Generator
from mlirc.frontend.random.graph import draw_numbers
from mlirc.frontend.random.layout import dropout, strided
from mlirc.frontend.random.philox import philox
from mlirc.runtime.random_state import DEFAULT_SEED, RandomState

aten = torch.ops.aten

# Random123's known answers for philox4x32 with 10 rounds: counter, key, result.
KNOWN = [
    ("00000000 00000000 00000000 00000000", "00000000 00000000", "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    ("ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff", "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0", "d16cfe09 94fdcceb 5001e420 24126ea1"),
]


def words(text):
    return [int(word, 16) for word in text.split()]


@pytest.mark.parametrize(("counter", "key", "result"), KNOWN)
def test_philox_gives_the_known_answers(counter, key, result):
    low, high = words(key)
    found = philox([torch.tensor(word) for word in words(counter)], low | high << 32)
    assert [int(word) for word in found] == words(result)


def drawn(op, *args, seed=0, **kwargs):
    """What PyTorch's op draws first after a seed."""
    return DISTRIBUTIONS[op](Generator(torch.tensor(seed), torch.tensor), *args, **kwargs)


def test_the_first_numbers_are_those_that_pytorch_prints_on_cuda_for_seed_0():
    rand, randn = drawn(aten.rand.default, [5]), drawn(aten.randn.default, [5])
    assert [round(x, 4) for x in rand.tolist()] == [0.3990, 0.5167, 0.0249, 0.9401, 0.9459]
    assert [round(x, 4) for x in randn.tolist()] == [-0.9247, -0.4253, -2.6438, 0.1452, -0.1209]


def test_elements_beyond_the_threads_take_the_other_words_of_their_threads():
    threads = strided(10**7, 4).threads
    assert threads == 132 * 2048 and strided(1000, 4).threads == 1024
    many = drawn(aten.rand.default, [5 * threads]).reshape(5, threads)
    generator = Generator(torch.tensor(0), torch.tensor)
    first = generator.draw("word", [threads])
    assert torch.equal(many[0], first.float() * 2.0**-32 + 2.0**-33)
    next_call = Generator(torch.tensor(0), lambda _: torch.tensor(4)).draw("uniform", [threads])
    assert torch.equal(many[4], next_call)
    assert not any(torch.equal(many[0], row) for row in many[1:])


@pytest.mark.parametrize(
    ("count", "itemsize", "per"), [(4096, 4, 4), (4094, 4, 2), (4095, 4, 4), (4096, 2, 8), (4096, 8, 2)]
)
def test_dropout_goes_by_vectors_of_16_bytes_where_they_fit(count, itemsize, per):
    found = dropout(count, itemsize, dense=True)
    assert (found.per, found.vector) == (per, count % 2 == 0)
    assert not dropout(count, itemsize, dense=False).vector


N = 200_000
# (name, numbers, mean, standard deviation): of a distribution with these, the mean of N numbers is within 5 errors.
MOMENTS = [
    ("rand", lambda x: drawn(aten.rand.default, [N]), 0.5, 12**-0.5),
    ("rand f64", lambda x: drawn(aten.rand.default, [N], dtype=torch.float64), 0.5, 12**-0.5),
    ("uniform", lambda x: drawn(aten.uniform.default, x, -3, 5), 1, 8 * 12**-0.5),
    ("randn", lambda x: drawn(aten.randn.default, [N]), 0, 1),
    ("randn f64", lambda x: drawn(aten.randn.default, [N], dtype=torch.float64), 0, 1),
    ("normal", lambda x: drawn(aten.normal.Tensor_Tensor, x + 2, x + 3), 2, 3),
    ("exponential", lambda x: drawn(aten.exponential.default, x, 4.0), 0.25, 0.25),
    ("log_normal", lambda x: drawn(aten.log_normal.default, x, 0, 0.5), math.exp(0.125), 0.6039),
    ("geometric", lambda x: drawn(aten.geometric.default, x, 0.25), 4, 12**0.5),
    ("bernoulli", lambda x: drawn(aten.bernoulli.p, x, 0.3), 0.3, 0.21**0.5),
    ("bernoulli tensor", lambda x: drawn(aten.bernoulli.default, x + 0.7), 0.7, 0.21**0.5),
    ("randint", lambda x: drawn(aten.randint.low, -3, 8, [N]), 2, 10**0.5),
    ("randint wide", lambda x: drawn(aten.randint.default, 1 << 60, [N]) / 2**60, 0.5, 12**-0.5),
    ("random", lambda x: drawn(aten.random.default, x.to(torch.int8)), 63.5, 36.95),
    ("dropout", lambda x: drawn(aten.native_dropout.default, x + 1, 0.2, True)[0], 1, 0.5),
    ("multinomial", lambda x: drawn(aten.multinomial.default, torch.tensor([1.0, 3.0]), N, True), 0.75, 0.433),
    ("one sample", lambda x: drawn(aten.multinomial.default, torch.tensor([[1.0, 3.0]]).expand(N, 2), 1), 0.75, 0.433),
]


@pytest.mark.parametrize(("numbers", "mean", "deviation"), [m[1:] for m in MOMENTS], ids=[m[0] for m in MOMENTS])
def test_distributions_have_their_mean_and_deviation(numbers, mean, deviation):
    found = numbers(torch.zeros(N)).double()
    assert abs(found.mean().item() - mean) < 5 * deviation * N**-0.5
    assert abs(found.std().item() - deviation) < 0.03 * deviation


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_normal_numbers_follow_the_normal_distribution(dtype):
    """Kolmogorov and Smirnov's distance: 1.95 / sqrt(N) is exceeded with a probability of 0.1 %."""
    found = drawn(aten.randn.default, [N], dtype=dtype).double().sort().values
    wanted = 0.5 * (1 + torch.erf(found * 0.5**0.5))
    assert (wanted - (torch.arange(N) + 0.5) / N).abs().max().item() < 1.95 * N**-0.5


@pytest.mark.parametrize("n", [0, 1, 2, 3, 17, 40_000])
def test_permutations(n):
    found = [drawn(aten.randperm.default, n, seed=s).tolist() for s in range(6 if n > 17 else 60)]
    assert all(sorted(p) == list(range(n)) for p in found)
    assert len(set(map(tuple, found))) == min(len(found), math.factorial(min(n, 17)))


def test_samples_without_replacement_are_different():
    found = drawn(aten.multinomial.default, torch.rand(50, 9, generator=torch.Generator().manual_seed(0)), 5)
    assert all(len(set(row)) == 5 for row in found.tolist())


def test_uniform_numbers_reach_the_lower_bound_and_not_the_upper():
    found = drawn(aten.rand.default, [1 << 20], dtype=torch.bfloat16)
    assert found.min() == 0 and found.max() < 1


def test_the_state_moves_with_every_call_and_starts_over_with_a_seed():
    state = RandomState([0, 8, 12])
    first, second = state.advance(), state.advance()
    assert first[:, 0].tolist() == [DEFAULT_SEED, 0, 8] and second[:, 0].tolist() == [DEFAULT_SEED, 12, 20]
    state.manual_seed(-1)
    assert state.state()[:, 0].tolist() == [-1, 0, 8]
    for wrong in (1 << 64, 1.5, "1", True):
        with pytest.raises(MlircError, match="is no seed: give an integer of 64 bits"):
            state.manual_seed(wrong)


class Calls(torch.nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (torch.poisson, "numbers of the poisson distribution in module 'model' cannot be drawn"),
        (lambda x: torch.distributions.Gamma(x, 1.0).sample(), "numbers of the gamma distribution"),
        (lambda x: torch.rand(3, generator=torch.Generator()), "rand with a torch.Generator: .*manual_seed"),
        (lambda x: x.clone().uniform_(generator=torch.Generator()), "uniform_ with a torch.Generator: "),
        (lambda x: x + torch.manual_seed(3).initial_seed() + torch.rand(3), "the model seeds PyTorch's generator"),
        (lambda x: torch.randn(3, dtype=torch.complex64).real, "random numbers of complex64 are not supported"),
    ],
)
def test_what_cannot_be_drawn_is_refused_in_words(function, message):
    with pytest.raises(MlircError, match=message):
        import_torch(from_torch(Calls(function), (torch.ones(3),)))


def test_distributions_are_checked_again_after_an_export():
    import_torch(from_torch(Calls(lambda x: torch.distributions.Normal(x, 1.0).sample()), (torch.ones(3),)))
    with pytest.raises(ValueError, match="scale"):
        torch.distributions.Normal(0.0, -1.0)


def test_numbers_of_a_graph_on_a_gpu_are_drawn_there():
    """A graph of `torch.compile` has its model's device; no GPU is needed to replace its random ops."""

    def model(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return functional.dropout(x, 0.3, True), torch.rand(3, device=x.device), torch.bernoulli(x)

    with FakeTensorMode():
        graph = make_fx(model)(torch.empty(33, 47, device="cuda:0")).graph
    draws = draw_numbers(graph, decomposition_table(), "model")
    assert draws is not None and len(draws.offsets) == 4
    values = [value for node in graph.nodes if isinstance(value := node.meta.get("val"), torch.Tensor)]
    assert {str(value.device) for value in values} == {"cuda:0"}
