"""Slices that leave their tensor, found without running anything: an edited level must not read wild memory.

Offsets and sizes that follow from loops' variables and constants are evaluated for all iterations; those that depend on
data are checked where the level runs (`mlirc.host.bounds`)."""

from __future__ import annotations

import functools
import re
from typing import Any

import numpy as np

from mlirc.errors import MlircError
from mlirc.ir.affine import affine_value
from mlirc.ir.loops import is_loop, read_loop
from mlirc.mlir import ir, nested
from mlirc.schedule.places import without_tag

_SLICES = {"tensor.extract_slice": 0, "tensor.insert_slice": 1, "tensor.parallel_insert_slice": 1}  # operand sliced
_MOST = 1 << 16  # iterations that are looked at; of more, the first and the last of each loop
_BINARY = {
    "arith.addi": np.add, "arith.subi": np.subtract, "arith.muli": np.multiply, "arith.minsi": np.minimum,
    "arith.maxsi": np.maximum,
}  # fmt: skip


class _Unknown(Exception):
    """A value that depends on data."""


def require_slices_inside(module: ir.Module, source: str = "") -> None:
    """Raises MlircError, at its line of the text called `source`, for a slice that leaves its tensor, and before that
    for a loop over time steps of another form than `read_loop` takes."""
    for loop in (op for op in module.body.operations if is_loop(op)):
        read_loop(loop)
    for op in nested(module.operation):
        if op.name in _SLICES:
            problem = _outside(op, op.operands[_SLICES[op.name]].type.shape)
            if problem:
                place = without_tag(re.sub(r"^loc\((.*)\)$", r"\1", str(op.location))).replace('"-":', f"{source}:")
                raise MlircError(f"{place.replace(chr(34), '')}: {op.name} {problem}")


def _outside(op: ir.Operation, shape: list[int]) -> str:
    """How a slice leaves a tensor of `shape`; "" where it does not, or where that depends on data."""
    dynamic = ir.ShapedType.get_dynamic_size()
    first = {"tensor.extract_slice": 1}.get(op.name, 2)
    counts = [list(op.attributes[f"static_{name}"]) for name in ("offsets", "sizes", "strides")]
    operands = iter(list(op.operands)[first:])
    given: list[list[Any]] = [[next(operands) if n == dynamic else n for n in column] for column in counts]
    if all(isinstance(n, int) for column in given for n in column):
        return ""  # the verifier has looked at constants
    sizes = given[1]
    for d, (offset, _, stride) in enumerate(zip(*given, strict=True)):
        if shape[d] == dynamic:
            continue
        try:
            start, step, *lengths = _Evaluation([offset, stride, *sizes]).values
        except _Unknown:
            continue
        last = start + (lengths[d] - 1) * step
        some = np.logical_and.reduce([length > 0 for length in lengths])  # a slice without elements reads nothing
        wrong = (lengths[d] < 0) | some & ((start < 0) | (last >= shape[d]))
        if wrong.any():
            at = int(np.argmax(wrong))
            where = f"{int(lengths[d].flat[at])} elements from {int(start.flat[at])} on"
            return f"leaves its tensor: {where}, of dimension {d}, which has {shape[d]}"
    return ""


class _Evaluation:
    """Numbers and index values as arrays over the iterations of the loops whose variables they depend on."""

    def __init__(self, wanted: list[Any]):
        self._loops: dict[ir.Value, np.ndarray] = {}
        for value in wanted:
            self._find(value)
        counts = {variable: len(numbers) for variable, numbers in self._loops.items()}
        if np.prod(list(counts.values()), dtype=np.float64) > _MOST:
            self._loops = {v: numbers[[0, -1]] for v, numbers in self._loops.items()}
        grids = np.meshgrid(*self._loops.values(), indexing="ij") if self._loops else []
        self._known: dict[ir.Value, Any] = {v: g.ravel() for v, g in zip(self._loops, grids, strict=True)}
        arrays = [np.asarray(self._value(v), dtype=np.int64) for v in wanted]
        self.values = np.broadcast_arrays(*(np.atleast_1d(a) for a in arrays))

    def _find(self, value: Any) -> None:
        """Notes the loops that a value depends on. Raises _Unknown for one that depends on anything else."""
        if isinstance(value, int) or value in self._loops:
            return
        if isinstance(value.owner, ir.Block):
            self._loops[value] = _iterations(value)
            return
        op = value.owner
        if op.name not in ("arith.constant", "affine.apply", "affine.min", "affine.max", *_BINARY):
            raise _Unknown
        for operand in op.operands:
            self._find(operand)

    def _value(self, value: Any) -> Any:
        if isinstance(value, int):
            return value
        if value not in self._known:
            self._known[value] = self._computed(value.owner)
        return self._known[value]

    def _computed(self, op: ir.Operation) -> Any:
        if op.name == "arith.constant":
            return ir.IntegerAttr(op.attributes["value"]).value
        operands = [self._value(v) for v in op.operands]
        if op.name in _BINARY:
            return _BINARY[op.name](*operands)
        found = ir.AffineMapAttr(op.attributes["map"]).value
        results = [affine_value(e, operands[: found.n_dims], operands[found.n_dims :]) for e in found.results]
        if op.name == "affine.apply":
            return results[0]
        return functools.reduce(np.minimum if op.name == "affine.min" else np.maximum, results)


def _iterations(variable: ir.Value) -> np.ndarray:
    """The values of a loop's variable. Raises _Unknown where its bounds are not constant, or it is none."""
    loop, number = variable.owner.owner, variable.arg_number
    if loop.name == "scf.for" and number == 0:
        bounds = [_constant(v) for v in list(loop.operands)[:3]]
    elif loop.name == "scf.forall":
        names = ("staticLowerBound", "staticUpperBound", "staticStep")
        columns = [list(ir.DenseI64ArrayAttr(loop.attributes[n])) for n in names]
        dynamic = ir.ShapedType.get_dynamic_size()
        if number >= len(columns[0]) or any(c[number] == dynamic for c in columns):
            raise _Unknown
        bounds = [c[number] for c in columns]
    else:
        raise _Unknown
    low, high, step = bounds
    if step <= 0 or high <= low or (high - low) // step > 1 << 20:
        raise _Unknown
    return np.arange(low, high, step)


def _constant(value: ir.Value) -> int:
    if isinstance(value.owner, ir.Block) or value.owner.name != "arith.constant":
        raise _Unknown
    return ir.IntegerAttr(value.owner.attributes["value"]).value
