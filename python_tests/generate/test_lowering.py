"""Plans of larger models are lowered in a process of their own: what comes back is what this process would have made."""

from __future__ import annotations

import pytest
import torch

from mlirc.driver import start
from mlirc.driver.compilation import Compilation
from mlirc.driver.lowering import Lowerings
from mlirc.errors import MlircError
from mlirc.frontend.source import from_torch
from mlirc.generate import compilation, opening
from mlirc.generate.compilation import compile_generation
from mlirc.generate.export import exported, open_generator
from mlirc.targets import get_target
from support.generation import tiny

LEVELS = ("torch", "linalg", "kernels", "schedule", "tiles")


def compiled(monkeypatch, parameters: int):
    monkeypatch.setattr(compilation, "_MANY_PARAMETERS", parameters)
    monkeypatch.setattr(compilation, "cores", lambda: 2)
    started: list[int] = []
    enter = Lowerings.__enter__
    monkeypatch.setattr(Lowerings, "__enter__", lambda self: started.append(self.count) or enter(self))
    made = compile_generation(tiny("LlamaForCausalLM"), context=40, page_size=8, chunks=(1,), level="tiles")
    return made, started


def test_equals_this_process(monkeypatch):
    here, started = compiled(monkeypatch, 1000)
    assert not started
    apart, started = compiled(monkeypatch, 1)
    assert started == [1] and list(apart.jobs) == list(here.jobs) == ["decode", "sample", "prefill-1"]
    for name, job in here.jobs.items():
        assert {level: apart.jobs[name].text(level) for level in LEVELS} == {n: job.text(n) for n in LEVELS}
        assert list(apart.jobs[name].modules) == ["torch", "linalg", "kernels", "tiles"]
        assert apart.jobs[name].records == job.records
        assert apart.jobs[name].timer.seconds.keys() == job.timer.seconds.keys()


def imported(name: str, *schedules: str) -> Compilation:
    job = Compilation(name, get_target("sm_90a"), schedules)
    job.import_source(from_torch(torch.nn.Linear(7, 5).eval(), (torch.zeros(3, 7),), {}, name))
    return job


@pytest.mark.parametrize("count", [0, 1])
def test_errors_come_back(monkeypatch, count):
    if count:  # all of it in the helper
        monkeypatch.setattr(Lowerings, "_not_begun", lambda self: None)
    good, bad = imported("good"), imported("bad", "elementvise:block=64")
    with Lowerings(count, 1) as lowerings, pytest.raises(MlircError, match="elementvise:block=64.*no kernel"):
        lowerings.add(good, "ptx")
        lowerings.add(bad, "ptx")
        lowerings.finish()
    assert good.ptx.count(".entry") == len(good.plan.launches) == 1 and good.modules["kernels"] is not None
    assert not bad.ptx


def test_a_helper_started_ahead_is_the_first_one(monkeypatch):
    monkeypatch.setattr("os.sched_getaffinity", lambda process: {0, 1})
    start.spawn_ahead()
    (process,) = start._ahead
    monkeypatch.setattr(Lowerings, "_not_begun", lambda self: None)
    job = imported("one")
    with Lowerings(1, 1) as lowerings:
        assert lowerings._threads[0].process is process and not start._ahead
        lowerings.add(job, "ptx")
        lowerings.finish()
    assert job.ptx.count(".entry") == 1 and process.returncode is not None


def test_a_helper_that_nobody_takes_ends(monkeypatch):
    monkeypatch.setattr("os.sched_getaffinity", lambda process: {0, 1})
    start.spawn_ahead()
    start.spawn_ahead()
    (process,) = start._ahead
    compiled(monkeypatch, 1000)  # too small for one
    assert process.returncode == -9 and not start._ahead
    monkeypatch.setattr("os.sched_getaffinity", lambda process: {0})
    start.spawn_ahead()
    assert not start._ahead


@pytest.mark.parametrize(
    ("text", "layers"),
    [
        ('{"num_hidden_layers": 22}', 22),
        ('{"n_layer": 12}', 12),
        ('{"text_config": {"num_hidden_layers": 7}, "n_layer": true}', 7),
        ('{"num_hidden_layers": "22"}', 0),
        ("[22]", 0),
        ("{" * 5000, 0),
        ("\0", 0),
    ],
)
def test_layers_that_a_config_names(tmp_path, text, layers):
    assert opening._layers(tmp_path) == 0
    (tmp_path / "config.json").write_text(text)
    assert opening._layers(tmp_path) == layers


def test_an_export_is_not_divided(monkeypatch):
    """transformers computes rotary embeddings without gradients; torch.export would divide the graph at each such
    place, and put the parts together again, to find that nothing had gradients anyway."""
    from torch._export.passes import replace_set_grad_with_hop_pass as divides

    calls: list[int] = []
    split = divides.sequential_split
    monkeypatch.setattr(divides, "sequential_split", lambda *a: calls.append(1) or split(*a))
    generator = open_generator(tiny("LlamaForCausalLM"), context=40, page_size=8, chunks=(1,))
    exported(generator, "sample")
    assert not calls
