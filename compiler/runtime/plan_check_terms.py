"""What a launch plan may say of scalars, tables of pointers, grids that scalars decide, and what steps wait for."""

from __future__ import annotations

from mlirc.errors import MlircError
from mlirc.runtime.plan import DTYPE_BYTES, SCALAR_DTYPES, KernelLaunch, Plan, TensorSpec
from mlirc.runtime.tensor_map import MAP_BYTES

MAX_PARAMETERS = 4096  # bytes, of all parameters of a kernel, on every GPU (CUDA C++ guide, "Function Parameters")
POINTER_BYTES = 8
INTEGERS = ("i64", "i32", "i16", "i8", "u8")


def check_scalar(spec: TensorSpec) -> None:
    """Raises MlircError for a scalar input that is no number."""
    if spec.kind == "scalar" and (spec.shape or spec.dtype not in SCALAR_DTYPES):
        raise MlircError(
            f"plan: scalar '{ascii(spec.name)[1:-1][:80]}' is {ascii(str(spec))[1:-1][:80]}: not one number"
        )


def check_sizes(plan: Plan) -> None:
    """Raises MlircError for sizes that no call could have, or that are not of the plan's inputs and outputs."""
    if plan.sizes is None:
        return
    inputs, outputs = ({spec.name: spec for spec in specs} for specs in (plan.inputs, plan.outputs))
    for name in plan.sizes.names:
        if name not in inputs or (inputs[name].kind, inputs[name].dtype) != ("scalar", "i64"):
            raise MlircError(f"plan: size '{ascii(name)[1:-1][:80]}' is no scalar input of i64")
    for name in plan.sizes.inputs:
        if name not in inputs or inputs[name].kind != "input":
            raise MlircError(f"plan: input '{ascii(name)[1:-1][:80]}' has symbolic sizes, and is none, or is written")
    try:
        plan.sizes.check(*({n: s.shape for n, s in table.items()} for table in (inputs, outputs)))
    except MlircError as e:
        raise MlircError(f"plan: {e}") from e


def check_terms(plan: Plan, step: KernelLaunch, where: str) -> None:
    """Raises MlircError, which names the place, for a launch whose values, tables or extents cannot be bound."""
    for number in (*step.values, *step.tables):
        if not 0 <= number < len(step.args):
            raise MlircError(f"{where}: argument {number} of {len(step.args)} is a value or a table")
        if (number in step.values) + (number in step.tables) + (number in step.maps) > 1:
            raise MlircError(f"{where}: argument {number} is given in two ways")
    for number in step.values:
        ref = step.args[number]
        spec = plan.inputs[ref.index] if ref.space == "input" else None
        if spec is None or spec.kind != "scalar" or (ref.offset, ref.size) != (0, spec.nbytes):
            raise MlircError(f"{where}: argument {number}, a value, is {ref.space} {ref.index}: that is no scalar")
    for number, table in step.tables.items():
        for ref in (step.args[number], *table):
            if ref.offset % POINTER_BYTES and ref.size:
                raise MlircError(
                    f"{where}: argument {number}, a table, has byte {ref.offset} of {ref.space} {ref.index}: not a "
                    f"multiple of {POINTER_BYTES}"
                )
    size = sum(_parameter_bytes(plan, step, number) for number in range(len(step.args)))
    if size > MAX_PARAMETERS:
        raise MlircError(f"{where}: its parameters have {size} bytes: a launch takes at most {MAX_PARAMETERS}")
    _check_extents(plan, step, where)


def _parameter_bytes(plan: Plan, step: KernelLaunch, number: int) -> int:
    if number in step.tables:
        return POINTER_BYTES * (1 + len(step.tables[number]))
    if number in step.maps:
        return MAP_BYTES
    return DTYPE_BYTES[plan.inputs[step.args[number].index].dtype] if number in step.values else POINTER_BYTES


def _check_extents(plan: Plan, step: KernelLaunch, where: str) -> None:
    for dim, extent in step.extents.items():
        if not 0 <= dim < 3:
            raise MlircError(f"{where}: a grid has no dimension {dim}")
        spec = plan.inputs[extent.scalar] if 0 <= extent.scalar < len(plan.inputs) else None
        if spec is None or spec.kind != "scalar" or spec.dtype not in INTEGERS:
            raise MlircError(f"{where}: dimension {dim} of its grid is decided by input {extent.scalar}: no integer")
        if not (1 <= extent.divisor < 1 << 31 and 1 <= extent.factor < 1 << 31):
            raise MlircError(f"{where}: dimension {dim} of its grid: {extent.divisor} and {extent.factor}: not above 0")
        if step.grid[dim] % extent.factor:
            raise MlircError(
                f"{where}: dimension {dim} of its grid is at most {step.grid[dim]}: no multiple of {extent.factor}"
            )
        if step.cluster and extent.factor % step.cluster[dim]:
            raise MlircError(
                f"{where}: dimension {dim} of its grid is made of {extent.factor} blocks, and its clusters of "
                f"{step.cluster[dim]}"
            )


def check_after(plan: Plan) -> None:
    """Steps of a run wait for earlier ones of a run, and those of loops for the one in front of them."""
    looped = {n for loop in plan.repeats for n in range(loop.first, loop.first + loop.length * loop.count)}
    for number, waits in plan.after.items():
        if not plan.setup <= number < len(plan.steps) or looped.intersection((number, *waits)):
            raise MlircError(f"plan: after: step {number} is no step of a run, or one of a loop")
        if any(not plan.setup <= n < number for n in waits):
            raise MlircError(f"plan: after: step {number} waits for {waits}: not for earlier steps of a run")
