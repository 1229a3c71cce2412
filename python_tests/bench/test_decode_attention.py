"""benchmarks/decode_attention.py: its inputs, its reference and its peers compute one attention. No GPU."""

from __future__ import annotations

import decode_attention
import pytest
import torch

from mlirc.bench import timing


@pytest.mark.parametrize("case", decode_attention.SETS["odd"], ids=str)
def test_the_op_and_every_peer_give_the_reference(case, monkeypatch):
    module, given = decode_attention.module(case)
    plain = decode_attention.gathered(case, given)
    want = decode_attention.exact(*plain)
    assert torch.allclose(module(*given)[:1].to(want), want, atol=1e-3 if case[0] == "f16" else 1e-5)
    monkeypatch.setattr(decode_attention, "peers", lambda: {"plain": decode_attention.folded(None)})
    monkeypatch.setattr(decode_attention, "arms_of", lambda files, sets, runs, error: ([], {}))
    monkeypatch.setattr(timing, "copies_for", lambda moved, us: (2, 2))
    monkeypatch.setattr(timing, "capture", lambda name, run, sets, runs: timing.Arm(name, lambda: run(sets[1]), runs))
    monkeypatch.setattr(
        timing, "interleave", lambda arms, n, flush: {a.name: (a.replay(), timing.summarize([2.0]))[1] for a in arms}
    )
    [row] = decode_attention.run_case(case, [], 1, None, "cpu")
    assert row["error"] < (1e-3 if case[0] == "f16" else 1e-6)
    width, heads = (2, 14 + 2 * 1009) if case[0] == "f16" else (4, 7 + 7 * 517)
    assert row["gb_per_s"] == pytest.approx(2 * width * case[1] * case[5] * heads / 2e3)


def test_a_files_name_says_its_case():
    for case in (case for cases in decode_attention.SETS.values() for case in cases):
        assert decode_attention.case_of(decode_attention.name_of(case, "block_kv=64,stages=2")) == case
