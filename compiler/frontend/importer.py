"""From a `SourceModel` to the `torch` level: export, decompose, simplify, import."""

from __future__ import annotations

import contextlib
import functools
import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.export.graph_signature import ConstantArgument, InputKind, InputSpec, OutputKind, OutputSpec, TensorArgument
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode

from mlirc.errors import MlircError
from mlirc.frontend.batch_norm_shapes import batch_norms_for_shapes
from mlirc.frontend.boundary import real_boundary, rebuilding, structure_of
from mlirc.frontend.complex_pairs import ComplexPairs, is_complex
from mlirc.frontend.complex_rules import RULES
from mlirc.frontend.data_attribute import DataAttribute
from mlirc.frontend.decompose import decompose
from mlirc.frontend.decompositions import decomposition_table
from mlirc.frontend.diagnose import export_error
from mlirc.frontend.experts import routed_experts
from mlirc.frontend.fp8 import legalize_fp8
from mlirc.frontend.fx_import import make_importer, module_path
from mlirc.frontend.higher_order import require_followed
from mlirc.frontend.inputs import DTYPES, dtype_name
from mlirc.frontend.integers import legalize_integers
from mlirc.frontend.item_assignment import ItemAssignment
from mlirc.frontend.known_numbers import known_numbers
from mlirc.frontend.loops import Loops, trace_loops
from mlirc.frontend.noise import quiet
from mlirc.frontend.operands import legalize_operands
from mlirc.frontend.packed_sequences import padded_sequences
from mlirc.frontend.random.export import exportable_random
from mlirc.frontend.random.graph import STATE, Draws, draw_numbers
from mlirc.frontend.recurrences import looped_recurrences
from mlirc.frontend.recurrent_shapes import one_step_for_shapes
from mlirc.frontend.results import output_nodes, select_outputs
from mlirc.frontend.simplify import simplify
from mlirc.frontend.sizes.bounded import Bounded, at_the_bound
from mlirc.frontend.sizes.export import example_shapes, input_names, with_symbols
from mlirc.frontend.sizes.ones import without_apart
from mlirc.frontend.source import SourceModel
from mlirc.frontend.state import replaced_attributes, require_no_state, with_own_memory, written_state
from mlirc.frontend.transformers_attention import attention_for_export
from mlirc.frontend.weights import Renamed
from mlirc.ir.all_layers import require_repeated
from mlirc.ir.layer_names import Layers, NotRepeated
from mlirc.ir.levels import write_structure, writing
from mlirc.mlir import context, ir
from mlirc.runtime.plan import GIVEN
from mlirc.runtime.sizes import dims_text
from mlirc.turns import export_turn

_SYMBOLS = (torch.SymInt, torch.SymFloat, torch.SymBool)

Described = tuple[str, str, tuple[int, ...]]  # name, dtype (`f32`), shape


@dataclass
class ImportedModel:
    """The `torch` level and what belongs to it.

    `weights` and `constants` hold the values of the arguments of those kinds, by name (weights maybe made on demand);
    `inputs` and `outputs` describe the rest in order; `reference` runs the PyTorch model on input tensors in order.
    `layers`: those that stand for all in the module; `weights` has the values of all. `rebuild` makes of a result's
    tensors, in order, what the module returns.
    """

    name: str
    module: ir.Module
    weights: Mapping[str, torch.Tensor]
    constants: dict[str, torch.Tensor]
    inputs: list[Described]
    outputs: list[Described]
    reference: Callable[[list[torch.Tensor]], list[torch.Tensor]]
    source: SourceModel = field(repr=False)
    layers: Layers | None = None
    rebuild: Callable[[Sequence[Any]], Any] | None = None


@dataclass
class _Argument:
    """One placeholder of the graph that becomes an argument of `main`; `names` are the buffers or the input that it
    is, several where weights are tied."""

    node: torch.fx.Node
    kind: str
    name: str
    names: list[str] = field(default_factory=list)


@export_turn
def import_torch(source: SourceModel, *, thorough: bool = True) -> ImportedModel:
    """Exports (unless the source is an exported program) and imports the model at its example inputs' shapes.

    `thorough`: sizes that the export sets apart are looked into (`sizes/ones.py`). Raises MlircError for control flow
    that depends on data, dynamic shapes, and ops that cannot be imported.
    """
    # oneDNN's recurrent layers are one opaque op; without oneDNN, PyTorch takes the layer apart.
    with quiet(), torch.no_grad(), torch.backends.mkldnn.flags(enabled=False):
        program = source.program if source.program is not None else export(source)
        sized: Bounded | None = None
        if source.sizes:
            given = input_names(program, source)
            sized = at_the_bound(source.name, program, source.sizes, given, example_shapes(source))
            if thorough:  # not for what is compared there
                again = functools.partial(import_torch, thorough=False)
                sized.conditions = tuple(without_apart(source, program, sized.conditions, again))
            program = sized.program
        _require_static(program, source, torch.Tensor)
        _require_fitting_results(program, source)
        _require_dense(program, source)
        program = with_own_memory(source.name, program)
        try:
            program = decompose(program)
        except Exception as e:
            raise export_error(source.name, e) from e
        _require_static(program, source, object)
        _require_rows(program, source)
        require_followed(source.name, program.graph)
        arguments, constants = _arguments(program, source)
        draws = draw_numbers(program.graph, decomposition_table(), source.name)
        if draws:
            arguments.append(_Argument(draws.node, "random", STATE))
        known = None if sized is None else _SizesOf(sized, program, arguments)
        names, tree = select_outputs(program, source.name, source.complex_results)
        structure = None
        if tree is not None and source.kind not in ("huggingface", "generation"):
            structure = structure_of(source.module, source.args, source.kwargs, tree)
        said = known.words(program, names) if known else {}
        source.written = written_state(program.graph_signature)
        written = _written(source, arguments)
        arguments, constants = _without_complex(program, source, arguments, constants)
        try:
            arguments, constants = _simplify(program, arguments, constants)
            loops = trace_loops(program.graph)
            arguments, constants = _add_constants(program, arguments, constants, loops.constants)
        except (RuntimeError, IndexError) as e:  # PyTorch's, from what the model computes of constants alone
            raise export_error(source.name, e) from e
        legalize_fp8(program.graph)
        legalize_operands(program.graph)
        meant = legalize_integers(program.graph)
        outputs = output_nodes(program, names, [a.name for a in written])
        arguments = _drop_unused(program, arguments)
        _rewrite_signature(program, arguments, outputs)
        _require_known_dtypes(program, source)
        every = [*[None] * len(names), *written]
        module = _import(program, source, arguments, outputs, every, meant, draws, loops, said)
        if structure is not None and not structure.is_flat(len(source.kwargs)):
            write_structure(module, structure)
    kept = [a.name for a in arguments if a.kind in ("weight", "constant", "state")]
    if source.layers is not None:
        require_repeated(module, source.layers)
        if any(source.layers.number(name) is not None for name in constants):
            raise NotRepeated("constants of layers")
        kept = list(source.layers.all_names(kept))
    return ImportedModel(
        source.name,
        module,
        Renamed(source.weights, {name: name for name in kept if name not in constants}),
        {name: constants[name] for name in kept if name in constants},
        [_describe(a.name, a.node, meant) for a in arguments if a.kind in GIVEN],
        [_describe(name, node, meant) for name, node in outputs],
        source.reference,
        source,
        source.layers,
        rebuilding(program, tree) if structure is not None and tree is not None else None,
    )


def export(source: SourceModel) -> Any:
    """torch.export of the source's module, with attention as one op and experts of fixed shapes."""
    assert source.module is not None
    args, kwargs = _distinct(source.module, source.bind_real())
    silence = contextlib.redirect_stderr(io.StringIO())  # a failing export prints the graph that it had so far
    with (
        contextlib.nullcontext() if source.train else attention_for_export(source.module),  # which has no dropout
        routed_experts(source.module),
        looped_recurrences(source.module),
        padded_sequences(),
        one_step_for_shapes(),
        batch_norms_for_shapes(),
        source.mode_of(source.module),
        exportable_random(),
        ItemAssignment(),
        DataAttribute(),
        replaced_attributes(source.module) as replaced,
        silence,
        with_symbols(source) as options,
        real_boundary(source.module, (source.args, source.kwargs)) as source.complex_results,
    ):
        try:
            program = torch.export.export(source.module, args, kwargs, strict=False, **options)
            require_no_state(source.name, program, replaced)
            return program
        except GuardOnDataDependentSymNode as e:
            with contextlib.suppress(Exception), known_numbers(source.module) as is_written:
                program = torch.export.export(source.module, args, kwargs, strict=False, **options)
                require_no_state(source.name, program, replaced)
                if not is_written():
                    return program
            # Python's own int() and bool() want to know the number: the other way of exporting replaces them.
            with contextlib.suppress(Exception):
                return torch.export.export(source.module, args, kwargs, strict=True, **options)
            raise export_error(source.name, e) from e
        except NotRepeated:
            raise
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


def _require_dense(program: Any, source: SourceModel) -> None:
    for node in program.graph.nodes:
        value = node.meta.get("val")
        if isinstance(value, torch.Tensor) and (value.layout != torch.strided or value.dtype == torch.complex32):
            what = value.dtype if value.layout == torch.strided else str(value.layout).replace("torch.", "layout ")
            raise MlircError(
                f"{source.name}: {node.target if node.op == 'call_function' else node.name} in module "
                f"'{module_path(node) or source.name}' makes a tensor of {what}, which is not supported: use "
                f"{'torch.complex64' if value.layout == torch.strided else 'dense tensors'}"
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
            found.append(_Argument(node, "input", next(names, spec.arg.name), [spec.arg.name]))
            continue
        stored = spec.kind == InputKind.PARAMETER or (spec.kind == InputKind.BUFFER and spec.persistent)
        value = (program.state_dict if stored else program.constants)[spec.target]
        if stored and spec.target not in source.weights:
            raise MlircError(f"{source.name}: no weight '{spec.target}' among the weights")
        argument = _Argument(node, "weight" if stored else "constant", spec.target)
        tied = first.setdefault(_identity(value), argument)
        tied.names.append(spec.target)
        if tied is not argument:
            node.replace_all_uses_with(tied.node)
            continue
        if not stored:
            constants[spec.target] = value.detach() if _is_fake(value) else value.detach().cpu()
        found.append(argument)
    return found, constants


def _written(source: SourceModel, arguments: list[_Argument]) -> list[_Argument]:
    """The arguments that the model writes, in the order of `source.written`, which become states, or inputs that are
    changed in place."""
    given = [a for a in arguments if a.kind == "input"]
    found: list[_Argument] = []
    for written in source.written:
        if isinstance(written, int):
            argument = given[written]
            argument.kind = "inout"
        else:
            argument = next(a for a in arguments if written in a.names)
            argument.kind = "state"
        if argument in found:
            raise MlircError(f"{source.name}: forward writes '{argument.name}' under two names, {argument.names}")
        if is_complex(argument.node):
            raise MlircError(f"{source.name}: forward writes into '{argument.name}', which is complex: store its parts")
        found.append(argument)
    for name in source.scalars:
        number = next((a for a in given if a.name == name), None)
        if number is None or number.kind != "input" or tuple(number.node.meta["val"].shape):
            raise MlircError(f"{source.name}: '{name}' is no number among the inputs, or is written")
        number.kind = "scalar"
    return found


class _SizesOf:
    """What the attributes of a model with symbolic sizes say, kept while its graph is rewritten."""

    def __init__(self, sized: Bounded, program: Any, arguments: list[_Argument]):
        self.sized = sized
        output = next(n for n in program.graph.nodes if n.op == "output")
        self._dims = dict(zip(output.args[0], sized.outputs, strict=True))
        self._symbols = {f"size_{s.name}": s for s in sized.symbols}
        for a in arguments:
            if symbol := self._symbols.get(a.names[0] if a.names else ""):
                if any(symbol.name == other.name for other in arguments):
                    raise MlircError(f"the size '{symbol.name}' has the name of an input or a weight: give it another")
                a.name, a.kind = symbol.name, "scalar"
        self._inputs = {a.name: sized.inputs[a.names[0]] for a in arguments if a.names and a.names[0] in sized.inputs}

    def words(self, program: Any, names: list[str]) -> dict[str, dict[str, str]]:
        """The attributes of arguments by name, and of results by name and ` out`."""
        output = next(n for n in program.graph.nodes if n.op == "output")
        found = {name: {"dims": dims_text(dims)} for name, dims in self._inputs.items()}
        for name, node in zip(names, output.args[0], strict=False):
            if dims := self._dims.get(node):
                found[f"{name} out"] = {"dims": dims_text(dims)}
        for symbol in self.sized.symbols:
            found[symbol.name] = {"size": str(symbol), "conditions": "; ".join(self.sized.conditions)}
        return found


def _is_fake(value: torch.Tensor) -> bool:
    return isinstance(value, torch._subclasses.FakeTensor)


def _identity(value: torch.Tensor) -> Any:
    """Equal for tensors that share their storage and look at it in the same way."""
    if _is_fake(value) or value.numel() == 0:
        return id(value)
    return value.data_ptr(), value.dtype, tuple(value.shape), value.stride()


def _without_complex(
    program: Any, source: SourceModel, arguments: list[_Argument], constants: dict[str, torch.Tensor]
) -> tuple[list[_Argument], dict[str, torch.Tensor]]:
    """Complex tensors become pairs of real ones; complex weights are constants then."""
    pairs = ComplexPairs(program.graph, source.name, RULES)
    split = [a for a in arguments if a.kind not in GIVEN and is_complex(a.node)]
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
    """Only inputs and what is written stay when nobody reads them; returns the arguments in the order of their
    placeholders."""
    kept = [a for a in arguments if a.kind in (*GIVEN, "state") or a.node.users]
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
    written: list[_Argument | None],
    meant: Mapping[torch.fx.Node, torch.dtype],
    draws: Draws | None,
    loops: Loops,
    said: Mapping[str, Mapping[str, str]],
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
            [attributes(a.node, name=a.name, kind=a.kind, **said.get(a.name, {})) for a in arguments]
        )
        results = [attributes(node, name=name, **said.get(f"{name} out", {})) for name, node in outputs]
        targets = [None if a is None else arguments.index(a) for a in written]
        main.attributes["res_attrs"] = ir.ArrayAttr.get([writing(r, t) for r, t in zip(results, targets, strict=True)])
        importer.module.operation.attributes["mlirc.model"] = text(source.name)
    return importer.module
