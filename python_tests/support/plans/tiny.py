"""A compiled model of two kernels as a plan, PTX and weights, and the same kernels as a fake GPU's functions."""

from __future__ import annotations

import json

import numpy as np

from mlirc.runtime.plan import CopyStep, KernelLaunch, Plan, Ref, TensorSpec
from support.devices.fake_gpu import at

N = 37


# y = (x + w) * 2, z = x; the sum goes through the arena.
PTX = """.version 8.0
.target sm_80
.address_size 64

.visible .entry add(.param .u64 a, .param .u64 b, .param .u64 c)
{
  .reg .pred %p;
  .reg .b32 %i;
  .reg .f32 %x, %y;
  .reg .b64 %a, %b, %c, %o;
  mov.u32 %i, %tid.x;
  setp.ge.u32 %p, %i, 37;
  @%p ret;
  ld.param.u64 %a, [a];
  ld.param.u64 %b, [b];
  ld.param.u64 %c, [c];
  mul.wide.u32 %o, %i, 4;
  add.u64 %a, %a, %o;
  add.u64 %b, %b, %o;
  add.u64 %c, %c, %o;
  ld.global.f32 %x, [%a];
  ld.global.f32 %y, [%b];
  add.f32 %x, %x, %y;
  st.global.f32 [%c], %x;
  ret;
}

.extern .shared .align 16 .b8 smem[];
.visible .entry twice(.param .u64 a, .param .u64 b)
{
  .reg .pred %p;
  .reg .b32 %i, %s;
  .reg .f32 %x;
  .reg .b64 %a, %b, %o;
  mov.u32 %i, %tid.x;
  setp.ge.u32 %p, %i, 37;
  @%p ret;
  ld.param.u64 %a, [a];
  ld.param.u64 %b, [b];
  mul.wide.u32 %o, %i, 4;
  add.u64 %a, %a, %o;
  add.u64 %b, %b, %o;
  ld.global.f32 %x, [%a];
  add.f32 %x, %x, %x;
  mov.u32 %s, smem;
  mad.lo.u32 %s, %i, 4, %s;
  st.shared.f32 [%s+60000], %x;
  ld.shared.f32 %x, [%s+60000];
  st.global.f32 [%b], %x;
  ret;
}
"""
KERNELS = {
    "add": lambda a, b, c: np.add(at(a, N), at(b, N), out=at(c, N)),
    "twice": lambda a, b: np.multiply(at(a, N), 2, out=at(b, N)),
}


def write_weights(path, tensors):
    """Writes NumPy arrays as safetensors (8 bytes of header length, JSON, data); the package has no bf16 for NumPy."""
    names = {"bool": "BOOL", "bfloat16": "BF16", "float64": "F64", "float32": "F32", "float16": "F16"}
    names |= {"int8": "I8", "int32": "I32", "int64": "I64"}
    header, data = {}, b""
    for name, tensor in sorted(tensors.items(), key=lambda item: -item[1].itemsize):
        raw = np.ascontiguousarray(tensor).tobytes()
        offsets = [len(data), len(data) + len(raw)]
        header[name] = {"dtype": names[tensor.dtype.name], "shape": tensor.shape, "data_offsets": offsets}
        data += raw
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)


def ref(space: str, offset: int = 0, index: int = 0) -> Ref:
    return Ref(space, index, offset, 4 * N)


def make_plan(target: str = "sm_80", kind: str = "weight") -> Plan:
    x, w = TensorSpec("x", "f32", (N,), "input"), TensorSpec("m.w", "f32", (1, N), kind)
    y, z = TensorSpec("y", "f32", (N, 1), "output"), TensorSpec("z", "f32", (N,), "output")
    steps = [
        KernelLaunch("add", (1, 1, 1), (64, 1, 1), 0, (ref("input"), ref("weight"), ref("arena", 256))),
        KernelLaunch("twice", (1, 1, 1), (64, 1, 1), 64 * 1024, (ref("arena", 256), ref("output"))),
        CopyStep(ref("input"), ref("output", index=1)),
    ]
    return Plan("tiny", target, [x], [y, z], [w], 512, steps)


def ptx_for(target: str) -> str:
    return PTX.replace(".target sm_80", f".target {target}")


W = np.arange(N, dtype=np.float32).reshape(1, N)


def expected(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return ((x + W[0]) * 2).reshape(N, 1), x


def randn(seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(N).astype(np.float32)
