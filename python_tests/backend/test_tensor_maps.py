"""Tensor maps as arguments of launches: the op, the PTX, the plan."""

from __future__ import annotations

import re

import pytest

from mlirc import mlir
from mlirc.backend.plan_builder import build_plan
from mlirc.backend.ptx import check_ptxas, compile_kernel, find_ptxas, merge_ptx
from mlirc.backend.target_check import check_instructions
from mlirc.errors import MlircError
from mlirc.runtime.plan import KernelLaunch, Plan, Ref, Repeat, TensorSpec
from mlirc.runtime.plan_file import embed, extract
from mlirc.runtime.plan_json import from_json, to_json
from mlirc.runtime.repeats import Motion, unroll
from mlirc.runtime.tensor_map import TensorMapSpec
from mlirc.targets import get_target
from support.kernels.tensor_maps import CASES, MAP

SM90A = get_target("sm_90a")
HOST = 'func.func @k(%x: {type}) {{ %m = "mlirc.tensor_map"(%x) {{{made}}} : ({type}) -> {result} return }}'


@pytest.mark.parametrize(
    ("type_", "made", "why"),
    [
        ("memref<4x?xf32>", "box = array<i64: 4, 4>, swizzle = 0", "takes a memref of static shape"),
        ("memref<4x8xf32, strided<[16, 1]>>", "box = array<i64: 4, 4>, swizzle = 0", "with identity layout"),
        ("memref<f32>", "box = array<i64>, swizzle = 0", "an array of 0 dimensions: it has 1 to 5"),
        ("memref<1x1x1x1x1x4xf32>", "box = array<i64: 1, 1, 1, 1, 1, 4>, swizzle = 0", "of 6 dimensions"),
        ("memref<0x4xf32>", "box = array<i64: 1, 4>, swizzle = 0", "an array of extents .0, 4.: each is 1 to"),
        ("memref<4x8xi4>", "box = array<i64: 4, 8>, swizzle = 0", "elements of type 'i4'"),
        ("memref<4x8xindex>", "box = array<i64: 4, 8>, swizzle = 0", "elements of type 'index'"),
        ("memref<4x8xf32>", "box = array<i64: 8>, swizzle = 0", "a box of 1 dimensions of an array of 2"),
        ("memref<4x8xf32>", "box = array<i64: 257, 8>, swizzle = 0", "each is 1 to 256"),
        ("memref<4x8xf32>", "box = array<i64: 4, 0>, swizzle = 0", "each is 1 to 256"),
        ("memref<4x8xf32>", "box = array<i64: 4, 3>, swizzle = 0", "12 bytes: it must be a multiple of 16"),
        ("memref<4x16xf32>", "box = array<i64: 4, 16>, swizzle = 32", "64 bytes: with a swizzle of 32 it has as many"),
        ("memref<4x16xf32>", "box = array<i64: 4, 8>, swizzle = 64", "32 bytes: with a swizzle of 64 it has as many"),
        ("memref<4x16xf32>", "box = array<i64: 4, 4>, swizzle = 16", "a swizzle of 16 bytes"),
        ("memref<4x7xf32>", "box = array<i64: 4, 4>, swizzle = 0", "rows of 28 bytes: they must be a multiple of 16"),
        ("memref<4x8xf32>", "box = [4, 4], swizzle = 0", "'box' must be an array of i64"),
        ("memref<4x8xf32>", 'box = array<i64: 4, 4>, swizzle = "no"', "'swizzle' must be an integer"),
        ("tensor<4x8xf32>", "box = array<i64: 4, 4>, swizzle = 0", "takes a memref of static shape"),
    ],
)
def test_what_the_op_refuses(type_, made, why):
    with pytest.raises(MlircError, match=f"'mlirc.tensor_map' op .*{why}"):
        mlir.parse(HOST.format(type=type_, made=made, result="!llvm.ptr"))


def test_the_result_is_a_pointer():
    made = "box = array<i64: 4, 4>, swizzle = 0"
    mlir.parse(HOST.format(type="memref<4x8xf32>", made=made, result="!llvm.ptr"))
    with pytest.raises(MlircError, match="makes a !llvm.ptr, not i64"):
        mlir.parse(HOST.format(type="memref<4x8xf32>", made=made, result="i64"))


@pytest.mark.parametrize("name", CASES)
def test_a_kernel_takes_its_maps_by_value(name):
    case = CASES[name]
    kernel = compile_kernel(mlir.parse(case.kernel()), SM90A)
    (launch,) = kernel.launches
    assert launch.args == [0, 2, 1] and launch.maps == {0: case.spec, 2: case.spec}
    parameters = re.findall(r"\.param (.*?) twice_0_param_\d(\S*)", kernel.ptx.split("{")[0])
    assert [p + rest.rstrip(",") for p, rest in parameters] == [
        ".align 64 .b8[128]", ".u64 .ptr .align 16", ".align 64 .b8[128]",
    ]  # fmt: skip
    if find_ptxas():
        assert "0 bytes spill stores" in check_ptxas(kernel.ptx, SM90A)


CASE = CASES["odd rows"]


def test_a_map_that_is_no_value_is_refused():
    with pytest.raises(MlircError, match=r"argument 2 of twice_0 is a tensor map: it needs .*llvm.byval"):
        compile_kernel(mlir.parse(re.sub(r"(%to: !llvm.ptr) \{.*?\}", r"\1", CASE.kernel())), SM90A)


def test_a_pointer_from_elsewhere_is_no_argument():
    text = re.sub(r'%to = "mlirc.tensor_map".*', "%to = llvm.mlir.zero : !llvm.ptr", CASE.kernel())
    with pytest.raises(MlircError, match="llvm.mlir.zero is not allowed: a host function only"):
        compile_kernel(mlir.parse(text), SM90A)


def test_older_targets_have_no_tensor_copies():
    with pytest.raises(
        MlircError, match="kernel twice: mlirc.tensor_map: sm_80 has no tensor maps: compile for sm_90a"
    ):
        check_instructions(mlir.parse(CASE.kernel()), "twice", get_target("sm_80"))
    check_instructions(mlir.parse(CASE.kernel()), "twice", SM90A)


def test_a_map_may_be_of_a_view():
    flat = CASE.kernel().replace("func.func @twice(%x: memref<13x24xf32>", "func.func @twice(%x: memref<312xf32>")
    view = "%view = memref.expand_shape %x [[0, 1]] output_shape [13, 24] : memref<312xf32> into memref<13x24xf32>\n"
    text = flat.replace('%from = "mlirc.tensor_map"(%x)', f'{view}    %from = "mlirc.tensor_map"(%view)')
    (launch,) = compile_kernel(mlir.parse(text), SM90A).launches
    assert launch.args[0] == 0 and launch.offsets[0] == 0 and launch.maps[0] == CASE.spec


@pytest.mark.parametrize("shared", [False, True])
def test_a_buffer_that_is_behind_a_map_too_is_not_read_as_one_that_nobody_writes(shared):
    matrix = "memref<13x24xf32>"
    text = CASE.kernel().replace(f"%to: {MAP}) kernel", f"%to: {MAP}, %other: {matrix}) kernel")
    text = text.replace("%v = memref.load", f"%old = memref.load %other[%b, %i] : {matrix}\n%v = memref.load")
    text = text.replace("arith.addf %v, %v", "arith.addf %v, %old")
    text = text.replace("%to : !llvm.ptr)", f"%to : !llvm.ptr, %{'y' if shared else 'w'} : {matrix})")
    text = text.replace("%one =", f"%w = memref.alloc() : {matrix}\n%one =", 1)
    assert ("ld.global.nc" in compile_kernel(mlir.parse(text), SM90A).ptx) != shared


def test_the_plan_says_the_maps(tmp_path):
    kernel = compile_kernel(mlir.parse(CASE.kernel()), SM90A)
    main = mlir.parse(CASE.model().split("// -----")[0])
    plan = build_plan(main, {"twice": kernel}, model="m", target="sm_90a")
    (step,) = plan.steps
    assert isinstance(step, KernelLaunch) and step.maps == {0: CASE.spec, 2: CASE.spec}
    assert step.args == (Ref("input", 0, 0, 1248), Ref("output", 1, 0, 2048), Ref("output", 0, 0, 1248))
    text = embed(merge_ptx([kernel.ptx], SM90A), plan)
    assert '"maps":[[0,"f32",[13,24],[8,16],0],[2,"f32",[13,24],[8,16],0]]' in text
    assert extract(text) == plan


def test_the_steps_of_a_loop_keep_their_maps():
    """A tile of a stack in each iteration: the address moves, the map is of the same form."""
    tensors = [TensorSpec(name, "f32", (4, 8, 4), kind) for name, kind in (("x", "input"), ("y", "output"))]
    maps = {0: TensorMapSpec("f32", (8, 4), (8, 4))}
    step = KernelLaunch("k", (1, 1, 1), (32, 1, 1), 0, (Ref("input", 0, 0, 128), Ref("output", 0, 0, 128)), maps=maps)
    steps = unroll([step], [[Motion(128, 4), Motion(128, 4)]], 4)
    plan = Plan("m", "sm_90a", tensors[:1], tensors[1:], [], 0, steps, repeats=[Repeat(0, 1, 4)])
    assert len(plan.launches) == 4 and from_json(to_json(plan)) == plan
    text = to_json(plan)
    assert text.count('"maps"') == 1
    with pytest.raises(MlircError, match="step 1 .*a tensor map: is given byte 136 of input 0: not a multiple of 16"):
        from_json(text.replace("[0,0,0,128,128,4]", "[0,0,0,128,136,2]").replace("[4,8,4]", "[4,8,5]"))


def test_clusters_and_maps_go_together():
    text = CASE.kernel().replace("blocks in", "clusters in (%pair, %one, %one) blocks in", 1)
    text = text.replace("%one =", "%pair = arith.constant 2 : index\n%one =", 1)
    (launch,) = compile_kernel(mlir.parse(text), SM90A).launches
    assert launch.cluster == (2, 1, 1) and launch.maps == {0: CASE.spec, 2: CASE.spec}


@pytest.mark.parametrize(("offset", "why"), [
    (0, None), (24, None), (4, None), (2, "memory from byte 8 on: not a multiple of 16"),
    (72, "is of 1248 bytes from byte 288 on, where there are 1440"),
])  # fmt: skip
def test_a_map_of_a_part_lies_in_its_buffer(offset, why):
    """By a view of bytes, the only one with an offset whose result has an identity layout."""
    nbytes = 4 * offset
    text = (
        CASE.kernel()
        .replace(
            "%one =",
            f"""%bytes = memref.alloc() : memref<1440xi8>
      %start = arith.constant {nbytes} : index
      %part = memref.view %bytes[%start][] : memref<1440xi8> to memref<13x24xf32>
      %one =""",
            1,
        )
        .replace('"mlirc.tensor_map"(%x)', '"mlirc.tensor_map"(%part)')
    )
    if why:
        with pytest.raises(MlircError, match=why):
            compile_kernel(mlir.parse(text), SM90A)
        return
    (launch,) = compile_kernel(mlir.parse(text), SM90A).launches
    assert (launch.args[0], launch.offsets[0]) == (3, nbytes) and launch.maps[0] == CASE.spec
