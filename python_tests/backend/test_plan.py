"""The launch plan: its text form, the arena, and how it is read off the `kernels` level."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlirc.backend.arena import Lifetime, pack, peak_live
from mlirc.backend.kernel import CompiledKernel, Copy, Launch, launches_from_gpu_module
from mlirc.backend.plan_builder import build_plan
from mlirc.errors import MlircError
from mlirc.mlir import parse
from mlirc.runtime.plan import ARENA_ALIGNMENT, VERSION, CopyStep, KernelLaunch, Plan, Ref, TensorSpec, aligned
from mlirc.runtime.plan_check import check_plan
from mlirc.runtime.plan_file import embed, extract
from mlirc.runtime.plan_json import from_json, to_json

PTX = (
    ".version 8.3\n.target sm_90a\n.address_size 64\n.visible .entry k0(\n"
    "  .param .u64 .ptr .align 4 a, .param .u64 .ptr .global .align 4 b, .param .u64 .ptr .align 16 c, .param .u64 d)\n"
    ".reqntid 128, 1, 1\n{\n  ret;\n}\n"
)


def sample_plan() -> Plan:
    x = TensorSpec("x", "bf16", (2, 3), "input")
    w = TensorSpec("layer.0.weight", "f32", (3,), "weight")
    y = TensorSpec("y", "i1", (7,), "output")
    args = (Ref("input", 0, 0, 12), Ref("weight", 0, 4, 8), Ref("arena", 0, 256, 100), Ref("output", 0, 0, 7))
    launch = KernelLaunch("k0", (4, 1, 1), (128, 1, 1), 49152, args, "elementwise_0", ("layer.0",), (2, 1, 1))
    copy = CopyStep(Ref("arena", 0, 256, 7), Ref("output", 0, 0, 7))
    return Plan("tiny", "sm_90a", [x], [y], [w], 512, [launch, copy], 900, 0, {"mlirc": "0.1.0"})


def test_plan_survives_json_and_embedding():
    plan = sample_plan()
    assert from_json(to_json(plan)) == plan
    text = embed(PTX, plan)
    assert text.endswith(PTX)
    assert extract(text) == plan


def test_every_damage_is_reported():
    text = embed(PTX, sample_plan())
    cases = {
        PTX: "carries no launch plan",
        "": "carries no launch plan",
        text[:-3]: "truncated",
        text[: text.index("\n") + 20]: "truncated inside",
        text.replace("ret;", "nop;"): "checksum",
        text.replace("49152", "49153"): "checksum",
        text.replace(f"//mlirc: plan {VERSION}", "//mlirc: plan 9", 1): "version 9",
        text.replace(f"//mlirc: plan {VERSION}", "//mlirc: plan x", 1): "header is damaged",
        text.replace('//mlirc: "inputs"', '"inputs"', 1): "damaged",
    }
    for damaged, why in cases.items():
        with pytest.raises(MlircError, match=why) as info:
            extract(damaged, "model.ptx")
        assert str(info.value).startswith("model.ptx: ")


@given(st.data())
@settings(max_examples=50, deadline=None)
def test_no_single_byte_change_goes_unnoticed(data):
    text = embed(PTX, sample_plan())
    i = data.draw(st.integers(0, len(text) - 1))
    other = data.draw(st.characters(min_codepoint=32, max_codepoint=126).filter(lambda c: c != text[i]))
    with pytest.raises(MlircError):
        extract(text[:i] + other + text[i + 1 :])


def test_a_smaller_size_in_the_header_is_damage():
    text = embed(PTX, sample_plan())
    size = f" {len(PTX)} "
    assert text.count(size) == 1
    with pytest.raises(MlircError, match="damaged"):
        extract(text.replace(size, f" {len(PTX) % 100:0{len(size) - 2}} "))


def test_embedding_refuses_inconsistent_plans():
    plan = sample_plan()
    with pytest.raises(MlircError, match="no such entry"):
        embed(PTX.replace("k0", "k1"), plan)
    for ref in (Ref("arena", 0, 500, 13), Ref("input", 1, 0, 1), Ref("output", 0, -1, 1), Ref("weight", 0, 0, 13)):
        bad = sample_plan()
        bad.steps.append(CopyStep(ref, ref))
        with pytest.raises(MlircError, match="step 2"):
            embed(PTX, bad)


def test_ptxas_accepts_an_embedded_plan(tmp_path):
    nvidia = pytest.importorskip("nvidia.cu13", reason="the PyPI ptxas is not installed")
    import pathlib
    import subprocess

    ptxas = pathlib.Path(next(iter(nvidia.__path__))) / "bin" / "ptxas"
    (tmp_path / "m.ptx").write_text(embed(PTX, sample_plan()))
    subprocess.run(
        [ptxas, "-arch=sm_90a", tmp_path / "m.ptx", "-o", tmp_path / "m.cubin"], check=True, capture_output=True
    )


lifetimes = st.lists(
    st.tuples(st.integers(0, 5000), st.integers(0, 12), st.integers(0, 6)).map(
        lambda t: Lifetime(t[0], t[1], t[1] + t[2])
    ),
    max_size=40,
)


@given(lifetimes)
@settings(max_examples=200, deadline=None)
def test_live_buffers_never_overlap(buffers):
    offsets, size = pack(buffers)
    assert peak_live(buffers) <= size <= sum(aligned(b.size) for b in buffers)
    for i, (a, at_a) in enumerate(zip(buffers, offsets, strict=True)):
        assert at_a % ARENA_ALIGNMENT == 0 and at_a + a.size <= size
        for b, at_b in zip(buffers[:i], offsets[:i], strict=True):
            if a.first <= b.last and b.first <= a.last:
                assert at_a + a.size <= at_b or at_b + b.size <= at_a or not a.size or not b.size


def test_a_chain_packs_into_two_buffers():
    buffers = [Lifetime(1000, i, i + 1) for i in range(50)]
    assert pack(buffers)[1] == 2 * aligned(1000) == peak_live(buffers)


MAIN = """
module {
  func.func private @ew(tensor<8x4xf32>, tensor<4xf32>) -> tensor<8x4xf32>
      attributes {mlirc.kernel, mlirc.kind = "elementwise", mlirc.origin = ["a", "b"]}
  func.func private @red(tensor<32xf32>) -> (tensor<4xf32>, tensor<4xi64>)
      attributes {mlirc.kernel, mlirc.kind = "reduction", mlirc.origin = ["c"]}
  func.func @main(%x: tensor<8x4xf32> {mlirc.kind = "input", mlirc.name = "x"},
                  %w: tensor<2x4xf32> {mlirc.kind = "weight", mlirc.name = "m.w"}) -> (
                  tensor<4xf32> {mlirc.name = "v"}, tensor<4xi64> {mlirc.name = "i"}) {
    %w1 = tensor.extract_slice %w[1, 0] [1, 4] [1, 1] : tensor<2x4xf32> to tensor<4xf32>
    %0 = func.call @ew(%x, %w1) : (tensor<8x4xf32>, tensor<4xf32>) -> tensor<8x4xf32> loc("layer.0"("m.py":1:2))
    %1 = func.call @ew(%0, %w1) : (tensor<8x4xf32>, tensor<4xf32>) -> tensor<8x4xf32> loc(fused["p", "q", "p"])
    %2 = tensor.collapse_shape %1 [[0, 1]] : tensor<8x4xf32> into tensor<32xf32>
    %3:2 = func.call @red(%2) : (tensor<32xf32>) -> (tensor<4xf32>, tensor<4xi64>)
    return %3#0, %3#1 : tensor<4xf32>, tensor<4xi64>
  }
}
"""
EW = CompiledKernel("ew", "", "", [Launch("ew_k", (8, 1, 1), (4, 1, 1), 0, [0, 1, 2])], [])
RED = CompiledKernel(
    "red",
    "",
    "",
    [
        Launch("red_a", (2, 1, 1), (32, 1, 1), 64, [0, 3]),
        Launch("red_b", (1, 1, 1), (32, 1, 1), 0, [3, 1, 2], [16, 0, 0]),
    ],
    [64],
)


def plan_of(text: str, **kernels: CompiledKernel) -> Plan:
    return build_plan(parse(text), kernels, model="m", target="sm_80")


def test_plan_is_read_off_main():
    plan = plan_of(MAIN, ew=EW, red=RED)
    assert [t.name for t in (*plan.inputs, *plan.weights, *plan.outputs)] == ["x", "m.w", "v", "i"]
    first, second, third, fourth = plan.steps
    assert first.args[0] == Ref("input", 0, 0, 128)
    assert first.args[1] == second.args[1] == Ref("weight", 0, 16, 16)
    assert first.args[2] == second.args[0] and first.args[2] != second.args[2]
    assert third.args[0] == second.args[2]
    assert third.args[1].space == "arena" and fourth.args[0].offset == third.args[1].offset + 16
    assert fourth.args[1:] == (Ref("output", 0, 0, 16), Ref("output", 1, 0, 32))
    assert [s.origin for s in plan.steps] == [("layer.0",), ("p", "q"), ("c",), ("c",)]
    assert (third.smem, third.grid, third.block, third.kernel) == (64, (2, 1, 1), (32, 1, 1), "red")
    # 128-byte results of the two elementwise calls, and the workspace in the first one's place.
    assert (plan.arena_size, plan.unpacked_size) == (512, 768)


def returning(results: str, types: str, body: str = "") -> str:
    return f"""
    func.func private @f(tensor<6xbf16>) -> tensor<6xbf16>
    func.func @main(%x: tensor<6xbf16>,
                    %w: tensor<6xbf16> {{mlirc.kind = "constant", mlirc.name = "w"}}) -> ({types}) {{
      {body}
      return {results} : {types}
    }}"""


F = CompiledKernel("f", "", "", [Launch("f_k", (1, 1, 1), (32, 1, 1), 0, [0, 1])], [])
CALL = "%0 = func.call @f(%x) : (tensor<6xbf16>) -> tensor<6xbf16>\n"


def test_returned_inputs_weights_and_repeated_results_are_copied():
    t = "tensor<6xbf16>"
    plan = plan_of(returning("%x, %0, %w, %0", f"{t}, {t}, {t}, {t}", CALL), f=F)
    assert plan.arena_size == 0 and plan.weights[0].kind == "constant"
    assert plan.steps[0].args == (Ref("input", 0, 0, 12), Ref("output", 1, 0, 12))
    assert plan.steps[1:] == [
        CopyStep(Ref("input", 0, 0, 12), Ref("output", 0, 0, 12)),
        CopyStep(Ref("weight", 0, 0, 12), Ref("output", 2, 0, 12)),
        CopyStep(Ref("output", 1, 0, 12), Ref("output", 3, 0, 12)),
    ]


@pytest.mark.parametrize("kind", ["constant", "weight"])
def test_calls_on_weights_and_constants_run_once_at_load(kind):
    t = "tensor<6xbf16>"
    body = """%a = func.call @f(%x) : (tensor<6xbf16>) -> tensor<6xbf16>
      %c = func.call @f(%w) : (tensor<6xbf16>) -> tensor<6xbf16>
      %d = func.call @f(%c) : (tensor<6xbf16>) -> tensor<6xbf16>
      %e = tensor.expand_shape %d [[0, 1]] output_shape [2, 3] : tensor<6xbf16> into tensor<2x3xbf16>
      %g = tensor.collapse_shape %e [[0, 1]] : tensor<2x3xbf16> into tensor<6xbf16>
      %b = func.call @g(%a, %g) : (tensor<6xbf16>, tensor<6xbf16>) -> tensor<6xbf16>
      %h = func.call @g(%b, %g) : (tensor<6xbf16>, tensor<6xbf16>) -> tensor<6xbf16>"""
    text = returning("%h, %d", f"{t}, {t}", body) + f"\nfunc.func private @g({t}, {t}) -> {t}"
    g = CompiledKernel("g", "", "", [Launch("g_k", (1, 1, 1), (32, 1, 1), 0, [0, 1, 2])], [])
    plan = plan_of(text.replace('"constant"', f'"{kind}"'), f=F, g=g)
    assert plan.setup == 2 and len(plan.steps) == 6
    first, second, on_x, use, _last, out = plan.steps
    assert first.args[0].space == "weight" and second.args[0] == first.args[1]
    kept = second.args[1]
    assert use.args[1] == kept and out == CopyStep(kept, Ref("output", 1, 0, 12))
    # What is kept from run to run shares its memory with nothing that a run writes.
    written = [step.args[-1] for step in (on_x, use)]
    assert kept.space == "arena" and all(w.offset != kept.offset for w in written)
    assert first.args[1].offset in [w.offset for w in written]
    plan.steps[0], plan.steps[2] = plan.steps[2], plan.steps[0]
    with pytest.raises(MlircError, match="runs at load but uses input"):
        check_plan(plan)


@pytest.mark.parametrize(
    ("kind", "rows", "used", "at_load"),
    [
        ("weight", 1 << 13, "%x, %b", 2),  # 1 MiB
        ("weight", (1 << 13) + 1, "%x, %b", 0),  # more than twice what it reads
        ("weight", (1 << 13) + 1, "%x, %c", 2),  # a run reads a part alone, which is made of it
        ("constant", (1 << 13) + 1, "%x, %b", 2),
        ("state", 1, "%x, %b", 0),
    ],
)
def test_results_that_are_far_larger_than_their_weights_are_made_by_every_run(kind, rows, used, at_load):
    small, large = "tensor<32xf32>", f"tensor<{rows}x32xf32>"
    right = large if "%b" in used else small
    writes = ", %w" if kind == "state" else ""
    text = f"""
    func.func private @grow({small}) -> {large}
    func.func private @shrink({large}) -> {small}
    func.func private @use({small}, {right}) -> {small}
    func.func @main(%x: {small}, %w: {small} {{mlirc.kind = "{kind}", mlirc.name = "w"}}) -> ({small}{
        f", {small} {{mlirc.writes = 1 : i64}}" if writes else ""
    }) {{
      %b = func.call @grow(%w) : ({small}) -> {large}
      %c = func.call @shrink(%b) : ({large}) -> {small}
      %y = func.call @use({used}) : ({small}, {right}) -> {small}
      return %y{writes} : {small}{", " + small if writes else ""}
    }}"""
    kernels = {
        name: CompiledKernel(name, "", "", [Launch(name, (1, 1, 1), (32, 1, 1), 0, list(range(count)))], [])
        for name, count in (("grow", 2), ("shrink", 2), ("use", 3))
    }
    plan = plan_of(text, **kernels)
    assert [s.symbol for s in plan.steps] == ["grow", "shrink", "use"] and plan.setup == at_load


@pytest.mark.parametrize(("kind", "at_load"), [("weight", 1), ("constant", 1), ("state", 0)])
def test_an_unaligned_part_of_a_weight_is_copied_at_load(kind, at_load):
    body = """%s = tensor.extract_slice %y[1, 0][1, 6][1, 1] : tensor<2x6xbf16> to tensor<6xbf16>
      %0 = func.call @g(%x, %s) : (tensor<6xbf16>, tensor<6xbf16>) -> tensor<6xbf16>"""
    t = "tensor<6xbf16>"
    text = f"""
    func.func private @g({t}, {t}) -> {t}
    func.func @main(%x: {t}, %y: tensor<2x6xbf16> {{mlirc.kind = "{kind}", mlirc.name = "w"}}) -> ({t}{
        ", tensor<2x6xbf16> {mlirc.writes = 1 : i64}" if kind == "state" else ""
    }) {{
      {body}
      return %0{", %y" if kind == "state" else ""} : {t}{", tensor<2x6xbf16>" if kind == "state" else ""}
    }}"""
    g = CompiledKernel("g", "", "", [Launch("g_k", (1, 1, 1), (32, 1, 1), 0, [0, 1, 2])], [])
    plan = plan_of(text, g=g)
    assert plan.setup == at_load and plan.steps[0] == CopyStep(Ref("weight", 0, 12, 12), Ref("arena", 0, 0, 12))
    assert plan.steps[1].args[1] == Ref("arena", 0, 0, 12)


def test_a_returned_part_is_copied_and_a_returned_reshape_is_not():
    body = CALL + "%1 = tensor.extract_slice %0[1][3][1] : tensor<6xbf16> to tensor<3xbf16>"
    plan = plan_of(returning("%1", "tensor<3xbf16>", body), f=F)
    assert plan.steps[1] == CopyStep(Ref("arena", 0, 2, 6), Ref("output", 0, 0, 6))
    body = CALL + "%1 = tensor.expand_shape %0 [[0, 1]] output_shape [2, 3] : tensor<6xbf16> into tensor<2x3xbf16>"
    plan = plan_of(returning("%1", "tensor<2x3xbf16>", body), f=F)
    assert len(plan.steps) == 1 and plan.arena_size == 0


def test_an_unaligned_view_is_copied_once_before_its_kernels():
    body = """%s = tensor.extract_slice %y[1, 0][1, 6][1, 1] : tensor<2x6xbf16> to tensor<6xbf16>
      %0 = func.call @f(%s) : (tensor<6xbf16>) -> tensor<6xbf16>
      %1 = func.call @f(%s) : (tensor<6xbf16>) -> tensor<6xbf16>"""
    t = "tensor<6xbf16>"
    text = returning("%0, %1", f"{t}, {t}", body).replace("%x: tensor<6xbf16>,", "%y: tensor<2x6xbf16>,")
    plan = plan_of(text, f=F)
    assert plan.steps[0] == CopyStep(Ref("input", 0, 12, 12), Ref("arena", 0, 0, 12))
    assert [s.args[0] for s in plan.steps[1:]] == [Ref("arena", 0, 0, 12)] * 2


def test_empty_grids_and_tensors_launch_nothing():
    text = """
    func.func private @f(tensor<0x4xf32>) -> tensor<0x4xf32>
    func.func @main(%x: tensor<0x4xf32>) -> tensor<0x4xf32> {
      %0 = func.call @f(%x) : (tensor<0x4xf32>) -> tensor<0x4xf32>
      %1 = func.call @f(%0) : (tensor<0x4xf32>) -> tensor<0x4xf32>
      return %1 : tensor<0x4xf32>
    }"""
    empty = CompiledKernel("f", "", "", [Launch("f_k", (0, 1, 1), (32, 1, 1), 0, [0, 1])], [])
    plan = plan_of(text, f=empty)
    assert plan.steps == [] and plan.arena_size == 0


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (returning("%0", "tensor<6xbf16>", "%0 = arith.addf %x, %w : tensor<6xbf16>"), "arith.addf.*neither"),
        (returning("%0", "tensor<6xbf16>", CALL.replace("@f", "@g")).replace("@f(", "@g("), "'g' is called but"),
        (
            returning(
                "%0", "tensor<3xbf16>", "%0 = tensor.extract_slice %x[0][3][2] : tensor<6xbf16> to tensor<3xbf16>"
            ),
            "not contiguous",
        ),
        ("func.func @other() { return }", "no function @main"),
        (returning("%x", "tensor<6xbf16>").replace('"constant"', '"gradient"'), "kind 'gradient'"),
        (returning("%x", "tensor<6xbf16>").replace('"constant"', '"state"'), "no result is the new value of 'w'"),
    ],
)
def test_what_main_may_not_hold(text, why):
    with pytest.raises(MlircError, match=why):
        plan_of(text, f=F)


def test_planning_a_thousand_calls_is_quick():
    import time

    calls = "\n".join(f"%{i + 1} = func.call @f(%{i}) : (tensor<6xbf16>) -> tensor<6xbf16>" for i in range(1500))
    body = CALL + calls
    text = returning("%1500", "tensor<6xbf16>", body)
    module = parse(text)
    start = time.process_time()
    plan = build_plan(module, {"f": F}, model="m", target="sm_80")
    assert time.process_time() - start < 2
    assert plan.arena_size == 512 and len(plan.steps) == 1501


GPU = """
module attributes {gpu.container_module} {
  gpu.module @k_gpu {
    gpu.func @k_0(%a: memref<4xf32>, %b: memref<4xf32>) kernel { gpu.return }
    gpu.func @k_1(%a: memref<4xf32>, %b: memref<2xf32, strided<[1], offset: 2>>) kernel { gpu.return }
  }
  func.func @k(%x: memref<4xf32>, %y: memref<4xf32>) {
    %c1 = arith.constant 1 : index
    %c16 = arith.constant 16 : index
    %c128 = arith.constant 128 : index
    %smem = arith.constant 1024 : i32
    %w = memref.alloc() : memref<32xi8>
    %v = memref.view %w[%c16][] : memref<32xi8> to memref<4xf32>
    gpu.launch_func @k_gpu::@k_0 blocks in (%c1, %c16, %c1) threads in (%c128, %c1, %c1)
        dynamic_shared_memory_size %smem args(%x : memref<4xf32>, %v : memref<4xf32>)
    %s = memref.subview %v[2][2][1] : memref<4xf32> to memref<2xf32, strided<[1], offset: 2>>
    gpu.launch_func @k_gpu::@k_1 clusters in (%c1, %c1, %c1) blocks in (%c1, %c1, %c1) threads in (%c128, %c1, %c1)
        args(%y : memref<4xf32>, %s : memref<2xf32, strided<[1], offset: 2>>)
    memref.copy %x, %y : memref<4xf32> to memref<4xf32>
    return
  }
}
"""


def test_launches_are_read_off_the_host_function():
    launches, workspaces = launches_from_gpu_module(parse(GPU))
    assert workspaces == [32]
    assert launches == [
        Launch("k_0", (1, 16, 1), (128, 1, 1), 1024, [0, 2], [0, 16]),
        Launch("k_1", (1, 1, 1), (128, 1, 1), 0, [1, 2], [0, 24], (1, 1, 1)),
        Copy(0, 1, 16),
    ]


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ("[2][2][1]", "[0][2][2]", "not contiguous"),
        (
            "memref.copy %x, %y",
            "linalg.copy ins(%x : memref<4xf32>) outs(%y : memref<4xf32>) //",
            "linalg.copy is not allowed",
        ),
        ("memref.alloc() : memref<32xi8>", "memref.alloc(%c16) : memref<?xi8>", "static shape"),
    ],
)
def test_what_a_host_function_may_not_hold(old, new, why):
    text = GPU.replace(old, new)
    if "[0][2][2]" in new:
        text = text.replace("strided<[1], offset: 2>", "strided<[2]>")
    if "?xi8" in new:
        text = text.replace("memref<32xi8> to", "memref<?xi8> to")
    with pytest.raises(MlircError, match=why):
        launches_from_gpu_module(parse(text))


def test_runtime_imports_neither_mlir_nor_torch():
    import subprocess
    import sys

    code = (
        "import sys, mlirc, mlirc.runtime, mlirc.runtime.plan;"
        "bad = [m for m in ('torch', 'torch_mlir') if m in sys.modules]; assert not bad, bad"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_sizes_use_one_byte_per_boolean():
    assert TensorSpec("m", "i1", (3, 5), "input").nbytes == 15
    assert TensorSpec("s", "f64", (), "input").nbytes == np.float64().nbytes
