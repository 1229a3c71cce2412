"""Verbs that schedule scripts are written with: each adds transform ops at the current insertion point."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from mlirc.dialects import score_functions
from mlirc.dialects.schedule._base import handle, is_int, short
from mlirc.dialects.schedule.align_rows import align_rows
from mlirc.dialects.schedule.change_score import change_score
from mlirc.dialects.schedule.collapse_dims import collapse_dims
from mlirc.dialects.schedule.collapse_vectors import collapse_vectors
from mlirc.dialects.schedule.decompose_attention import decompose_attention
from mlirc.dialects.schedule.generalize import generalize
from mlirc.dialects.schedule.hoist import hoist
from mlirc.dialects.schedule.match_contractions import match_contractions
from mlirc.dialects.schedule.match_operands import match_operands
from mlirc.dialects.schedule.match_reductions import match_reductions
from mlirc.dialects.schedule.match_root import match_root
from mlirc.dialects.schedule.online_softmax import online_softmax
from mlirc.dialects.schedule.partial_results import partial_results
from mlirc.dialects.schedule.pick import pick
from mlirc.dialects.schedule.place_results import place_results
from mlirc.dialects.schedule.read_first import read_first
from mlirc.dialects.schedule.read_matrices import read_matrices
from mlirc.dialects.schedule.read_pages import read_pages
from mlirc.dialects.schedule.read_windows import read_windows
from mlirc.dialects.schedule.read_words import read_words
from mlirc.dialects.schedule.reduce_together import reduce_together
from mlirc.dialects.schedule.require import require
from mlirc.dialects.schedule.reverse_blocks import reverse_blocks
from mlirc.dialects.schedule.roll import roll
from mlirc.dialects.schedule.rotate import rotate
from mlirc.dialects.schedule.skip_hidden_steps import skip_hidden_steps
from mlirc.dialects.schedule.split_k import split_k
from mlirc.dialects.schedule.split_reductions import split_reductions
from mlirc.dialects.schedule.split_softmax import split_softmax
from mlirc.dialects.schedule.split_tested_steps import split_tested_steps
from mlirc.dialects.schedule.state_reference import state_reference as kept_reference
from mlirc.dialects.schedule.stream_k import stream_k
from mlirc.dialects.schedule.swap_operands import swap_operands
from mlirc.dialects.schedule.tile_reduction import tile_reduction
from mlirc.dialects.schedule.tile_scan import tile_scan
from mlirc.dialects.schedule.tile_to_blocks import tile_to_blocks
from mlirc.mlir import ir, transform, transform_structured
from mlirc.schedule import attributes as schedule_attributes
from mlirc.schedule.errors import ValueOutOfRange, VerbError, caller_place

__all__ = [
    "align_rows",
    "annotate",
    "cluster",
    "collapse_dims",
    "collapse_vectors",
    "decompose_attention",
    "generalize",
    "handed_on",
    "hoist",
    "last_block",
    "match",
    "match_contractions",
    "match_operands",
    "match_reductions",
    "match_root",
    "online_softmax",
    "partial_results",
    "persist",
    "pick",
    "pipeline",
    "place_results",
    "power_of_two",
    "read_first",
    "read_matrices",
    "read_pages",
    "read_windows",
    "read_words",
    "reduce_together",
    "reverse_blocks",
    "roll",
    "rotate",
    "script",
    "skip_hidden_steps",
    "specialize",
    "split_k",
    "split_reductions",
    "split_softmax",
    "split_tested_steps",
    "spread",
    "stage",
    "score_with",
    "state_reference",
    "store_through_shared",
    "stream_k",
    "swap_operands",
    "take_turns",
    "tile_reduction",
    "tile_scan",
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
    chosen = {k: _attribute(f"script: {k}", v) for k, v in knobs.items() if v is not None}
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


def handed_on(module: ir.Module, name: str, reason: str) -> ir.Module:
    """The transform module of the script `name`, to which another script hands a kernel on for a reason."""
    module.operation.attributes["mlirc.script"] = ir.StringAttr.get(name)
    module.operation.attributes["mlirc.reason"] = ir.StringAttr.get(reason)
    return module


_INT32 = range(-(2**31), 2**31)


def _attribute(name: str, value: Any) -> ir.Attribute:
    """A knob's or annotation's value as an attribute; raises VerbError for a value that is none."""
    if isinstance(value, bool):
        return ir.BoolAttr.get(value)
    if is_int(value, _INT32):
        return ir.IntegerAttr.get(ir.IntegerType.get_signless(32), value)
    if isinstance(value, str):
        return ir.StringAttr.get(value)
    if isinstance(value, list | tuple) and all(map(is_int, value)):
        return ir.DenseI64ArrayAttr.get(list(value))
    raise VerbError(
        f"{name} = {short(value)}: give a whole number of 32 bits, true or false, a string or a list of whole numbers"
    )


def annotate(target: ir.Value, **values: Any) -> None:
    """Sets `mlirc.<name>` on every payload op of the handle; None leaves it out.

    The names and their values are those of `mlirc.schedule.attributes`; raises VerbError for others. What no pass
    reads, or cannot honour, is an error when the kernel is compiled.
    """
    for name, value in values.items():
        if value is None:
            continue
        plain = list(value) if isinstance(value, tuple) else value
        problem = schedule_attributes.wrong(name, plain)
        if problem:
            raise ValueOutOfRange(name, problem)
        param = transform.param_constant(transform.AnyParamType.get(), _attribute(f"annotate: {name}", plain))
        transform.annotate(handle("annotate", target), f"mlirc.{name}", param=param)


def stage(target: ir.Value, *, copy: str | None = None, swizzle: int | None = None) -> None:
    """How operands come to shared memory: all of a product's, or a single one (`match_operands`), whose word counts for
    more. `copy` is "registers" (through each thread's, and so of any rows, and of what the loop computes), "cp_async"
    (asynchronous copies of 16 bytes of each thread) or "tma" (whole tiles, by one thread of a producer: see
    `specialize`). `swizzle`, of single slices: how many bytes of a row are permuted."""
    if copy is None and swizzle is None:
        raise VerbError("stage: give copy, or swizzle (of operands)")
    annotate(target, copy=copy, swizzle=swizzle)


def pipeline(loop: ir.Value, *, depth: int) -> None:
    """The copies of what products in a loop read run ahead through a ring of `depth` slots in shared memory."""
    annotate(loop, stages=depth)


def specialize(loop: ir.Value, *, producers: int = 1, registers: Sequence[int] | None = None) -> None:
    """Roles for the warps of a block: of `producers` more warps one fills the loop's rings, the others compute. With 4
    they are a warpgroup, which gives its registers to those that compute: `registers` of a thread of each, (producer,
    consumer)."""
    annotate(loop, producers=producers, registers=None if registers is None else tuple(registers))


def take_turns(loop: ir.Value, *, groups: int = 2) -> None:
    """The warps that compute are `groups` groups of whole warpgroups, which issue the loop's products by wgmma in
    turns: what a group computes between its products runs while the tensor cores have those of the others."""
    annotate(loop, turns=groups)


def last_block(forall: ir.Value, *, warps: int) -> None:
    """A block program that reads the parts of the one in front of it (`split_softmax`, `split_k(through="memory")`) is
    no launch of its own: the last block of those whose parts one of its blocks reads computes that. Parts are combined
    in their order, whoever comes last. `warps`: of the block that do it; those that have nothing to do before wait."""
    annotate(forall, last_block=warps)


def persist(forall: ir.Value, *, blocks: int) -> None:
    """`blocks` blocks are launched, each of which computes every so many-th block of the forall: its producers copy the
    next one's tiles while the last one's results are stored."""
    annotate(forall, persist=blocks)


def spread(forall: ir.Value, *, blocks: int) -> None:
    """`blocks` blocks of a cluster compute one block of the forall together, as if they were one with all their warps:
    rows that are too long for one, or few."""
    annotate(forall, spread=blocks)


def cluster(forall: ir.Value, *, size: int) -> None:
    """`size` blocks that follow each other form a cluster: a tile that all of them read is copied once, a part of it by
    each, to all of them."""
    annotate(forall, cluster=size)


def store_through_shared(forall: ir.Value, *, copy: str = "tma") -> None:
    """Results leave the block through shared memory: "tma", each warp's rows by tensor copies; "rows": they change
    threads there, or by shuffles, so that each one stores up to 16 bytes of a row; "vector": not at all, but by each
    thread's own stores."""
    annotate(forall, store=copy)


def score_with(attention: ir.Value, function: Callable[..., ir.Value], *, softmax: bool = True) -> ir.Value:
    """Attention with a function of its scores: `function(score, b, h, i, j)` builds arith and math ops of an f32 score
    and the indices of batch, head, query and key, and returns the score that the softmax sees; or without `softmax` the
    weight. Returns the new attention. Raises VerbError for a function that builds something else."""
    try:
        lines = score_functions.write(function, ir.F32Type.get())
    except ValueError as e:
        raise VerbError(f"score_with: {e}") from e
    return change_score(attention, lines="\n".join(lines), softmax=softmax)


def state_reference(function: ir.Value, *, tolerance: float = 0.0) -> None:
    """What the kernel computes where this stands is what it must compute, in the place of what it is at the `kernels`
    level: for a script that approximates on purpose, or computes something else. Results may have the relative error
    `tolerance`. The check of a model, the host device and the checks of single kernels go by it, and say so."""
    if isinstance(tolerance, bool) or not isinstance(tolerance, (int, float)) or not 0 <= tolerance < 1:
        raise VerbError(f"state_reference: tolerance = {short(tolerance)}: give a relative error from 0 to less than 1")
    kept_reference(function, tolerance=repr(float(tolerance)), by=caller_place())


def match(inside: ir.Value, *names: str) -> ir.Value:
    """All ops of these names nested in the handle; the script fails when there is none."""
    if not names or not all(isinstance(n, str) and n for n in names):
        raise VerbError(f"match takes a handle and names of ops, as 'linalg.generic', not {short(names)}")
    found = transform_structured.MatchOp.match_op_names(handle("match", inside), list(names))
    return require(found.results[0], what=" or ".join(names))


def tidy(function: ir.Value, *block_programs: ir.Value) -> None:
    """Removes dead ops of the function and merges equal ops of its block programs.

    Not `canonicalize`, which would inline a forall or loop of one trip; and no merging over the whole function, which
    would let two results share one `tensor.empty`.
    """
    transform.apply_dce(handle("tidy", function))
    for forall in block_programs:
        transform.apply_cse(handle("tidy", forall))


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
