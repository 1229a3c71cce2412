"""Verbs that schedule scripts are written with: each adds transform ops at the current insertion point."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from mlirc.dialects.schedule.collapse_dims import collapse_dims
from mlirc.dialects.schedule.generalize import generalize
from mlirc.dialects.schedule.match_contractions import match_contractions
from mlirc.dialects.schedule.match_root import match_root
from mlirc.dialects.schedule.require import require
from mlirc.dialects.schedule.split_reductions import split_reductions
from mlirc.dialects.schedule.tile_reduction import tile_reduction
from mlirc.dialects.schedule.tile_to_blocks import tile_to_blocks
from mlirc.mlir import ir, transform, transform_structured

__all__ = [
    "annotate",
    "collapse_dims",
    "generalize",
    "match",
    "match_contractions",
    "match_root",
    "power_of_two",
    "script",
    "split_reductions",
    "tile_reduction",
    "tile_to_blocks",
    "tidy",
]


@contextmanager
def script(**knobs: Any) -> Iterator[tuple[ir.Module, ir.Value]]:
    """A transform module with an open `@__transform_main`; yields the module and the handle of the kernel's function.

    `knobs` are the values the script settled on; they are printed with the module, as `mlirc.knobs`.
    """
    module = ir.Module.create()
    attributes = module.operation.attributes
    attributes["transform.with_named_sequence"] = ir.UnitAttr.get()
    chosen = {k: _attribute(v) for k, v in knobs.items() if v is not None}
    if chosen:
        attributes["mlirc.knobs"] = ir.DictAttr.get(chosen)
    with ir.InsertionPoint(module.body):
        main = transform.NamedSequenceOp(
            "__transform_main",
            [transform.AnyOpType.get()],
            [],
            arg_attrs=[{"transform.readonly": ir.UnitAttr.get()}],
        )
    with ir.InsertionPoint(main.body):
        yield module, main.bodyTarget
        transform.yield_()


def _attribute(value: Any) -> ir.Attribute:
    if isinstance(value, bool):
        return ir.BoolAttr.get(value)
    if isinstance(value, int):
        return ir.IntegerAttr.get(ir.IntegerType.get_signless(32), value)
    if isinstance(value, str):
        return ir.StringAttr.get(value)
    return ir.DenseI64ArrayAttr.get(list(value))


def annotate(target: ir.Value, **values: Any) -> None:
    """Sets `mlirc.<name>` on every payload op of the handle: an int becomes i32, a list of ints array<i64>."""
    for name, value in values.items():
        if value is not None:
            param = transform.param_constant(transform.AnyParamType.get(), _attribute(value))
            transform.annotate(target, f"mlirc.{name}", param=param)


def match(inside: ir.Value, *names: str) -> ir.Value:
    """All ops of these names nested in the handle; the script fails when there is none."""
    found = transform_structured.MatchOp.match_op_names(inside, list(names))
    return require(found.results[0], what=" or ".join(names))


def tidy(function: ir.Value, *block_programs: ir.Value) -> None:
    """Removes dead ops of the function and merges equal ops of its block programs.

    Not `canonicalize`, which would inline a forall or loop of one trip; and no merging over the whole function, which
    would let two results share one `tensor.empty`.
    """
    transform.apply_dce(function)
    for forall in block_programs:
        transform.apply_cse(forall)


def power_of_two(n: int) -> int:
    """The largest power of two that is at most n (1 for n < 1)."""
    return 1 << max(n, 1).bit_length() - 1


def ceil_div(a: int, b: int) -> int:
    return -(-a // b)


def product(numbers: Sequence[int]) -> int:
    result = 1
    for n in numbers:
        result *= n
    return result
