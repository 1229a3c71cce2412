"""Runs the launches of the generic path on the CPU: its gpu.funcs as functions, called once per block and thread.

Good for kernels without barriers or shared memory, which is all that `mlirc-loops` makes.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Sequence

import numpy as np

from mlirc import mlir
from mlirc.host.jit import descriptor
from mlirc.mlir import execution_engine, ir

_LOWER = (
    "canonicalize,func.func(math-extend-to-supported-types,"
    "arith-emulate-unsupported-floats{source-types=bf16,f16 target-type=f32}),"
    "convert-scf-to-cf,memref-expand,expand-strided-metadata,lower-affine,arith-expand{include-bf16=1},"
    "convert-math-to-llvm,convert-math-to-libm,convert-vector-to-llvm,convert-index-to-llvm,finalize-memref-to-llvm,"
    "convert-func-to-llvm,convert-arith-to-llvm,convert-cf-to-llvm,convert-ub-to-llvm,reconcile-unrealized-casts"
)


def to_host(module: ir.Module) -> ir.Module:
    """A `gpu`-level module of `mlirc-loops` as functions and loops."""
    parts = []
    for view in module.body.operations:
        inner = view.operation.regions[0].blocks[0] if view.operation.name == "gpu.module" else [view]
        parts += [str(op) for op in (inner if isinstance(inner, list) else inner.operations)]
    text = "\n".join(parts)
    text = re.sub(
        r"gpu\.func @(\w+)\((.*?)\) kernel attributes \{.*?\} \{",
        lambda m: f"func.func @{m[1]}({m[2] + ', ' if m[2] else ''}%bid: index, %tid: index) {{",
        text,
    )
    text = re.sub(r"(%\w+) = gpu\.block_id x", r"\1 = arith.maxsi %bid, %bid : index", text)
    text = re.sub(r"(%\w+) = gpu\.thread_id x", r"\1 = arith.maxsi %tid, %tid : index", text)
    text = text.replace("gpu.return", "return")
    text = re.sub(
        r"gpu\.launch_func\s+@\w+::@(\w+) blocks in \((%\w+), %\w+, %\w+\) "
        r"threads in \((%\w+), %\w+, %\w+\)\s+args\((.*)\)",
        _launch,
        text,
    )
    whole = str(module)
    resources = whole[whole.index("{-#") :] if "{-#" in whole else ""
    return mlir.parse(f"module {{\n{text}\n}}\n{resources}", "emulated kernel")


def _launch(match: re.Match) -> str:
    symbol, blocks, threads, passed = match.groups()
    values = [item.split(":")[0].strip() for item in re.findall(r"%\w+ : [^%]+", passed)]
    types = [item.split(":", 1)[1].strip().rstrip(",") for item in re.findall(r"%\w+ : [^%]+", passed)]
    operands = ", ".join([*values, "%b", "%t"])
    signature = ", ".join([*types, "index", "index"])
    zero, one = f"%zero_{symbol}", f"%one_{symbol}"
    return (
        f"{zero} = arith.constant 0 : index\n{one} = arith.constant 1 : index\n"
        f"scf.for %b = {zero} to {blocks} step {one} {{\nscf.for %t = {zero} to {threads} step {one} {{\n"
        f"func.call @{symbol}({operands}) : ({signature}) -> ()\n}}\n}}"
    )


def run_launches(module: ir.Module, name: str, inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray]) -> None:
    """Runs the host function `name` of a `gpu`-level module; fills `outputs` in place."""
    host = to_host(module)
    for op in host.body.operations:
        if ir.StringAttr(op.attributes["sym_name"]).value == name:
            if "sym_visibility" in op.attributes:
                del op.attributes["sym_visibility"]
            with mlir.context():
                op.attributes["llvm.emit_c_interface"] = ir.UnitAttr.get()
    mlir.run_passes(host, _LOWER)
    engine = execution_engine.ExecutionEngine(host, opt_level=2)
    descriptors = [descriptor(a) for a in [*inputs, *outputs]]
    engine.invoke(name, *[ctypes.pointer(ctypes.c_void_p(ctypes.addressof(d))) for d in descriptors])
