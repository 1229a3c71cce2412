"""Functions of attention's scores: what `mlirc.attention` has in its attribute `score`, a list of MLIR's lines.

    score = ["%0 = arith.negf %score : f32", "%1 = math.exp %0 : f32", "return %1 : f32"]

A function is made of `arith` and `math` ops. It sees one score, `%score`, after scale and soft cap; where that is, as
indices `%b` (batch), `%h` (head of queries), `%i` (query) and `%j` (key); and the op's inputs, `%in0`, `%in1`, ...: one
element of an input of rank 4, and all of a first one of rank 1 to 3, a table, of which it reads elements by
`tensor.extract`. It returns another score, or where there is no softmax the weight. `write` makes the lines of a
Python function that builds ops, `inline` puts them into a body, `torch_score` computes them on tensors."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Sequence
from typing import Any

from mlirc.mlir import func, ir

PLACE = ("score", "b", "h", "i", "j")
Lines = tuple[str, ...]


def _names(count: int) -> list[str]:
    return [*PLACE, *(f"in{n}" for n in range(count))]


def _types(score: ir.Type, inputs: Sequence[ir.Type]) -> list[ir.Type]:
    return [score, *[ir.IndexType.get()] * 4, *inputs]


def write(function: Callable[..., ir.Value], score: ir.Type, inputs: Sequence[ir.Type] = ()) -> Lines:
    """The lines of `function(score, b, h, i, j, *inputs)`, which builds ops and returns a value of the score's type."""
    module = ir.Module.create()
    with ir.InsertionPoint(module.body):
        made = func.FuncOp("score", (_types(score, inputs), [score]))
        block = made.add_entry_block()
    with ir.InsertionPoint(block):
        result = function(*block.arguments)
        if not isinstance(result, ir.Value) or result.type != score:
            shown = getattr(result, "type", result)
            raise ValueError(f"a function of scores returns a value of type {score}, not {shown}")
        func.ReturnOp([result])
    names = _names(len(inputs))
    body = str(module).split("\n")[2:-3]
    lines = tuple(re.sub(r"%arg(\d+)\b", lambda m: f"%{names[int(m[1])]}", line.strip()) for line in body)
    parse(lines, score, inputs)
    return lines


def parse(lines: Lines, score: ir.Type, inputs: Sequence[ir.Type] = ()) -> ir.Block:
    """The body that the lines are; raises ValueError for lines that are no such function."""
    with score.context:
        module = _parse(tuple(lines), str(score), tuple(map(str, inputs)))
    return module.body.operations[0].regions[0].blocks[0]


@functools.lru_cache(maxsize=64)
def _parse(lines: Lines, score: str, inputs: tuple[str, ...]) -> ir.Module:
    types = [score, *["index"] * 4, *inputs]
    arguments = ", ".join(f"%{n}: {t}" for n, t in zip(_names(len(inputs)), types, strict=True))
    # one op per line: nothing closes the function's body but its end
    if any("{" in line or "}" in line for line in lines):
        raise ValueError("score: its lines are ops without regions")
    text = f"func.func @score({arguments}) -> {score} {{\n" + "\n".join(lines) + "\n}"
    try:
        module = ir.Module.parse(text)
    except ir.MLIRError as e:
        found = re.search(r'"-":(\d+):\d+\)?: *(.*)', str(e))
        line = int(found[1]) - 2 if found else -1
        at = f" in '{lines[line]}'" if 0 <= line < len(lines) else ""
        raise ValueError(f"score: not valid MLIR{at}: {' '.join((found[2] if found else str(e)).split())[:200]}") from e
    for op in module.body.operations[0].regions[0].blocks[0].operations:
        name = op.operation.name
        if name.split(".")[0] not in ("arith", "math") and name not in ("func.return", "tensor.extract"):
            raise ValueError(f"score: it is made of arith and math ops and tensor.extract, not {name}")
    return module


def inline(lines: Lines, score: ir.Value, place: Callable[[int], ir.Value], inputs: Sequence[ir.Value]) -> ir.Value:
    """Adds the function's ops at the insertion point and returns its result. `place(n)` makes index number n of b, h, i
    and j, where it is read."""
    block = parse(lines, score.type, [v.type for v in inputs])
    arguments = list(block.arguments)
    values = {arguments[0]: score} | dict(zip(arguments[5:], inputs, strict=True))
    for n in range(4):
        if list(arguments[1 + n].uses):
            values[arguments[1 + n]] = place(n)
    *ops, end = list(block.operations)
    for op in ops:
        new = op.operation.clone()
        for i, v in enumerate(op.operation.operands):
            new.operation.operands[i] = values[v]
        values |= dict(zip(op.operation.results, new.operation.results, strict=True))
    return values[end.operation.operands[0]]


_BINARY: dict[str, str] = {
    "addf": "add", "subf": "sub", "mulf": "mul", "divf": "div", "maximumf": "maximum", "minimumf": "minimum",
    "addi": "add", "subi": "sub", "muli": "mul", "powf": "pow", "andi": "logical_and", "ori": "logical_or",
    "xori": "logical_xor",
}  # fmt: skip
_UNARY: dict[str, str] = {
    "negf": "neg", "exp": "exp", "exp2": "exp2", "tanh": "tanh", "log": "log", "log2": "log2", "log1p": "log1p",
    "expm1": "expm1", "sqrt": "sqrt", "rsqrt": "rsqrt", "absf": "abs", "erf": "erf", "sin": "sin", "cos": "cos",
    "floor": "floor", "ceil": "ceil",
}  # fmt: skip
_COMPARE = {
    "oeq": "eq", "ueq": "eq", "une": "ne", "one": "ne", "olt": "lt", "ole": "le", "ogt": "gt", "oge": "ge",
    "eq": "eq", "ne": "ne", "slt": "lt", "sle": "le", "sgt": "gt", "sge": "ge",
}  # fmt: skip
_TYPES = {"f16": "float16", "bf16": "bfloat16", "f32": "float32", "f64": "float64", "i64": "int64", "i32": "int32"}


def torch_score(lines: Lines, scores: Any, place: Sequence[Any], inputs: Sequence[Any]) -> Any:
    """The same of PyTorch tensors: scores [B,H,Sq,Sk], what broadcasts to them as indices and as inputs."""
    import torch

    values = dict(zip(_names(len(inputs)), [scores, *place, *inputs], strict=True))
    for line in lines:
        if found := re.match(r"return %(\w+)", line):
            return values[found[1]]
        found = re.fullmatch(r"%(\w+) = \w+\.(\w+) (.*?) : (.*)", line)
        if not found:
            raise ValueError(f"score: no words of PyTorch for '{line}'")
        name, op, text, type_ = found.groups()
        x = [values[v] for v in re.findall(r"%(\w+)", text)]
        if op == "constant":
            values[name] = _constant(text, type_)
        elif op in _BINARY:
            values[name] = getattr(torch, _BINARY[op])(*map(torch.as_tensor, x))
        elif op in _UNARY:
            values[name] = getattr(torch, _UNARY[op])(x[0])
        elif op in ("cmpf", "cmpi"):
            values[name] = getattr(torch, _COMPARE[text.split(",")[0].split()[-1]])(*map(torch.as_tensor, x))
        elif op == "extract":
            table, *indices = x
            values[name] = table[tuple(map(torch.as_tensor, indices))]
        elif op == "select":
            values[name] = torch.where(*map(torch.as_tensor, x))
        elif op in ("extf", "truncf", "sitofp", "uitofp", "index_cast", "extsi"):
            values[name] = torch.as_tensor(x[0]).to(getattr(torch, _TYPES.get(type_.split()[-1], "int64")))
        else:
            raise ValueError(f"score: no words of PyTorch for '{line}'")
    raise ValueError("score: it returns nothing")


def _constant(text: str, type_: str) -> Any:
    """A number as PyTorch has it: of the lines' type."""
    import struct

    import torch

    text = text.split()[0]
    if text in ("true", "false"):
        return torch.tensor(text == "true")
    if text.startswith("0x") and type_ in ("f32", "f64"):
        code, size = ("f", 4) if type_ == "f32" else ("d", 8)
        number = struct.unpack(code, int(text, 16).to_bytes(size, "little"))[0]
        return torch.tensor(number, dtype=getattr(torch, _TYPES[type_]))
    if type_ in _TYPES:
        return torch.tensor(float(text), dtype=getattr(torch, _TYPES[type_]))
    return torch.tensor(int(text))
