"""What operations on complex tensors become: one rule per operation, on pairs of real tensors.

A rule gets the rewrite, the node and the node's arguments, and returns a pair, or one node for a real result.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

import torch
from torch.fx import Node

from mlirc.errors import MlircError
from mlirc.frontend.complex_pairs import REAL, ComplexPairs, Pair
from mlirc.frontend.fourier import Fourier, scale

aten = torch.ops.aten

RULES: dict[Any, Callable] = {}


def _rule(*ops: Any) -> Callable[[Callable], Callable]:
    def add(function: Callable) -> Callable:
        for op in ops:
            RULES[op] = function
        return function

    return add


def _parts(c: ComplexPairs, node: Node, *args: Any, **kwargs: Any) -> Pair:
    """An op that moves or adds elements: on both parts, with the real arguments as they are."""
    promote = node.target in _PROMOTED
    kwargs = {k: REAL.get(v, v) if k == "dtype" else v for k, v in kwargs.items()}

    def part(i: int) -> Any:
        def of(n: Node) -> Any:
            if n in c.pairs:
                return c.full_pair(n)[i]
            is_part = promote and n.meta["val"].dtype != torch.bool
            return c.full_pair(n)[i] if is_part else n

        new_args, new_kwargs = torch.fx.node.map_arg((args, kwargs), of)
        if promote and i == 1:  # numbers have no imaginary part, or one of their own
            new_args = tuple(_imaginary(a) for a in new_args)
        elif promote:
            new_args = tuple(a.real if isinstance(a, complex) else a for a in new_args)
        out = c(node.target, *new_args, **new_kwargs)
        values = out.meta["val"]
        if isinstance(values, (tuple, list)):
            return [c(operator.getitem, out, k) for k in range(len(values))]
        return out

    return part(0), part(1)


def _imaginary(x: Any) -> Any:
    return x.imag if isinstance(x, complex) else 0 if isinstance(x, (int, float)) and not isinstance(x, bool) else x


_FILLS = (
    aten.zeros.default, aten.zeros_like.default, aten.new_zeros.default, aten.ones.default, aten.ones_like.default,
    aten.new_ones.default, aten.empty.memory_format, aten.empty_strided.default, aten.empty_like.default,
)  # fmt: skip
_PROMOTED = (aten.where.self,)
_MOVES = [
    aten.view.default, aten.reshape.default, aten._unsafe_view.default, aten.permute.default, aten.transpose.int,
    aten.t.default, aten.expand.default, aten.unsqueeze.default, aten.squeeze.dim, aten.squeeze.dims,
    aten.squeeze.default, aten.slice.Tensor, aten.select.int, aten.index.Tensor, aten.index_select.default,
    aten.gather.default, aten.clone.default, aten.alias.default, aten.detach.default, aten.lift_fresh_copy.default,
    aten.flip.default, aten.repeat.default, aten.constant_pad_nd.default, aten.unfold.default, aten.as_strided.default,
    aten.split.Tensor, aten.split_with_sizes.default, aten.unbind.int, aten.where.self, aten.sum.dim_IntList,
    aten.sum.default, aten.mean.dim, aten.mean.default, aten.cumsum.default, aten.diagonal.default, aten.neg.default,
    aten.tril.default, aten.triu.default, torch.ops.prims.squeeze.default,
]  # fmt: skip
for _op in _MOVES:
    RULES[_op] = _parts


@_rule(aten.cat.default, aten.stack.default)
def _cat(c: ComplexPairs, node: Node, tensors: list[Node], dim: int = 0) -> Pair:
    pairs = [c.full_pair(x) for x in tensors]
    return c(node.target, [re for re, _ in pairs], dim), c(node.target, [im for _, im in pairs], dim)


@_rule(aten.select_scatter.default, aten.slice_scatter.default)
def _scatter(c: ComplexPairs, node: Node, x: Node, source: Node, *rest: Any) -> Pair:
    (a, b), (p, q) = c.full_pair(x), c.full_pair(source)
    return c(node.target, a, p, *rest), c(node.target, b, q, *rest)


@_rule(aten.copy.default)
def _copy(c: ComplexPairs, node: Node, x: Node, source: Node, *_: Any) -> Pair:
    value = node.meta["val"]
    parts = [c(aten._to_copy.default, p, dtype=REAL[value.dtype]) for p in c.full_pair(source)]
    return c(aten.expand.default, parts[0], list(value.shape)), c(aten.expand.default, parts[1], list(value.shape))


@_rule(aten.view_as_complex.default)
def _view_as_complex(c: ComplexPairs, node: Node, x: Node) -> Pair:
    return c(aten.select.int, x, -1, 0), c(aten.select.int, x, -1, 1)


@_rule(aten.view_as_real.default)
def _view_as_real(c: ComplexPairs, node: Node, x: Node) -> Any:
    return c(aten.cat.default, [c(aten.unsqueeze.default, part, -1) for part in c.full_pair(x)], -1)


@_rule(aten.complex.default)
def _complex(c: ComplexPairs, node: Node, re: Node, im: Node) -> Pair:
    shape = list(node.meta["val"].shape)
    return c(aten.expand.default, re, shape), c(aten.expand.default, im, shape)


@_rule(aten.polar.default)
def _polar(c: ComplexPairs, node: Node, size: Node, angle: Node) -> Pair:
    return c.mul(size, c(aten.cos.default, angle)), c.mul(size, c(aten.sin.default, angle))


@_rule(aten.real.default)
def _real(c: ComplexPairs, node: Node, x: Node) -> Any:
    return c.pair(x)[0]


@_rule(aten.imag.default)
def _imag(c: ComplexPairs, node: Node, x: Node) -> Any:
    return c.full_pair(x)[1]


@_rule(aten._conj.default, aten.conj_physical.default, aten._conj_physical.default)
def _conj(c: ComplexPairs, node: Node, x: Node) -> Pair:
    re, im = c.pair(x)
    return re, c.neg(im)


@_rule(aten.resolve_conj.default, aten.resolve_neg.default)
def _same(c: ComplexPairs, node: Node, x: Node) -> Pair:
    return c.pair(x)


@_rule(aten._to_copy.default, torch.ops.prims.convert_element_type.default, aten.to.dtype)
def _convert(c: ComplexPairs, node: Node, x: Node, dtype: Any = None, *_: Any, **__: Any) -> Any:
    wanted = node.meta["val"].dtype
    re, im = (None if p is None else c(aten._to_copy.default, p, dtype=REAL.get(wanted, wanted)) for p in c.pair(x))
    return (re, im) if wanted in REAL else re


@_rule(aten.add.Tensor, aten.sub.Tensor, aten.add.Scalar, aten.sub.Scalar)
def _add(c: ComplexPairs, node: Node, x: Any, y: Any, alpha: Any = 1) -> Pair:
    sign = -1 if node.target in (aten.sub.Tensor, aten.sub.Scalar) else 1
    one, other = c.pair(x), c.pair(y)
    if alpha != 1:
        other = c.product(other, c.pair(alpha))
    re, im = c.add(one[0], other[0], sign), c.add(one[1], other[1], sign)
    shape = list(node.meta["val"].shape)

    def whole(part: Any) -> Any:
        if not isinstance(part, Node):
            return None if part is None else c(aten.full.default, shape, part, dtype=REAL[node.meta["val"].dtype])
        same = list(part.meta["val"].shape) == shape
        return part if same else c(aten.expand.default, part, shape)

    return whole(re), whole(im)


@_rule(aten.mul.Tensor, aten.mul.Scalar)
def _mul(c: ComplexPairs, node: Node, x: Any, y: Any) -> Pair:
    return c.product(c.pair(x), c.pair(y))


@_rule(aten.div.Tensor, aten.div.Scalar)
def _div(c: ComplexPairs, node: Node, x: Any, y: Any) -> Pair:
    one, (re, im) = c.pair(x), c.pair(y)
    if im is None:
        return tuple(None if p is None else c(aten.div.Tensor, p, re) for p in one)  # type: ignore[return-value]
    above = c.product(one, (re, c.neg(im)))
    below = c.square_of_size((re, im))
    return c(aten.div.Tensor, above[0], below), c(aten.div.Tensor, above[1], below)


@_rule(aten.reciprocal.default)
def _reciprocal(c: ComplexPairs, node: Node, x: Node) -> Pair:
    re, im = c.full_pair(x)
    below = c.square_of_size((re, im))
    return c(aten.div.Tensor, re, below), c(aten.div.Tensor, c.neg(im), below)


@_rule(aten.abs.default)
def _abs(c: ComplexPairs, node: Node, x: Node) -> Any:
    return c(aten.sqrt.default, c.square_of_size(c.pair(x)))


@_rule(aten.angle.default)
def _angle(c: ComplexPairs, node: Node, x: Node) -> Any:
    re, im = c.full_pair(x)
    return c(aten.atan2.default, im, re)


@_rule(aten.exp.default)
def _exp(c: ComplexPairs, node: Node, x: Node) -> Pair:
    re, im = c.full_pair(x)
    size = c(aten.exp.default, re)
    return c.mul(size, c(aten.cos.default, im)), c.mul(size, c(aten.sin.default, im))


@_rule(aten.pow.Tensor_Scalar)
def _pow(c: ComplexPairs, node: Node, x: Node, exponent: Any) -> Pair:
    if exponent not in (1, 2, 3, 4):
        raise MlircError(f"{c.what}: a complex number to the power {exponent} is not supported: only powers 1 to 4 are")
    out = base = c.full_pair(x)
    for _ in range(int(exponent) - 1):
        out = c.product(out, base)
    return out


@_rule(aten.mm.default, aten.bmm.default)
def _matmul(c: ComplexPairs, node: Node, x: Node, y: Node) -> Pair:
    one, other = c.pair(x), c.pair(y)

    def product(i: int, j: int) -> Any:
        return None if one[i] is None or other[j] is None else c(node.target, one[i], other[j])

    return c.add(product(0, 0), product(1, 1), -1), c.add(product(0, 1), product(1, 0))


@_rule(aten.full.default, aten.full_like.default, aten.scalar_tensor.default)
def _full(c: ComplexPairs, node: Node, *args: Any, **kwargs: Any) -> Pair:
    value = node.meta["val"]
    number = args[0] if node.target is aten.scalar_tensor.default else args[1]
    dtype = REAL[value.dtype]
    re, im = c.pair(number)
    shape = list(value.shape)
    return c(aten.full.default, shape, re, dtype=dtype), c(aten.full.default, shape, im or 0, dtype=dtype)


@_rule(*_FILLS)
def _filled(c: ComplexPairs, node: Node, *_: Any, **__: Any) -> Pair:
    value = node.meta["val"]
    number = 1 if "ones" in str(node.target) else 0
    re, im = (c(aten.full.default, list(value.shape), n, dtype=REAL[value.dtype]) for n in (number, 0))
    return re, im


@_rule(aten.eq.Tensor, aten.ne.Tensor)
def _equal(c: ComplexPairs, node: Node, x: Any, y: Any) -> Any:
    (a, b), (p, q) = c.full_pair(x), c.full_pair(y)
    both = aten.logical_and.default if node.target is aten.eq.Tensor else aten.logical_or.default
    return c(both, c(node.target, a, p), c(node.target, b, q))


def _fourier(c: ComplexPairs, dtype: torch.dtype) -> Fourier:
    return Fourier(c, c.constant, lambda n: list(n.meta["val"].shape), REAL.get(dtype, dtype))


def _scaled(c: ComplexPairs, x: Pair, normalization: int, count: int) -> Pair:
    factor = scale(normalization, count)
    return x if factor == 1 else c.product(x, (factor, None))


@_rule(aten._fft_c2c.default, aten._fft_r2c.default)
def _transform(c: ComplexPairs, node: Node, x: Node, dims: list[int], normalization: int, flag: bool) -> Pair:
    """`flag`: whether forward, or of a transform of reals, whether only the half is wanted that tells the rest."""
    real = node.target is aten._fft_r2c.default
    value = x.meta["val"]
    fourier = _fourier(c, node.meta["val"].dtype)
    out: Pair = c.pair(x)
    half = value.shape[dims[-1]] // 2 + 1 if real and flag else None
    for dim in reversed(dims):
        out = fourier.along(out[0], out[1], dim, real or flag, half if dim == dims[-1] else None)
    return _scaled(c, out, normalization, math.prod(value.shape[d] for d in dims))


@_rule(aten._fft_c2r.default)
def _transform_back(c: ComplexPairs, node: Node, x: Node, dims: list[int], normalization: int, size: int) -> Any:
    """From the half of a spectrum: the other half is its conjugate, from the end."""
    fourier = _fourier(c, node.meta["val"].dtype)
    re, im = c.full_pair(x)
    for dim in dims[:-1]:
        re, im = fourier.along(re, im, dim, False)
    rank, half = node.meta["val"].dim(), size // 2 + 1
    last = dims[-1] % rank
    there = x.meta["val"].shape[last]
    if there < half:
        raise MlircError(
            f"{c.what}: an inverse Fourier transform of reals to {size} elements needs {half}, not {there}"
        )
    re, im = (c(aten.slice.Tensor, p, last, 0, half) for p in (re, im))
    if size > 2:
        rest = [c(aten.flip.default, c(aten.slice.Tensor, p, last, 1, size - half + 1), [last]) for p in (re, im)]
        re, im = c(aten.cat.default, [re, rest[0]], last), c(aten.cat.default, [im, c.neg(rest[1])], last)
    out = fourier.along(re, im, last, False)[0]
    count = math.prod(node.meta["val"].shape[d] for d in dims)
    return _scaled(c, (out, None), normalization, count)[0]
