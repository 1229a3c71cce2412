"""Tensors of a kernel that is being built, and the one operation that all builders are made of: `linalg.generic`.

A `Tensor` is a value of MLIR seen through axes: a transposed, broadcast or unsqueezed tensor is the same value, read by
another indexing map. Values have no dimensions of extent 1.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from mlirc.dialects.schedule import _build
from mlirc.kernel.operators import Operators
from mlirc.kernel.places import error
from mlirc.kernel.scalar import Scalar, common, constant, dtype_named, element_type
from mlirc.kernel.span import Extent, Span, is_unit, size_of
from mlirc.mlir import ir, linalg, tensor


class Tensor(Operators):
    """A tensor of a kernel. `shape` has its extents, `dtype` the name of its elements' type (`bf16`).

    Operators and the functions of `mlirc.kernel.ops` work on it element by element and broadcast as PyTorch's do.
    Floats of 16 and 8 bits are computed with in f32, and rounded only by `to`, or where the kernel's result has them.
    """

    def __init__(self, value: ir.Value, shape: Sequence[Extent], axes: Sequence[int | None]):
        self.held, self.shape, self._axes = value, tuple(shape), tuple(axes)

    @property
    def dtype(self) -> str:
        """The name of the elements' type."""
        return str(ir.RankedTensorType(self.held.type).element_type)

    @property
    def ndim(self) -> int:
        """How many dimensions it has."""
        return len(self.shape)

    @property
    def value(self) -> ir.Value:
        """A value of MLIR of just this shape, for builders of MLIR's own; `ops.tensor` makes a Tensor of their
        result."""
        return full(self)

    def to(self, dtype: Any) -> Tensor:
        """The elements in another type, rounded to nearest even; of integers cut."""
        name = dtype_named(dtype)
        return self if name == self.dtype else apply(lambda x: x.to(name), self)

    @property
    def T(self) -> Tensor:
        """The last two dimensions changed for each other; no data moves."""
        if self.ndim < 2:
            raise error(f"T takes a tensor of two dimensions or more, not {described(self)}")
        return self.permute(*range(self.ndim - 2), self.ndim - 1, self.ndim - 2)

    def permute(self, *dims: int) -> Tensor:
        """The dimensions in another order; no data moves."""
        found = [_dim(self, d) for d in dims]
        if sorted(found) != list(range(self.ndim)):
            raise error(f"permute{dims} of {described(self)}: name each dimension once")
        return Tensor(self.held, [self.shape[d] for d in found], [self._axes[d] for d in found])

    def unsqueeze(self, dim: int) -> Tensor:
        """The tensor with a dimension of extent 1 more; no data moves."""
        at = dim + self.ndim + 1 if dim < 0 else dim
        if not 0 <= at <= self.ndim:
            raise error(f"unsqueeze({dim}) of {described(self)}: the dimension is out of range")
        return Tensor(self.held, (*self.shape[:at], 1, *self.shape[at:]), (*self._axes[:at], None, *self._axes[at:]))

    def squeeze(self, dim: int) -> Tensor:
        """The tensor without a dimension of extent 1; no data moves."""
        at = _dim(self, dim)
        if self.shape[at] != 1:
            raise error(f"squeeze({dim}) of {described(self)}: the dimension's extent is not 1")
        return Tensor(self.held, (*self.shape[:at], *self.shape[at + 1 :]), (*self._axes[:at], *self._axes[at + 1 :]))

    def expand(self, *shape: Extent) -> Tensor:
        """The tensor broadcast to a shape, as PyTorch's; no data moves."""
        return _broadcast(self, shape)

    def _each(self, function: Callable[..., Any], *operands: Any) -> Tensor:
        return apply(function, *operands)

    def __matmul__(self, other: Any) -> Tensor:
        return matmul(self, other)

    def __getitem__(self, items: Any) -> Tensor:
        """A slice: of each dimension a `Span` of a block or a step, a number, `a:b`, or all of it."""
        return sliced(self, items if isinstance(items, tuple) else (items,))

    def __repr__(self) -> str:
        return f"Tensor({described(self)})"


def described(x: Tensor) -> str:
    """Type and shape in words: `bf16[128,64]`."""
    return f"{x.dtype}[{','.join(map(str, x.shape))}]"


def tensor_of(x: Any, what: str) -> Tensor:
    """The tensor as it is; raises KernelError for anything else."""
    if not isinstance(x, Tensor):
        hint = (
            ": a tensor of PyTorch is an input of the kernel, not a part of it" if hasattr(x, "untyped_storage") else ""
        )
        raise error(f"{what} takes tensors of the kernel, not {type(x).__name__}{hint}")
    return x


def _dim(x: Tensor, dim: Any) -> int:
    if not isinstance(dim, int) or isinstance(dim, bool) or not -x.ndim <= dim < x.ndim:
        raise error(f"dimension {dim} of {described(x)}: it has {x.ndim}")
    return dim % x.ndim


def _broadcast(x: Tensor, shape: Sequence[Extent]) -> Tensor:
    """The tensor with another shape that it broadcasts to."""
    new = len(shape) - x.ndim
    if new < 0 or any(have != 1 and have != want for have, want in zip(x.shape, shape[new:], strict=True)):
        raise error(f"{described(x)} does not broadcast to [{','.join(map(str, shape))}]")
    return Tensor(x.held, shape, (*[None] * new, *x._axes))


def together(tensors: Sequence[Tensor]) -> tuple[Extent, ...]:
    """The shape that tensors broadcast to. Raises KernelError where they do not."""
    rank = max((x.ndim for x in tensors), default=0)
    shape: list[Extent] = [1] * rank
    for x in tensors:
        for d, extent in enumerate(x.shape, rank - x.ndim):
            if shape[d] == 1:
                shape[d] = extent
            elif extent != 1 and extent != shape[d]:
                raise error(f"shapes do not broadcast: {', '.join(map(described, tensors))}")
    return tuple(shape)


def empty(shape: Sequence[Extent], dtype: str) -> ir.Value:
    """`tensor.empty` of the extents that are not 1."""
    return tensor.empty([size_of(n) for n in shape if not is_unit(n)], element_type(dtype))


def axes_of(shape: Sequence[Extent]) -> list[int | None]:
    """The axes of a value whose dimensions are those of a shape that are not 1."""
    kept = [d for d, n in enumerate(shape) if not is_unit(n)]
    return [kept.index(d) if not is_unit(n) else None for d, n in enumerate(shape)]


def filled(number: Any, shape: Sequence[Extent], dtype: str) -> Tensor:
    """A tensor of one number."""
    value = linalg.fill(constant(number, dtype), outs=[empty(shape, dtype)])
    return Tensor(value, shape, axes_of(shape))


def generic(
    inputs: Sequence[tuple[Tensor, Sequence[int | None]]],
    dims: Sequence[Extent],
    kept: Sequence[int],
    start: Tensor | None,
    body: Callable[..., Scalar],
    dtype: str | None = None,
) -> Tensor:
    """A `linalg.generic` over loops of extents `dims`: `inputs` with the loop of each of their dimensions (None: of
    extent 1), a result of the loops `kept`, in this order. `body` makes an element of the result of one of each input
    and, with `start`, of what there is so far. The result has `dtype`, or the type of what `body` makes. Loops of
    extent 1 are left out."""
    loops = [d for d, n in enumerate(dims) if not is_unit(n)]
    place = {d: ir.AffineDimExpr.get(i) for i, d in enumerate(loops)}

    def map_of(x: Tensor, at: Sequence[int | None]) -> ir.AffineMap:
        rank = ir.RankedTensorType(x.held.type).rank
        found: list[Any] = [None] * rank
        for axis, d in zip(x._axes, at, strict=True):
            if axis is not None and d is not None:
                found[axis] = place[d]
        return ir.AffineMap.get(len(loops), 0, found)

    scratch = ir.Operation.create("builtin.module", regions=1, ip=False)
    block = scratch.regions[0].blocks.append(*(element_type(x.dtype) for x, _ in inputs))
    with ir.InsertionPoint(block):
        elements = [Scalar(a) for a in block.arguments]
        last = block.add_argument(element_type(start.dtype), ir.Location.unknown()) if start is not None else None
        result = body(*elements, *([Scalar(last)] if last is not None else []))
        result = result.to(dtype or result.dtype)
        if last is None:
            block.add_argument(result.value.type, ir.Location.unknown())
        linalg.YieldOp([result.value])
    shape = [dims[d] for d in kept]
    out = start.held if start is not None else empty(shape, result.dtype)
    maps = [map_of(x, at) for x, at in inputs]
    maps.append(ir.AffineMap.get(len(loops), 0, [place[d] for d in kept if d in place]))
    kinds = ["parallel" if d in kept else "reduction" for d in loops]
    iterators = ir.ArrayAttr.get([ir.Attribute.parse(f"#linalg.iterator_type<{kind}>") for kind in kinds])
    listed = ir.ArrayAttr.get([ir.AffineMapAttr.get(m) for m in maps])
    made = linalg.GenericOp([out.type], [x.held for x, _ in inputs], [out], listed, iterators)
    block.append_to(made.regions[0])
    return Tensor(made.results[0], shape, axes_of(shape))


def apply(function: Callable[..., Any], *operands: Any, dtype: str | None = None) -> Tensor:
    """`function` of an element of each operand, for every element; operands broadcast, numbers are as they are.

    The result has `dtype`, or the type that the function computes. Raises KernelError where shapes do not fit."""
    tensors = [x for x in operands if isinstance(x, Tensor)]
    for x in operands:
        if not isinstance(x, (Tensor, int, float)):
            tensor_of(x, "an operation")
    shape = together(tensors)

    def body(*elements: Scalar) -> Scalar:
        left = iter(elements)
        result = function(*(next(left) if isinstance(x, Tensor) else x for x in operands))
        if not isinstance(result, Scalar):
            raise error(f"the function of elements returns an element, not {type(result).__name__}")
        return result

    inputs = [(x, _loops(x, shape)) for x in tensors]
    return generic(inputs, shape, range(len(shape)), None, body, dtype)


def _loops(x: Tensor, shape: Sequence[Extent]) -> list[int | None]:
    first = len(shape) - x.ndim
    return [first + d if not is_unit(x.shape[d]) else None for d in range(x.ndim)]


def matmul(a: Any, b: Any, start: Tensor | None = None) -> Tensor:
    """The matrix product [..., M, K] x [..., K, N], with leading dimensions that broadcast, added to `start` if that is
    given. Accumulators, and so the result, are f32 of floats of 32 bits or fewer, i32 of 8-bit integers, and else of
    the operands' type."""
    a, b = tensor_of(a, "matmul"), tensor_of(b, "matmul")
    if a.ndim < 2 or b.ndim < 2:
        raise error(f"matmul takes matrices, not {described(a)} and {described(b)}")
    if a.shape[-1] != b.shape[-2]:
        raise error(f"matmul: {described(a)} has {a.shape[-1]} columns, and {described(b)} has {b.shape[-2]} rows")
    dtype = accumulated(common([a.dtype, b.dtype]))
    batch = together([_lead(a), _lead(b)])
    shape = (*batch, a.shape[-2], b.shape[-1])
    if start is not None and (start.dtype, start.shape) != (dtype, shape):
        wanted = f"{dtype}[{','.join(map(str, shape))}]"
        raise error(f"matmul: the accumulators are {described(start)}, and the product is {wanted}")
    if is_unit(a.shape[-1]):
        made = apply(lambda x, y: x.to(dtype) * y.to(dtype), a, b, dtype=dtype)
        return made if start is None else start + made
    dims = (*shape, a.shape[-1])
    n = len(batch)
    places = (
        [*_loops(_lead(a), batch), n, n + 2],
        [*_loops(_lead(b), batch), n + 2, n + 1],
    )
    inputs = [
        (x, [d if d is not None and not is_unit(x.shape[i]) else None for i, d in enumerate(at)])
        for x, at in zip((a, b), places, strict=True)
    ]
    first = filled(0, shape, dtype) if start is None else ordered(start)
    return generic(inputs, dims, range(n + 2), first, lambda x, y, c: c + x.to(dtype) * y.to(dtype), dtype)


def accumulated(dtype: str) -> str:
    """The type of sums of elements."""
    return {"i8": "i32", "i1": "i64", "i16": "i32"}.get(dtype, dtype)


def _lead(x: Tensor) -> Tensor:
    return Tensor(x.held, x.shape[:-2], x._axes[:-2])


def reduced(
    x: Tensor,
    dims: Sequence[int],
    keepdim: bool,
    start: Any,
    combine: Callable[[Any, Any], Scalar],
    dtype: str,
) -> Tensor:
    """The elements along some dimensions combined into one, from `start` on."""
    gone = sorted({_dim(x, d) for d in dims})
    kept = [d for d in range(x.ndim) if d not in gone]
    first = filled(start, [x.shape[d] for d in kept], dtype)
    if all(is_unit(x.shape[d]) for d in gone):
        shown = Tensor(x.held, [x.shape[d] for d in kept], [x._axes[d] for d in kept])
        found = apply(lambda a: a.to(dtype), shown)
    else:
        at = [d if not is_unit(x.shape[d]) else None for d in range(x.ndim)]
        found = generic([(x, at)], x.shape, kept, first, lambda a, c: combine(c, a.to(dtype)), dtype)
    for d in gone if keepdim else ():
        found = found.unsqueeze(d)
    return found


def place(loop: int) -> ir.Value:
    """Inside of a body: the index of one of the operation's loops."""
    return linalg.IndexOp(ir.IntegerAttr.get(ir.IntegerType.get_signless(64), loop)).result


def _in_order(x: Tensor) -> bool:
    """Whether the dimensions of the value that is held are those of the tensor, in its order."""
    return [a for a in x._axes if a is not None] == list(range(ir.RankedTensorType(x.held.type).rank)) and not any(
        a is None and not is_unit(n) for a, n in zip(x._axes, x.shape, strict=True)
    )


def ordered(x: Tensor) -> Tensor:
    """The tensor with its dimensions in its own order in the value that is held: copied where they are not."""
    return x if _in_order(x) else apply(lambda a: a, x, dtype=x.dtype)


def sliced(x: Tensor, items: Sequence[Any]) -> Tensor:
    """What `Tensor.__getitem__` gives."""
    if len(items) > x.ndim:
        raise error(f"{len(items)} indices for {described(x)}")
    rank = ir.RankedTensorType(x.held.type).rank
    offsets: list[Any] = [0] * rank
    sizes: list[Any] = [0] * rank
    shape: list[Extent] = []
    axes: list[int | None] = []
    for d, item in enumerate([*items, *[slice(None)] * (x.ndim - len(items))]):
        extent, axis = x.shape[d], x._axes[d]
        start, size, kept = _part(x, d, item)
        if axis is not None:
            offsets[axis], sizes[axis] = start, size
        if kept is not None:
            shape.append(kept)
            axes.append(None if is_unit(kept) else axis)
        elif axis is None and not is_unit(extent):
            raise error(f"index {item} of {described(x)}: its dimension {d} is broadcast")
    if all(o == 0 and n == s for o, n, s in zip(offsets, sizes, ir.RankedTensorType(x.held.type).shape, strict=True)):
        return Tensor(x.held, shape, axes)
    dropped = [axis for axis in range(rank) if axis not in axes]
    left = [axis for axis in range(rank) if axis in axes]
    held = _build.extract_slice(x.held, offsets, sizes, dropped)
    return Tensor(held, shape, [None if axis is None else left.index(axis) for axis in axes])


def _part(x: Tensor, d: int, item: Any) -> tuple[Any, Any, Extent | None]:
    """Offset and size of a slice of one dimension, and the extent that is left of it, None where it is gone."""
    extent = x.shape[d]
    if item == slice(None):
        return 0, size_of(extent), extent
    if isinstance(item, Span) and not isinstance(extent, Span):
        if item.extent != extent:
            raise error(f"{described(x)}: its dimension {d} has {extent}, and the span is one of {item.extent}")
        return item.offset, item.size, item
    if isinstance(extent, int) and isinstance(item, int) and not isinstance(item, bool) and 0 <= item < extent:
        return item, 1, None
    if isinstance(extent, int) and isinstance(item, slice) and item.step in (None, 1):
        first, last, _ = item.indices(extent)
        if first < last:
            return first, last - first, last - first
    raise error(f"index {item} of dimension {d} of {described(x)}: a Span, a number or a:b inside of it is wanted")


def is_input(x: Tensor) -> bool:
    """Whether a tensor is an input of the kernel, as it lies."""
    owner = x.held.owner
    if not isinstance(owner, ir.Block) and owner.name == "tensor.collapse_shape":
        owner = owner.operands[0].owner
    return isinstance(owner, ir.Block) and _in_order(x)


def full(x: Tensor) -> ir.Value:
    """A value of just the tensor's shape: dimensions in its order, those of extent 1 there."""
    x = ordered(x)
    if all(n != 1 for n in x.shape):
        return x.held
    return expanded(x.held, x.shape)


def expanded(value: ir.Value, shape: Sequence[int]) -> ir.Value:
    """A value without dimensions of extent 1 as one that has those of a shape."""
    type_ = ir.RankedTensorType.get(list(shape), ir.RankedTensorType(value.type).element_type)
    return tensor.expand_shape(type_, value, groups(shape), [], list(shape))


def collapsed(value: ir.Value) -> ir.Value:
    """A value of static shape without its dimensions of extent 1."""
    type_ = ir.RankedTensorType(value.type)
    if 1 not in type_.shape:
        return value
    kept = ir.RankedTensorType.get([n for n in type_.shape if n != 1], type_.element_type)
    return tensor.collapse_shape(kept, value, groups(type_.shape))


def groups(shape: Sequence[int]) -> ir.ArrayAttr:
    """For each dimension that is not of extent 1, its number and those of extent 1 around it."""
    found: list[list[int]] = []
    loose: list[int] = []
    for d, n in enumerate(shape):
        if n == 1:
            (found[-1] if found else loose).append(d)
        else:
            found.append([*loose, d])
            loose = []
    i64 = ir.IntegerType.get_signless(64)
    return ir.ArrayAttr.get([ir.ArrayAttr.get([ir.IntegerAttr.get(i64, d) for d in g]) for g in found])
