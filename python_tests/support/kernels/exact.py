"""Kernels whose every element a GPU computes to the last bit as the host device does: arithmetic that is rounded once,
on numbers of all kinds, products and sums contracted where `mlirc-contract` says so."""

from __future__ import annotations

import ml_dtypes
import numpy as np

from mlirc import mlir
from mlirc.mlir import ir
from mlirc.passes.contract import contract

DTYPES = {"f16": np.float16, "bf16": ml_dtypes.bfloat16, "f32": np.float32, "f64": np.float64, "i32": np.int32,
          "i64": np.int64}  # fmt: skip
FLOATS = ("f16", "bf16", "f32", "f64")
COUNT = 1021

# What is computed from %x, %y, %z of type T, one result a line; $ is a fresh name.
SUMS = (
    "$m = arith.mulf %x, %y : T; $r = arith.addf $m, %z : T",
    "$m = arith.mulf %x, %y : T; $r = arith.addf %z, $m : T",
    "$m = arith.mulf %x, %y : T; $r = arith.subf $m, %z : T",
    "$m = arith.mulf %x, %y : T; $r = arith.subf %z, $m : T",
    "$m = arith.mulf %x, %y : T; $n = arith.negf $m : T; $r = arith.addf $n, %z : T",
    "$m = arith.mulf %x, %y : T; $n = arith.mulf %z, %y : T; $r = arith.addf $m, $n : T",
    "$m = arith.mulf %x, %y : T; $n = arith.mulf %z, %y : T; $r = arith.subf $m, $n : T",
    "$m = arith.mulf %x, %y : T; $a = arith.addf $m, %z : T; $r = arith.subf $a, $m : T",  # used twice
    "$m = arith.mulf %x, %y : T; $r = arith.subf $m, $m : T",
    "$c = arith.constant 0.3 : T; $m = arith.mulf %x, $c : T; $r = arith.subf %z, $m : T",
)
SINGLE = (
    "$r = arith.addf %x, %y : T", "$r = arith.subf %x, %y : T", "$r = arith.mulf %x, %y : T",
    "$r = arith.divf %x, %y : T", "$r = math.sqrt %x : T", "$r = math.fma %x, %y, %z : T", "$r = arith.negf %x : T",
    "$r = arith.maximumf %x, %y : T", "$r = arith.minimumf %x, %y : T", "$r = arith.maxnumf %x, %y : T",
    "$r = arith.minnumf %x, %y : T", "$r = math.absf %x : T", "$r = math.floor %x : T", "$r = math.ceil %x : T",
    "$r = math.trunc %x : T", "$r = math.roundeven %x : T", "$r = math.round %x : T",
)  # fmt: skip

REDUCTIONS = tuple(
    f"$v = vector.from_elements %x, %y, %z : vector<3xT>; $r = vector.reduction <{kind}>, $v{more} : vector<3xT> into T"
    for kind in ("add", "mul", "maximumf", "minnumf")
    for more in ("", ", %y")
)


def casts(t: str) -> tuple[str, ...]:
    """To t from the other types, and back to t."""
    out = []
    for other in DTYPES:
        if other == t:
            continue
        if other.startswith("i"):
            out.append(f"$r = arith.sitofp %{other} : {other} to T")
            out.append(f"$r = arith.uitofp %{other} : {other} to T")
            continue
        narrower = np.dtype(DTYPES[other]).itemsize < np.dtype(DTYPES[t]).itemsize
        if narrower:
            out.append(f"$n = arith.truncf %x : T to {other}; $r = arith.extf $n : {other} to T")
    return tuple(out)


CASES = {
    f"{name}_{t}": (t, lines)
    for t in FLOATS
    for name, lines in (("sums", SUMS), ("single", SINGLE), ("casts", casts(t)), ("reductions", REDUCTIONS))
}


def text_of(t: str, lines: tuple[str, ...], symbol: str = "exact") -> str:
    """The `gpu` level of a kernel, @symbol, that writes a row of its result [lines, COUNT] for each of the lines."""
    inputs = {"x": t, "y": t, "z": t, "i32": "i32", "i64": "i64"}
    out = f"memref<{len(lines)}x{COUNT}x{t}>"
    types = [f"memref<{COUNT}x{v}>" for v in inputs.values()]
    body = [f"        %{n} = memref.load %a_{n}[%g] : memref<{COUNT}x{v}>" for n, v in inputs.items()]
    for k, line in enumerate(lines):
        for part in line.replace("$", f"%v{k}_").replace("T", t).split("; "):
            body.append(f"        {part}")
        body.append(f"        %k{k} = arith.constant {k} : index")
        body.append(f"        memref.store %v{k}_r, %out[%k{k}, %g] : {out}")
    arguments = [*(f"%a_{n}: {u}" for n, u in zip(inputs, types, strict=True)), f"%out: {out}"]
    given = ", ".join(f"{a.split(':')[0]} :{a.split(':')[1]}" for a in arguments)
    return f"""
module attributes {{gpu.container_module}} {{
  gpu.module @{symbol}_gpu {{
    gpu.func @{symbol}_0({", ".join(arguments)}) kernel attributes {{known_block_size = array<i32: 128, 1, 1>}} {{
      %t = gpu.thread_id x
      %b = gpu.block_id x
      %c128 = arith.constant 128 : index
      %n = arith.constant {COUNT} : index
      %first = arith.muli %b, %c128 : index
      %g = arith.addi %first, %t : index
      %inside = arith.cmpi ult, %g, %n : index
      scf.if %inside {{
{chr(10).join(body)}
      }}
      gpu.return
    }}
  }}
  func.func @{symbol}({", ".join(arguments)}) {{
    %c1 = arith.constant 1 : index
    %c8 = arith.constant 8 : index
    %c128 = arith.constant 128 : index
    gpu.launch_func @{symbol}_gpu::@{symbol}_0 blocks in (%c8, %c1, %c1) threads in (%c128, %c1, %c1)
      args({given})
    return
  }}
}}
"""


def numbers(t: str, seed: int) -> np.ndarray:
    """COUNT numbers: of any bits, of like magnitude, near halves, and special ones; no NaN with a payload matters."""
    rng, dtype = np.random.default_rng(seed), np.dtype(DTYPES[t])
    raw = rng.integers(0, 1 << 8 * dtype.itemsize, COUNT, dtype=f"u{dtype.itemsize}").view(dtype)
    if dtype.kind == "i":
        return raw >> rng.integers(0, 8 * dtype.itemsize - 1, COUNT).astype(dtype)
    plain = rng.standard_normal(COUNT).astype(dtype)
    halves = (rng.integers(-64, 64, COUNT) / 2).astype(dtype)
    special = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1.0, -1.0], dtype=np.float64).astype(dtype)
    chosen = rng.integers(0, 8, COUNT)
    with np.errstate(all="ignore"):
        found = np.where(chosen < 2, raw, np.where(chosen < 6, plain, np.where(chosen < 7, halves, plain)))
    at = rng.integers(0, COUNT, 120)
    found[at] = special[rng.integers(0, len(special), 120)]
    return found


def case(name: str, symbol: str = "exact") -> tuple[ir.Module, list[np.ndarray], np.ndarray]:
    """The module of a case, contracted; its inputs; room for its results."""
    t, lines = CASES[name]
    module = mlir.parse(text_of(t, lines, symbol))
    with mlir.context():
        contract(module.operation, everywhere=True)
    inputs = [numbers(v, seed) for seed, v in enumerate((t, t, t, "i32", "i64"))]
    return module, inputs, np.zeros((len(lines), COUNT), DTYPES[t])
