"""The ladder's levels as data: which level a module is at, and its kernels one by one."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

from mlirc.errors import MlircError
from mlirc.ir import loops
from mlirc.ir.ladder import LEVELS as LEVELS
from mlirc.mlir import context, func, ir
from mlirc.runtime.plan import GIVEN, WRITTEN, Plan
from mlirc.runtime.random_state import RandomState
from mlirc.runtime.structure import Structure, read_structure, structure_out

# On a product of an attention's weight, its first factor: the type that tensor cores take it in.
WEIGHT = "mlirc.weight"
BRANCHES = "mlirc.branches"  # on `@main`: launches wait for what they need alone (`mlirc.backend.plan_branches`)
FP32 = "mlirc.fp32"  # on a kernel: how its FP32 products may be made (`mlirc.precision`), where not as by default
# On a product: how its factors may be rounded, to TF32 (tf32), f16 or bf16, or to two numbers of TF32 (tf32x3).
ROUNDED = "mlirc.rounded"
CUT_SUMS = "13-bit sums"  # in place of a type: sums of 8-bit floats that are left to the tensor cores, which cut them
# What the user's code states of a kernel that computes something else than its `kernels` level on purpose, on its
# function at `tiles`: the type that an instruction rounds factors to (or CUT_SUMS), a relative error that is right, and
# who says so.
ROUNDS = "mlirc.rounds"
TOLERANCE = "mlirc.tolerance"
STATED_BY = "mlirc.stated_by"
# On a function beside it: the kernel's name, whose reference this is in the place of the `kernels` level.
REFERENCE = "mlirc.reference"
# On an arith.maxsi or minsi that keeps an index of the model inside of a dimension: the dimension's extent. Runs on the
# CPU report an index that it changes, where PyTorch raises an error.
INDEX_BELOW = "mlirc.index_below"
# On a result of `@main`: the number of the argument whose new value it is.
WRITES = "mlirc.writes"
STRUCTURE = "mlirc.structure"  # on `@main`: how a caller has its tensors, as the plan's JSON says it


def functions(module: ir.Module) -> dict[str, ir.OpView]:
    """Name to function of every `func.func` in the module, in order."""
    found = [op for op in module.body.operations if op.operation.name == "func.func"]
    return {op.name.value: op for op in found}


def function(module: ir.Module, name: str) -> ir.OpView:
    """The named function, found without looking at the others one by one. Raises MlircError when there is none."""
    table = ir.SymbolTable(module.operation)
    if name not in table or table[name].operation.name != "func.func":
        raise MlircError(f"no function '{name}' in the module: it has {', '.join(functions(module)) or 'none'}")
    return table[name]


def kernels(module: ir.Module) -> dict[str, ir.OpView]:
    """Name to function of every kernel in a `kernels`- or `tiles`-level module, in order."""
    return {name: f for name, f in functions(module).items() if "mlirc.kernel" in f.attributes}


def calls(module: ir.Module) -> Counter[str]:
    """How often a run calls each kernel of a `kernels`- to `gpu`-level module, in the order of the first calls: those
    of a loop's step as often as there are steps."""
    named = functions(module)
    found: Counter[str] = Counter()
    for function, times in [("main", 1), *steps(module).items()]:
        for callee in _callees(module, function):
            if callee not in named or not loops.is_loop(named[callee]):
                found[callee] += times
    return found


def steps(module: ir.Module) -> Counter[str]:
    """How often a run of `@main` goes through each step of its loops, by the step's function."""
    named = functions(module)
    found: Counter[str] = Counter()
    for callee in _callees(module, "main"):
        if callee in named and loops.is_loop(named[callee]):
            loop = loops.read_loop(named[callee])
            found[loop.step] += loop.count
    return found


def _callees(module: ir.Module, function: str) -> list[str]:
    block = functions(module)[function].operation.regions[0].blocks[0]
    ops = [o.operation for o in block.operations if o.operation.name == "func.call"]
    return [ir.FlatSymbolRefAttr(op.attributes["callee"]).value for op in ops]


@dataclass(frozen=True)
class Stated:
    """What is stated of a kernel: `rounds`, the type that factors of its products are rounded to ("", or CUT_SUMS),
    `tolerance`, a relative error, `reference`, a module of one function that says what it computes (None: the `kernels`
    level), and `by` whom."""

    rounds: str = ""
    tolerance: float = 0.0
    reference: ir.Module | None = None
    by: str = ""

    def __str__(self) -> str:
        rounded = (
            "sums may be cut to 13 bits" if self.rounds == CUT_SUMS else f"factors may be rounded to {self.rounds}"
        )
        parts = [rounded] if self.rounds else []
        parts += [f"relative errors of up to {self.tolerance:g} are right"] if self.tolerance else []
        parts += ["its reference is another one than the kernels level"] if self.reference is not None else []
        return f"{' and '.join(parts)}, as {self.by} states"


def stated(module: ir.Module) -> dict[str, Stated]:
    """What is stated of the kernels of a `tiles`-level module, by name; of most kernels nothing."""
    found: dict[str, Stated] = {}
    named = functions(module)
    references = {_reference_of(f): isolate(module, name) for name, f in named.items() if _reference_of(f)}
    for name, function in named.items():
        attributes = function.attributes
        if STATED_BY in attributes:
            rounds = ir.StringAttr(attributes[ROUNDS]).value if ROUNDS in attributes else ""
            tolerance = ir.FloatAttr(attributes[TOLERANCE]).value if TOLERANCE in attributes else 0.0
            found[name] = Stated(rounds, tolerance, references.get(name), ir.StringAttr(attributes[STATED_BY]).value)
    return found


def as_stated(module: ir.Module, kernel: str, what: Stated | None) -> ir.Module:
    """A module with only (a copy of) a kernel, as it is by what is stated of it."""
    if what is not None and what.reference is not None:
        with context():
            module = copy(what.reference)
            made = module.body.operations[0]
            made.attributes["sym_name"] = ir.StringAttr.get(kernel)
            made.attributes["mlirc.kernel"] = ir.UnitAttr.get()
            del made.attributes[REFERENCE]
    if what is not None and what.rounds:
        with context():
            function(module, kernel).attributes[ROUNDS] = ir.StringAttr.get(what.rounds)
    return module


def described(module: ir.Module, name: str) -> str:
    """A kernel's name and the parts of the model that it comes from, in words."""
    origin = strings(function(module, name), "mlirc.origin")
    return f"{name} (of {', '.join(origin)})" if origin else name


def strings(function: ir.OpView, attribute: str) -> list[str]:
    """An attribute that is a string or an array of strings, as a list; empty when absent."""
    if attribute not in function.attributes:
        return []
    value = function.attributes[attribute]
    return [value.value] if isinstance(value, ir.StringAttr) else [s.value for s in value]


def argument_names(main: ir.OpView) -> list[str]:
    """`mlirc.name` of every argument of a function, `argN` where there is none."""
    attributes, count = main.operation.attributes, len(main.type.inputs)
    named = list(attributes["arg_attrs"]) if "arg_attrs" in attributes else [{}] * count
    return [ir.StringAttr(a["mlirc.name"]).value if "mlirc.name" in a else f"arg{i}" for i, a in enumerate(named)]


def boundary_dtypes(function: ir.OpView, key: str, count: int) -> list[str | None]:
    """What the arguments (`arg_attrs`) or results (`res_attrs`) mean where their element types do not say it: `u8` for
    bytes without sign (`mlirc.dtype`), else None."""
    if key not in function.attributes:
        return [None] * count
    found = [ir.DictAttr(a) for a in ir.ArrayAttr(function.attributes[key])]
    return [ir.StringAttr(a["mlirc.dtype"]).value if "mlirc.dtype" in a else None for a in found]


def writes(function: ir.OpView) -> list[int | None]:
    """For each result of `@main` the number of the argument whose new value it is (a state, or an input that is changed
    in place), None for what the model returns."""
    count, attributes = len(function.type.results), function.operation.attributes
    if "res_attrs" not in attributes:
        return [None] * count
    found = [ir.DictAttr(a) for a in ir.ArrayAttr(attributes["res_attrs"])]
    return [ir.IntegerAttr(a[WRITES]).value if WRITES in a else None for a in found]


def main_results(main: ir.OpView, plan: Plan) -> list[int]:
    """For each result of `@main` its place among the plan's outputs and, behind them, what the plan writes. Raises
    MlircError where `@main` writes something else."""
    inputs, weights = (iter(range(len(specs))) for specs in (plan.inputs, plan.weights))
    places = []  # for each argument, its table and its number there
    attributes = main.operation.attributes
    about = list(attributes["arg_attrs"]) if "arg_attrs" in attributes else [{}] * len(main.type.inputs)
    for a in about:
        kind = ir.StringAttr(a["mlirc.kind"]).value if "mlirc.kind" in a else "input"
        places.append(("input", next(inputs, -1)) if kind in (*GIVEN, "random") else ("weight", next(weights, -1)))
    tables = (("weight", plan.weights), ("input", plan.inputs))
    targets = [(space, i) for space, specs in tables for i, spec in enumerate(specs) if spec.kind in WRITTEN]
    outputs, found = 0, []
    for written in writes(main):
        if written is None:
            found.append(outputs)
            outputs += 1
        elif written < len(places) and places[written] in targets:
            found.append(len(plan.outputs) + targets.index(places[written]))
        else:
            raise MlircError(f"main: argument {written} is written, and is no state or input of the plan that is")
    if sorted(found) != list(range(len(plan.outputs) + len(targets))):
        raise MlircError(
            f"main: gives {outputs} results and writes {len(found) - outputs} tensors, but the model's plan "
            f"{len(plan.outputs)} and {len(targets)}: these are the levels of another model: compile it again"
        )
    return found


def writing(attributes: ir.DictAttr, argument: int | None) -> ir.DictAttr:
    """The attributes of a result that is an argument's new value."""
    if argument is None:
        return attributes
    known = {n.name: n.attr for n in attributes}
    return ir.DictAttr.get(known | {WRITES: ir.IntegerAttr.get(ir.IntegerType.get_signless(64), argument)})


def write_structure(module: ir.Module, structure: Structure) -> None:
    """Notes on `@main` how a caller has its tensors."""
    with context():
        text = json.dumps(structure_out(structure), separators=(",", ":"))
        functions(module)["main"].attributes[STRUCTURE] = ir.StringAttr.get(text)


def structure_of(main: ir.OpView) -> Structure | None:
    """How a caller has the tensors of `@main`, where that is noted. Raises MlircError for what says nothing such."""
    if STRUCTURE not in main.operation.attributes:
        return None

    def wrong(value: Any, where: str, wanted: str) -> NoReturn:
        raise MlircError(f"main: {where}: {ascii(value)[:80]} where {wanted} must be")

    try:
        data = json.loads(ir.StringAttr(main.operation.attributes[STRUCTURE]).value)
    except (ValueError, RecursionError):
        data = None
    return read_structure(data, wrong)


def draws_of(attributes: ir.DictAttr) -> tuple[int, ...]:
    """How the generator of random numbers moves, from the attributes of the argument of `@main` that is its state:
    `mlirc.runtime.random_state` says what the numbers are."""
    if "mlirc.draws" not in attributes:
        raise MlircError("main: the argument of kind 'random' has no mlirc.draws")
    return tuple(ir.DenseI64ArrayAttr(attributes["mlirc.draws"]))


def random_state(module: ir.Module) -> dict[str, Any]:
    """The generator's state for the first call of a model, as a NumPy array by the argument's name; nothing for a model
    that draws no random numbers."""
    for attributes in _argument_attributes(functions(module)["main"]):
        if "mlirc.draws" in attributes:
            return {ir.StringAttr(attributes["mlirc.name"]).value: RandomState(draws_of(attributes)).state()}
    return {}


def random_draws(main: ir.OpView) -> tuple[int, ...]:
    """The draws of `@main`, as `mlirc.runtime.random_state.RandomState` takes them; () where there are none."""
    return next((tuple(draws_of(a)) for a in _argument_attributes(main) if "mlirc.draws" in a), ())


def _argument_attributes(main: ir.OpView) -> list[Any]:
    return list(main.operation.attributes["arg_attrs"]) if "arg_attrs" in main.operation.attributes else []


def copy(module: ir.Module) -> ir.Module:
    """A module equal to the given one, which a pass may then change."""
    with context(), ir.Location.unknown():
        result = ir.Module.create(module.operation.location)
        for name in module.operation.attributes:
            result.operation.attributes[name] = module.operation.attributes[name]
        with ir.InsertionPoint(result.body):
            for op in module.body.operations:
                op.operation.clone()
    return result


def isolate(module: ir.Module, name: str, reference: bool = False) -> ir.Module:
    """A new module that holds only (a copy of) the named function, and with `reference` the one that is stated as its
    reference."""
    found = function(module, name)
    stated_for = [f for f in functions(module).values() if _reference_of(f) == name] if reference else []
    with context(), ir.Location.unknown():
        alone = ir.Module.create()
        with ir.InsertionPoint(alone.body):
            for one in (found, *stated_for):
                one.operation.clone()
    return alone


def _reference_of(function: ir.OpView) -> str:
    """The kernel whose reference a function is; "" for others."""
    return ir.StringAttr(function.attributes[REFERENCE]).value if REFERENCE in function.attributes else ""


def replace(module: ir.Module, new: Mapping[str, ir.Module]) -> ir.Module:
    """A new module with every function named in `new` replaced by the contents of its module."""
    with context(), ir.Location.unknown():
        result = ir.Module.create()
        with ir.InsertionPoint(result.body):
            for op in module.body.operations:
                name = op.name.value if op.operation.name == "func.func" else ""
                for part in new[name].body.operations if name in new else [op]:
                    part.operation.clone()
    return result


def detect(module: ir.Module) -> str:
    """The level of a module, told by what is in it: one of torch, linalg, kernels, schedule, tiles, async, gpu,
    llvm. Without a ring, `async` is `tiles`."""
    seen: set[str] = set()

    def visit(op: ir.Operation) -> ir.WalkResult:
        seen.add(op.name)
        return ir.WalkResult.ADVANCE

    module.operation.walk(visit)
    # A model that is one attention has torch's types and none of its operations.
    typed = any("!torch." in str(f.attributes["function_type"]) for f in functions(module).values())
    if typed or any(name.startswith("torch.") for name in seen):
        return "torch"
    if "transform.named_sequence" in seen and not functions(module):
        return "schedule"
    if "gpu.module" in seen:
        return "gpu"
    if "llvm.func" in seen:
        return "llvm"
    if "mlirc.make_ring" in seen or "mlirc.roles" in seen:
        return "async"
    lowered = any("mlirc.lowering" in f.attributes for f in kernels(module).values())
    if "scf.forall" in seen or lowered:
        return "tiles"
    return "kernels" if kernels(module) else "linalg"


def host_function(module: ir.Module) -> str:
    """The kernel's name in its `gpu`-level module: that of its host function."""
    hosts = [name for name, f in functions(module).items() if not f.is_external]
    if len(hosts) != 1:
        raise MlircError(f"gpu level: a kernel's module needs one host function with a body, found {len(hosts)}")
    return hosts[0]


def with_main(module: ir.Module) -> ir.Module:
    """The module, given a `@main` if it has none: a lone function that is no kernel becomes it, and a lone kernel gets
    one that calls it. Memref arguments of a `gpu`-level host function become tensors, which are all inputs but the
    last, the result. Raises MlircError when it is not clear what `@main` should be."""
    found = functions(module)
    if "main" in found:
        return module
    found = {name: f for name, f in found.items() if not _reference_of(f)}
    if len(found) != 1:
        raise MlircError(f"the module needs a function @main: it has {', '.join(found) or 'no function'}")
    [(name, function)] = found.items()
    with context(), ir.Location.unknown():
        if "mlirc.kernel" not in function.attributes and detect(module) == "linalg":
            function.attributes["sym_name"] = ir.StringAttr.get("main")
            return module
        function.attributes["mlirc.kernel"] = ir.UnitAttr.get()
        inputs, results = _tensor_signature(function)
        with ir.InsertionPoint(module.body):
            main = func.FuncOp("main", (inputs, results))
        with ir.InsertionPoint(main.add_entry_block()):
            call = func.CallOp(results, ir.FlatSymbolRefAttr.get(name), list(main.arguments))
            func.ReturnOp(list(call.operation.results))
    return module


def _tensor_signature(function: ir.OpView) -> tuple[list[ir.Type], list[ir.Type]]:
    inputs, results = list(function.type.inputs), list(function.type.results)
    if any(isinstance(t, ir.MemRefType) for t in inputs):
        tensors = [ir.RankedTensorType.get(t.shape, t.element_type) for t in inputs]
        return tensors[:-1], tensors[-1:]
    return inputs, results


def declare_kernels(module: ir.Module) -> ir.Module:
    """A new module with `@main` as it is, and each kernel as a declaration that keeps its attributes; a kernel's
    gpu.module is left out."""
    with context(), ir.Location.unknown():
        result = ir.Module.create()
        with ir.InsertionPoint(result.body):
            for op in module.body.operations:
                if op.operation.name == "gpu.module":
                    continue
                if op.operation.name != "func.func" or "mlirc.kernel" not in op.attributes:
                    op.operation.clone()
                    continue
                declared = func.FuncOp(op.name.value, _tensor_signature(op), visibility="private")
                for name in op.attributes:
                    if name.startswith("mlirc."):
                        declared.attributes[name] = op.attributes[name]
    return result
