"""The list of Hugging Face architectures: a tiny model of each, with random weights, is right on plain and padded inputs
and when a token changes, or it is refused for the reason that the list gives."""

from __future__ import annotations

from collections import Counter

import pytest

from support.architectures.runner import LIST, check_architecture, chosen, levels_for, read_list, write_config

transformers = pytest.importorskip("transformers")

ARCHITECTURES = read_list()


@pytest.mark.parametrize("architecture", chosen(), ids=lambda a: a.name)
def test_its_check_ends_as_the_list_says(architecture):
    if not hasattr(transformers, architecture.name):
        pytest.skip(f"transformers {transformers.__version__} has no {architecture.name}")
    outcome = check_architecture(architecture.name, levels_for(architecture.name))
    update = f"python python_tests/support/architectures/update.py {architecture.name}"
    wrong = outcome.startswith("WRONG")
    advice = "mend it, or refuse it" if wrong else f"if that is as it should be: {update}"
    assert outcome == architecture.outcome, f"{architecture.name} is '{outcome}' now: {advice}"


def test_the_list_is_long_and_nothing_on_it_is_wrong():
    outcomes = Counter(a.outcome.split(":")[0] for a in ARCHITECTURES)
    assert set(outcomes) == {"right", "refused"}, f"{LIST.name} may say 'right' or 'refused: why'"
    assert len({a.name for a in ARCHITECTURES}) == len(ARCHITECTURES) >= 120
    kinds = Counter(a.kind for a in ARCHITECTURES)
    assert set(kinds) == {"audio", "decoder", "encoder", "encoder-decoder", "multimodal", "vision"}


def test_a_lost_causal_mask_is_wrong(monkeypatch):
    from mlirc import frontend
    from mlirc.mlir import context, ir

    lower = frontend.lower_to_linalg

    def without_causal(module):
        lowered = lower(module)

        def visit(op):
            if op.name == "mlirc.attention":
                with context():
                    op.attributes["causal"] = ir.BoolAttr.get(False)
            return ir.WalkResult.ADVANCE

        lowered.operation.walk(visit)
        return lowered

    monkeypatch.setattr(frontend, "lower_to_linalg", without_causal, raising=False)
    outcome = check_architecture("LlamaForCausalLM", ["linalg"])
    assert outcome.startswith("WRONG: level linalg is wrong on inputs 'plain'")


def test_configs_are_tiny_and_inputs_have_two_rows_of_odd_lengths(tmp_path):
    assert write_config("LlamaForCausalLM", tmp_path) == ["input_ids=i64[2,9]", "attention_mask=i64[2,9]"]
    assert (tmp_path / "config.json").stat().st_size < 4000
