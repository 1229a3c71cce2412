"""Values that are in registers: constants, undefined values, and structs, which kernels with Hopper's instructions have
accumulators in. A struct of equal numbers is an array with one more dimension; others are tuples."""

from __future__ import annotations

import numpy as np

from mlirc.device.addresses import struct_fields
from mlirc.device.attributes import integers
from mlirc.device.declare import pure, stateful
from mlirc.device.inline_asm import in_place
from mlirc.device.machine import State
from mlirc.device.memory import POISON
from mlirc.device.numbers import constant_array, dtype_of, inserted, vector_shape
from mlirc.device.translate import Translator
from mlirc.mlir import ir


@pure("llvm.mlir.constant")
def _constant(tr: Translator, op):
    attr = op.attributes["value"]
    value = constant_array(attr, op.results[0].type)
    if isinstance(attr, ir.IntegerAttr):
        tr.constants[op.results[0]] = attr.value
    return lambda: value


@pure("ub.poison", "llvm.mlir.undef", "llvm.mlir.poison", "llvm.mlir.zero")
def _undefined(tr: Translator, op):
    t = op.results[0].type
    if str(t).startswith("!llvm.struct"):
        count, dtype = struct_fields(t)
        shape: tuple[int, ...] = (count,)
    else:
        shape, dtype = vector_shape(t), dtype_of(t)
    byte = 0 if op.name == "llvm.mlir.zero" else POISON
    raw = np.full((1, 1, *shape, dtype.itemsize), byte, np.uint8)
    fill = raw[..., 0] != 0 if dtype == np.bool_ else raw.view(dtype)[..., 0]
    return lambda: fill


@pure("llvm.insertvalue")
def _insert(tr: Translator, op):
    (at,) = integers(op, "position")
    put = inserted((slice(None), slice(None), at))
    return lambda struct, value: put(value, struct)


@stateful("llvm.extractvalue")
def _extract(tr: Translator, op):
    (at,) = integers(op, "position")
    uses = list(op.results[0].uses)
    stays = bool(uses) and all(in_place(use) for use in uses)

    def extract(s: State, value):
        if isinstance(value, tuple):
            return value[at]
        if stays:  # all of it, see inline_assembly.py
            return value
        if s.m.engine is not None:
            s.m.engine.check_accumulator(s, value, op)
        return value[:, :, at]

    return extract
