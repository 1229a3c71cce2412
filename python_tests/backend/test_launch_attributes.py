"""What a launch or a kernel is told besides its arguments: that it may begin early, and how many registers it has."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest
from cuda.bindings import driver as cu

from mlirc import mlir
from mlirc.backend.plan_builder import build_plan
from mlirc.backend.ptx import check_ptxas, compile_kernel, find_ptxas, merge_ptx
from mlirc.errors import MlircError
from mlirc.runtime.cuda import CopyCall, CudaGraph, Driver, KernelCall
from mlirc.runtime.plan import CopyStep, Extent, KernelLaunch, Ref, begins_early
from mlirc.runtime.plan_file import embed, extract
from mlirc.runtime.plan_json import from_json, to_json
from mlirc.targets import get_target
from support.kernels.chain import chain
from support.kernels.launched import gpu_level
from support.plans.forged import signed

SM90A = get_target("sm_90a")


def registers(attribute: str) -> str:
    body = "%v = memref.load %a[%tx] : memref<128xf32>\nmemref.store %v, %a[%tx] : memref<128xf32>"
    return gpu_level(body, {"a": "memref<128xf32>"}).replace(
        "kernel attributes {", f"kernel attributes {{{attribute}, ", 1
    )


def test_the_registers_of_a_thread_are_limited():
    ptx = compile_kernel(mlir.parse(registers("mlirc.max_registers = 168 : i32")), SM90A).ptx
    assert ".maxnreg 168" in ptx
    if find_ptxas():
        check_ptxas(ptx, SM90A)


@pytest.mark.parametrize("count", [0, 23, 256])
def test_registers_that_no_thread_can_have_are_refused(count):
    with pytest.raises(MlircError, match=f"mlirc.max_registers = {count}: a thread has 24 to 255 registers"):
        compile_kernel(mlir.parse(registers(f"mlirc.max_registers = {count} : i32")), SM90A)


def test_a_kernel_that_begins_early_waits_itself():
    kernel = compile_kernel(mlir.parse(chain()), SM90A)
    assert [launch.dependent for launch in kernel.launches] == [False, True, True]
    assert kernel.ptx.count("griddepcontrol.wait") == 1
    first, step = kernel.ptx.split(".entry k_step")  # which may read what an earlier launch writes while it runs
    assert "ld.global.nc" in first and "ld.global.nc" not in step
    with pytest.raises(MlircError, match="k_step is launched with mlirc.dependent and has no nvvm.griddepcontrol wait"):
        compile_kernel(mlir.parse(chain(wait="")), SM90A)


def test_the_plan_says_which_launches_may_begin_early():
    kernel = compile_kernel(mlir.parse(chain()), SM90A)
    main = mlir.parse("""
      func.func private @k(tensor<1000xf32>) -> tensor<1000xf32> attributes {mlirc.kernel}
      func.func @main(%x: tensor<1000xf32>) -> tensor<1000xf32> {
        %y = call @k(%x) : (tensor<1000xf32>) -> tensor<1000xf32>
        return %y : tensor<1000xf32>
      }""")
    plan = build_plan(main, {"k": kernel}, model="m", target="sm_90a")
    assert [launch.dependent for launch in plan.launches] == [False, True, True]
    ptx = merge_ptx([kernel.ptx], SM90A)
    assert extract(embed(ptx, plan)) == plan
    data = json.loads(to_json(plan))
    for bad in (False, 1, "true", None):
        data["steps"][1]["dependent"] = bad
        with pytest.raises(MlircError, match="dependent: .* where true, or nothing, must be"):
            from_json(json.dumps(data))
    data["steps"][1]["dependent"] = True
    with pytest.raises(MlircError, match="'k_step' may begin before .*, but has no griddepcontrol.wait"):
        extract(signed(json.dumps(data), ptx.replace("griddepcontrol.wait;", "// griddepcontrol.wait;")))
    with pytest.raises(MlircError, match="sm_80 launches nothing before what is in front of it has ended"):
        from_json(json.dumps({**data, "target": "sm_80"}))


def test_the_plan_says_which_launches_are_cooperative():
    """Such a one does not begin early, and nothing but true says so."""
    text = chain().replace("mlirc.dependent", "mlirc.cooperative")
    kernel = compile_kernel(mlir.parse(text), SM90A)
    assert [(launch.cooperative, launch.dependent) for launch in kernel.launches] == [(False, False)] + 2 * [
        (True, False)
    ]
    main = mlir.parse("""
      func.func private @k(tensor<1000xf32>) -> tensor<1000xf32> attributes {mlirc.kernel}
      func.func @main(%x: tensor<1000xf32>) -> tensor<1000xf32> {
        %y = call @k(%x) : (tensor<1000xf32>) -> tensor<1000xf32>
        return %y : tensor<1000xf32>
      }""")
    plan = build_plan(main, {"k": kernel}, model="m", target="sm_90a")
    assert [launch.cooperative for launch in from_json(to_json(plan)).launches] == [False, True, True]
    data = json.loads(to_json(plan))
    for bad in (False, 1, "true", None):
        data["steps"][1]["cooperative"] = bad
        with pytest.raises(MlircError, match="cooperative: .* where true, or nothing, must be"):
            from_json(json.dumps(data))
    data["steps"][1] |= {"cooperative": True, "dependent": True}
    with pytest.raises(MlircError, match="blocks that wait for each other begin together"):
        from_json(json.dumps(data))


class FakeGraphs:
    """What the driver is asked for while a graph is made."""

    def __init__(self) -> None:
        self.nodes: list[tuple[str, list]] = []
        self.edges: list[tuple[list, list, int, int]] = []

    def driver(self, early: bool = True) -> Driver:
        driver = Driver.__new__(Driver)
        driver.launches_early = early
        kept = ("CUresult", "CUgraphEdgeData", "CUgraphDependencyType", "CUDA_KERNEL_NODE_PARAMS", "CUDA_MEMCPY3D",
                "CU_GRAPH_KERNEL_NODE_PORT_PROGRAMMATIC", "CUmemorytype")  # fmt: skip
        ok = cu.CUresult.CUDA_SUCCESS
        driver.cu = SimpleNamespace(  # type: ignore[assignment]
            cuGraphCreate=lambda _: (ok, "graph"),
            cuGraphInstantiate=lambda *_: (ok, "executable"),
            cuGraphAddKernelNode=lambda _g, after, *_: (ok, self.node("kernel", after)),
            cuGraphAddMemcpyNode=lambda _g, after, *_: (ok, self.node("copy", after)),
            cuGraphAddDependencies=lambda _g, before, node, data, _n: (ok, self.edge(before, node, data)),
            **{name: getattr(cu, name) for name in kept},
        )
        driver._context = None
        return driver

    def node(self, kind: str, after: list) -> int:
        self.nodes.append((kind, list(after)))
        return len(self.nodes) - 1

    def edge(self, before: list, node: list, data: list) -> None:
        self.edges.append((before, node, int(data[0].from_port), int(data[0].type)))


def test_early_launches_are_edges_of_their_own_in_a_graph():
    def call(dependent: bool) -> KernelCall:
        return KernelCall(0, "k", (1, 1, 1), (1, 1, 1), 0, [], dependent=dependent)

    fake = FakeGraphs()
    calls = [call(True), call(True), CopyCall(0, 0, 4), call(True), call(False), call(True)]
    CudaGraph(fake.driver(), calls, [(), *((i,) for i in range(5))])
    # The first one has nothing in front of it, and one behind a copy waits for its end.
    assert [after for _, after in fake.nodes] == [[], [], [1], [2], [3], []]
    assert fake.edges == [([0], [1], 1, 1), ([4], [5], 1, 1)]


def test_with_an_older_driver_launches_wait_for_the_end_of_those_before():
    fake = FakeGraphs()
    calls = [KernelCall(0, "k", (1, 1, 1), (1, 1, 1), 0, [], dependent=True)] * 3
    CudaGraph(fake.driver(early=False), calls, [(), (0,), (1,)])
    assert [after for _, after in fake.nodes] == [[], [0], [1]] and fake.edges == []


def test_calls_of_a_graph_wait_for_those_that_are_named():
    fake = FakeGraphs()
    CudaGraph(fake.driver(), [CopyCall(0, 0, 4)] * 4, [(), (), (0,), (1, 2)])
    assert [after for _, after in fake.nodes] == [[], [], [0], [1, 2]] and fake.edges == []


def test_what_may_not_begin_early_does_not():
    def launch(**more) -> KernelLaunch:
        return KernelLaunch("k", (1, 1, 1), (1, 1, 1), 0, (), **more)

    early, late, copy = launch(dependent=True), launch(), CopyStep(Ref("arena", 0, 0, 4), Ref("arena", 0, 16, 4))
    maybe = launch(dependent=True, extents={0: Extent(0)})  # which a number of 0 leaves out
    assert begins_early(early, early) and begins_early(early, late)
    assert not any(begins_early(early, before) for before in (None, copy, maybe))
    assert not any(begins_early(step, early) for step in (late, copy, maybe))
