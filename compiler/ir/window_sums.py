"""Depthwise convolutions within the body of a map: which of its values is the sum of a window's taps, each an element
of an image times a weight of its channel.

    sum = init + x[n, p*stride + 0 - low, ..., c] * w[0, 0, c] + ... , elements outside of the image being 0

That is what `mlirc-unroll-windows` makes of one, with whatever is done to the sum behind it. It is found in maps over
whole tensors, and in those over a block's tile."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from mlirc.ir.tensors import kept_dims, shape_of
from mlirc.mlir import arith, ir

HALF = ("bf16", "f16")
_SLT, _SGE = arith.CmpIPredicate.slt, arith.CmpIPredicate.sge


@dataclass(frozen=True)
class Linear:
    """An index as a sum of atoms with factors and of a constant. Atoms are loops' numbers, and indices from outside of
    the body."""

    terms: frozenset[tuple[int | ir.Value, int]] = frozenset()
    const: int = 0

    def plus(self, other: Linear) -> Linear:
        """The sum."""
        total: dict[int | ir.Value, int] = dict(self.terms)
        for atom, factor in other.terms:
            total[atom] = total.get(atom, 0) + factor
        return Linear(frozenset((a, f) for a, f in total.items() if f), self.const + other.const)

    def times(self, factor: int) -> Linear:
        """The product with a constant."""
        return Linear(frozenset((a, f * factor) for a, f in self.terms if factor), self.const * factor)

    def factor_of(self, loop: int) -> int:
        """How far a step of a loop moves the index."""
        return next((f for a, f in self.terms if a is loop or a == loop), 0)

    def outside(self) -> list[tuple[ir.Value, int]]:
        """The atoms that are no loops."""
        return [(a, f) for a, f in self.terms if isinstance(a, ir.Value)]


@dataclass(frozen=True)
class WindowSum:
    """The sum of a window's taps: `value`, which begins with `init` (None: with 0), of tensors of one 16-bit float
    type, in f32. `place`: where the window's first tap lies in the image [n, h, w, c] or [h, w, c], before what lies
    outside; `kernel`: taps along rows and columns; weights are [kernel..., c], their taps in one dimension or two."""

    value: ir.Value
    init: ir.Value | None
    image: ir.Value
    weights: ir.Value
    kernel: tuple[int, int]
    place: tuple[Linear, ...]

    @property
    def strides(self) -> tuple[int, int]:
        """How far neighbouring windows are apart."""
        rows, columns = (next(f for a, f in self.place[d].terms if isinstance(a, int)) for d in (-3, -2))
        return rows, columns

    @property
    def low(self) -> tuple[int, int]:
        """Rows and columns of padding in front."""
        return -self.place[-3].const, -self.place[-2].const


def window_sum(op: ir.Operation) -> WindowSum | None:
    """The depthwise convolution in an all-parallel `linalg.generic` [n, p, q, c] or [p, q, c]; None where there is
    none: with dilated windows, or of other types."""
    body = _Body(op)
    if body.rank not in (3, 4):
        return None
    sums = list(body.sums())
    return body.whole(*max(sums, key=lambda s: len(s[2]))) if sums else None


@dataclass(frozen=True)
class _Read:
    """An element of a tensor; `inside`: what a select tests, as (dimension, whether of its end)."""

    tensor: ir.Value
    place: tuple[Linear, ...]
    clamps: frozenset[tuple[int, bool]] = frozenset()
    inside: frozenset[tuple[int, bool]] = frozenset()


class _Body:
    """The body of a map."""

    def __init__(self, op: ir.Operation):
        self.op, self.block = op, op.regions[0].blocks[0]
        self.maps = [a.value for a in ir.ArrayAttr(op.attributes["indexing_maps"])]
        self.rank = self.maps[0].n_dims if self.maps else 0
        self._forms: dict[ir.Value, tuple[Linear, frozenset[bool]] | None] = {}

    def sums(self) -> Iterator[tuple[ir.Value, ir.Value | None, list[tuple[_Read, _Read]]]]:
        """Chains of additions of taps: the last sum, what the first one adds to, and the taps."""
        taps: dict[ir.Value, tuple[_Read, _Read]] = {}
        chains: dict[ir.Value, tuple[ir.Value | None, list[tuple[_Read, _Read]]]] = {}
        for op in [o.operation for o in self.block.operations]:
            if op.name == "arith.mulf" and (tap := self._tap(op)) is not None:
                taps[op.results[0]] = tap
            if op.name != "arith.addf":
                continue
            a, b = op.operands
            if b not in taps:
                a, b = b, a
            if b in taps:
                init, found = chains.get(a) or ((None, [taps[a]]) if a in taps else (a, []))
                chains[op.results[0]] = init, [*found, taps[b]]
        return ((value, init, found) for value, (init, found) in chains.items())

    def whole(self, value: ir.Value, init: ir.Value | None, taps: list[tuple[_Read, _Read]]) -> WindowSum | None:
        """The sum, if its taps are all those of one window."""
        first, weight = taps[0]
        rows, columns = (sorted({read.place[d].const for read, _ in taps}) for d in (-3, -2))
        kernel = len(rows), len(columns)
        origin = (*first.place[:-3], *(Linear(first.place[d].terms, c[0]) for d, c in ((-3, rows), (-2, columns))))
        place = (*origin, first.place[-1])
        expected = {}
        for i in range(kernel[0]):
            for j in range(kernel[1]):
                at = (*place[:-3], place[-3].plus(Linear(const=i)), place[-2].plus(Linear(const=j)), place[-1])
                expected[at] = i * kernel[1] + j
        if len(taps) != len(expected) or shape_of(weight.tensor)[-1] != shape_of(first.tensor)[-1]:
            return None
        if _taps(shape_of(weight.tensor)) != kernel[0] * kernel[1]:
            return None
        for read, w in taps:
            number = expected.pop(read.place, None)
            if number is None or read.tensor != first.tensor or w.tensor != weight.tensor:
                return None
            if _number(w) != number or w.place[-1] != place[-1]:
                return None
        return WindowSum(value, init, first.tensor, weight.tensor, kernel, place) if self._in_order(place) else None

    def _in_order(self, place: tuple[Linear, ...]) -> bool:
        """Whether the loops walk the image's dimensions in order, all but rows and columns in steps of one. The image
        that is read may be one that is given from outside."""
        first = self.rank - len(place)  # the loop of dimension 0: -1 for none
        loops = [{a for a, _ in form.terms if isinstance(a, int)} for form in place]
        steps = [form.factor_of(first + d) for d, form in enumerate(place)]
        ordered = loops == [{first + d} if first + d >= 0 else set() for d in range(len(place))]
        alone = not place[-1].const and (first < 0 or len(place) == 3 or not place[0].const)
        return ordered and alone and all(n == 1 for n in (*steps[max(-first, 0) : -3], steps[-1]))

    # -- taps

    def _tap(self, op: ir.Operation) -> tuple[_Read, _Read] | None:
        """(element of an image, weight)."""
        reads = [self._widened(v) for v in op.operands]
        if None in reads:
            return None
        for image, weight in (reads, reads[::-1]):
            assert image is not None and weight is not None
            fixed = not any(form.terms for form in weight.place[:-1]) and not weight.clamps
            if fixed and self.rank <= len(image.place) <= 4 and image.inside >= image.clamps:
                return image, weight
        return None

    def _widened(self, value: ir.Value) -> _Read | None:
        """What is read of 16 bits and widened to f32."""
        op = _owner(value)
        if op is None or op.name != "arith.extf" or str(value.type) != "f32":
            return None
        narrow = op.operands[0]
        if str(narrow.type) not in HALF:
            return None
        chosen = _owner(narrow)
        if chosen is None or chosen.name != "arith.select":
            return self._read(narrow)
        condition, read, zero = chosen.operands[0], self._read(chosen.operands[1]), _owner(chosen.operands[2])
        if (
            read is None
            or zero is None
            or zero.name != "arith.constant"
            or ir.FloatAttr(zero.attributes["value"]).value
        ):
            return None
        tests = self._tests(condition, read)
        return None if tests is None else _Read(read.tensor, read.place, read.clamps, frozenset(tests))

    def _read(self, value: ir.Value) -> _Read | None:
        if isinstance(value.owner, ir.Block):
            return self._of_operand(value)
        if value.owner.name != "tensor.extract":
            return None
        tensor, *indices = value.owner.operands
        forms, clamps = [], set()
        for d, index in enumerate(indices):
            found = self._form(index, shape_of(tensor)[d])
            if found is None:
                return None
            forms.append(found[0])
            clamps |= {(d, end) for end in found[1]}
        return _Read(tensor, tuple(forms), frozenset(clamps))

    def _of_operand(self, value: ir.Value) -> _Read | None:
        """An element of an operand that the map walks in order: of a tensor, or of a slice of it."""
        number = ir.BlockArgument(value).arg_number
        if value.owner != self.block or self.maps[number] != ir.AffineMap.get_identity(self.rank):
            return None
        tensor = self.op.operands[number]
        loops = [Linear(frozenset({(d, 1)})) for d in range(self.rank)]
        op = _owner(tensor)
        if op is None or op.name != "tensor.extract_slice":
            return _Read(tensor, tuple(loops))
        source, *values = op.operands
        fixed, extents = (list(ir.DenseI64ArrayAttr(op.attributes[f"static_{n}"])) for n in ("offsets", "sizes"))
        if set(ir.DenseI64ArrayAttr(op.attributes["static_strides"])) != {1}:
            return None
        offsets = iter(values)
        begins = [Linear(const=o) if o >= 0 else Linear(frozenset({(next(offsets), 1)})) for o in fixed]
        for loop, d in zip(loops, kept_dims(extents, shape_of(tensor)), strict=True):
            begins[d] = begins[d].plus(loop)
        return _Read(source, tuple(begins))

    def _tests(self, condition: ir.Value, read: _Read) -> list[tuple[int, bool]] | None:
        """Which ends of a tensor's rows and columns a condition tests an element for; None for another condition."""
        op = _owner(condition)
        if op is None:
            return None
        if op.name == "arith.andi":
            both = [self._tests(v, read) for v in op.operands]
            return None if None in both else [t for tests in both for t in tests or ()]
        if op.name != "arith.cmpi":
            return None
        a, b = (self._form(v, None) for v in op.operands)
        if a is None or b is None or b[0].terms or a[1] or b[1]:
            return None
        predicate, shape = ir.IntegerAttr(op.attributes["predicate"]).value, shape_of(read.tensor)
        for d in range(len(shape)):
            if read.place[d].terms == a[0].terms and read.place[d].terms:
                moved = b[0].const + read.place[d].const - a[0].const
                if predicate == _SGE and moved == 0:
                    return [(d, False)]
                if predicate == _SLT and moved == shape[d]:
                    return [(d, True)]
        return None

    # -- indices

    def _form(self, value: ir.Value, size: int | None) -> tuple[Linear, frozenset[bool]] | None:
        """An index, and at which ends of a dimension of `size` it is clamped to that."""
        op = _owner(value)
        if op is not None and op.name == "arith.constant":
            return Linear(const=ir.IntegerAttr(op.attributes["value"]).value), frozenset()
        if op is None or op.block != self.block:
            return Linear(frozenset({(value, 1)})), frozenset()
        if op.name == "linalg.index":
            return Linear(frozenset({(ir.IntegerAttr(op.attributes["dim"]).value, 1)})), frozenset()
        if op.name not in ("arith.addi", "arith.muli", "arith.maxsi", "arith.minsi"):
            return None
        forms = [self._form(v, size) for v in op.operands]
        if forms[0] is None or forms[1] is None:
            return None
        (a, clamped), (b, others) = forms[0], forms[1]
        if op.name in ("arith.maxsi", "arith.minsi"):
            limit = 0 if op.name == "arith.maxsi" else None if size is None else size - 1
            if b.terms or limit is None or b.const != limit:
                return None
            return a, clamped | {op.name == "arith.minsi"}
        if clamped or others:
            return None
        if op.name == "arith.addi":
            return a.plus(b), frozenset()
        if a.terms and b.terms:
            return None
        return (a.times(b.const) if a.terms else b.times(a.const)), frozenset()


def _owner(value: ir.Value) -> ir.Operation | None:
    return None if isinstance(value.owner, ir.Block) else value.owner.operation


def _taps(shape: Iterable[int]) -> int:
    *taps, _ = shape
    total = 1
    for n in taps:
        total *= n
    return total


def _number(weight: _Read) -> int:
    """A weight's number among the taps."""
    number = 0
    for form, n in zip(weight.place[:-1], shape_of(weight.tensor)[:-1], strict=True):
        number = number * n + form.const
    return number
