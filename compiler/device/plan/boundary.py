"""The model's boundary in a launch plan: inputs, outputs, weights and random numbers are those of `@main`, in order."""

from __future__ import annotations

from mlirc.backend.plan_builder import tensor_spec
from mlirc.device.plan.flow import Problem
from mlirc.ir import levels
from mlirc.ir.sizes import read_sizes
from mlirc.mlir import ir
from mlirc.runtime.plan import GIVEN, Plan, TensorSpec


def check_boundary(plan: Plan, main: ir.OpView) -> list[Problem]:
    """What of the plan's tables is not what `@main` says. A caller gives tensors by their order, too, and gets them
    so."""
    draws: tuple[int, ...] = ()
    arguments, results = (_attributes(main, key, n) for key, n in (
        ("arg_attrs", len(main.type.inputs)), ("res_attrs", len(main.type.results)),
    ))  # fmt: skip
    right: dict[str, list[TensorSpec]] = {"inputs": [], "weights": [], "outputs": []}
    for i, (type_, about) in enumerate(zip(main.type.inputs, arguments, strict=True)):
        spec = _spec(type_, about, f"arg{i}", _text(about, "mlirc.kind", "input"))
        right["inputs" if spec.kind in (*GIVEN, "random") else "weights"].append(spec)
        if spec.kind == "random":
            draws = levels.draws_of(about)
    right["outputs"] = [
        _spec(t, about, f"out{i}", "output")
        for i, (t, about) in enumerate(zip(main.type.results, results, strict=True))
        if levels.WRITES not in about
    ]
    problems = []
    for table, specs in right.items():
        for i, (found, spec) in enumerate(zip(getattr(plan, table), specs, strict=False)):
            if found != spec:
                problems.append(f"{table}: number {i} is {_shown(found)}, but {_shown(spec)} at the gpu level")
        if len(getattr(plan, table)) != len(specs):
            problems.append(f"{table}: there are {len(getattr(plan, table))}, but {len(specs)} at the gpu level")
    if plan.sizes != read_sizes(main):
        problems.append("the sizes that a call decides are others at the gpu level")
    if plan.structure != levels.structure_of(main):
        problems.append("the structure in which a caller has the tensors is another at the gpu level")
    if plan.draws != draws:
        problems.append(f"draws of random numbers are {list(plan.draws)}, but {list(draws)} at the gpu level")
    return [Problem(message, "the tables") for message in problems]


def _attributes(main: ir.OpView, key: str, count: int) -> list:
    attributes = main.operation.attributes
    return list(attributes[key]) if key in attributes else [{}] * count


def _text(about, name: str, default: str) -> str:
    return ir.StringAttr(about[name]).value if name in about else default


def _spec(type_: ir.Type, about, name: str, kind: str) -> TensorSpec:
    return tensor_spec(type_, _text(about, "mlirc.name", name), kind, _text(about, "mlirc.dtype", ""))


def _shown(spec: TensorSpec) -> str:
    return f"{spec.kind} '{spec.name}' ({spec})"
