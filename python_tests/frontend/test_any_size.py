"""One trace of a decomposition for calls of every size, and batch norms whose shapes are known without arithmetic: the
graphs are those that PyTorch gives without either."""

from __future__ import annotations

import contextlib

import pytest
import torch
from torch import nn

from mlirc.errors import MlircError
from mlirc.frontend import any_size, batch_norm_shapes, decompose, decomposer, importer
from mlirc.frontend.source import SourceModel


class Norms(nn.Module):
    """Norms and convolutions of one rank and several sizes, padded or not."""

    def __init__(self, dtype: torch.dtype = torch.float32, layout: torch.memory_format = torch.contiguous_format):
        super().__init__()
        self.layout = layout
        self.first = nn.Sequential(nn.Conv2d(3, 7, 3, padding=1), nn.BatchNorm2d(7), nn.Conv2d(7, 5, 1, padding=0))
        self.second = nn.Sequential(nn.Conv2d(5, 1, 1, padding=1), nn.BatchNorm2d(1), nn.Conv2d(1, 13, 3, padding=1))
        self.third = nn.Sequential(
            nn.BatchNorm2d(13, affine=False), nn.Conv2d(13, 11, (1, 3), padding=(0, 1), bias=False)
        )
        self.fourth = nn.Sequential(nn.BatchNorm2d(11, track_running_stats=False), nn.BatchNorm2d(11, eps=1e-3))
        self.to(dtype)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.third(self.second(self.first(x.to(memory_format=self.layout))))
        return self.fourth(x[:, :, ::2])


def described(graph: torch.fx.Graph) -> list:
    """Each node with the shape, layout and type that it is noted to have."""
    found = []
    for node in graph.nodes:
        value = node.meta.get("val")
        noted = (tuple(value.shape), value.stride(), value.dtype) if isinstance(value, torch.Tensor) else None
        found.append((node.op, str(node.target), str(node.args), str(node.kwargs), noted))
    return found


def exported(module: nn.Module, *inputs: torch.Tensor):
    return importer.export(SourceModel("m", "module", inputs, {}, module=module.eval(), weights=module.state_dict()))


@pytest.mark.parametrize(
    "dtype, layout",
    [
        (torch.float32, torch.contiguous_format),
        (torch.bfloat16, torch.contiguous_format),
        (torch.float32, torch.channels_last),
    ],
)
def test_the_graphs_are_the_same_as_without(dtype, layout, monkeypatch):
    module, x = Norms(dtype, layout), torch.zeros(2, 3, 9, 8, dtype=dtype)
    program = exported(module, x)
    reused = []
    monkeypatch.setattr(decomposer, "resized", lambda *a: reused.append(any_size.resized(*a)) or reused[-1])
    graph = decompose.decompose(program).graph
    assert any(reused)
    monkeypatch.setattr(decomposer, "of_any_size", lambda node: False)
    monkeypatch.setattr(importer, "batch_norms_for_shapes", contextlib.nullcontext)
    alone = exported(module, x)
    assert described(alone.graph) == described(program.graph)
    assert described(decompose.decompose(alone).graph) == described(graph)


def test_a_layout_that_the_trace_would_not_give_is_traced_itself():
    mode = torch._subclasses.FakeTensorMode()
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    graph.output(graph.call_function(torch.ops.aten.relu.default, (x,)))
    with mode:
        values = [torch.empty(3, 5)]
        same, turned = torch.empty(3, 5), torch.empty(5, 3).t()
    assert any_size.resized(graph, values, same) is not None
    assert any_size.resized(graph, values, turned) is None


def test_batch_norms_of_the_wrong_size_are_still_refused():
    with pytest.raises(MlircError, match="running_mean should contain 4 elements not 3"):
        exported(nn.BatchNorm2d(3), torch.zeros(2, 4, 5, 5))


def test_only_shapes_are_short_cut():
    x, vector = torch.full((2, 3, 4), 5.0), torch.ones(3)
    with batch_norm_shapes.batch_norms_for_shapes():
        out = torch._decomp.decompositions.native_batch_norm_helper(
            x, vector, vector, vector, vector, False, 0.1, 0.0, False
        )[0]
    assert torch.equal(out, torch.full((2, 3, 4), 5.0))


@pytest.mark.parametrize("shape", [(1, 7, 5, 3), (2, 3, 1, 4), (5, 1, 1, 1), (3, 2, 5, 1, 3)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_batch_norms_with_channels_last_are_short_cut_to_the_same_layout(shape, dtype, monkeypatch):
    layout = torch.channels_last if len(shape) == 4 else torch.channels_last_3d
    helper = torch._decomp.decompositions.native_batch_norm_helper
    calls = []
    monkeypatch.setattr(
        torch._decomp.decompositions, "native_batch_norm_helper", lambda *a: calls.append(a) or helper(*a)
    )
    with torch._subclasses.FakeTensorMode(), torch.no_grad():
        x, vector = torch.empty(shape, dtype=dtype, memory_format=layout), torch.empty(shape[1], dtype=dtype)
        call = (x, vector, None, vector, vector, False, 0.1, 1e-5, False)
        meant = helper(*call)[0]
        with batch_norm_shapes.batch_norms_for_shapes():
            made = torch._decomp.decompositions.native_batch_norm_helper(*call)[0]
    assert not calls
    assert (made.shape, made.stride(), made.dtype) == (meant.shape, meant.stride(), meant.dtype)
