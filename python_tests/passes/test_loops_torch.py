"""PyTorch ops through the generic path: imported, lowered to launches, compiled to PTX, and run on the CPU."""

from __future__ import annotations

from collections.abc import Callable

import ml_dtypes
import numpy as np
import pytest
import torch
import torch.nn.functional as F

from mlirc import mlir
from mlirc.backend.ptx import compile_kernel
from mlirc.frontend import from_torch, import_torch, lower_to_linalg
from mlirc.host.jit import tensor_spec
from mlirc.mlir import ir
from mlirc.passes import get_pass
from mlirc.targets import get_target
from support.devices.emulate import run_launches


def floats(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(len(shape) + sum(shape)))


def integers(high: int, *shape: int) -> torch.Tensor:
    return torch.randint(0, high, shape, generator=torch.Generator().manual_seed(high))


CASES: dict[str, tuple[Callable, tuple[torch.Tensor, ...]]] = {
    "conv1d": (lambda x, w, b: F.conv1d(x, w, b, stride=2, padding=1), (floats(1, 4, 15), floats(6, 4, 3), floats(6))),
    "conv2d": (
        lambda x, w: F.conv2d(x, w, stride=2, padding=1, dilation=2),
        (floats(2, 4, 9, 13), floats(6, 4, 3, 3)),
    ),
    "conv3d": (lambda x, w: F.conv3d(x, w, padding=1), (floats(1, 2, 5, 6, 7), floats(3, 2, 3, 3, 3))),
    "grouped convolution": (lambda x, w: F.conv2d(x, w, groups=2), (floats(1, 4, 7, 7), floats(6, 2, 3, 3))),
    "depthwise convolution": (lambda x, w: F.conv2d(x, w, groups=4), (floats(1, 4, 7, 7), floats(8, 1, 3, 3))),
    "causal convolution": (lambda x, w: F.conv1d(x, w, groups=4, padding=3), (floats(1, 4, 17), floats(4, 1, 4))),
    "transposed convolution": (
        lambda x, w: F.conv_transpose2d(x, w, stride=2, padding=1),
        (floats(1, 4, 5, 5), floats(4, 3, 3, 3)),
    ),
    "max pool": (lambda x: F.max_pool2d(x, 3, 2, 1), (floats(1, 3, 9, 9),)),
    "max pool with indices": (lambda x: F.max_pool2d(x, 2, return_indices=True), (floats(1, 3, 8, 8),)),
    "average pool": (lambda x: F.avg_pool2d(x, 3, 2, 1), (floats(1, 3, 9, 9),)),
    "adaptive pool": (lambda x: F.adaptive_avg_pool2d(x, (3, 2)), (floats(1, 3, 9, 9),)),
    "cumsum": (lambda x: x.cumsum(1), (floats(3, 7, 5),)),
    "sort": (lambda x: torch.sort(x, dim=0, descending=True), (floats(11, 3),)),
    "topk": (lambda x: torch.topk(x, 3), (floats(3, 11),)),
    "argmax": (lambda x: x.argmax(-1), (floats(3, 11),)),
    "max of a dimension": (lambda x: x.max(1), (floats(3, 11),)),
    "scatter_add": (lambda x, i, u: x.scatter_add(0, i, u), (floats(5, 3), integers(5, 4, 3), floats(4, 3))),
    "index_put": (
        lambda x, i, u: x.index_put((i,), u, accumulate=True),
        (floats(5, 3), torch.tensor([1, 1, 3]), floats(3, 3)),
    ),
    "gather": (lambda x, i: x.gather(1, i), (floats(5, 9), integers(9, 5, 4))),
    "embedding": (lambda w, i: F.embedding(i, w), (floats(11, 8), integers(11, 2, 3))),
    "concat": (lambda x, y: torch.cat([x, y], 1), (floats(5, 9), floats(5, 2))),
    "stack": (lambda x, y: torch.stack([x, y], 1), (floats(5, 9), floats(5, 9))),
    "constant pad": (lambda x: F.pad(x, (-1, 2, 0, 3), value=2.0), (floats(5, 9),)),
    "reflecting pad": (lambda x: F.pad(x, (2, 2), mode="reflect"), (floats(1, 5, 9),)),
    "bilinear resize": (lambda x: F.interpolate(x, size=(7, 9), mode="bilinear"), (floats(1, 3, 4, 5),)),
    "group norm": (lambda x, w, b: F.group_norm(x, 2, w, b), (floats(2, 4, 5, 5), floats(4), floats(4))),
    "softmax of columns": (lambda x: x.softmax(0), (floats(5, 9),)),
    "mean of all": (lambda x: x.mean(), (floats(5, 9),)),
    "any": (lambda x: (x > 1).any(1), (floats(5, 9),)),
    "integer product": (lambda x, y: x @ y, (integers(5, 5, 9), integers(4, 9, 3))),
    "bf16 product": (lambda x, y: x @ y, (floats(5, 9).bfloat16(), floats(9, 3).bfloat16())),
    "integer division": (lambda x, y: [x // y, x % y, x >> 1, ~x], (integers(99, 5, 9) - 50, integers(8, 5, 9) + 1)),
    "fmod": (lambda x, y: [torch.fmod(x, y), torch.remainder(x, y)], (floats(5, 9) * 10, floats(9, 5).T.abs() + 0.37)),
    "casts": (lambda x: [x.int(), x.long(), x.bool(), x.half(), x.bfloat16(), x.double()], (floats(5, 9) * 5,)),
    "slices": (lambda x, y: [x[1:, ::2], torch.slice_scatter(x, y, 1, 2, 5)], (floats(5, 9), floats(5, 3))),
    "flip and roll": (lambda x: x.flip(1).tril(), (floats(5, 9),)),
    "repeat": (lambda x: x.repeat(2, 3).unfold(1, 3, 2).contiguous(), (floats(5, 9),)),
    "attention": (
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True),
        (floats(1, 2, 5, 8), floats(1, 2, 7, 8), floats(1, 2, 7, 8)),
    ),
    "f64": (lambda x: [x.exp(), x.tanh(), x.erf(), x.sin(), x.abs().pow(2.2)], (floats(5, 9).double(),)),
    "f16": (lambda x: [x.exp(), x.sigmoid(), F.gelu(x), x.softmax(1)], (floats(5, 9).half(),)),
    "no elements": (lambda x: [x.sum(1), x.exp()], (floats(5, 0),)),
    "scalar": (lambda x: x * 2 + 1, (torch.tensor(3.0),)),
}


class Module(torch.nn.Module):
    def __init__(self, function: Callable):
        super().__init__()
        self.function = function

    def forward(self, *args: torch.Tensor):
        return self.function(*args)


def array(tensor: torch.Tensor) -> np.ndarray:
    tensor = tensor.detach().contiguous()
    if tensor.dtype == torch.bfloat16:
        return tensor.view(torch.int16).numpy().view(ml_dtypes.bfloat16).copy()
    return tensor.numpy().copy()


def flat(value) -> list[torch.Tensor]:
    return [value] if isinstance(value, torch.Tensor) else [t for v in value for t in flat(v)]


def arguments(
    function: ir.Operation, module: torch.nn.Module, inputs: list[torch.Tensor], constants: dict
) -> list[np.ndarray]:
    """One array per argument of the `linalg` level's function."""
    named = dict(module.named_parameters()) | dict(module.named_buffers())
    remaining = list(inputs)
    arrays = []
    for attributes in ir.ArrayAttr(function.attributes["arg_attrs"]) if "arg_attrs" in function.attributes else []:
        known = {n.name: n.attr.value for n in ir.DictAttr(attributes) if n.name.startswith("mlirc.")}
        if known.get("mlirc.kind") == "input":
            arrays.append(array(remaining.pop(0)))
        elif "mlirc.kind" in known:
            name = known["mlirc.name"]
            arrays.append(array(named[name] if name in named else constants[name]))
    return arrays


@pytest.mark.parametrize("name", CASES)
def test_generic_path_equals_pytorch(name):
    function, inputs = CASES[name]
    module = Module(function).eval()
    imported = import_torch(from_torch(module, inputs))
    linalg_level = lower_to_linalg(imported)
    (main,) = [op for op in linalg_level.body.operations if op.operation.name == "func.func"]
    with mlir.context():
        main.operation.attributes["mlirc.lowering"] = ir.StringAttr.get("loops")
    results = [tensor_spec(t) for t in main.type.results]
    get_pass("mlirc-loops")(linalg_level)
    if "gpu.launch_func" in str(linalg_level):
        assert ".entry main_0" in compile_kernel(linalg_level, get_target("sm_80")).ptx
    (host,) = [op for op in linalg_level.body.operations if op.operation.name == "func.func"]
    arrays = arguments(host.operation, module, list(inputs), getattr(imported, "constants", {}))
    got = [np.full(s.shape, 77).astype(s.dtype) for s in results]
    run_launches(linalg_level, "main", arrays, got)
    with torch.no_grad():
        want = [array(t) for t in flat(module(*inputs))]
    assert len(got) == len(want)
    for ours, theirs in zip(got, want, strict=True):
        tolerance = 2e-2 if ours.dtype in (np.float16, ml_dtypes.bfloat16) else 1e-5
        np.testing.assert_allclose(ours.astype(np.float64), theirs.astype(np.float64), rtol=tolerance, atol=tolerance)
