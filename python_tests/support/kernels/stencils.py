"""Depthwise convolutions of tensors that are stored channels last, at the `linalg` level."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from mlirc import mlir
from mlirc.ir import levels
from mlirc.mlir import ir
from mlirc.scripts.graph import to_kernels
from mlirc.targets import get_target
from support.kernels.check import run_tiles
from support.kernels.payloads import DTYPES


@dataclass(frozen=True)
class Depthwise:
    """Of an image [n, h, w, c], padded by half a window of taps [k, k, c]."""

    n: int
    h: int
    w: int
    c: int
    k: int = 3
    stride: int = 1
    dtype: str = "bf16"

    @property
    def out(self) -> tuple[int, int, int, int]:
        h, w = ((size + 2 * (self.k // 2) - self.k) // self.stride + 1 for size in (self.h, self.w))
        return self.n, h, w, self.c

    def graph(self) -> ir.Module:
        """The convolution with f32 sums, which are rounded to the dtype."""
        low, d, kinds = self.k // 2, self.dtype, ", ".join(['"parallel"'] * 4)
        image = f"tensor<{self.n}x{self.h}x{self.w}x{self.c}x{d}>"
        around = f"tensor<{self.n}x{self.h + 2 * low}x{self.w + 2 * low}x{self.c}x{d}>"
        taps, shape = f"tensor<{self.k}x{self.k}x{self.c}x{d}>", "x".join(map(str, self.out))
        sums, result = f"tensor<{shape}xf32>", f"tensor<{shape}x{d}>"
        same = "affine_map<(a, b, c, d) -> (a, b, c, d)>"
        narrow = "linalg.yield %a : f32" if d == "f32" else f"%t = arith.truncf %a : f32 to {d}\n linalg.yield %t : {d}"
        return mlir.parse(f"""
        func.func @main(%x: {image}, %w: {taps} {{mlirc.kind = "weight"}}) -> {result} {{
          %zero = arith.constant 0.0 : {d}
          %none = arith.constant 0.0 : f32
          %pad = tensor.pad %x low[0, {low}, {low}, 0] high[0, {low}, {low}, 0] {{
          ^bb0(%i: index, %j: index, %k: index, %l: index):
            tensor.yield %zero : {d}
          }} : {image} to {around}
          %e = tensor.empty() : {sums}
          %f = linalg.fill ins(%none : f32) outs(%e : {sums}) -> {sums}
          %y = linalg.depthwise_conv_2d_nhwc_hwc
              {{dilations = dense<1> : vector<2xi64>, strides = dense<{self.stride}> : vector<2xi64>}}
              ins(%pad, %w : {around}, {taps}) outs(%f : {sums}) -> {sums}
          %o = tensor.empty() : {result}
          %r = linalg.generic {{indexing_maps = [{same}, {same}], iterator_types = [{kinds}]}}
              ins(%y : {sums}) outs(%o : {result}) {{
          ^bb0(%a: f32, %b: {d}):
            {narrow}
          }} -> {result}
          return %r : {result}
        }}""")

    def kernel(self) -> ir.Module:
        """The module of its one kernel."""
        module = to_kernels(self.graph(), get_target("sm_90a"))
        (name,) = levels.kernels(module)
        return levels.isolate(module, name)

    def inputs(self, seed: int = 0) -> list[np.ndarray]:
        """Image and weights."""
        rng, dtype = np.random.default_rng(seed), np.dtype(DTYPES[self.dtype])
        shapes = (self.n, self.h, self.w, self.c), (self.k, self.k, self.c)
        return [rng.standard_normal(s).astype(np.float32).astype(dtype) for s in shapes]

    def expected(self, x: np.ndarray, w: np.ndarray) -> np.ndarray:
        """In FP64, channels last."""
        image = torch.from_numpy(x.astype(np.float64)).permute(0, 3, 1, 2)
        taps = torch.from_numpy(w.astype(np.float64)).reshape(self.k, self.k, self.c).permute(2, 0, 1)[:, None]
        y = torch.nn.functional.conv2d(image, taps, stride=self.stride, padding=self.k // 2, groups=self.c)
        return y.permute(0, 2, 3, 1).numpy()

    def run(self, tiles: ir.Module, inputs: list[np.ndarray], seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
        """What a kernel of it makes on the host device, without findings, and what is right."""
        with mlir.context():
            type_ = ir.FunctionType(ir.TypeAttr(tiles.body.operations[0].attributes["function_type"]).value)
            shapes = [tuple(ir.RankedTensorType(t).shape) for t in type_.inputs]  # without dimensions of one element
        (found,), report = run_tiles(tiles, [x.reshape(s) for x, s in zip(inputs, shapes, strict=True)], seed)
        assert report.ok, "\n".join(map(str, report.findings))
        return found.astype(np.float64).reshape(self.out), self.expected(*inputs)
