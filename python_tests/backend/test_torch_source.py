"""What a repro says in PyTorch is what the kernel computes."""

import numpy as np
import pytest
import torch

from mlirc.host.tensors import run_level
from mlirc.mlir import parse
from mlirc.repro.kernel import attention, relative_error
from mlirc.repro.torch_source import Untranslatable, torch_source


def generic(inputs, result, maps, kinds, body, init=None):
    """A kernel of one linalg.generic: `inputs` and `result` as `4x5xf32`, `init` the value of a fill."""
    dims = ", ".join(f"d{i}" for i in range(len(kinds)))
    element = result.split("x")[-1]
    names = [f"%a{i}" for i in range(len(inputs))]
    types = ", ".join(f"tensor<{t}>" for t in inputs)
    arguments = ", ".join(f"{n}: tensor<{t}>" for n, t in zip(names, inputs, strict=True))
    scalars = ", ".join([*(f"%x{i}: {t.split('x')[-1]}" for i, t in enumerate(inputs)), f"%z: {element}"])
    fill = "%i = tensor.empty() : tensor<R>"
    if init is not None:
        fill = """%c = arith.constant INIT : E
          %e = tensor.empty() : tensor<R>
          %i = linalg.fill ins(%c : E) outs(%e : tensor<R>) -> tensor<R>"""
    text = f"""
    func.func @main({arguments}) -> tensor<R> {{
      {fill}
      %r = linalg.generic {{
        indexing_maps = [{", ".join(f"affine_map<({dims}) -> ({m})>" for m in maps)}],
        iterator_types = [{", ".join(f'"{"parallel" if k == "p" else "reduction"}"' for k in kinds)}]
      }} ins({", ".join(names)} : {types}) outs(%i : tensor<R>) {{
      ^bb0({scalars}):
        {body}
        linalg.yield %y : E
      }} -> tensor<R>
      return %r : tensor<R>
    }}"""
    return text.replace("tensor<R>", f"tensor<{result}>").replace(": E", f": {element}").replace("INIT", str(init))


MULADD = "%p = arith.mulf %x0, %x1 : f32\n %y = arith.addf %z, %p : f32"
WIDE = "%u = arith.extf %x0 : bf16 to f32\n %v = arith.extf %x1 : bf16 to f32\n %p = arith.mulf %u, %v : f32\n"
WIDE += "%y = arith.addf %z, %p : f32"
SQUARE_ADD = "%p = arith.mulf %x0, %x0 : f32\n %y = arith.addf %p, %z : f32"
MAXIMUM = "%y = arith.maximumf %z, %x0 : f32"
CASES = {
    "broadcast": generic(
        ["4x5xf32", "5xf32"], "4x5xf32", ["d0, d1", "d1", "d0, d1"], "pp", "%y = arith.subf %x0, %x1 : f32"
    ),
    "transpose": generic(["4x5xf32"], "5x4xf32", ["d1, d0", "d0, d1"], "pp", "%y = math.exp %x0 : f32"),
    "rotate": generic(["2x3x4xf32"], "4x2x3xf32", ["d1, d2, d0", "d0, d1, d2"], "ppp", "%y = arith.negf %x0 : f32"),
    "sum": generic(["4x5xf32"], "4xf32", ["d0, d1", "d0"], "pr", "%y = arith.addf %x0, %z : f32", 1.0),
    "sum_of_squares": generic(
        ["4x5xf32"], "5xf32", ["d1, d0", "d0"], "pr", SQUARE_ADD, 0.0
    ),
    "maximum": generic(["4x5xf32"], "4xf32", ["d0, d1", "d0"], "pr", MAXIMUM, -1000.0),
    "matmul": generic(["4x6xf32", "5x6xf32"], "4x5xf32", ["d0, d2", "d1, d2", "d0, d1"], "ppr", MULADD, 0.0),
    "batched": generic(
        ["2x4x6xf32", "2x6x5xf32"], "2x5x4xf32", ["d0, d2, d3", "d0, d3, d1", "d0, d1, d2"], "pppr", MULADD, 0.0
    ),
    "bf16_product": generic(
        ["4x6xbf16", "6x5xbf16"], "4x5xf32", ["d0, d2", "d2, d1", "d0, d1"], "ppr", WIDE, 0.0
    ),
    "convolution": generic(
        ["2x3x11xf32", "4x3x3xf32"], "2x4x5xf32",
        ["d0, d3, d2 * 2 + d4", "d1, d3, d4", "d0, d1, d2"], "ppprr", MULADD, 0.0
    ),
    "dilated": generic(
        ["2x3x11xf32", "4x3x3xf32"], "2x4x7xf32",
        ["d0, d3, d2 + d4 * 2", "d1, d3, d4", "d0, d1, d2"], "ppprr", MULADD, 0.0
    ),
    "depthwise": generic(
        ["3x11xf32", "3x4xf32"], "3x8xf32", ["d0, d1 + d2", "d0, d2", "d0, d1"], "ppr", MULADD, 0.0
    ),
    "pooling": generic(
        ["3x10xf32", "2xf32"], "3x4xf32", ["d0, d1 * 2 + d2", "d2", "d0, d1"], "ppr", MAXIMUM, -9.0
    ),
    "gelu": generic(
        ["7xf32"], "7xf32", ["d0", "d0"], "p", """%h = arith.constant 0.5 : f32
        %one = arith.constant 1.0 : f32
        %m = arith.mulf %x0, %h : f32
        %t = math.erf %x0 : f32
        %u = arith.addf %t, %one : f32
        %y = arith.mulf %m, %u : f32""",
    ),
    "relu": generic(
        ["7xf32"], "7xf32", ["d0", "d0"], "p", """%zero = arith.constant 0.0 : f32
        %c = arith.cmpf ugt, %x0, %zero : f32
        %y = arith.select %c, %x0, %zero : f32""",
    ),
    "mask": generic(
        ["4x4xf32"], "4x4xf32", ["d0, d1", "d0, d1"], "pp", """%row = linalg.index 0 : index
        %col = linalg.index 1 : index
        %low = arith.constant 0xFF800000 : f32
        %zero = arith.constant 0.0 : f32
        %c = arith.cmpi sle, %col, %row : index
        %s = arith.select %c, %zero, %low : f32
        %y = arith.addf %x0, %s : f32""",
    ),
    "gather": """
    func.func @main(%ids: tensor<4xi64>, %table: tensor<9x5xf32>) -> tensor<4x5xf32> {
      %e = tensor.empty() : tensor<4x5xf32>
      %r = linalg.generic {indexing_maps = [affine_map<(i, j) -> (i)>, affine_map<(i, j) -> (i, j)>],
                           iterator_types = ["parallel", "parallel"]}
          ins(%ids : tensor<4xi64>) outs(%e : tensor<4x5xf32>) {
      ^bb0(%x: i64, %z: f32):
        %i = arith.index_cast %x : i64 to index
        %col = linalg.index 1 : index
        %y = tensor.extract %table[%i, %col] : tensor<9x5xf32>
        linalg.yield %y : f32
      } -> tensor<4x5xf32>
      return %r : tensor<4x5xf32>
    }""",
    "views": """
    func.func @main(%a: tensor<4x6xf32>, %b: tensor<2x6xf32>) -> tensor<3x8xf32> {
      %s = tensor.extract_slice %a[1, 0] [2, 6] [2, 1] : tensor<4x6xf32> to tensor<2x6xf32>
      %c = tensor.concat dim(0) %s, %b : (tensor<2x6xf32>, tensor<2x6xf32>) -> tensor<4x6xf32>
      %f = tensor.collapse_shape %c [[0, 1]] : tensor<4x6xf32> into tensor<24xf32>
      %e = tensor.expand_shape %f [[0, 1]] output_shape [3, 8] : tensor<24xf32> into tensor<3x8xf32>
      return %e : tensor<3x8xf32>
    }""",
    "attention": """
    func.func @main(%q: tensor<1x3x4x8xf32>, %k: tensor<1x2x5x8xf32>, %v: tensor<1x2x5x8xf32>) -> tensor<1x3x4x8xf32> {
      %o = "mlirc.attention"(%q, %k, %v) {scale = 0.3 : f64, causal = true, window = 3 : i64, softcap = 2.0 : f64,
        layouts = ["bshd", "bhsd", "bhsd", "bshd"]}
        : (tensor<1x3x4x8xf32>, tensor<1x2x5x8xf32>, tensor<1x2x5x8xf32>) -> tensor<1x3x4x8xf32>
      return %o : tensor<1x3x4x8xf32>
    }""",
}  # fmt: skip


def inputs_of(module):
    from mlirc.ir import levels

    g = torch.Generator().manual_seed(0)
    for type_ in levels.functions(module)["main"].type.inputs:
        dtype = {"f32": torch.float32, "bf16": torch.bfloat16, "i64": torch.int64}[str(type_.element_type)]
        if dtype == torch.int64:
            yield torch.randint(0, 5, tuple(type_.shape), generator=g)
        else:
            yield torch.randn(tuple(type_.shape), generator=g).to(dtype)


@pytest.mark.parametrize("name", CASES)
def test_source_equals_kernel(name):
    module = parse(CASES[name])
    inputs = list(inputs_of(module))
    scope = {"torch": torch, "attention": attention}
    arguments = ", ".join(f"a{i}" for i in range(len(inputs)))
    exec(f"def reference({arguments}):\n{torch_source(module, 'main')}", scope)
    [wanted], [got] = scope["reference"](*inputs), run_level(module, inputs, {})
    assert wanted.shape == got.shape and wanted.dtype == got.dtype
    assert relative_error(got, wanted) < 2e-6


@pytest.mark.parametrize(
    "predicate", ["oeq", "ogt", "oge", "olt", "ole", "one", "ord", "ueq", "ugt", "ult", "une", "uno"]
)
def test_comparisons_with_nan(predicate):
    body = f"""%c = arith.cmpf {predicate}, %x0, %x1 : f32
        %y = arith.extui %c : i1 to i64"""
    module = parse(generic(["9xf32", "9xf32"], "9xi64", ["d0", "d0", "d0"], "p", body))
    values = torch.tensor([1.0, 2.0, float("nan")])
    inputs = [values.repeat_interleave(3), values.repeat(3)]
    scope = {"torch": torch}
    exec(f"def reference(a0, a1):\n{torch_source(module, 'main')}", scope)
    np.testing.assert_array_equal(scope["reference"](*inputs)[0], run_level(module, inputs, {})[0])


def test_what_has_no_short_form_is_named():
    text = generic(["4x4xf32"], "4xf32", ["d0, d0", "d0"], "p", "%y = arith.negf %x0 : f32")
    with pytest.raises(Untranslatable, match="diagonal"):
        torch_source(parse(text), "main")
    text = generic(["4xf32"], "4xf32", ["d0", "d0"], "p", "%y = math.ctlz %x0 : f32").replace("f32", "i32")
    with pytest.raises(Untranslatable, match="math.ctlz"):
        torch_source(parse(text), "main")
