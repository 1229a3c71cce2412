"""The graph-level schedule: which ops of a model become one kernel.

Not a kernel's schedule: it runs once over `@main` and turns the `linalg` level into the `kernels` level. Like every
schedule it is a transform script built by a Python function with knobs, so it prints, and a hand-edited copy can be
given back.
"""

from __future__ import annotations

from mlirc.dialects.schedule import build
from mlirc.errors import MlircError
from mlirc.mlir import context, ir, transform, transform_interpreter, transform_structured
from mlirc.targets import Target

# Named ops that compute each element alone or fold rows: the grouping sees them as `linalg.generic`.
NAMED_MAPS = (
    "abs add ceil copy div div_unsigned elementwise erf exp floor log map max min mul negf powf reciprocal reduce "
    "round rsqrt select sqrt square sub tanh"
).split()
ENTRY = "__transform_main"


def build_script(
    *, fuse_epilogue: bool = True, fuse_siblings: bool = True, fuse_reductions: bool = True, fuse_maps: bool = True
) -> ir.Module:
    """The transform script that takes a `linalg`-level module to the `kernels` level.

    fuse_epilogue: maps after a contraction (bias, activation, residual) join its kernel.
    fuse_siblings: two contractions of one left operand that meet in a map (SwiGLU) share a kernel.
    fuse_reductions: a norm or a softmax is one kernel, with the maps before and after it.
    fuse_maps: chains of maps, and data movement, join the kernels of their users.
    """
    apply_pass = build("apply_pass")
    grouping = {
        "epilogue": fuse_epilogue,
        "siblings": fuse_siblings,
        "reductions": fuse_reductions,
        "maps": fuse_maps,
    }
    with context(), ir.Location.unknown():
        script = ir.Module.create()
        script.operation.attributes["transform.with_named_sequence"] = ir.UnitAttr.get()
        any_op = transform.AnyOpType.get()
        with ir.InsertionPoint(script.body):
            sequence = transform.NamedSequenceOp(
                ENTRY, [any_op], [], arg_attrs=[{"transform.consumed": ir.UnitAttr.get()}]
            )
        with ir.InsertionPoint(sequence.body):
            module = sequence.bodyTarget
            for name in ("canonicalize", "cse"):
                module = transform.apply_registered_pass(any_op, module, name)
            named = transform_structured.structured_match(any_op, module, ops=[f"linalg.{name}" for name in NAMED_MAPS])
            transform_structured.structured_generalize(any_op, named)
            apply_pass(module, pass_name="mlirc-fold-attention-layouts", options="")
            options = " ".join(f"{name}={str(value).lower()}" for name, value in grouping.items())
            apply_pass(module, pass_name="mlirc-group-kernels", options=options)
            apply_pass(module, pass_name="mlirc-outline-kernels", options="")
            transform.YieldOp([])
    return script


def to_kernels(module: ir.Module, target: Target, *, script: ir.Module | None = None, **knobs) -> ir.Module:
    """Takes a `linalg`-level module to the `kernels` level, in place, and returns it.

    `knobs` go to `build_script`; `script` replaces the built one. Raises MlircError when the script fails or a knob is
    unknown.
    """
    script = script or make_script(**knobs)
    with context():
        try:
            transform_interpreter.apply_named_sequence(module, script.body.operations[0], script)
        except (ir.MLIRError, ValueError) as e:
            raise MlircError(f"graph script: {' '.join(str(e).split())}") from e
    return module


def make_script(**knobs) -> ir.Module:
    """`build_script`, with a clear error for an unknown knob."""
    known = build_script.__kwdefaults__ or {}
    for name in knobs:
        if name not in known:
            raise MlircError(f"graph: unknown knob '{name}': choose one of {', '.join(known) or 'none'}")
    return build_script(**knobs)
