"""Kernels as MLIR text for the schedule tests, and a check that a schedule keeps their meaning on the CPU."""

from __future__ import annotations

import ml_dtypes
import numpy as np

from mlirc import mlir
from mlirc.host import run_module
from mlirc.mlir import ir
from mlirc.schedule.registry import ScheduleRecord, Schedules
from mlirc.targets import get_target

DTYPES = {
    "f32": np.float32, "f64": np.float64, "f16": np.float16, "bf16": ml_dtypes.bfloat16,
    "f8E4M3FN": ml_dtypes.float8_e4m3fn, "i1": np.bool_, "i8": np.int8, "i32": np.int32, "i64": np.int64,
}  # fmt: skip


def kernel(name: str, kind: str, arguments: dict[str, str], result: str, body: str) -> str:
    """A kernel function; `body` ends with the value that is returned in `%r`, or in `%r` and `%r1` for two results."""
    listed = ", ".join(f"%{k}: {v}" for k, v in arguments.items())
    values = "%r, %r1" if "," in result.split(">")[1] else "%r"
    types = f"({result})" if "," in result.split(">")[1] else result
    return (
        f'func.func @{name}({listed}) -> {types} attributes {{mlirc.kernel, mlirc.kind = "{kind}"}} {{\n'
        f"{body}\n  return {values} : {result}\n}}"
    )


def generic(out: str, dims: str, ins: list[tuple[str, str, str]], outs: tuple[str, str, str], yields: str) -> str:
    """`%out = linalg.generic`: operands as (value, type, map results); `yields` is the body over %x0, %x1, ... and %o
    and defines %y. Dimensions that the output's map lacks are reduced."""
    operands = [*ins, outs]
    maps = ", ".join(f"affine_map<({dims}) -> ({m})>" for _, _, m in operands)
    names = [d.strip() for d in dims.split(",")]
    kept = [d.strip() for d in outs[2].split(",")]
    iterators = ", ".join('"parallel"' if d in kept else '"reduction"' for d in names)
    element = [t.removesuffix(">").split("x")[-1].removeprefix("tensor<") for _, t, _ in operands]
    inputs = f"ins({', '.join(v for v, _, _ in ins)} : {', '.join(t for _, t, _ in ins)}) " if ins else ""
    block = ", ".join([f"%x{i}: {e}" for i, e in enumerate(element[:-1])] + [f"%o: {element[-1]}"])
    return (
        f"  %{out} = linalg.generic {{indexing_maps = [{maps}], iterator_types = [{iterators}]}} {inputs}"
        f"outs({outs[0]} : {outs[1]}) {{\n  ^bb0({block}):\n    {yields}\n    linalg.yield %y : {element[-1]}\n"
        f"  }} -> {outs[1]}"
    )


def inputs_of(module: ir.Module, seed: int = 0, integers: int = 4) -> list[np.ndarray]:
    """Random arguments of the module's one function: normal floats, integers below `integers`."""
    rng = np.random.default_rng(seed)
    arrays = []
    for type_ in ir.FunctionType(ir.TypeAttr(module.body.operations[0].attributes["function_type"]).value).inputs:
        tensor = ir.RankedTensorType(type_)
        dtype = np.dtype(DTYPES[str(tensor.element_type)])
        if dtype == np.bool_:
            arrays.append(rng.random(tensor.shape) > 0.4)
        elif np.issubdtype(dtype, np.integer):
            arrays.append(rng.integers(0, integers, tensor.shape).astype(dtype))
        else:
            arrays.append(rng.standard_normal(tensor.shape).astype(np.float32).astype(dtype))
    return arrays


def assert_same(text: str, overrides: tuple[str, ...] = (), tolerance: float = 1e-5) -> tuple[str, ScheduleRecord]:
    """Schedules the kernel and compares both levels on random inputs, relative to the largest value; returns the
    tiles."""
    module = mlir.parse(text)
    tiles, record = Schedules(list(overrides)).schedule_kernel(module, get_target("sm_90a"))
    with mlir.context():
        arguments = inputs_of(module)
    name = ir.StringAttr(module.body.operations[0].attributes["sym_name"]).value
    expected, found = run_module(module, arguments, name), run_module(tiles, arguments, name)
    for e, f in zip(expected, found, strict=True):
        assert e.shape == f.shape and e.dtype == f.dtype
        if e.size:
            e, f = e.astype(np.float64), f.astype(np.float64)
            np.testing.assert_allclose(f, e, rtol=0, atol=tolerance * max(np.abs(e).max(), 1e-6))
    return str(tiles), record


def matmul(
    m: int, n: int, k: int, dtype: str = "f32", *, batch: int = 0, transposed: bool = True, prologue: bool = False,
    epilogue: bool = True, gates: bool = False, left: bool = False,
) -> str:  # fmt: skip
    """x [m,k] (`left`: [k,m]) times w [n,k] (or [k,n]): fill, contraction(s), and bias + residual; `gates`: two that are multiplied."""
    lead, b = (f"{batch}x", "b, ") if batch else ("", "")
    acc = {"f16": "f32", "bf16": "f32"}.get(dtype, dtype)
    x, w = (
        f"tensor<{lead}{f'{k}x{m}' if left else f'{m}x{k}'}x{dtype}>",
        f"tensor<{lead}{f'{n}x{k}' if transposed else f'{k}x{n}'}x{dtype}>",
    )
    c, r = f"tensor<{lead}{m}x{n}x{acc}>", f"tensor<{lead}{m}x{n}x{dtype}>"
    add, mul, zero = ("addf", "mulf", "0.0") if dtype[-3] != "i" and dtype[0] != "i" else ("addi", "muli", "0")
    widen = acc != dtype
    load = "".join(f"%e{i} = arith.extf %x{i} : {dtype} to {acc}\n    " for i in (0, 1)) if widen else ""
    a = ("%e0", "%e1") if widen else ("%x0", "%x1")
    mac = f"{load}%xy = arith.{mul} {a[0]}, {a[1]} : {acc}\n    %y = arith.{add} %o, %xy : {acc}"
    lines = [f"  %zero = arith.constant {zero} : {acc}", f"  %ec = tensor.empty() : {c}",
             f"  %f = linalg.fill ins(%zero : {acc}) outs(%ec : {c}) -> {c}"]  # fmt: skip
    source, rows = "%x", f"{b}k, m" if left else f"{b}m, k"
    if prologue:
        source = "%p"
        square = f"%y = arith.{mul} %x0, %x0 : {dtype}"
        tile = (x, rows)
        lines.append(f"  %ex = tensor.empty() : {x}")
        lines.append(generic("p", rows, [("%x", *tile)], ("%ex", *tile), square))
    for i in range(2 if gates else 1):
        operands = [(source, x, rows), (f"%w{i}", w, f"{b}n, k" if transposed else f"{b}k, n")]
        lines.append(generic(f"c{i}", f"{b}m, n, k", operands, ("%f", c, f"{b}m, n"), mac))
    arguments = {"x": x} | {f"w{i}": w for i in range(2 if gates else 1)} | {"bias": f"tensor<{n}x{dtype}>", "res": r}
    if gates:
        both = [("%c0", c, f"{b}m, n"), ("%c1", c, f"{b}m, n")]
        lines.append(generic("r", f"{b}m, n", both, ("%ec", c, f"{b}m, n"), f"%y = arith.{mul} %x0, %x1 : {acc}"))
        return kernel("matmul_0", "matmul", arguments, c, "\n".join(lines))
    if not epilogue:
        return kernel("matmul_0", "matmul", arguments, c, "\n".join(lines).replace("%c0 =", "%r ="))
    narrow = f"%t = arith.truncf %x0 : {acc} to {dtype}\n    " if widen else ""
    body = f"{narrow}%s = arith.{add} {'%t' if widen else '%x0'}, %x1 : {dtype}\n    %y = arith.{add} %s, %x2 : {dtype}"
    ins = [("%c0", c, f"{b}m, n"), ("%bias", f"tensor<{n}x{dtype}>", "n"), ("%res", r, f"{b}m, n")]
    lines += [f"  %er = tensor.empty() : {r}", generic("r", f"{b}m, n", ins, ("%er", r, f"{b}m, n"), body)]
    return kernel("matmul_0", "matmul", arguments, r, "\n".join(lines))


def norm(rows: int, length: int, dtype: str = "f32", lead: int = 1) -> str:
    """RMS norm of x + y over [lead, rows, length], which also returns the sum."""
    x, s = f"tensor<{lead}x{rows}x{length}x{dtype}>", f"tensor<{lead}x{rows}xf32>"
    widen = "" if dtype == "f32" else f"%e = arith.extf %x0 : {dtype} to f32\n    "
    v = "%x0" if dtype == "f32" else "%e"
    scale = f"{widen}%m = arith.mulf {v}, %x1 : f32\n    "
    scale += "%y = arith.addf %m, %x1 : f32" if dtype == "f32" else f"%y = arith.truncf %m : f32 to {dtype}"
    lines = [
        "  %zero = arith.constant 0.0 : f32", f"  %n = arith.constant {float(length)} : f32",
        f"  %ex = tensor.empty() : {x}", f"  %es = tensor.empty() : {s}",
        generic("r1", "a, b, c", [("%x", x, "a, b, c"), ("%z", x, "a, b, c")], ("%ex", x, "a, b, c"),
                f"%y = arith.addf %x0, %x1 : {dtype}"),
        f"  %f = linalg.fill ins(%zero : f32) outs(%es : {s}) -> {s}",
        generic("q", "a, b, c", [("%r1", x, "a, b, c")], ("%f", s, "a, b"),
                f"{widen}%m = arith.mulf {v}, {v} : f32\n    %y = arith.addf %o, %m : f32"),
        generic("k", "a, b", [("%q", s, "a, b")], ("%es", s, "a, b"),
                "%d = arith.divf %x0, %n : f32\n    %y = math.rsqrt %d : f32"),
        generic("r", "a, b, c", [("%r1", x, "a, b, c"), ("%k", s, "a, b")], ("%ex", x, "a, b, c"), scale),
    ]  # fmt: skip
    return kernel("reduction_0", "reduction", {"x": x, "z": x}, f"{x}, {x}", "\n".join(lines))


def attention(
    *, batch: int = 1, heads: tuple[int, int] = (2, 1), lengths: tuple[int, int] = (16, 16),
    dims: tuple[int, int] = (8, 8), dtype: str = "f32", causal: bool = False, window: int = 0, softcap: float = 0.0,
    mask: str = "", layouts: tuple[str, ...] = ("bhsd",) * 4, scale: float = 0.3, lse: bool = False,
) -> str:  # fmt: skip
    """One mlirc.attention; heads and lengths are (query, key), dims (head, value). `lse`: with its log-sum-exp."""
    q = {"b": batch, "h": heads[0], "s": lengths[0], "d": dims[0]}
    k = q | {"h": heads[1], "s": lengths[1]}
    sizes = [q, k, k | {"d": dims[1]}, q | {"d": dims[1]}]
    types = ["tensor<" + "x".join(str(s[c]) for c in lay) + f"x{dtype}>" for s, lay in zip(sizes, layouts, strict=True)]
    arguments = dict(zip("qkv", types[:3], strict=True)) | ({"mask": mask} if mask else {})
    listed = ", ".join(f"%{a}" for a in arguments)
    quoted = ", ".join(f'"{x}"' for x in layouts)
    attributes = (
        f"scale = {scale} : f64, causal = {str(causal).lower()}, window = {window} : i64, softcap = {softcap} : f64, "
        f"layouts = [{quoted}]"
    )
    results = types[3] + (f", tensor<{batch}x{heads[0]}x{lengths[0]}xf32>" if lse else "")
    call = f'"mlirc.attention"({listed}) {{{attributes}}} : ({", ".join(arguments.values())}) -> ({results})'
    return kernel("attention_0", "attention", arguments, results, f"  %r{', %r1' if lse else ''} = {call}")


def table_attention(*, lengths: tuple[int, int], heads: tuple[int, int], **options) -> str:
    """One mlirc.table_attention: what the table [Hq, Sq + Sk - 1] has for how far a key is from its query is added to
    the scores."""
    table = f"tensor<{heads[0]}x{sum(lengths) - 1}xf32>"
    lines = (
        "%0 = arith.subi %j, %i : index", f"%1 = arith.constant {lengths[0] - 1} : index",
        "%2 = arith.addi %0, %1 : index", f"%3 = tensor.extract %in0[%h, %2] : {table}",
        "%4 = arith.addf %score, %3 : f32", "return %4 : f32",
    )  # fmt: skip
    score = ", ".join(f'"{line}"' for line in lines)
    text = attention(lengths=lengths, heads=heads, mask=table, **options)
    return text.replace("mlirc.attention", "mlirc.table_attention").replace(
        "layouts =", f"score = [{score}], layouts ="
    )


def sort(rows: int, length: int, count: int, dtype: str = "f32") -> str:
    """The first elements of sorted rows, the largest first, and their places."""
    x, values, places = (f"tensor<{rows}x{n}x{t}>" for n, t in ((length, dtype), (count, dtype), (count, "i64")))
    body = f'  %r, %p = "mlirc.sort"(%x) {{descending = true}} : ({x}) -> ({values}, {places})\n'
    return (
        f"func.func private @sort_0(%x: {x}) -> ({values}, {places}) "
        f'attributes {{mlirc.kernel, mlirc.kind = "sort"}} {{\n{body}  return %r, %p : {values}, {places}\n}}\n'
    )


def scan(
    shape: tuple[int, ...], dim: int, dtype: str = "f32", combine: str = "addf", start: str = "0.0", kind: str = ""
) -> str:
    """A scan of a tensor along one dimension, of a kind of `mlirc.ir.scans`."""
    names = "ijkl"[: len(shape)]
    rest = [n for d, n in enumerate(names) if d != dim]
    x = f"tensor<{'x'.join(map(str, shape))}x{dtype}>"
    c = f"tensor<{'x'.join(str(n) for d, n in enumerate(shape) if d != dim)}x{dtype}>"
    maps = [f"affine_map<({', '.join(names)}) -> ({', '.join(m)})>" for m in (names, names, rest)]
    iterators = ", ".join('"reduction"' if d == dim else '"parallel"' for d in range(len(shape)))
    kind = kind and f' = "{kind}"'
    body = (
        f"  %start = arith.constant {start} : {dtype}\n  %e = tensor.empty() : {x}\n  %c = tensor.empty() : {c}\n"
        f"  %f = linalg.fill ins(%start : {dtype}) outs(%c : {c}) -> {c}\n"
        f"  %r, %end = linalg.generic {{indexing_maps = [{', '.join(maps)}], iterator_types = [{iterators}]}} "
        f"ins(%x : {x}) outs(%e, %f : {x}, {c}) attrs = {{mlirc.scan{kind}}} {{\n"
        f"  ^bb0(%in: {dtype}, %out: {dtype}, %left: {dtype}):\n    %y = arith.{combine} %left, %in : {dtype}\n"
        f"    linalg.yield %y, %y : {dtype}, {dtype}\n  }} -> ({x}, {c})"
    )
    return kernel("scan_0", "scan", {"x": x}, x, body)


def row_reduction(rows: int, columns: int, dtype: str, start: str, combine: str) -> str:
    x, y = f"tensor<{rows}x{columns}x{dtype}>", f"tensor<{rows}x{dtype}>"
    body = (
        f"  %start = arith.constant {start}{'' if dtype == 'i1' else f' : {dtype}'}\n  %e = tensor.empty() : {y}\n"
        f"  %f = linalg.fill ins(%start : {dtype}) outs(%e : {y}) -> {y}\n"
        + generic("r", "a, b", [("%x", x, "a, b")], ("%f", y, "a"), f"%y = arith.{combine} %x0, %o : {dtype}")
    )
    return kernel("reduction_0", "reduction", {"x": x}, y, body)


def recurrence(steps: int, batch: int, units: int, dtype: str = "f32") -> str:
    """An RNN's layer over all steps, h = tanh(x + h W^T): the last h, and those of all steps."""
    h, x, w, d = (
        f"tensor<{'x'.join(map(str, s))}x{t}>"
        for s, t in (
            ((batch, units), dtype), ((steps, batch, units), dtype), ((units, units), dtype), ((batch, units), "f32"),
        )
    )  # fmt: skip
    widen = "" if dtype == "f32" else f"%a = arith.extf %a0 : {dtype} to f32\n %b = arith.extf %b0 : {dtype} to f32"
    wide = "" if dtype == "f32" else f"%xf = arith.extf %x1 : {dtype} to f32"
    narrow = "" if dtype == "f32" else f"%n = arith.truncf %t1 : f32 to {dtype}"
    a, b, one, new = ("%a", "%b", "%x1", "%t1") if dtype == "f32" else ("%a0", "%b0", "%xf", "%n")
    return f"""
#id = affine_map<(b, u) -> (b, u)>
func.func private @recurrence_0(%h0: {h}, %xs: {x}, %w: {w}) -> ({h}, {x})
    attributes {{mlirc.kernel, mlirc.kind = "recurrence"}} {{
  %zero = arith.constant 0.0 : f32
  %first = arith.constant 0 : index
  %one = arith.constant 1 : index
  %count = arith.constant {steps} : index
  %ys = tensor.empty() : {x}
  %r:2 = scf.for %t = %first to %count step %one iter_args(%h = %h0, %y = %ys) -> ({h}, {x}) {{
    %x = tensor.extract_slice %xs[%t, 0, 0] [1, {batch}, {units}] [1, 1, 1] : {x} to {h}
    %e = tensor.empty() : {d}
    %f = linalg.fill ins(%zero : f32) outs(%e : {d}) -> {d}
    %d = linalg.generic {{indexing_maps = [affine_map<(b, n, k) -> (b, k)>, affine_map<(b, n, k) -> (n, k)>,
        affine_map<(b, n, k) -> (b, n)>], iterator_types = ["parallel", "parallel", "reduction"]}}
        ins(%h, %w : {h}, {w}) outs(%f : {d}) {{
    ^bb0({a}: {dtype}, {b}: {dtype}, %o: f32):
      {widen}
      %m = arith.mulf %a, %b : f32
      %s = arith.addf %o, %m : f32
      linalg.yield %s : f32
    }} -> {d}
    %g = tensor.empty() : {h}
    %n0 = linalg.generic {{indexing_maps = [#id, #id, #id], iterator_types = ["parallel", "parallel"]}}
        ins(%x, %d : {h}, {d}) outs(%g : {h}) {{
    ^bb0(%x1: {dtype}, %d1: f32, %o: {dtype}):
      {wide}
      %s1 = arith.addf {one}, %d1 : f32
      %t1 = math.tanh %s1 : f32
      {narrow}
      linalg.yield {new} : {dtype}
    }} -> {h}
    %z = tensor.insert_slice %n0 into %y[%t, 0, 0] [1, {batch}, {units}] [1, 1, 1] : {h} into {x}
    scf.yield %n0, %z : {h}, {x}
  }}
  return %r#0, %r#1 : {h}, {x}
}}
"""
