"""`mlirc MODEL --check`: what it finds, whom it blames, and what it refuses."""

from __future__ import annotations

import math
import sys

import pytest
import torch

from mlirc import mlir
from mlirc.check import check_torch, parse_levels
from mlirc.check.cases import Inputs, cases
from mlirc.check.compare import Reference, compare
from mlirc.check.reference import TorchModel, _enliven
from mlirc.errors import MlircError
from mlirc.frontend import from_torch
from mlirc.frontend.inputs import InputSpec
from mlirc.ir import levels
from mlirc.tools import mlirc as program

FACTORY = """
import torch
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear, self.norm = torch.nn.Linear(13, 7), torch.nn.LayerNorm(7)
    def forward(self, x):
        y = self.norm(self.linear(x)) * 0.5
        return {"y": y, "best": y.argmax(-1)}
def make():
    torch.manual_seed(0)
    return Model(), (torch.randn(3, 5, 13),)
"""


class Causal(torch.nn.Module):
    """Each token's row is the mean of the tokens up to it."""

    def __init__(self):
        super().__init__()
        self.embedding, self.norm = torch.nn.Embedding(11, 8), torch.nn.LayerNorm(8)

    def forward(self, input_ids):
        x = self.embedding(input_ids)
        n = x.shape[1]
        share = torch.ones(n, n).tril() / torch.arange(1, n + 1)[:, None]
        return self.norm(share @ x)


TOKENS = torch.tensor([[1, 5, 10, 0, 7], [2, 2, 3, 4, 9]])


@pytest.fixture
def factory(tmp_path, monkeypatch):
    """A model of two outputs as the command line takes it, in a folder of its own."""
    (tmp_path / "factory_to_check.py").write_text(FACTORY)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    sys.modules.pop("factory_to_check", None)
    return "factory_to_check:make"


def with_a_wrong_constant(module):
    """The module with the model's 0.5 made 0.75."""
    text = str(module)
    assert "5.000000e-01" in text
    return mlir.parse(text.replace("5.000000e-01", "7.500000e-01"))


def spoil(monkeypatch, level: str) -> None:
    """Makes the step to `level` wrong."""
    import mlirc.driver.compilation
    import mlirc.frontend
    import mlirc.scripts.graph

    if level == "linalg":
        lower = mlirc.frontend.lower_to_linalg
        monkeypatch.setattr(mlirc.frontend, "lower_to_linalg", lambda m: with_a_wrong_constant(lower(m)), raising=False)
    elif level == "kernels":
        divide = mlirc.scripts.graph.to_kernels
        monkeypatch.setattr(mlirc.scripts.graph, "to_kernels", lambda *a, **k: with_a_wrong_constant(divide(*a, **k)))
    else:
        to_tiles = mlirc.driver.compilation.Compilation._to_tiles

        def spoiled(job, building=None):
            to_tiles(job, building)
            job.modules["tiles"] = with_a_wrong_constant(job.modules["tiles"])

        monkeypatch.setattr(mlirc.driver.compilation.Compilation, "_to_tiles", spoiled)


def test_every_level_is_compared_on_every_kind_of_inputs(factory, ran, tmp_path):
    result = ran(program.main, factory, "--check", "-o", tmp_path / "m.ptx", "-v")
    assert result.status == 0, result.err
    lines = result.out.splitlines()
    assert lines[1].split() == ["linalg", "kernels", "tiles", "gpu"]
    assert [line[:14].strip() for line in lines[2:]] == [
        "plain", "floats x100", "tiny floats", "zeros", "large negative", "one NaN", "one infinity",
    ]  # fmt: skip
    assert all(line.count(" ok") == 4 for line in lines[2:])
    assert "check: linalg, kernels, tiles, gpu right on 7 inputs (worst " in result.err
    assert (tmp_path / "m.ptx").exists()


@pytest.mark.parametrize("level, above", [("linalg", "torch"), ("kernels", "linalg"), ("tiles", "kernels")])
def test_the_step_that_made_a_wrong_answer_is_named_and_no_file_is_written(
    factory, ran, tmp_path, monkeypatch, level, above
):
    spoil(monkeypatch, level)
    result = ran(program.main, factory, "--check", "linalg,kernels", "tiles", "-o", tmp_path / "m.ptx", "--no-cache")
    assert result.status == 1 and "WRONG" in result.out
    assert result.error.startswith(f"error: level {level} is wrong on inputs 'plain': ")
    assert f"(made by the step {above} -> {level}): {tmp_path / 'm.ptx'} is not written" in result.error
    assert [p.name for p in tmp_path.iterdir() if p.name.startswith("m.")] == []


def test_a_gap_between_the_levels_is_told(factory, ran, monkeypatch):
    spoil(monkeypatch, "kernels")
    assert (
        "made by the step linalg -> tiles: check kernels too"
        in ran(program.main, factory, "--check", "linalg", "tiles").error
    )


def test_a_table_of_kernels_says_whether_the_model_was_checked(factory, ran):
    assert f"check: not checked (mlirc {factory} --check)" in ran(program.main, factory, "-v").err


def test_a_file_is_compared_with_the_levels_below_it(factory, ran, tmp_path):
    for level in ("linalg", "kernels"):
        file = tmp_path / f"{level}.mlir"
        file.write_text(ran(program.main, factory, "--emit", level).out)
        result = ran(program.main, file, "--check", "tiles")
        assert result.status == 0 and "the level of the file" in result.out, result.err
    assert "starts from level kernels: check tiles, gpu, ptx" in ran(program.main, file, "--check", "linalg").error


@pytest.mark.parametrize(
    "words, message",
    [
        (["MODEL", "--check", "tile"], "'tile' is not one of linalg, kernels, tiles, gpu, ptx"),
        (["--check", "MODEL"], "is not one of linalg, kernels, tiles, gpu, ptx (MODEL goes before --check)"),
        (["MODEL", "--check", "torch"], "'torch' is not one of"),
        (["gpu.mlir", "--check"], "level gpu: there is no level above to compare it with"),
        pytest.param(["MODEL", "--check", "ptx"], "needs an NVIDIA GPU, and there is none here",
                     marks=pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")),
    ],
)  # fmt: skip
def test_what_cannot_be_checked_is_refused(factory, ran, tmp_path, words, message):
    if "gpu.mlir" in words:
        (tmp_path / "gpu.mlir").write_text(ran(program.main, factory, "--emit", "gpu").out)
    assert message in ran(program.main, *[factory if w == "MODEL" else w for w in words]).error


def test_a_last_token_that_earlier_ones_see_a_little_is_found_by_changing_it(monkeypatch):
    import mlirc.check.run as run

    real = run.level_runner

    def leaking(*args):
        function = real(*args)

        def leak(inputs):
            outputs = function(inputs)
            outputs[0][:, 0] += 1e-6 * inputs[0][:, -1:]  # too little for the other kinds' gates
            return outputs

        return leak

    assert check_torch(Causal(), (TOKENS,), levels=["linalg"]).ok
    monkeypatch.setattr(run, "level_runner", leaking)
    result = check_torch(Causal(), (TOKENS,), levels=["linalg"])
    assert [kind for kind, d in result.differences["linalg"].items() if d.wrong] == ["token changed"]
    assert "token 0 of sequence 0 sees the last token, and in PyTorch it does not" in result.reason()


def test_a_model_that_sees_later_tokens_in_pytorch_may_do_so_here():
    class Mean(torch.nn.Module):
        def forward(self, input_ids):
            x = input_ids.float()[:, :, None] * torch.ones(3)
            return x - x.mean(1, keepdim=True)

    result = check_torch(Mean(), (TOKENS,), levels=["linalg"])
    assert result.ok and "token changed" in result.kinds


@pytest.mark.parametrize("dtype, wrong_by", [(torch.float32, 1e-2), (torch.bfloat16, 0.5), (torch.float16, 0.1)])
def test_one_wrong_element_or_row_of_many_does_not_hide(dtype, wrong_by):
    wide = torch.randn(1000, 100, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    eager = wide.to(dtype)
    reference = Reference(eager, wide)
    assert not compare(eager, reference).wrong
    out = eager.clone()
    out[617, 31] += wrong_by
    found = compare(out, reference)
    assert found.wrong and "[617, 31]" in found.reason
    small = Reference(
        (wide * torch.linspace(1e-3, 1, 1000)[:, None]).to(dtype), wide * torch.linspace(1e-3, 1, 1000)[:, None]
    )
    out = small.eager.clone()
    out[900] *= 1.5
    assert compare(out, small).wrong


def test_nan_and_infinities_must_be_where_they_are_in_pytorch():
    ref = torch.tensor([[1.0, math.nan, math.inf, -math.inf, 2.0]])
    reference = Reference(ref, ref.double())
    assert not compare(ref.clone(), reference).wrong
    for place, value in ((0, math.nan), (1, 1.0), (2, -math.inf), (3, math.nan), (4, math.inf)):
        out = ref.clone()
        out[0, place] = value
        found = compare(out, reference)
        assert found.wrong and f"at [0, {place}]" in found.reason


def test_an_output_without_a_number_is_said():
    class Blank(torch.nn.Module):
        def forward(self, x):
            return x + 1, torch.log(-x * x)

    result = check_torch(Blank(), (torch.randn(3, 5),), levels=["linalg"], kinds=["plain"])
    assert result.ok and result.blank == {"plain": [1]}
    assert "output 1 is nothing but NaN and infinities" in result.line() and "output 1" in result.table()


def test_embed_in_a_products_name_does_not_make_it_an_embedding():
    class Head(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.bbox_embed = torch.nn.Linear(100, 100, bias=False)
            self.position_embed = torch.nn.Parameter(torch.empty(100, 100))

    head = Head()
    for tensor in head.parameters():
        torch.nn.init.normal_(tensor, std=0.02, generator=torch.Generator().manual_seed(0))
    _enliven(head, made_up=True)
    assert 0.09 < head.bbox_embed.weight.std() < 0.11 and 0.9 < head.position_embed.std() < 1.1


def test_a_models_own_sensitivity_to_rounding_is_allowed_for():
    class Steep(torch.nn.Module):
        def forward(self, x):
            return torch.sin(1e4 * x)

    x = torch.linspace(0.1, 0.7, 7)[None]
    eager, wide = Steep()(x), Steep()(x.double())
    (moved,) = TorchModel(from_torch(Steep(), (x,))).moved([x])
    off = max(((m.double() - wide).norm() / wide.norm()).item() for m in moved)
    assert len(moved) == 5 and 1e-5 < off < 1e-3
    out = wide.float() * (1 + off)
    own = max(1e-5, 2 * ((eager.double() - wide).norm() / wide.norm()).item())
    assert compare(out, Reference(eager, wide)).wrong == (off > own)
    assert not compare(out, Reference(eager, wide, moved)).wrong
    assert compare(wide.float() * (1 + 4 * off), Reference(eager, wide, moved)).wrong


def test_what_only_overflows_in_pytorchs_own_dtype_may_be_anything():
    wide = torch.tensor([70000.0, 1.0], dtype=torch.float64)
    reference = Reference(wide.half(), wide)
    assert not compare(torch.tensor([65504.0, 1.0]).half(), reference).wrong
    assert compare(torch.tensor([math.inf, 2.0]).half(), reference).wrong


def test_integers_and_shapes_must_be_equal():
    ref = torch.tensor([3, 2**53 + 1, -1])
    assert not compare(ref.clone(), Reference(ref, ref)).wrong
    assert "1 of 3 integers differ, first at [1]" in compare(torch.tensor([3, 2**53, -1]), Reference(ref, ref)).reason
    assert "has shape [2], PyTorch's has [3]" in compare(ref[:2], Reference(ref, ref)).reason
    flags = torch.tensor([True, False])
    assert compare(~flags, Reference(flags, flags)).wrong


def test_rows_of_padding_may_be_anything_and_no_others():
    ref = torch.randn(2, 3, 5, generator=torch.Generator().manual_seed(0))
    rows = torch.tensor([[True, True, False], [True, False, False]])
    for b, t, wrong in ((0, 2, False), (1, 1, False), (0, 1, True), (1, 0, True)):
        out = ref.clone()
        out[b, t] = math.nan
        assert compare(out, Reference(ref, ref.double()), rows).wrong == wrong


def test_padded_masks_have_rows_of_different_lengths_on_either_side():
    specs = [InputSpec("input_ids", torch.int64, (3, 7)), InputSpec("attention_mask", torch.int64, (3, 7))]
    inputs = Inputs(specs, [torch.zeros(s.shape, dtype=s.dtype) for s in specs], {"input_ids": 50}, True)
    found = {case.kind: case for case in cases(inputs)}
    assert list(found) == ["plain", "padded right", "padded left", "token changed", "first and last id"]
    right, left = found["padded right"].inputs[1], found["padded left"].inputs[1]
    assert len(set(right.sum(1).tolist())) == 3 and 0 < int(right.sum(1).min()) < 7
    assert (right[:, 1:] <= right[:, :-1]).all() and (left[:, 1:] >= left[:, :-1]).all()
    assert (found["plain"].inputs[1] == 1).all()
    changed = found["token changed"].inputs[0] != found["plain"].inputs[0]
    assert changed[:, -1].all() and not changed[:, :-1].any()
    edges = found["first and last id"].inputs[0]
    assert set(edges.unique().tolist()) == {0, 49}


@pytest.mark.parametrize("shape", [(1, 1), (1, 2), (2, 1), (1, 13), (5, 3)])
def test_masks_of_any_shape_leave_a_token_in_every_row(shape):
    spec = InputSpec("attention_mask", torch.int64, shape)
    for case in cases(Inputs([spec], [torch.ones(shape, dtype=torch.int64)], {}, True)):
        assert case.inputs[0].sum(1).min() >= 1


def test_integers_that_index_nothing_take_their_whole_range_and_others_are_skipped():
    class Both(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.table = torch.nn.Embedding(5, 3)

        def forward(self, i):
            return self.table(i)

    class Sum(torch.nn.Module):
        def forward(self, i):
            return i * 3 - 1

    skipped = check_torch(Both(), (torch.tensor([4, 0, 2]),), levels=["linalg"])
    assert skipped.ok and "PyTorch raises IndexError" in skipped.skipped["all integers"]
    assert "all integers" in check_torch(Sum(), (torch.tensor([4, 0, 2], dtype=torch.int32),), levels=["linalg"]).kinds


def test_new_norms_and_biases_are_made_to_matter_without_touching_the_callers_module():
    module = Causal()
    before = {name: value.clone() for name, value in module.state_dict().items()}
    model = TorchModel(from_torch(module, (TOKENS,)))
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())
    made = model.module.state_dict()
    assert made["norm.weight"].std() > 1e-3 and made["norm.bias"].std() > 1e-3
    assert torch.equal(made["embedding.weight"], before["embedding.weight"])
    assert model.references([TOKENS])[0].wide.dtype == torch.float64 and model.is_wide


def test_levels_may_be_divided_by_commas():
    assert parse_levels(["linalg,tiles", "gpu"]) == ["linalg", "tiles", "gpu"]
    with pytest.raises(MlircError, match="'gpus' is not one of"):
        parse_levels(["gpus"])


def test_16_bit_models_are_judged_by_their_own_gates():
    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Linear(17, 5), torch.nn.GELU()).bfloat16()
    result = check_torch(module, (torch.randn(3, 17).bfloat16(),), levels=["linalg", "tiles"])
    assert result.ok and 1e-5 < result.worst < 1e-2


def test_the_kernels_of_a_checked_model_are_those_of_the_compilation():
    module = torch.nn.Linear(4, 3)
    from mlirc.driver.compilation import Compilation
    from mlirc.targets import get_target

    job = Compilation("m", get_target("sm_90a"))
    job.import_module(module, (torch.randn(2, 4),), {})
    assert job.check(["kernels"]).ok and job.checked.ok
    assert levels.kernels(job.modules["kernels"]) and "tiles" not in job.modules
