"""Recurrent layers whose matrix fits on the multiprocessors are one launch each, and equal PyTorch's at every level."""

from __future__ import annotations

import pytest
import torch

import mlirc
from mlirc.errors import MlircError
from mlirc.passes.recurrence.geometry import Geometry, chosen
from mlirc.targets import get_target
from support.models.recurrent import compiled, leaves
from support.randomness import generator

# layer, sizes of input and state, options, steps, batch, units of a block and its warps; several blocks of all but one
LAYERS = {
    "lstm": ("LSTM", 5, 12, {}, 4, 3, 5, 2),
    "lstm, rows of odd lengths": ("LSTM", 3, 13, dict(bias=False), 3, 1, 7, 4),
    "lstm, k of two warps": ("LSTM", 2, 140, {}, 2, 2, 18, 8),
    "lstm both ways": ("LSTM", 3, 6, dict(bidirectional=True, batch_first=True), 5, 2, 3, 1),
    "gru": ("GRU", 4, 9, dict(num_layers=2), 3, 5, 4, 2),
    "gru without biases, one block": ("GRU", 1, 10, dict(bias=False), 4, 2, 10, 2),
    "gru, several pairs of a thread": ("GRU", 2, 17, {}, 2, 9, 9, 1),
    "rnn both ways": ("RNN", 5, 7, dict(bidirectional=True), 3, 4, 2, 1),
    "lstm, tf32x3": ("LSTM", 3, 20, {}, 3, 10, 10, 2, "tf32x3"),
    "gru, tf32x3": ("GRU", 3, 12, {}, 3, 3, 7, 1, "tf32x3"),
    "rnn, tf32x3, from shared memory": ("RNN", 2, 132, {}, 2, 17, 66, 1, "tf32x3"),
    "rnn with relu": ("RNN", 2, 8, dict(nonlinearity="relu"), 4, 1, 3, 2),
}  # fmt: skip
NARROW = {"16 bits": ("LSTM", 3, 24, {}, 3, 9, 12, 2)}


def made(name: str, dtype: torch.dtype = torch.float32):
    """The layer, its inputs with initial states, and the schedule."""
    kind, width, state, options, steps, batch, units, warps, *mma = (LAYERS | NARROW)[name]
    draw = generator()
    module = getattr(torch.nn, kind)(width, state, **options).eval().to(dtype)
    with torch.no_grad():
        for p in module.parameters():
            p.copy_(torch.from_numpy(draw.uniform(-0.6, 0.6, p.shape)))
    rows = options.get("num_layers", 1) * (2 if options.get("bidirectional") else 1)
    shape = (batch, steps, width) if options.get("batch_first") else (steps, batch, width)

    def drawn(*sizes: int) -> torch.Tensor:
        return torch.from_numpy(draw.standard_normal(sizes)).to(dtype)

    h, c = drawn(rows, batch, state), drawn(rows, batch, state)
    schedule = f"recurrence:units={units},warps={warps},mma={mma[0] if mma else 'fma'}"
    return module, (drawn(*shape), (h, c) if kind == "LSTM" else h), (schedule,), rows


@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_is_one_launch_that_is_right(name):
    """The directions of a layer are one launch, which each of them has half of."""
    module, args, schedules, rows = made(name)
    job = compiled(module, args, schedules=schedules)
    assert not job.plan.repeats
    found = [step for step in job.plan.launches if step.kernel.startswith("recurrence")]
    layers = LAYERS[name][3].get("num_layers", 1)
    state, units = LAYERS[name][2], LAYERS[name][6]
    blocks = -(-state // units)
    assert [step.grid for step in found] == [(blocks * rows // layers, 1, 1)] * layers
    assert all(step.cooperative == (blocks > 1) for step in found)
    result = job.check(["kernels", "gpu"], kinds=["plain"])
    assert result.ok, result
    assert max(d["plain"].error for d in result.differences.values()) < 1e-5


@pytest.mark.parametrize("name, dtype, mma", [
    ("lstm", torch.bfloat16, "fma"), ("gru, several pairs of a thread", torch.float16, "fma"),
    ("rnn both ways", torch.bfloat16, "fma"), ("16 bits", torch.bfloat16, "mma"), ("16 bits", torch.float16, "mma"),
])  # fmt: skip
def test_narrow_floats(name, dtype, mma):
    module, args, schedules, _ = made(name, dtype)
    schedules = tuple(s.replace("mma=fma", f"mma={mma}") for s in schedules)
    result = compiled(module, args, schedules=schedules).check(["kernels", "gpu"], kinds=["plain"])
    assert result.ok, result


class Cells(torch.nn.Module):
    """A loop over LSTM cells in Python."""

    def __init__(self):
        super().__init__()
        self.cell = torch.nn.LSTMCell(3, 6)

    def forward(self, x, h, c):
        rows = []
        for t in range(9):
            h, c = self.cell(x[t], (h, c))
            rows.append(h)
        return torch.stack(rows), c


class Concatenated(torch.nn.Module):
    """One product of the input and the state together, and another one of the new state."""

    def __init__(self):
        super().__init__()
        self.inner, self.outer = torch.nn.Linear(9, 6), torch.nn.Linear(6, 4)

    def forward(self, x, h, c):
        rows = []
        for t in range(9):
            h = torch.tanh(self.inner(torch.cat((x[t], h), 1)))
            rows.append(self.outer(h) * 2)
        return torch.stack(rows), h + c


@pytest.mark.parametrize("module", [Cells, Concatenated])
def test_products_of_all_steps_leave_a_loop(module):
    """What is left of the step is a cell: one launch, beside a product or two of all steps."""
    torch.manual_seed(1)
    args = torch.randn(9, 2, 3), torch.randn(2, 6), torch.randn(2, 6)
    job = compiled(module().eval(), args)
    names = [step.kernel for step in job.plan.launches]
    assert sum(n.startswith("recurrence") for n in names) == 1 and not job.plan.repeats
    assert sum(n.startswith("matmul") for n in names) == (1 if module is Cells else 2)
    result = job.check(["kernels", "gpu"], kinds=["plain"])
    assert result.ok, result


def test_states_that_are_not_finite_are_what_they_are_in_fp32():
    """TF32's parts of an infinity are none: those sums are made again by FMA. A relu lets all through."""
    module, (x, h), _, _ = made("rnn with relu")
    h[0, 0, 3], h[0, 0, 5] = float("inf"), 3e38
    model = mlirc.compile(module, (x, h), device="host", schedule=["recurrence:units=3,warps=2,mma=tf32x3"])
    with torch.no_grad():
        wanted, got = leaves(module(x, h)), leaves(model(x, h))
    assert not all(w.isfinite().all() for w in wanted)
    for g, w in zip(got, wanted, strict=True):
        torch.testing.assert_close(g, w, equal_nan=True, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("units, batch", [(3000, 1), (3, 65)])
def test_what_does_not_fit_stays_a_loop(units, batch):
    module, x = torch.nn.LSTM(2, units).eval(), torch.zeros(2, batch, 2)
    text = compiled(module, (x,), "kernels").text("kernels")
    assert "mlirc.loop" in text and "recurrence" not in text


def test_other_types_stay_loops():
    module, x = torch.nn.GRU(2, 3).eval().double(), torch.zeros(2, 1, 2, dtype=torch.float64)
    assert "mlirc.loop" in compiled(module, (x,), "kernels").text("kernels")


def test_what_could_wait_for_ever_is_refused():
    target = get_target("sm_90a")
    assert "multiprocessors" in Geometry(1, 512, 4, 4, 1, 8).problem(target)
    best = chosen(1, 1024, 4, 4, True, target)
    assert best is not None and best.blocks <= target.sms
    assert chosen(1, 1024, 4, 4, True, get_target("sm_86")) is None
    with pytest.raises(MlircError, match=r"units=60, warps=1: a thread would hold"):
        compiled(torch.nn.LSTM(2, 60).eval(), (torch.zeros(2, 1, 2),), schedules=("recurrence:units=60,warps=1",))


def test_final_states_are_in_pytorchs_order():
    """Final states lie in the order of layers and directions."""
    module, args, schedules, _ = made("lstm both ways")
    job = compiled(module, args, schedules=schedules)
    result = job.check(["tiles"], kinds=["plain"])
    assert result.ok and len(leaves(module(*args))) == 3


class Columns(torch.nn.Module):
    """A state [units, batch], which a matrix multiplies from the left."""

    def __init__(self) -> None:
        super().__init__()
        draw = generator()
        self.inner, self.outer = (torch.nn.Parameter(torch.from_numpy(draw.normal(0, 0.3, (n, 7)))) for n in (7, 5))

    def forward(self, x: torch.Tensor, h: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        results = []
        for step in x:
            h = torch.tanh(self.inner @ h + step)
            results.append(self.outer @ h)
        return torch.stack(results), h


@pytest.mark.parametrize("batch", [1, 3, 7])
def test_states_in_columns_stay_in_the_loop(batch):
    draw = generator()
    inputs = tuple(torch.from_numpy(draw.standard_normal(s)).float() for s in ((12, 7, batch), (7, batch)))
    module = Columns().float().requires_grad_(False)
    for got, want in zip(mlirc.compile(module, inputs, device="host")(*inputs), module(*inputs), strict=True):
        torch.testing.assert_close(torch.as_tensor(got), want, rtol=1e-5, atol=1e-6)
