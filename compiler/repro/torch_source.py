"""Writes a kernel function's meaning as PyTorch source, for people to read and for repros to check against."""

from __future__ import annotations

from collections.abc import Callable, Container

from mlirc.dialects.mlirc_dialect import CACHED_ATTENTION, head_vectors, scores_operands
from mlirc.mlir import context, ir, run_passes

DTYPES = {
    "f64": "torch.float64",
    "f32": "torch.float32",
    "f16": "torch.float16",
    "bf16": "torch.bfloat16",
    "f8E4M3FN": "torch.float8_e4m3fn",
    "f8E5M2": "torch.float8_e5m2",
    "i1": "torch.bool",
    "i8": "torch.int8",
    "i16": "torch.int16",
    "i32": "torch.int32",
    "i64": "torch.int64",
    "index": "torch.int64",
}

_INFIX = {"addf": "+", "addi": "+", "subf": "-", "subi": "-", "mulf": "*", "muli": "*", "divf": "/", "andi": "&"}
_INFIX |= {"ori": "|", "xori": "^", "shli": "<<", "shrsi": ">>"}
_CALLS = {
    **{f"arith.{op}": "torch.maximum" for op in ("maximumf", "maxsi")},
    **{f"arith.{op}": "torch.minimum" for op in ("minimumf", "minsi")},
    **{"arith.maxnumf": "torch.fmax", "arith.minnumf": "torch.fmin", "math.powf": "torch.pow"},
    **{"math.atan2": "torch.atan2", "math.copysign": "torch.copysign", "arith.remf": "torch.fmod"},
    **{"arith.remsi": "torch.fmod", "math.absf": "torch.abs", "math.absi": "torch.abs", "arith.negf": "torch.neg"},
    **{"math.roundeven": "torch.round", "math.log1p": "torch.log1p", "math.expm1": "torch.expm1"},
    **{f"math.{f}": f"torch.{f}" for f in "exp exp2 log log2 log10 sqrt rsqrt tanh erf erfc sin cos tan".split()},
    **{f"math.{f}": f"torch.{f}" for f in "atan asin acos sinh cosh floor ceil trunc".split()},
}
_CASTS = {"extf", "truncf", "extsi", "trunci", "sitofp", "fptosi", "index_cast"}
_COMPARE_INT = ["==", "!=", "<", "<=", ">", ">="]
# By arith.cmpf's predicate, from 1: oeq ogt oge olt ole one ord ueq ugt uge ult ule une uno.
_COMPARE_FLOAT = dict(
    enumerate(
        (
            *("({0} == {1})", "({0} > {1})", "({0} >= {1})", "({0} < {1})", "({0} <= {1})"),
            *("(({0} < {1}) | ({0} > {1}))", "(({0} == {0}) & ({1} == {1}))", "(~(({0} < {1}) | ({0} > {1})))"),
            *("(~({0} <= {1}))", "(~({0} < {1}))", "(~({0} >= {1}))", "(~({0} > {1}))", "({0} != {1})"),
            "(({0} != {0}) | ({1} != {1}))",
        ),
        start=1,
    )
)
_REDUCERS = {
    **{op: ("{0}.sum({1})", "{0} + {1}") for op in ("arith.addf", "arith.addi")},
    **{op: ("{0}.amax({1})", "torch.maximum({0}, {1})") for op in ("arith.maximumf", "arith.maxnumf", "arith.maxsi")},
    **{op: ("{0}.amin({1})", "torch.minimum({0}, {1})") for op in ("arith.minimumf", "arith.minnumf", "arith.minsi")},
    "arith.ori": ("{0}.any({1})", "{0} | {1}"),
    "arith.andi": ("{0}.all({1})", "{0} & {1}"),
}


class Untranslatable(Exception):
    """The kernel holds something that has no short form in PyTorch; the message names it."""


def torch_source(module: ir.Module, name: str) -> str:
    """The body of a Python function, indented, over arguments `a0, a1, ...`, that returns a tuple of tensors.

    `module` holds the kernel function `name` at the `kernels` level. Raises Untranslatable.
    """
    from mlirc.ir import levels

    with context(), ir.Location.unknown():
        alone = levels.isolate(module, name)
        run_passes(alone, "func.func(linalg-generalize-named-ops)")
        return "\n".join(f"    {line}" for line in _Function(levels.functions(alone)[name]).lines)


def program_source(module: ir.Module) -> str:
    """Python source of a whole `linalg`- or `kernels`-level module: one function per MLIR function, `main` among them,
    each on tensors `a0, a1, ...` and returning a tuple. Needs `torch` and `mlirc.repro.kernel`'s `attention` as
    names around it.

    Raises Untranslatable.
    """
    from mlirc.ir import levels

    parts = []
    with context(), ir.Location.unknown():
        plain = levels.copy(module)
        run_passes(plain, "func.func(linalg-generalize-named-ops)")
        for name, function in levels.functions(plain).items():
            arguments = ", ".join(f"a{i}" for i in range(len(function.type.inputs)))
            body = "\n".join(f"    {line}" for line in _Function(function).lines)
            parts.append(f"def {name}({arguments}):\n{body}\n")
    return "\n".join(parts)


def _dtype(type_: ir.Type) -> str:
    return DTYPES[str(getattr(type_, "element_type", type_))]


def _constant(attribute: ir.Attribute) -> str:
    if isinstance(attribute, ir.BoolAttr):
        return str(attribute.value)
    value = attribute.value
    return repr(value) if value == value and abs(value) != float("inf") else f'float("{value}")'


class _Function:
    """Translates a function op by op; `names` maps each value to a Python expression that is cheap to repeat."""

    def __init__(self, function: ir.OpView) -> None:
        block = function.regions[0].blocks[0]
        self.names: dict[ir.Value, str] = {a: f"a{i}" for i, a in enumerate(block.arguments)}
        self.lines: list[str] = []
        self.count = 0
        for op in block.operations:
            handler: Callable | None = getattr(self, "op_" + op.operation.name.replace(".", "_"), None)
            if handler is None:
                raise Untranslatable(op.operation.name)
            handler(op.operation)

    def shared(self, text: str) -> str:
        """A variable that holds the expression."""
        name = f"v{self.count}"
        self.count += 1
        self.lines.append(f"{name} = {text}")
        return name

    def assign(self, value: ir.Value, text: str) -> None:
        self.names[value] = self.shared(text)

    def op_func_return(self, op: ir.Operation) -> None:
        self.lines.append(f"return ({', '.join(self.names[v] for v in op.operands)},)")

    def op_func_call(self, op: ir.Operation) -> None:
        callee = ir.FlatSymbolRefAttr(op.attributes["callee"]).value
        self.lines.append(f"c{self.count} = {callee}({', '.join(self.names[v] for v in op.operands)})")
        result = f"c{self.count}"
        self.count += 1
        for i, value in enumerate(op.results):
            self.names[value] = f"{result}[{i}]"

    def op_arith_constant(self, op: ir.Operation) -> None:
        value, type_ = op.attributes["value"], op.results[0].type
        if not isinstance(type_, ir.RankedTensorType):
            self.names[op.results[0]] = _constant(value)
        elif isinstance(value, ir.DenseElementsAttr) and value.is_splat:
            filler = _constant(value.get_splat_value())
            self.assign(op.results[0], f"torch.full({tuple(type_.shape)}, {filler}, dtype={_dtype(type_)})")
        else:
            raise Untranslatable("a constant tensor")

    def op_tensor_empty(self, op: ir.Operation) -> None:
        type_ = op.results[0].type
        self.names[op.results[0]] = f"torch.empty({tuple(type_.shape)}, dtype={_dtype(type_)})"

    def op_tensor_reshape_like(self, op: ir.Operation) -> None:
        self.assign(op.results[0], f"{self.names[op.operands[0]]}.reshape{tuple(op.results[0].type.shape)}")

    op_tensor_expand_shape = op_tensor_collapse_shape = op_tensor_reshape_like

    def op_tensor_extract_slice(self, op: ir.Operation) -> None:
        offsets, sizes, strides = (list(op.attributes[f"static_{k}"]) for k in ("offsets", "sizes", "strides"))
        if len(op.operands) > 1:
            raise Untranslatable("tensor.extract_slice with a computed offset")
        index = [f"{o}:{o + (n - 1) * s + 1}:{s}" for o, n, s in zip(offsets, sizes, strides, strict=True)]
        shape = tuple(op.results[0].type.shape)
        self.assign(op.results[0], f"{self.names[op.operands[0]]}[{', '.join(index)}].reshape({shape})")

    def op_tensor_concat(self, op: ir.Operation) -> None:
        parts = ", ".join(self.names[v] for v in op.operands)
        self.assign(op.results[0], f"torch.cat([{parts}], {ir.IntegerAttr(op.attributes['dim']).value})")

    def op_mlirc_attention(self, op: ir.Operation) -> None:
        options = [
            f"{k}={op.attributes[k].value}" for k in ("scale", "causal", "window", "softcap") if k in op.attributes
        ]
        if "nan_rows" in op.attributes:
            options.append("nan_rows=True")
        if "score" in op.attributes:
            options.append(f"score={[s.value for s in op.attributes['score']]}")
        if "no_softmax" in op.attributes:
            options.append("softmax=False")
        if "layouts" in op.attributes:
            options.append(f"layouts={[s.value for s in op.attributes['layouts']]}")
        vectors = head_vectors(op)
        options += [f"{name}={self.names[v]}" for name, v in vectors.items()]
        operands = ", ".join(self.names[v] for v in [*list(op.operands)[:3], *scores_operands(op)])
        name = "cached_attention" if op.name == CACHED_ATTENTION else "attention"
        call = f"{name}({operands}, {', '.join(options)}"
        if len(op.results) == 1:
            self.assign(op.results[0], f"{call})")
            return
        for number, result in enumerate(op.results):
            self.assign(result, f"{call}, lse=True)[{number}]")

    op_mlirc_sink_attention = op_mlirc_table_attention = op_mlirc_cached_attention = op_mlirc_attention

    def op_linalg_generic(self, op: ir.Operation) -> None:
        results = _Generic(op, self.names, self.shared).results()
        for value, text in zip(op.results, results, strict=True):
            self.assign(value, text)


class _Generic:
    """One linalg.generic as broadcast tensor expressions over its iteration space."""

    def __init__(self, op: ir.Operation, names: dict[ir.Value, str], name_it: Callable[[str], str]) -> None:
        self.op = op
        self.name_it = name_it
        self.outer = names
        self.maps = [[r for r in ir.AffineMapAttr(a).value.results] for a in op.attributes["indexing_maps"]]
        self.rank = ir.AffineMapAttr(op.attributes["indexing_maps"][0]).value.n_dims
        self.reduced = [d for d, t in enumerate(op.attributes["iterator_types"]) if "reduction" in str(t)]
        self.extents = [1] * self.rank
        for value, results in zip(op.operands, self.maps, strict=True):
            for axis, expr in enumerate(results):
                if isinstance(expr, ir.AffineDimExpr):
                    self.extents[expr.position] = value.type.shape[axis]
                elif not isinstance(expr, ir.AffineConstantExpr) and len(_window(expr)) != 2:
                    raise Untranslatable(f"linalg.generic with the index expression {expr}")
        self.block = op.regions[0].blocks[0]
        self.inner: dict[ir.Value, str] = {}
        self.outputs = len(op.results)
        self.first_output = len(op.operands) - self.outputs

    def view(self, i: int) -> tuple[str, list[int]]:
        """Operand i with one axis per iteration dimension: as it is, without constant indices, and with the windows of
        convolutions and poolings unfolded. Also the dimensions, in the axes' order."""
        text, shape = self.outer[self.op.operands[i]], self.op.operands[i].type.shape
        if any(isinstance(e, ir.AffineConstantExpr) for e in self.maps[i]):
            fixed = [str(e.value) if isinstance(e, ir.AffineConstantExpr) else ":" for e in self.maps[i]]
            text += f"[{', '.join(fixed)}]"
        left = [e for e in self.maps[i] if not isinstance(e, ir.AffineConstantExpr)]
        dims = [e.position if isinstance(e, ir.AffineDimExpr) else -1 for e in left]
        for axis, expr in enumerate(left):
            if dims[axis] < 0:
                (outer, stride), (inner, dilation) = sorted(_window(expr), key=lambda term: term[0] in self.reduced)
                size = (self.extents[inner] - 1) * dilation + 1
                text += f".unfold({axis}, {size}, {stride})" + (f"[..., ::{dilation}]" if dilation > 1 else "")
                if (shape[axis] - size) // stride + 1 != self.extents[outer]:
                    text += f".narrow({axis}, 0, {self.extents[outer]})"
                dims[axis] = outer
                dims.append(inner)
        if len(set(dims)) < len(dims):
            raise Untranslatable("linalg.generic that reads a diagonal")
        return text, dims

    def aligned(self, i: int) -> str:
        """Operand i, permuted and padded with ones so that it broadcasts over the iteration space."""
        if not isinstance(self.op.operands[i].type, ir.RankedTensorType):
            return self.outer[self.op.operands[i]]
        text, dims = self.view(i)
        order = sorted(range(len(dims)), key=lambda j: dims[j])
        if order != list(range(len(dims))):
            text += f".permute{tuple(order)}"
        padded = [self.extents[d] if d in dims else 1 for d in range(self.rank)]
        if len(dims) < self.rank:
            text += f".reshape({', '.join(map(str, padded))})"
        return text

    def results(self) -> list[str]:
        for i, argument in enumerate(self.block.arguments):
            self.inner[argument] = f"\0{i}"  # aligned when it is used: an output's old value often is not
        operations = [o.operation for o in self.block.operations]
        for op in operations[:-1]:
            text = self.scalar(op) if len(op.results) == 1 else self.fail(op.name)
            if len(list(op.results[0].uses)) > 1 and text != "\1" and not _is_literal(text):
                text = self.name_it(text)
            self.inner[op.results[0]] = text
        return [self.result(i, value) for i, value in enumerate(operations[-1].operands)]

    def fail(self, what: str) -> str:
        raise Untranslatable(f"{what} inside a linalg.generic")

    def name(self, value: ir.Value) -> str:
        if value in self.inner:
            text = self.inner[value]
            return self.aligned(int(text[1:])) if text.startswith("\0") else text
        return self.outer[value]

    def scalar(self, op: ir.Operation) -> str:
        short = op.name.partition(".")[2]
        if op.name == "linalg.index":
            dim = ir.IntegerAttr(op.attributes["dim"]).value
            ones = [self.extents[d] if d == dim else 1 for d in range(self.rank)]
            return f"torch.arange({self.extents[dim]}).reshape({', '.join(map(str, ones))})"
        if op.name == "arith.constant":
            return _constant(op.attributes["value"])
        if any(
            isinstance(v.owner, ir.Block) and v in list(self.block.arguments)[self.first_output :] for v in op.operands
        ):
            if self.reduced:
                return "\1"  # the running value of a reduction: `result` takes it from here
        x = [self.name(v) for v in op.operands]
        if "\1" in x:
            self.fail("an unusual reduction")
        if op.name == "tensor.extract":
            return f"{x[0]}[{', '.join(x[1:])}]"
        if op.name == "arith.select":
            if all(_is_literal(v) for v in x[1:]):
                x[1] = f"torch.tensor({x[1]}, dtype={_dtype(op.results[0].type)})"
            return f"torch.where({', '.join(x)})"
        if op.name == "arith.cmpi":
            return f"({x[0]} {_COMPARE_INT[self.predicate(op, range(6))]} {x[1]})"
        if op.name == "arith.cmpf":
            return _COMPARE_FLOAT[self.predicate(op, _COMPARE_FLOAT)].format(*x)
        if op.name.startswith("arith.") and short in _INFIX:
            return f"({x[0]} {_INFIX[short]} {x[1]})"
        if op.name == "arith.divsi":
            return f'torch.div({x[0]}, {x[1]}, rounding_mode="trunc")'
        if op.name == "math.fpowi":
            return f"({x[0]} ** {x[1]})"
        if op.name.startswith("arith.") and short in _CASTS:
            return f"{_tensor(x[0])}.to({_dtype(op.results[0].type)})"
        if op.name in ("arith.extui", "arith.uitofp") and str(op.operands[0].type) == "i1":
            return f"{_tensor(x[0])}.to({_dtype(op.results[0].type)})"
        if op.name in _CALLS:
            return f"{_CALLS[op.name]}({', '.join(_tensor(v, _dtype(op.results[0].type)) for v in x)})"
        return self.fail(op.name)

    def predicate(self, op: ir.Operation, known: Container[int]) -> int:
        value = ir.IntegerAttr(op.attributes["predicate"]).value
        return value if value in known else int(self.fail(f"{op.name} with predicate {value}"))

    def result(self, number: int, value: ir.Value) -> str:
        output = self.first_output + number
        kind = self.op.results[number].type
        dims = [e.position for e in self.maps[output] if isinstance(e, ir.AffineDimExpr)]
        if len(dims) < len(self.maps[output]):
            raise Untranslatable("linalg.generic that writes at a constant index")
        kept = sorted(dims)
        if not self.reduced and _is_literal(self.name(value)):
            return f"torch.full({tuple(kind.shape)}, {self.name(value)}, dtype={_dtype(kind)})"
        if self.reduced:
            text = self.reduction(value, self.block.arguments[output])
        else:
            text = _tensor(self.name(value), _dtype(kind))
        full = [self.extents[d] for d in kept]
        text = f"{text}.expand({', '.join(map(str, full))})" if full and not self.reduced else text
        order = tuple(kept.index(d) for d in dims)
        if order != tuple(range(len(order))):
            text += f".permute{order}"
        if self.reduced:
            combine = _REDUCERS[value.owner.name][1]
            text = combine.format(self.outer[self.op.operands[output]], text)
        return f"({text}).contiguous()"

    def reduction(self, value: ir.Value, running: ir.Value) -> str:
        op = getattr(value.owner, "operation", value.owner)
        if not isinstance(op, ir.Operation) or op.name not in _REDUCERS or running not in list(op.operands):
            raise Untranslatable("an unusual reduction")
        [term] = [v for v in op.operands if v != running] or [running]
        text = _tensor(self.name(term), _dtype(value.type))
        if "\1" in text:
            raise Untranslatable("an unusual reduction")
        product = getattr(term.owner, "operation", None) if not isinstance(term.owner, ir.Block) else None
        contraction = product is not None and product.name == "arith.mulf" and op.name == "arith.addf"
        if contraction and (text := self.einsum(product)):
            return text
        text = self.name(term)
        shape = ", ".join(map(str, self.extents))
        return _REDUCERS[op.name][0].format(f"{text}.expand({shape})", tuple(self.reduced))

    def einsum(self, product: ir.Operation) -> str:
        """`torch.einsum` for a product of two inputs, each as it is or converted; "" for anything else."""
        specs, texts = [], []
        for value in product.operands:
            casts = ""
            while not isinstance(value.owner, ir.Block) and value.owner.name in ("arith.extf", "arith.truncf"):
                casts = f".to({_dtype(value.type)})" + casts
                value = value.owner.operands[0]
            if not isinstance(value.owner, ir.Block) or value not in list(self.block.arguments):
                return ""
            i = list(self.block.arguments).index(value)
            if self.rank > 26:
                return ""
            text, dims = self.view(i)
            specs.append("".join(chr(97 + d) for d in dims))
            texts.append(text + casts)
        out = "".join(chr(97 + d) for d in range(self.rank) if d not in self.reduced)
        if not set(out) <= set("".join(specs)):
            return ""
        return f'torch.einsum("{",".join(specs)}->{out}", {", ".join(texts)})'


def _window(expr: ir.AffineExpr) -> list[tuple[int, int]]:
    """The (dimension, factor) terms of a sum of dimensions times factors; empty when the expression is another."""
    if isinstance(expr, ir.AffineDimExpr):
        return [(expr.position, 1)]
    if isinstance(expr, ir.AffineMulExpr) and isinstance(expr.lhs, ir.AffineDimExpr):
        return [(expr.lhs.position, expr.rhs.value)] if isinstance(expr.rhs, ir.AffineConstantExpr) else []
    if isinstance(expr, ir.AffineAddExpr):
        left, right = _window(expr.lhs), _window(expr.rhs)
        return left + right if left and right else []
    return []


def _is_literal(text: str) -> bool:
    return text[0] in "-0123456789" or text in ("True", "False") or text.startswith("float(")


def _tensor(text: str, dtype: str | None = None) -> str:
    if not _is_literal(text):
        return text
    return f"torch.tensor({text}, dtype={dtype})" if dtype else f"torch.tensor({text})"
