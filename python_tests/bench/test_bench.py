"""Benchmarks: cases as data, counted work, errors and gates, the two halves' folder, workers, tables. No GPU."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest
import torch

from mlirc.backend.ptx import find_ptxas
from mlirc.bench import cases, reference, report, running, suites, timing
from mlirc.bench.artifacts import Compiled, Entry, read_compiled, read_manifest, write_compiled, write_manifest
from mlirc.bench.bound import Ceiling, bound_us, limited_by
from mlirc.bench.build import Built, Operator, build_abstract, build_real, by_position, make_inputs
from mlirc.bench.cases import Case, tensor
from mlirc.bench.compiling import compile_case, geometric_mean
from mlirc.bench.count import count_kernels, count_program, visible_pairs
from mlirc.bench.models import CONFIGS, NETWORKS, model_case
from mlirc.bench.pool import Task, run_tasks
from mlirc.bench.ptxas import summarize as summarize_log
from mlirc.bench.running import check
from mlirc.bench.timing import COLD_BYTES, MAX_COPIES, MIN_COPIES, copies_for, summarize
from mlirc.check.gates import relative_error
from mlirc.errors import MlircError
from mlirc.mlir import parse
from mlirc.runtime.plan import KernelLaunch
from mlirc.tools.mlirc_bench import main


def small_model(name: str = "tinyllama-1.1b", length: int = 5, dtype: str = "f32") -> Case:
    """A model of the suite, cut down in every dimension."""
    case = model_case(name, length, dtype)
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "num_attention_heads": 4}
    sizes |= {"vocab_size": 64}
    if "num_key_value_heads" in case.options["config"]:
        sizes["num_key_value_heads"] = 2
    inputs = {k: {**v, "upper": 64} if "upper" in v else v for k, v in case.inputs.items()}
    options = {**case.options, "config": {**case.options["config"], **sizes}, "weights": "random"}
    return Case(case.name, case.suite, case.builder, options, inputs, dtype)


def operator(name: str, *shapes: tuple[int, ...], dtype: str = "f32") -> Case:
    inputs = {f"x{i}": tensor(dtype, *shape) for i, shape in enumerate(shapes)}
    return Case(name, "test", "operator", {"operator": name}, inputs, dtype)


# Cases


@pytest.mark.parametrize("suite", suites.suites())
def test_every_case_survives_json(suite):
    for case in suites.suite_cases(suite):
        assert Case.from_json(json.loads(json.dumps(case.to_json()))) == case


def test_the_f32_suite_has_84_operators():
    assert len(suites.suite_cases("fp32")) == 84


def test_the_model_suite_has_every_model_in_both_types_at_four_lengths():
    names = {c.name for c in suites.suite_cases("models")}
    assert len(CONFIGS) + len(NETWORKS) == 14
    for model in ("tinyllama-1.1b", "gpt2", "minilm", "mlp"):
        assert {f"{model}.{d}.s{s}" for d in ("f32", "bf16") for s in (1, 7, 128, 512)} <= names
    assert "qwen2.5-7b.2layers.f32.s128" in names and "qwen2.5-7b.bf16.s128" in names


@pytest.mark.parametrize("pattern", ["no-such-case", "["])
def test_a_filter_that_finds_nothing_or_is_no_regex_is_refused(pattern):
    with pytest.raises(MlircError, match="--filter"):
        cases.select(suites.suite_cases("bf16-basics"), pattern)


def test_listing_cases_imports_neither_torch_nor_mlir():
    code = "import sys; from mlirc.bench import suites; suites.suite_cases('models'); suites.suite_cases('anchors');"
    code += "assert not {'torch', 'torch_mlir', 'transformers'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_measuring_half_imports_no_mlir():
    code = "import sys, mlirc.bench.running, mlirc.tools.mlirc_bench, mlirc.bench.report, mlirc.frontend.open;"
    code += "assert 'torch_mlir' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


# Modules and inputs


def test_weights_depend_on_the_seed_and_their_names_alone():
    first, second = (build_real(small_model(), "cpu").module.state_dict() for _ in range(2))
    assert all(torch.equal(first[k], second[k]) for k in first)
    assert not torch.equal(first["model.embed_tokens.weight"], first["lm_head.weight"])


def test_tied_weights_stay_tied():
    module = build_real(small_model("llama-3.2-1b"), "cpu").module
    assert module.lm_head.weight is module.model.embed_tokens.weight


@pytest.mark.parametrize("name", [n for n in CONFIGS if n not in ("t5-small", "whisper-tiny", "vit-b16", "resnet18")])
def test_a_full_size_model_can_be_built_without_its_weights(name):
    module = build_abstract(model_case(name, 7, "bf16")).module
    assert all(isinstance(p, torch._subclasses.FakeTensor) for p in module.parameters())
    assert not any(isinstance(b, torch._subclasses.FakeTensor) for b in module.buffers())


def test_parameter_counts_are_those_of_the_published_models():
    millions = {"tinyllama-1.1b": 1100, "llama-3.2-1b": 1236, "qwen2.5-7b": 7616, "qwen3-0.6b": 596, "gpt2": 124}
    millions |= {"bert-base": 109, "minilm": 22.7, "t5-small": 60.5, "whisper-tiny": 37.8, "vit-b16": 86.6}
    millions |= {"resnet18": 11.7}
    for name, expected in millions.items():
        module = build_abstract(model_case(name, 1, "f32")).module
        assert sum(p.numel() for p in module.parameters()) / 1e6 == pytest.approx(expected, rel=0.01), name


def test_every_copy_of_the_inputs_has_its_own_values():
    case = operator("add_rmsnorm", (3, 8), (3, 8), (8,))
    first, again, other = (list(make_inputs(case, "cpu", c).values()) for c in (0, 0, 1))
    assert torch.equal(first[0], again[0]) and not torch.equal(first[0], other[0])
    assert not torch.equal(first[0], first[1])


def test_input_kinds():
    case = model_case("minilm", 16, "f32")
    made = make_inputs(case, "cpu")
    assert made["input_ids"][0, 0] == 101 and made["input_ids"][0, -1] == 102
    assert made["attention_mask"].tolist() == [[1] * 14 + [0] * 2]


# Counted work


def module_of(case: Case):
    from mlirc.driver.compilation import Compilation
    from mlirc.targets import get_target

    built = build_abstract(case)
    job = Compilation("test", get_target("sm_90a"))
    job.import_module(built.module, *built.arguments(make_inputs(case, "cpu")))
    job.lower("kernels")
    return job.modules


def test_a_product_counts_two_operations_per_multiply_add():
    modules = module_of(operator("linear", (7, 16), (5, 16), dtype="bf16"))
    work = count_program(modules["linalg"])
    assert dict(work.flops) == {"bf16": 2 * 7 * 5 * 16}
    assert work.read == 2 * (7 * 16 + 5 * 16) and work.written == 2 * 7 * 5


def test_a_norm_is_no_product():
    work = count_program(module_of(operator("rmsnorm", (3, 64), (64,)))["linalg"])
    assert not work.flops and work.vector >= 4 * 3 * 64
    assert work.read == 4 * (3 * 64 + 64) and work.written == 4 * 3 * 64


def test_the_kernels_level_counts_the_same_operations():
    modules = module_of(operator("silu_mul_matmul", (3, 24), (3, 24), (24, 8)))
    whole, by_kernel = count_program(modules["linalg"]), count_program(modules["kernels"])
    assert whole.flops == by_kernel.flops == {"f32": 2 * 3 * 24 * 8}
    assert (whole.read, whole.written) == (by_kernel.read, by_kernel.written)
    assert sum(one.flops["f32"] * n for one, n in count_kernels(modules["kernels"]).values()) == whole.flops["f32"]


def test_causal_attention_counts_the_visible_pairs_only():
    work = count_program(module_of(operator("sdpa_causal", (1, 4, 6, 8), (1, 2, 6, 8), (1, 2, 6, 8)))["linalg"])
    assert dict(work.flops) == {"f32": 2 * 4 * (6 * 7 // 2) * (8 + 8)}


@pytest.mark.parametrize(
    ("sq", "sk", "causal", "window", "pairs"),
    [(5, 5, False, 0, 25), (5, 5, True, 0, 15), (1, 9, True, 0, 9), (5, 5, True, 2, 9), (3, 5, True, 0, 12)],
)
def test_visible_pairs(sq, sk, causal, window, pairs):
    assert visible_pairs(sq, sk, causal, window) == pairs


def test_an_embedding_reads_its_rows_and_not_its_table():
    module = parse("""
        func.func @main(%ids: tensor<3xi64>, %table: tensor<1000x8xf32>) -> tensor<3x8xf32> {
          %e = tensor.empty() : tensor<3x8xf32>
          %r = linalg.generic {indexing_maps = [affine_map<(i, j) -> (i)>, affine_map<(i, j) -> (i, j)>],
                               iterator_types = ["parallel", "parallel"]}
            ins(%ids : tensor<3xi64>) outs(%e : tensor<3x8xf32>) {
          ^bb0(%id: i64, %o: f32):
            %row = arith.index_cast %id : i64 to index
            %col = linalg.index 1 : index
            %x = tensor.extract %table[%row, %col] : tensor<1000x8xf32>
            linalg.yield %x : f32
          } -> tensor<3x8xf32>
          return %r : tensor<3x8xf32>
        }""")
    work = count_program(module)
    assert work.read == 3 * 8 + 3 * 8 * 4 and work.written == 3 * 8 * 4


def test_the_bound_is_the_longest_of_memory_products_and_the_rest():
    gpu = Ceiling("toy", 1e9, {"f32": 1e9}, vector=1e9)
    work = {"read": 600, "written": 400, "flops": {"f32": 500}, "vector": 0}
    assert bound_us(work, gpu) == pytest.approx(1.0) and limited_by(work, gpu) == "memory"
    work["flops"] = {"f32": 3000}
    assert bound_us(work, gpu) == pytest.approx(3.0) and limited_by(work, gpu) == "compute"


# Errors and gates


def test_fp64_reference_stays_in_fp64_through_casts_to_f32():
    built = build_real(small_model(dtype="bf16"), "cpu")
    inputs = make_inputs(small_model(dtype="bf16"), "cpu")
    wide = reference.widen(built)
    exact = reference.run_wide(wide, inputs).logits
    assert exact.dtype == torch.float64
    plain = wide(inputs).logits  # the model's own casts to f32 in its norms cost precision
    assert 1e-12 < relative_error(plain, exact) < 1e-5


def test_the_attention_reference_goes_head_by_head_to_the_same_result():
    case = operator("sdpa_causal", (2, 4, 5, 8), (2, 2, 5, 8), (2, 2, 5, 8))
    inputs = make_inputs(case, "cpu")
    built = Built(Operator("sdpa_causal"), by_position)
    exact = reference.run_wide(reference.widen(built), inputs)
    assert exact.dtype == torch.float64 and relative_error(built(inputs), exact) < 1e-6


def test_relative_error_is_of_frobenius_norms():
    ref = torch.tensor([3.0, 4.0], dtype=torch.float64)
    assert relative_error(torch.tensor([3.0, 4.5]), ref) == pytest.approx(0.1)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_nan_or_infinity_that_the_reference_lacks_is_an_infinite_error(bad):
    assert relative_error(torch.tensor([1.0, bad]), torch.tensor([1.0, 2.0])) == math.inf


def test_a_missing_infinity_is_an_infinite_error_and_a_shared_one_none():
    ref = torch.tensor([1.0, math.inf, math.nan])
    assert relative_error(ref.clone(), ref) == 0
    assert relative_error(torch.tensor([1.0, 2.0, math.nan]), ref) == math.inf


@pytest.mark.parametrize(
    ("error", "eager", "dtype", "verdict"),
    [
        (5e-7, 4e-7, "f32", "ok"),
        (9e-7, 4e-7, "f32", "FAIL"),  # over twice eager's
        (5e-8, 1e-9, "f32", "ok"),  # rounding the result costs as much
        (2e-5, 1.5e-5, "f32", "ok (eager)"),
        (2e-2, 1.9e-2, "bf16", "ok (eager)"),
        (4e-3, 3e-3, "bf16", "ok"),
        (math.inf, 1.0, "bf16", "FAIL"),
        (math.nan, 1.0, "bf16", "FAIL"),
        (0.0, 0.0, "torch.int64", "ok"),
        (1e-9, 0.0, "torch.int64", "FAIL"),
        (9e-4, 1e-7, "tf32", "ok"),  # eager of a CPU has no TF32
        (3e-3, 2e-3, "tf32", "ok (eager)"),
        (3e-3, 1e-3, "tf32", "FAIL"),
    ],
)
def test_gates(error, eager, dtype, verdict):
    assert reference.judge(error, eager, dtype) == verdict


class HostModel:
    """Stands in for a compiled model: computes with a Python function, on the CPU."""

    def __init__(self, function, shapes):
        self.function = function
        self.outputs = [torch.empty(s) for s in shapes]
        self.plan = SimpleNamespace(outputs=[SimpleNamespace(name=f"o{i}") for i in range(len(shapes))])

    def bind(self, *inputs):
        self.inputs = inputs

    def launch(self):
        for out, value in zip(self.outputs, self.function(*self.inputs), strict=True):
            out[:] = value

    def synchronize(self):
        pass


def checked(function):
    case = operator("softmax", (3, 8))
    built = Built(Operator("softmax"), by_position)
    return check(case, HostModel(function, [(3, 8)]), built, reference.widen(built), "cpu")


def test_check_passes_a_right_result():
    result = checked(lambda x: (x.softmax(-1),))
    assert result["verdict"] == "ok" and result["repeats"] and not result["changed"]


def test_check_fails_a_wrong_result():
    assert checked(lambda x: (x.softmax(-1) * 1.001,))["verdict"] == "FAIL"


def test_check_sees_an_output_that_is_not_written():
    def partly(x):
        out = torch.full((3, 8), math.nan)
        out[:2] = x.softmax(-1)[:2]
        return (out,)

    result = checked(partly)
    assert result["verdict"] == "FAIL" and result["outputs"][0]["error"] == math.inf


def test_check_sees_a_changed_input():
    def writes(x):
        out = x.softmax(-1)
        x += 1e-30
        x[0, 0] = 5.0
        return (out,)

    assert checked(writes)["changed"] == ["x0"] and checked(writes)["verdict"] == "FAIL"


def test_check_sees_a_result_that_differs_between_runs():
    count = iter(range(10))
    assert not checked(lambda x: (x.softmax(-1) * (1 + 6e-8 * next(count)),))["repeats"]


class LoadedModel(HostModel):
    """A stand-in for a loaded model with every method that timing uses."""

    def __init__(self, function, shapes, inputs):
        super().__init__(function, shapes)
        launch = KernelLaunch("k", (1, 1, 1), (32, 1, 1), 0, (), kernel="reduction_0")
        self.steps = [launch]
        self.plan.inputs = [SimpleNamespace(name=n) for n in inputs]
        self.closed = False

    def bind(self, *inputs, **named):
        super().bind(*inputs, *named.values())

    def __call__(self, *inputs):
        return self.function(*inputs)

    def launch(self, stream=0):
        super().launch()

    def launch_step(self, number, stream):
        self.launch()

    def close(self):
        self.closed = True


@pytest.fixture
def host_timing(monkeypatch):
    """Timing's parts that need CUDA, replaced by a clock on the host."""

    def capture(name, run, sets, runs):
        return timing.Arm(name, lambda: [run(sets[i % len(sets)]) for i in range(runs)], runs)

    def interleave(arms, samples, flush):
        return {a.name: (a.replay(), timing.summarize([8.0 / a.copies] * samples))[1] for a in arms}

    monkeypatch.setattr(timing, "Flusher", lambda: lambda: None)
    monkeypatch.setattr(timing, "capture", capture)
    monkeypatch.setattr(timing, "interleave", interleave)
    monkeypatch.setattr(timing, "quick_us", lambda run: (run(), 60.0)[1])
    monkeypatch.setattr(torch.cuda, "current_stream", lambda *a: 0)
    monkeypatch.setattr(running, "_compiled_peer", lambda name, built: built)


@pytest.mark.parametrize("kernels", [False, True])
def test_the_runner_checks_and_times_an_operator(tmp_path, monkeypatch, host_timing, kernels):
    case = operator("softmax", (3, 8))
    info = compile_case(case, tmp_path, "sm_90a")
    model = LoadedModel(lambda x: (x.softmax(-1),), [(3, 8)], ["x0"])
    monkeypatch.setattr(running, "load_text", lambda ptx, weights, graph, frozen: model)
    settings = {"check": True, "time": True, "warm": True, "peers": ["eager", "compile"], "samples": 3}
    result = running.Runner(tmp_path, {**settings, "kernels": kernels}, "cpu").run(case, info)
    assert result["check"]["verdict"] == "ok" and not result["peer_errors"] and model.closed
    assert set(result["times"]) == {"mlirc", "eager", "compile"} and result["runs_per_graph"] == MAX_COPIES
    assert [k["kernel"] for k in result.get("kernels", [])] == ["reduction_0"] * kernels
    json.dumps(result)


def test_the_runner_binds_a_models_weights_by_name(tmp_path, monkeypatch, host_timing):
    case = small_model()
    info = compile_case(case, tmp_path, "sm_90a")
    built = build_real(case, "cpu")
    given = {}

    def load(ptx, weights, graph, frozen):
        given.update(weights)
        assert graph and frozen
        run = lambda ids: (built.module(input_ids=ids, use_cache=False).logits,)  # noqa: E731
        return LoadedModel(run, [(1, 5, 64)], ["input_ids"])

    monkeypatch.setattr(running, "load_text", load)
    monkeypatch.setattr(reference, "pick_outputs", lambda result, names: [result.logits])
    settings = {"check": True, "time": True, "warm": False, "peers": ["eager"], "samples": 2, "kernels": False}
    result = running.Runner(tmp_path, settings, "cpu").run(case, info)
    assert result["check"]["verdict"] == "ok" and result["runs_per_graph"] == 1
    assert all(torch.equal(given[k], v) for k, v in built.module.state_dict().items())


# Timing arithmetic


def test_short_runs_fill_a_graph_and_copies_exceed_the_cache():
    sets, runs = copies_for(1 << 20, 5.0)
    assert sets * (1 << 20) >= COLD_BYTES and runs == sets
    assert copies_for(1 << 30, 5.0) == (1, MIN_COPIES)
    assert copies_for(1 << 30, 500.0) == (1, 1)
    assert copies_for(100 << 20, 500.0) == (3, 3)


def test_percentiles():
    found = summarize([float(i) for i in range(1, 102)])
    assert (found.median, found.p10, found.p90, found.samples) == (51.0, 11.0, 91.0, 101)


def test_geometric_mean():
    assert geometric_mean([1.0, 4.0]) == pytest.approx(2.0)
    with pytest.raises(MlircError):
        geometric_mean([])


# The folder between two machines


def test_a_compiled_case_can_be_read_back_and_its_plan_runs_elsewhere(tmp_path):
    case = small_model()
    info = compile_case(case, tmp_path, "sm_90a")
    compiled = read_compiled(tmp_path, case)
    built = build_real(case, "cpu")
    from mlirc.runtime.plan_file import extract

    plan = extract(compiled.ptx)
    have = {**built.module.state_dict(), **compiled.constants}
    assert [i.name for i in plan.inputs] == list(case.inputs)
    assert all(w.name in have and tuple(have[w.name].shape) == w.shape for w in plan.weights)
    assert info["launches"] == len(plan.launches) and info["work"]["flops"]["f32"] > 0
    assert set(info["kernels"]) >= {launch.kernel for launch in plan.launches}
    assert "model.rotary_emb.inv_freq" in compiled.constants


def test_the_manifest_survives_a_round_trip(tmp_path):
    entries = [Entry(small_model(), {"seconds": 1.5}), Entry(operator("softmax", (1, 2)), {"error": "no"})]
    write_manifest(tmp_path, entries, {"target": "sm_80", "commit": "abc"})
    read, about = read_manifest(tmp_path)
    assert read == entries and about["target"] == "sm_80"


def test_a_damaged_folder_is_named(tmp_path):
    with pytest.raises(MlircError, match="--compile-only"):
        read_manifest(tmp_path)
    (tmp_path / "manifest.json").write_text('{"format": 1, "cases": [')
    with pytest.raises(MlircError, match="damaged"):
        read_manifest(tmp_path)
    case = operator("softmax", (1, 2))
    write_compiled(tmp_path, case, Compiled("//ptx", {"c": torch.arange(3.0)}))
    assert read_compiled(tmp_path, case).constants["c"].tolist() == [0, 1, 2]
    path = tmp_path / "softmax.zip"
    path.write_bytes(path.read_bytes()[:40])
    with pytest.raises(MlircError, match="damaged"):
        read_compiled(tmp_path, case)


def test_ptxas_logs_are_summed_up():
    log = """ptxas info    : Compiling entry function 'a' for 'sm_90a'
    0 bytes stack frame, 16 bytes spill stores, 8 bytes spill loads
ptxas info    : Used 255 registers, used 1 barriers
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 32 registers"""
    assert summarize_log(log) == {"kernels": 2, "registers": 255, "spilling": 1, "spill_bytes": 16}


def test_a_compiled_case_knows_what_ptxas_says(tmp_path):
    if find_ptxas() is None:
        pytest.skip("no ptxas on this machine")
    info = compile_case(operator("softmax", (3, 8)), tmp_path, "sm_80", ptxas=True)
    assert info["ptxas"]["kernels"] == info["launches"] and 0 < info["ptxas"]["registers"] <= 255


# Workers


WORKER = """
import json, os, sys, time
for line in sys.stdin:
    for case in json.loads(line)["cases"]:
        name = case["name"]
        if name == "dies":
            os._exit(7)
        if name == "hangs":
            time.sleep(60)
        print(json.dumps({"name": name, "result": {"pid": os.getpid()}, "fatal": name == "breaks"}), flush=True)
"""


@pytest.fixture
def toy_worker(tmp_path, monkeypatch):
    script = tmp_path / "toy.py"
    script.write_text(WORKER)
    popen = subprocess.Popen
    monkeypatch.setattr(subprocess, "Popen", lambda command, **kw: popen([sys.executable, str(script)], **kw))


def run(names, **options):
    task = Task([{"name": n} for n in names])
    return dict(run_tasks([task], "run", {}, **options))


def test_a_dead_worker_costs_one_case(toy_worker):
    found = run(["a", "dies", "b"])
    assert "status 7" in found["dies"]["error"] and "pid" in found["a"] and "pid" in found["b"]
    assert found["a"]["pid"] != found["b"]["pid"]


def test_a_hanging_worker_costs_one_case(toy_worker):
    found = run(["hangs", "b"], timeout=1.5)
    assert "took longer than" in found["hangs"]["error"] and "pid" in found["b"]


def test_a_broken_context_gets_a_new_process(toy_worker):
    found = run(["a", "breaks", "b"])
    assert found["a"]["pid"] == found["breaks"]["pid"] != found["b"]["pid"]


def test_past_the_deadline_cases_are_skipped(toy_worker):
    found = run(["a", "b"], deadline=time.monotonic() - 1)
    assert found == {"a": {"skipped": "out of time"}, "b": {"skipped": "out of time"}}


def test_many_tasks_share_memory_and_all_return(toy_worker):
    tasks = [Task([{"name": f"{i}.{j}"} for j in range(2)], memory=40.0 + i) for i in range(5)]
    assert len(dict(run_tasks(tasks, "run", {}, jobs=3, memory=100.0))) == 10


# Tables


def record(name="a", verdict="ok", mine=10.0, eager=20.0, **result):
    found = {"check": {"verdict": verdict, "changed": [], "outputs": [
        {"output": "o", "dtype": "f32", "error": 1e-7, "eager_error": 2e-7, "verdict": verdict}]}}  # fmt: skip
    times = {"mlirc": mine, "eager": eager}
    found["times"] = {n: {"median_us": t, "p10_us": t, "p90_us": t, "samples": 100} for n, t in times.items()}
    return {"case": {"name": name, "suite": "s"}, "info": {}, "result": {**found, "bound_us": 5.0, **result}}


def test_a_row_shows_errors_times_and_the_distance_to_the_bound():
    [row] = report.rows([record()])
    cells = dict(zip(report.HEAD, row, strict=True))
    assert cells["verdict"] == "ok" and cells["error"] == "1.0e-07" and cells["of bound"] == "50%"
    assert cells["vs best"] == "2.00x"


def test_a_failure_counts_at_eagers_speed_in_the_mean():
    lines = "\n".join(report.summary([record(), record("b", "FAIL", mine=1.0)]))
    assert "1 of 2 right" in lines and "1.41x" in lines and "faster in 1" in lines


def test_a_time_below_the_bound_is_called_out():
    assert "so the measurement is wrong: fast" in "\n".join(report.summary([record("fast", mine=4.0)]))


def test_errors_and_skips_have_rows_too():
    broken = [
        {"case": {"name": "a", "suite": "s"}, "info": {"error": "no such op"}},
        {"case": {"name": "b", "suite": "s"}, "info": {}, "result": {"skipped": "out of time"}},
        {"case": {"name": "c", "suite": "s"}, "info": {}, "result": {"error": "CUDA: x | y"}},
    ]
    rows = report.rows(broken)
    assert [r[1] for r in rows] == ["compile: no such op", "skipped: out of time", "run: CUDA: x | y"]
    page = report.markdown({"about": {"gpu": "toy"}, "results": broken})
    assert "| c | run: CUDA: x \\| y |" in page and "gpu toy" in page


def test_the_ten_worst_are_sorted():
    assert report.worst([record("a", mine=10, eager=20), record("b", mine=40, eager=20)])[0] == ("b", 2.0)


# The program


def test_compile_only_writes_a_manifest_and_reports_failures(tmp_path, capfd):
    good = tmp_path / "twice.mlir"
    good.write_text("""
        func.func @main(%a: tensor<7xf32> {mlirc.kind = "weight", mlirc.name = "w"}) -> tensor<7xf32> {
          %e = tensor.empty() : tensor<7xf32>
          %r = linalg.add ins(%a, %a : tensor<7xf32>, tensor<7xf32>) outs(%e : tensor<7xf32>) -> tensor<7xf32>
          return %r : tensor<7xf32>
        }""")
    bad = tmp_path / "bad.mlir"
    bad.write_text("not mlir")
    out = tmp_path / "out"
    assert main([str(good), str(bad), "--compile-only", str(out), "--compile-jobs", "1"]) == 1
    entries, about = read_manifest(out)
    assert about["target"] == "sm_90a" and "error" in entries[1].info
    built = build_real(entries[0].case, "cpu")
    inputs = make_inputs(entries[0].case, "cpu")
    assert list(inputs) == ["w"]
    [doubled] = built(inputs)
    assert torch.equal(doubled, 2 * inputs["w"])
    assert "1 of 2 compiled" in capfd.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "nothing to measure"),
        (["no-such-suite"], "no suite"),
        (["--run", "no/such/dir"], "cannot read"),
        (["fp32", "--filter", "zzz"], "no case matches"),
        (["fp32", "--run", "x"], "give no suite"),
        (["fp32", "-o", "x.md"], "must end in .json"),
        (["fp32", "--compile-only", "x", "--target", "sm_7"], "sm_7"),
    ],
)
def test_bad_arguments_are_one_line_errors(arguments, message, capsys):
    assert main(arguments) == 1
    told = capsys.readouterr().err
    assert told.startswith("error: ") and message in told and told.count("\n") == 1


@pytest.mark.gpu
def test_a_suite_on_the_gpu(tmp_path):
    if not torch.cuda.is_available():
        pytest.skip("no GPU on this machine")
    out = tmp_path / "results.json"
    arguments = ["fp32", "--filter", "(softmax|kv_proj).tinyllama.s32$", "--peers", "eager", "--samples", "10"]
    assert main([*arguments, "-o", str(out)]) == 0
    data = json.loads(out.read_text())
    assert all(r["result"]["check"]["verdict"] == "ok" for r in data["results"])
    assert os.path.exists(out.with_suffix(".md"))
