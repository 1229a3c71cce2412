"""What a model computes between attention's two products, element by element, as a function of a score: the ops of a
decomposed graph that depend on the first product, as MLIR's (`dialects/score_functions.py`). What does not depend on it
is an input of the function, as long as it broadcasts to the scores."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection
from typing import Any

import torch
from torch.fx import Node

from mlirc.dialects import score_functions
from mlirc.mlir import arith, context, ir, math

aten = torch.ops.aten
VIEWS = (
    aten.view.default, aten._unsafe_view.default, aten.reshape.default, aten.clone.default, aten.expand.default,
    aten._to_copy.default, aten.to.dtype,
)  # fmt: skip
_FLOATS = (torch.float32, torch.bfloat16, torch.float16)
_F = arith.CmpFPredicate
_EXACT = 1 << 24  # integers below are f32


class NoScore(Exception):
    """The graph is no function of a score."""


def _f32(value: float) -> ir.Value:
    return arith.ConstantOp(ir.F32Type.get(), value).result


def _sigmoid(x: ir.Value) -> ir.Value:
    one = _f32(1.0)
    return arith.DivFOp(one, arith.AddFOp(one, math.ExpOp(arith.NegFOp(x).result).result).result).result


def _gelu(x: ir.Value, approximate: str = "none") -> ir.Value:
    if approximate == "tanh":
        cube = _MUL(_MUL(x, x), _MUL(x, _f32(0.044715)))
        inner = math.TanhOp(_MUL(_ADD(x, cube), _f32(0.7978845608028654))).result
    else:
        inner = math.ErfOp(_MUL(x, _f32(0.7071067811865476))).result
    return _MUL(_MUL(x, _f32(0.5)), _ADD(inner, _f32(1.0)))


def _leaky(x: ir.Value, slope: ir.Value | None = None) -> ir.Value:
    scaled = _MUL(x, _f32(0.01) if slope is None else slope)
    return arith.SelectOp(arith.CmpFOp(_F.OGT, x, _f32(0.0)).result, x, scaled).result


def _power(x: ir.Value, exponent: Any) -> ir.Value:
    """A power of a whole number as products, or a root: others have rules of their own for what is negative."""
    if exponent == 0.5:
        return math.SqrtOp(x).result
    if exponent not in (1, 2, 3, 4):
        raise NoScore
    result = x
    for _ in range(int(exponent) - 1):
        result = arith.MulFOp(result, x).result
    return result


def _op(build: Any) -> Callable[..., ir.Value]:
    return lambda *x: build(*x).result


def _compare(predicate: Any) -> Callable[..., ir.Value]:
    return lambda x, y: arith.CmpFOp(predicate, x, y).result


def _clamp(x: ir.Value, low: Any = None, high: Any = None) -> ir.Value:
    x = x if low is None else arith.MaximumFOp(x, low).result
    return x if high is None else arith.MinimumFOp(x, high).result


def _not(x: ir.Value) -> ir.Value:
    return arith.XOrIOp(x, arith.ConstantOp(x.type, 1).result).result


_ADD, _SUB, _MUL, _DIV = map(_op, (arith.AddFOp, arith.SubFOp, arith.MulFOp, arith.DivFOp))
FLOATS: dict[Any, Callable[..., ir.Value]] = {
    aten.add.Tensor: _ADD, aten.add.Scalar: _ADD, aten.sub.Tensor: _SUB, aten.sub.Scalar: _SUB,
    aten.mul.Tensor: _MUL, aten.mul.Scalar: _MUL, aten.div.Tensor: _DIV, aten.div.Scalar: _DIV,
    aten.rsub.Scalar: lambda x, y: _SUB(y, x), aten.neg.default: _op(arith.NegFOp), aten.abs.default: _op(math.AbsFOp),
    aten.reciprocal.default: lambda x: _DIV(_f32(1.0), x), aten.exp.default: _op(math.ExpOp),
    aten.expm1.default: _op(math.ExpM1Op), aten.log.default: _op(math.LogOp), aten.log2.default: _op(math.Log2Op),
    aten.log1p.default: _op(math.Log1pOp), aten.sqrt.default: _op(math.SqrtOp), aten.rsqrt.default: _op(math.RsqrtOp),
    aten.tanh.default: _op(math.TanhOp), aten.erf.default: _op(math.ErfOp), aten.sin.default: _op(math.SinOp),
    aten.cos.default: _op(math.CosOp), aten.sigmoid.default: _sigmoid,
    aten.relu.default: lambda x: arith.MaximumFOp(x, _f32(0.0)).result,
    aten.maximum.default: _op(arith.MaximumFOp), aten.minimum.default: _op(arith.MinimumFOp),
    aten.clamp.default: _clamp, aten.clamp_min.default: _clamp, aten.clamp_max.default: lambda x, y: _clamp(x, None, y),
    aten.lt.Scalar: _compare(_F.OLT), aten.lt.Tensor: _compare(_F.OLT), aten.le.Scalar: _compare(_F.OLE),
    aten.le.Tensor: _compare(_F.OLE), aten.gt.Scalar: _compare(_F.OGT), aten.gt.Tensor: _compare(_F.OGT),
    aten.ge.Scalar: _compare(_F.OGE), aten.ge.Tensor: _compare(_F.OGE), aten.eq.Scalar: _compare(_F.OEQ),
    aten.eq.Tensor: _compare(_F.OEQ), aten.ne.Scalar: _compare(_F.UNE), aten.ne.Tensor: _compare(_F.UNE),
    aten.silu.default: lambda x: _MUL(x, _sigmoid(x)), aten.gelu.default: _gelu, aten.leaky_relu.default: _leaky,
    aten.pow.Tensor_Scalar: _power, aten.where.self: _op(arith.SelectOp),
    aten.logical_not.default: _not, aten.bitwise_not.default: _not,
    aten.logical_and.default: _op(arith.AndIOp), aten.bitwise_and.Tensor: _op(arith.AndIOp),
    aten.logical_or.default: _op(arith.OrIOp), aten.bitwise_or.Tensor: _op(arith.OrIOp),
}  # fmt: skip


def _shape(node: Any) -> torch.Size:
    value = node.meta.get("val") if isinstance(node, Node) else None
    if not isinstance(value, torch.Tensor):
        raise NoScore
    return value.shape


_SUMS = (
    aten.add.Tensor, aten.add.Scalar, aten.sub.Tensor, aten.sub.Scalar, aten.rsub.Scalar, aten.neg.default,
    aten.mul.Scalar, aten.div.Scalar,
)  # fmt: skip
_PRODUCTS = (aten.mul.Tensor, aten.div.Tensor)
ARITHMETIC = (*_SUMS, *_PRODUCTS, aten.abs.default, aten.minimum.default, aten.maximum.default, aten.clamp.default)


def _affine(value: torch.Tensor) -> tuple[int, int, int] | None:
    """(c, a, b) of a tensor whose elements at row i and column j of its last two dimensions are c + a i + b j, small
    integers; None for others."""
    if value.dtype == torch.bool or value.is_complex() or value.numel() < 2:
        return None
    rows, columns = ([1, *value.shape])[-2:]
    tables = value.reshape(-1, rows, columns)
    first = tables[0]
    step = [first[1, 0] - first[0, 0] if rows > 1 else 0, first[0, 1] - first[0, 0] if columns > 1 else 0]
    numbers = [float(first[0, 0]), *map(float, step)]
    if any(not n.is_integer() or abs(n) * max(rows, columns) >= _EXACT for n in numbers):
        return None
    start, down, right = map(int, numbers)
    places = start + down * torch.arange(rows)[:, None] + right * torch.arange(columns)
    return (start, down, right) if bool((tables == places.to(value.dtype)).all()) else None


class Places:
    """What `ops` compute of an element's place in the scores, and of what broadcasts along rows or columns: as a part
    of a function of scores, it need not be in memory for each of them."""

    def __init__(self, constants: Any, ops: Collection[Any] = FLOATS) -> None:
        self.constants, self.ops = constants, ops
        self.affine: dict[Node, tuple[int, int, int]] = {}
        self._computed: dict[Node, bool] = {}

    def computes(self, node: Any) -> bool:
        """Whether a node, one of the whole scores' extents, is made so. A constant is not: it may be a table."""
        wide = isinstance(node, Node) and node not in self.constants and _is_wide(node)
        return wide and self._reaches(node, 0)

    def _reaches(self, node: Any, depth: int) -> bool:
        if node is None or isinstance(node, (int, float)):
            return True
        if not isinstance(node, Node) or not isinstance(node.meta.get("val"), torch.Tensor) or depth > 30:
            return False
        if node not in self._computed:
            self._computed[node] = self._is_affine(node) or self._is_leaf(node) or self._is_made(node, depth)
        return self._computed[node]

    def _is_affine(self, node: Node) -> bool:
        if node not in self.constants or (numbers := _affine(self.constants.value(node))) is None:
            return False
        self.affine[node] = numbers
        return True

    def _is_leaf(self, node: Node) -> bool:
        return not _is_wide(node) and node.meta["val"].dtype in (torch.bool, *_FLOATS)

    def _is_made(self, node: Node, depth: int) -> bool:
        if node.target in VIEWS:
            source: Any = node.args[0]
            wide = isinstance(source, Node) and _is_wide(source) and _stripped(source) == _stripped(node)
            if not wide or not self._reaches(source, depth + 1):
                return False
            old, new = source.meta["val"].dtype, node.meta["val"].dtype
            return old == new or new in _FLOATS and old != torch.bool  # no cast rounds to an integer, or is a truth
        known = node.target in self.ops and node.target is not aten.gelu.default and not node.kwargs
        return known and all(self._reaches(x, depth + 1) for x in node.args)


def _stripped(node: Node) -> list[int]:
    """The shape without ones in front."""
    return list(itertools.dropwhile(lambda n: n == 1, _shape(node)))


def _is_wide(node: Node) -> bool:
    shape = _shape(node)
    return len(shape) > 1 and min(shape[-2:]) > 1


class Score:
    """The function that makes `root` of a product's elements: `product`, its `lines` and the `inputs`, each a node,
    with the rank of the op that reads it; of these the function has elements of `dtype`. Raises NoScore where there is
    none."""

    def __init__(self, root: Node, readers: int, constants: Any) -> None:
        self.constants = constants
        self.places: Places = Places(constants)
        self.product: Node | None = None
        self.rank4: list[int] = []
        self._dependent: dict[Node, bool] = {}
        if not self._depends(root, 0) or self.product is None:
            raise NoScore
        self._check_readers(root, readers)
        self.inputs: list[tuple[Node, int]] = []
        self._collect(root, set())
        self.lines: score_functions.Lines
        with context(), ir.Location.unknown():
            types = [self._element()] * len(self.inputs)
            self.lines = score_functions.write(
                lambda x, b, h, i, j, *y: self._build(root, x, (i, j), y), ir.F32Type.get(), types
            )

    def _depends(self, node: Any, depth: int) -> bool:
        """Whether a node is made of the product, element by element: the first one that is found."""
        if not isinstance(node, Node) or node in self.constants or depth > 100:
            return False
        if node not in self._dependent:
            if node.target is aten.bmm.default:
                self.product = self.product or node
                self._dependent[node] = node is self.product
            elif node.target in VIEWS and self._same_elements(node):
                self._dependent[node] = self._depends(node.args[0], depth + 1)
            elif node.target in FLOATS:
                self._dependent[node] = any([self._depends(x, depth + 1) for x in node.args])
            else:
                self._dependent[node] = False
            if self._dependent[node] and len(_shape(node)) == 4:
                self.rank4 = list(_shape(node))
        return self._dependent[node]

    def _same_elements(self, node: Node) -> bool:
        outer, inner = _shape(node), _shape(node.args[0])
        types = node.meta["val"].dtype, node.args[0].meta["val"].dtype  # type: ignore[union-attr]
        return (
            outer.numel() == inner.numel()
            and outer[-2:] == inner[-2:]
            and (all(t in _FLOATS for t in types) or types[0] == types[1])
        )

    def _check_readers(self, root: Node, readers: int) -> None:
        """Nobody else reads what is computed: it would have to be in memory."""
        for node, dependent in self._dependent.items():
            if not dependent:
                continue
            inside = [u for u in node.users if self._dependent.get(u)]
            if len(node.users) - len(inside) != (readers if node is root else 0):
                raise NoScore
            if node.kwargs and node.target not in (*VIEWS, aten.gelu.default):
                raise NoScore
            if node is not self.product and _shape(node)[-2:] != _shape(self.product)[-2:]:
                raise NoScore

    def _collect(self, node: Node, seen: set[tuple[Node, int]], rank: int = 0) -> None:
        """The inputs, each once for each rank that it is read at: what is computed of places is of its reader's."""
        rank = rank or len(_shape(node))
        if (node, rank) in seen or node is self.product:
            return
        seen.add((node, rank))
        for x in node.args[:1] if node.target in VIEWS else node.args:
            if not isinstance(x, Node) or self._number(x) is not None:
                continue
            inside = not self._dependent.get(node)
            if self._dependent.get(x):
                self._collect(x, seen)
            elif inside and x in self.places.affine:
                continue
            elif self.places.computes(x) or inside and _is_wide(x):
                self._collect(x, seen, rank)
            elif (x, rank) not in self.inputs:
                self.inputs.append((x, rank))

    @property
    def linear(self) -> bool:
        """Whether it is a sum of a multiple of the product and of something: two products with nothing in between."""
        for node, dependent in self._dependent.items():
            if not dependent or node is self.product or node.target in VIEWS:
                continue
            parts = [bool(self._dependent.get(x)) for x in node.args if isinstance(x, Node)]
            sums = node.target in _SUMS or node.target is aten.where.self and not parts[0]
            factors = node.target in _PRODUCTS and sum(parts) == 1 and parts[0] >= (node.target is aten.div.Tensor)
            if not sums and not factors:
                return False
        return True

    @property
    def dtype(self) -> torch.dtype:
        """The one dtype that the inputs have, or are to be cast to."""
        found = {node.meta["val"].dtype for node, _ in self.inputs}
        if not found <= {torch.bool, *_FLOATS}:
            raise NoScore
        return found.pop() if len(found) == 1 else torch.float32

    def _element(self) -> ir.Type:
        if not self.inputs:
            return ir.F32Type.get()
        kinds = {torch.bool: "i1", torch.float32: "f32", torch.bfloat16: "bf16", torch.float16: "f16"}
        return ir.Type.parse(kinds[self.dtype])

    def _number(self, x: Any) -> float | None:
        if isinstance(x, (int, float)) and not isinstance(x, bool):
            return float(x)
        if (
            isinstance(x, Node)
            and x in self.constants
            and x.meta["val"].numel() == 1
            and x.meta["val"].is_floating_point()
        ):
            return float(self.constants.value(x))
        return None

    def _build(
        self, root: Node, score: ir.Value, place: tuple[ir.Value, ir.Value], inputs: tuple[ir.Value, ...]
    ) -> ir.Value:
        assert self.product is not None
        made: dict[tuple[Node, int], ir.Value] = {}
        given = {key: value for key, value in zip(self.inputs, inputs, strict=True)}

        def value(x: Any, rank: int) -> Any:
            if x is None:
                return None
            if (number := self._number(x)) is not None:
                return _f32(number)
            if not isinstance(x, Node):
                raise NoScore
            if self._dependent.get(x):
                return score if x is self.product else node(x, len(_shape(x)))
            if (x, rank) in given:
                return _input_value(given[x, rank], x.meta["val"].dtype)
            return _of_place(self.places.affine[x], place) if x in self.places.affine else node(x, rank)

        def node(x: Node, rank: int) -> ir.Value:
            if (x, rank) not in made:
                if x.target in VIEWS:
                    made[x, rank] = value(x.args[0], rank)
                elif x.target is aten.pow.Tensor_Scalar:
                    made[x, rank] = _power(value(x.args[0], rank), x.args[1])
                else:
                    made[x, rank] = FLOATS[x.target](*[value(a, rank) for a in x.args], **x.kwargs)
            return made[x, rank]

        return value(root, 0)


def _input_value(given: ir.Value, dtype: torch.dtype) -> ir.Value:
    """An input's element as f32, or of a mask's as i1."""
    if isinstance(given.type, ir.IntegerType):
        return given
    wide = ir.F32Type.get()
    given = given if given.type == wide else arith.ExtFOp(wide, given).result
    return arith.CmpFOp(_F.UNE, given, _f32(0.0)).result if dtype == torch.bool else given


def _of_place(numbers: tuple[int, int, int], place: tuple[ir.Value, ir.Value]) -> ir.Value:
    """c + a i + b j as f32, exact."""
    start, *factors = numbers
    total: ir.Value | None = None
    for factor, index in zip(factors, place, strict=True):
        if factor:
            whole = arith.IndexCastOp(ir.IntegerType.get_signless(64), index).result
            term = arith.SIToFPOp(ir.F32Type.get(), whole).result
            term = term if factor == 1 else _MUL(term, _f32(float(factor)))
            total = term if total is None else _ADD(total, term)
    return _f32(float(start)) if total is None else _ADD(total, _f32(float(start))) if start else total
