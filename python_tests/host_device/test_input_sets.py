"""Made-up inputs that each kernel is tried on, and error bounds that its results are judged by."""

from __future__ import annotations

import re

import ml_dtypes
import numpy as np
import pytest

from mlirc import mlir
from mlirc.device import DeviceKernel
from mlirc.device.input_sets import INPUT_SETS, InputSets, parse_input_sets, some_blocks, try_sets
from mlirc.device.judge import wrong
from mlirc.device.kernel_traits import Traits
from mlirc.device.reference import References
from mlirc.driver.compilation import compile_model
from mlirc.errors import MlircError
from mlirc.host.jit import HostFunction
from mlirc.tools import mlirc_run
from support.kernels.mutant_cases import lowered
from support.kernels.number_cases import NUMBERS, elements, layer_norm, row_maximum, softmax
from support.kernels.payloads import attention, generic, kernel, matmul


def bounded(text: str) -> HostFunction:
    return HostFunction(mlir.parse(text), name_of(text), bounds=True)


def narrow(count: int, body: str, types: tuple[str, ...], result: str) -> HostFunction:
    return bounded(elements(count, body, types, result))


RIGHT = {
    "softmax": softmax(3, 67), "layer norm": layer_norm(3, 67), "maxima": row_maximum(3, 67),
    "product": matmul(7, 19, 150), "attention": attention(lengths=(9, 21), dims=(8, 8), causal=True, softcap=3.0),
}  # fmt: skip


@pytest.mark.parametrize("name", RIGHT)
def test_the_same_in_f64_is_within_the_bounds_and_they_are_tight(name):
    text = RIGHT[name]
    module = mlir.parse(text)
    function = module.body.operations[0]
    in_f64 = text.replace("f32", "f64").replace("0xFF800000", "0xFFF0000000000000")
    short, wide = bounded(text), HostFunction(mlir.parse(in_f64), name_of(text))
    given = [np.zeros(s.shape, s.dtype) for s in short.inputs]
    sets = InputSets.of(function, given)
    for kind in INPUT_SETS:
        if sets.fits(kind):
            arguments = sets.make(kind)
            result, bound = short(*arguments)
            with np.errstate(over="ignore"):
                exact = wide(*[a.astype(np.float64) for a in arguments])[0].astype(np.float32)
            assert not wrong(exact, result, bound).any(), kind
            if kind == "plain":
                size = np.abs(result).mean()
                assert np.isfinite(bound).all() and np.median(bound) < 1e-4 * size


def name_of(text: str) -> str:
    return re.search(r"@(\w+)", text)[1]


def test_a_small_element_that_is_lost_is_wrong_and_a_sum_that_cancels_is_not():
    function = bounded(softmax(2, 391, "bf16"))
    x = np.random.default_rng(0).standard_normal((2, 391)).astype(ml_dtypes.bfloat16)
    right, bound = function(x)
    small = right.astype(np.float32) < 0.01 * float(right.max())
    lost = np.where(small, 0, right).astype(right.dtype)
    assert small.any() and (wrong(lost, right, bound) == small).all() and not wrong(lost, right).any()
    body = "%a = arith.addf %x0, %x1 : f32\n    %y = arith.subf %a, %x0 : f32"
    right, bound = narrow(1, body, ("f32", "f32"), "f32")(np.full((1, 3), 1e6, np.float32), np.ones((1, 3), np.float32))
    assert not wrong(right + np.float32(0.1), right, bound).any() and wrong(right + np.float32(1), right, bound).all()


def test_what_overflows_must_do_so_and_what_may_can():
    function = narrow(1, "%a = arith.addf %x0, %x1 : f32\n    %y = arith.truncf %a : f32 to f16", ("f32", "f32"), "f16")
    right, bound = function(np.array([[6e4, 65519, 1e6]], np.float32), np.array([[0, 0.998, 0]], np.float32))
    infinite = np.full((1, 3), np.inf, np.float16)
    assert wrong(infinite, right, bound).tolist() == [[True, False, False]]
    assert wrong(np.full((1, 3), 6e4, np.float16), right, bound).tolist() == [[False, False, True]]


def test_what_is_rounded_to_16_bits_is_judged_before_that():
    """One unit in the last place is wrong, but where the number lies near a tie between two."""
    body = "%a = arith.addf %x0, %x1 : f32\n    %y = arith.truncf %a : f32 to bf16"
    x, small = np.ones((1, 3), np.float32), np.array([[1e-3, 2.0**-8 + 2.0**-26, 2.0**-8 - 2.0**-20]], np.float32)
    right, bound = narrow(1, body, ("f32", "f32"), "bf16")(x, small)
    above = np.full((1, 3), 1 + 2.0**-7, ml_dtypes.bfloat16)
    assert (right == 1).all() and wrong(above, right, bound).tolist() == [[True, False, True]]


def test_a_weight_that_16_bits_may_lose_may_meet_an_infinity():
    body = """%p = arith.mulf %x0, %x1 {mlirc.weight = "f16"} : f32"""
    x, far = np.array([[1e-8, 1e-8, 1e-3]], np.float32), np.array([[np.inf, 1.0, np.inf]], np.float32)
    _, bound = narrow(1, f"{body}\n    %y = arith.addf %p, %x0 : f32", ("f32", "f32"), "f32")(x, far)
    assert (bound == np.inf).tolist() == [[True, False, False]] and bound[0, 2] == 0


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_no_numbers_are_judged_by_place(bad):
    x = np.ones((3, 67), np.float32)
    x[1, 5] = bad
    right, bound = bounded(layer_norm(3, 67))(x, np.ones(67, np.float32), np.zeros(67, np.float32))
    assert np.isnan(right[1]).all() and (bound[1] == 0).all()
    assert wrong(np.nan_to_num(right), right, bound).tolist() == [[False] * 67, [True] * 67, [False] * 67]


def test_what_is_not_attended_to_stays_out_and_a_key_that_is_no_number_does_not():
    function = bounded(attention(lengths=(9, 9), dims=(8, 8), heads=(1, 1), dtype="bf16", causal=True))
    sets = InputSets([np.zeros((1, 1, 9, 8), ml_dtypes.bfloat16)] * 3)
    q, k, v = sets.make("plain")
    k[0, 0, 5, 2] = np.nan
    right, bound = function(q, k, v)
    assert np.isfinite(bound).all() and np.isnan(right[0, 0, 5:].astype(np.float32)).all()
    assert not np.isnan(right[0, 0, :5].astype(np.float32)).any()


def test_a_choice_between_near_ties_is_free_and_another_is_not():
    body = """%s = arith.addf %x0, %x1 : f32
    %c = arith.constant 2.0 : f32
    %b = arith.cmpf ogt, %s, %c : f32
    %1 = arith.constant 1 : i32
    %7 = arith.constant 7 : i32
    %y = arith.select %b, %1, %7 : i32"""
    x = np.array([[1.3, 1.9, 0.1]], np.float32)
    right, bound = narrow(1, body, ("f32", "f32"), "i32")(x, np.float32(0.7) + np.zeros_like(x))
    assert wrong(8 - right, right, bound).tolist() == [[False, True, True]]


def test_indices_and_their_tables_are_found():
    module = mlir.parse(NUMBERS["lookup"][0])
    traits = Traits.of(module.body.operations[0])
    assert traits.limits[0] == 70001
    given = [np.zeros((37,), np.int64), np.zeros((70001, 5), np.float32), np.zeros((37, 5), np.float32)]
    sets = InputSets(given, traits)
    ids = sets.make("plain")[0]
    assert 0 <= ids.min() and 32768 < ids.max() < 70001
    assert set(sets.make("first and last id")[0].tolist()) == {0, 70000, 35000}
    assert not sets.fits("all integers")


WRITES = """
func.func @k(%rows: tensor<ROWSx3xf32>, %i: tensor<ROWSx1xi64>, %p: tensor<9x3xf32>) -> tensor<9x3xf32>
    attributes {mlirc.kernel, mlirc.kind = "generic"} {
  %r = tm_tensor.scatter {dimension_map = array<i64: 0>} unique_indices(true)
      ins(%rows, %i : tensor<ROWSx3xf32>, tensor<ROWSx1xi64>) outs(%p : tensor<9x3xf32>) {
  ^bb0(%a: f32, %b: f32):
    tm_tensor.yield %a : f32
  } -> tensor<9x3xf32>
  return %r : tensor<9x3xf32>
}"""


@pytest.mark.parametrize("rows", [1, 5, 9, 14])
def test_places_of_rows_are_different_ones_or_negative(rows):
    module = mlir.parse(WRITES.replace("ROWS", str(rows)))
    given = [np.zeros(s, t) for s, t in (((rows, 3), "f4"), ((rows, 1), "i8"), ((9, 3), "f4"))]
    sets = InputSets.of(module.body.operations[0], given)
    seen = set()
    for name in ("plain", "first and last id"):
        for seed in range(9):
            places = sets.make(name, seed)[1].ravel()
            assert len(set(places)) == rows and places.max() < 9
            seen |= set(places.tolist())
    assert {0, 8} & seen and (rows == 1 or min(seen) < 0)


def test_all_integers_have_their_ends_and_divisors_do_not():
    x = "tensor<5x7xi8>"
    body = f"  %e = tensor.empty() : {x}\n" + generic(
        "r", "a, b", [("%x", x, "a, b"), ("%z", x, "a, b")], ("%e", x, "a, b"), "%y = arith.OP %x0, %x1 : i8"
    )
    given = [np.zeros((5, 7), np.int8)] * 2
    for op, fits in (("addi", True), ("divsi", False)):
        text = kernel("elementwise_0", "elementwise", {"x": x, "z": x}, x, body.replace("OP", op))
        module = mlir.parse(text)
        sets = InputSets.of(module.body.operations[0], given)
        assert sets.fits("all integers") == fits and not sets.fits("zeros")
        values = sets.make("all integers")[0]
        values = set(values.reshape(-1).tolist())
        assert {-128, 127} <= values if fits else 0 not in values and min(values) < 0 < max(values)


def test_sets_have_names():
    assert parse_input_sets("all") == INPUT_SETS and parse_input_sets("none") == ()
    assert parse_input_sets("zeros, one NaN") == ("zeros", "one NaN")
    with pytest.raises(MlircError, match="'huge' is no set of inputs: give all, quick, none, or some of plain"):
        parse_input_sets("zeros,huge")


def test_what_made_up_values_leave_undefined_is_no_finding(tmp_path, ran):
    body = "%y = arith.fptosi %x0 : f32 to i32"
    (tmp_path / "m.mlir").write_text(elements(13, body, ("f32",), "i32"))
    compile_model(str(tmp_path / "m.mlir"), tmp_path / "m.ptx", cache=False)
    run = [tmp_path / "m.ptx", "--random-inputs", 0, "--device", "host", "--input-sets", "all"]
    result = ran(mlirc_run.main, *run)
    assert result.status == 0 and "tried on 7 sets of made-up inputs" in result.err, result.err


def test_few_blocks_have_the_first_and_the_last():
    assert some_blocks(4) is None
    chosen = some_blocks(97, seed=3)
    assert len(chosen) == 4 and chosen[0] == 0 and chosen[-1] == 96


def test_the_program_tries_every_kernel_and_names_the_set(tmp_path, ran):
    (tmp_path / "m.mlir").write_text(layer_norm(3, 67))
    compile_model(str(tmp_path / "m.mlir"), tmp_path / "m.ptx", cache=False)
    file = tmp_path / "m.levels" / "gpu.mlir"
    text = file.read_text()
    assert text.count("9.99999974E-6") == 1
    file.write_text(text.replace("9.99999974E-6", "1.29999974E-5"))
    run = [tmp_path / "m.ptx", "--random-inputs", 0, "--level", "gpu", "--no-verify", "--input-sets"]
    assert ran(mlirc_run.main, *run, "none").status == 0
    assert ran(mlirc_run.main, *run, "floats x100").status == 0
    result = ran(mlirc_run.main, *run, "quick")
    assert result.status == 1
    assert re.search(r"wrong result: .* give or take \S+ .*, on made-up inputs 'tiny floats'", result.err), result.err
    result = ran(mlirc_run.main, *run, "all", "--no-compare")
    assert result.status == 1 and "--input-sets needs numbers to compare with" in result.err
    result = ran(mlirc_run.main, *run[:3], "--input-sets", "all")
    assert result.status == 1 and "--input-sets is for the host device" in result.err


def test_keys_that_a_window_leaves_out_may_be_infinite():
    """A block that no query of it sees is skipped; the level above multiplies its values by 0."""
    text = attention(lengths=(17, 33), dims=(16, 16), window=9, causal=True)
    gpu, arguments, specs = lowered(text, "attention:block_q=16,block_kv=16")
    reference = References({"kernels": mlir.parse(text)}).of("attention_0")
    results = [np.zeros(s.shape, s.dtype) for s in specs]
    report = try_sets(DeviceKernel(mlir.parse(gpu)), reference, [*arguments, *results], ["one infinity", "one NaN"])
    assert report.ok and len(report.sets["attention_0"]) == 2, report.findings


GREATER = """%c = arith.cmpf ogt, %x0, %x1 : f32
    %n = arith.negf %x1 : f32
    %y = arith.select %c, %x0, %n : f32"""
INFINITE = """%i = arith.constant 0x7F800000 : f32
    %y = arith.cmpf oeq, %x0, %i : f32"""
FLOOR_DIVISION = """%q = arith.divsi %x0, %x1 : i32
    %r = arith.remsi %x0, %x1 : i32
    %s = arith.xori %r, %x1 : i32
    %z = arith.constant 0 : i32
    %a = arith.cmpi ne, %r, %z : i32
    %b = arith.cmpi slt, %s, %z : i32
    %c = arith.andi %a, %b : i1
    %1 = arith.constant 1 : i32
    %p = arith.subi %q, %1 : i32
    %y = arith.select %c, %p, %q : i32"""
SHOWN = {  # a kernel, what is changed in it, and sets that show it
    "ties of comparisons": (elements(19, GREATER, ("f32", "f32"), "f32"), "cmpf ogt", "cmpf oge",
                            {"multiples of a half", "special values"}),
    "ties of rounding": (elements(19, "%y = math.roundeven %x0 : f32", ("f32",), "f32"), "roundeven", "round",
                         {"multiples of a half", "special values"}),
    "NaN": (elements(39, INFINITE, ("f32",), "i1"), "cmpf oeq", "cmpf ueq", {"special values"}),
    "infinities": (elements(39, INFINITE, ("f32",), "i1"), "cmpf oeq", "cmpf one", {"plain", "special values"}),
    "negative divisors": (elements(19, FLOOR_DIVISION, ("i32", "i32"), "i32"), "arith.xori", "arith.andi", {"plain"}),
    "small numbers": (elements(33, "%y = math.expm1 %x0 : f32", ("f32",), "f32"), "math.expm1", "math.exp",
                      {"plain", "every magnitude"}),
    "rows of a scatter": (WRITES.replace("unique_indices(true)", "unique_indices(false)").replace("ROWS", "4"),
                          "%c9 = arith.constant 9", "%c9 = arith.constant 5", {"plain", "first and last id"}),
}  # fmt: skip


@pytest.mark.parametrize("name", SHOWN)
def test_sets_show_what_normal_values_hide(name):
    text, old, new, expected = SHOWN[name]
    gpu, arguments, specs = lowered(text, "k=generic" if "@k" in text else "")
    reference = References({"kernels": mlir.parse(text)}).of(name_of(text))
    results = [np.zeros(s.shape, s.dtype) for s in specs]
    assert old in gpu
    for changed in (False, True):
        device = DeviceKernel(mlir.parse(gpu.replace(old, new) if changed else gpu))
        shown = {s for s in INPUT_SETS if not try_sets(device, reference, [*arguments, *results], [s]).ok}
        assert expected <= shown if changed else not shown, shown


def test_every_place_has_the_maximum_in_some_run():
    x = "tensor<3x35xf32>"
    module = mlir.parse(row_maximum(3, 35))
    sets = InputSets.of(module.body.operations[0], [np.zeros((3, 35), np.float32)])
    assert f"%x: {x}" in row_maximum(3, 35) and sets.fits("maximum in turn")
    made = [sets.make("maximum in turn", turn=turn)[0] for turn in range(sets.turns("maximum in turn"))]
    assert len(made) == 12 and {int(i) for m in made for i in m.argmax(1)} == set(range(35))
    assert all((m.max(1) == 300).all() and (m.min(1) == -300).all() for m in made)
    assert sets.fits("far from 0") and not sets.fits("every magnitude") and sets.turns("plain") == 1


def test_special_values_leave_rows_of_numbers_and_have_several_nans():
    sets = InputSets([np.zeros((8, 40), dtype) for dtype in (np.float32, np.float16, ml_dtypes.bfloat16)])
    for x in sets.make("special values"):
        wide = x.astype(np.float64)
        assert np.isfinite(wide[:4]).all() and (np.isnan(wide[4:]).sum(1) > 1).all()
        assert {np.inf, -np.inf, 0.5, float(ml_dtypes.finfo(x.dtype).max)} <= set(wide[4:].ravel().tolist())
    for x in sets.make("every magnitude"):
        size = np.abs(x.astype(np.float64))
        assert np.isfinite(size).all() and size.max() > 1e4 and size.min() < 1e-6


def test_infinities_come_in_some_of_the_arguments_at_a_time():
    """Scores that are none, of infinite queries, hide what infinite keys do."""
    sets = InputSets([np.zeros((5, 8), np.float32)] * 3)
    assert sets.turns("one infinity") == 2 and InputSets([np.zeros(9, np.float32)]).turns("one infinity") == 1
    made = [[np.isinf(x).any() for x in sets.make("one infinity", turn=turn)] for turn in (0, 1)]
    assert made == [[True, False, True], [False, True, False]]
    for turn in (0, 1):
        assert {np.inf, -np.inf} <= set(sets.make("one infinity", turn=turn)[turn].ravel().tolist())
