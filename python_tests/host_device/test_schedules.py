"""Every shipped schedule at small and odd shapes, on the host device and on the GPU alike, against FP64 within the gates
for f32, f16 and bf16."""

from __future__ import annotations

import re

import numpy as np
import pytest

from mlirc import mlir
from mlirc.host import run_module
from mlirc.mlir import ir
from support.kernels.mutant_cases import add_transposed, column_sums, lowered
from support.kernels.payloads import attention, matmul, norm

GATES = {"f32": 1e-5, "f16": 2e-3, "bf16": 1e-2}  # relative Frobenius error
ODD = [(1, 1, 1), (7, 13, 5), (16, 16, 16), (33, 31, 17), (65, 63, 129), (1, 40, 66)]

CASES = [
    *[("matmul", dict(m=m, n=n, k=k), t, "") for m, n, k in ODD for t in GATES],
    ("matmul", dict(m=31, n=33, k=65, batch=3), "bf16", ""),
    ("matmul", dict(m=31, n=33, k=65, transposed=False, prologue=True), "f32", ""),
    ("matmul", dict(m=31, n=34, k=64, gates=True), "bf16", ""),
    ("matmul", dict(m=127, n=65, k=130), "bf16", "matmul:mma=wgmma"),
    ("matmul", dict(m=129, n=63, k=200), "f16", "matmul:mma=wgmma"),
    *[("norm", dict(rows=r, length=n), t, "") for r, n in [(1, 2), (3, 31), (5, 257), (2, 1031)] for t in GATES],
    *[("attention", dict(lengths=s, dims=(16, 16), causal=c), t, "")
      for s, c in [((1, 1), True), ((1, 33), False), ((17, 17), True), ((31, 65), True)] for t in GATES],
    ("attention", dict(lengths=(40, 70), dims=(20, 8), heads=(4, 2), window=9, softcap=3.0, causal=True), "f32", ""),
    *[("transposed", dict(m=m, n=n), "f32", "") for m, n in [(1, 1), (13, 37), (64, 33)]],
    *[("column_sums", dict(m=m, n=n), "f32", "generic_0=generic") for m, n in [(1, 1), (67, 5), (129, 31)]],
]  # fmt: skip
PAYLOADS = {"matmul": matmul, "norm": norm, "attention": attention}


def payload(kind: str, options: dict, dtype: str) -> str:
    if kind == "transposed":
        return add_transposed(**options)
    if kind == "column_sums":
        return column_sums(**options)
    return PAYLOADS[kind](dtype=dtype, **options)


def in_f64(text: str, dtype: str) -> str:
    """The same computation with every float an f64."""
    text = text.replace(dtype, "f64").replace("f32", "f64")
    return re.sub(r"arith\.(?:extf|truncf) (%\w+) : f64 to f64", r"arith.maximumf \1, \1 : f64", text)  # leaves it


@pytest.mark.parametrize("kind, options, dtype, knobs", CASES)
def test_schedule(run_kernel, kind, options, dtype, knobs):
    text, inputs, specs = lowered(payload(kind, options, dtype), knobs)
    results = [np.full(spec.shape, np.nan if spec.dtype.kind != "i" else 0).astype(spec.dtype) for spec in specs]
    kept = [a.copy() for a in inputs]
    run_kernel(text, inputs, results)
    for a, b in zip(inputs, kept, strict=True):
        assert a.tobytes() == b.tobytes()
    reference = mlir.parse(in_f64(payload(kind, options, dtype), dtype))
    name = ir.StringAttr(reference.body.operations[0].attributes["sym_name"]).value
    expected = run_module(reference, [a.astype(np.float64) for a in inputs], name)
    for found, right in zip(results, expected, strict=True):
        error = np.linalg.norm(found.astype(np.float64) - right)
        assert error <= GATES[dtype] * max(np.linalg.norm(right), 1e-30)
