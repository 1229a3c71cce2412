"""affine on arrays."""

from __future__ import annotations

import functools

import numpy as np

from mlirc.device.addresses import fetch, indices_of
from mlirc.device.declare import rule
from mlirc.device.integer_checks import wrapped
from mlirc.device.machine import State
from mlirc.device.translate import Translator
from mlirc.ir.affine import affine_value
from mlirc.mlir import ir


@rule("affine.apply", "affine.min", "affine.max")
def _affine(tr: Translator, op):
    m = ir.AffineMapAttr(op.attributes["map"]).value
    operands, out = indices_of(tr, op.operands), tr.reg(op.results[0])
    exprs, n = list(m.results), m.n_dims
    choose = np.minimum if op.name == "affine.min" else np.maximum

    def step(s: State) -> None:
        values = fetch(s.r, operands)
        total = functools.reduce(choose, [affine_value(e, values[:n], values[n:]) for e in exprs])
        total = total if isinstance(total, np.ndarray) and total.ndim == 2 else np.full((1, 1), int(total))
        s.r[out] = wrapped(s, total, op) if tr.index_bits == 32 else total

    return step
