"""The sums of tensor_cores.py as native code: a function in MLIR, compiled for this CPU when it is first called."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable

import numpy as np

from mlirc import mlir
from mlirc.host.jit import descriptor
from mlirc.mlir import execution_engine

WIDTH = 8  # columns at a time
NOTHING = -4096  # the exponent of a zero: far below all others

# Of every element's terms the largest exponent, then their sum in units of 2^(largest - bits), each cut to whole ones.
_TEXT = f"""
!f = memref<?x?x?xf32>
!i = memref<?x?x?xi32>
func.func @sums(%a: !f, %b: !f, %c: !f, %ea: !i, %eb: !i, %ec: !i, %out: memref<?x?x?xf64>, %bits: i32)
    attributes {{llvm.emit_c_interface}} {{
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %c2 = arith.constant 2 : index
  %width = arith.constant {WIDTH} : index
  %none = arith.constant dense<{NOTHING // 2}> : vector<{WIDTH}xi32>
  %bias = arith.constant dense<1023> : vector<{WIDTH}xi64>
  %place = arith.constant dense<52> : vector<{WIDTH}xi64>
  %all = vector.broadcast %bits : i32 to vector<{WIDTH}xi32>
  %tiles = memref.dim %c, %c0 : !f
  %rows = memref.dim %c, %c1 : !f
  %columns = memref.dim %c, %c2 : !f
  %depth = memref.dim %a, %c2 : !f
  scf.for %t = %c0 to %tiles step %c1 {{
    scf.for %i = %c0 to %rows step %c1 {{
      scf.for %j = %c0 to %columns step %width {{
        %start = vector.load %ec[%t, %i, %j] : !i, vector<{WIDTH}xi32>
        %top = scf.for %k = %c0 to %depth step %c1 iter_args(%most = %start) -> vector<{WIDTH}xi32> {{
          %x = memref.load %ea[%t, %i, %k] : !i
          %xs = vector.broadcast %x : i32 to vector<{WIDTH}xi32>
          %y = vector.load %eb[%t, %k, %j] : !i, vector<{WIDTH}xi32>
          %xy = arith.addi %xs, %y : vector<{WIDTH}xi32>
          %more = arith.maxsi %most, %xy : vector<{WIDTH}xi32>
          scf.yield %more : vector<{WIDTH}xi32>
        }}
        %some = arith.cmpi sgt, %top, %none : vector<{WIDTH}xi32>
        %unit = arith.select %some, %top, %all : vector<{WIDTH}xi1>, vector<{WIDTH}xi32>
        %shift = arith.subi %all, %unit : vector<{WIDTH}xi32>
        %wide = arith.extsi %shift : vector<{WIDTH}xi32> to vector<{WIDTH}xi64>
        %up = arith.addi %bias, %wide : vector<{WIDTH}xi64>
        %upbits = arith.shli %up, %place : vector<{WIDTH}xi64>
        %scale = arith.bitcast %upbits : vector<{WIDTH}xi64> to vector<{WIDTH}xf64>
        %down = arith.subi %bias, %wide : vector<{WIDTH}xi64>
        %downbits = arith.shli %down, %place : vector<{WIDTH}xi64>
        %back = arith.bitcast %downbits : vector<{WIDTH}xi64> to vector<{WIDTH}xf64>
        %cs = vector.load %c[%t, %i, %j] : !f, vector<{WIDTH}xf32>
        %c64 = arith.extf %cs : vector<{WIDTH}xf32> to vector<{WIDTH}xf64>
        %scaled = arith.mulf %c64, %scale : vector<{WIDTH}xf64>
        %first = math.trunc %scaled : vector<{WIDTH}xf64>
        %total = scf.for %k = %c0 to %depth step %c1 iter_args(%sum = %first) -> vector<{WIDTH}xf64> {{
          %x = memref.load %a[%t, %i, %k] : !f
          %x64 = arith.extf %x : f32 to f64
          %xs = vector.broadcast %x64 : f64 to vector<{WIDTH}xf64>
          %y = vector.load %b[%t, %k, %j] : !f, vector<{WIDTH}xf32>
          %ys = arith.extf %y : vector<{WIDTH}xf32> to vector<{WIDTH}xf64>
          %xy = arith.mulf %xs, %ys : vector<{WIDTH}xf64>
          %term = arith.mulf %xy, %scale : vector<{WIDTH}xf64>
          %cut = math.trunc %term : vector<{WIDTH}xf64>
          %new = arith.addf %sum, %cut : vector<{WIDTH}xf64>
          scf.yield %new : vector<{WIDTH}xf64>
        }}
        %result = arith.mulf %total, %back : vector<{WIDTH}xf64>
        vector.store %result, %out[%t, %i, %j] : memref<?x?x?xf64>, vector<{WIDTH}xf64>
      }}
    }}
  }}
  return
}}
"""
_PASSES = (
    "convert-scf-to-cf,convert-vector-to-llvm,convert-math-to-llvm,finalize-memref-to-llvm,convert-func-to-llvm,"
    "convert-arith-to-llvm,convert-cf-to-llvm,reconcile-unrealized-casts"
)


@functools.cache
def _native() -> tuple[execution_engine.ExecutionEngine, Callable]:
    module = mlir.parse(_TEXT, "sums of tensor cores")
    mlir.run_passes(module, _PASSES)
    engine = execution_engine.ExecutionEngine(module, opt_level=3)
    return engine, engine.lookup("sums")


def sums(a: np.ndarray, b: np.ndarray, c: np.ndarray, exponents: tuple[np.ndarray, ...], bits: int) -> np.ndarray:
    """a [tiles, m, k] times b [tiles, k, n] plus c [tiles, m, n], f32, n a multiple of 8; `exponents` (i32) of each in
    its shape. Every term is cut `bits` behind the binary point of the element's largest: f64, exact."""
    out = np.empty(c.shape)
    arrays = [np.ascontiguousarray(x) for x in (a, b, c, *exponents)] + [out]
    descriptors = [descriptor(x) for x in arrays]
    pointers = [ctypes.c_void_p(ctypes.addressof(d)) for d in descriptors]
    number = ctypes.c_int32(bits)
    packed = (ctypes.c_void_p * (len(arrays) + 1))(*map(ctypes.addressof, pointers), ctypes.addressof(number))
    _native()[1](packed)
    return out
