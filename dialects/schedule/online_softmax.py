"""`schedule.online_softmax`: a chain of reductions along one dimension becomes one loop over it, in which a running
maximum takes the place of the maximum of all (Milakov and Gimelshein, 2018; FlashAttention: Dao et al., 2022).

The chain is what stands between a maximum and the last product: max_j x, p = exp(x - max) (or a power of two of it),
and sums over j of what is linear in p, products among them. Each step of the loop makes the maximum of what it has seen
and multiplies what it has summed by exp(old max - new max). A chain without a maximum becomes a plain loop."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from mlirc.dialects.schedule import _build
from mlirc.dialects.schedule._base import LINALG, PayloadError, transform_op
from mlirc.dialects.schedule._dims import Dims, body_of, contraction, producer, structured_ops
from mlirc.dialects.schedule._limits import add_limit
from mlirc.dialects.schedule.split_k import sizes_of
from mlirc.dialects.schedule.tile_reduction import InnerTiler
from mlirc.dialects.schedule.tile_to_blocks import Cut
from mlirc.ir.combiners import combining
from mlirc.ir.tensors import shape_of
from mlirc.mlir import arith, ir, linalg, math, scf

LOWEST = {"f32": -3.4028234663852886e38, "f64": -1.7976931348623157e308}


@dataclass
class Power:
    """An elementwise op that computes exp((score - top) factor), or with `base2` a power of two of it."""

    at: int  # which op of the chain
    top: int  # its operand
    base2: bool
    factor: float | None  # None: there is none


def power_of(op: ir.Operation, at: int, top: ir.Value) -> Power | None:
    """What an op does with the maximum that it reads, if it is that."""
    block = body_of(op)
    result = list(block.operations)[-1].operation.operands[0].owner
    if isinstance(result, ir.Block) or result.name not in ("math.exp", "math.exp2"):
        return None
    base2, number = result.name == "math.exp2", list(op.operands).index(top)
    exponent, factor = _times_constant(result.operands[0])
    if isinstance(exponent.owner, ir.Block) or exponent.owner.name != "arith.subf":
        return None
    score, highest = exponent.owner.operands
    if factor is None:
        (score, one), (highest, other) = _times_constant(score), _times_constant(highest)
        if one != other:
            return None
        factor = one
    if highest != block.arguments[number] or not isinstance(score.owner, ir.Block) or score == highest:
        return None
    return Power(at, number, base2, factor)


def _times_constant(value: ir.Value) -> tuple[ir.Value, float | None]:
    """A value as another one times a number, None for 1."""
    owner = value.owner
    if not isinstance(owner, ir.Block) and owner.name == "arith.mulf":
        for x, c in (tuple(owner.operands), tuple(owner.operands)[::-1]):
            if not isinstance(c.owner, ir.Block) and c.owner.name == "arith.constant":
                return x, ir.FloatAttr(c.owner.attributes["value"]).value
    return value, None


def is_linear(op: ir.Operation, derived: set[ir.Value]) -> bool:
    """Whether an elementwise op's results are linear in those of its operands, rounding aside."""
    block = body_of(op)
    linear = {a for a, v in zip(block.arguments, op.operands, strict=True) if v in derived}
    for inner in list(block.operations)[:-1]:
        operands = list(inner.operation.operands)
        found = [v in linear for v in operands]
        if not any(found):
            continue
        match inner.operation.name:
            case "arith.extf" | "arith.truncf":
                keeps = True
            case "arith.mulf":
                keeps = not all(found)
            case "arith.select":
                keeps = not found[0] and all(f or _is_zero(v) for f, v in zip(found[1:], operands[1:], strict=True))
            case _:
                keeps = False
        if not keeps:
            return False
        linear |= set(inner.operation.results)
    return all(v in linear for v in list(block.operations)[-1].operation.operands)


def _is_zero(value: ir.Value) -> bool:
    owner = value.owner
    constant = not isinstance(owner, ir.Block) and owner.name == "arith.constant"
    return constant and ir.FloatAttr(owner.attributes["value"]).value == 0


class Chain:
    """The ops of a block that have the dimension `k` of its last product, and what the reductions among them are."""

    def __init__(self, product: ir.Operation) -> None:
        self.dims = dims = Dims(structured_ops(product.block))
        roles = contraction(product)
        if roles is None or len(roles.k) != 1:
            raise PayloadError(
                "it is no contraction with one reduction dimension: match_contractions finds them", product
            )
        self.k = dims.of[dims.ops.index(product)][roles.k[0]]
        self.extent = dims.extent[self.k]
        self.inside = [i for i in range(len(dims.ops)) if self.k in dims.of[i]]
        self.reductions = [i for i in self.inside if self._reduces(i)]
        self._check_users()
        self.power = self._power()
        self.rescaled = self._rescaled() if self.power else []
        # what a step's elements behind the end must not weigh in, and how they do not
        if self.power:
            self.scores, self.hidden = list(dims.ops[self.top].operands)[0], float("-inf")
        else:
            self.scores, self.hidden = _before_casts(list(dims.ops[self.inside[-1]].operands)[0]), 0.0

    def _reduces(self, i: int) -> bool:
        s, row = self.dims.structures[i], self.dims.of[i]
        return not all(s.parallel) and not s.parallel[row.index(self.k)]

    def _check_users(self) -> None:
        inside = {self.dims.ops[i] for i in self.inside}
        between = set(self.dims.ops[: self.inside[-1]]) - inside
        for i in self.inside:
            for user in {u.owner.operation for r in self.dims.ops[i].results for u in r.uses} - inside:
                if i not in self.reductions:
                    raise PayloadError("is used both inside and outside the loop", self.dims.ops[i])
                if user in between:
                    raise PayloadError("it reads a reduction of the loop, and stands in front of the last one", user)

    def kind(self, i: int) -> str:
        """`product`, or the name of the op that a reduction combines with."""
        op = self.dims.ops[i]
        if contraction(op):
            return "product"
        s = self.dims.structures[i]
        found = combining(
            list(body_of(op).operations)[-1].operation.operands[0], list(body_of(op).arguments)[len(s.inputs)]
        )
        if found is None or len(s.outputs) != 1:
            raise PayloadError("a reduction's body is not one combining op", op)
        return found.name

    def _power(self) -> Power | None:
        """The op that reads a reduction's result inside of the loop."""
        found: list[tuple[int, int]] = []
        for r in self.reductions:
            value = self.dims.ops[r].results[0]
            found += [(r, i) for i in self.inside if i != r and value in list(self.dims.ops[i].operands)]
        if not found:
            return None
        (r, i), *more = found
        op = self.dims.ops[i]
        power = None if more or self.kind(r) != "arith.maximumf" else power_of(op, i, self.dims.ops[r].results[0])
        if power is None or i in self.reductions:
            what = "a reduction's result is read along its dimension, and not as exp(x - max x) alone reads it"
            raise PayloadError(what, self.dims.ops[more[0][1] if more else i])
        self.top = r
        scores = next(v for n, v in enumerate(op.operands) if n != power.top)
        if list(self.dims.ops[r].operands)[0] != scores:
            raise PayloadError("the maximum is another value's than the exponentials'", op)
        return power

    def _rescaled(self) -> list[int]:
        """The reductions that sum what is linear in the exponentials."""
        assert self.power is not None
        derived = {self.dims.ops[self.power.at].results[0]}
        found = []
        for i in self.inside:
            op = self.dims.ops[i]
            if not derived & set(list(op.operands)[: len(self.dims.structures[i].inputs)]):
                continue
            if i in self.reductions:
                if self.kind(i) not in ("product", "arith.addf"):
                    raise PayloadError(f"a {self.kind(i)} of the exponentials cannot be made step by step", op)
                found.append(i)
            elif is_linear(op, derived):
                derived |= set(op.results)
            else:
                raise PayloadError("it is not linear in the exponentials that it reads", op)
        return found


def tile_chain(
    product: ir.Operation, size: int, erase: Callable, ragged: bool = False
) -> tuple[ir.Operation, list[ir.Operation]]:
    """Makes the loop; returns it and its contractions."""
    if size < 1:
        raise PayloadError(f"size {size}: a step of the loop takes 1 or more", product)
    chain = Chain(product)
    dims, reductions = chain.dims, chain.reductions
    starts = [dims.structures[i].outputs[0] for i in reductions]
    with ir.InsertionPoint(dims.ops[chain.inside[-1]]), product.location:
        given = [_finite(v) if chain.power and i == chain.top else v for i, v in zip(reductions, starts, strict=True)]
        loop = scf.ForOp(_build.index(0), _build.index(chain.extent), _build.index(size), given)
    carried = dict(zip(reductions, loop.inner_iter_args, strict=True))
    with ir.InsertionPoint(loop.body), product.location:
        iv = loop.induction_variable
        edge, pads = ragged or chain.extent % size != 0, chain.extent % size != 0
        tiles = {c: Cut(0, n) for c, n in dims.extent.items()}
        tiles[chain.k] = Cut(iv, _build.remaining(iv, chain.extent, size) if edge else size)
        tiler = InnerTiler(dims, tiles)
        made, products = _clone(chain, tiler, carried)
        if pads:
            _hide_pads(chain, made, iv)
        _read_first(loop.body, products)
        scf.YieldOp([tiler.values[dims.ops[i].results[0]] for i in reductions])
    for i, result in zip(reductions, loop.results, strict=True):
        dims.ops[i].results[0].replace_all_uses_with(result)
    for i in reversed(chain.inside):
        erase(dims.ops[i])
    return loop.operation, products


def _clone(
    chain: Chain, tiler: InnerTiler, carried: dict[int, ir.Value]
) -> tuple[dict[int, ir.Operation], list[ir.Operation]]:
    """The ops of one step: sums are multiplied by what the new maximum makes of the old one's exponentials."""
    dims, power, pending = chain.dims, chain.power, list(chain.rescaled)
    made: dict[int, ir.Operation] = {}
    products = []
    factor: ir.Value | None = None

    def rescale_next() -> None:
        if pending and factor is not None:
            i = pending.pop(0)
            out = dims.structures[i].outputs[0]
            carried[i] = _scaled(carried[i], factor, *_rows(chain, i, out), out)

    for i in chain.inside:
        out = dims.structures[i].outputs[0]
        if i in carried:
            tiler.values[out] = carried[i]
        is_product = contraction(dims.ops[i]) is not None
        made[i] = tiler.clone(i)
        if i in carried:
            del tiler.values[out]
        if is_product:
            products.append(made[i])
        if power and i == chain.top:
            factor = _factor(power, carried[i], made[i].results[0], out)
        if power and (i == power.at or i in chain.rescaled):
            rescale_next()
    return made, products


def _read_first(body: ir.Block, products: list[ir.Operation]) -> None:
    """Moves the slices that products read in front of all ops that compute."""
    free = ("affine.min", "affine.apply", "arith.constant", "tensor.extract_slice")
    first = next(op.operation for op in body.operations if op.operation.name not in free)
    read = {v.owner.operation for op in products for v in op.operands if not isinstance(v.owner, ir.Block)}
    for op in [op.operation for op in body.operations]:
        if op.name == "tensor.extract_slice" and op in read and not op.is_before_in_block(first):
            op.move_before(first)


def _rows(chain: Chain, i: int, out: ir.Value) -> tuple[list[int], int]:
    """(the dimensions of a sum that the maximum has, rank of the sum)."""
    s = chain.dims.structures[i]
    classes = chain.dims.map_classes(i, s.out_maps[0])
    of_top = chain.dims.map_classes(chain.top, chain.dims.structures[chain.top].out_maps[0])
    if any(c is None or c not in classes for c in of_top):
        raise PayloadError("a sum of exponentials lacks a dimension of their maximum", chain.dims.ops[i])
    return [classes.index(c) for c in of_top], len(shape_of(out))


def _elementwise(
    inputs: Sequence[ir.Value], maps: Sequence[Sequence[int]], like: ir.Value, body: Callable[..., ir.Value]
) -> ir.Value:
    """An elementwise op with a result like a tensor."""
    element = ir.RankedTensorType(like.type).element_type
    out = _build.empty(sizes_of(like), element)
    rank = len(shape_of(like))
    op = _build.generic(inputs, [out], [*maps, list(range(rank))], [True] * rank)
    block = op.regions[0].blocks.append(*[element] * (len(inputs) + 1))
    with ir.InsertionPoint(block):
        linalg.YieldOp([body(*block.arguments)])
    return op.results[0]


def _factor(power: Power, old: ir.Value, new: ir.Value, like: ir.Value) -> ir.Value:
    """exp((old - new) factor) of two maxima."""
    dims = list(range(len(shape_of(like))))

    def body(old: ir.Value, new: ir.Value, _: ir.Value) -> ir.Value:
        difference = arith.SubFOp(old, new).result
        if power.factor is not None:
            difference = arith.MulFOp(difference, arith.ConstantOp(old.type, power.factor).result).result
        return (math.Exp2Op if power.base2 else math.ExpOp)(difference).result

    return _elementwise([old, new], [dims, dims], like, body)


def _scaled(value: ir.Value, factor: ir.Value, rows: list[int], rank: int, like: ir.Value) -> ir.Value:
    return _elementwise([value, factor], [list(range(rank)), rows], like, lambda x, f, _: arith.MulFOp(x, f).result)


def _finite(start: ir.Value) -> ir.Value:
    """What a running maximum starts with: -inf would leave exp(-inf - -inf) of rows that have seen nothing."""
    made_by = producer(start)
    if made_by is None or made_by.name != "linalg.fill":
        raise PayloadError("the maximum starts with something else than a fill", made_by)
    value = producer(made_by.operands[0])
    if (
        value is None
        or value.name != "arith.constant"
        or ir.FloatAttr(value.attributes["value"]).value != float("-inf")
    ):
        return start
    element = ir.RankedTensorType(start.type).element_type
    if str(element) not in LOWEST:
        raise PayloadError(f"a running maximum of {element}: it is f32 or f64", made_by)
    lowest = arith.ConstantOp(element, LOWEST[str(element)]).result
    return linalg.fill(lowest, outs=[made_by.operands[1]])


def _hide_pads(chain: Chain, made: dict[int, ir.Operation], iv: ir.Value) -> None:
    """The last step's elements behind the end weigh nothing: exp(0 - max) of a pad may be infinite, and an infinity
    times the zeros that pad the values is NaN."""
    dims, hidden = chain.dims, chain.hidden
    i = next((i for i in chain.inside if chain.scores in list(dims.ops[i].results)), None)
    if i is None:
        if not chain.power:
            return  # a product of what is read, which ends with zeros
        i, hidden = chain.power.at, 0.0
    op = made[i]
    if not all(dims.structures[i].parallel):
        op = _copied(op)
    place = dims.map_classes(i, dims.structures[i].out_maps[0]).index(chain.k)
    out_map = list(op.attributes["indexing_maps"])[-1].value
    add_limit(op, out_map.results[place].position, iv, chain.extent, hidden)


def _before_casts(value: ir.Value) -> ir.Value:
    made_by = producer(value)
    while made_by is not None and made_by.name == "linalg.generic" and len(body_of(made_by).operations) == 2:
        if list(body_of(made_by).operations)[0].operation.name not in ("arith.truncf", "arith.extf"):
            break
        value = made_by.operands[0]
        made_by = producer(value)
    return value


def _copied(op: ir.Operation) -> ir.Operation:
    """An elementwise op behind another one, that gives its readers the same."""
    value = op.results[0]
    type_ = ir.RankedTensorType(value.type)
    with ir.InsertionPoint.after(op), op.location:
        outs = list(op.operands)[-1]
        made_by = producer(outs)
        empty = made_by.operands[1] if made_by is not None and made_by.name == "linalg.fill" else outs
        dims = list(range(type_.rank))
        new = _build.generic([value], [empty], [dims, dims], [True] * type_.rank)
        block = new.regions[0].blocks.append(type_.element_type, type_.element_type)
        with ir.InsertionPoint(block):
            linalg.YieldOp([block.arguments[0]])
    value.replace_all_uses_except(new.results[0], new)
    return new


@transform_op(
    "online_softmax",
    operands=("products",),
    consumes=("products",),
    results=("loop", "contractions"),
    attributes={"size": int, "ragged": bool},
    takes=LINALG,
    defaults={"ragged": False},
)
def online_softmax(rewriter, products, size, ragged):
    """Tiles the reduction dimension of the last of the given products by `size`, with every op of its block that has
    this dimension. Returns the loop, and the contractions in it. With `ragged` every step's size is computed: the
    dimension may yet turn out to be shorter (`read_pages`)."""
    if not products:
        raise PayloadError("online_softmax got no product")
    loop, contractions = tile_chain(products[-1].operation, size, rewriter.erase_op, ragged)
    return [[loop], contractions]
