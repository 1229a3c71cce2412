"""Benchmarks of models that generate: cases, the check of caches and tokens, peers, memory, tables. No GPU."""

from __future__ import annotations

import gc
import json
import weakref
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from mlirc.bench import report, timing
from mlirc.bench.artifacts import Compiled
from mlirc.bench.compiling import compile_case
from mlirc.bench.generation import contenders, running
from mlirc.bench.generation.build import build_generating, open_generating, pack_weights
from mlirc.bench.generation.cases import DECODE, GENERATING, SAMPLE, chunks, folder_case, generation, generation_case
from mlirc.bench.generation.check import check_generation, draw_tokens
from mlirc.bench.generation.memory import accounted
from mlirc.bench.generation.peers import StaticStep
from mlirc.bench.suites import suite_cases
from mlirc.errors import MlircError
from mlirc.frontend.open import packed_as
from mlirc.generate import compilation
from mlirc.generate.export import open_generator
from mlirc.generate.loading import engine_of
from mlirc.generate.plan_engine import PlanEngine
from mlirc.host.level_code import LevelCode
from mlirc.runtime.plan_file import extract
from mlirc.tools.mlirc_bench import main
from support.generation import EagerModel, tiny

SMALL = {"vocab_size": 61, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1}
SMALL |= {"num_attention_heads": 4, "num_key_value_heads": 2}


def small_case(name: str = "tinyllama-1.1b", dtype: str = "f32", **sizes):
    """A model of the suite, cut down in every dimension."""
    model_class, config_class, config = GENERATING[name]
    config = {k: v for k, v in {**config, **SMALL}.items() if k != "head_dim"}
    return generation_case(name, {"model": model_class, "config_class": config_class, "config": config}, dtype, **sizes)


class State(dict):
    """A module's buffers as the state of a loaded model."""

    def __init__(self, step):
        super().__init__(step.states())
        self.step = step

    def __setitem__(self, name, array):
        self.step.get_buffer(name).copy_(torch.from_numpy(array))


class EagerPlan(EagerModel):
    """A step as PyTorch runs it, with all that is asked of a loaded plan; `spoil` changes what it gives."""

    def __init__(self, step, generator, spoil=lambda tokens: tokens):
        super().__init__(step, generator)
        self.state, self.spoil = State(step), spoil
        self.given = {}

    def __call__(self, **inputs):
        return self.spoil(super().__call__(**inputs))

    def bind(self, **inputs):
        self.given = inputs

    def launch(self, stream=0):
        self(**{name: np.asarray(t) for name, t in self.given.items()})

    def synchronize(self):
        pass


def engine_for(case, spoil=lambda tokens: tokens):
    """The engine of a case's steps as PyTorch runs them, and its generator."""
    source = open_generating(case)
    chunks = sorted({1, case.options["prefill"] or min(3, case.options["context"]), case.options.get("verify") or 1})
    generator = open_generator(source.build(), slots=case.options["slots"], context=case.options["context"],
                               page_size=4, chunks=chunks)  # fmt: skip
    models = {n: EagerPlan(s.module, generator, spoil) for n, s in generator.steps.items()}
    return PlanEngine(models, generator.sizes), generator


# Cases


def test_the_suite_has_the_models_types_schemes_and_batches():
    names = [case.name for case in generation()]
    assert len(set(names)) == len(names) == len(suite_cases("generation"))
    assert "tinyllama-1.1b.bf16.b1.decode1024.prefill512" in names and "llama-3.2-1b.f32.b16.decode1024" in names
    assert {"qwen2.5-7b.bf16.int4-group-128.b16.decode1024", "qwen2.5-7b.bf16.int8.b16.decode1024"} <= set(names)


def test_smollm2_has_as_many_parameters_as_the_published_model():
    [case] = [c for c in generation() if c.name == "smollm2-135m.bf16.b16.decode1024"]
    assert sum(p.numel() for p in open_generating(case).module.parameters()) / 1e6 == pytest.approx(134.5, rel=0.001)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["generation", "--decode"], "config.json"),
        (["fp32", "--context", "8"], "--context goes with"),
        ([".", "--prefill", "3", "--batch", "2"], "--batch goes with --decode"),
        (["fp32", "--quantize", "int4"], "--quantize goes with"),
    ],
)
def test_bad_arguments_are_one_line_errors(arguments, message, capsys):
    assert main(arguments) == 1
    told = capsys.readouterr().err
    assert told.startswith("error: ") and message in told and told.count("\n") == 1


def test_a_folder_is_a_case(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    case = folder_case(str(tmp_path), "bf16", 0, decode=True, prefill=None, context=7, batch=3)
    assert case.name == f"{tmp_path.name}.bf16.b3.decode7" and case.options["slots"] == 3
    with pytest.raises(MlircError, match="2 tokens or more"):
        folder_case(str(tmp_path), "bf16", 0, decode=True, prefill=None, context=1)
    case = folder_case(str(tmp_path), "bf16", 0, decode=True, prefill=None, verify=5, context=7)
    assert case.name == f"{tmp_path.name}.bf16.b1.decode7.verify5" and chunks(case) == [1, 5, 7]
    for sizes in ({"verify": 1}, {"verify": 9, "context": 20}, {"verify": 4, "context": 4}, {"verify": 2, "batch": 2}):
        with pytest.raises(MlircError, match="of one sequence are judged at once"):
            folder_case(str(tmp_path), "bf16", 0, decode=True, prefill=None, **sizes)


# Weights


def test_both_machines_make_the_same_weights():
    source = open_generating(case := small_case("llama-3.2-1b"))
    real = build_generating(case, "cpu").state_dict()
    assert set(source.weights) == set(real)
    assert all(torch.equal(source.weights[name], real[name]) for name in real)


@pytest.mark.parametrize("scheme", ["int4:group=8", "int3:group=row,asymmetric", "fp8"])
def test_packed_weights_are_those_that_are_compiled_for(scheme):
    case = small_case(dtype="bf16")
    source = packed_as(open_generating(case), scheme)
    module = build_generating(case, "cpu")
    packed = pack_weights(module, scheme)
    names = {name for name in source.weights if ".weight_" in name}
    assert set(packed) == names and all(torch.equal(source.weights[n], packed[n]) for n in names)
    tokens = torch.arange(5)[None]
    with torch.no_grad():  # the module's own weights are now what the packed ones stand for
        wanted = source.torch_module()(input_ids=tokens, use_cache=False).logits
        assert torch.equal(module(input_ids=tokens, use_cache=False).logits, wanted)


# The check


def checked(case, spoil=lambda tokens: tokens, spoil_cache=None):
    engine, generator = engine_for(case, spoil)
    module = build_generating(case, "cpu")
    if spoil_cache:
        read = engine.prefill
        engine.prefill = lambda *a: (read(*a), spoil_cache(engine.models["decode"].state))[0]
    tokens = draw_tokens(case, module, generator.sizes, "cpu")
    return check_generation(engine, module, tokens)


@pytest.mark.parametrize(("context", "batch", "dtype"), [(2, 1, "f32"), (13, 3, "f32"), (11, 2, "bf16")])
def test_a_right_engine_passes(context, batch, dtype):
    found = checked(small_case(context=context, batch=batch, dtype=dtype, prefill=None))
    assert found.result["verdict"] == "ok" and found.result["repeats"]
    assert {o["dtype"] for o in found.result["outputs"]} == {dtype}
    assert [o["verdict"] for o in found.result["outputs"]] == ["ok"] * 4
    assert found.last.shape == (batch, 61) and found.is_near(found.last.argmax(1))
    assert not found.is_near(found.last.argmin(1))


def test_other_tokens_fail():
    found = checked(small_case(context=13, prefill=None), lambda tokens: (tokens + 1) % 61)
    assert found.result["verdict"] == "FAIL" and [o["verdict"] for o in found.result["outputs"]][2] == "FAIL"


def test_a_wrong_key_in_the_cache_fails():
    def spoil(state):
        pool = state["cache.0.keys"]
        pool[1:, 0, 0, 0] *= 1.01

    found = checked(small_case(context=13, prefill=None), spoil_cache=spoil)
    assert found.result["outputs"][0]["verdict"] == found.result["verdict"] == "FAIL"


def test_a_cache_that_is_not_written_fails():
    def spoil(state):
        state["cache.0.values"][1:, :, 1] = np.nan

    assert checked(small_case(context=13, prefill=None), spoil_cache=spoil).result["verdict"] == "FAIL"


# Peers


@pytest.mark.parametrize("count", [1, 9])
def test_every_call_of_a_peer_is_at_the_same_positions(count):
    module = tiny("Qwen2ForCausalLM")
    tokens = torch.randint(97, (3, 9), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        step = StaticStep(module, tokens, count, 11)
        wanted = module(input_ids=tokens, use_cache=False).logits[:, -1].argmax(-1)
        assert all(torch.equal(step(), wanted) for _ in range(3))


def test_a_cache_that_cannot_be_set_back_is_refused():
    module = tiny("MistralForCausalLM", sliding_window=4)
    with torch.no_grad(), pytest.raises(MlircError, match="cannot be set back"):
        StaticStep(module, torch.arange(9)[None], 1, 9)


# Memory


def test_memory_is_weights_cache_and_the_largest_arena():
    def spec(name, kind, nbytes):
        return SimpleNamespace(name=name, kind=kind, nbytes=nbytes)

    shared = [spec("w", "weight", 700), spec("cache.0.keys", "state", 200), spec("token", "state", 8)]
    plans = {
        "decode": SimpleNamespace(weights=[*shared, spec("c", "constant", 30)], arena_size=40),
        "prefill-3": SimpleNamespace(weights=shared, arena_size=70),
    }
    found = accounted(plans, 400)  # type: ignore[arg-type]
    assert (found["weights"], found["cache"], found["states"], found["needed"]) == (730, 200, 8, 1000)
    assert found["peak"] == 1130 and found["over"] == pytest.approx(0.13)
    assert "peak" not in accounted(plans, None)  # type: ignore[arg-type]


# The whole


@pytest.fixture
def on_host(monkeypatch):
    """Timing's parts that need CUDA, replaced by a clock on the host."""

    class Peer(contenders.Peer):
        def __init__(self, name, case, folder, device, fp32):
            super().__init__(name, case, folder, device)
            assert fp32 == "tf32x3"

        def turn(self, samples):
            self.arm.replay()
            return [8.0] * samples

        def close(self):
            """Has no process."""

    monkeypatch.setattr(timing, "Flusher", lambda: lambda: None)
    monkeypatch.setattr(timing, "capture", lambda name, run, sets, runs: timing.Arm(name, lambda: run(None), runs))
    monkeypatch.setattr(timing, "turn", lambda arm, samples, flush: (arm.replay(), [8.0] * samples)[1])
    monkeypatch.setattr(contenders, "PeerProcess", Peer)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda *a: 0)


SETTINGS = {"check": True, "time": True, "warm": False, "samples": 3, "kernels": False}


def run_case(monkeypatch, spoil=lambda tokens: tokens, **sizes):
    case = small_case(**sizes)
    engine, generator = engine_for(case, spoil)
    states = [SimpleNamespace(name="cache.0.keys", kind="state", nbytes=64, shape=(1,))]
    plan = SimpleNamespace(weights=states, arena_size=8)
    monkeypatch.setattr(running, "extract", lambda text: plan)
    monkeypatch.setattr(
        running,
        "read_compiled",
        lambda folder, case: Compiled("", {}, dict.fromkeys([SAMPLE, "prefill-3", "prefill-4", "prefill-1"], "")),
    )
    monkeypatch.setattr(running, "load_engine", lambda compiled, sizes, tensors: engine)
    work = {"work": {"read": 0, "written": 0, "flops": {}, "vector": 0}, "kernels": {}}
    plans = {name: work for name in generator.steps}
    info = {"sizes": vars(generator.sizes), "plans": plans, "notes": ["slow"]}
    settings = {**SETTINGS, "generating_peers": ["transformers", "eager"]}
    result = running.run_generating(case, info, None, settings, "cpu")  # type: ignore[arg-type]
    json.dumps(result)
    return {"case": case.to_json(), "info": info, "result": result}


def test_a_case_is_checked_and_both_of_its_parts_are_timed(monkeypatch, on_host, capsys):
    record = run_case(monkeypatch, context=13, batch=2, prefill=3)
    parts = record["result"]["parts"]
    assert set(parts) == {"decode13", "prefill3"}
    assert all(set(p["times"]) == {"mlirc", "transformers", "eager"} and not p["peer_errors"] for p in parts.values())
    assert {name: t["samples"] for name, t in parts["prefill3"]["first_token"].items()} == {
        "mlirc": 20, "transformers": 20, "eager": 20
    }  # fmt: skip
    assert parts["decode13"]["through_engine"]["samples"] == 20
    assert parts["decode13"]["through_engine_ahead"]["samples"] == 20
    data = {"about": {}, "results": [record]}
    page = report.markdown(data)
    assert "tinyllama-1.1b.f32.b2.decode13 |" in page and "tinyllama-1.1b.f32.b2.prefill3 |" in page
    assert (
        "time to the first token: mlirc" in page
        and "with each token on the host" in page
        and "note: slow" in page
        and "no graph us" in page
    )
    report.print_table(data)
    assert "1.00x (geometric mean of 2)" in capsys.readouterr().out


def test_tokens_that_are_judged_at_once_are_timed_beside_peers_that_read_as_many(monkeypatch, on_host):
    record = run_case(monkeypatch, context=11, prefill=None, verify=4)
    part = record["result"]["parts"]["verify4"]
    assert set(part["times"]) == {"mlirc", "transformers", "eager"} and not part["peer_errors"]
    assert part["through_engine"]["samples"] == 20
    assert "tinyllama-1.1b.f32.b1.verify4 |" in report.markdown({"about": {}, "results": [record]})


def test_tokens_that_are_judged_wrongly_are_not_timed(monkeypatch, on_host):
    spoil = lambda tokens: (tokens + 1) % 61 if len(tokens) == 4 else tokens  # noqa: E731
    with pytest.raises(MlircError, match="behind those that are judged are not PyTorch's"):
        run_case(monkeypatch, spoil, context=11, prefill=None, verify=4)


def test_a_peer_in_its_process_chooses_what_one_in_this_chooses():
    case = small_case(context=9, batch=2, prefill=None)
    tokens = torch.randint(61, (2, 9), generator=torch.Generator().manual_seed(3)).tolist()
    here = contenders.Peer("transformers", case, None, "cpu").prepare(tokens, 1)
    peer = contenders.PeerProcess("transformers", case, None, "cpu", "ieee")
    try:
        assert peer.prepare(tokens, 1) == here and len(peer.turn(2)) == 2 and len(peer.by_host(3)) == 3
        assert set(contenders.in_turns({"a": peer}, 13)["a"].to_json().values()) > {13}
        with pytest.raises(MlircError, match="IndexError"):
            peer.prepare([[99999] * 9], 1)
        assert peer.prepare(tokens, 9) == here  # the next request is answered
        peer.process.kill()
        with pytest.raises(MlircError, match="the process of 'transformers' ended with -9"):
            peer.turn(1)
    finally:
        peer.close()


def test_turns_are_of_ten_and_of_what_is_left():
    class Counted:
        def __init__(self, name):
            self.name = name

        def turn(self, samples):
            seen.append((self.name, samples))
            return [1.0] * samples

    seen: list[tuple[str, int]] = []
    found = contenders.in_turns({"a": Counted("a"), "b": Counted("b")}, 23)
    assert seen == [("a", 10), ("b", 10), ("a", 10), ("b", 10), ("a", 3), ("b", 3)]
    assert found["b"].samples == 23


def test_a_wrong_case_is_not_timed(monkeypatch, on_host):
    record = run_case(monkeypatch, lambda tokens: (tokens + 1) % 61, context=13, prefill=3)
    assert record["result"]["check"]["verdict"] == "FAIL" and "parts" not in record["result"]
    assert not report.is_right(record)


def test_an_arm_keeps_what_its_graph_reads(monkeypatch):
    """A CUDA graph reads the memory of a peer's cache, and does not keep it from being given to others."""

    class Graph:
        def replay(self):
            """Reads memory."""

    class Nothing:
        def __init__(self, *given, **options):
            self.wait_stream = lambda other: None

        def __enter__(self):
            return self

        def __exit__(self, *why):
            return None

    for name, fake in {"CUDAGraph": Graph, "Stream": Nothing, "stream": Nothing, "graph": Nothing}.items():
        monkeypatch.setattr(torch.cuda, name, fake)
    monkeypatch.setattr(torch.cuda, "current_stream", Nothing)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)

    class Step:
        def __call__(self, given):
            return 0

    step = Step()
    kept = weakref.ref(step)
    arm = timing.capture("eager", step, [None], 1)
    del step
    gc.collect()
    assert kept() is not None
    del arm
    gc.collect()
    assert kept() is None


def test_a_peer_that_is_wrong_is_not_timed(monkeypatch, on_host):
    call = StaticStep.__call__
    monkeypatch.setattr(StaticStep, "__call__", lambda self, _=None: (call(self) + 1) % 61)
    part = run_case(monkeypatch, context=13, prefill=3)["result"]["parts"]["decode13"]
    assert set(part["times"]) == {"mlirc"} and "other tokens" in part["peer_errors"]["eager"]


def test_what_kernels_move_is_shown_with_their_sum(capsys):
    kernel = {"kernel": "matmul_0", "script": "matmul", "calls": 2, "launches": 2, "us_per_call": 10.0}
    kernel |= {
        "us_per_run": 20.0,
        "bound_us_per_call": 5.0,
        "bytes_per_call": 22_000_000,
        "hot": False,
        "origin": ["m"],
    }
    check = {"verdict": "ok", "changed": [], "outputs": [{"error": 0.0, "eager_error": 0.0, "verdict": "ok"}]}
    times = {"mlirc": {"median_us": 19.0}}
    part = {"times": times, "bound_us": 10.0, "peer_errors": {}, "kernels": [kernel]}
    record = {
        "case": {"name": "a.decode9", "suite": "s"},
        "info": {},
        "result": {"check": check, "parts": {"decode9": part}},
    }
    page = report.markdown({"about": {}, "results": [record]})
    assert "2 launches take 20.0 us one by one, and 19.0 us as one graph" in page and "| 22 | 2,200 |" in page
    report.print_table({"about": {}, "results": [record]})
    assert "2,200" in capsys.readouterr().out


def test_what_is_compiled_here_is_right_with_weights_made_there(tmp_path, monkeypatch):
    """Compiled into a folder and read from there; the plans run on the CPU, on weights that are packed there."""
    made = []
    compile_ = compilation.compile_generation
    monkeypatch.setattr(compilation, "compile_generation", lambda *a, **k: made.append(compile_(*a, **k)) or made[0])
    case = small_case(context=5, batch=2, prefill=1, quantize="int8")
    info = json.loads(json.dumps(compile_case(case, tmp_path, "sm_90a")))
    assert info["sizes"]["chunks"] == [1] and set(info["plans"]) == {DECODE, SAMPLE, "prefill-1"}
    kernels = info["plans"][DECODE]["kernels"]
    assert sum(k["calls"] for k in kernels.values()) == info["launches"]
    assert any("words" in w.name for job in made[0].jobs.values() for w in job.plan.weights), "packed"
    pool = 3 * 2 * 64 * 8 * 4
    assert all(k["written"] < pool for k in kernels.values()), kernels  # rows are put into the cache in place

    def load(compiled, sizes, tensors):
        plans = {name: extract(text) for name, text in running.texts_of(compiled).items()}
        for spec in (spec for plan in plans.values() for spec in plan.weights if spec.kind != "state"):
            assert tuple(tensors[spec.name].shape) == spec.shape
        modules = {name: job.modules["kernels"] for name, job in made[0].jobs.items()}
        codes = {name: lambda _, module=module: LevelCode.compiled(module) for name, module in modules.items()}
        return engine_of("cpu", sizes, tensors, codes=codes)

    monkeypatch.setattr(running, "load_engine", load)
    result = running.run_generating(case, info, tmp_path, {"time": False}, "cpu")
    assert result["check"]["verdict"] == "ok" and result["check"]["repeats"], result
    assert result["memory"]["cache"] == 2 * pool
