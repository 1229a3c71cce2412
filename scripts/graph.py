"""The graph-level schedule: which ops of a model become one kernel.

Not a kernel's schedule: it runs once over `@main` and turns the `linalg` level into the `kernels` level. Like every
schedule it is a transform script built by a Python function with knobs, so it prints, and a hand-edited copy can be
given back.
"""

from __future__ import annotations

from typing import Literal

from mlirc.dialects.schedule.apply_pass import apply_pass
from mlirc.errors import MlircError
from mlirc.mlir import context, ir, transform, transform_interpreter, transform_structured, transform_tensor
from mlirc.runtime.plan_check import DEPENDENT_FROM
from mlirc.schedule import register
from mlirc.schedule.errors import script_frames, script_place
from mlirc.schedule.verbs import script
from mlirc.targets import Target

# Named ops that compute each element alone or fold rows: the grouping sees them as `linalg.generic`.
NAMED_MAPS = (
    "abs add ceil copy div div_unsigned elementwise erf exp floor log map max min mul negf powf reciprocal reduce "
    "round rsqrt select sqrt square sub tanh"
).split()

# Elements of an f32 head beyond which attention is two products and a softmax, with the scores in memory.
WIDEST_ATTENTION_F32 = 256

# Compute capability of the targets that have tensor copies.
TENSOR_COPIES_FROM = 90

# Rows of GEMMs that unpack weights again for every tile of rows (benchmarks/results/packed-rows-h200.md).
UNPACK_ROWS = 8192

# Where norms that packed products reduce in parts were timed (benchmarks/results/partial-rows-h200.md).
PARTIAL_ROWS = "kinds=packed rows=1 columns=3584"


@register(matches=lambda kernel: False)
def graph(
    kernel: None,
    target: Target,
    *,
    fuse_epilogue: bool = True,
    fuse_siblings: bool = True,
    fuse_reductions: bool = True,
    fuse_maps: bool = True,
    partial_rows: Literal["apart", "packed", "plain", "all"] | None = None,
    recompute: bool = True,
    merge: bool = True,
    merge_points: int | None = None,
    row_writes: bool = True,
    recurrences: bool = True,
    unpack_rows: int | None = None,
    dependent: bool | None = None,
    branches: bool | None = None,
) -> ir.Module:
    """The transform script that takes a `linalg`-level module to the `kernels` level.

    Knobs:
      fuse_epilogue: maps after a contraction (bias, activation, residual) join its kernel.
      fuse_siblings: two contractions of one left operand that meet in a map (SwiGLU) share a kernel.
      fuse_reductions: a norm or a softmax is one kernel, with the maps before and after it.
      fuse_maps: chains of maps, and data movement, join the kernels of their users.
      partial_rows: what a GEMM's blocks reduce of their rows for the next GEMM, as a norm needs it: of `packed`
        weights, of `plain` GEMVs, of `all`, or `apart`: of none (default: GEMVs of packed weights, from 3,584 columns
        on).
      recompute: what is reduced of one row for GEMVs with it, as a norm, is computed by each of their blocks.
      merge: what computes the rows that a kernel writes joins it, and small independent kernels share a launch.
      merge_points: most elements of the small kernels that share a launch (default: 262144 in graphs that write rows,
        else none).
      row_writes: what rotates the rows of a GEMM, and writes them to a cache, is computed by the GEMM's blocks.
      recurrences: a loop over the time steps of a cell (LSTM, GRU, RNN) is one kernel, which keeps the cell's matrix
        on the multiprocessors, where it fits there.
      unpack_rows: most rows of GEMMs whose packed weights warpgroups unpack on their way to registers; for more a
        launch unpacks the weight (default: 8192 where there are warpgroups).
      dependent: programmatic dependent launch, from sm_90 on (default: of graphs whose GEMMs all have one row, or up to
        16 of 16 bits, on sm_90; where those read many weights, not attention and what follows it, unless they are f32;
        where several read more than 96 MiB of packed ones, none).
      branches: launches that do not depend on each other run at the same time, at the cost of memory for what they use.
    """
    knobs = {
        "epilogue": fuse_epilogue,
        "siblings": fuse_siblings,
        "reductions": fuse_reductions,
        "maps": fuse_maps,
    }
    if dependent and target.cc < DEPENDENT_FROM:
        raise MlircError(f"graph: dependent: {target.name} launches nothing before what is in front of it has ended")
    others = {
        "partial_rows": partial_rows,
        "recompute": recompute,
        "merge": merge,
        "merge_points": merge_points,
        "row_writes": row_writes,
        "recurrences": recurrences,
    }
    others |= {"unpack_rows": unpack_rows, "dependent": dependent, "branches": branches}
    with script(**{f"fuse_{name}": value for name, value in knobs.items()}, **others) as (schedule, module):
        with ir.InsertionPoint(transform.ApplyPatternsOp(module).patterns):
            transform.apply_patterns_canonicalization()
            # A reshape of an empty tensor would become a kernel that launches nothing.
            transform_tensor.apply_patterns_tensor_fold_tensor_empty()
        transform.apply_cse(module)
        any_op = transform.AnyOpType.get()
        named = transform_structured.structured_match(any_op, module, ops=[f"linalg.{name}" for name in NAMED_MAPS])
        transform_structured.structured_generalize(any_op, named)
        apply_pass(module, pass_name="mlirc-decompose-attention", options=f"wide_f32={WIDEST_ATTENTION_F32}")
        apply_pass(module, pass_name="mlirc-fold-attention-layouts", options="")
        copies = "whole=true" if target.cc >= TENSOR_COPIES_FROM else ""
        apply_pass(module, pass_name="mlirc-convolutions", options=copies)
        apply_pass(module, pass_name="mlirc-unroll-windows", options="")
        if recurrences:
            apply_pass(module, pass_name="mlirc-fuse-recurrences", options=f"target={target.name}")
        options = " ".join(f"{name}={str(value).lower()}" for name, value in knobs.items())
        held = UNPACK_ROWS if unpack_rows is None and target.has_wgmma else unpack_rows or 0
        options += f" unpack_rows={held}" if held else ""
        apply_pass(module, pass_name="mlirc-group-kernels", options=options)
        apply_pass(module, pass_name="mlirc-outline-kernels", options="")
        if partial_rows != "apart":
            apply_pass(
                module,
                pass_name="mlirc-partial-rows",
                options=f"kinds={partial_rows}" if partial_rows else PARTIAL_ROWS,
            )
        if recompute:
            apply_pass(module, pass_name="mlirc-recompute-rows", options="")
        if merge:
            points = "" if merge_points is None else f"points={merge_points}"
            apply_pass(module, pass_name="mlirc-merge-kernels", options=points)
        if row_writes:
            apply_pass(module, pass_name="mlirc-fuse-row-writes", options="")
        if dependent or dependent is None and target.cc == DEPENDENT_FROM:
            apply_pass(module, pass_name="mlirc-dependent-kernels", options="" if dependent else "rows=true")
        if branches:
            apply_pass(module, pass_name="mlirc-parallel-branches", options="")
    return schedule


def to_kernels(module: ir.Module, target: Target, *, script: ir.Module | None = None, **knobs) -> ir.Module:
    """Takes a `linalg`-level module to the `kernels` level, in place, and returns it.

    `knobs` go to `graph`; `script` replaces the built one. Raises MlircError that names the script's line when the
    script fails, and for an unknown knob.
    """
    script = script or make_script(target, **knobs)
    with context():
        entry = next((o for o in script.body.operations if "@__transform_main" in str(o).split("(")[0]), None)
        if entry is None:
            raise MlircError("the graph script has no named_sequence @__transform_main")
        try:
            transform_interpreter.apply_named_sequence(module, entry, script)
        except (ir.MLIRError, ValueError) as e:
            text = " ".join(str(e).split())
            place = script_place(text)
            what = text[text.rfind("schedule.apply_pass:") :] if "schedule.apply_pass:" in text else text
            raise MlircError(f"{place + ': ' if place else ''}graph script: {what}") from e
    return module


def make_script(target: Target, **knobs) -> ir.Module:
    """`graph` with these knobs. Raises MlircError for an unknown one."""
    known = graph.__kwdefaults__ or {}
    for name in knobs:
        if name not in known:
            raise MlircError(f"graph: unknown knob '{name}': choose one of {', '.join(known)}")
    with context(), ir.Location.unknown(), script_frames():
        return graph(None, target, **knobs)
