"""PTX executed on the CPU: what the back end makes of a kernel computes what the `gpu` level computes, to the bit."""

from __future__ import annotations

import numpy as np
import pytest

from mlirc import mlir
from mlirc.backend.kernel import CompiledKernel, Launch
from mlirc.backend.ptx import compile_kernel
from mlirc.device import DeviceKernel
from mlirc.device.ptx import run_kernel
from mlirc.errors import MlircError
from mlirc.targets import get_target
from support.kernels.launched import gpu_level
from support.kernels.mutant_cases import KERNELS, ORDER, case, lowered
from support.mutants.plans import ptx_mutants

NAMES = [*(name for name, (text, _) in KERNELS.items() if text), *ORDER]


def made(name: str) -> tuple[CompiledKernel, list[np.ndarray], list[np.ndarray], list[np.ndarray]]:
    """A kernel compiled, its inputs, what the host device computes, and empty results."""
    if name in ORDER:
        kernel = case(name, 1)
        text, arguments, specs = kernel.text, kernel.arguments[0], kernel.specs
    else:
        text, arguments, specs = lowered(*KERNELS[name])
    right, found = ([np.zeros(s.shape, s.dtype) for s in specs] for _ in range(2))
    assert DeviceKernel(mlir.parse(text)).run([*arguments, *right]).ok
    return compile_kernel(mlir.parse(text), get_target("sm_90a")), arguments, right, found


@pytest.mark.parametrize("name", NAMES)
def test_the_ptx_of_a_kernel_computes_what_the_gpu_level_does(name):
    kernel, arguments, right, found = made(name)
    run_kernel(kernel, [*arguments, *found])
    for a, b in zip(right, found, strict=True):
        assert a.tobytes() == b.tobytes()


def test_edited_instructions_compute_something_else():
    """Of edits of a reduction's and a product's PTX all but a few show in the numbers, or as an error."""
    shown = total = 0
    for name in ("norm, 4 warps", "matmul, fma, batch"):
        kernel, arguments, right, _ = made(name)
        for how, ptx in ptx_mutants(kernel.ptx):
            if how in (
                "cached otherwise",
                "barrier removed",
                "rounded otherwise",
            ):  # the first two are no numbers' matter
                continue
            found = [np.zeros_like(a) for a in right]
            edited = CompiledKernel(kernel.name, ptx, "", kernel.launches, kernel.workspaces)
            try:
                run_kernel(edited, [*arguments, *found])
                shown += any(a.tobytes() != b.tobytes() for a, b in zip(right, found, strict=True))
            except MlircError:
                shown += 1
            total += 1
    assert total > 15 and shown > 0.6 * total


HEAD = ".version 8.3\n.target sm_90a\n.address_size 64\n.visible .entry k(\n\t.param .u64 .ptr .align 16 k_param_0\n)\n"
SUM = """{
\t.reg .pred %p<2>;
\t.reg .b32 %r<5>;
\t.reg .b64 %rd<4>;
\tld.param.b64 %rd1, [k_param_0];
\tmov.u32 %r1, %tid.x;
\tmul.wide.u32 %rd2, %r1, 4;
\tadd.s64 %rd3, %rd1, %rd2;
\tsetp.lt.u32 %p1, %r1, 8;
\t@%p1 bra $L_low;
\tadd.s32 %r2, %r1, 100;
\tbra.uni $L_end;
$L_low:
\tadd.s32 %r2, %r1, 200;
$L_end:
\tshfl.sync.bfly.b32 %r3, %r2, 8, 31, -1;
\tst.global.b32 [%rd3], %r3;
\tret;
}
"""


def kernel_of(body: str, threads: int = 32) -> CompiledKernel:
    return CompiledKernel("k", HEAD + body, "", [Launch("k", (1, 1, 1), (threads, 1, 1), 0, [0])], [])


def test_lanes_that_went_apart_meet_again():
    out = np.zeros(32, np.int32)
    run_kernel(kernel_of(SUM), [out])
    lanes = np.arange(32) ^ 8
    np.testing.assert_array_equal(out, lanes + np.where(lanes < 8, 200, 100))


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("add.s32 %r2, %r1, 100", "lop3.b32 %r2, %r1, 1, 2, 3", "k: line 17: `lop3.b32` is not known here"),
        ("add.s32 %r2, %r1, 100", "add.sat.s32 %r2, %r1, 100", "k: line 17: `add.sat.s32` is not known here"),
        ("add.s32 %r2, %r1, 100", "shf.l.wrap.b32 %r2, %r1, %r1, 3", "`shf.l.wrap.b32` is not known here"),
        ("[%rd3]", "[%rd3+4]", "line 23: st.global.b32: block 0 thread 31: address .* is out of bounds"),
        ("[%rd3]", "[%rd3+2]", "thread 0: address .* is no multiple of 4"),
        ("@%p1 bra $L_low;", "@%p1 ret;", "nothing"),
        ("bra.uni $L_end", "bar.sync 0; bra.uni $L_end", "a deadlock: 32 threads wait for others that never come"),
        (".reg .b32 %r<5>", ".reg .b128 %r<5>", "registers of type .b128 are not known here"),
    ],
)
def test_what_is_not_known_or_not_allowed_is_said(old, new, says):
    assert SUM.count(old) == 1
    kernel = kernel_of(SUM.replace(old, new))
    if says == "nothing":  # those that have left are not waited for
        with pytest.raises(MlircError, match="reads a lane that does not execute it"):
            run_kernel(kernel, [np.zeros(32, np.int32)])
        return
    with pytest.raises(MlircError, match=says):
        run_kernel(kernel, [np.zeros(32, np.int32)])


def test_halves_of_a_warp_meet_for_themselves():
    """Each half waits at a barrier of its own, in a place of its own, and lanes that have left are not waited for."""
    masked = SUM.replace("\tadd.s32 %r2, %r1, 100;", "\tbar.warp.sync -256;\n\tadd.s32 %r2, %r1, 100;").replace(
        "\tadd.s32 %r2, %r1, 200;", "\tmov.b32 %r4, 255;\n\tbar.warp.sync %r4;\n\tadd.s32 %r2, %r1, 200;"
    )
    out = np.zeros(32, np.int32)
    run_kernel(kernel_of(masked), [out])
    lanes = np.arange(32) ^ 8
    np.testing.assert_array_equal(out, lanes + np.where(lanes < 8, 200, 100))
    left = SUM.replace("@%p1 bra $L_low;", "@%p1 ret;").replace("\tshfl.sync.bfly.b32 %r3, %r2, 8, 31, -1;",
                                                               "\tbar.warp.sync -1;\n\tmov.b32 %r3, %r2;")  # fmt: skip
    run_kernel(kernel_of(left), [out := np.zeros(32, np.int32)])
    np.testing.assert_array_equal(out, np.where(np.arange(32) < 8, 0, np.arange(32) + 100))


def test_threads_that_wait_for_ever_are_an_error():
    body = SUM.replace("\tadd.s32 %r2, %r1, 100;", "\tbar.warp.sync -1;")
    with pytest.raises(MlircError, match="a deadlock: 32 threads wait for others that never come"):
        run_kernel(kernel_of(body), [np.zeros(32, np.int32)])


EXPRESSIONS = {
    "i8": ("i8", "%r = arith.muli %a, %b : i8\n %q = arith.remsi %r, %c : i8\n %z = arith.shrsi %q, %one : i8"),
    "i16": ("i16", "%r = arith.divsi %a, %c : i16\n %q = arith.shli %r, %one : i16\n %z = arith.xori %q, %b : i16"),
    "i64": ("i64", "%r = arith.muli %a, %b : i64\n %q = arith.divui %r, %c : i64\n %z = arith.maxsi %q, %a : i64"),
    "f16": ("f16", "%r = arith.mulf %a, %b : f16\n %q = arith.addf %r, %c : f16\n %z = arith.maximumf %q, %a : f16"),
    "f64": ("f64", "%r = arith.mulf %a, %b : f64\n %q = arith.divf %r, %c : f64\n %z = arith.minimumf %q, %a : f64"),
}  # fmt: skip


@pytest.mark.parametrize("name", EXPRESSIONS)
def test_numbers_of_every_width(name):
    kind, body = EXPRESSIONS[name]
    type_ = f"memref<3x101x{kind}>"
    one = f"%one = arith.constant 1 : {kind}\n" if kind[0] == "i" else ""
    loads = "".join(f"%{v} = memref.load %x[%i{k}, %at] : {type_}\n" for k, v in enumerate("abc"))
    rows = "".join(f"%i{k} = arith.constant {k} : index\n" for k in range(3))
    code = f"""{rows}{one}%n = arith.constant 100 : index
      %at = arith.minui %tx, %n : index
      {loads}{body}
      memref.store %z, %y[%at] : memref<101x{kind}>"""
    text = gpu_level(code, {"x": type_, "y": f"memref<101x{kind}>"})
    rng = np.random.default_rng(2)
    dtype = {"i8": np.int8, "i16": np.int16, "i64": np.int64, "f16": np.float16, "f64": np.float64}[kind]
    low, high = (-100, 100) if kind == "i8" else (-30000, 30000)
    x = (
        rng.integers(low, high, (3, 101)).astype(dtype)
        if kind[0] == "i"
        else rng.standard_normal((3, 101)).astype(dtype)
    )
    x[2] = np.where(x[2] == 0, 7, x[2])  # divisors
    right, found = np.zeros(101, dtype), np.zeros(101, dtype)
    DeviceKernel(mlir.parse(text)).run([x, right], check=False)
    run_kernel(compile_kernel(mlir.parse(text), get_target("sm_90a")), [x, found])
    assert right.tobytes() == found.tobytes(), (right[:9], found[:9])
