"""From a `SourceModel` to the `torch` level: export, decompose, simplify, import."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.export.graph_signature import ConstantArgument, InputKind, InputSpec, OutputKind, OutputSpec, TensorArgument
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode

from mlirc.errors import MlircError
from mlirc.frontend.batch_norm_shapes import batch_norms_for_shapes
from mlirc.frontend.complex_pairs import ComplexPairs, is_complex
from mlirc.frontend.complex_rules import RULES
from mlirc.frontend.decompose import decompose
from mlirc.frontend.decompositions import decomposition_table
from mlirc.frontend.diagnose import export_error
from mlirc.frontend.experts import masked_experts
from mlirc.frontend.fx_import import make_importer, module_path
from mlirc.frontend.inputs import DTYPES, dtype_name
from mlirc.frontend.integers import legalize_integers
from mlirc.frontend.loops import Loops, trace_loops
from mlirc.frontend.noise import quiet
from mlirc.frontend.random.export import exportable_random
from mlirc.frontend.random.graph import STATE, Draws, draw_numbers
from mlirc.frontend.recurrences import looped_recurrences
from mlirc.frontend.recurrent_shapes import one_step_for_shapes
from mlirc.frontend.simplify import simplify
from mlirc.frontend.source import SourceModel, is_byproduct
from mlirc.frontend.state import replaced_attributes, require_no_state, written_state
from mlirc.frontend.transformers_attention import attention_for_export
from mlirc.frontend.weights import Renamed
from mlirc.mlir import context, ir

_SYMBOLS = (torch.SymInt, torch.SymFloat, torch.SymBool)

Described = tuple[str, str, tuple[int, ...]]  # name, dtype (`f32`), shape


@dataclass
class ImportedModel:
    """The `torch` level and what belongs to it.

    `weights` and `constants` hold the values of the arguments of those kinds, by name (weights maybe made on demand);
    `inputs` and `outputs` describe the rest in order; `reference` runs the PyTorch model on input tensors in order.
    """

    name: str
    module: ir.Module
    weights: Mapping[str, torch.Tensor]
    constants: dict[str, torch.Tensor]
    inputs: list[Described]
    outputs: list[Described]
    reference: Callable[[list[torch.Tensor]], list[torch.Tensor]]
    source: SourceModel = field(repr=False)


@dataclass
class _Argument:
    """One placeholder of the graph that becomes an argument of `main`."""

    node: torch.fx.Node
    kind: str
    name: str


def import_torch(source: SourceModel) -> ImportedModel:
    """Exports (unless the source is an exported program) and imports the model at its example inputs' shapes.

    Raises MlircError for control flow that depends on data, dynamic shapes, and ops that cannot be imported.
    """
    # oneDNN's recurrent layers are one opaque op; without oneDNN, PyTorch takes the layer apart.
    with quiet(), torch.no_grad(), torch.backends.mkldnn.flags(enabled=False):
        program = source.program if source.program is not None else export(source)
        _require_static(program, source, torch.Tensor)
        _require_fitting_results(program, source)
        try:
            program = decompose(program)
        except Exception as e:
            raise export_error(source.name, e) from e
        _require_static(program, source, object)
        _require_rows(program, source)
        arguments, constants = _arguments(program, source)
        draws = draw_numbers(program.graph, decomposition_table(), source.name)
        if draws:
            arguments.append(_Argument(draws.node, "random", STATE))
        places = _select_outputs(program, source)
        source.written = written_state(program.graph_signature)
        arguments, constants = _without_complex(program, source, arguments, constants)
        try:
            arguments, constants = _simplify(program, arguments, constants)
            loops = trace_loops(program.graph)
            arguments, constants = _add_constants(program, arguments, constants, loops.constants)
        except (RuntimeError, IndexError) as e:  # PyTorch's, from what the model computes of constants alone
            raise export_error(source.name, e) from e
        meant = legalize_integers(program.graph)
        outputs = _output_nodes(program, places)
        arguments = _drop_unused(program, arguments)
        _rewrite_signature(program, arguments, outputs)
        _require_known_dtypes(program, source)
        module = _import(program, source, arguments, outputs, meant, draws, loops)
    weights = {a.name: a.name for a in arguments if a.kind == "weight"}
    return ImportedModel(
        source.name,
        module,
        Renamed(source.weights, weights),
        {a.name: constants[a.name] for a in arguments if a.kind == "constant"},
        [_describe(a.name, a.node, meant) for a in arguments if a.kind == "input"],
        [_describe(name, node, meant) for name, node in outputs],
        source.reference,
        source,
    )


def export(source: SourceModel) -> Any:
    """torch.export of the source's module, with attention as one op and experts of fixed shapes."""
    assert source.module is not None
    args, kwargs = _distinct(source.module, (source.args, source.kwargs))
    silence = contextlib.redirect_stderr(io.StringIO())  # a failing export prints the graph that it had so far
    with (
        contextlib.nullcontext() if source.train else attention_for_export(source.module),  # which has no dropout
        masked_experts(source.module),
        looped_recurrences(source.module),
        one_step_for_shapes(),
        batch_norms_for_shapes(),
        source.mode_of(source.module),
        exportable_random(),
        replaced_attributes(source.module) as replaced,
        silence,
    ):
        try:
            program = torch.export.export(source.module, args, kwargs, strict=False)
            require_no_state(source.name, program, replaced)
            return program
        except GuardOnDataDependentSymNode as e:
            # Python's own int() and bool() want to know the number: the other way of exporting replaces them.
            with contextlib.suppress(Exception):
                return torch.export.export(source.module, args, kwargs, strict=True)
            raise export_error(source.name, e) from e
        except Exception as e:
            raise export_error(source.name, e) from e


def _distinct(module: torch.nn.Module, examples: Any) -> Any:
    """The example inputs with no tensor twice, and none of the module's own: torch.export takes two such for one."""
    seen = {id(t) for t in (*module.parameters(), *module.buffers())}

    def distinct(leaf: Any) -> Any:
        if isinstance(leaf, torch.Tensor) and id(leaf) in seen:
            return leaf.detach().clone()
        seen.add(id(leaf))
        return leaf

    return torch.utils._pytree.tree_map(distinct, examples)


def _describe(name: str, node: torch.fx.Node, meant: Mapping[torch.fx.Node, torch.dtype]) -> Described:
    value = node.meta["val"]
    return name, dtype_name(meant.get(node, value.dtype)), tuple(int(n) for n in value.shape)


def _require_static(program: Any, source: SourceModel, kind: type) -> None:
    """Raises MlircError for a node whose value, of the given kind, is not of fixed size, or no known number."""
    for node in program.graph.nodes:
        value = node.meta.get("val")
        if not isinstance(value, kind):
            continue
        sizes = list(value.shape) if isinstance(value, torch.Tensor) else [value]
        symbols = [str(s) for n in sizes if isinstance(n, _SYMBOLS) for s in n.node.expr.free_symbols]
        if not symbols:
            continue
        where = f"(in module '{module_path(node) or source.name}')"
        if not any(s.startswith(("u", "zuf")) for s in symbols):  # torch's names for numbers read from a tensor
            raise MlircError(
                f"{source.name}: the shape of '{node.name}' {where} is dynamic: give every input's shape with --input "
                "name=dtype[sizes]"
            )
        if isinstance(value, torch.Tensor):
            raise MlircError(
                f"{source.name}: the shape of '{node.name}' {where} depends on the values of a tensor: a compiled "
                "model has fixed shapes"
            )
        op = next((u.target.name() for u in node.users if isinstance(u.target, torch._ops.OpOverload)), node.name)
        raise MlircError(
            f"{source.name}: op {op} {where} has to know a number that is read from a tensor: a compiled model has "
            "fixed shapes and arguments"
        )


def _require_fitting_results(program: Any, source: SourceModel) -> None:
    """A result that is written into a tensor of another shape: PyTorch resizes that, or not, as it was made."""
    for node in program.graph.nodes:
        out, value = node.kwargs.get("out"), node.meta.get("val")
        if isinstance(out, torch.fx.Node) and isinstance(value, torch.Tensor) and value.shape != out.meta["val"].shape:
            where = module_path(node) or source.name
            raise MlircError(
                f"{source.name}: '{node.name}' (in module '{where}') writes a result of shape {list(value.shape)} into "
                f"a tensor of shape {list(out.meta['val'].shape)}: give 'out' the result's shape"
            )


def _require_rows(program: Any, source: SourceModel) -> None:
    """PyTorch refuses a lookup in an empty table when it runs; compiled, it would read whatever is there."""
    for node in program.graph.nodes:
        if node.target is torch.ops.aten.embedding.default and node.args[0].meta["val"].shape[0] == 0:
            if node.args[1].meta["val"].numel():
                where = module_path(node) or source.name
                raise MlircError(f"{source.name}: the table of the embedding in module '{where}' has no rows")


def _require_known_dtypes(program: Any, source: SourceModel) -> None:
    for node in program.graph.nodes:
        value = node.meta.get("val")
        if isinstance(value, torch.Tensor) and value.dtype not in DTYPES.values():
            raise MlircError(
                f"{source.name}: {node.target if node.op == 'call_function' else node.name} in module "
                f"'{module_path(node) or source.name}' makes a tensor of {value.dtype}, which is not supported"
            )


def _arguments(program: Any, source: SourceModel) -> tuple[list[_Argument], dict[str, torch.Tensor]]:
    """The graph's tensor placeholders; tied weights are merged, non-tensor inputs dropped."""
    signature = program.graph_signature
    placeholders = [n for n in program.graph.nodes if n.op == "placeholder"]  # a copied graph may rename them
    names = iter([spec.name for spec in source.input_specs()])
    found: list[_Argument] = []
    constants: dict[str, torch.Tensor] = {}
    first: dict[Any, _Argument] = {}
    for spec, node in zip(signature.input_specs, placeholders, strict=True):
        if isinstance(spec.arg, ConstantArgument):
            continue
        if not isinstance(spec.arg, TensorArgument):
            raise MlircError(f"{source.name}: input '{spec.arg.name}' is no tensor: only tensors can be inputs")
        if spec.kind == InputKind.USER_INPUT:
            found.append(_Argument(node, "input", next(names, spec.arg.name)))
            continue
        stored = spec.kind == InputKind.PARAMETER or (spec.kind == InputKind.BUFFER and spec.persistent)
        value = (program.state_dict if stored else program.constants)[spec.target]
        if stored and spec.target not in source.weights:
            raise MlircError(f"{source.name}: no weight '{spec.target}' among the weights")
        argument = _Argument(node, "weight" if stored else "constant", spec.target)
        tied = first.setdefault(_identity(value), argument)
        if tied is not argument:
            node.replace_all_uses_with(tied.node)
            continue
        if not stored:
            constants[spec.target] = value.detach() if _is_fake(value) else value.detach().cpu()
        found.append(argument)
    return found, constants


def _is_fake(value: torch.Tensor) -> bool:
    return isinstance(value, torch._subclasses.FakeTensor)


def _identity(value: torch.Tensor) -> Any:
    """Equal for tensors that share their storage and look at it in the same way."""
    if _is_fake(value) or value.numel() == 0:
        return id(value)
    return value.data_ptr(), value.dtype, tuple(value.shape), value.stride()


def _select_outputs(program: Any, source: SourceModel) -> list[tuple[str, int]]:
    """The main outputs by name, with their places among the graph's outputs, and prunes the others from the graph.

    Mutated buffers come last, under their own names. Raises MlircError for a model that returns neither
    tensors nor numbers.
    """
    call = program.module_call_graph[0].signature
    names = iter(spec_names(call.out_spec))
    found, mutated = [], []
    output = next(n for n in program.graph.nodes if n.op == "output")
    for place, spec in enumerate(program.graph_signature.output_specs):
        if spec.kind == OutputKind.USER_OUTPUT:
            name = next(names, None)
            if name and isinstance(output.args[0][place], torch.fx.Node):
                found.append((name, place))
        elif spec.kind in (OutputKind.BUFFER_MUTATION, OutputKind.USER_INPUT_MUTATION):
            mutated.append((spec.target, place))
    if not found:
        raise MlircError(
            f"{source.name}: returns no tensor that inference asks for: a model returns tensors or numbers, or tuples, "
            "lists or dicts with them"
        )
    chosen = found + mutated
    output.args = (tuple(output.args[0][place] for _, place in chosen),)
    return [(name, i) for i, (name, _) in enumerate(chosen)]


def _output_nodes(program: Any, places: list[tuple[str, int]]) -> list[tuple[str, torch.fx.Node]]:
    output = next(n for n in program.graph.nodes if n.op == "output")
    return [(name, output.args[0][place]) for name, place in places]


def spec_names(spec: Any) -> list[str | None]:
    """One name per leaf of a pytree spec, as `named_outputs` would name the leaves; None for by-products."""
    found: list[str | None] = []

    def visit(spec: Any, name: str, top: bool, keep: bool) -> None:
        children = spec.children_specs if not spec.is_leaf() else []
        if spec.is_leaf():
            found.append((name or "output") if keep else None)
        elif spec.type in (tuple, list) or not isinstance(spec.context, (list, tuple)):
            for i, child in enumerate(children):
                visit(child, f"{name or 'output'}_{i}", False, keep)
        else:
            keys = spec.context if len(spec.context) == len(children) else spec.context[0]
            for key, child in zip(keys, children, strict=True):
                wanted = keep and not (top and spec.type is not dict and is_byproduct(str(key)))
                visit(child, f"{name}_{key}" if name else str(key), False, wanted)

    visit(spec, "", True, True)
    return found


def _without_complex(
    program: Any, source: SourceModel, arguments: list[_Argument], constants: dict[str, torch.Tensor]
) -> tuple[list[_Argument], dict[str, torch.Tensor]]:
    """Complex tensors become pairs of real ones; complex weights are constants then."""
    pairs = ComplexPairs(program.graph, source.name, RULES)
    split = [a for a in arguments if a.kind != "input" and is_complex(a.node)]
    for a in split:
        pairs.split_constant(a.node, (constants if a.kind == "constant" else source.weights)[a.name])
    pairs.run()
    arguments, constants = [a for a in arguments if a not in split], dict(constants)
    return _add_constants(program, arguments, constants, pairs.constants)


def _simplify(
    program: Any, arguments: list[_Argument], constants: dict[str, torch.Tensor]
) -> tuple[list[_Argument], dict[str, torch.Tensor]]:
    graph = program.graph
    real = {a.node.name: constants[a.name] for a in arguments if a.kind == "constant"}
    real = {k: v for k, v in real.items() if not _is_fake(v)}
    return _add_constants(program, arguments, constants, simplify(graph, real))


def _add_constants(
    program: Any, arguments: list[_Argument], constants: dict[str, torch.Tensor], made: dict[str, torch.Tensor]
) -> tuple[list[_Argument], dict[str, torch.Tensor]]:
    """With the constants that a rewrite added to the graph's placeholders, by name."""
    nodes = {n.name: n for n in program.graph.nodes}
    added = [_Argument(nodes[name], "constant", name) for name in made]
    return arguments + added, constants | made


def _drop_unused(program: Any, arguments: list[_Argument]) -> list[_Argument]:
    """Only inputs stay when nobody reads them; returns the arguments in the order of their placeholders."""
    kept = [a for a in arguments if a.kind == "input" or a.node.users]
    nodes = {a.node for a in kept}
    for node in list(program.graph.nodes):
        if node.op == "placeholder" and node not in nodes and not node.users:
            program.graph.erase_node(node)
    order = {n: i for i, n in enumerate(program.graph.nodes)}
    return sorted(kept, key=lambda a: order[a.node])


def _rewrite_signature(program: Any, arguments: list[_Argument], outputs: list[tuple[str, torch.fx.Node]]) -> None:
    signature = program.graph_signature
    signature.input_specs = [
        InputSpec(kind=InputKind.USER_INPUT, arg=TensorArgument(name=a.node.name), target=None) for a in arguments
    ]
    signature.output_specs = [
        OutputSpec(kind=OutputKind.USER_OUTPUT, arg=TensorArgument(name=node.name), target=None) for _, node in outputs
    ]


def _import(
    program: Any,
    source: SourceModel,
    arguments: list[_Argument],
    outputs: list[tuple[str, torch.fx.Node]],
    meant: Mapping[torch.fx.Node, torch.dtype],
    draws: Draws | None,
    loops: Loops,
) -> ir.Module:
    importer = make_importer(source.name, {node: f"step_{i}" for node, i in loops.step_of.items()})
    try:
        for i, step in enumerate(loops.steps):
            importer.import_stateless_graph(step, func_name=f"step_{i}", func_visibility="private")
        main = importer.import_program(program)
    except Exception as e:
        raise export_error(source.name, e) from e
    with context():
        text = ir.StringAttr.get

        def attributes(node: torch.fx.Node, **words: str) -> ir.DictAttr:
            if node in meant:  # builtin integers have no sign
                words["dtype"] = dtype_name(meant[node])
            found: dict[str, ir.Attribute] = {f"mlirc.{key}": text(word) for key, word in words.items()}
            if draws and node is draws.node:
                found["mlirc.draws"] = ir.DenseI64ArrayAttr.get(draws.offsets)
            return ir.DictAttr.get(found)

        main.attributes["arg_attrs"] = ir.ArrayAttr.get(
            [attributes(a.node, name=a.name, kind=a.kind) for a in arguments]
        )
        main.attributes["res_attrs"] = ir.ArrayAttr.get([attributes(node, name=name) for name, node in outputs])
        importer.module.operation.attributes["mlirc.model"] = text(source.name)
    return importer.module
