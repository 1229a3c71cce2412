"""What `mlirc-run --info` prints: a plan, or all plans of a model that generates text, for people."""

from __future__ import annotations

import re
from pathlib import Path

from mlirc.files.opening import exists
from mlirc.runtime.loading import read_model
from mlirc.runtime.plan import CopyStep, Plan

_ABOUT = "generation.json"  # of the folder of a model that generates text
_PLAN = re.compile(r"(decode|sample|prefill-[0-9]{1,8})\.ptx")


def _step_info(plan: Plan, number: int) -> str:
    step, once = plan.steps[number], " once" if number < plan.setup else ""
    if isinstance(step, CopyStep):
        return f"  copy {step.source.size} bytes to {step.target.space} {step.target.index}{once}"
    sizes = " ".join("x".join(map(str, d)) for d in (step.grid, step.block))
    return f"  {step.symbol} {sizes} smem {step.smem}{once} {' '.join(step.origin)}".rstrip()


def info(plan: Plan) -> str:
    """What a plan says, for people: boundary, memory, and every launch with its module; those of a loop once."""
    lines = [", ".join([f"model {plan.model}, target {plan.target}", *(f"{k} {v}" for k, v in plan.versions.items())])]
    lines += [f"{spec.kind} {spec.name}: {plan.shown(spec)}" for spec in (*plan.asked, *plan.outputs)]
    lines += [f"size {symbol}" for symbol in plan.sizes.symbols] if plan.sizes else []
    lines += [f"where {condition}" for condition in plan.sizes.conditions] if plan.sizes else []
    lines += [f"{spec.kind} {spec.name}: {spec}" for spec in plan.written if spec.kind == "state"]
    if plan.draws:
        lines.append(f"{len(plan.draws) - 1} draws of random numbers, {plan.draws[-1]} words of the generator a call")
    total = sum(spec.nbytes for spec in plan.weights)
    lines.append(f"{len(plan.weights)} weights and constants, {total:,} bytes")
    lines.append(f"arena {plan.arena_size:,} bytes ({plan.unpacked_size:,} if buffers shared no memory)")
    kernels = {launch.symbol for launch in plan.launches}
    lines.append(f"{len(plan.steps)} steps, {len(kernels)} distinct kernels")
    loops = {loop.first: loop for loop in plan.repeats}
    number = 0
    while number < len(plan.steps):
        loop = loops.get(number)
        if loop:
            lines.append(f"  {loop.count} times{' once' if number < plan.setup else ''}")
            lines += ["  " + _step_info(plan, i) for i in range(number, number + loop.length)]
        else:
            lines.append(_step_info(plan, number))
        number += loop.length * loop.count if loop else 1
    return "\n".join(lines)


def folder_of_generating(model: Path) -> Path | None:
    """The folder of a model that generates text, where a path is that folder or one of its plans; else None."""
    if exists(model / _ABOUT):
        return model
    return model.parent if _PLAN.fullmatch(model.name) and exists(model.parent / _ABOUT) else None


def generating_info(folder: Path) -> str:
    """What the folder of a model that generates says of itself, and each of its plans. Raises MlircError for a damaged
    one."""
    from mlirc.generate.artifact import read_about

    about = read_about(folder)
    sizes = about.sizes
    lines = [
        f"model {about.name} ({about.architecture}, {about.dtype}), target {about.target}: generates text",
        f"{sizes.slots} sequences at once, of at most {sizes.context:,} tokens; {sizes.pages:,} pages of "
        f"{sizes.page_size} tokens; {sizes.vocabulary:,} logits",
        *(f"note: {note}" for note in about.notes),
    ]
    plans = [f"\n{name}.ptx\n{info(read_model(folder / f'{name}.ptx')[1])}" for name in about.plans]
    return "\n".join([*lines, *plans])
