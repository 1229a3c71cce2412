"""Whose memory results and writes are in: as in PyTorch."""

from __future__ import annotations

import pytest
import torch

from mlirc.torch_backend.options import read_options
from mlirc.torch_backend.runner import Runner


def test_inputs_and_views_of_them_are_returned_themselves(compiled, same):
    def function(x):
        return x, x.t(), x[1:, ::2], {"sum": x.sum(0)}, None, 3

    x = torch.randn(3, 5)
    found = compiled(function, fullgraph=True)(x)
    same(found, function(x))
    assert found[0] is x
    found[1][0, 0] = 9
    found[2][0, 0] = 7
    assert x[0, 0] == 9 and x[1, 0] == 7


def test_a_view_of_a_part_of_a_tensor(compiled, same):
    whole = torch.randn(5, 6)
    part = whole[1:4, 2:]
    view = compiled(lambda x: (x[1:], x * 2))(part)[0]
    view.zero_()
    assert not whole[2:4, 2:].any() and whole[1, 2:].all()


def test_results_that_look_at_each_other(compiled, same):
    def function(x):
        y = x * 2
        return y.t(), y, y[1:], y

    x = torch.randn(3, 5)
    found = compiled(function)(x)
    same(found, function(x))
    found[1][1, 2] = 5
    assert found[0][2, 1] == 5 and found[2][0, 2] == 5 and found[3] is found[1]


def test_parts_of_a_tensor_that_is_no_result(compiled, same):
    def function(x):
        return (x + 1).chunk(2, -1)

    x = torch.randn(3, 4)
    torch.testing.assert_close(compiled(function)(x), function(x))


def test_results_that_share_elements_of_what_is_no_result(compiled, same):
    def function(x):
        y = x + 1
        z = (x * 3)[1:]
        return y[:3], y[1:], z, z, z[:, 1].view(torch.int32), y.view(torch.int32)

    x = torch.randn(5, 4)
    found = compiled(function)(x)
    same(found, function(x))
    found[0][1, 2] = 0
    found[2][0, 1] = 0
    assert found[1][0, 2] == 0 and found[5][1, 2] == 0 and found[3] is found[2] and found[4][0] == 0


def test_results_have_the_strides_of_views_of_what_is_no_result(compiled, same):
    def function(x):
        y = x + 1
        return (
            (x * 2)[:, ::2], (x * 3)[:, 1], (x * 4).expand(3, 5, 6), (x * 5)[:, :1].expand(2, 5, 3)[:, 1:],
            (x * 6).unfold(1, 3, 1), (x * 7).unfold(1, 2, 2).mT, (x * 8).diagonal(), y[1], y[::2, 1:3][1:].t(),
            x.new_ones(2, 0, 3).transpose(0, 2), (x * 9).as_strided((4, 3), (1, 2), 1),
        )  # fmt: skip

    for dynamic in (False, True):
        x = torch.randn(5, 6)
        same(compiled(function, dynamic=dynamic)(x), function(x))
        torch._dynamo.reset()
    x = torch.randn(1, 3)
    half = compiled(lambda x: (x + 1)[:, ::2].expand(4, 2), device="host", dynamic=False)(x)
    same(half, (x + 1)[:, ::2].expand(4, 2))


def test_results_may_be_resized(compiled):
    """Dynamo leaves resize_ to eager, which gets what was compiled before it."""
    with torch.no_grad():
        for call in (lambda x: (x + 1).resize_(5), lambda x: torch.full_like(x.expand(4), 2).resize_(2) * x):
            x = torch.ones(1)
            found, wanted = compiled(call)(x), call(x)
            assert found.shape == wanted.shape and found[0] == wanted[0] == 2
            torch._dynamo.reset()


def test_views_of_another_dtype(compiled, same):
    def function(x):
        y = x * 2
        return x.view(torch.int32), x[1:, 2:].view(torch.float16), y, y.view(torch.uint8)

    x = torch.randn(3, 8)[:, 2:6]
    found = compiled(function)(x)
    same(found, function(x))
    found[0].zero_()
    found[3].fill_(0)
    assert not x.any() and not found[2].any()


def test_complex_tensors_come_and_go(compiled, same):
    def function(x, y):
        z = x * y + 1j
        return z, z.conj(), z.imag, z.mT, x.conj(), x.real, x.mT.conj().imag, z.abs() * 2, x.new_zeros(3) + 2j, y[0] * x

    for dtype in (torch.complex64, torch.complex128):
        x, y = torch.randn(3, 5, dtype=dtype), torch.randn(5, dtype=dtype)
        found = compiled(function, dynamic=False)(x, y)
        same(found, function(x, y))
        assert [t.is_conj() for t in found] == [t.is_conj() for t in function(x, y)]
        found[0].zero_()
        assert not found[1].any() and not found[2].any() and not found[3].any()
        lazy = x.mT.conj(), torch.randn(3, dtype=dtype).conj()
        same(compiled(function)(*lazy), function(*lazy))


def test_writes_into_complex_inputs(compiled, same):
    def function(x):
        x.mul_(2j)
        x[1:].add_(1)
        return x.sum()

    for make in (
        lambda: torch.randn(4, dtype=torch.complex64),
        lambda: torch.randn(8, dtype=torch.complex64)[::2].conj(),
    ):
        x = make()
        y = x.clone()
        same(compiled(function)(x), function(y))
        torch.testing.assert_close(x, y)


def test_writes_into_inputs_and_buffers(compiled, same):
    class Counter(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("count", torch.zeros((), dtype=torch.int64))
            self.register_buffer("cache", torch.zeros(5, 3))

        def forward(self, row, x):
            self.count += 1
            self.cache[row] = x
            x.mul_(2)
            return self.cache.sum(0), x[1:]

    model, wanted = Counter(), Counter()
    call = compiled(model)
    for row in (0, 3):
        x = torch.randn(3)
        y = x.clone()
        same(call(torch.tensor(row), x), wanted(torch.tensor(row), y))
        same(x, y)
        same(dict(model.state_dict()), dict(wanted.state_dict()))


def test_a_graph_that_only_writes(compiled, same):
    def function(x):
        x.add_(1)

    x = torch.randn(3, 5)
    wanted = x + 1
    assert compiled(function, fullgraph=True)(x) is None
    same(x, wanted)


def test_writes_past_autograd(compiled, same):
    def function(x):
        y = x * 2
        y.data[1:].add_(3)
        x.data.mul_(2)
        return x + 1, y

    x = torch.randn(3, 5)
    y = x.clone()
    same(compiled(function)(x), function(y))
    same(x, y)


def test_writes_into_inputs_of_any_strides(compiled, same):
    def function(x, y):
        x.add_(y)
        return x * y

    for make in (lambda: torch.randn(5, 3).t(), lambda: torch.randn(3, 10)[:, ::2]):
        x, y = make(), make()
        whole = x.clone()
        wanted = function(whole, y)
        torch.testing.assert_close(compiled(function)(x, y), wanted)
        torch.testing.assert_close(x, whole)
        torch._dynamo.reset()


def test_a_write_is_seen_by_autograd(compiled):
    leaf = torch.randn(3, requires_grad=True)
    x = torch.randn(3)
    product = leaf * x
    with torch.no_grad():
        compiled(lambda x: x.add_(1))(x)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        product.sum().backward()


def test_inputs_that_share_memory_and_are_written_run_in_eager(compiled, same, caplog):
    def function(x, y):
        x.add_(1)
        return y * 2

    call = compiled(function)
    a, b = torch.randn(4), torch.randn(4)
    same(call(a, b), b * 2)
    whole = torch.randn(6)
    found = call(whole[:4], whole[2:])
    same(found, whole[2:] * 2)
    assert "shares memory" in caplog.text


@pytest.mark.parametrize("shape", [(), (0,), (0, 3), (1, 1)])
def test_tensors_of_no_dimension_and_no_element(shape, compiled, same):
    x = torch.randn(shape)
    same(compiled(lambda x: x * 2 + 1)(x), x * 2 + 1)


def test_the_strides_of_results_are_those_of_pytorch(compiled, same):
    def function(x):
        return x.permute(0, 2, 1) * 2, x.transpose(0, 1) + 1

    for x in (torch.randn(2, 3, 5), torch.randn(5, 2, 3).permute(1, 2, 0)):
        same(compiled(function)(x), function(x))
        torch._dynamo.reset()


def test_few_sizes_are_kept(compiled, caplog, monkeypatch):
    monkeypatch.setattr("mlirc.torch_backend.runner.SIZES_KEPT", 2)
    call = compiled(lambda x: x.add_(1), dynamic=True)  # what writes to its inputs has fixed sizes
    for n in (2, 3, 5, 2):
        assert torch.equal(call(torch.zeros(n)), torch.ones(n))
    assert caplog.text.count("is compiled for each set of sizes, of which 2 are kept: it writes to its inputs") == 1


def test_a_view_of_an_input_of_other_strides_runs_in_eager(caplog):
    def function(x):
        return x.t(), x + 1

    graph = torch.fx.symbolic_trace(function)
    runner = Runner(graph, [torch.randn(3, 5)], read_options({"fallback": False}), "graph")
    x = torch.randn(5, 3).t()
    for found, wanted in zip(runner(x), function(x), strict=True):
        assert torch.equal(found, wanted)
    assert "other strides" in caplog.text


def test_writes_through_views_and_by_masks(compiled, same):
    def function(x, mask):
        x[mask] = 0.0
        x.t().mul_(torch.arange(5.0)[:, None] + 1)
        x[1:, 0].add_(3)
        return x.sum(0)

    x, mask = torch.randn(3, 5), torch.rand(3, 5) < 0.5
    other = x.clone()
    same(compiled(function)(x, mask), function(other, mask))
    same(x, other)


def test_inputs_that_are_lazily_negated(compiled, same):
    z = torch.randn(3, dtype=torch.complex64)
    same(compiled(torch.exp)(z.conj().imag), torch.exp(z.conj().imag))
