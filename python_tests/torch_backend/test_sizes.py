"""Graphs whose sizes Dynamo leaves open: one compilation for all up to a bound."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
import sympy
import torch
from torch import nn
from torch._dynamo.convert_frame import compile_lock

from mlirc.torch_backend import runner
from mlirc.torch_backend.sized import bound_for, namings
from support.models.together import randn


@pytest.fixture
def compilations(monkeypatch) -> list[str]:
    """The names of the graphs that were compiled so far."""
    made, lowered = [], runner.lowered

    def counted(graph, args, facts, options, name, *more):
        made.append(name)
        return lowered(graph, args, facts, options, name, *more)

    monkeypatch.setattr(runner, "lowered", counted)
    return made


def test_lengths_up_to_a_bound_share_their_code(compiled, same, compilations):
    model = nn.Sequential(nn.Linear(5, 3), nn.LayerNorm(3)).eval()

    def function(x):
        y = model(x)
        return y.softmax(0), y.t() @ y, y[1:] + 1, y[-1] * 2, x.shape[0]

    call = compiled(function)
    counts = []
    for length in (11, 5, 6, 7, 8, 3, 4, 9, 16, 13, 1):
        x = randn(length, 5)
        with torch.no_grad():
            same(call(x), function(x))
        counts.append(len(compilations))
    # 11 is alone, as Dynamo learns from the second length that it varies; 5 makes 8, 9 makes 16, and 1 is set apart.
    assert counts == [1, 2, 2, 2, 2, 2, 2, 3, 3, 3, 4]


def test_what_is_compiled_at_a_call_holds_back_dynamo_in_other_threads(compiled, same, monkeypatch):
    """While a graph is exported some of PyTorch is replaced, which Dynamo would trace into."""
    held, lowered = [], runner.lowered

    def watched(*args):
        held.append(compile_lock._is_owned())
        return lowered(*args)

    monkeypatch.setattr(runner, "lowered", watched)
    call = compiled(lambda x: x * 2, dynamic=True)
    call(randn(3, 5))
    with ThreadPoolExecutor(1) as pool:  # more than the bound, by a call of the same code
        same(pool.submit(call, randn(9, 5)).result(), randn(9, 5) * 2)
    assert held == [True, True]


def test_several_sizes_and_numbers_that_are_none(compiled, same, compilations):
    def function(x, mask, n: int):
        scores = (x @ x.transpose(-1, -2)).masked_fill(~mask[:, None], float("-inf"))
        return scores.softmax(-1) @ x + n, mask.sum(1), torch.arange(x.shape[1]) * x.shape[0]

    call = compiled(function, dynamic=True)
    for n, sizes in ((3, ((2, 3), (3, 4), (2, 2))), (4, ((3, 2), (5, 3)))):
        for batch, length in sizes:
            x, mask = randn(batch, length, 7), torch.ones(batch, length, dtype=torch.bool)
            mask[0, 1:] = False
            same(call(x, mask, n), function(x, mask, n))
    assert len(compilations) == 3  # n=3: 4 x 4; n=4: 4 x 4 and 8 x 4


def test_a_cache_that_grows(compiled, same, compilations):
    def function(x, keys, values):
        keys, values = torch.cat([keys, x], 1), torch.cat([values, x * 2], 1)
        return nn.functional.scaled_dot_product_attention(x, keys, values), keys, values

    call = compiled(function)
    caches = randn(2, 5, 4), randn(2, 5, 4)
    for _ in range(6):  # of 5 to 10: 6 to 8 share, 9 is beyond
        x = randn(2, 1, 4)
        found, wanted = call(x, *caches), function(x, *caches)
        same(found, wanted)
        caches = found[1:]
    assert len(compilations) == 3


def test_symbols_that_must_be_equal_get_one_name():
    """As of the keys and values of a transformers cache."""
    b, s, t = sympy.symbols("b s t")
    assert list(namings({b: 2, s: 7, t: 7})) == [{b: b, s: s, t: t}, {b: b, s: s, t: s}]
    assert list(namings({b: 2, s: 7, t: 8})) == [{b: b, s: s, t: t}]


def test_each_branch_has_bounds_inside_of_its_guards(compiled, same, compilations):
    def function(x):
        return x.cumsum(0) * 2 if x.shape[0] > 6 else x.sum(0)

    call = compiled(function, dynamic=True)
    for length in (5, 6, 2, 7, 8, 5, 20, 31):
        x = randn(length, 3)
        same(call(x), function(x))
    assert len(compilations) == 3  # up to 6; 7 to 8; 7 to 32


def test_how_inputs_lie_in_memory(compiled, same, compilations):
    def function(x):
        return x.softmax(1) + 1, x.transpose(0, 1) * 2

    for make in (lambda s: randn(2, s, 5), lambda s: randn(s, 5, 2).permute(2, 0, 1), lambda s: randn(2, 2 * s, 5)[:, ::2],
                 lambda s: randn(1, s, 1).expand(2, s, 5)):  # fmt: skip
        torch._dynamo.reset()
        call = compiled(function)
        for length in (7, 8, 6):
            x = make(length)
            torch._dynamo.mark_dynamic(x, 1)
            same(call(x), function(x))
    assert len(compilations) == 4


def test_views_of_inputs_follow_their_sizes(compiled, same):
    def function(x, y):
        return x[1:], x, x * y.sum(), y.t()

    call = compiled(function, dynamic=True)
    for rows, columns in ((3, 5), (5, 6), (4, 3)):
        x, y = randn(rows, 2), randn(columns, rows)
        found = call(x, y)
        same(found, function(x, y))
        found[0].zero_()
        assert not x[1:].any() and found[1] is x


def test_the_gpus_kernels_for_every_size(compiled, same, compilations):
    def function(x, w):
        return (x @ w).softmax(0).max(0).values

    call, w = compiled(function, device="host"), randn(13, 3)
    for length in (5, 6, 8, 7):
        x = randn(length, 13)
        torch._dynamo.mark_dynamic(x, 0)
        same(call(x, w), function(x, w))
    assert len(compilations) == 1


def test_what_has_no_rule_is_compiled_for_each_size(compiled, same, compilations, caplog):
    call = compiled(lambda x: x.sort(0).values, dynamic=True)
    for length in (3, 5, 4, 3):
        x = randn(length, 2)
        same(call(x), x.sort(0).values)
    # Once for all sizes, which is refused, and for each.
    assert len(compilations) == 4
    (told,) = [r.getMessage() for r in caplog.records if "is compiled for each set of sizes" in r.getMessage()]
    assert "sort" in told and "bug in mlirc" not in told


def test_bounds_are_powers_of_two_within_the_guards():
    assert [bound_for(n, (2, 100)) for n in (2, 3, 4, 5, 8, 9, 64, 65, 100)] == [3, 4, 4, 8, 8, 16, 64, 100, 100]
