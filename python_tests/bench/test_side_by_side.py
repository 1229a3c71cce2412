"""benchmarks/side_by_side.py: work in processes side by side, of which some die."""

from __future__ import annotations

import importlib

import pytest
import side_by_side

WORK = """
import os, signal
def work(part):
    name, number, _ = part
    if name == "killed" and number:
        os.kill(os.getpid(), signal.SIGKILL)
    if name == "exits" and number:
        os._exit(7)
    if name == "wrong" and number:
        raise ValueError("no")
    return name, number
"""


@pytest.fixture
def work(monkeypatch, tmp_path):
    """A function that processes of their own can import: what the name says, of its second part."""
    (tmp_path / "work_for_processes.py").write_text(WORK)
    monkeypatch.syspath_prepend(tmp_path)
    return importlib.import_module("work_for_processes").work


@pytest.mark.parametrize("workers", [1, 3])
def test_what_dies_is_named_and_the_others_go_on(work, workers):
    names, died = ["first", "killed", "second", "exits", "last"], []
    found = list(side_by_side.shared(work, names, workers, died, parts=2))
    assert found == [(n, (n, i)) for n in names for i in range(2) if n not in ("killed", "exits") or i == 0]
    assert sorted(died) == [
        "exits, part 1 of 2: its process died (exit status 7)", "killed, part 1 of 2: its process died (SIGKILL)",
    ]  # fmt: skip


def test_an_error_is_raised_with_its_name(work):
    with pytest.raises(ValueError, match="no") as raised:
        list(side_by_side.shared(work, ["first", "wrong"], 2, [], parts=2))
    assert raised.value.__notes__ == ["in part 1 of wrong"]


def test_the_page_says_what_is_missing(monkeypatch, tmp_path):
    (tmp_path / "results").mkdir()
    monkeypatch.setattr(side_by_side, "__file__", str(tmp_path / "side_by_side.py"))
    assert (
        side_by_side.write("page.md", "# Page\n", []) == 0 and (tmp_path / "results/page.md").read_text() == "# Page\n"
    )
    assert side_by_side.write("page.md", "# Page\n", ["x: died"]) == 1
    assert (tmp_path / "results/page.md").read_text() == "# Page\n\n## Not done\n\n- x: died\n"
