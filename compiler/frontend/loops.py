"""The steps of a graph's loops (`mlirc::scan`) as graphs of their own, decomposed and simplified like the main one."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch._subclasses.functional_tensor import FunctionalTensorMode, dispatch_functionalize
from torch.fx import Graph
from torch.fx.experimental.proxy_tensor import make_fx

from mlirc.errors import MlircError
from mlirc.frontend.decomposer import decomposed, is_plain
from mlirc.frontend.fp8 import legalize_fp8
from mlirc.frontend.fx_import import is_loop, module_path
from mlirc.frontend.integers import legalize_integers
from mlirc.frontend.operands import legalize_operands
from mlirc.frontend.random.graph import is_random
from mlirc.frontend.scan import one_step, scan_op
from mlirc.frontend.simplify import simplify

SCAN = torch.ops.mlirc.scan.default
_UNROLLED = 64  # steps of a loop inside of a loop


@dataclass
class Loops:
    """The distinct steps, and each loop's step by the name of its node; `constants` are tensors that steps were found
    to need, which are arguments of the main graph now, by name."""

    steps: list[Graph] = field(default_factory=list)
    step_of: dict[str, int] = field(default_factory=dict)
    constants: dict[str, torch.Tensor] = field(default_factory=dict)


def trace_loops(graph: Graph) -> Loops:
    """Traces the step of every loop in the graph, and gives the loops the constants that their steps need. Raises
    MlircError for a step that cannot be traced."""
    loops = Loops()
    known: dict[Any, tuple[int, list[str]]] = {}
    for node in [n for n in graph.nodes if is_loop(n)]:
        init, xs, closed, _, _, number = node.args
        values = [n.meta["val"] for group in (init, xs, closed) for n in group]  # type: ignore[union-attr]
        key = (number, len(init), len(xs), *((v.shape, v.dtype) for v in values))  # type: ignore[arg-type]
        if key not in known:
            try:
                step, made = trace_step(number, values, len(init), len(xs))  # type: ignore[arg-type]
            except MlircError:
                raise
            except Exception as e:
                where = module_path(node)
                what = f"the loop over time steps in {f'module {where!r}' if where else 'the model'}"
                raise MlircError(f"{what} cannot be compiled: {type(e).__name__}: {e}") from e
            for part in step.nodes:
                part.meta.update({k: node.meta[k] for k in ("nn_module_stack", "stack_trace") if k in node.meta})
            names = [_constant(graph, loops, value) for value in made]
            known[key] = len(loops.steps), names
            loops.steps.append(step)
        loops.step_of[node.name], names = known[key]
        placed = {n.name: n for n in graph.nodes}
        node.args = (init, xs, [*closed, *(placed[n] for n in names)], *node.args[3:])  # type: ignore[misc]
    return loops


def _constant(graph: Graph, loops: Loops, value: torch.Tensor) -> str:
    """A new argument of the main graph, after the others."""
    last = [n for n in graph.nodes if n.op == "placeholder"][-1]
    with graph.inserting_after(last):
        new = graph.placeholder(f"loop_constant_{len(loops.constants)}")
    new.meta = {"val": last.meta["val"].fake_mode.from_tensor(value)}
    loops.constants[new.name] = value
    return new.name


def trace_step(number: int, values: list[torch.Tensor], carried: int, sliced: int) -> tuple[Graph, list[torch.Tensor]]:
    """The graph of a step over its carries, its slices, what is the same for all steps, and then the constants that are
    returned beside it."""
    if any(v.dtype == torch.uint8 for v in values):
        raise MlircError("a loop over time steps does not take uint8: convert it to int32 before the loop")
    carries, xs, closed = values[:carried], values[carried : carried + sliced], values[carried + sliced :]

    def step(*tensors: torch.Tensor) -> list[torch.Tensor]:
        new, ys = one_step(
            number,
            list(tensors[:carried]),
            list(tensors[carried : carried + sliced]),
            list(tensors[carried + sliced :]),
        )
        return [*new, *ys]

    mode = values[0].fake_mode  # type: ignore[attr-defined]
    with mode, torch.no_grad():
        examples = [torch.empty_like(v, memory_format=torch.contiguous_format) for v in carries]
        examples += [torch.empty(v.shape[1:], dtype=v.dtype) for v in xs]
        examples += [torch.empty_like(v, memory_format=torch.contiguous_format) for v in closed]
        trace: Any = {"decomposition_table": {SCAN: _unrolled}, "_allow_non_fake_inputs": True}
        graph = make_fx(step, **trace)(*examples).graph
        if not is_plain(graph):  # written with operations in place
            pure = dispatch_functionalize(step, FunctionalTensorMode())
            graph = make_fx(pure, **trace)(*examples).graph
        if any(n.op == "get_attr" for n in graph.nodes):
            raise MlircError("a loop over time steps makes a tensor of numbers: make it before the loop")
    graph, constants = decomposed(graph)
    if constants:
        raise MlircError("a loop over time steps pools with indices: pool before the loop, or after it")
    if any(is_random(n.target) for n in graph.nodes if n.op == "call_function"):
        raise MlircError("a loop over time steps draws random numbers: draw those of all steps before the loop")
    graph.owning_module = torch.nn.Module()  # type: ignore[assignment]
    made = simplify(graph, {})
    legalize_fp8(graph)
    legalize_operands(graph)
    legalize_integers(graph)
    return graph, list(made.values())


def _unrolled(init: Any, xs: Any, closed: Any, count: int, reverse: bool, step: int) -> list[torch.Tensor]:
    if count > _UNROLLED:
        raise MlircError(f"a loop of {count} steps inside of a loop over time steps: at most {_UNROLLED} are unrolled")
    return scan_op._init_fn(list(init), list(xs), list(closed), count, reverse, step)
