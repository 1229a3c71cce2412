"""The JSON of a torch.export archive, judged and cleaned before PyTorch makes a graph of it.

PyTorch looks operators up by the names in it, pastes other names into Python that it then runs, and gives symbolic
sizes to `eval`. So every operator must be a harmless one, every name a name, and every size arithmetic. What a compiler
does not need (guards, which are Python; metadata; the structure of inner modules) is left out.
"""

from __future__ import annotations

import dataclasses
import keyword
import re
from collections.abc import Iterator
from typing import Any

from mlirc.errors import MlircError
from mlirc.files.opening import parse_json, shorten
from mlirc.frontend.judge.archive import not_judged
from mlirc.frontend.judge.expressions import judge_expression
from mlirc.frontend.judge.operators import harmless_target
from mlirc.frontend.judge.schema_types import wrong_type

_QUALIFIED = re.compile(
    r"""[^'"\\`\x00-\x1f\x7f-\x9f]{1,2000}"""
)  # the name of a weight; modules may be called anything
_PLAIN = re.compile(r"""[^'"\\\x00-\x1f\x7f-\x9f]{0,2000}""")
_METADATA = {
    "nn_module_stack": re.compile(r"[^\x00-\x1f\x7f-\x9f]*"),
    "stack_trace": re.compile(r"[^\x00-\x09\x0b-\x1f\x7f-\x9f]*"),
}
_FACTORIES = ("list", "dict", "int", "float", "str", "set", "tuple", "bool")
_CONTAINERS = {"builtins.tuple", "builtins.list", "builtins.dict", "collections.OrderedDict", "collections.deque"}
_DEPTH = 100  # of inputs and outputs in containers


def judge_program(data: bytes | bytearray, what: str) -> Any:
    """The exported program of `models/model.json`, as PyTorch's schema dataclass; nothing in it has run.

    Raises MlircError for JSON that is no exported program, and for one that could do more than compute.
    """
    from torch._export.serde import schema
    from torch._export.serde.serialize import _dict_to_dataclass

    found = parse_json(data, f"{what}: its models/model.json")
    try:
        program = _dict_to_dataclass(schema.ExportedProgram, found)
        if wrong := wrong_type(program, schema.ExportedProgram):
            raise MlircError(f"{what}: its models/model.json is no exported program: {wrong}")
        _judge(program, what, schema)
    except MlircError:
        raise
    except Exception as e:  # whatever wrong types in the JSON do to PyTorch's reader
        raise MlircError(f"{what}: its models/model.json is no exported program ({type(e).__name__}: {e})") from e
    return program


def _judge(program: Any, what: str, schema: Any) -> None:
    module = program.graph_module
    program.guards_code = []
    module.metadata = {}
    module.treespec_namedtuple_fields = {}
    inner = module.module_call_graph
    if not inner or inner[0].fqn != "" or inner[0].signature is None:
        raise MlircError(f"{what}: its models/model.json lacks the signature of the model")
    module.module_call_graph = inner[:1]
    signature = inner[0].signature
    for name in signature.forward_arg_names or []:
        _name(name, what)
    _judge_tree(signature.in_spec, what, keywords=True)
    _judge_tree(signature.out_spec, what)
    for symbol in program.range_constraints:
        judge_expression(symbol, what)
    for verifier in program.verifiers:
        _name(verifier, what)
    for node in _walk(module):
        _judge_part(node, what, schema)


def _walk(value: Any) -> Iterator[Any]:
    """Every dataclass in a value, the outer ones first."""
    pending = [value]
    while pending:
        part = pending.pop()
        if dataclasses.is_dataclass(part):
            yield part
            union = getattr(part, "type", None) if hasattr(part, "create") else None
            fields = [union] if union else [f.name for f in dataclasses.fields(part)]
            pending += [getattr(part, field) for field in fields]
        elif isinstance(part, dict):
            pending += part.values()
        elif isinstance(part, list | tuple):
            pending += part


def _judge_part(part: Any, what: str, schema: Any) -> None:
    match part:
        case schema.SymExpr():
            judge_expression(part.expr_str, what)
        case schema.Node():
            _operator(part.target, what)
            if part.name is not None:
                _name(part.name, what)
            for given in part.inputs:
                if given.name:
                    _name(given.name, what)
            part.metadata = _clean(part.metadata)
        case schema.Graph():
            values = (part.tensor_values, part.sym_int_values, part.sym_bool_values, part.sym_float_values)
            for name in (n for table in values for n in table):
                _name(name, what)
            if part.custom_obj_values:
                raise not_judged(what, "it holds objects of other types than tensors")
            for given in part.inputs:
                if given.type == "as_string":
                    _plain(given.value, what)
        case schema.ConstantValue() | schema.SymIntArgument() | schema.SymFloatArgument() | schema.SymBoolArgument():
            if isinstance(part.value, str):
                _plain(part.value, what) if str(part.type) == "as_string" else _name(part.value, what)
        case schema.CustomObjArgument() | schema.InputToCustomObjSpec():
            raise not_judged(what, "it holds objects of other types than tensors")
        case (
            schema.TensorArgument()
            | schema.TokenArgument()
            | schema.GraphArgument()
            | schema.InputToConstantInputSpec()
        ):
            _name(part.name, what)
        case schema.Argument(type="as_operator"):
            _operator(part.value, what)
        case schema.Device():
            if part.type not in ("cpu", "cuda", "meta", "mps", "xpu"):
                raise not_judged(what, f"it names the device {ascii(part.type)}")
        case _:
            for field in ("parameter_name", "buffer_name", "tensor_constant_name", "user_input_name"):
                value = getattr(part, field, "x") if not hasattr(part, "create") else "x"
                _qualified(value, what)


def _clean(metadata: Any) -> dict[str, str]:
    """What of a node's metadata the compiler reads, where it is plain text."""
    found = metadata if isinstance(metadata, dict) else {}
    return {k: v for k, v in found.items() if k in _METADATA and isinstance(v, str) and _METADATA[k].fullmatch(v)}


def _operator(target: object, what: str) -> None:
    try:
        good = isinstance(target, str) and harmless_target(target)
    except RuntimeError:
        raise MlircError(f"{what}: the operator {ascii(shorten(target, 80))} is not known to this PyTorch") from None
    if not good:
        raise not_judged(what, f"it calls {ascii(shorten(target, 80))}, which is not known to be harmless")


def _name(value: object, what: str) -> None:
    if not isinstance(value, str) or not value.isidentifier() or keyword.iskeyword(value) or len(value) > 2000:
        raise not_judged(what, f"{ascii(shorten(value, 80))} stands where a name should be")


def _qualified(value: object, what: str) -> None:
    if not isinstance(value, str) or not _QUALIFIED.fullmatch(value) or "__" in {p[:2] for p in value.split(".")}:
        raise not_judged(what, f"{ascii(shorten(value, 80))} stands where a weight's name should be")


def _plain(value: object, what: str) -> None:
    if not isinstance(value, str) or not _PLAIN.fullmatch(value):
        raise not_judged(what, f"{ascii(shorten(value, 80))} stands where plain text should be")


def _judge_tree(text: object, what: str, keywords: bool = False) -> None:
    """The structure of inputs or outputs: containers that PyTorch knows, without imports or Python's objects.

    `keywords`: the names of the second part, a dictionary of keyword arguments, become Python names."""
    spec = parse_json(text.encode(), f"{what}: the structure of its inputs") if isinstance(text, str) else None
    if not isinstance(spec, list) or len(spec) != 2 or spec[0] != 1:
        raise MlircError(f"{what}: the structure of its inputs or outputs is damaged")
    _judge_container(spec[1], what, 0)
    children = spec[1].get("children_spec") or []
    if keywords and len(children) == 2:
        for key in parse_json(str(children[1].get("context")).encode(), what) or []:
            _name(key, what)


def _judge_container(node: Any, what: str, depth: int) -> None:
    if not isinstance(node, dict) or not isinstance(node.get("children_spec"), list) or depth > _DEPTH:
        raise MlircError(f"{what}: the structure of its inputs or outputs is damaged")
    kind, context = node.get("type"), node.get("context")
    if kind is not None:
        if kind == "collections.defaultdict":
            factory = context if isinstance(context, dict) else {}
            if (
                factory.get("default_factory_module") != "builtins"
                or factory.get("default_factory_name") not in _FACTORIES
            ):
                raise not_judged(what, "its inputs or outputs hold a defaultdict that imports something")
            context = factory.get("dict_context")
        elif kind not in _CONTAINERS and not _registered(kind):
            raise MlircError(
                f"{what}: its inputs or outputs hold a {ascii(shorten(kind, 80))}, which is not known here: export the "
                "model with tuples, lists and dictionaries of tensors"
            )
        value = (
            parse_json(context.encode(), f"{what}: a container's keys")
            if isinstance(context, str) and kind != "collections.namedtuple"
            else context
        )
        _judge_keys(value, what, 0)
    for child in node["children_spec"]:
        _judge_container(child, what, depth + 1)


def _registered(kind: object) -> bool:
    from torch.utils import _pytree

    return isinstance(kind, str) and kind in _pytree.SERIALIZED_TYPE_TO_PYTHON_TYPE


def _judge_keys(value: Any, what: str, depth: int) -> None:
    """Keys of dictionaries: numbers, plain text, lists of them; no enumerations, which would be imported."""
    if depth > _DEPTH:
        raise MlircError(f"{what}: the structure of its inputs or outputs is damaged")
    if isinstance(value, dict):
        if "__enum__" in value:
            raise not_judged(what, "its inputs or outputs have keys that import something")
        value = [*value, *value.values()]
    if isinstance(value, list):
        for part in value:
            _judge_keys(part, what, depth + 1)
    elif isinstance(value, str):
        _plain(value, what)
