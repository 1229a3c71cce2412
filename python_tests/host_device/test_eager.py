"""Operations of PyTorch, each through the kinds of kernel that the compiler makes of it, on the host device against FP64:
within the gates of f32, f16 and bf16, and within twice the error of PyTorch's own operation in the same type."""

from __future__ import annotations

import re

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from mlirc.device import DeviceModel
from mlirc.driver.compilation import Compilation
from mlirc.targets import get_target
from support.models.arrays import as_array

GATES = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1e-2}  # relative Frobenius error
FLOATS = list(GATES)
SHAPES = {
    torch.float32: [(1, 1, 1), (5, 7, 13), (2, 129, 31)],
    torch.float16: [(16, 32, 17)],
    torch.bfloat16: [(1, 1, 1), (3, 64, 33)],
}


def elementwise(x, y):
    """x, y [a, b, c]."""
    return (
        F.gelu(x), F.gelu(x, approximate="tanh"), F.silu(x) * y, torch.where(x > y, x, -y), torch.tanh(x) + y.abs().sqrt(),
        x.transpose(1, 2) + y.transpose(1, 2), torch.sigmoid(x) / (2 + y.cos()), torch.cat([x, y * 2], dim=1),
        x.exp() - y.exp2(), (x.abs() + 1).log() * y, x.masked_fill(y > 0, 0.5), x.clamp(-0.5, 0.5), x.erf(), x**3,
    )  # fmt: skip


def rows(x, y):
    """x, y [a, b, c]; the last dimension is reduced."""
    n = (x.shape[-1],)
    return (
        F.softmax(x, -1), F.log_softmax(x, -1), F.layer_norm(x, n, y[0, 0], y[0, -1]), F.rms_norm(x, n, y[0, 0]),
        x.mean(-1), (x * y).sum(-1), x.amax(-1), x.amin(-1), x.logsumexp(-1), F.softmax(x + y, -1) * y,
        x / x.norm(dim=-1, keepdim=True).clamp(min=1e-3),
    )  # fmt: skip


def columns(x, y):
    """x, y [a, b, c]; other dimensions than the last are reduced."""
    return x.sum(0), x.mean((0, 1)), x.amax(1), (x * y).sum((0, 2)), F.softmax(x, 1), x.sum()


def products(x, y):
    """x, y [a, b, c] taken as matrices and as batches."""
    m, w = x.flatten(0, 1), y[0]
    return (
        F.linear(m, w), m @ w.T.contiguous(), x @ y.transpose(1, 2), x.transpose(1, 2) @ y, F.gelu(F.linear(m, w, w[:, 0])),
        F.silu(F.linear(m, w)) * F.linear(m, w.flip(0)), F.linear(m[:1], w), torch.mv(m, w[0]),
    )  # fmt: skip


def layers(x, y):
    """Products along the last dimension of x, y [a, b, c], with what layers do to them."""
    z = x @ y.transpose(1, 2)
    return z, F.gelu(x @ y.transpose(1, 2) + x[0, :, 0]), F.silu(z) * x[:, :, :1], x @ x.transpose(1, 2) + z


def attentions(x, y):
    """x, y [a, b, c] as one head and as two."""
    q, k = x[:, None], y[:, None]
    two = torch.cat([q, k], dim=1)
    far = torch.arange(x.shape[1])[:, None] - torch.arange(x.shape[1])[None]
    return (
        F.scaled_dot_product_attention(q, k, k), F.scaled_dot_product_attention(two, k, q, enable_gqa=True, is_causal=True),
        F.scaled_dot_product_attention(q, k, q, attn_mask=far.abs() < 9),
    )  # fmt: skip


def scans(x, y):
    """x, y [a, b, c]."""
    return x.cumsum(-1), y.cumsum(1), (x / 2).cumprod(-1)


def windows(x, y):
    """x, y [a, b, c] as signals of b channels and as images of one."""
    w = y[:1, :, : min(3, y.shape[2])]
    image = x[:, None]
    return (
        F.conv1d(x, w, padding=1), F.conv2d(image, y[:2, None, :1, :1]), F.max_pool2d(image, 3, 2, 1),
        F.avg_pool1d(x, 1, 1), F.conv2d(image, y[:1, None, :3, :3], padding=2, stride=2), F.pad(x, (1, 2, 0, 1)),
    )  # fmt: skip


def lookups(x, y):
    """Tables x, y [a, b, c]: floats that are copied, not computed."""
    table = x.flatten(0, 1)
    ids = (torch.arange(11) * 7) % table.shape[0]
    return (
        F.embedding(ids, table), x[:, ids % x.shape[1]], x.gather(2, distinct(x).long()), table.index_select(0, ids) * 2,
        x.flip(1), x.roll(1, 2), torch.take_along_dim(y, x.argmax(1, keepdim=True), 1), x.sort(-1)[0],
    )  # fmt: skip


def distinct(x):
    """The numbers below c in a fixed order, in the shape of x [a, b, c], c no multiple of 7."""
    n = x.shape[-1]
    return (torch.arange(n) * 7 % n).to(x.dtype).expand(x.shape).contiguous()


def indices(x, y):
    """Integers and booleans: exact, the first of several equal ones."""
    return (
        x.argmax(-1), x.argmin(-1), y.argmax(1), x.flatten().argmax(), x > y, (x > 0).sum(-1), (x > y).any(-1),
        (x > y).all(1), distinct(x).sort(-1)[1], distinct(y).topk(1, dim=-1)[1], (x * 10).int(), (x > 0).long().cumsum(-1),
        F.one_hot(x.argmax(-1), x.shape[-1]), torch.bitwise_xor((x * 9).int(), (y * 9).int()),
    )  # fmt: skip


def others(x, y):
    """Types that no model computes with, and nothing at all: x, y [a, b, c]."""
    i, j, wide = (x * 9).int(), (y * 9).long(), x.double()
    return (
        i @ (y * 9).int().transpose(1, 2), i.sum(-1), j.amax(0), (i // 4) * 3 - i % 5, j.abs().clamp(max=7), j << 2,
        wide.sum(-1).float(), F.softmax(wide, -1).float(), (wide @ y.double().transpose(1, 2)).float(),
        x[:0] * 2, x[:, :0].sum(1), y.to(torch.float16) + 1, (y > 0) ^ (x > 0), i.to(torch.int8) + 1,
    )  # fmt: skip


KINDS = {
    "elementwise": elementwise, "reduction": rows, "columns": columns, "matmul": products, "layers": layers, "attention": attentions,
    "scans": scans, "windows": windows, "lookups": lookups, "indices": indices, "others": others,
}  # fmt: skip
SHOWN = {  # kinds of kernels that a function must have made, so that each is tried
    "elementwise": {"elementwise"}, "reduction": {"reduction"}, "columns": {"reduction"}, "matmul": {"matmul"}, "layers": {"matmul"},
    "attention": {"attention"}, "scans": {"scan"}, "windows": {"elementwise", "matmul"}, "lookups": {"gather"},
    "indices": {"generic", "reduction"}, "others": {"elementwise", "reduction"},
}  # fmt: skip

# A scan adds in f32, one number after the other, PyTorch's on the CPU in f64: within the gate, but at six times its error.
IN_ORDER = {("scans", 1)}


class Module(torch.nn.Module):
    """A function of two tensors as a module."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x, y):
        return self.function(x, y)


def on_host_device(module: torch.nn.Module, given: dict, schedule: tuple[str, ...] = ()) -> tuple[list, set[str]]:
    """The results on the host device, and the kinds of the kernels that made them; fails on any finding."""
    job = Compilation("model", get_target("sm_90a"), helpers=0, schedules=schedule)
    job.import_module(module, (), given)
    job.lower("gpu")
    device = DeviceModel.parse(job.text("gpu"))
    tensors = job.tensors() | given
    results, report = device.run([as_array(tensors[n]) for n in device.argument_names()])
    assert report.ok, "\n".join(map(str, report.findings))
    return results, set(re.findall(r'mlirc.kernel, mlirc.kind = "(\w+)"', job.text("kernels")))


def compare(kind: str, shape: tuple[int, ...], dtype: torch.dtype, schedule: tuple[str, ...] = ()) -> set[str]:
    """Compares every result of a function with FP64 and with eager; returns the kinds of the kernels."""
    function, generator = KINDS[kind], torch.Generator().manual_seed(0)
    x, y = (torch.randn(shape, generator=generator).to(dtype) for _ in range(2))
    with torch.no_grad():
        exact, eager = function(x.double(), y.double()), function(x, y)
    found, kinds = on_host_device(Module(function).eval(), dict(x=x, y=y), schedule)
    assert len(found) == len(eager)
    for number, (f, e, r) in enumerate(zip(found, eager, exact, strict=True)):
        assert f.shape == tuple(e.shape), number
        if not e.is_floating_point():
            np.testing.assert_array_equal(f, e.numpy(), err_msg=f"result {number}")
            continue
        ours, theirs = (relative_error(v, r) for v in (torch.from_numpy(f.astype(np.float64)), e))
        message = f"result {number}: error {ours}, PyTorch's {theirs}"
        assert ours <= GATES[dtype], message
        if e.numel() >= 16 and not (dtype == torch.float32 and (kind, number) in IN_ORDER):
            rounding = torch.finfo(dtype).eps / 2  # of one result; that of a few numbers, or below it, is luck
            assert ours <= 2 * max(theirs, rounding), message
    return kinds


def relative_error(value: torch.Tensor, exact: torch.Tensor) -> float:
    return float((value.double() - exact.double()).norm()) / max(float(exact.double().norm()), 1e-30)


@pytest.mark.parametrize(
    "kind, dtype",
    [(k, t) for k in KINDS for t in FLOATS if t != torch.float16 or k in ("elementwise", "matmul", "reduction")],
)
def test_operations(kind, dtype):
    made = set()
    for shape in SHAPES[dtype]:
        made |= compare(kind, shape, dtype)
    assert SHOWN[kind] <= made


@pytest.mark.parametrize("mma, dtype", [("wgmma", torch.bfloat16), ("wgmma", torch.float16), ("fma", torch.bfloat16)])
def test_products_by_other_instructions(mma, dtype):
    for shape in ((2, 64, 200), (3, 33, 264)):
        compare("layers", shape, dtype, (f"matmul:mma={mma}",))
