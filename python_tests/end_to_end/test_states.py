"""Models that change buffers and inputs in place, over several calls beside PyTorch."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from torch import nn

import mlirc
from mlirc.driver.compilation import Compilation
from mlirc.errors import MlircError
from mlirc.frontend import from_torch, import_torch
from mlirc.targets import get_target
from mlirc.tools import mlirc_run
from support.models.together import randn
from support.models.written import Writes, together

CALLS = 3


def counted(m, x):
    m.n += 1
    y = m._mean + x
    m._mean.mul_(0.9).add_(x, alpha=0.1)
    return y * m.n


def swapped(m, x):
    old = m.a.clone()
    m.a.copy_(m.b)
    m.b.copy_(old + x)
    return m.a - m.b


def exchanged(m, x):
    old = m.a.clone()
    m.a.copy_(m.b)
    m.b.copy_(old)
    return x + m.a


def old_and_new(m, x):
    old = m.a.clone()
    m.a.add_(x)
    return old, m.a


def unread(m, x):
    m.a.copy_(x * 2)
    return x + 1


def rolled(m, x):
    m.a.copy_(torch.cat([m.a[1:], x[:1]]))
    return m.a.sum()


def from_another(m, x):
    m.a.copy_(m.b)
    m.b.add_(x)
    return x * 2


@pytest.mark.parametrize(
    "function", [counted, swapped, exchanged, old_and_new, unread, rolled, from_another], ids=lambda f: f.__name__
)
def test_buffers(function):
    buffers = {"a": randn(7), "b": randn(7)} if function is not counted else {"n": torch.tensor(0), "_mean": randn(7)}
    together(Writes(function, **buffers), *[(randn(7),) for _ in range(CALLS)])


def test_statistics_of_batches():
    module = nn.Sequential(nn.Conv1d(3, 5, 1), nn.BatchNorm1d(5)).train()
    x = randn(2, 3, 7)
    compiled = mlirc.compile(module, (x,), train=True, device="host")
    eager = copy.deepcopy(module)
    for scale in (1, 2):
        torch.testing.assert_close(compiled(x * scale), eager(x * scale).detach())
    for name, tensor in compiled.state.items():
        torch.testing.assert_close(torch.from_numpy(tensor.copy()), eager.get_buffer(name))
    assert list(compiled.state) == ["1.running_mean", "1.running_var", "1.num_batches_tracked"]


def added(x):
    x.add_(1)
    return x * 2


def added_and_returned(x, y):
    x.add_(y)
    return x, y


def swapped_inputs(x, y):
    old = x.clone()
    x.copy_(y)
    y.copy_(old)
    return x + y


@pytest.mark.parametrize(
    ("function", "count"), [(added, 1), (added_and_returned, 2), (swapped_inputs, 2)], ids=lambda f: str(f)[:20]
)
def test_inputs(function, count):
    compiled = together(Writes(lambda m, *args: function(*args)), tuple(randn(5, 3) for _ in range(count)))
    assert not compiled.state and {s.kind for s in compiled.plan.written} == {"inout"}
    a = np.arange(15, dtype=np.float32).reshape(5, 3)
    frozen = a.copy()
    frozen.flags.writeable = False
    others = [np.ones((5, 3), np.float32)] * (count - 1)
    with pytest.raises(MlircError, match="is read-only, but the model writes into it"):
        compiled(frozen, *others)
    if count == 2:
        with pytest.raises(MlircError, match=r"'.*' shares memory with input '.*', and the model writes into input"):
            compiled(a, a)


def test_two_modules_that_are_one_have_one_state_and_buffers_that_overlap_are_refused():
    norm = Writes(lambda m, x: (m.a.add_(x), m.a * 2)[1], a=randn(5))
    together(nn.Sequential(norm, norm), (randn(5),), (randn(5),))
    base = randn(6)
    words = "writes into 'a', which shares memory with 'b': give each memory of its own"
    for a, b in ((base[:5], base[1:]), (base[:5], base[:5])):
        parts = Writes(lambda m, x: (m.a.add_(x), m.b * 2)[1], a=a, b=b)
        with pytest.raises(MlircError, match=words):
            import_torch(from_torch(parts, (randn(5),)))


def test_a_parameter_that_forward_writes_is_no_state():
    """As RWKV's weights, which are divided in the first call in eval mode, and then never more."""

    class Rescaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.ones(3), requires_grad=False)
            self.done = False

        def forward(self, x):
            if not self.done:
                self.w.mul_(0.5)
                self.done = True
            return x * self.w

    compiled = mlirc.compile(Rescaled(), (randn(3),), device="host")
    x = randn(3)
    for _ in range(2):
        torch.testing.assert_close(compiled(x), x * 0.5)


def test_a_file_keeps_its_states(tmp_path, ran):
    """The initial values, also those of no state dict, the levels, and what the programs say of them."""
    job = Compilation("m", get_target("sm_90a"))
    job.import_module(Writes(counted, n=torch.tensor(3), _mean=torch.ones(7)), (randn(7),), {}, False)
    job.lower("ptx")
    job.write(tmp_path / "m.ptx")
    x = np.ones(7, np.float32)
    np.save(tmp_path / "x.npy", x)
    for more in (["--level", "kernels"], ["--device", "host", "--execute-ptx", "--seeds", "2"]):
        out = tmp_path / "y.npz"
        done = ran(mlirc_run.main, tmp_path / "m.ptx", "--input", tmp_path / "x.npy", "-o", out, *more)
        assert done.status == 0, done
        found = np.load(out)
        assert sorted(found) == ["_mean", "n", "output"] and found["n"] == 4
        np.testing.assert_allclose(found["output"], np.full(7, 8.0))
    said = ran(mlirc_run.main, tmp_path / "m.ptx", "--input", tmp_path / "x.npy", "--level", "tiles").out
    assert "state n: int64[]" in said
    assert "state n: i64[]" in ran(mlirc_run.main, tmp_path / "m.ptx", "--info").out
    model = mlirc.load(tmp_path / "m.ptx", device="host")
    model(x)
    model(x)
    assert model.state["n"] == 5
    model.state["n"] = np.array(40)
    np.testing.assert_allclose(model(x), np.full(7, 82.0))
