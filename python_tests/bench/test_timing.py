"""The order in which contenders are replayed, with events that read no clock."""

from __future__ import annotations

import pytest
import torch

from mlirc.bench import timing


def clockless(monkeypatch) -> list[str]:
    seen: list[str] = []

    class Event:
        def __init__(self, enable_timing):
            assert enable_timing

        def record(self):
            seen.append("|")

        def elapsed_time(self, end):
            return 0.004

    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    return seen


def test_arms_take_turns_and_the_cache_is_flushed_right_before_what_is_timed(monkeypatch) -> None:
    seen = clockless(monkeypatch)
    arms = [timing.Arm("ours", lambda: seen.append("a"), 1), timing.Arm("peer", lambda: seen.append("b"), 2)]
    found = timing.interleave(arms, 2, lambda: seen.append("-"))
    assert "".join(seen) == "aaabbb" + "-|a|-|b|" * 2
    assert (found["ours"].median, found["peer"].median) == (pytest.approx(4.0), pytest.approx(2.0))


def test_in_a_turn_what_is_timed_follows_its_own_kind(monkeypatch) -> None:
    seen = clockless(monkeypatch)
    times = timing.turn(timing.Arm("ours", lambda: seen.append("a"), 2), 3, lambda: seen.append("-"))
    assert "".join(seen) == "a-|a|" * 3 and times == [pytest.approx(2.0)] * 3
