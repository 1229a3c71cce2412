"""Kernels for mutants that break no rule of the GPU, but compute something else: softmax and norms, with weights, masks,
tables, casts and integers. What they compute differs from what they should only on some inputs, so each is run on every
set of inputs that fits it."""

from __future__ import annotations

from mlirc import mlir
from mlirc.device.input_sets import INPUT_SETS, InputSets
from mlirc.device.reference import References
from support.kernels.check import function_name
from support.kernels.mutant_cases import lowered
from support.kernels.payloads import attention, generic, kernel, matmul, table_attention
from support.mutants.kernels import Case


def softmax(rows: int, length: int, dtype: str = "f32") -> str:
    """The softmax of x [rows, length] over its last dimension, summed in f32."""
    x, w, s = f"tensor<{rows}x{length}x{dtype}>", f"tensor<{rows}x{length}xf32>", f"tensor<{rows}xf32>"
    load, v = ("", "%x0") if dtype == "f32" else (f"%e = arith.extf %x0 : {dtype} to f32\n    ", "%e")
    last = "%y = arith.divf %x0, %x1 : f32"
    if dtype != "f32":
        last = f"%d = arith.divf %x0, %x1 : f32\n    %y = arith.truncf %d : f32 to {dtype}"
    lines = [
        "  %zero = arith.constant 0.0 : f32", "  %lowest = arith.constant 0xFF800000 : f32",
        f"  %es = tensor.empty() : {s}", f"  %ew = tensor.empty() : {w}", f"  %ex = tensor.empty() : {x}",
        f"  %f = linalg.fill ins(%lowest : f32) outs(%es : {s}) -> {s}",
        generic("m", "a, b", [("%x", x, "a, b")], ("%f", s, "a"), f"{load}%y = arith.maximumf {v}, %o : f32"),
        generic("p", "a, b", [("%x", x, "a, b"), ("%m", s, "a")], ("%ew", w, "a, b"),
                f"{load}%d = arith.subf {v}, %x1 : f32\n    %y = math.exp %d : f32"),
        f"  %g = linalg.fill ins(%zero : f32) outs(%es : {s}) -> {s}",
        generic("t", "a, b", [("%p", w, "a, b")], ("%g", s, "a"), "%y = arith.addf %x0, %o : f32"),
        generic("r", "a, b", [("%p", w, "a, b"), ("%t", s, "a")], ("%ex", x, "a, b"), last),
    ]  # fmt: skip
    return kernel("reduction_0", "reduction", {"x": x}, x, "\n".join(lines))


def layer_norm(rows: int, length: int, dtype: str = "f32", eps: float = 1e-5) -> str:
    """The norm of x [rows, length] with a weight and a bias."""
    x, v, s = f"tensor<{rows}x{length}x{dtype}>", f"tensor<{length}x{dtype}>", f"tensor<{rows}xf32>"

    def wide(*names: str) -> str:
        return "" if dtype == "f32" else "".join(f"%e{n} = arith.extf %{n} : {dtype} to f32\n    " for n in names)

    a = {n: f"%{n}" if dtype == "f32" else f"%e{n}" for n in ("x0", "x3", "x4")}
    last = "%y = arith.addf %g, {x4} : f32" if dtype == "f32" else (
        f"%h = arith.addf %g, {{x4}} : f32\n    %y = arith.truncf %h : f32 to {dtype}"
    )  # fmt: skip
    center = f"{wide('x0')}%c = arith.subf {a['x0']}, %x1 : f32\n    "
    lines = [
        "  %zero = arith.constant 0.0 : f32", f"  %n = arith.constant {float(length)} : f32",
        f"  %eps = arith.constant {eps:e} : f32", f"  %es = tensor.empty() : {s}", f"  %ex = tensor.empty() : {x}",
        f"  %f = linalg.fill ins(%zero : f32) outs(%es : {s}) -> {s}",
        generic("t", "a, b", [("%x", x, "a, b")], ("%f", s, "a"),
                f"{wide('x0')}%y = arith.addf {a['x0']}, %o : f32"),
        generic("m", "a", [("%t", s, "a")], ("%es", s, "a"), "%y = arith.divf %x0, %n : f32"),
        generic("q", "a, b", [("%x", x, "a, b"), ("%m", s, "a")], ("%f", s, "a"),
                f"{center}%p = arith.mulf %c, %c : f32\n    %y = arith.addf %p, %o : f32"),
        generic("k", "a", [("%q", s, "a")], ("%es", s, "a"),
                "%d = arith.divf %x0, %n : f32\n    %u = arith.addf %d, %eps : f32\n    %y = math.rsqrt %u : f32"),
        generic("r", "a, b", [("%x", x, "a, b"), ("%m", s, "a"), ("%k", s, "a"), ("%w", v, "b"), ("%z", v, "b")],
                ("%ex", x, "a, b"),
                f"{wide('x0', 'x3', 'x4')}%c = arith.subf {a['x0']}, %x1 : f32\n    %p = arith.mulf %c, %x2 : f32\n    "
                f"%g = arith.mulf %p, {a['x3']} : f32\n    {last.format(**a)}"),
    ]  # fmt: skip
    return kernel("reduction_0", "reduction", {"x": x, "w": v, "z": v}, x, "\n".join(lines))


def lookup(count: int, width: int, table: int) -> str:
    """Rows of a table [table, width] by ids [count] in i64, and their sum with those of positions [count, width]."""
    ids, rows, x = f"tensor<{count}xi64>", f"tensor<{table}x{width}xf32>", f"tensor<{count}x{width}xf32>"
    body = "\n    ".join([
        "%c = arith.index_cast %x0 : i64 to index", "%low = arith.constant 0 : index",
        f"%high = arith.constant {table - 1} : index",
        f"%i = arith.maxsi %c, %low {{mlirc.index_below = {table} : i64}} : index",
        f"%j = arith.minsi %i, %high {{mlirc.index_below = {table} : i64}} : index",
        "%b = linalg.index 1 : index", f"%t = tensor.extract %w[%j, %b] : {rows}", "%y = arith.addf %t, %x1 : f32",
    ])  # fmt: skip
    lines = [f"  %e = tensor.empty() : {x}",
             generic("r", "a, b", [("%x", ids, "a"), ("%z", x, "a, b")], ("%e", x, "a, b"), body)]  # fmt: skip
    return kernel("gather_0", "gather", {"x": ids, "w": rows, "z": x}, x, "\n".join(lines))


def elements(count: int, body: str, types: tuple[str, ...], result: str) -> str:
    """An elementwise kernel; `body` defines %y of %x0, %x1, ..."""
    given = [f"tensor<{count}x3x{t}>" for t in types]
    out, names = f"tensor<{count}x3x{result}>", "xwz"
    ins = [(f"%{n}", t, "a, b") for n, t in zip(names, given, strict=False)]
    lines = [f"  %e = tensor.empty() : {out}", generic("r", "a, b", ins, ("%e", out, "a, b"), body)]
    return kernel("elementwise_0", "elementwise", dict(zip(names, given, strict=False)), out, "\n".join(lines))


_SATURATE = """%s = arith.mulf %x0, %x1 : f32
    %l = arith.constant -128.0 : f32
    %h = arith.constant 127.0 : f32
    %a = arith.maximumf %s, %l : f32
    %b = arith.minimumf %a, %h : f32
    %q = math.roundeven %b : f32
    %y = arith.fptosi %q : f32 to i8"""
_WIDEN = """%a = arith.extsi %x0 : i8 to i32
    %b = arith.extui %x1 : i8 to i32
    %s = arith.muli %a, %b : i32
    %f = arith.sitofp %s : i32 to f32
    %y = arith.mulf %f, %x2 : f32"""
_CAUSAL = """%i = linalg.index 0 : index
    %j = linalg.index 1 : index
    %c = arith.cmpi sle, %j, %i : index
    %l = arith.constant 0xFF800000 : f32
    %a = arith.addf %x0, %x1 : f32
    %y = arith.select %c, %a, %l : f32"""
_POSITIVE = """%0 = arith.constant 0.0 : f32
    %c = arith.cmpf ogt, %x0, %0 : f32
    %n = arith.mulf %x0, %x1 : f32
    %y = arith.select %c, %x0, %n : f32"""


def row_maximum(rows: int, length: int) -> str:
    """The maxima of x [rows, length] over its last dimension."""
    x, s = f"tensor<{rows}x{length}xf32>", f"tensor<{rows}xf32>"
    lines = [
        "  %lowest = arith.constant 0xFF800000 : f32", f"  %e = tensor.empty() : {s}",
        f"  %f = linalg.fill ins(%lowest : f32) outs(%e : {s}) -> {s}",
        generic("r", "a, b", [("%x", x, "a, b")], ("%f", s, "a"), "%y = arith.maximumf %x0, %o : f32"),
    ]  # fmt: skip
    return kernel("reduction_0", "reduction", {"x": x}, s, "\n".join(lines))


NUMBERS: dict[str, tuple[str, str]] = {
    "softmax, f32": (softmax(3, 67), "reduction:warps=1"),
    "softmax, bf16": (softmax(5, 391, "bf16"), "reduction:warps=4"),
    "layer norm, f32": (layer_norm(3, 67), "reduction:warps=1"),
    "layer norm, bf16": (layer_norm(3, 131, "bf16"), "reduction:warps=2"),
    "row maxima": (row_maximum(3, 67), "reduction:warps=1"),
    "lookup": (lookup(37, 5, 70001), ""),
    "to 8 bits": (elements(13, _SATURATE, ("f32", "f32"), "i8"), ""),
    "from 8 bits": (elements(13, _WIDEN, ("i8", "i8", "f32"), "f32"), ""),
    "causal mask": (elements(5, _CAUSAL, ("f32", "f32"), "f32"), ""),
    "leaky": (elements(13, _POSITIVE, ("f32", "f32"), "f32"), ""),
    "product, f32": (matmul(17, 19, 70), "matmul:block_m=16,block_n=16,block_k=16,stages=2"),
    "product, bf16": (matmul(17, 19, 150, "bf16"), "matmul:block_m=16,block_n=16,block_k=16,stages=2"),
    "attention, bf16, causal": (
        attention(lengths=(17, 33), dims=(16, 16), dtype="bf16", causal=True), "attention:block_q=16,block_kv=16",
    ),
    "attention, f32, window": (
        attention(lengths=(9, 21), dims=(8, 8), causal=True, window=7), "attention:block_q=8,block_kv=8",
    ),
    "attention, f32, mask": (
        attention(lengths=(9, 21), dims=(8, 8), mask="tensor<1x1x1x21xi1>"), "attention:block_q=8,block_kv=8",
    ),
    "attention, f32, table": (
        table_attention(lengths=(9, 21), heads=(2, 1)), "attention:block_q=8,block_kv=8",
    ),
}  # fmt: skip


UNDEFINED = {("to 8 bits", "one NaN"), ("to 8 bits", "special values")}  # which integer it becomes


def number_case(name: str) -> Case:
    """A kernel of the list at the `gpu` level, with every set of inputs that fits it."""
    text, knobs = NUMBERS[name]
    gpu, arguments, specs = lowered(text, knobs)
    module = mlir.parse(text)
    reference = References({"kernels": module}).of(function_name(module))
    sets = InputSets.of(reference.function, arguments)
    kinds = [k for k in INPUT_SETS if sets.fits(k) and (name, k) not in UNDEFINED]
    return Case(gpu, [sets.make(kind) for kind in kinds], specs, reference)
