"""Convolutions at the `kernels` level: a GEMM over the windows of an image [N, *spatial, C], with bias and ReLU."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import numpy as np
import torch

from mlirc import mlir
from mlirc.dialects.windows import Windows
from mlirc.mlir import ir
from mlirc.passes.loops.windows import expand_im2col
from support.kernels.payloads import DTYPES, generic, kernel

BYTES = {"f32": 4, "f16": 2, "bf16": 2, "f8E4M3FN": 1}


@dataclass(frozen=True)
class Convolution:
    """Of an image of so many images, spatial extents and channels (of 8-bit floats with a result of bf16); `channels` of a tap (0: whole rows of 128 bytes)."""

    n: int
    image: tuple[int, ...]
    c: int
    co: int
    kernel: tuple[int, ...]
    stride: int = 1
    pad: int = 0
    dilation: int = 1
    dtype: str = "bf16"
    channels: int = 0

    @property
    def windows(self) -> Windows:
        """The windows, padded alike on all sides."""
        reach = [(k - 1) * self.dilation + 1 for k in self.kernel]
        out = [(n + 2 * self.pad - r) // self.stride + 1 for n, r in zip(self.image, reach, strict=True)]
        row = 128 // BYTES[self.dtype]
        each = [(x,) * len(self.kernel) for x in (self.stride, self.dilation, self.pad)]
        return Windows(self.kernel, tuple(out), *each, self.channels or -(-self.c // row) * row)

    def payload(self) -> ir.Module:
        """The kernel's module."""
        w, dtype = self.windows, self.dtype
        m, k = w.shape(self.n)
        out = dtype if BYTES[dtype] > 1 else "bf16"
        x = f"tensor<{'x'.join(map(str, (self.n, *self.image, self.c)))}x{dtype}>"
        a, weights = (f"tensor<{rows}x{k}x{dtype}>" for rows in (m, self.co))
        sums, result = f"tensor<{m}x{self.co}xf32>", f"tensor<{m}x{self.co}x{out}>"
        widen = "" if dtype == "f32" else "".join(f"%e{i} = arith.extf %x{i} : {dtype} to f32\n    " for i in (0, 1))
        left, right = ("%x0", "%x1") if dtype == "f32" else ("%e0", "%e1")
        multiply = f"{widen}%xy = arith.mulf {left}, {right} : f32\n    %y = arith.addf %o, %xy : f32"
        positive = "%s = arith.addf %x0, %x1 : f32\n    %y{} = arith.maximumf %s, %zero : f32"
        narrow = f"\n    %y = arith.truncf %yw : f32 to {out}"
        epilogue = positive.format("") if dtype == "f32" else positive.format("w") + narrow
        with mlir.context():
            attribute = str(w.attribute())
        lines = [
            f'  %a = "mlirc.im2col"(%x) {{mlirc.gather_windows = {attribute}}} : ({x}) -> {a}',
            "  %zero = arith.constant 0.0 : f32", f"  %ec = tensor.empty() : {sums}",
            f"  %f = linalg.fill ins(%zero : f32) outs(%ec : {sums}) -> {sums}",
            generic("c", "m, n, k", [("%a", a, "m, k"), ("%w", weights, "n, k")], ("%f", sums, "m, n"), multiply),
            f"  %er = tensor.empty() : {result}",
            generic("r", "m, n", [("%c", sums, "m, n"), ("%b", f"tensor<{self.co}xf32>", "n")],
                    ("%er", result, "m, n"), epilogue),
        ]  # fmt: skip
        arguments = {"x": x, "w": weights, "b": f"tensor<{self.co}xf32>"}
        module = mlir.parse(kernel("matmul_0", "matmul", arguments, result, "\n".join(lines)))
        with mlir.context(), ir.Location.unknown():
            expand_im2col(module)
        return module

    def inputs(self, seed: int = 0) -> list[np.ndarray]:
        """Image, weights [Co, K] (zeros beyond the channels) and bias, drawn anew for each seed."""
        rng, w = np.random.default_rng(seed), self.windows
        dtype = np.dtype(DTYPES[self.dtype])
        x = rng.standard_normal((self.n, *self.image, self.c)).astype(np.float32).astype(dtype)
        weights = np.zeros((self.co, w.taps, w.channels), np.float32)
        weights[..., : self.c] = rng.standard_normal((self.co, w.taps, self.c))
        return [x, weights.reshape(self.co, -1).astype(dtype), rng.standard_normal(self.co).astype(np.float32)]

    def expected(self, x: np.ndarray, weights: np.ndarray, bias: np.ndarray) -> np.ndarray:
        """PyTorch's result in FP64, [N * pixels, Co]."""
        w = self.windows
        image = torch.from_numpy(np.moveaxis(x, -1, 1).astype(np.float64))
        taps = weights.astype(np.float64).reshape(self.co, *self.kernel, w.channels)[..., : self.c]
        convolve = {1: torch.conv1d, 2: torch.conv2d, 3: torch.conv3d}[w.rank]
        filters = torch.from_numpy(np.ascontiguousarray(np.moveaxis(taps, -1, 1)))
        y = convolve(image, filters, torch.from_numpy(bias.astype(np.float64)), self.stride, self.pad, self.dilation)
        return np.moveaxis(y.relu().numpy(), 1, -1).reshape(self.n * prod(w.out), self.co)
