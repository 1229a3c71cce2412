"""Problem files (`Model`, `get_inputs`, `get_init_inputs`): as models, and a folder of them as a benchmark. No GPU."""

from __future__ import annotations

import json
import math
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from mlirc.bench.artifacts import Entry
from mlirc.bench.cases import Case
from mlirc.bench.problems import report, running, session
from mlirc.bench.problems.compare import Sums, judge_error
from mlirc.bench.problems.find import find_problems, is_problem
from mlirc.check.gates import relative_error
from mlirc.driver.compilation import compile_model
from mlirc.errors import MlircError
from mlirc.frontend.problem import adopt, load_problem, loose_tensors, open_problem
from mlirc.host import run_level
from mlirc.tools import mlirc_bench
from mlirc.tools.mlirc_bench import main

LINEAR = """
import torch
from torch import nn

class Model(nn.Module):
    def __init__(self, wide, bias):
        super().__init__()
        self.linear = nn.Linear(7, wide, bias)
        self.norm = nn.BatchNorm1d(wide)
        self.shift = torch.randn(wide)

    def forward(self, x, scale):
        return torch.relu(self.norm(self.linear(x))) * scale + self.shift

def get_inputs():
    return [torch.randn(3, 7), 0.5]

def get_init_inputs():
    return [5, True]
"""
SOFTMAX = """
import torch
class Model(torch.nn.Module):
    def forward(self, x):
        return torch.softmax(x, -1)
def get_inputs():
    return [torch.rand(3, 11)]
def get_init_inputs():
    return []
"""
HUGE = SOFTMAX.replace("torch.rand(3, 11)", "torch.rand(1 << 20, 1 << 12)")
CONVERTS = """
import torch
from torch import nn

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        inner = nn.Conv2d(6, 6, 3, padding=1)
        layers = nn.Sequential(nn.Conv2d(3, 6, 1), inner, nn.BatchNorm2d(6), inner)
        self.layers = layers.to(torch.bfloat16).to(memory_format=torch.channels_last)

    def forward(self, x):
        return self.layers(x)

def get_inputs():
    return [torch.randn(2, 3, 5, 7).to(torch.bfloat16, memory_format=torch.channels_last)]

def get_init_inputs():
    return []
"""
CRASH = SOFTMAX.replace("return []", "import os; os._exit(3)")


@pytest.fixture
def folder(tmp_path):
    """Three problems, one of which ends its process, in two levels, beside files that are none."""
    (tmp_path / "level1").mkdir()
    (tmp_path / "level2").mkdir()
    (tmp_path / "level1/10_softmax.py").write_text(SOFTMAX)
    (tmp_path / "level1/2_linear.py").write_text(LINEAR)
    (tmp_path / "level2/1_crash.py").write_text(CRASH)
    (tmp_path / "level1/helper.py").write_text("x = 1\n")
    (tmp_path / "level1/broken.py").write_text("def (\n")
    return tmp_path


# As a model


def test_a_problem_compiles_as_it_is_and_every_level_agrees(folder):
    job = compile_model(str(folder / "level1/2_linear.py"), cache=False)
    assert [spec.name for spec in job.plan.inputs] == ["x"]
    assert job.check(["linalg", "tiles"]).ok


def test_compiling_makes_neither_inputs_nor_weights(folder, tmp_path):
    (tmp_path / "huge.py").write_text(HUGE)
    source = open_problem(str(tmp_path / "huge.py"))
    assert source.input_specs()[0].shape == (1 << 20, 1 << 12)
    assert isinstance(source.args[0], torch._subclasses.FakeTensor)
    source = open_problem(str(folder / "level1/2_linear.py"))
    assert all(isinstance(p, torch._subclasses.FakeTensor) for p in source.module.parameters())


def test_a_model_that_converts_itself_is_not_made_either(tmp_path):
    (tmp_path / "converts.py").write_text(CONVERTS)
    source = open_problem(str(tmp_path / "converts.py"))
    parameters = dict(source.module.named_parameters())
    assert all(isinstance(p, torch._subclasses.FakeTensor) for p in (*parameters.values(), *source.args))
    assert {p.dtype for p in parameters.values()} == {torch.bfloat16} and len(parameters) == 6
    assert source.module.layers[1].weight is source.module.layers[3].weight
    real = dict(load_problem(str(tmp_path / "converts.py")).module().named_parameters())
    assert {n: (p.shape, p.stride()) for n, p in parameters.items()} == {
        n: (p.shape, p.stride()) for n, p in real.items()
    }


def test_weights_and_inputs_are_the_same_each_time_and_those_of_the_reference(folder):
    source = open_problem(str(folder / "level1/2_linear.py"))
    again = open_problem(str(folder / "level1/2_linear.py"))
    assert torch.equal(source.weights["linear.weight"], again.torch_module().linear.weight)
    assert torch.equal(source.real_inputs()[0], again.real_inputs()[0])


def test_random_tensors_outside_of_the_state_dict_are_those_that_were_compiled_in(folder):
    problem = load_problem(str(folder / "level1/2_linear.py"))
    torch.manual_seed(7)
    values = {"shift": torch.randn(5), "linear.weight": torch.zeros(5, 7), "no.such": torch.zeros(1)}
    module = adopt(problem.module(), values)
    assert torch.equal(module.shift, values["shift"]) and bool(module.linear.weight.any())
    assert list(loose_tensors(module)) == ["shift"]


def test_a_dtype_holds_for_weights_and_inputs(folder):
    source = open_problem(str(folder / "level1/2_linear.py"), dtype=torch.bfloat16)
    assert {source.input_specs()[0].dtype, source.module.linear.weight.dtype} == {torch.bfloat16}
    assert source.weights["linear.weight"].dtype == torch.bfloat16


@pytest.mark.parametrize(
    "text, message",
    [
        ("x = 1", "has no Model and no get_inputs and no get_init_inputs"),
        (SOFTMAX.replace("get_init_inputs", "init"), "has no get_init_inputs: a Python file needs"),
        ("def (", r"p\.py:1: invalid syntax"),
        ("import no_such_module", "running it failed: ModuleNotFoundError: No module named 'no_such_module'"),
        (SOFTMAX.replace("return []", "return [1]"), r"Model\(\.\.\.\) failed: TypeError"),
        (SOFTMAX.replace("return []", "return 1 / 0"), r"get_init_inputs\(\) failed: ZeroDivisionError"),
        (SOFTMAX.replace("return [torch", "return 3 #"), r"get_inputs\(\) must return a list of inputs, not int"),
        (SOFTMAX.replace("torch.nn.Module", "dict"), "Model must make a torch.nn.Module, not Model"),
    ],
)
def test_what_is_missing_is_named(tmp_path, text, message):
    (tmp_path / "p.py").write_text(text)
    with pytest.raises(MlircError, match=message):
        open_problem(str(tmp_path / "p.py"))


def test_inputs_are_the_files_own(folder):
    with pytest.raises(MlircError, match="--input is not possible"):
        compile_model(str(folder / "level1/10_softmax.py"), inputs=["x=f32[2,2]"])


def test_a_state_that_the_module_keeps_as_a_plain_tensor_is_a_state(tmp_path):
    text = LINEAR.replace(
        "def forward(self, x, scale):", "def forward(self, x, scale):\n        self.shift = self.shift + scale"
    )
    (tmp_path / "state.py").write_text(text)
    job = compile_model(str(tmp_path / "state.py"), cache=False)
    assert [spec.name for spec in job.plan.outputs] == ["output"]
    assert [spec.name for spec in job.plan.written] == ["shift"]
    module, inputs = job.imported.source.torch_module(), job.imported.source.values()
    results = run_level(job.modules["tiles"], [inputs[0]], job.tensors())
    torch.testing.assert_close(results, [module(*inputs).detach(), module.shift])


# A folder


def test_problems_are_found_in_counting_order_and_nothing_else_is(folder):
    cases = find_problems([str(folder)])
    assert [c.name for c in cases] == ["level1/2_linear", "level1/10_softmax", "level2/1_crash"]
    assert [c.suite for c in cases] == ["level1", "level1", "level2"]
    assert [c.name for c in find_problems([str(folder / "level2")])] == ["level2/1_crash"]
    assert is_problem(SOFTMAX) and not is_problem("def (")
    with pytest.raises(MlircError, match="holds no problem"):
        find_problems([str(folder / "level1/helper.py")])


def test_a_folder_compiles_past_a_crash_and_resumes(folder, tmp_path, capfd):
    out, compiled = tmp_path / "r.json", tmp_path / "compiled"
    command = [str(folder), "--compile-only", str(compiled), "-o", str(out)]
    assert main([*command, "--filter", "crash|linear"]) == 1
    first = {r["case"]["name"]: r for r in json.loads(out.read_text())["results"]}
    assert first["level2/1_crash"]["info"]["error"] == "the worker process ended with status 3"
    assert (
        first["level1/2_linear"]["info"]["launches"] >= 1 and first["level1/2_linear"]["info"]["peak_bytes"] > 1 << 20
    )
    assert len(list(compiled.glob("*.zip"))) == 1
    capfd.readouterr()
    (folder / "level2/1_crash.py").write_text(SOFTMAX)
    assert main([*command, "--filter", "crash", "--resume"]) == 1
    assert "[1/" not in capfd.readouterr().err  # known already
    assert main([*command, "--filter", "crash", "--resume", "--retry"]) == 0
    printed = capfd.readouterr()
    assert "[1/1] level2/1_crash: " in printed.err and "level2  1         1" in printed.out
    assert "| level2 | 1 | 1 |" in out.with_suffix(".md").read_text()
    kept = [r["case"]["name"] for r in json.loads(out.read_text())["results"]]
    assert kept == ["level1/2_linear", "level2/1_crash"]  # also those that the filter left out


def test_the_page_says_how_the_measured_problems_were_compiled(folder, tmp_path, monkeypatch):
    compiled, out = tmp_path / "compiled", tmp_path / "r.json"
    assert main([str(folder), "--filter", "linear", "--fp32", "tf32", "--compile-only", str(compiled)]) == 0
    monkeypatch.setattr(mlirc_bench, "_require_gpu", lambda: None)
    monkeypatch.setattr(session.Session, "run", lambda self, compiled: [])
    assert main(["--run", str(compiled), "-o", str(out)]) == 0
    about = json.loads(out.read_text())["about"]
    assert (about["fp32"], about["target"], "tf32" in out.with_suffix(".md").read_text()) == ("tf32", "sm_90a", True)


def test_a_worker_ends_with_its_parent(tmp_path):
    """Killed in the middle of a problem that never ends, the program leaves no process behind."""
    (tmp_path / "endless.py").write_text(
        SOFTMAX.replace(
            "return []",
            f"open({str(tmp_path / 'pid')!r}, 'w').write(str(__import__('os').getpid()))\n    while True: pass",
        )
    )
    command = [
        sys.executable,
        "-m",
        "mlirc.tools.mlirc_bench",
        str(tmp_path / "endless.py"),
        "--compile-only",
        str(tmp_path / "out"),
    ]
    program = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    try:
        pid = _wait_for(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text())
    finally:
        program.kill()
        program.wait()
    assert _wait_for(lambda: not Path(f"/proc/{pid}").exists() or " Z " in Path(f"/proc/{pid}/stat").read_text())


def _wait_for(ready, seconds=120):
    end = time.monotonic() + seconds
    while not (found := ready()):
        assert time.monotonic() < end
        time.sleep(0.05)
    return found


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["problems"], "name the folder"),
        (["EMPTY"], "holds no problem"),
        (["problems", "nowhere"], "no such file or directory"),
        (["FOLDER", "--resume", "--compile-only", "OUT"], "--resume needs -o"),
        (["FOLDER", "--filter", "nothing"], "no case matches"),
    ],
)
def test_wrong_command_lines_are_one_line(folder, tmp_path, capsys, arguments, message):
    (tmp_path / "empty").mkdir()
    known = {"EMPTY": str(tmp_path / "empty"), "FOLDER": str(folder), "OUT": str(tmp_path / "out")}
    assert main([known.get(a, a) for a in arguments]) == 1
    printed = capsys.readouterr().err
    assert printed.startswith("error: ") and printed.count("\n") == 1 and message in printed


# The measuring half


class Fake:
    """A compiled model whose result is `compute` of the bound inputs."""

    def __init__(self, compute):
        self.compute, self.outputs = compute, []

    def bind(self, *inputs):
        self.inputs = inputs
        self.outputs = [torch.empty_like(t) for t in self.compute(*inputs)]

    def launch(self, stream=0):
        for out, value in zip(self.outputs, self.compute(*self.inputs), strict=True):
            out.copy_(value)

    def synchronize(self):
        pass

    def close(self):
        pass


@pytest.mark.parametrize(
    "change, verdict, against",
    [
        (lambda y: y, "ok", "eager"),
        (lambda y: y * (1 + 3e-6), "ok", "eager"),
        (lambda y: y * (1 + 1e-4), "FAIL", "fp64"),
        (lambda y: torch.where(y > 0.1, y, math.nan), "FAIL", "fp64"),
    ],
)
def test_what_eager_says_otherwise_is_asked_of_fp64(tmp_path, monkeypatch, change, verdict, against):
    from mlirc.bench.artifacts import Compiled, write_compiled

    case = Case("soft", "level1", "problem", {"path": "soft.py", "source": SOFTMAX}, {}, "f32")
    write_compiled(tmp_path, case, Compiled("", {}))
    monkeypatch.setattr(running, "load_text", lambda *_, **__: Fake(lambda x: [change(torch.softmax(x, -1))]))
    info = {"work": {"read": 1, "written": 1, "flops": {}, "vector": 0}}
    result = running.run_problem(case, info, tmp_path, {"time": False, "kernels": False}, device="cpu")
    assert (result["check"]["verdict"], result["check"]["against"]) == (verdict, against)
    assert report.outcome({"case": case.to_json(), "info": info, "result": result}).startswith(verdict)


@pytest.mark.parametrize("fp32", ["tf32x3", "tf32"])
def test_peers_compile_first_and_may_use_tf32_where_ours_does(tmp_path, monkeypatch, fp32):
    from mlirc.bench.artifacts import Compiled, write_compiled

    case = Case("soft", "level1", "problem", {"path": "soft.py", "source": SOFTMAX}, {}, "f32")
    write_compiled(tmp_path, case, Compiled("", {}))
    calls = []

    def compiled(peer, module):
        calls.append((peer, torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32))
        return module

    monkeypatch.setattr(running, "_compiled", compiled)
    settings = {"time": True, "peers": ["eager", "compile"], "warm": True}
    result = running.run_problem(case, {"fp32": fp32}, tmp_path, settings, device="cpu")
    assert set(result) == {"warm_s"} and calls == [("compile", fp32 == "tf32", fp32 == "tf32")]


@pytest.mark.parametrize(
    "jobs, peers, names",
    [(3, ["eager", "compile"], ["b", "a"]), (1, ["eager", "compile"], []), (3, ["eager"], [])],
)
def test_peers_of_compiled_problems_compile_side_by_side_longest_first(tmp_path, monkeypatch, jobs, peers, names):
    rounds = []

    def run_tasks(tasks, mode, settings, *, jobs, **_):
        rounds.append((mode, settings["warm"], jobs, [c["name"] for t in tasks for c in t.cases]))
        return [(name, {"warm_s": 1.0}) for name in rounds[-1][-1]]

    monkeypatch.setattr(session, "run_tasks", run_tasks)
    entries = [
        Entry(Case(name, "level1", "problem", {}, {}, "f32"), {"launches": launches} if launches else {"error": "no"})
        for name, launches in (("a", 1), ("b", 9), ("c", 0))
    ]
    running = {"time": True, "peers": peers, "samples": 3}
    session.Session([], tmp_path, {}, "sm_90a", running=running, warm_jobs=jobs)._warm(entries)
    assert rounds == ([("problem", True, jobs, names)] if names else [])


@pytest.mark.parametrize("times, verdict", [(1.5, "ok (eager)"), (2.5, "FAIL")])
def test_an_error_up_to_twice_eagers_own_is_ok(times, verdict):
    module = torch.nn.Identity()
    module.forward = lambda x: x + 1e4 - 1e4
    x = torch.randn(64, 3, generator=torch.Generator().manual_seed(0))
    model = Fake(lambda x: [x + times * (x + 1e4 - 1e4 - x)])
    model.bind(x)
    found = running.check(model, module, [x], lambda: module)
    assert found["verdict"] == verdict and found["outputs"][0]["eager_error"] > 1e-4


@pytest.mark.parametrize("offset, verdict", [(1e-6, "ok (cancels)"), (1e-2, "FAIL")])
def test_what_cancels_is_judged_by_its_absolute_error(offset, verdict):
    module = torch.nn.Identity()
    module.forward = lambda x: x * 0 + (5e-9 if x.dtype == torch.float32 else 1e-9)
    x = 1 + torch.rand(64, 3, generator=torch.Generator().manual_seed(0))
    model = Fake(lambda x: [x * 0 + offset])
    model.bind(x)
    found = running.check(model, module, [x], lambda: module)
    assert found["verdict"] == verdict


def test_fp64_that_does_not_fit_is_taken_in_parts_of_the_batch(monkeypatch):
    calls = []

    class Wide(torch.nn.Module):
        def forward(self, x):
            calls.append(len(x))
            if len(x) > 3:
                raise torch.OutOfMemoryError("too much")
            return x * 2

    x, narrow = torch.randn(13, 2), torch.nn.Identity()
    narrow.forward = lambda x: x * 2
    ((mine, own),) = running._wide_sums([x * 2.5], [x * 2], [x], narrow, Wide)
    assert calls == [13, 4] + [1] * 13 and own.relative == 0 and mine.relative == pytest.approx(0.25)
    mixing = torch.nn.Identity()
    mixing.forward = lambda x: x - x.mean()
    with pytest.raises(MlircError, match="mixes the rows"):
        running._wide_sums([x], [x - x.mean()], [x], mixing, Wide)


def test_sums_in_slices_are_the_whole_error(monkeypatch):
    out, ref = torch.randn(5, 7), torch.randn(5, 7)
    monkeypatch.setattr("mlirc.bench.problems.compare._STEP", 4)
    assert Sums.between(out, ref).relative == pytest.approx(relative_error(out, ref))
    ref[2, 2] = math.inf
    assert Sums.between(out, ref).relative == math.inf
    out[2, 2] = math.inf
    assert Sums.between(out, ref).relative == pytest.approx(relative_error(out, ref))
    assert judge_error(0.0, None, torch.int64)["verdict"] == "ok"
    assert judge_error(1e-9, None, torch.int64)["verdict"] == "FAIL"


def test_fast_p_counts_those_that_are_right_among_all():
    def record(verdict, ours):
        times = {"mlirc": {"median_us": ours}, "eager": {"median_us": 10.0}}
        result = {"check": {"verdict": verdict, "outputs": []}, "times": times}
        return {"case": {"name": "x", "suite": "level1"}, "info": {"launches": 1}, "result": result}

    failed = {"case": {"name": "y", "suite": "level1"}, "info": {"error": "no"}, "result": {}}
    cells = report.level_line("level1", [record("ok", 5.0), record("ok", 20.0), record("FAIL", 1.0), failed])
    assert cells[1:5] == ["4", "3", "2", "1.00x of 2"]
    assert dict(zip(report.FAST, cells[6:], strict=True)) == {0.5: "25%", 0.8: "25%", 1.0: "25%", 1.5: "25%", 2.0: "0%"}


def test_the_page_has_the_kernels_that_were_timed():
    kernel = {
        "kernel": "matmul_0", "script": "matmul", "calls": 2, "launches": 2, "us_per_call": 21.5, "us_per_run": 43.0,
        "bound_us_per_call": 8.6, "bytes_per_call": 36_000_000, "hot": False, "origin": ["a|b"],
    }  # fmt: skip
    outputs = [{"verdict": "ok", "error": 1e-3, "eager_error": None}]
    check = {"verdict": "ok", "outputs": outputs, "changed": []}
    result = {"check": check, "times": {"mlirc": {"median_us": 50.0}}, "bound_us": 20.0}

    def record(name: str, **more: object) -> dict:
        return {"case": {"name": name, "suite": "net"}, "info": {"launches": 2}, "result": {**result, **more}}

    page = report.markdown({"about": {}, "results": [record("net/a"), record("net/b", kernels=[kernel])]})
    assert "## Kernels of net/a" not in page
    assert "| matmul_0 | matmul | 2 | 21.50 | 8.60 | 43.00 | 36 | 1,674 | a\\|b |" in page
    assert "2 launches take 43.0 us one by one, and 50.0 us as one graph" in page
