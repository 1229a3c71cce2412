"""The graph level: kernels compute what the linalg level computes, and fuse what the docs say."""

from __future__ import annotations

import re
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlirc import host, mlir
from mlirc.errors import MlircError
from mlirc.ir import levels
from mlirc.passes.graph.index import Index, delinearize, dim, linearize
from mlirc.passes.graph.layout import common_coarsening, plain_dims, reassociation
from mlirc.scripts.graph import make_script, to_kernels
from mlirc.targets import get_target
from support.models.random_graphs import random_module

TARGET = get_target("sm_90a")


def kernels_of(text: str, **knobs):
    return to_kernels(mlir.parse(text), TARGET, **knobs)


def calls(module) -> list[str]:
    main = str(levels.functions(module)["main"])
    return re.findall(r"call @(\w+?)_\d+\(", main)


def arrays_for(module, seed: int) -> list[np.ndarray]:
    generator = np.random.default_rng(seed)
    types = levels.functions(module)["main"].type.inputs
    return [generator.standard_normal(list(t.shape)).astype(np.float32) for t in types]


def check_equal(text: str, seed: int = 0, **knobs) -> None:
    """Runs the linalg and the kernels level on the CPU; they must agree."""
    module = mlir.parse(text)
    mlir.run_passes(module, "canonicalize,cse")
    arguments = arrays_for(module, seed)
    expected = host.run_module(module, arguments)
    lowered = to_kernels(module, TARGET, **knobs)
    assert lowered.operation.verify()
    for a, b in zip(expected, host.run_module(lowered, arguments), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


# Seeds whose linalg level the CPU path runs; some others meet limits of it (strided slices of buffers).
SEEDS = [s for s in range(24) if s not in (2, 20)]


@pytest.mark.parametrize("seed", SEEDS)
def test_random_graphs_keep_their_values(seed):
    check_equal(random_module(seed), seed)


@pytest.mark.parametrize("knob", ["fuse_epilogue", "fuse_siblings", "fuse_reductions", "fuse_maps"])
def test_each_knob_turned_off_keeps_the_values(knob):
    for seed in (3, 9):
        check_equal(random_module(seed), seed, **{knob: False})


# Index expressions.

SHAPES = st.lists(st.sampled_from([1, 2, 3, 4, 6]), min_size=1, max_size=4)


def value_of(index: Index, loops: dict[int, int]) -> int:
    total = index.const
    for atom, factor in index.terms.items():
        if atom[0] == "d":
            total += factor * loops[atom[1]]
        else:
            inner = value_of(atom[1], loops)
            bounded = min(max(inner, 0), atom[2] - 1)
            total += factor * {"div": inner // atom[2], "mod": inner % atom[2], "clamp": bounded}[atom[0]]
    return total


@settings(max_examples=150, deadline=None)
@given(SHAPES, SHAPES, st.integers(-5, 5), st.integers(1, 4), st.integers(1, 4), st.data())
def test_simplified_indices_have_the_same_values(shape, other, shift, factor, divisor, data):
    loops = {i: data.draw(st.integers(0, n - 1)) for i, n in enumerate(shape)}
    dims = [dim(i, n) for i, n in enumerate(shape)]
    offset = linearize(dims, shape)
    plain = int(np.ravel_multi_index([loops[i] for i in range(len(shape))], shape))
    assert value_of(offset, loops) == plain
    moved = offset * factor + shift
    number = plain * factor + shift
    assert value_of(moved.floordiv(divisor), loops) == number // divisor
    assert value_of(moved.mod(divisor), loops) == number % divisor
    assert value_of(moved.clamp(7), loops) == min(max(number, 0), 6)
    low, high = moved.floordiv(divisor).range()
    assert low <= number // divisor <= high
    if np.prod(other) == np.prod(shape):
        back = linearize(delinearize(offset, other), other)
        assert value_of(back, loops) == plain
        assert back == offset


def test_reshapes_cancel_to_plain_reads():
    rows, columns = dim(0, 28), dim(1, 10)
    split = delinearize(linearize([rows, columns], [28, 10]), [4, 7, 10])
    assert plain_dims(split, [4, 7, 10]) == [(0, 28), (1, 10)]
    assert plain_dims([columns, rows], [10, 28]) == [(1, 10), (0, 28)]
    assert plain_dims([rows, columns + 1], [28, 11]) is None
    assert plain_dims([rows], [28]) == [(0, 28)] and plain_dims([Index()], [2]) is None


@given(SHAPES)
@settings(max_examples=50, deadline=None)
def test_a_shape_collapses_to_its_common_coarsening(shape):
    other = list(reversed(shape))
    coarse = common_coarsening(shape, other)
    if coarse:
        for fine in (shape, other):
            groups = reassociation(coarse, fine)
            assert groups is not None and [int(np.prod([fine[i] for i in g])) for g in groups] == coarse


# What fuses.

IDENTITY = "affine_map<(d0, d1) -> (d0, d1)>"


def softmax(rows: int, columns: int) -> str:
    full, row = f"tensor<{rows}x{columns}xf32>", f"tensor<{rows}xf32>"
    both = f"indexing_maps = [{IDENTITY}, affine_map<(d0, d1) -> (d0)>]"
    reduce_types = 'iterator_types = ["parallel", "reduction"]'
    map_maps = f"indexing_maps = [{IDENTITY}, affine_map<(d0, d1) -> (d0)>, {IDENTITY}]"
    parallel = 'iterator_types = ["parallel", "parallel"]'
    return f"""
func.func @main(%x: {full}) -> {full} {{
  %zero = arith.constant 0.0 : f32
  %low = arith.constant 0xFF800000 : f32
  %er = tensor.empty() : {row}
  %e = tensor.empty() : {full}
  %fm = linalg.fill ins(%low : f32) outs(%er : {row}) -> {row}
  %max = linalg.generic {{{both}, {reduce_types}}} ins(%x : {full}) outs(%fm : {row}) {{
  ^bb0(%a: f32, %o: f32):
    %r = arith.maximumf %a, %o : f32
    linalg.yield %r : f32
  }} -> {row}
  %exp = linalg.generic {{{map_maps}, {parallel}}} ins(%x, %max : {full}, {row}) outs(%e : {full}) {{
  ^bb0(%a: f32, %b: f32, %o: f32):
    %s = arith.subf %a, %b : f32
    %r = math.exp %s : f32
    linalg.yield %r : f32
  }} -> {full}
  %fs = linalg.fill ins(%zero : f32) outs(%er : {row}) -> {row}
  %sum = linalg.generic {{{both}, {reduce_types}}} ins(%exp : {full}) outs(%fs : {row}) {{
  ^bb0(%a: f32, %o: f32):
    %r = arith.addf %a, %o : f32
    linalg.yield %r : f32
  }} -> {row}
  %out = linalg.generic {{{map_maps}, {parallel}}} ins(%exp, %sum : {full}, {row}) outs(%e : {full}) {{
  ^bb0(%a: f32, %b: f32, %o: f32):
    %r = arith.divf %a, %b : f32
    linalg.yield %r : f32
  }} -> {full}
  return %out : {full}
}}"""


@pytest.mark.parametrize("rows, columns", [(1, 1), (1, 7), (5, 1), (3, 17)])
def test_softmax_is_one_kernel(rows, columns):
    text = softmax(rows, columns)
    check_equal(text)
    found = calls(kernels_of(text))
    assert found == ["reduction"] or columns == 1  # of one column it is maps all along
    if columns > 1:
        assert str(kernels_of(text)).count("math.exp") == 1, "the exponential is computed once"


def matmul(rows: int, inner: int, columns: int, batch: str = "") -> str:
    x, w, y = f"tensor<{rows}x{inner}xf32>", f"tensor<{columns}x{inner}xf32>", f"tensor<{rows}x{columns}xf32>"
    return f"""
func.func @main(%x: {x}, %w: {w}, %b: tensor<{columns}xf32>, %res: tensor<1x{rows}x{columns}xf32>)
    -> tensor<1x{rows}x{columns}xf32> {{
  %zero = arith.constant 0.0 : f32
  %et = tensor.empty() : tensor<{inner}x{columns}xf32>
  %wt = linalg.transpose ins(%w : {w}) outs(%et : tensor<{inner}x{columns}xf32>) permutation = [1, 0]
  %e = tensor.empty() : {y}
  %f = linalg.fill ins(%zero : f32) outs(%e : {y}) -> {y}
  %m = linalg.matmul ins(%x, %wt : {x}, tensor<{inner}x{columns}xf32>) outs(%f : {y}) -> {y}
  %s = linalg.generic {{indexing_maps = [{IDENTITY}, affine_map<(d0, d1) -> (d1)>, {IDENTITY}],
      iterator_types = ["parallel", "parallel"]}} ins(%m, %b : {y}, tensor<{columns}xf32>) outs(%e : {y}) {{
  ^bb0(%p: f32, %q: f32, %o: f32):
    %r = arith.addf %p, %q : f32
    linalg.yield %r : f32
  }} -> {y}
  %t = tensor.expand_shape %s [[0, 1], [2]] output_shape [1, {rows}, {columns}]
      : {y} into tensor<1x{rows}x{columns}xf32>
  %er = tensor.empty() : tensor<1x{rows}x{columns}xf32>
  %out = linalg.add ins(%t, %res : tensor<1x{rows}x{columns}xf32>, tensor<1x{rows}x{columns}xf32>)
      outs(%er : tensor<1x{rows}x{columns}xf32>) -> tensor<1x{rows}x{columns}xf32>
  return %out : tensor<1x{rows}x{columns}xf32>
}}"""


@pytest.mark.parametrize("shape", [(1, 1, 1), (1, 7, 5), (5, 1, 3), (4, 3, 1), (13, 17, 11)])
def test_matmul_takes_transpose_bias_and_residual(shape):
    text = matmul(*shape)
    check_equal(text)
    assert calls(kernels_of(text)) == ["matmul"]
    assert len(calls(kernels_of(text, fuse_epilogue=False))) == 2
    rows, inner, columns = shape
    kernel = str(kernels_of(text))
    assert f"ins(%arg0, %arg1 : tensor<{rows}x{inner}xf32>, tensor<{columns}x{inner}xf32>)" in kernel


@pytest.mark.parametrize("along", [(0, 0), (0, 1), (1, 0), (1, 1), (1, 2), (2, 0)])
def test_products_of_what_is_repeated(along):
    """Elements that are repeated along rows, along the inner dimension or (2) along both."""
    shapes, parts = ((5, 7), (7, 3)), []
    for name, shape, d in zip("xy", shapes, along, strict=True):
        given = "" if d == 2 else f"{shape[1 - d]}x"
        whole = f"tensor<{shape[0]}x{shape[1]}xf32>"
        parts.append(f"""
  %e{name} = tensor.empty() : {whole}
  %w{name} = linalg.broadcast ins(%{name} : tensor<{given}f32>) outs(%e{name} : {whole})
      dimensions = [{"0, 1" if d == 2 else d}]""")
    x, y = ("" if d == 2 else f"{s[1 - d]}x" for s, d in zip(shapes, along, strict=True))
    check_equal(f"""
func.func @main(%x: tensor<{x}f32>, %y: tensor<{y}f32>) -> tensor<5x3xf32> {{
  %zero = arith.constant 0.0 : f32{"".join(parts)}
  %e = tensor.empty() : tensor<5x3xf32>
  %f = linalg.fill ins(%zero : f32) outs(%e : tensor<5x3xf32>) -> tensor<5x3xf32>
  %m = linalg.matmul ins(%wx, %wy : tensor<5x7xf32>, tensor<7x3xf32>) outs(%f : tensor<5x3xf32>) -> tensor<5x3xf32>
  return %m : tensor<5x3xf32>
}}""")


@pytest.mark.parametrize(
    "whole", ["tensor.concat dim(0) %x, %x, %x : (tensor<1x5xf32>, tensor<1x5xf32>, tensor<1x5xf32>) -> tensor<3x5xf32>",
              "tensor.pad %x low[1, 0] high[1, 0] { ^bb0(%i: index, %j: index): tensor.yield %zero : f32 } "
              ": tensor<1x5xf32> to tensor<3x5xf32>"],
)  # fmt: skip
def test_products_of_a_moved_tensor_with_a_row_of_it(whole):
    """The row alone would be a plain read of what is moved; the whole is not."""
    check_equal(f"""
func.func @main(%x: tensor<1x5xf32>) -> tensor<3x1xf32> {{
  %zero = arith.constant 0.0 : f32
  %c = {whole}
  %row = tensor.extract_slice %c[1, 0] [1, 5] [1, 1] : tensor<3x5xf32> to tensor<5xf32>
  %column = tensor.expand_shape %row [[0, 1]] output_shape [5, 1] : tensor<5xf32> into tensor<5x1xf32>
  %e = tensor.empty() : tensor<3x1xf32>
  %f = linalg.fill ins(%zero : f32) outs(%e : tensor<3x1xf32>) -> tensor<3x1xf32>
  %m = linalg.matmul ins(%c, %column : tensor<3x5xf32>, tensor<5x1xf32>) outs(%f : tensor<3x1xf32>) -> tensor<3x1xf32>
  return %m : tensor<3x1xf32>
}}""")


def test_constant_result_and_passed_through_arguments():
    text = """
func.func @main(%x: tensor<2x3xf32>) -> (tensor<6xf32>, tensor<4xf32>, tensor<1x4xi64>) {
  %half = arith.constant 0.5 : f32
  %e = tensor.empty() : tensor<4xf32>
  %f = linalg.fill ins(%half : f32) outs(%e : tensor<4xf32>) -> tensor<4xf32>
  %c = arith.constant dense<7> : tensor<1x4xi64>
  %v = tensor.collapse_shape %x [[0, 1]] : tensor<2x3xf32> into tensor<6xf32>
  return %v, %f, %c : tensor<6xf32>, tensor<4xf32>, tensor<1x4xi64>
}"""
    module = kernels_of(text)
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    view, filled, constant = host.run_module(module, [x])
    assert (view == x.reshape(6)).all() and (filled == 0.5).all() and (constant == 7).all()
    assert len(calls(module)) == 2, "the view is no kernel"


def test_tensors_without_elements():
    text = """
func.func @main(%x: tensor<0x3xf32>, %y: tensor<2x3xf32>) -> (tensor<0x3xf32>, tensor<2x3xf32>, tensor<3xf32>) {
  %zero = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<0x3xf32>
  %r = linalg.exp ins(%x : tensor<0x3xf32>) outs(%e : tensor<0x3xf32>) -> tensor<0x3xf32>
  %c = tensor.concat dim(0) %r, %y : (tensor<0x3xf32>, tensor<2x3xf32>) -> tensor<2x3xf32>
  %es = tensor.empty() : tensor<3xf32>
  %f = linalg.fill ins(%zero : f32) outs(%es : tensor<3xf32>) -> tensor<3xf32>
  %sum = linalg.reduce ins(%r : tensor<0x3xf32>) outs(%f : tensor<3xf32>) dimensions = [0]
    (%a: f32, %b: f32) {
      %s = arith.addf %a, %b : f32
      linalg.yield %s : f32
    }
  return %r, %c, %sum : tensor<0x3xf32>, tensor<2x3xf32>, tensor<3xf32>
}"""
    module = kernels_of(text)
    y = np.arange(6, dtype=np.float32).reshape(2, 3)
    empty, joined, total = host.run_module(module, [np.empty((0, 3), np.float32), y])
    assert empty.shape == (0, 3) and (joined == y).all() and (total == 0).all()


def test_unknown_knob_and_failing_script_are_errors():
    with pytest.raises(MlircError, match="unknown knob 'colour': choose one of fuse_epilogue"):
        make_script(TARGET, colour=True)
    with pytest.raises(MlircError, match="no function @main"):
        kernels_of("func.func @other() { return }")
    script = mlir.parse(
        """module attributes {transform.with_named_sequence} {
  transform.named_sequence @__transform_main(%m: !transform.any_op {transform.readonly}) {
    "schedule.apply_pass"(%m) {pass_name = "mlirc-group-kernels", options = "colour=true"} : (!transform.any_op) -> ()
    transform.yield
  }
}"""
    )
    with pytest.raises(MlircError, match="unknown option 'colour'"):
        to_kernels(mlir.parse("func.func @main() { return }"), TARGET, script=script)


def chain(count: int) -> str:
    """A chain of maps of one vector."""
    kind = 'indexing_maps = [#v, #v], iterator_types = ["parallel"]'
    body = "^bb0(%a: f32, %b: f32):\n  %p = arith.mulf %a, %c : f32\n  linalg.yield %p : f32"
    ops = "\n".join(
        f"%{i + 1} = linalg.generic {{{kind}}} ins(%{i} : tensor<7xf32>) outs(%e : tensor<7xf32>) {{\n{body}\n}} "
        "-> tensor<7xf32>"
        for i in range(count)
    )
    text = f"""#v = affine_map<(d) -> (d)>
func.func @main(%x: tensor<7xf32>) -> tensor<7xf32> {{
%c = arith.constant 1.01 : f32
%e = tensor.empty() : tensor<7xf32>
{ops}
return %{count} : tensor<7xf32>
}}"""
    return re.sub(r"%0\b", "%x", text)


def test_long_chains_are_one_kernel():
    """Longer than what calls of Python can nest."""
    text = chain(200)
    check_equal(text)
    assert calls(kernels_of(text)) == ["elementwise"]


def test_classes_of_ops_are_looked_for_once(monkeypatch):
    """The bindings import a module for the dialect of each op that Python meets, and again where there is none."""
    sought: list[str] = []

    class Noting:
        @staticmethod
        def find_spec(name: str, path: object = None, target: object = None) -> None:
            sought.append(name)

    monkeypatch.setattr(sys, "meta_path", [Noting, *sys.meta_path])
    for _ in range(2):
        kernels_of("""
func.func @main(%q: tensor<1x4x16x32xf32>) -> tensor<1x4x16x32xf32> {
  %0 = "mlirc.attention"(%q, %q, %q) {scale = 0.17 : f64, causal = false, window = 0 : i64, softcap = 0.0 : f64,
      layouts = ["bhsd", "bhsd", "bhsd", "bhsd"]}
    : (tensor<1x4x16x32xf32>, tensor<1x4x16x32xf32>, tensor<1x4x16x32xf32>) -> tensor<1x4x16x32xf32>
  return %0 : tensor<1x4x16x32xf32>
}""")
    assert len(sought) == len(set(sought)), sought
