"""Wrong numbers are findings: each kernel on the host device against the same kernel at the levels above."""

from __future__ import annotations

import re
import shutil

import ml_dtypes
import numpy as np
import pytest

import mlirc
from mlirc import mlir
from mlirc.device import DeviceKernel
from mlirc.device.judge import judged, wrong
from mlirc.device.reference import Reference, References
from mlirc.device.report import Report
from mlirc.driver.compilation import compile_model
from mlirc.errors import MlircError
from mlirc.tools import mlirc_run
from support.kernels.mutant_cases import lowered
from support.kernels.payloads import generic, kernel, matmul

PAYLOAD = matmul(33, 40, 50, "f32", epilogue=False)
KNOBS = "matmul:block_m=16,block_n=16,block_k=16,stages=2"


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    folder = tmp_path_factory.mktemp("compiled")
    (folder / "m.mlir").write_text(PAYLOAD)
    compile_model(str(folder / "m.mlir"), folder / "m.ptx", cache=False, schedule=[KNOBS])
    return folder


@pytest.fixture
def model(compiled, tmp_path):
    """A copy of a compiled model whose levels a test may spoil."""
    shutil.copytree(compiled, tmp_path / "c")
    return tmp_path / "c" / "m.ptx"


def spoil(model, level: str, old: str, new: str) -> None:
    """Changes the first line of a kernel's body that matches a pattern."""
    file = model.with_suffix(".levels") / f"{level}.mlir"
    text, count = re.subn(old, new, file.read_text(), count=1)
    assert count == 1
    file.write_text(text)


def inputs(loaded) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    return [rng.standard_normal(spec.shape).astype(np.float32) for spec in loaded.plan.inputs]


def findings(model, **attributes) -> list:
    with mlirc.load(str(model), device="host", verify=False) as loaded:
        for name, value in attributes.items():
            setattr(loaded, name, value)
        try:
            loaded(*inputs(loaded))
        except MlircError:
            assert loaded.report.findings
        return loaded.report.findings


def test_wrong_numbers_name_the_element_the_store_and_the_step(model):
    spoil(model, "gpu", r"scf\.for (%\S+) = %c0 to %c50 step", r"scf.for \1 = %c0 to %c32 step")
    (found,) = findings(model)
    assert found.kind == "wrong result" and found.kernel == "matmul_0" and "scripts/matmul.py:" in found.script
    assert found.op in ("memref.store", "vector.store") and "gpu.mlir:" in found.location
    assert re.match(r"block 0 thread \d+ writes \S+ as element \[0, 0\], which level kernels says is ", found.message)
    assert "level tiles has it right, too" in found.message and found.count == 33 * 40


def test_only_what_the_chosen_blocks_computed_is_compared(model):
    spoil(model, "gpu", r"scf\.for (%\S+) = %c0 to %c50 step", r"scf.for \1 = %c0 to %c32 step")
    (found,) = findings(model, blocks=[4])
    assert found.kind == "wrong result" and found.message.startswith("block 4 thread ") and found.count <= 256


def test_the_schedule_is_blamed_where_its_tiles_are_wrong(model):
    spoil(model, "gpu", r"scf\.for (%\S+) = %c0 to %c50 step", r"scf.for \1 = %c0 to %c32 step")
    spoil(model, "tiles", r"arith\.mulf", "arith.addf")
    (found,) = findings(model)
    assert "level tiles has it wrong already: look at the schedule" in found.message


def test_right_models_and_runs_that_do_not_compare_have_no_finding(model):
    assert not findings(model)
    spoil(model, "gpu", r"scf\.for (%\S+) = %c0 to %c50 step", r"scf.for \1 = %c0 to %c32 step")
    assert findings(model) and not findings(model, compare=False, match=False) and not findings(model, check=False)


def test_the_program_compares_unless_told_not_to(model, ran):
    spoil(model, "gpu", r"scf\.for (%\S+) = %c0 to %c50 step", r"scf.for \1 = %c0 to %c32 step")
    result = ran(mlirc_run.main, model, "--random-inputs", 0, "--device", "host", "--no-verify")
    assert result.status == 1 and "matmul_0: wrong result: " in result.err
    assert ran(mlirc_run.main, model, "--random-inputs", 0, "--level", "gpu", "--no-compare", "--no-verify").status == 0
    result = ran(mlirc_run.main, model, "--random-inputs", 0, "--no-compare")
    assert result.status == 1 and "--no-compare is for the host device" in result.err


def test_levels_of_another_compilation_are_an_error(model):
    file = model.with_suffix(".levels") / "kernels.mlir"
    good = file.read_text()
    file.write_text(good.replace("matmul_0", "matmul_7"))
    with (
        mlirc.load(str(model), device="host", verify=False) as loaded,
        pytest.raises(MlircError, match="compile the model again"),
    ):
        loaded(*inputs(loaded))
    file.unlink()
    with (
        mlirc.load(str(model), device="host", verify=False) as loaded,
        pytest.raises(MlircError, match="cannot read level kernels"),
    ):
        loaded(*inputs(loaded))


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16, ml_dtypes.bfloat16])
def test_rounding_is_not_wrong_and_a_wrong_element_is(dtype):
    rng = np.random.default_rng(0)
    right = (3 * rng.standard_normal((7, 13))).astype(dtype)
    right[2, 3], right[4, 5], right[6, 0] = np.nan, np.inf, -np.inf
    eps = float(ml_dtypes.finfo(dtype).eps)
    near = (right.astype(np.float64) * (1 + eps)).astype(dtype)
    assert not wrong(near, right).any()
    for at, value in {(0, 0): 0.5 + float(right[0, 0]), (1, 1): np.nan, (2, 3): 1.0, (4, 5): -np.inf}.items():
        bad = near.copy()
        bad[at] = value
        assert np.argwhere(wrong(bad, right)).tolist() == [list(at)]


def test_integers_are_exact():
    right = np.array([[1, 2**30, -5]], np.int32)
    assert not wrong(right.copy(), right).any()
    assert wrong(right + np.array([[0, 1, 0]], np.int32), right).tolist() == [[False, True, False]]
    assert wrong(np.array([True]), np.array([False])).all()


def test_a_kernel_of_integers_and_of_several_results():
    x = "tensor<5x7xi32>"
    body = f"  %e = tensor.empty() : {x}\n" + generic(
        "r", "a, b", [("%x", x, "a, b"), ("%z", x, "a, b")], ("%e", x, "a, b"), "%y = arith.addi %x0, %x1 : i32"
    )
    text, arguments, specs = lowered(kernel("elementwise_0", "elementwise", {"x": x, "z": x}, x, body), "")
    results = [np.zeros(s.shape, s.dtype) for s in specs]
    device = DeviceKernel(mlir.parse(text))
    assert device.run([*arguments, *results], reference=Reference([("sum", lambda a, b: [a + b])], 2)).ok
    report = device.run([*arguments, *results], reference=Reference([("sum", lambda a, b: [a - b])], 2))
    assert report.kinds() == {"wrong result"} and report.findings[0].count == int((arguments[1] != 0).sum())


def test_references_compile_each_kernel_once_and_name_what_is_missing():
    module = mlir.parse(PAYLOAD)
    found = References({"kernels": module})
    reference = found.of("matmul_0")
    rng = np.random.default_rng(1)
    a, b = rng.standard_normal((33, 50)).astype(np.float32), rng.standard_normal((40, 50)).astype(np.float32)
    name, function = reference.steps[0]
    assert name == "kernels" and reference.inputs == 4
    unused = [np.zeros(40, np.float32), np.zeros((33, 40), np.float32)]
    np.testing.assert_allclose(function(a, b, *unused)[0], a @ b.T, rtol=0, atol=1e-4)
    with pytest.raises(MlircError, match="kernel other is not in the levels above gpu"):
        found.of("other")


def test_a_wave_of_an_exact_number_is_bounded_however_large_the_number():
    x = "tensor<5x7xf32>"
    body = f"  %e = tensor.empty() : {x}\n" + generic(
        "r", "a, b", [("%x", x, "a, b")], ("%e", x, "a, b"), "%y = math.sin %x0 : f32"
    )
    payload = kernel("elementwise_0", "elementwise", {"x": x}, x, body)
    text, _, _ = lowered(payload, "")
    reference = References({"kernels": mlir.parse(payload)}).of("elementwise_0")
    numbers = (np.random.default_rng(0).standard_normal((5, 7)) * 1e17).astype(np.float32)
    result = np.zeros_like(numbers)
    assert DeviceKernel(mlir.parse(text)).run([numbers, result], reference=reference).ok
    assert np.abs(result).max() <= 1
    report = DeviceKernel(mlir.parse(text.replace("math.sin", "math.cos"))).run([numbers, result], reference=reference)
    assert report.kinds() == {"wrong result"} and report.findings[0].count == numbers.size


def test_a_product_that_overflows_may_be_fused_with_a_sum_and_is_an_infinity_else():
    x = "tensor<5x7xf32>"
    names = ("%x", "%z", "%w")
    body = f"  %e = tensor.empty() : {x}\n" + generic(
        "r", "a, b", [(n, x, "a, b") for n in names], ("%e", x, "a, b"),
        "%p = arith.mulf %x0, %x1 : f32\n%y = arith.addf %p, %x2 : f32",
    )  # fmt: skip
    payload = kernel("elementwise_0", "elementwise", {n[1:]: x for n in names}, x, body)
    text, _, _ = lowered(payload, "")
    reference = References({"kernels": mlir.parse(payload)}).of("elementwise_0")
    device, result = DeviceKernel(mlir.parse(text)), np.zeros((5, 7), np.float32)
    large, added = np.full((5, 7), 1e30, np.float32), np.ones((5, 7), np.float32)
    added[0] = -np.inf
    assert device.run([large, large, added, result], reference=reference).ok
    assert np.all(result[0] == -np.inf) and np.all(result[1:] == np.inf)
    finite = DeviceKernel(mlir.parse(re.sub(r"math.fma (%\w+), (%\w+),", r"math.fma \1, \1,", text)))
    report = finite.run([np.full_like(large, 1e10), large, added, result], reference=reference)
    assert report.kinds() == {"wrong result"} and report.findings[0].count == result.size - 7


def test_how_much_of_a_result_is_judged():
    """Bounds of more than an element say nothing of it, but for one that is small beside the others."""
    x = np.array([1.0, 1.0, 1e-6, 0.0, np.nan, np.inf, np.inf, -2.0], np.float32)
    bound = np.array([1e-6, 1.5, 1e-5, 1e-5, 0.0, 0.0, np.inf, np.nan])
    assert judged(x, bound).tolist() == [True, False, True, True, True, True, False, False]
    assert judged(np.zeros(3, np.float32), np.array([1e-45, 0.0, 1.0])).tolist() == [True, True, False]
    assert judged(x.astype(np.float16), np.zeros(8)).all()
    assert judged(np.array([3, 0]), np.array([0.0, np.inf])).tolist() == [True, False]
    report = Report()
    report.judge("k", np.array([True, False, True]), np.array([True, True, False]))
    report.judge("k", np.array([True, True]))
    other = Report()
    other.judge("k", np.array([False]))
    report.merge(other)
    assert report.judged == {"k": (3, 5)} and report.shares() == {"k": 60.0}


def test_the_summary_names_kernels_that_little_is_known_of(model):
    with mlirc.load(str(model), device="host", verify=False) as loaded:
        loaded.match, loaded.input_sets = False, ()
        loaded(*inputs(loaded))
        assert "compared with level kernels, judged 100 % of elements" in loaded.summary()
        loaded(*(1e38 * x for x in inputs(loaded)))
        assert re.search(r"judged [\d.]+ % of elements; matmul_0 [\d.]+ %", loaded.summary()), loaded.summary()
        assert loaded.report.shares()["matmul_0"] < 90
