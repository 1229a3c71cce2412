"""Functions of attention's scores, in the op and in a script of one's own: on the host device, against PyTorch, and what is
refused."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from mlirc import mlir
from mlirc.dialects.score_functions import torch_score
from mlirc.errors import MlircError
from mlirc.host import run_module
from mlirc.schedule.registry import Schedules
from mlirc.targets import get_target
from support.kernels.check import assert_close, check_schedule
from support.kernels.payloads import attention, inputs_of, table_attention

ONE = (1, 1)
SIGMOID = (
    "%one = arith.constant 1.0 : f32",
    "%0 = arith.negf %score : f32",
    "%1 = math.exp %0 : f32",
    "%2 = arith.addf %one, %1 : f32",
    "%3 = arith.divf %one, %2 : f32",
    "return %3 : f32",
)
SQUARED_RELU = (
    "%zero = arith.constant 0.0 : f32",
    "%0 = arith.maximumf %score, %zero : f32",
    "%1 = arith.mulf %0, %0 : f32",
    "return %1 : f32",
)
ALIBI = (
    "%0 = arith.subi %j, %i : index",
    "%1 = arith.index_cast %0 : index to i64",
    "%2 = arith.sitofp %1 : i64 to f32",
    "%3 = arith.mulf %2, %in0 : f32",
    "%4 = arith.addf %score, %3 : f32",
    "return %4 : f32",
)
DOCUMENTS = (
    "%hidden = arith.constant 0xFF800000 : f32",
    "%0 = arith.select %in0, %score, %hidden : f32",
    "return %0 : f32",
)


def scored(lines: tuple[str, ...], softmax: bool = True, inputs: tuple[str, ...] = (), **options) -> str:
    """An attention whose scores a function changes; `inputs` are its inputs' types."""
    quoted = ", ".join(f'"{line}"' for line in lines)
    text = attention(**options, mask="MASK" if inputs else "")
    text = text.replace("layouts =", f"score = [{quoted}], {'' if softmax else 'no_softmax, '}layouts =")
    names = [f"%in{n}" for n in range(len(inputs))]
    text = text.replace("%mask: MASK", ", ".join(f"{n}: {t}" for n, t in zip(names, inputs, strict=True)))
    return text.replace("%mask", ", ".join(names)).replace("MASK", ", ".join(inputs))


@pytest.mark.parametrize(
    ("options", "instruction"),
    [
        (dict(lengths=(70, 131), dims=(64, 40), heads=(2, 1), dtype="bf16", causal=True), "wgmma"),
        (dict(lengths=(33, 37), dims=(16, 24), heads=(3, 3), dtype="f16"), "mma"),
        (dict(lengths=(37, 41), dims=(32, 48), heads=(4, 2), causal=True, window=9), "tf32x3"),
        (dict(lengths=(2, 13), dims=(5, 3), heads=ONE), "tf32x3"),
    ],
)  # fmt: skip
def test_a_table(options: dict, instruction: str) -> None:
    _, record = check_schedule(table_attention(**options), (), 3e-6 if instruction == "tf32x3" else 1e-2)
    assert record.knobs["mma"] == instruction


def test_a_table_is_of_less_than_rank_4_and_read() -> None:
    text = table_attention(lengths=(5, 7), heads=ONE, dims=(4, 3))
    for changed, why in (
        (text.replace("tensor<1x11xf32>", "tensor<1x1x1x11xf32>"), "is of rank 1 to 3"),
        (text.replace("tensor<1x11xf32>", "tensor<1x11xi64>"), "must be i1 or float, not i64"),
        (text.replace("score = [", "scores = ["), "a table without a function of the scores"),
    ):
        with pytest.raises(MlircError, match=why):
            mlir.parse(changed)


CASES = [
    ((SIGMOID, False), dict(lengths=(67, 131), dims=(64, 40), heads=(2, 1), dtype="bf16", causal=True), "wgmma"),
    ((SIGMOID, False), dict(lengths=(33, 37), dims=(16, 24), heads=ONE, dtype="f16"), "mma"),
    ((SQUARED_RELU, False), dict(lengths=(37, 41), dims=(32, 48), heads=ONE, causal=True, window=9), "tf32x3"),
    ((ALIBI, True, ("tensor<1x4x1x1xf32>",)), dict(lengths=(19, 23), dims=(8, 8), heads=(4, 2), causal=True), "tf32x3"),
    (
        (ALIBI, True, ("tensor<1x2x1x1xbf16>",)),
        dict(lengths=(70, 130), dims=(64, 64), heads=(2, 1), dtype="bf16"),
        "wgmma",
    ),
    ((DOCUMENTS, True, ("tensor<2x1x17x13xi1>",)), dict(batch=2, lengths=(17, 13), dims=(5, 3), heads=ONE), "tf32x3"),
]


@pytest.mark.parametrize(("score", "options", "instruction"), CASES, ids=[str(i) for i in range(len(CASES))])
def test_functions(score: tuple, options: dict, instruction: str) -> None:
    lines, *rest = score
    if "xbf16>" in str(rest):
        lines = ("%wide = arith.extf %in0 : bf16 to f32", *(line.replace("%in0", "%wide") for line in lines))
    _, record = check_schedule(scored(lines, *rest, **options), (), 3e-6 if instruction == "tf32x3" else 1e-2)
    assert record.knobs["mma"] == instruction


def test_words_of_pytorch() -> None:
    """What the lines are in PyTorch, beside the JIT."""
    text = scored(ALIBI, True, ("tensor<1x2x1x1xf32>",), lengths=(5, 7), dims=(4, 3), heads=(2, 2), causal=True)
    with mlir.context():
        module = mlir.parse(text)
        q, k, v, slopes = inputs_of(module, 0)
    (found,) = run_module(module, [q, k, v, slopes], "attention_0")
    scores = torch.from_numpy(q) @ torch.from_numpy(k).transpose(-1, -2) * 0.3
    place = [torch.arange(n).view([-1 if d == at else 1 for d in range(4)]) for at, n in enumerate(scores.shape)]
    scores = torch_score(ALIBI, scores, place, [torch.from_numpy(slopes)])
    hidden = torch.arange(7)[None] > torch.arange(5)[:, None] + 2
    wanted = scores.masked_fill(hidden, -torch.inf).softmax(-1) @ torch.from_numpy(v)
    assert_close([found], [wanted.numpy()], 1e-6)


WRONG = [
    (("return %score",), "score: not valid MLIR in 'return %score'"),
    (("%0 = math.exp %scored : f32", "return %0 : f32"), "not valid MLIR"),
    (
        ("%0 = tensor.empty() : tensor<1xf32>", "return %score : f32"),
        "made of arith and math ops and tensor.extract, not tensor.empty",
    ),
    (("return %i : index",), "not valid MLIR"),
    (("return %in0 : f32",), "not valid MLIR"),
    (("return %score : f32", "}", "func.func @f() {", "return"), "its lines are ops without regions"),
]


@pytest.mark.parametrize(("lines", "wanted"), WRONG, ids=[w[1][:30] + str(i) for i, w in enumerate(WRONG)])
def test_wrong_lines_are_refused(lines: tuple[str, ...], wanted: str) -> None:
    with pytest.raises(MlircError) as caught:
        mlir.parse(scored(lines, lengths=(5, 7), dims=(4, 3), heads=ONE))
    assert wanted in str(caught.value) and "\n" not in str(caught.value)


SCRIPT = """from mlirc.mlir import arith, ir, math
from mlirc.schedule import register
from mlirc.schedule.verbs import decompose_attention, match, match_contractions, online_softmax, score_with
from mlirc.schedule.verbs import script, tidy, tile_to_blocks

def squared_relu(score, b, h, i, j):
    positive = arith.maximumf(score, arith.constant(ir.F32Type.get(), 0.0))
    {returned}

@register(matches=lambda kernel: True)
def mine(kernel, target):
    with script() as (module, function):
        op = score_with(match(function, "mlirc.attention"), squared_relu, softmax=False)
        result, _ = decompose_attention(op, base2=True)
        forall = tile_to_blocks(result, sizes=[1, 1, 16, 0], keep=[2], order=[])
        online_softmax(match_contractions(forall), size=16)
        tidy(function, forall)
    return module
"""


def test_a_function_in_a_script(tmp_path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(SCRIPT.format(returned="return arith.mulf(positive, positive)"))
    options = dict(lengths=(37, 41), dims=(8, 5), heads=(2, 1), causal=True)
    module = mlir.parse(attention(**options))
    tiles = Schedules([str(path)]).schedule_kernel(module, get_target("sm_90a"))[0]
    with mlir.context():
        arguments = inputs_of(tiles, 0)
    wanted = run_module(mlir.parse(scored(SQUARED_RELU, False, **options)), arguments, "attention_0")
    assert_close(run_module(tiles, arguments, "attention_0"), wanted, 1e-6)
    assert np.abs(wanted[0]).max() > 0


@pytest.mark.parametrize(
    ("returned", "wanted"),
    [
        ("return 3.0", "a function of scores returns a value of type f32, not 3.0"),
        ("return i", "a function of scores returns a value of type f32, not index"),
        ("return arith.mulf(positive)", "TypeError"),
    ],
)
def test_what_is_no_function(tmp_path, returned: str, wanted: str) -> None:
    path = tmp_path / "mine.py"
    path.write_text(SCRIPT.format(returned=returned))
    with pytest.raises(MlircError) as caught:
        Schedules([str(path)]).schedule_kernel(mlir.parse(attention()), get_target("sm_90a"))
    assert wanted in str(caught.value) and "mine.py:" in str(caught.value) and "\n" not in str(caught.value)


def test_a_mask_is_not_lost(tmp_path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(SCRIPT.format(returned="return positive"))
    with pytest.raises(MlircError, match="has a mask or a function of its scores already"):
        text = attention(mask="tensor<1x1x16x16xi1>")
        Schedules([str(path)]).schedule_kernel(mlir.parse(text), get_target("sm_90a"))
