"""benchmarks/torch_mlir_suite.py on a suite of five cases: every outcome has its name, and no case takes others along."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import case_runner
import pytest
import torch_mlir_suite

_FRAMEWORK = """
class TestUtils:
    pass
"""
_REGISTRY = """
from collections import namedtuple
Test = namedtuple("Test", "unique_name program_factory program_invoker")
GLOBAL_TEST_REGISTRY = []
def register_test_case(module_factory):
    def add(function):
        GLOBAL_TEST_REGISTRY.append(Test(function.__name__, module_factory, function))
        return function
    return add
"""
_CASES = """
import os
import time
import torch
from torch_mlir_e2e_test.registry import register_test_case


class Doubled(torch.nn.Module):
    def forward(self, x):
        x.add_(1)
        return x * 2, x.sum() > 0

@register_test_case(module_factory=Doubled)
def a_right_one(module, utilities):
    module.forward(torch.ones(3, 5))
    module.forward(torch.ones(7))


class Fickle(torch.nn.Module):
    def forward(self, x):
        return x + 1 if torch.compiler.is_compiling() else x

@register_test_case(module_factory=Fickle)
def a_wrong_one(module, utilities):
    module.forward(torch.ones(3))


class Deadly(torch.nn.Module):
    def forward(self, x):
        os._exit(7) if torch.compiler.is_compiling() else None
        return x

@register_test_case(module_factory=Deadly)
def one_that_kills(module, utilities):
    module.forward(torch.ones(3))


class Endless(torch.nn.Module):
    def forward(self, x):
        time.sleep(10000 if torch.compiler.is_compiling() else 0)
        return x

@register_test_case(module_factory=Endless)
def one_that_hangs(module, utilities):
    module.forward(torch.ones(3))


class Branching(torch.nn.Module):
    def forward(self, x):
        return x if x.sum() > 0 else -x

@register_test_case(module_factory=Branching)
def one_that_is_not_exported(module, utilities):
    module.forward(torch.ones(3))


class Methods(torch.nn.Module):
    def other(self, x):
        return x

@register_test_case(module_factory=Methods)
def one_with_another_method(module, utilities):
    module.other(torch.ones(3))
"""
_OUTCOMES = {
    "a_right_one": "right",
    "a_wrong_one": "wrong",
    "one_that_kills": "crash",
    "one_that_hangs": "time-out",
    "one_that_is_not_exported": "not imported",
    "one_with_another_method": "nothing to compare",
    "one_in_a_file_that_fails": "nothing to compare",
}


@pytest.fixture
def suite(tmp_path: Path) -> Path:
    package = tmp_path / "torch_mlir_e2e_test"
    (package / "test_suite").mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "framework.py").write_text(_FRAMEWORK)
    (package / "registry.py").write_text(_REGISTRY)
    (package / "test_suite" / "__init__.py").write_text("raise ImportError('nobody needs this')")
    (package / "test_suite" / "cases.py").write_text(_CASES)
    broken = (
        "import no_such_package\n@register_test_case(module_factory=None)\ndef one_in_a_file_that_fails(m, u): ...\n"
    )
    (package / "test_suite" / "broken.py").write_text(broken)
    return tmp_path


def test_every_case_ends_with_its_own_outcome_and_the_next_one_runs(suite, capsys):
    output = suite / "out.json"
    status = torch_mlir_suite.main([str(suite), "--level", "linalg", "-o", str(output), "--timeout", "10"])
    printed = capsys.readouterr().out
    results = {r["name"]: r for r in json.loads(output.read_text())["results"]}
    assert {name: r["outcome"] for name, r in results.items()} == _OUTCOMES
    assert status == 1
    assert "status 7" in results["one_that_kills"]["why"]
    assert "relative error" in results["a_wrong_one"]["why"]
    assert "depends on the values of a tensor" in results["one_that_is_not_exported"]["why"]
    assert "other" in results["one_with_another_method"]["why"]
    assert "no_such_package" in results["one_in_a_file_that_fails"]["why"]
    assert "7 cases" in printed and "1 right" in printed


@pytest.mark.parametrize("gpu", [False, True])
def test_only_the_level_of_the_gpu_sees_one(gpu, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    asks = "import json, os; print('{}'); input(); print(json.dumps({'seen': os.environ['CUDA_VISIBLE_DEVICES']}))"
    worker = case_runner.Worker([sys.executable, "-uc", asks], timeout=60, memory=8, gpu=gpu)
    try:
        assert worker.run("case") == {"seen": "1" if gpu else ""}
    finally:
        worker.stop()


def test_resuming_runs_only_what_is_missing_or_asked_for(suite, capsys):
    output = suite / "out.json"
    known = [{"name": n, "outcome": o, "why": "from before", "seconds": 0.0} for n, o in _OUTCOMES.items()]
    output.write_text(json.dumps({"level": "linalg", "results": known}))
    words = [str(suite), "--level", "linalg", "-o", str(output), "--resume", "--only", "wrong"]
    assert torch_mlir_suite.main(words) == 1
    results = {r["name"]: r for r in json.loads(output.read_text())["results"]}
    assert [n for n, r in results.items() if r["why"] != "from before"] == ["a_wrong_one"]


def test_a_folder_without_the_suite_is_refused(tmp_path, capsys):
    with pytest.raises(SystemExit):
        torch_mlir_suite.main([str(tmp_path)])
    assert "torch_mlir_e2e_test" in capsys.readouterr().err


def test_messages_that_differ_in_numbers_and_places_are_one():
    one = case_runner.same("relative error 5.8e-01 of 'add_1' (at some/file.py:12): [1, -2]")
    assert one == case_runner.same("relative error 1.0e-05 of 'x' (at other.py:3): [0, 7]")
