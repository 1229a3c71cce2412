"""`schedule.align_rows`: operands of products whose rows are no multiple of 16 bytes are copied, in launches in front
of the product, into rows that are. Tensor copies and copies of 16 bytes take no others.

    %rows = scf.forall (i, j) ... -> [M, K rounded up]       # zeros behind K
    %rest = scf.forall (i, j) ... -> [K rounded up, N rounded up]
    %w = tensor.extract_slice %rest[0, 0] [K rounded up, N]  # free: what the product sees of it

Where rows run along k, k becomes longer for both operands: by zeros, which add nothing. Rows along m or n are as long
as they were for the product; only what they lie in is wider.
"""

from __future__ import annotations

from math import gcd

from mlirc.dialects.schedule import _build
from mlirc.dialects.schedule._base import LINALG, PayloadError, transform_op
from mlirc.dialects.schedule._dims import Contraction, Structure, contraction, structure
from mlirc.dialects.schedule.tile_to_blocks import mapping_of
from mlirc.ir.tensors import element_bytes, shape_of
from mlirc.mlir import arith, ir, linalg, scf, tensor

ROW_BYTES = 16  # that rows are multiples of
WORD_BYTES = 4  # that a thread stores at once
COLUMNS = 512  # of a block's tile, at most
NUMBERS = 8192  # of a block's tile


def rounded(extent: int, element: int) -> int:
    """The least extent of rows of `element` bytes each that is a multiple of `ROW_BYTES`."""
    step = ROW_BYTES // gcd(ROW_BYTES, element)
    return -(-extent // step) * step


def longer(lengths_along_k: list[tuple[int, int]], k: int) -> int:
    """What k becomes where (elements, bytes of one) are the rows that run along it."""
    return max([rounded(n, e) for n, e in lengths_along_k if n * e % ROW_BYTES], default=k)


def _element(value: ir.Value) -> ir.Type:
    return ir.RankedTensorType(value.type).element_type


def _size(value: ir.Value) -> int:
    return element_bytes(_element(value))


def _roles(op: ir.Operation) -> tuple[Structure, Contraction]:
    roles = contraction(op)
    if roles is None or len(roles.k) != 1:
        raise PayloadError("it is no contraction along one dimension: match_contractions finds them", op)
    if op.operation.parent.name != "func.func":
        raise PayloadError("stands in a block program: align_rows comes before tile_to_blocks", op)
    return structure(op), roles


def _wide(value: ir.Value, m: tuple, k_dim: int, k: int) -> list[int]:
    """The extents that an operand is copied to."""
    shape = [k if d == k_dim else n for d, n in zip(m, shape_of(value), strict=True)]
    return [*shape[:-1], rounded(shape[-1], _size(value))]


def _copied(value: ir.Value, shape: list[int], numbers: int) -> scf.ForallOp:
    """`value` in a tensor of a larger shape, with zeros behind it, at the insertion point. Blocks have tiles of about
    so many numbers of the last two dimensions."""
    source, rank = shape_of(value), len(shape)
    columns = min(COLUMNS, 1 << (shape[-1] - 1).bit_length())
    rows = min(max(numbers // columns, 1), shape[-2])
    sizes = [*[1] * (rank - 2), rows, columns]
    counts = [-(-n // s) for n, s in zip(shape, sizes, strict=True)]
    forall = scf.ForallOp(
        [0] * rank, counts, [1] * rank, [_build.empty(shape, _element(value))], mapping=mapping_of(rank)
    )
    with ir.InsertionPoint(forall.body):
        ivs = list(forall.induction_variables)
        offsets = [_build.scaled(iv, s) if s > 1 else iv for iv, s in zip(ivs, sizes, strict=True)]
        extents = [
            _build.remaining(o, n, s) if n % s else s for o, n, s in zip(offsets, shape, sizes, strict=True)
        ][-2:]  # fmt: skip
        tile = _build.generic([], [_build.empty(extents, _element(value))], [[0, 1]], [True, True])
        block = tile.regions[0].blocks.append(_element(value))
        with ir.InsertionPoint(block):
            linalg.YieldOp([_element_or_zero(value, source, shape, offsets)])
        # Neighbours in a row are neighbouring lanes' as far as stores of four bytes allow: loads then share lines.
        vector = max(WORD_BYTES // _size(value), 1)
        tile.attributes["mlirc.vector"] = ir.IntegerAttr.get(ir.IntegerType.get_signless(32), vector)
        terminator = scf.InParallelOp()
    with ir.InsertionPoint(terminator.region.blocks[0]):
        _build.parallel_insert_slice(tile.results[0], forall.inner_iter_args[0], offsets, [*[1] * (rank - 2), *extents])
    return forall


def _element_or_zero(value: ir.Value, source: tuple[int, ...], shape: list[int], offsets: list[ir.Value]) -> ir.Value:
    """In a generic's body of the last two dimensions: the element of `value` there, zero where it has none."""
    places, inside = [], None
    for d, (n, wide, offset) in enumerate(zip(source, shape, offsets, strict=True)):
        place = offset
        if d >= len(source) - 2:
            place = arith.AddIOp(linalg.IndexOp(d - len(source) + 2).result, offset).result
        if n < wide:
            here = arith.CmpIOp(arith.CmpIPredicate.slt, place, _build.index(n)).result
            inside = here if inside is None else arith.AndIOp(inside, here).result
            place = arith.MinSIOp(place, _build.index(n - 1)).result
        places.append(place)
    number = tensor.ExtractOp(value, places).result
    if inside is None:
        return number
    t = _element(value)
    zero = ir.IntegerAttr.get(t, 0) if isinstance(t, ir.IntegerType) else ir.FloatAttr.get(t, 0.0)
    return arith.SelectOp(inside, number, arith.ConstantOp(t, zero).result).result


@transform_op(
    "align_rows",
    operands=("contractions",),
    results=("copies",),
    attributes={"numbers": int},
    takes=LINALG,
    defaults={"numbers": NUMBERS},
)
def align_rows(rewriter, contractions, numbers):
    """Copies the operands of products whose rows are no multiple of 16 bytes into rows that are, and returns the
    launches that do. To be used in front of `tile_to_blocks`; operands are what the kernel is given, or reshapes of it.
    A block copies about so many `numbers`."""
    found = [(op.operation, *_roles(op.operation)) for op in contractions]
    lengths = [
        (shape_of(v)[-1], _size(v)) for _, s, r in found for v, m in zip(s.inputs, s.maps, strict=False) if m[-1] in r.k
    ]
    made: dict[tuple, ir.Value] = {}
    copies: list[ir.Operation] = []
    first = found[0][0]
    for op, s, roles in found:
        k_dim = roles.k[0]
        for number, (value, m) in enumerate(zip(s.inputs, s.maps, strict=False)):
            k = longer(lengths, s.extents[k_dim])
            shape = _wide(value, m, k_dim, k)
            if tuple(shape) == shape_of(value):
                continue
            if len(shape) < 2:
                raise PayloadError("an operand has one dimension", op)
            key = (value, tuple(shape))
            if key not in made:
                with ir.InsertionPoint(op), op.location:
                    copies.append(_copied(value, shape, numbers).operation)
                    made[key] = copies[-1].results[0]
            seen = [k if d == k_dim else n for d, n in zip(m, shape_of(value), strict=True)]
            with ir.InsertionPoint(op), op.location:
                wide = made[key]
                op.operands[number] = wide if seen == shape else _build.extract_slice(wide, [0] * len(seen), seen)
    if not copies:
        raise PayloadError("all rows are multiples of 16 bytes: leave it out", first)
    return [copies]
