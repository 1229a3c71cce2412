"""On the GPU: kernels that take tensor maps, launched alone and in graphs, from wherever their tensors are; launches
that begin early."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from mlirc import mlir
from mlirc.driver.compilation import Compilation
from mlirc.runtime import load
from mlirc.runtime.cuda import Driver
from support.devices.gpu_kernel import NO_GPU, on_gpu, run_kernel, target_of
from support.kernels.chain import chain
from support.kernels.tensor_maps import CASES


def too_old() -> bool:
    """Whether the GPU has no tensor copies."""
    if NO_GPU is not None:
        return True
    driver = Driver(0)
    driver.close()
    return driver.cc < 90


pytestmark = [*on_gpu, pytest.mark.skipif(too_old(), reason="tensor copies need sm_90 or later")]


def compiled(text: str, folder: Path) -> None:
    """Compiles a model at the `gpu` level for this machine's GPU: m.ptx."""
    driver = Driver(0)
    target = target_of(driver)
    driver.close()
    (folder / "m.mlir").write_text(text)
    job = Compilation("m", target, helpers=1)
    job.open(str(folder / "m.mlir"))
    job.lower("ptx")
    job.write(folder / "m.ptx")


@pytest.mark.parametrize("name", CASES)
def test_one_launch(name):
    case = CASES[name]
    inputs = case.inputs(3)
    right = case.right(*inputs)
    outputs = [np.full_like(r, 77) for r in right]
    run_kernel(mlir.parse(case.kernel()), inputs, outputs)
    for mine, expected in zip(outputs, right, strict=True):
        np.testing.assert_array_equal(mine, expected)


@pytest.mark.parametrize("graph", [True, False])
@pytest.mark.parametrize("name", ["odd rows", "wide"])
def test_addresses_that_change_from_call_to_call(name, graph, tmp_path):
    torch = pytest.importorskip("torch")
    case = CASES[name]
    compiled(case.model(), tmp_path)
    kept = []  # so that no memory is used twice
    with load(str(tmp_path / "m.ptx"), weights={}, graph=graph) as model:
        for seed in range(4):
            (x,) = case.inputs(seed)
            there = torch.from_numpy(x.astype(np.float32)).cuda()
            there = there.bfloat16() if case.dtype == "bf16" else there
            results = model(there)
            kept += [there, *results]
            for mine, right in zip(results, case.right(x), strict=True):
                np.testing.assert_array_equal(mine.float().cpu().numpy(), right.astype(np.float32))
        addresses = {tensor.data_ptr() for tensor in kept}
    assert len(addresses) == len(kept)


@pytest.mark.parametrize("graph", [True, False])
def test_launches_that_begin_early_wait_for_what_they_read(graph, tmp_path):
    tensor = "tensor<1000xf32>"
    main = f"""func.func private @k({tensor}) -> {tensor} attributes {{mlirc.kernel}}
func.func @main(%x: {tensor}) -> {tensor} {{
  %a = call @k(%x) : ({tensor}) -> {tensor}
  %b = call @k(%a) : ({tensor}) -> {tensor}
  return %b : {tensor}
}}"""
    compiled(f"{main}\n\n// -----\n\n{chain()}", tmp_path)
    with load(str(tmp_path / "m.ptx"), weights={}, graph=graph) as model:
        assert [launch.dependent for launch in model.plan.launches] == [False, True, True] * 2
        for seed in range(50):
            x = np.random.default_rng(seed).standard_normal(1000).astype(np.float32)
            np.testing.assert_array_equal(model(x), 64 * x)


@pytest.mark.parametrize("graph", [True, False])
def test_a_model_whose_launches_begin_early_gives_the_same_bits(graph, tmp_path):
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)
    layers = [m for _ in range(6) for m in (torch.nn.Linear(264, 264), torch.nn.Softmax(-1))]
    module = torch.nn.Sequential(*layers).to(torch.bfloat16).eval()
    driver = Driver(0)
    target = target_of(driver)
    driver.close()
    for rows in (1, 67):
        for name in ("false", "true"):
            job = Compilation(name, target, (f"graph:dependent={name}",), helpers=1)
            job.import_module(module, (torch.zeros(rows, 264, dtype=torch.bfloat16),), {})
            job.lower("ptx")
            job.write(tmp_path / f"{name}.ptx", weights=False)
        weights = {name: tensor.cuda() for name, tensor in module.state_dict().items()}
        after, early = (load(str(tmp_path / f"{name}.ptx"), weights, graph=graph) for name in ("false", "true"))
        assert all(launch.dependent for launch in early.plan.launches)
        kept = []  # so that no memory is used twice
        for _ in range(50):
            x = torch.randn(rows, 264, dtype=torch.bfloat16).cuda()
            kept += [x, after(x), early(x)]
            assert torch.equal(kept[-1], kept[-2])
        after.close()
        early.close()
