"""What a kernel at level `tiles` is written with: blocks, loops and slices; see docs/own-kernels.md.

    def program(rows, columns):                       # what a block computes: its part of the result
        def step(k, sums):
            return blocks.matmul(a[rows, k], b[k, columns], sums, mma="mma", warp_grid=[2, 2])
        return blocks.loop(K, 32, step, blocks.zeros(rows, columns), stages=3)
    return blocks.grid(program, (M, 64), (N, 64), warps=4)

`mlirc.kernel.ops` work on tiles, too. Attributes are those of docs/schedules.md; what cannot be honoured is an error at
the line that sets it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mlirc.dialects.schedule import _build
from mlirc.dialects.schedule.tile_to_blocks import mapping_of
from mlirc.kernel.places import error, user_line
from mlirc.kernel.scalar import Scalar, dtype_named
from mlirc.kernel.span import Extent, Span, is_unit
from mlirc.kernel.state import current
from mlirc.kernel.tensor import Tensor, axes_of, described, empty, filled, generic, ordered, place, tensor_of
from mlirc.kernel.tensor import matmul as plain_matmul
from mlirc.mlir import arith, ir, scf
from mlirc.schedule import attributes as schedule_attributes
from mlirc.schedule.places import note_attribute

LEVEL = "tiles"
_OF_FUNCTION = ("warps", "min_blocks")


def grid(program: Callable[..., Any], *tiles: tuple[int, int], out: Any = None, **attributes: Any) -> Any:
    """A launch of blocks: `program` is called with a Span of each of the `tiles`, (extent, size of a tile), of which
    the last one's blocks follow each other, and returns the block's part of each result: a tile whose dimensions are
    these Spans, or whole.

    Returns the results, which have the dtype and shape `out` (a pair, or a list of pairs), or as without those of the
    kernel. `attributes`: `warps`, `min_blocks`, and those of an scf.forall. Raises KernelError for what does not
    fit."""
    state = current(LEVEL)
    listed = [out] if out is not None and isinstance(out[0], str) else list(state.results if out is None else out)
    if not listed or None in listed:
        raise error('grid: annotate the kernel\'s result, as -> "bf16[M,N]", or give out=(dtype, shape)')
    wanted = [(dtype_named(dtype), tuple(shape)) for dtype, shape in listed]
    if not tiles or not all(isinstance(t, tuple) and len(t) == 2 and 0 < t[1] for t in tiles):
        raise error("grid takes for each loop over blocks (extent, size of a tile)")
    outs = [empty(shape, dtype) for dtype, shape in wanted]
    counts = [-(-extent // size) for extent, size in tiles]
    forall = scf.ForallOp([0] * len(counts), counts, [1] * len(counts), outs, mapping=mapping_of(len(counts)))
    ids = list(forall.induction_variables)
    with ir.InsertionPoint(forall.body):
        spans = [_span(_build.scaled(i, size), extent, size) for i, (extent, size) in zip(ids, tiles, strict=True)]
        made = program(*spans)
        parts = [x if isinstance(x, Tensor) else tensor_of(x, "a block program's result") for x in _listed(made)]
        if len(parts) != len(wanted):
            raise error(f"grid: the block program returns {len(parts)} tiles for {len(wanted)} results")
        held = [_part(x, *shaped) for x, shaped in zip(parts, wanted, strict=True)]
        terminator = scf.InParallelOp()
    with ir.InsertionPoint(terminator.region.blocks[0]):
        for (value, offsets, sizes), target in zip(held, forall.inner_iter_args, strict=True):
            _build.parallel_insert_slice(value, target, offsets, sizes)
    of_function = {n: attributes.pop(n) for n in _OF_FUNCTION if n in attributes}
    for name, value in of_function.items():
        state.attributes[f"mlirc.{name}"] = _attribute(name, value)
        state.demands.add(name)
    _set(forall.operation, attributes)
    results = [Tensor(v, shape, axes_of(shape)) for v, (_, shape) in zip(forall.results, wanted, strict=True)]
    return results[0] if len(results) == 1 else tuple(results)


def _listed(x: Any) -> list[Any]:
    return list(x) if isinstance(x, (tuple, list)) else [x]


def _span(offset: ir.Value, extent: int, tile: int) -> Span:
    size = tile if extent % tile == 0 else _build.remaining(offset, extent, tile)
    return Span(offset, size, tile, extent)


def _part(x: Tensor, dtype: str, shape: tuple[int, ...]) -> tuple[ir.Value, list[Any], list[Any]]:
    """The value of a tile, and where it goes in a result that has no dimensions of extent 1."""
    if x.ndim != len(shape):
        raise error(f"grid: the block program returns {described(x)} for a result {dtype}{list(shape)}")
    offsets: list[Any] = []
    sizes: list[Any] = []
    for n, extent in zip(x.shape, shape, strict=True):
        if (n.extent if isinstance(n, Span) else n) != extent:
            raise error(f"grid: the block program returns {described(x)} for a result {dtype}{list(shape)}")
        if extent != 1:
            offsets.append(n.offset if isinstance(n, Span) else 0)
            sizes.append(n.size if isinstance(n, Span) else n)
    return ordered(x.to(dtype)).held, offsets, sizes


def loop(extent: int, step: int, body: Callable[..., Any], *start: Any, **attributes: Any) -> Any:
    """Steps of `step` along a dimension of `extent`: `body` is called with the step's Span and what is carried, and
    returns what the next one is given. Carried are the tiles `start`; what the last step returns is the result.

    `attributes` are those of an scf.for, as `stages`. Raises KernelError where the body returns other shapes."""
    current(LEVEL)
    if not isinstance(extent, int) or not isinstance(step, int) or step < 1:
        raise error(f"loop takes an extent and a step, not {extent!r} and {step!r}")
    carried = [ordered(tensor_of(x, "loop")) for x in start]
    if not carried:
        raise error("loop: give the tiles that it carries")
    made = scf.ForOp(_build.index(0), _build.index(extent), _build.index(step), [x.held for x in carried])
    with ir.InsertionPoint(made.body):
        span = _span(made.induction_variable, extent, step)
        inner = [Tensor(v, x.shape, x._axes) for v, x in zip(made.inner_iter_args, carried, strict=True)]
        found = _listed(body(span, *inner))
        if not all(isinstance(x, Tensor) for x in found) or [_type(x) for x in found] != [_type(x) for x in carried]:
            got = ", ".join(described(x) if isinstance(x, Tensor) else type(x).__name__ for x in found)
            raise error(f"loop: its body returns {got}, and it carries {', '.join(map(described, carried))}")
        scf.YieldOp([ordered(x).held for x in found])
    _set(made.operation, attributes)
    results = [Tensor(v, x.shape, x._axes) for v, x in zip(made.results, carried, strict=True)]
    return results[0] if len(results) == 1 else tuple(results)


def _type(x: Tensor) -> tuple[Any, ...]:
    return (x.dtype, *x.shape)


def matmul(a: Any, b: Any, sums: Tensor | None = None, **attributes: Any) -> Tensor:
    """The product of tiles, added to accumulators if they are given. `attributes` are those of a contraction: `mma`,
    `warp_grid`, `copy`."""
    made = plain_matmul(a, b, sums)
    if attributes:
        annotate(made, **attributes)
    return made


def zeros(*shape: Extent, dtype: Any = "f32") -> Tensor:
    """A tile of zeros: accumulators."""
    return full_of(0, *shape, dtype=dtype)


def full_of(number: float, *shape: Extent, dtype: Any = "f32") -> Tensor:
    """A tile of one number."""
    return filled(number, shape, dtype_named(dtype))


def places(span: Span) -> Tensor:
    """Which places of the whole dimension a Span has, as i64 [span]: for masks."""
    if not isinstance(span, Span):
        raise error(f"places takes a Span, not {type(span).__name__}")
    if is_unit(span):
        raise error("places: a Span of one place is a number, which no tile holds")
    return generic([], (span,), (0,), None, lambda: Scalar(arith.addi(place(0), span.offset)).to("i64"))


def annotate(x: Any, **attributes: Any) -> Any:
    """Sets attributes of docs/schedules.md on the operation that makes a tile, and returns the tile."""
    current(LEVEL)
    owner = tensor_of(x, "annotate").held.owner
    if isinstance(owner, ir.Block):
        raise error("annotate: an input of the kernel, or what a loop carries, is made by no operation")
    _set(owner, attributes)
    return x


def _attribute(name: str, value: Any) -> ir.Attribute:
    plain = list(value) if isinstance(value, tuple) else value
    if problem := schedule_attributes.wrong(name, plain):
        raise error(problem)
    if isinstance(plain, bool):
        return ir.BoolAttr.get(plain)
    if isinstance(plain, int):
        return ir.IntegerAttr.get(ir.IntegerType.get_signless(32), plain)
    return ir.StringAttr.get(plain) if isinstance(plain, str) else ir.DenseI64ArrayAttr.get(plain)


def _set(op: ir.Operation, attributes: dict[str, Any]) -> None:
    state, line = current(LEVEL), user_line()
    for name, value in attributes.items():
        if value is None:
            continue
        op.attributes[f"mlirc.{name}"] = _attribute(name, value)
        known = schedule_attributes.table()[name]
        if not schedule_attributes.stands_on(op, known):
            raise error(f"'{name}' belongs on {known.on}, not on {op.name}")
        note_attribute(op, name, line)
        state.demands.add(name)
