"""How the backend is found, what its options may be, and what happens to what cannot be compiled."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import torch

from mlirc.errors import MlircError
from mlirc.torch_backend.options import read_options

ROOT = Path(__file__).resolve().parents[2]


def test_pytorch_finds_the_backend_by_its_entry_point_and_imports_it_when_asked(tmp_path):
    group = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]["torch_dynamo_backends"]
    about = tmp_path / "site" / "found-1.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: found\nVersion: 1\n")
    lines = [f"{name} = {value}" for name, value in group.items()]
    (about / "entry_points.txt").write_text("\n".join(["[torch_dynamo_backends]", *lines, ""]))
    program = f"""
import sys
sys.path.insert(0, {str(about.parent)!r})
import torch
assert not [m for m in sys.modules if m.split(".")[0] == "mlirc"]
double = torch.compile(lambda x: x + x, backend="mlirc", options={{"fallback": False}})
assert not [m for m in sys.modules if m.split(".")[0] == "torch_mlir"]
print(double(torch.ones(3)).tolist(), "mlirc" in torch._dynamo.list_backends())
"""
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=600)
    assert run.stdout == "[2.0, 2.0, 2.0] True\n", run.stderr


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"targets": "sm_90a"}, "unknown option 'targets'"),
        ({"target": "sm_1"}, "sm_1"),
        ({"fp32": "fast"}, "fast"),
        ({"device": "cuda"}, "the tensors' own device decides"),
        ({"level": "ptx"}, "use one of linalg, kernels, tiles"),
        ({"fallback": "no"}, "give True or False"),
    ],
)
def test_wrong_options_are_refused(options, says):
    with pytest.raises(MlircError, match=says):
        read_options(options)


def test_a_mode_is_refused():
    with pytest.raises(MlircError, match="mode='max-autotune'"):
        read_options(None, "max-autotune")


def unknown(x):
    return torch.special.bessel_j0(x) + 1


def test_an_unsupported_op_runs_in_eager_after_one_warning(compiled, caplog):
    call = compiled(unknown, fallback=True)
    for _ in range(3):
        x = torch.randn(3)
        assert torch.equal(call(x), unknown(x))
    assert caplog.text.count("runs in eager") == 1 and "special_bessel_j0" in caplog.text


def test_an_unsupported_op_is_an_error_without_fallback(compiled):
    with pytest.raises(Exception, match="special_bessel_j0"):
        compiled(unknown)(torch.randn(3))


def test_the_rest_of_a_broken_graph_is_compiled(compiled, caplog):
    def function(x):
        y = x * 2
        torch._dynamo.graph_break()
        return unknown(y)

    x = torch.randn(3)
    torch.testing.assert_close(compiled(function, fallback=True)(x), function(x))
    assert caplog.text.count("runs in eager") == 1


def test_tensors_that_are_not_dense_run_in_eager(compiled, caplog):
    x = torch.eye(3).to_sparse()
    y = torch.randn(3, 2)
    torch.testing.assert_close(compiled(lambda x, y: x @ y, fallback=True)(x, y), x @ y)


def test_a_token_outside_of_its_table_is_an_error(compiled):
    table = torch.nn.Embedding(5, 3)
    call = compiled(table)
    with torch.no_grad():
        call(torch.tensor([4, 0]))
        with pytest.raises(MlircError, match="index 5 is out of range"):
            call(torch.tensor([5, 0]))


@pytest.mark.parametrize("options", [{"device": "host"}, {"level": "tiles", "schedule": "matmul:block_m=32"}])
def test_kernels_run_on_the_cpu(options, compiled, same):
    layer = torch.nn.Linear(7, 5)

    def function(x, seen):
        seen.add_(x)
        return layer(x).relu(), torch.nn.functional.dropout(seen, 0.0, True)

    call = compiled(function, **options)
    x, seen = torch.randn(3, 7), torch.randn(3, 7)
    other = seen.clone()
    with torch.no_grad():
        same(call(x, seen), function(x, other))
    same(seen, other)


def test_a_refusal_names_the_module_of_the_model(compiled, caplog):
    class Unknown(torch.nn.Module):
        def forward(self, x):
            return unknown(x)

    model = torch.nn.Sequential(torch.nn.Linear(3, 2), Unknown())
    with torch.no_grad():
        compiled(model, fallback=True)(torch.randn(2, 3))
    assert "special_bessel_j0 in module '1'" in caplog.text
