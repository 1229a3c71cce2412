"""What the tests of the backend share: a fresh Dynamo for each, and the backend as torch.compile takes it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from mlirc.torch_backend import compile_graph


@pytest.fixture(autouse=True)
def _fresh_dynamo():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.fixture
def compiled() -> Callable:
    """torch.compile with the backend; what it cannot compile is an error unless a test says `fallback=True`."""

    def compile_(function, fullgraph=False, dynamic=None, **options):
        options.setdefault("fallback", False)
        return torch.compile(
            function, backend=compile_graph, options=options, fullgraph=fullgraph, dynamic=dynamic
        )  # fmt: skip

    return compile_


@pytest.fixture
def same() -> Callable:
    """Compares what PyTorch and the backend give, whatever it is nested in: structure, dtypes, strides, values."""

    def compare(found, wanted, rtol=1e-4, atol=1e-5):
        given, spec = torch.utils._pytree.tree_flatten(found)
        expected, wanted_spec = torch.utils._pytree.tree_flatten(wanted)
        assert spec == wanted_spec
        for a, b in zip(given, expected, strict=True):
            if isinstance(b, torch.Tensor):
                torch.testing.assert_close(a, b, rtol=rtol, atol=atol, check_stride=True)
            else:
                assert type(a) is type(b) and a == b

    return compare
