"""Convolutions whose results are computed channels first, as PyTorch stores them: where nobody reads them otherwise.

    weights [Co, K]  x  windows [N, P, K]  ->  [N, Co, P]

The rows of such a result are pixels, of which a block's tile takes neighbours of one image; a copy that only changes
the order of an image, of gigabytes at times, is saved. Of a plain 1x1 kernel the image may lie channels first, too."""

from __future__ import annotations

from math import prod

from mlirc.ir.tensors import VIEWS, shape_of
from mlirc.mlir import arith, ir, linalg
from mlirc.passes.graph.channels_last import Layouts, channels_last
from mlirc.passes.graph.classify import is_contraction, is_map_generic, iterators, maps
from mlirc.passes.graph.emit import filled, make_generic, reshape
from mlirc.passes.graph.evaluate import zero_attribute
from mlirc.passes.graph.space import affine_map

MOVES = ("tensor.concat", "tensor.extract_slice", "tensor.insert_slice", "tensor.pad")
TILE, WASTE = 128, 1.1  # pixels of a tile, and how many times the pixels of an image its tiles may cover


def pays(op: ir.Operation, order: tuple[int, ...]) -> bool:
    """Whether the result of an FP32 convolution, whose dimensions have this order channels last, is better computed
    channels first: it is large, and all who read it would have it so."""
    shape = shape_of(op.results[0])
    pixels = prod(shape[2:])
    covered = -(-pixels // TILE) * TILE
    f32 = all(ir.RankedTensorType(v.type).element_type == ir.F32Type.get() for v in op.operands)
    return f32 and order == channels_last(len(shape)) and covered <= WASTE * pixels and _in_order(op.results[0])


def _in_order(value: ir.Value, pooled: bool = False) -> bool:
    """Whether all who read a value take its elements in order, rows of pixels at a time; what is `pooled` they only
    map: with channels last a reduction pools on its way, or neighbours share what they read."""
    return all(_reads_in_order(use.owner.operation, value, pooled) for use in value.uses)


def _reads_in_order(user: ir.Operation, value: ir.Value, pooled: bool) -> bool:
    if user.name == "func.return" or is_contraction(user) and not pooled:
        return True
    if user.name.startswith("linalg.pooling_nc"):
        return user.operands[0] == value and _in_order(user.results[0], pooled=True)
    if user.name in (*VIEWS, *MOVES) or user.name == "linalg.transpose" and _keeps_rows(user):
        return _in_order(user.results[0], pooled)
    if user.name != "linalg.generic":
        return False
    mine = [m for v, m in zip(user.operands, maps(user), strict=True) if v == value]
    if "reduction" in iterators(user):
        return not pooled and all(_is_reduced_along_rows(user, m) for m in mine)
    plain = is_map_generic(user) and all(m == maps(user)[-1] and m.is_permutation for m in mine)
    return plain and all(_in_order(r, pooled) for r in user.results)


def _keeps_rows(transpose: ir.Operation) -> bool:
    """Whether rows stay rows, or are every second element of one, say, as the results of phases are."""
    order = list(transpose.attributes["permutation"])
    return moves_nothing(transpose) or len(order) - 1 in order[-2:]


def moves_nothing(op: ir.Operation) -> bool:
    """Whether an op is a transpose that moves dimensions of size 1 alone."""
    if op.name != "linalg.transpose":
        return False
    shape = shape_of(op.operands[0])
    wide = [i for i in op.attributes["permutation"] if shape[i] != 1]
    return wide == sorted(wide)


def view(op: ir.Operation, layouts: Layouts) -> bool:
    """Rewrites a transpose that moves nothing; False for any other op."""
    if not moves_nothing(op):
        return False
    shape = shape_of(op.results[0])
    with ir.InsertionPoint(op), op.location:
        layouts.put(op.results[0], tuple(range(len(shape))), reshape(op.operands[0], shape))
    return True


def _is_reduced_along_rows(user: ir.Operation, map_: ir.AffineMap) -> bool:
    """Whether a reduction's last loop of more than one element over an operand is one that it reduces."""
    last = map_.results[len(map_.results) - 1]
    return isinstance(last, ir.AffineDimExpr) and iterators(user)[last.position] == "reduction"


def contract(weights: ir.Value, image: ir.Value, along_rows: bool) -> ir.Value:
    """[Co, K] x [N, P, K] -> [N, Co, P] in f32; `along_rows`: the image is [N, K, P], its rows are pixels."""
    (outputs, _), (images, *rest) = shape_of(weights), shape_of(image)
    pixels = rest[1] if along_rows else rest[0]
    wide = ir.F32Type.get()
    start = filled([images, outputs, pixels], zero_attribute(wide))
    read = [0, 3, 2] if along_rows else [0, 2, 3]
    indexing = [affine_map(range(4), m) for m in ([1, 3], read, [0, 1, 2])]
    op = make_generic([weights, image], [start], indexing, ["parallel"] * 3 + ["reduction"])
    block = op.regions[0].blocks[0]
    with ir.InsertionPoint(block):
        a, b, total = block.arguments
        linalg.yield_([arith.addf(total, arith.mulf(a, b))])
    return op.results[0]
