"""Kernels that begin before those in front of them have ended: what they wait for, beside PyTorch on the host device."""

from __future__ import annotations

import functools
from dataclasses import replace

import pytest
import torch

from mlirc import mlir
from mlirc.backend.plan_builder import build_plan
from mlirc.backend.ptx import check_ptxas, find_ptxas
from mlirc.device.launch import DeviceKernel
from mlirc.device.model import DeviceModel
from mlirc.driver.compilation import Compilation, single_kernel_model
from mlirc.errors import MlircError
from mlirc.frontend.cached_attention import cached_attention
from mlirc.passes.dependent.kernels import mark_kernels
from mlirc.runtime.plan import begins_early
from mlirc.targets import get_target
from support.models.arrays import as_array

SCHEDULE = "graph:dependent=true,recompute=false"  # a norm of one row in front of its products
WAIT = "nvvm.griddepcontrol wait"


class Layer(torch.nn.Module):
    """A norm, a gated product, and a product whose result is added: with few rows, with many, weights of odd sizes."""

    def __init__(self, width: int, inner: int):
        super().__init__()
        self.norm = torch.nn.RMSNorm(width)
        self.gate, self.up = (torch.nn.Linear(width, inner, bias=False) for _ in range(2))
        self.down = torch.nn.Linear(inner, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm(x)
        return torch.softmax(x + self.down(torch.nn.functional.silu(self.gate(y)) * self.up(y)), -1)


def compiled(
    module: torch.nn.Module, args: tuple, *schedules: str, target: str = "sm_90a", level: str = "ptx", quantize=None
):
    job = Compilation("m", get_target(target), schedules, helpers=0)
    job.import_module(module, args, {}, quantize=quantize)
    job.lower(level)
    return job


def layer(rows: int, width: int, inner: int, dtype: torch.dtype) -> tuple[torch.nn.Module, torch.Tensor]:
    torch.manual_seed(0)
    module = Layer(width, inner).to(dtype).eval()
    return module, torch.randn(rows, width).to(dtype)


@functools.cache
def one_row() -> tuple[Compilation, torch.Tensor]:
    module, x = layer(1, 136, 200, torch.float32)
    return compiled(module, (x,), SCHEDULE), x


def arrays(job: Compilation, x: torch.Tensor) -> list:
    """The arguments of `@main`, by name."""
    tensors = job.tensors()
    device = DeviceModel.parse(job.text("gpu"))
    return [as_array(tensors[n]) if n in tensors else as_array(x) for n in device.argument_names()]


CASES = [
    (1, 136, 200, torch.float32),
    (1, 264, 72, torch.bfloat16),
    (7, 64, 136, torch.bfloat16),
    (67, 128, 192, torch.bfloat16),
]


@pytest.mark.parametrize("rows, width, inner, dtype", CASES)
def test_launches_that_begin_early_are_right_and_clean(rows, width, inner, dtype):
    module, x = layer(rows, width, inner, dtype)
    job = compiled(module, (x,), SCHEDULE)
    launches = job.plan.launches
    assert len(launches) >= 3 and all(launch.dependent for launch in launches)
    assert not begins_early(launches[0], None) and begins_early(launches[1], launches[0])
    for build in job.builds.values():
        assert build.ptx.count("griddepcontrol.wait") == build.ptx.count(".entry ")
        assert build.ptx.count("griddepcontrol.launch_dependents") == build.ptx.count(".entry ")
    if find_ptxas():
        check_ptxas(job.ptx, get_target("sm_90a"))
    (y,), report = DeviceModel.parse(job.text("gpu")).run(arrays(job, x))
    assert report.ok, report
    with torch.no_grad():
        right = module.double()(x.double())
    got = torch.from_numpy(y.astype("float64"))
    assert float((got - right).norm() / right.norm()) < (1e-5 if dtype == torch.float32 else 1e-2)


def test_weights_are_fetched_in_front_of_the_wait():
    module, x = layer(1, 264, 72, torch.bfloat16)
    job = compiled(module, (x,), SCHEDULE)
    build = next(b for b in job.builds.values() if "up" in b.gpu and "gate" in b.gpu)
    before, behind = build.ptx.split("griddepcontrol.wait")
    # Plain loads: those through the read-only cache ptxas would move behind the wait.
    assert before.count("ld.global.") >= 2 and "ld.global" in behind
    assert "ld.global.nc" not in build.ptx and "launch_dependents" not in behind


@pytest.mark.parametrize(
    "scheme, width, inner, once",
    [("int4:group=64", 320, 128, True), ("int8", 256, 64, True), ("int8", 264, 72, False), ("int3", 256, 136, True)],
)
def test_packed_weights_are_read_early_and_give_the_same_bits(scheme, width, inner, once):
    """Their words by loads that ptxas leaves in front of the wait, and without prefetches where a thread reads each
    once, past the L1 cache."""
    module, x = layer(1, width, inner, torch.bfloat16)
    jobs = [compiled(module, (x,), *s, quantize=scheme) for s in ((), ("graph:dependent=false",))]
    found = []
    for job, early in zip(jobs, (True, False), strict=True):
        assert {launch.dependent for launch in job.plan.launches} == {early}
        assert ("L1::no_allocate" in job.ptx) == once
        assert ("nc.L1::no_allocate" in job.ptx) == (once and not early)
        (y,), report = DeviceModel.parse(job.text("gpu")).run(arrays(job, x))
        assert report.ok, report
        found.append(y)
    assert not once or "prefetch" not in jobs[0].ptx
    assert found[0].tobytes() == found[1].tobytes()
    if find_ptxas():
        check_ptxas(jobs[0].ptx, get_target("sm_90a"))


def test_steps_whose_packed_products_read_much_do_not_begin_early(monkeypatch):
    module, x = layer(1, 256, 128, torch.bfloat16)
    rest = torch.nn.Sequential(module, torch.nn.Linear(256, 33000, bias=False).bfloat16())  # a head of 8.4 MB
    both = torch.nn.Sequential(rest, torch.nn.Linear(33000, 256, bias=False).bfloat16())
    for most, net, early in ((96 << 20, both, True), (4 << 20, rest, True), (4 << 20, both, False)):
        monkeypatch.setitem(mark_kernels.__globals__, "MOST_PACKED", most)
        job = compiled(net, (x,), quantize="int8")
        assert any(launch.dependent for launch in job.plan.launches) == early


def test_a_wait_at_the_wrong_place_is_found():
    job, x = one_row()
    text, given = job.text("gpu"), arrays(job, x)
    assert DeviceModel.parse(text).run(given)[1].ok
    parts = text.split("// -----")
    for number, part in enumerate(parts):
        if WAIT not in part:
            continue
        without = part.replace(WAIT, "", 1)
        with pytest.raises(MlircError, match="has no nvvm.griddepcontrol wait"):
            DeviceModel.parse("// -----".join([*parts[:number], without, *parts[number + 1 :]])).run(given)
        late = without.replace("gpu.return", f"{WAIT}\n gpu.return", 1)
        with pytest.raises(MlircError, match="accesses argument . in front of nvvm.griddepcontrol wait"):
            DeviceModel.parse("// -----".join([*parts[:number], late, *parts[number + 1 :]])).run(given)
        # Not said to be launched early, the text is taken; but it waits, and the host device sees for what too late.
        late = late.replace("{mlirc.dependent}", "")
        _, report = DeviceModel.parse("// -----".join([*parts[:number], late, *parts[number + 1 :]])).run(given)
        kinds = report.kinds()
        first = number == 1  # which has nothing in front of it
        assert kinds == set() if first else kinds <= {f"{x} before griddepcontrol.wait" for x in ("read", "write")}
        assert first or kinds


def test_a_block_that_ends_without_waiting_is_found():
    memory = "memref<64xf32>"
    text = f"""module attributes {{gpu.container_module}} {{ gpu.module @m {{
gpu.func @k(%y: {memory}) kernel attributes {{known_block_size = array<i32: 32, 1, 1>}} {{
  %b = gpu.block_id x
  %t = gpu.thread_id x
  %zero = arith.constant 0 : index
  %c32 = arith.constant 32 : index
  %one = arith.constant 1.0 : f32
  %first = arith.cmpi eq, %b, %zero : index
  scf.if %first {{
    {WAIT}
    memref.store %one, %y[%t] : {memory}
    %u = arith.addi %t, %c32 : index
    memref.store %one, %y[%u] : {memory}
  }}
  gpu.return }} }}
func.func @f(%y: {memory}) {{
  %one = arith.constant 1 : index
  %two = arith.constant 2 : index
  %n = arith.constant 32 : index
  gpu.launch_func @m::@k blocks in (%two, %one, %one) threads in (%n, %one, %one) args(%y : {memory})
  return }} }}"""
    y = torch.zeros(64).numpy()
    assert DeviceKernel(mlir.parse(text), inputs=0).run([y]).kinds() == {"no griddepcontrol.wait"}


def test_what_a_run_writes_is_not_read_early():
    """A text that says of an intermediate result that no launch writes it."""
    job, _ = one_row()
    name = list(job.builds)[-1]
    single_kernel_model(job, name)  # alone, all that it takes is given
    build = job.builds[name]
    launches = [replace(x, given=tuple(range(len(x.args)))) for x in build.launches]
    forged = {n: replace(b.compiled, launches=launches) if n == name else b.compiled for n, b in job.builds.items()}
    with pytest.raises(MlircError, match=f"kernel '{name}'.*may read argument . before .* is what a run writes"):
        build_plan(job.modules["kernels"], forged, model="m", target="sm_90a")


def test_without_the_knob_and_on_older_gpus_nothing_changes():
    module, x = layer(1, 64, 40, torch.float32)
    plain, off = (compiled(module, (x,), *s, target="sm_80").ptx for s in ((), ("graph:dependent=false",)))
    assert plain == off and "griddepcontrol" not in plain
    with pytest.raises(MlircError, match="dependent: sm_80 launches nothing before what is in front of it has ended"):
        compiled(module, (x,), SCHEDULE, target="sm_80")
    alone = compiled(torch.nn.ReLU(), (x,), SCHEDULE)
    assert len(alone.plan.launches) == 1 and "griddepcontrol" not in alone.ptx


@pytest.mark.parametrize(
    "rows, schedules, dtype, early",
    [
        (1, (), torch.bfloat16, True),
        (1, ("graph:dependent=false",), torch.bfloat16, False),
        (16, (), torch.bfloat16, True),
        (17, (), torch.bfloat16, False),
        (2, (), torch.float32, False),
    ],
)
def test_launches_of_few_rows_begin_early_by_themselves(rows, schedules, dtype, early):
    module, x = layer(rows, 136, 72, dtype)
    job = compiled(module, (x,), *schedules)
    assert len(job.plan.launches) >= 2 and {launch.dependent for launch in job.plan.launches} == {early}


@pytest.mark.parametrize("heads", [1, 2])
def test_launches_that_read_many_weights_begin_early_where_several_do(heads):
    """One, a head, does not itself; in a model with several all do, but for attention."""
    module, _ = layer(1, 64, 72, torch.bfloat16)
    wide = [torch.nn.Linear(64, 33000, bias=False), torch.nn.Linear(33000, 64, bias=False)]  # of 4.2 MB
    table = torch.nn.Embedding(33000, 64).bfloat16()  # as large, but of its rows one is read
    net = torch.nn.Sequential(table, module, *[m.bfloat16() for m in wide[:heads]])
    job = compiled(net, (torch.zeros(1, dtype=torch.int64),))
    early = [launch.dependent for launch in job.plan.launches]
    assert len(early) >= 3 and early[-1] == (heads == 2) and all(early[:-1])
    for launch in job.plan.launches:
        assert ("griddepcontrol" in job.builds[launch.kernel].ptx) == launch.dependent


class Attends(torch.nn.Module):
    """A product, attention of one query over a paged cache, and two products behind it."""

    def __init__(self, heads: int, dim: int):
        super().__init__()
        self.sizes = (1, heads, 1, dim)
        self.q, self.o, self.down = (torch.nn.Linear(heads * dim, heads * dim, bias=False) for _ in range(3))

    def forward(self, x, keys, values, pages, lengths):
        y = cached_attention(self.q(x).view(self.sizes), keys, values, pages, lengths, self.sizes[3] ** -0.5)
        return self.down(torch.nn.functional.silu(self.o(y.reshape(x.shape))))


@pytest.mark.parametrize("dtype, late", [(torch.float32, True), (torch.bfloat16, False)])
@pytest.mark.parametrize("keys", [1, 13, 150])
def test_what_is_behind_attention_begins_behind_its_copies_where_weights_are_f32(monkeypatch, dtype, late, keys):
    monkeypatch.setitem(mark_kernels.__globals__, "FEW_BYTES", 0)
    torch.manual_seed(keys)
    pools = [torch.randn(12, 2, 16, 64).to(dtype) for _ in range(2)]
    given = (torch.randn(1, 256).to(dtype), *pools, torch.randperm(11)[None, :10] + 1, torch.tensor([keys]))
    module, found = Attends(4, 64).to(dtype), []
    names = ("x", "keys", "values", "pages", "lengths")
    for schedules in ((), ("graph:dependent=false",)):
        job = compiled(module, given, *schedules)
        device, named = DeviceModel.parse(job.text("gpu")), job.tensors() | dict(zip(names, given, strict=True))
        (y,), report = device.run([as_array(named[n]) for n in device.argument_names()])
        assert report.ok, report
        found.append(y)
        if schedules:
            break
        early = {launch.kernel: launch.dependent for launch in job.plan.launches}
        attention = next(name for name in early if name.startswith("attention"))
        text = job.builds[attention].ptx
        assert all(early.values()) == late and early[attention] == late
        assert ("griddepcontrol.launch_dependents" in text) == late
        if late:
            assert text.index("cp.async.commit_group") < text.index("griddepcontrol.launch_dependents")
    assert found[0].tobytes() == found[1].tobytes()
