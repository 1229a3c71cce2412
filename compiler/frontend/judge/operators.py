"""Which operators a model file may call: those that compute on their arguments and touch nothing else.

Safe by default: an operator's namespace must be one of those below, and a string that it takes must be one of the modes
known here. What reads or writes files (`aten::from_file`, `aten::save`), talks to other processes or runs Python is in
none of them.
"""

from __future__ import annotations

import functools
import re
from typing import Any

import torch

NAMESPACES = frozenset({"aten", "prims", "quantized_decomposed", "torchvision", "torchaudio"})
HIGHER_ORDER = frozenset({
    "associative_scan", "cond", "flex_attention", "hints_wrapper", "invoke_subgraph", "map", "map_impl", "out_dtype",
    "scan", "strict_mode", "tag_activation_checkpoint", "while_loop", "wrap", "wrap_with_autocast",
    "wrap_with_set_grad_enabled",
})  # fmt: skip
PYTHON = frozenset({
    *(f"_operator.{n}" for n in (
        "add", "and_", "eq", "floordiv", "ge", "getitem", "gt", "le", "lshift", "lt", "mod", "mul", "ne", "neg", "or_",
        "pos", "pow", "rshift", "sub", "truediv",
    )),
    *(f"math.{n}" for n in ("ceil", "floor", "pow", "sqrt", "trunc")),
    *(f"torch.sym_{n}" for n in ("float", "int", "ite", "max", "min", "not", "sqrt", "sum")),
    "torch._sym_sqrt",
})  # fmt: skip
# What the strings are that aten's operators take: modes, messages, text to compare.
_STRINGS = frozenset({
    "UPLO", "_0", "a", "api_name", "approximate", "assert_msg", "b", "chars", "cls", "dict", "device_type", "driver",
    "el", "equation", "fillchar", "idx", "ind", "indexing", "input", "inputs", "interpolation", "item", "key", "l",
    "message", "mode", "msg", "new", "norm", "old", "ord", "p", "pad_mode", "padding", "padding_side", "reduce",
    "rounding_mode", "s", "self", "separator", "side", "string", "substr", "t", "to_add", "type", "values",
})  # fmt: skip
# Names of dimensions, which PyTorch before 2.13 takes where others take their numbers.
_DIMENSIONS = frozenset({"dim", "dim0", "dim1", "dims", "end_dim", "names", "order", "out_dim", "start_dim"})
# These take no string that says so, or one that is no mode, and reach out of their arguments.
_REFUSED = frozenset({
    "from_file", "save", "load", "manual_seed", "seed", "record_stream", "_cufft_set_plan_cache_max_size",
    "_cufft_clear_plan_cache", "_share_memory", "share_memory_", "_new_shared_tensor",
})  # fmt: skip
PRIM = frozenset({
    "EnumName", "EnumValue", "IfThenElse", "NumToTensor", "Print", "RaiseException", "StringIndex", "TupleIndex",
    "TupleUnpack", "Uninitialized", "abs", "data", "device", "dtype", "grad", "id", "index", "is_cpu", "is_cuda",
    "is_ipu", "is_maia", "is_meta", "is_mkldnn", "is_mps", "is_mtia", "is_nested", "is_quantized", "is_sparse",
    "is_sparse_csr", "is_vulkan", "is_xla", "is_xpu", "itemsize", "layout", "max", "min", "name", "nbytes", "rangelist",
    "requires_grad", "tolist", "type", "unchecked_cast", "unchecked_unwrap_optional", "ConstantChunk", "isinstance",
    "unchecked_unwrap",
})  # fmt: skip
_OVERLOAD = re.compile(r"torch\.ops\.(\w+)\.(\w+)(?:\.(\w+))?", re.ASCII)


def harmless(schema: Any) -> bool:
    """Whether an operator (its schema) computes on its arguments alone."""
    namespace, name = schema.name.split("::")
    if namespace == "prim":
        return name in PRIM
    if namespace not in NAMESPACES or name in _REFUSED:
        return False
    return all(a.name in _STRINGS | _DIMENSIONS for a in schema.arguments if "str" in str(a.type))


def harmless_target(target: str) -> bool:
    """Whether a node of an exported graph may call this: an operator's overload, or Python's own arithmetic."""
    if target in PYTHON:
        return True
    match = _OVERLOAD.fullmatch(target)
    if match is None:
        return False
    namespace, name, overload = match.groups()
    if namespace == "higher_order":
        return overload is None and name in HIGHER_ORDER
    if namespace not in NAMESPACES or overload is None:
        return False
    schema = torch._C._get_schema(f"{namespace}::{name}", "" if overload == "default" else overload)
    return harmless(schema)


@functools.cache
def script_names() -> tuple[frozenset[str], frozenset[str]]:
    """Names of `aten` operators as TorchScript sees them: those that may be called, and those that may not."""
    good: set[str] = set()
    bad: set[str] = set()
    for schema in torch._C._jit_get_all_schemas():
        namespace, name = schema.name.split("::")
        if namespace == "aten":
            (good if harmless(schema) else bad).add(name)
    return frozenset(good - bad), frozenset(bad)
