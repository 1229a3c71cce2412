"""The MLIR bindings: the only module that names the wheel which carries them.

Everything else says `from mlirc.mlir import ir, linalg, ...`, so that another build of the bindings can take its place.
"""

from __future__ import annotations

import functools
from types import ModuleType

import numpy as np
from torch_mlir import execution_engine, ir, passmanager, rewrite, runtime  # noqa: F401
from torch_mlir._mlir_libs import _torchMlir
from torch_mlir.dialects import (  # noqa: F401
    affine,
    arith,
    bufferization,
    cf,
    ext,
    func,
    gpu,
    linalg,
    llvm,
    math,
    memref,
    nvgpu,
    nvvm,
    scf,
    tensor,
    transform,
    vector,
)
from torch_mlir.dialects.transform import interpreter as transform_interpreter  # noqa: F401
from torch_mlir.dialects.transform import structured as transform_structured  # noqa: F401
from torch_mlir.dialects.transform import tensor as transform_tensor  # noqa: F401
from torch_mlir.passmanager import PassManager  # noqa: F401

from mlirc import turns

_context: ir.Context | None = None
_is_ready = False


def context() -> ir.Context:
    """The process's one MLIR context, with every dialect of ours loaded.

    A Python-defined dialect is bound to the context it was loaded into, so there is just one. Multithreading is off:
    Python-defined ops cannot be verified from MLIR's worker threads.
    Threads use it in turn (`mlirc.turns.MLIR`).
    """
    if not _is_ready:
        with turns.MLIR:  # others wait until all dialects are there; those, while they are loaded, have it as it is
            _make_context()
    assert _context is not None
    return _context


def _make_context() -> None:
    global _context, _is_ready
    if _context is None:
        ctx = ir.Context()
        ctx.enable_multithreading(False)
        _torchMlir.register_dialect(ctx)  # without the classes of its ops, which take long to import
        _context = ctx
        from mlirc import dialects

        # An op's class is looked for in a module named like its dialect, in vain and each time anew without this.
        ir._globals.append_dialect_search_prefix(dialects.__name__)
        dialects.load_all(ctx)
        with ctx:  # torch-mlir's tm_tensor dialect has no registration hook: a pass that depends on it loads it
            PassManager.parse("builtin.module(func.func(convert-torch-to-tmtensor))").run(ir.Module.parse("").operation)
        _is_ready = True


MAX_NESTING = 1000  # brackets in brackets; MLIR's parser and walks need stack for each, and end the process without


def nesting(text: str) -> int:
    """How deep brackets are nested in a text."""
    code = np.frombuffer(text.encode(errors="replace"), dtype=np.uint8)
    code = code[np.isin(code, np.frombuffer(b"()[]{}", dtype=np.uint8))]
    opens = np.isin(code, np.frombuffer(b"([{", dtype=np.uint8))
    return int(np.cumsum(np.where(opens, 1, -1)).max(initial=0))


def parse(text: str, what: str = "module") -> ir.Module:
    """Parses a module in the process's context; raises MlircError with MLIR's own diagnostics, and for one that nests
    too deep."""
    from mlirc.errors import MlircError

    if nesting(text) > MAX_NESTING:
        raise MlircError(f"{what}: nests {nesting(text)} regions or brackets deep: {MAX_NESTING} are the most")
    with context(), ir.Location.unknown():
        try:
            return ir.Module.parse(text)
        except ir.MLIRError as e:
            raise MlircError(f"{what}: not valid MLIR: {' '.join(str(e).split())}") from e


@functools.cache
def pass_manager(pipeline: str, verify: bool = True) -> PassManager:
    """The pass manager of a textual pipeline with its anchor, such as `builtin.module(cse)`, for the process's context;
    without `verify` nothing is verified between its passes, which can take longer than they do.

    Kept, because a pass that is made anew collects its patterns anew, those of every dialect for `canonicalize`. Raises
    ValueError when the pipeline does not parse.
    """
    with context():
        manager = PassManager.parse(pipeline)
    manager.enable_verifier(verify)
    return manager


def run_passes(module: ir.Module, pipeline: str) -> None:
    """Runs a textual pass pipeline, such as `canonicalize,func.func(cse)`, on the module in place; raises MlircError
    with MLIR's own diagnostics."""
    from mlirc.errors import MlircError

    with context():
        try:
            pass_manager(f"builtin.module({pipeline})").run(module.operation)
        except (ir.MLIRError, ValueError) as e:  # ValueError: the pipeline does not parse
            shown = pipeline if len(pipeline) < 60 else pipeline[:60] + "..."
            raise MlircError(f"pass pipeline '{shown}': {' '.join(str(e).split())}") from e


def nested(op: ir.Operation) -> list[ir.Operation]:
    """Every operation nested in `op`, `op` excluded, in order: an outer one before those in it."""
    found: list[ir.Operation] = []
    append, advance = found.append, ir.WalkResult.ADVANCE

    def visit(inner: ir.Operation) -> ir.WalkResult:
        append(inner)
        return advance

    op.walk(visit, ir.WalkOrder.PRE_ORDER)
    return found[1:]


@functools.cache
def _collector(names: tuple[str, ...]) -> tuple[list[ir.Operation], rewrite.FrozenRewritePatternSet]:
    """A list, and patterns that add every operation of these names to it and change nothing."""
    found: list[ir.Operation] = []

    def collect(op: ir.OpView, _rewriter: object) -> bool:
        found.append(op.operation)
        return True  # no match

    with context():
        patterns = rewrite.RewritePatternSet()
        for name in names:
            patterns.add(name, collect)
        return found, patterns.freeze()


def find(op: ir.Operation, *names: str) -> list[ir.Operation]:
    """The operations of these names nested in `op`, in order, an inner one before those around it; not those in blocks
    that nothing branches to. MLIR does the search: where there are few, it is ten times as fast as one in `nested`."""
    found, patterns = _collector(names)
    try:
        rewrite.walk_and_apply_patterns(op, patterns)
        return list(found)
    finally:
        found.clear()


def fx_importer() -> ModuleType:
    """The wheel's FX importer module; it imports PyTorch, so that only the frontend asks for it."""
    from torch_mlir.extras import fx_importer

    return fx_importer


def fx_decompositions() -> dict:
    """The wheel's decomposition table for torch.export programs; it imports PyTorch."""
    from torch_mlir.extras.fx_decomp_util import get_decomposition_table

    return dict(get_decomposition_table())
