"""The wheel's FX importer with our locations, and with attention as a call of a declared function."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from typing import Any

import torch

import mlirc.frontend.cached_attention  # noqa: F401  registers the op
from mlirc.dialects.mlirc_dialect import HEAD_VECTORS
from mlirc.frontend.attention import ATTENTIONS
from mlirc.mlir import context, func, fx_importer, ir

_FRAME = re.compile(r'File "([^"]+)", line ([0-9]+)')
ATTENTION_CALL = "mlirc.attention"
VECTORS = "vectors"  # among the attributes: the names of the last operands, which have a number for each head
CACHED = "cached"  # among the attributes: it is over a cache in pages
SCAN_CALL = "mlirc.scan"
CACHED_ATTENTION = torch.ops.mlirc.cached_attention.default


def is_loop(node: torch.fx.Node) -> bool:
    """Whether a node is a loop over time steps, `mlirc::scan`."""
    return node.op == "call_function" and node.target is torch.ops.mlirc.scan.default


def module_path(node: torch.fx.Node) -> str:
    """The path of the innermost module of the model that a node comes from; empty for the model itself."""
    stack = list((node.meta.get("nn_module_stack") or {}).values())
    path = stack[-1][0] if stack else ""
    return re.sub(r"^L\['\w+'\]\.?|@\d+$", "", path)  # Dynamo's names start with a local variable's


def source_line(node: torch.fx.Node) -> tuple[str, int] | None:
    """File and line of the model's code that a node comes from; the file is relative to its package's folder."""
    frames = [f for f in _FRAME.findall(node.meta.get("stack_trace") or "") if "/torch/" not in f[0]]
    if not frames:
        return None
    file, line = frames[-1]
    for folder in sorted((p for p in sys.path if p), key=len, reverse=True):
        if file.startswith(folder.rstrip("/") + "/"):
            return file[len(folder.rstrip("/")) + 1 :], int(line)
    return file, int(line)


def make_importer(root: str, steps: Mapping[str, str] | None = None) -> Any:
    """An FxImporter into the process's context; `root` names the location of ops outside any submodule, `steps` the
    function of each loop's step, by the loop's node."""
    fx: Any = fx_importer()

    class Cache(fx.ContextCache):
        __slots__ = ["_known"]

        def get_node_location(self, node: torch.fx.Node) -> ir.Location | None:
            if not hasattr(self, "_known"):
                self._known: dict[Any, ir.Location] = {}
            key = (module_path(node) or root, source_line(node))
            if key not in self._known:
                name, line = key
                child = ir.Location.file(*line, 0, context=self._c) if line else None
                self._known[key] = ir.Location.name(name, childLoc=child, context=self._c)
            return self._known[key]

    class Nodes(fx.GraphNodeImporter):
        __slots__: list[str] = []

        def _import_torch_op_overload(self, loc: Any, node: Any, concrete_target: Any = None) -> None:
            if node.target in ATTENTIONS:
                _import_attention(self, loc, node)
            elif node.target is CACHED_ATTENTION:
                _import_cached_attention(self, loc, node)
            elif is_loop(node):
                _import_loop(self, loc, node, steps)
            else:
                super()._import_torch_op_overload(loc, node, concrete_target)

    importer = fx.FxImporter(context=context(), graph_node_importer_cls=Nodes)
    importer._cc = Cache(context(), py_attr_tracker=importer._py_attr_tracker)
    return importer


def _import_attention(importer: Any, loc: ir.Location, node: torch.fx.Node) -> None:
    """Imports `mlirc::attention`, or with its log-sum-exp `mlirc::attention_lse`, as a call of a private function whose
    attributes say what the call computes."""
    arguments: Any = node.args
    q, k, v, mask, bias, inputs, scale, causal, window, softcap, *more = arguments
    rest: Any = more + [False, "", True, None, False][len(more) :]
    nan_rows, score, softmax, sinks, _ = rest
    assert bias is None, "simplify() merges the bias into the mask"
    operands = [importer.resolve_node_value(x) for x in (q, k, v, mask, *inputs, sinks) if x is not None]
    with loc:
        attributes = _limits(scale, window, softcap) | {
            "causal": ir.BoolAttr.get(causal),
            "nan_rows": ir.BoolAttr.get(nan_rows),
            "score": ir.ArrayAttr.get([ir.StringAttr.get(line) for line in score.split("\n") if line]),
            "softmax": ir.BoolAttr.get(softmax),
            VECTORS: _given([None, sinks]),
        }
        _call_attention(importer, node, operands, attributes)


def _import_cached_attention(importer: Any, loc: ir.Location, node: torch.fx.Node) -> None:
    """Imports `mlirc::cached_attention` as such a call, too."""
    arguments: Any = node.args
    tensors, (scale, window, softcap, *more) = arguments[:5], arguments[5:]
    vectors = [*more, None, None][:2]
    operands = [importer.resolve_node_value(x) for x in (*tensors, *vectors) if x is not None]
    with loc:
        attributes = _limits(scale, window, softcap) | {CACHED: ir.BoolAttr.get(True), VECTORS: _given(vectors)}
        _call_attention(importer, node, operands, attributes)


def _given(vectors: list[Any]) -> ir.Attribute:
    """The names of the numbers of heads that a call has, in their order."""
    names = [name for name, x in zip(HEAD_VECTORS, vectors, strict=True) if x is not None]
    return ir.ArrayAttr.get([ir.StringAttr.get(name) for name in names])


def _limits(scale: float, window: int, softcap: float) -> dict[str, ir.Attribute]:
    f64, i64 = ir.F64Type.get(), ir.IntegerType.get_signless(64)
    return {
        "scale": ir.FloatAttr.get(f64, scale),
        "window": ir.IntegerAttr.get(i64, window),
        "softcap": ir.FloatAttr.get(f64, softcap),
    }


def _call_attention(
    importer: Any, node: torch.fx.Node, operands: list[ir.Value], said: dict[str, ir.Attribute]
) -> None:
    """A call of the private function with these attributes, which is declared where it is not yet."""
    attributes = ir.DictAttr.get(said)
    values = node.meta["val"]
    results = [importer._cc.value_info_to_type(v) for v in (values if isinstance(values, (tuple, list)) else [values])]
    body = importer.fx_importer.module.body
    type_ = ir.FunctionType.get([x.type for x in operands], results)
    declared = [op for op in body.operations if ATTENTION_CALL in op.attributes]
    for op in declared:
        if op.attributes[ATTENTION_CALL] == attributes and op.type == type_:
            break
    else:
        with ir.InsertionPoint(body):
            op = func.FuncOp(f"mlirc_attention_{len(declared)}", type_, visibility="private")
        op.attributes[ATTENTION_CALL] = attributes
    call = func.CallOp(results, op.name.value, operands)
    if isinstance(values, (tuple, list)):
        importer._multi_result_nodes.add(node)
    for i, value in enumerate(call.results):
        importer.bind_node_value(node, value, i)


def _import_loop(importer: Any, loc: ir.Location, node: torch.fx.Node, steps: Mapping[str, str] | None) -> None:
    """Imports `mlirc::scan` as a call of a private function whose attribute says how often it calls which step."""
    arguments: Any = node.args
    init, xs, closed, count, reverse, _ = arguments
    operands = [importer.resolve_node_value(x) for x in (*init, *xs, *closed)]
    results = [importer._cc.value_info_to_type(v) for v in node.meta["val"]]
    assert steps is not None
    body = importer.fx_importer.module.body
    with loc:
        i64 = ir.IntegerType.get_signless(64)
        attributes = ir.DictAttr.get(
            {
                "step": ir.FlatSymbolRefAttr.get(steps[node.name]),
                "count": ir.IntegerAttr.get(i64, count),
                "carries": ir.IntegerAttr.get(i64, len(init)),
                "slices": ir.IntegerAttr.get(i64, len(xs)),
                "reverse": ir.BoolAttr.get(reverse),
            }
        )
        type_ = ir.FunctionType.get([x.type for x in operands], results)
        declared = [op for op in body.operations if SCAN_CALL in op.attributes]
        for op in declared:
            if op.attributes[SCAN_CALL] == attributes and op.type == type_:
                break
        else:
            with ir.InsertionPoint(body):
                op = func.FuncOp(f"loop_{len(declared)}", type_, visibility="private")
            op.attributes[SCAN_CALL] = attributes
        call = func.CallOp(results, op.name.value, operands)
    importer._multi_result_nodes.add(node)
    for i, value in enumerate(call.results):
        importer.bind_node_value(node, value, i)
