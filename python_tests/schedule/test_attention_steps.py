"""The steps of attention's schedule one by one: what each leaves gives what the op gives, at odd shapes and extreme
scores; and what a step cannot take is refused at the script's line."""

from __future__ import annotations

import numpy as np
import pytest

from mlirc import mlir
from mlirc.errors import MlircError
from mlirc.host import run_module
from mlirc.schedule.registry import Schedules
from mlirc.targets import get_target
from support.kernels.check import assert_close, check_schedule
from support.kernels.payloads import attention, inputs_of

HEAD = """from mlirc.schedule import register
from mlirc.schedule.verbs import *
from mlirc.schedule.verbs import annotate, decompose_attention, match, script

@register(matches=lambda kernel: True)
def mine(kernel, target):
    with script() as (module, function):
        result, products = decompose_attention(match(function, "mlirc.attention"), base2={base2})
"""
BLOCKS = "forall = tile_to_blocks(result, sizes=[1, 1, {block}, 0], keep=[2], order=[])"
ONLINE = "loop, inside = online_softmax(match_contractions(forall), size={size})"
STEPS = [
    BLOCKS,
    ONLINE,
    "skip_hidden_steps(loop)",
    "loops = split_tested_steps(loop)",
    "reverse_blocks(forall, loop=-1)",
]


def schedule(write, text: str, lines: list[str], base2: bool = True):
    path = write(
        HEAD.format(base2=base2) + "".join(f"        {s}\n" for s in [*lines, "tidy(function)"]) + "    return module\n"
    )
    return Schedules([path]).schedule_kernel(mlir.parse(text), get_target("sm_90a"))[0]


@pytest.fixture
def write(tmp_path):
    def write_(text: str) -> str:
        path = tmp_path / "mine.py"
        path.write_text(text)
        return str(path)

    return write_


CASES = [
    dict(lengths=(7, 13), dims=(5, 3), heads=(1, 1)),
    dict(batch=2, lengths=(13, 11), dims=(8, 4), heads=(6, 2), causal=True),  # first rows see no key
    dict(lengths=(11, 13), dims=(4, 4), heads=(2, 2), window=5, causal=True, softcap=2.0),
    dict(lengths=(9, 1), dims=(4, 4), heads=(2, 1), mask="tensor<1x1x9x1xi1>", layouts=("bshd",) * 4),
    dict(lengths=(1, 17), dims=(4, 4), heads=(2, 1), mask="tensor<1x2x1x17xf32>", scale=-0.7),
]


@pytest.mark.parametrize("options", CASES, ids=lambda o: "-".join(f"{k}{v}" for k, v in o.items())[:60])
@pytest.mark.parametrize("count", range(len(STEPS) + 1))
def test_every_prefix_is_right(write, options: dict, count: int) -> None:
    limited = options.get("causal") or options.get("window")
    chosen = [s.format(block=4, size=4) for s in STEPS[:count]]
    if not limited:
        chosen = [s for s in chosen if "skip" not in s]
    if options.get("window"):
        chosen = [s for s in chosen if "split" not in s]
    for nan_rows in (False, True):
        text = attention(**options)
        text = text.replace("layouts =", "nan_rows, layouts =") if nan_rows else text
        module = mlir.parse(text)
        with mlir.context():
            arguments = inputs_of(module, 0)
        arguments[0][..., 0, :] *= 1e3  # scores of one row are far apart
        expected = run_module(module, arguments, "attention_0")
        for base2 in (True, False):
            tiles = schedule(write, text, chosen, base2)
            found = run_module(tiles, arguments, "attention_0")
            assert ("mlirc.attention" in str(tiles)) is False
            assert_close(found, expected, 3e-6)


def test_queries_that_are_the_keys() -> None:
    """One tensor in two roles: its dimensions are still two."""
    text = attention(lengths=(37, 37), dims=(16, 16), heads=(1, 1), causal=True)
    text = text.replace("%q, %k, %v)", "%q, %q, %q)", 1)
    check_schedule(text, (), 3e-6)


def test_a_plain_form_on_the_host_device(write) -> None:
    """Stopped behind the tiling into blocks, with products of one's own: no loop over keys."""
    text = attention(lengths=(20, 24), dims=(8, 8), heads=(2, 1), causal=True)
    lines = [
        BLOCKS.format(block=16),
        "annotate(match_contractions(forall), mma='fma', warp_grid=[2, 1])",
        "annotate(function, warps=2)",
    ]
    body = (
        HEAD.format(base2=False)
        + "".join(f"        {s}\n" for s in [*lines, "tidy(function, forall)"])
        + "    return module\n"
    )
    tiles, record = check_schedule(text, (write(body),), 3e-6)
    assert record.script == "mine" and "scf.for " not in tiles


WRONG = [
    (["forall = tile_to_blocks(result, sizes=[1, 2, 4, 0], keep=[], order=[])"], "read in groups of 3 is tiled by 1"),
    ([BLOCKS.format(block=4), ONLINE.format(size=0)], "size 0: a step of the loop takes 1 or more"),
    ([BLOCKS.format(block=4), "online_softmax(match(forall, 'linalg.fill'), size=4)"], "it is no contraction"),
    ([BLOCKS.format(block=4), ONLINE.format(size=4), "split_tested_steps(loop)", "skip_hidden_steps(loop)"], "its handle died"),
    ([BLOCKS.format(block=4), "reverse_blocks(forall, loop=3)"], "loop 3: the forall has 2"),
    (["collapse_dims(function)"], "reads a dimension in groups"),
    ([BLOCKS.format(block=4), ONLINE.format(size=4), "reverse_blocks(loop, loop=0)"], "this one is of scf.for"),
]  # fmt: skip


@pytest.mark.parametrize(("lines", "wanted"), WRONG, ids=[w[1][:30] for w in WRONG])
def test_wrong_steps(write, lines: list[str], wanted: str) -> None:
    text = attention(lengths=(13, 11), dims=(8, 4), heads=(6, 2), causal=True)
    with pytest.raises(MlircError) as caught:
        schedule(write, text, lines)
    assert wanted in str(caught.value) and "mine.py:" in str(caught.value) and "\n" not in str(caught.value)


CHAIN = """func.func @attention_0(%x: tensor<9x70xf32>, %v: tensor<70x5xf32>) -> tensor<9x5xf32> attributes {{mlirc.kernel}} {{
  %low = arith.constant {low} : f32
  %zero = arith.constant 0.0 : f32
  %e1 = tensor.empty() : tensor<9xf32>
  %e2 = tensor.empty() : tensor<9x70xf32>
  %e3 = tensor.empty() : tensor<9x5xf32>
  %f1 = linalg.fill ins(%low : f32) outs(%e1 : tensor<9xf32>) -> tensor<9xf32>
  %f2 = linalg.fill ins(%zero : f32) outs(%e1 : tensor<9xf32>) -> tensor<9xf32>
  %f3 = linalg.fill ins(%zero : f32) outs(%e3 : tensor<9x5xf32>) -> tensor<9x5xf32>
  %max = linalg.generic {{indexing_maps = [#ij, #i], iterator_types = ["parallel", "reduction"]}} ins(%x : tensor<9x70xf32>) outs(%f1 : tensor<9xf32>) {{
  ^bb0(%a: f32, %o: f32):
    %y = arith.{combine} %a, %o : f32
    linalg.yield %y : f32
  }} -> tensor<9xf32>
  %p = linalg.generic {{indexing_maps = [#ij, #i, #ij], iterator_types = ["parallel", "parallel"]}} ins(%x, %max : tensor<9x70xf32>, tensor<9xf32>) outs(%e2 : tensor<9x70xf32>) {{
  ^bb0(%a: f32, %m: f32, %o: f32):
    %d = arith.subf {subtract} : f32
    %y = math.exp %d : f32
    linalg.yield %y : f32
  }} -> tensor<9x70xf32>
  %w = linalg.generic {{indexing_maps = [#ij, #ij, #ij], iterator_types = ["parallel", "parallel"]}} ins(%p, %x : tensor<9x70xf32>, tensor<9x70xf32>) outs(%e2 : tensor<9x70xf32>) {{
  ^bb0(%a: f32, %m: f32, %o: f32):
    %c = arith.constant 0.5 : f32
    %y = {linear} : f32
    linalg.yield %y : f32
  }} -> tensor<9x70xf32>
  %sum = linalg.generic {{indexing_maps = [#ij, #i], iterator_types = ["parallel", "reduction"]}} ins(%p : tensor<9x70xf32>) outs(%f2 : tensor<9xf32>) {{
  ^bb0(%a: f32, %o: f32):
    %y = arith.{sum} %o, %a : f32
    linalg.yield %y : f32
  }} -> tensor<9xf32>
  %pv = linalg.generic {{indexing_maps = [affine_map<(d0, d1, d2) -> (d0, d2)>, affine_map<(d0, d1, d2) -> (d2, d1)>, affine_map<(d0, d1, d2) -> (d0, d1)>], iterator_types = ["parallel", "parallel", "reduction"]}} ins(%w, %v : tensor<9x70xf32>, tensor<70x5xf32>) outs(%f3 : tensor<9x5xf32>) {{
  ^bb0(%a: f32, %b: f32, %o: f32):
    %c = arith.mulf %a, %b : f32
    %y = arith.addf %o, %c : f32
    linalg.yield %y : f32
  }} -> tensor<9x5xf32>
  %r = linalg.generic {{indexing_maps = [#ij, #i, #ij], iterator_types = ["parallel", "parallel"]}} ins(%pv, %sum : tensor<9x5xf32>, tensor<9xf32>) outs(%e3 : tensor<9x5xf32>) {{
  ^bb0(%a: f32, %t: f32, %o: f32):
    %y = arith.divf %a, %t : f32
    linalg.yield %y : f32
  }} -> tensor<9x5xf32>
  return %r : tensor<9x5xf32>
}}
"""
MAPS = "#ij = affine_map<(d0, d1) -> (d0, d1)>\n#i = affine_map<(d0, d1) -> (d0)>\n"
PLAIN = dict(low="0xFF800000", combine="maximumf", subtract="%a, %m", linear="arith.mulf %a, %m", sum="addf")


def chain(**changes: str) -> str:
    return MAPS + CHAIN.format(**PLAIN | changes)


def online(write, text: str, size: int):
    body = HEAD[: HEAD.index("        result,")].replace("script\n", "script, online_softmax, match_contractions\n")
    line = f"        online_softmax(match_contractions(function), size={size})\n    return module\n"
    return Schedules([write(body + line)]).schedule_kernel(mlir.parse(text), get_target("sm_90a"))[0]


@pytest.mark.parametrize("size", [1, 7, 32, 70, 128])
def test_any_chain_of_exponentials(write, size: int) -> None:
    """sum_j exp(x - max x) x v / sum_j exp(x - max x), that is no attention; a row of -inf is NaN, as before."""
    rng = np.random.default_rng(size)
    x, v = rng.normal(size=(9, 70)).astype(np.float32), rng.normal(size=(70, 5)).astype(np.float32)
    x[1] *= 80
    for low in ("0xFF800000", "-1.0e+30"):
        text = chain(low=low)
        tiles = online(write, text, size)
        assert "scf.for" in str(tiles)
        assert_close(
            run_module(tiles, [x, v], "attention_0"), run_module(mlir.parse(text), [x, v], "attention_0"), 1e-5
        )
    x[3] = -np.inf
    text = chain(linear="arith.mulf %a, %c", low="0xFF800000")
    plain, found = (run_module(m, [x, v], "attention_0") for m in (mlir.parse(text), online(write, text, size)))
    assert np.isnan(found[0][3]).all()
    assert_close(found, plain, 1e-5)


REFUSED = [
    (dict(linear="arith.addf %a, %m"), "not linear in the exponentials"),
    (dict(linear="arith.mulf %a, %a"), "not linear in the exponentials"),
    (dict(combine="addf"), "not as exp(x - max x) alone reads it"),
    (dict(subtract="%m, %a"), "not as exp(x - max x) alone reads it"),
    (dict(sum="mulf"), "a arith.mulf of the exponentials cannot be made step by step"),
]


@pytest.mark.parametrize(("changes", "wanted"), REFUSED, ids=[r[1][:24] + str(i) for i, r in enumerate(REFUSED)])
def test_what_is_no_such_chain(write, changes: dict, wanted: str) -> None:
    with pytest.raises(MlircError) as caught:
        online(write, chain(**changes), 16)
    assert wanted in str(caught.value) and "mine.py:" in str(caught.value)
