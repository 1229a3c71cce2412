"""Compiled models that draw random numbers: every level beside PyTorch with the same numbers, and what comes of a model
from call to call."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import mlirc
from mlirc.check import check_torch
from mlirc.driver.compilation import Compilation
from mlirc.errors import MlircError
from mlirc.frontend.random import layout
from mlirc.runtime import load_text
from mlirc.runtime.plan import CopyStep, Plan, Ref, TensorSpec
from mlirc.runtime.plan_check import check_plan
from mlirc.runtime.plan_file import embed, extract
from mlirc.runtime.plan_json import to_json
from mlirc.targets import get_target
from mlirc.tools import mlirc as compiler
from mlirc.tools import mlirc_opt, mlirc_run
from support.devices.fake_gpu import FakeDriver
from support.plans.tiny import ptx_for

LEVELS = ["linalg", "kernels", "tiles", "gpu"]


class Several(torch.nn.Module):
    def __init__(self, functions):
        super().__init__()
        self.functions = list(functions)

    def forward(self, x):
        return tuple(f(x) for f in self.functions)


def empty(x, dtype=None):
    return torch.empty_like(x, dtype=dtype)


DRAWS = {
    "rand": lambda x: torch.rand(3, 5) + x.sum(),
    "rand_like": lambda x: torch.rand_like(x) * x,
    "rand f64": lambda x: torch.rand(7, dtype=torch.float64),
    "rand bf16": lambda x: torch.rand(7, dtype=torch.bfloat16),
    "randn": lambda x: torch.randn(x.shape) + x,
    "randn f64": lambda x: torch.randn_like(x, dtype=torch.float64),
    "randint": lambda x: torch.randint(-4, 9, (2, 3)),
    "randint wide": lambda x: torch.randint(0, 1 << 62, (5,)),
    "randint_like": lambda x: torch.randint_like(x, 10),
    "bernoulli": lambda x: torch.bernoulli(torch.sigmoid(x)),
    "bernoulli p": lambda x: torch.bernoulli(x, 0.4),
    "bernoulli_": lambda x: empty(x).bernoulli_(0.4),
    "normal": lambda x: torch.normal(x, x.exp()),
    "normal floats": lambda x: torch.normal(1.0, 2.0, (4,)),
    "normal_": lambda x: empty(x).normal_(1, 3),
    "uniform_": lambda x: empty(x).uniform_(-1, 1),
    "exponential_": lambda x: empty(x).exponential_(2.0),
    "geometric_": lambda x: empty(x).geometric_(0.3),
    "cauchy_": lambda x: empty(x).cauchy_(),
    "log_normal_": lambda x: empty(x).log_normal_(0, 0.5),
    "random_": lambda x: empty(x, torch.int32).random_(),
    "random_ from": lambda x: empty(x).random_(3, 9),
    "randperm": lambda x: torch.randperm(23),
    "multinomial": lambda x: torch.multinomial(torch.softmax(x.reshape(-1, x.shape[-1]), -1), 1),
    "multinomial several": lambda x: torch.multinomial(torch.softmax(x.reshape(-1), 0), 3),
    "multinomial again": lambda x: torch.multinomial(torch.softmax(x.reshape(-1), 0), 9, replacement=True),
    "gumbel": lambda x: F.gumbel_softmax(x),
    "distribution": lambda x: torch.distributions.Categorical(logits=x).sample(),
    "dropout": lambda x: F.dropout(x, 0.3),
    "dropout bf16": lambda x: F.dropout(x.bfloat16(), 0.6),
    "dropout of all": lambda x: F.dropout(x, 1.0),
    "dropout transposed": lambda x: F.dropout(x.transpose(0, -1), 0.3) + 1,
    "dropout1d": lambda x: F.dropout1d(x[None].expand(2, -1, -1), 0.5),
    "alpha_dropout": lambda x: F.alpha_dropout(x, 0.4, True),
    "feature_alpha_dropout": lambda x: F.feature_alpha_dropout(x[None], 0.4, True),
    "rrelu": lambda x: F.rrelu(x, training=True),
    "no generator": lambda x: torch.ops.aten.randn.generator([3, 5], generator=None),
    "attention": lambda x: F.scaled_dot_product_attention(x[None], x[None], x[None], dropout_p=0.4, is_causal=True),
}


@pytest.mark.parametrize("shape", [(3, 5)])
def test_every_op_draws_the_same_at_all_levels(shape):
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    functions = [f for name, f in DRAWS.items() if x.numel() > 3 or name != "multinomial several"]
    result = check_torch(Several(functions), (x,), levels=["linalg", "gpu"], kinds=["plain"])
    assert result.ok, result.reason()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_attention_drops_weights_of_the_dtype_that_pytorch_computes_in(dtype):
    """Which numbers dropout draws depends on the size of an element: 16-bit attention has f32 weights."""
    generator = torch.Generator().manual_seed(3)
    q, k, v, bias = (torch.randn(s, generator=generator).to(dtype) for s in [(4, 3, 8), (4, 8, 8), (4, 8, 5), (3, 8)])

    class Both(torch.nn.Module):
        def forward(self, q, k, v, bias):
            causal = F.scaled_dot_product_attention(q, k, v, dropout_p=0.4, is_causal=True)
            return causal, F.scaled_dot_product_attention(q, k, v, bias, dropout_p=0.4)

    result = check_torch(Both(), (q, k, v, bias), levels=["tiles"], kinds=["plain"])
    assert result.ok, result.reason()


def test_threads_that_draw_for_many_elements(monkeypatch):
    """As on a GPU of one multiprocessor, whose threads are few."""
    monkeypatch.setattr(layout, "MULTIPROCESSORS", 1)
    names = ["rand_like", "randn", "randn f64", "dropout", "dropout bf16", "bernoulli", "random_"]
    functions = [*(DRAWS[n] for n in names), lambda x: F.dropout(x[1:], 0.3), lambda x: torch.rand_like(x.double())]
    result = check_torch(
        Several(functions), (torch.ones(2 * 4 * 2048 + 4),), levels=["linalg", "tiles"], kinds=["plain"]
    )
    assert result.ok, result.reason()


class Noisy(torch.nn.Module):
    def forward(self, x):
        return x + torch.rand(37), x + torch.rand(37), F.dropout(x + 1, 0.5)


@pytest.fixture(scope="module")
def noisy(tmp_path_factory):
    """A compiled model of three draws, on disk."""
    folder = tmp_path_factory.mktemp("noisy")
    job = Compilation("noisy", get_target("sm_90a"))
    job.import_module(Noisy(), (torch.zeros(37),), {})
    job.lower("ptx")
    job.write(folder / "noisy.ptx")
    return folder / "noisy.ptx"


def test_calls_draw_anew_and_draws_are_independent(noisy):
    x = np.zeros(37, np.float32)
    with mlirc.load(noisy, device="host") as model, mlirc.load(noisy, device="host") as other:
        first, second = model(x), model(x)
        assert all(np.array_equal(a, b) for a, b in zip(first, other(x), strict=True))
        assert not any(np.array_equal(a, b) for a, b in zip(first, second, strict=True))
        assert not np.array_equal(first[0], first[1])
        assert 5 < (first[2] == 0).sum() < 32 and set(np.unique(first[2])) == {0.0, 2.0}
        model.manual_seed(1)
        seeded = model(x)
        assert not np.array_equal(seeded[0], first[0])
        model(x)
        model.manual_seed(1)
        assert all(np.array_equal(a, b) for a, b in zip(model(x), seeded, strict=True))
        model.bind(x)
        model.launch()
        once = model.outputs
        model.launch()  # the same inputs, and the same numbers
        assert np.array_equal(once[0], model.outputs[0])


def test_mlirc_run_takes_a_seed_at_every_level(noisy, tmp_path, ran):
    np.save(tmp_path / "x.npy", np.zeros(37, np.float32))

    def run(*words):
        out = tmp_path / "y.npz"
        out.unlink(missing_ok=True)
        found = ran(mlirc_run.main, noisy, "--input", tmp_path / "x.npy", "-o", out, *words)
        assert found.status == 0, found.err
        return dict(np.load(out))["output_0"]

    default = run("--level", "linalg")
    seeded = [run("--level", level, "--manual-seed", 5) for level in LEVELS]
    assert all(np.array_equal(seeded[0], a) for a in seeded[1:]) and not np.array_equal(default, seeded[0])
    assert "3 draws of random numbers, 12 words" in ran(mlirc_run.main, noisy, "--info").out
    assert "manual-seed" in ran(mlirc_run.main, noisy, "--manual-seed", "-1").err


def test_a_level_goes_on_from_its_file(noisy, tmp_path, ran):
    """The linalg level says by itself how the generator moves."""
    level = noisy.with_suffix(".levels") / "linalg.mlir"
    assert ran(compiler.main, level, "-o", tmp_path / "again.ptx", "--check", "tiles").status == 0
    assert extract((tmp_path / "again.ptx").read_text(), "again").draws == (0, 4, 8, 12)
    assert "mlirc.draws" in ran(mlirc_opt.main, level, "--script", "graph").out


def test_a_module_that_was_exported_in_training(tmp_path, ran):
    encoder = torch.nn.TransformerEncoderLayer(8, 2, 16, dropout=0.2, batch_first=True)
    model = torch.nn.Sequential(torch.nn.Dropout(0.3), encoder).train()
    x = torch.randn(2, 5, 8, generator=torch.Generator().manual_seed(0))
    torch.export.save(torch.export.export(model, (x,)), tmp_path / "m.pt2")
    found = ran(compiler.main, tmp_path / "m.pt2", "-o", tmp_path / "m.ptx", "--check", "linalg", "tiles")
    assert found.status == 0, found.err
    assert len(extract((tmp_path / "m.ptx").read_text(), "m").draws) == 6  # five dropouts, and the sum
    torch.jit.trace(model, (x,), check_trace=False).save(tmp_path / "t.pt")
    assert ran(compiler.main, tmp_path / "t.pt", "--input", "input=f32[2,5,8]", "--check", "tiles").status == 0


def test_a_live_module_in_training():
    layers = [torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.Dropout2d(0.3), torch.nn.Dropout(0.2)]
    model = torch.nn.Sequential(*layers).train()
    x = torch.randn(2, 3, 5, 5, generator=torch.Generator().manual_seed(0))
    for wanted in (True, False):
        assert check_torch(model, (x,), levels=["linalg", "tiles"], kinds=["plain"], train=wanted).ok and model.training
    compiled = mlirc.compile(model, (x,), train=True, device="host")
    first, second = compiled(x), compiled(x)
    assert list(compiled.state) == ["1.running_mean", "1.running_var", "1.num_batches_tracked"]
    assert not torch.equal(first, second) and compiled.state["1.num_batches_tracked"] == 2
    assert not mlirc.compile(model, (x,), device="host").plan.draws


# The runtime and its plan, on a fake device: the state itself is the output.

STATE = TensorSpec("mlirc.random", "i64", (3, 2), "random")


def state_plan(*inputs: TensorSpec, draws=(0, 4, 12)) -> Plan:
    """A model that returns its generator's state."""
    out = TensorSpec("y", "i64", (3, 2), "output")
    copy = CopyStep(Ref("input", len(inputs) - 1, 0, 48), Ref("output", 0, 0, 48))
    return Plan("state", "sm_90a", list(inputs), [out], [], 0, [copy], draws=draws)


X = TensorSpec("x", "f32", (4,), "input")


@pytest.mark.parametrize("graph", [True, False])
def test_the_runtime_fills_the_state_in_before_every_call(graph):
    model = load_text(embed(ptx_for("sm_90a"), state_plan(X, STATE)), {}, graph=graph, driver=FakeDriver({}))
    model.manual_seed(7)
    x = np.zeros(4, np.float32)
    assert [model(x)[:, 0].tolist() for _ in range(3)] == [[7, 0, 4], [7, 12, 16], [7, 24, 28]]
    model.manual_seed(2**64 - 1)
    assert model(x=x)[:, 0].tolist() == [-1, 0, 4]
    with pytest.raises(MlircError, match="no input is called 'mlirc.random': the model takes x"):
        model(x, **{"mlirc.random": np.zeros((3, 2), np.int64)})
    with pytest.raises(MlircError, match="2 inputs given, but the model takes 1: x"):
        model(x, x)
    model.close()


def test_a_model_of_random_numbers_alone():
    model = load_text(embed(ptx_for("sm_90a"), state_plan(STATE)), {}, driver=FakeDriver({}))
    assert [model()[1:, 0].tolist() for _ in range(2)] == [[0, 4], [12, 16]]
    model.close()


@pytest.mark.parametrize(
    ("inputs", "draws", "why"),
    [
        ([X], (0, 4), "has one input of kind 'random'"),
        ([X, STATE], (), "has one input of kind 'random'"),
        ([STATE, X], (0, 4, 12), "the last one"),
        ([X, STATE], (0, 12), r"generator's state is 'i64\[3,2\]': not i64\[2,2\]"),
        ([X, STATE], (0, 8, 4), "no rising numbers of words"),
        ([X, STATE], (0, 4, 6), "no rising numbers of words"),
        ([X, STATE], (-4, 4, 8), "no rising numbers of words"),
    ],
)
def test_a_plan_that_says_nonsense_of_its_draws_is_refused(inputs, draws, why):
    with pytest.raises(MlircError, match=why):
        check_plan(state_plan(*inputs, draws=draws))


def test_draws_in_the_plans_text_are_integers():
    text = embed(ptx_for("sm_90a"), state_plan(X, STATE))
    assert extract(text, "m").draws == (0, 4, 12)
    assert json.loads(to_json(state_plan(X, STATE)))["draws"] == [0, 4, 12]
    assert "draws" not in json.loads(to_json(Plan("m", "sm_90a", [X], [], [], 0, [])))
