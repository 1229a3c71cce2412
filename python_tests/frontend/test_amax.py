"""The maximum over dimensions arrives as one linalg reduction, and computes what PyTorch does."""

import pytest
import torch

from mlirc import frontend
from mlirc.host.tensors import run_level


class Function(torch.nn.Module):
    def __init__(self, f):
        super().__init__()
        self.f = f

    def forward(self, x):
        return self.f(x)


@pytest.mark.parametrize("keep", [False, True])
@pytest.mark.parametrize("dims", [(-1,), (0,), (1,), (0, 2), (0, 1), (0, 1, 2)])
def test_amax_over_any_dimensions(dims, keep):
    x = torch.randn(3, 5, 7)
    imported = frontend.import_torch(frontend.from_torch(Function(lambda x: x.amax(dims, keep)), (x,), {}, "m"))
    module = frontend.lower_to_linalg(imported)
    assert str(module).count("arith.maximumf") == 1
    assert torch.equal(run_level(module, [x], {})[0], x.amax(dims, keep))


def test_softmax_tracks_no_index():
    x = torch.randn(3, 5)
    imported = frontend.import_torch(frontend.from_torch(Function(lambda x: torch.softmax(x, -1)), (x,), {}, "m"))
    module = frontend.lower_to_linalg(imported)
    assert "i64" not in str(module)
    torch.testing.assert_close(run_level(module, [x], {})[0], torch.softmax(x, -1))
