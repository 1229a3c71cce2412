"""Kernels at the `gpu` level spoiled at random, in ways that are still valid MLIR, and what the host device makes of them:
each in a process of its own, with limits of time and memory.

    python python_tests/support/kernels/spoiled.py --seeds 0-999         # every shipped kernel; prints what ended badly
    python python_tests/support/kernels/spoiled.py --seeds 17 --text     # one spoiled kernel
"""

from __future__ import annotations

import argparse
import os
import random
import re
import resource
import select
import signal
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np

from mlirc import mlir
from mlirc.device import DeviceKernel
from mlirc.device.model import SEPARATOR
from mlirc.device.numbers import dtype_of
from mlirc.errors import MlircError
from mlirc.mlir import ir

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from support.kernels.mutant_cases import KERNELS, case  # noqa: E402

SECONDS = 30  # of CPU time that a run may take
MEMORY = 4 << 30  # bytes of address space that it may take on top of what the process has
NUMBERS = (0, 1, -1, 2, 3, 5, 7, 8, 16, 31, 32, 33, 64, 100, 127, 128, 1000, 4096, 65535, 65536, 1 << 20, 1 << 24,
           (1 << 31) - 1, -(1 << 31), (1 << 62), -(1 << 62), (1 << 63) - 1, -(1 << 63), -2, -7, -32)  # fmt: skip
WORDS = (
    ("idx", "xor", "up", "down"), ("slt", "sle", "sgt", "sge", "eq", "ne", "ult", "ule", "ugt", "uge"),
    ("olt", "oeq", "ogt", "uno", "ord", "une"), ("all", "any", "uni", "ballot"), ("x", "y", "z"),
    ("true", "false"), ("add", "mul", "maxnumf", "minimumf"), ("1", "2", "4"),
)  # fmt: skip


# Changes. Each takes the operations of a module in order and a source of randomness, changes the module in place, and
# says what it did; None: nothing here to change. The result need not be valid.


def _types(value: ir.Value) -> str:
    return str(value.type)


def _delete(ops: list, draw: random.Random) -> str | None:
    unused = [o for o in ops if not o.regions and all(not list(r.uses) for r in o.results) and "return" not in o.name]
    unused = [o for o in unused if "yield" not in o.name]
    if not unused:
        return None
    op = draw.choice(unused)
    op.erase()
    return "an operation deleted"


def _delete_block(ops: list, draw: random.Random) -> str | None:
    nested = [o for o in ops if o.name in ("scf.for", "scf.if") and all(not list(r.uses) for r in o.results)]
    if not nested:
        return None
    draw.choice(nested).erase()
    return "a loop or branch deleted"


def _operand(ops: list, draw: random.Random) -> str | None:
    i = draw.randrange(len(ops))
    op = ops[i]
    if not len(op.operands):
        return None
    k = draw.randrange(len(op.operands))
    want = _types(op.operands[k])
    values = [r for o in ops[:i] for r in o.results if _types(r) == want]
    block = op.block
    values += [a for a in block.arguments if _types(a) == want]
    if not values:
        return None
    op.operands[k] = draw.choice(values)
    return f"another operand of {op.name}"


def _constant(ops: list, draw: random.Random) -> str | None:
    found = [o for o in ops if o.name == "arith.constant" and isinstance(o.attributes["value"], ir.IntegerAttr)]
    if not found:
        return None
    op = draw.choice(found)
    old = ir.IntegerAttr(op.attributes["value"])
    new = draw.choice([*NUMBERS, old.value + 1, old.value - 1, 2 * old.value, -old.value])
    op.attributes["value"] = ir.IntegerAttr.get(old.type, new)
    return f"a constant {old.value} made {new}"


def _attribute(ops: list, draw: random.Random) -> str | None:
    i = draw.randrange(len(ops))
    op, choices = ops[i], []
    names = [str(n) for n in op.attributes if str(n) != "operandSegmentSizes"]  # whose verifier may not survive
    for name in names if op.name != "arith.constant" else []:
        a = op.attributes[name]
        if isinstance(a, ir.IntegerAttr):
            choices.append((name, lambda a=a: ir.IntegerAttr.get(a.type, draw.choice(NUMBERS))))
        if isinstance(a, ir.DenseI64ArrayAttr | ir.DenseI32ArrayAttr) and len(a):
            values = list(a)
            values[draw.randrange(len(values))] = draw.choice(NUMBERS)
            choices.append((name, lambda a=a, v=values: type(a).get(v)))
    if not choices:
        return None
    name, make = draw.choice(choices)
    op.attributes[name] = new = make()
    return f"attribute {name} of {op.name} made {new}"


def _move(ops: list, draw: random.Random) -> str | None:
    i = draw.randrange(len(ops) - 1)
    op = ops[i]
    if draw.random() < 0.5:
        j = min(max(i + draw.choice((-2, -1, 1, 2)), 0), len(ops) - 1)
    else:
        j = draw.randrange(len(ops))
    if j == i or "return" in op.name or "yield" in op.name:
        return None
    op.move_before(ops[j])
    return f"{op.name} moved"


def _duplicate(ops: list, draw: random.Random) -> str | None:
    op = draw.choice(ops)
    if "return" in op.name or "yield" in op.name or "func" in op.name:
        return None
    op.clone(ip=ir.InsertionPoint(draw.choice(ops)))
    return f"{op.name} doubled"


def _launch(ops: list, draw: random.Random) -> str | None:
    """Another size for a grid, block or shared memory: a constant of its own."""
    found = [o for o in ops if o.name == "gpu.launch_func"]
    if not found:
        return None
    op = draw.choice(found)
    numbers = [k for k, v in enumerate(op.operands) if str(v.type) in ("index", "i32")]
    k = draw.choice(numbers)
    with ir.InsertionPoint(op):
        new = draw.choice(NUMBERS)
        made = ir.Operation.create(
            "arith.constant", [op.operands[k].type],
            attributes={"value": ir.IntegerAttr.get(op.operands[k].type, new)},
        )  # fmt: skip
    op.operands[k] = made.results[0]
    return f"size {k} of a launch made {new}"


CHANGES: tuple[Callable, ...] = (
    _delete, _delete, _delete_block, _operand, _operand, _constant, _constant, _attribute, _move, _duplicate, _launch,
)  # fmt: skip


def _in_text(text: str, draw: random.Random) -> tuple[str, str] | None:
    """Changes what operations of Python cannot: an extent in all places of a type, or a word of an attribute."""
    if draw.random() < 0.5:
        found = sorted(set(re.findall(r"(?:memref|vector)<\d[^>]*>?[^>]*>", text)))
        if not found:
            return None
        old = draw.choice(found)
        new = re.sub(r"\d+(?=x)", lambda m: m[0] if draw.random() < 0.5 else str(draw.choice(NUMBERS[:23])), old)
        return text.replace(old, new), f"{old} made {new}"
    words = draw.choice(WORDS)
    places = list(re.finditer(rf"(?<=[ <])(?:{'|'.join(words)})(?=[ ,>}}])", text))
    if not places:
        return None
    place = draw.choice(places)
    new = draw.choice(words)
    return text[: place.start()] + new + text[place.end() :], f"'{place[0]}' made '{new}'"


def spoil(text: str, seed: int) -> tuple[str, str]:
    """A spoiled kernel's text, and what was changed: up to three changes that leave valid MLIR."""
    draw = random.Random(seed)
    done: list[str] = []
    wanted = draw.choice((1, 1, 2, 3))
    for _ in range(200):
        if len(done) == wanted:
            break
        changed = _change(text, draw)
        if changed is not None and changed[0] != text:
            text, what = changed
            done.append(what)
    return text, "; ".join(done)


def _change(text: str, draw: random.Random) -> tuple[str, str] | None:
    try:
        if draw.random() < 0.15:
            changed = _in_text(text, draw)
            return None if changed is None else (str(mlir.parse(changed[0])), changed[1])
        module = mlir.parse(text)
        with mlir.context(), ir.Location.unknown():
            what = draw.choice(CHANGES)(_operations(module), draw)
            if what is None or not module.operation.verify():
                return None
            return str(module), what
    except (MlircError, ir.MLIRError, ValueError, OverflowError, TypeError):
        return None


def _operations(module: ir.Module) -> list:
    found = []

    def visit(op) -> ir.WalkResult:
        if op.name not in ("builtin.module", "gpu.module", "gpu.func", "func.func", "llvm.func"):
            found.append(op)
        return ir.WalkResult.ADVANCE

    module.operation.walk(visit)
    return found


# Runs


@dataclass
class End:
    """How a run ended: `report`, `error` (an MlircError), or `traceback`, `killed`, `memory`, and what it said."""

    how: str
    text: str
    what: str = ""  # was changed
    seconds: float = 0.0
    memory: int = 0  # bytes that the run took beside its parent's

    @property
    def well(self) -> bool:
        return self.how in ("report", "error", "invalid")


@cache
def subject(name: str):
    return case(name, inputs=1)


@cache
def parts(path: str) -> list[str]:
    """The kernels of a compiled model's `gpu` level."""
    return [p for p in SEPARATOR.split(Path(path).read_text()) if "gpu.launch_func" in p]


def _random(t: ir.MemRefType, rng: np.random.Generator) -> np.ndarray:
    shape, dtype = tuple(t.shape), dtype_of(t)
    return (rng.integers(0, 2, shape) if dtype.kind in "iub" else rng.standard_normal(shape)).astype(dtype)


def _run(name: str, text: str, draw: random.Random, seconds: float) -> End:
    options = dict(check=draw.random() < 0.8, seconds=seconds)
    order = draw.choice((0, 0, 1, 2))
    count = draw.random() < 0.2
    try:
        if name not in KERNELS:
            kernel = DeviceKernel(mlir.parse(text), count=count)
            rng = np.random.default_rng(0)
            with mlir.context():
                arguments = [_random(t, rng) for t in kernel.arguments]
            return End("report", "\n".join(map(str, kernel.run(arguments, seed=order, **options).findings)))
        known = subject(name)
        if known.run is not None:
            _, report = known.run(text, [a.copy() for a in known.arguments[0]], order, **options)
            return End("report", "\n".join(map(str, report.findings)))
        results = [np.zeros(spec.shape, spec.dtype) for spec in known.specs]
        report = DeviceKernel(mlir.parse(text), count=count).run([*known.arguments[0], *results], seed=order, **options)
        return End("report", "\n".join(map(str, report.findings)))
    except MlircError as e:
        return End("error", str(e))
    except BaseException as e:
        trace = traceback.extract_tb(e.__traceback__)[-1]
        where = f"{type(e).__name__} in {Path(trace.filename).name} {trace.name}"
        return End("traceback", f"{where}: {e}\n{traceback.format_exc()}")


def run_apart(run: Callable[[Callable[[str], None]], End]) -> End:
    """Runs in a process of its own, within the limits. `run` is given a function to say what it is about to do."""
    read, write = os.pipe()
    start = time.perf_counter()
    pid = os.fork()
    if not pid:
        status = 1
        try:
            os.close(read)
            taken, before = (int(n) * resource.getpagesize() for n in Path("/proc/self/statm").read_text().split()[:2])
            resource.setrlimit(resource.RLIMIT_AS, (taken + MEMORY, taken + MEMORY))
            resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS + 5))
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            end = run(lambda what: None if os.write(write, f"{' '.join(what.split())}\n".encode()) else None)
            with os.fdopen(write, "w") as f:
                most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
                f.write(f"{end.how}\n{max(most - before, 0)}\n{end.text}")
            status = 0
        finally:
            os._exit(status)
    os.close(write)
    said = b""
    while time.perf_counter() - start < 4 * SECONDS:
        if select.select([read], [], [], 1.0)[0]:
            part = os.read(read, 1 << 16)
            if not part:
                break
            said += part
    else:
        os.kill(pid, signal.SIGKILL)
    os.close(read)
    _, status, usage = os.wait4(pid, 0)
    seconds = usage.ru_utime + usage.ru_stime
    what, *rest = said.decode(errors="replace").split("\n", 3)
    if status and not what:
        return End("invalid", "", "MLIR did not survive the change")
    if status:
        return End("killed", f"status {os.waitstatus_to_exitcode(status)}", what, seconds)
    how, memory, text = rest
    return End(how, text, what, seconds, int(memory))


def kernel_of(seed: int) -> str:
    """The kernel that a seed spoils."""
    return [*KERNELS][seed % len(KERNELS)]


def try_seed(seed: int, show: bool = False, path: str = "", seconds: float = SECONDS / 2) -> End:
    """Spoils a kernel (of a model's `gpu` level, where one is given) and runs it, a launch for so many seconds at most,
    in one process: MLIR's own verifiers may not survive what they are given."""
    name = path or kernel_of(seed)
    text = parts(path)[seed % len(parts(path))] if path else subject(name).text

    def run(say: Callable[[str], None]) -> End:
        spoiled, what = spoil(text, seed)
        say(what)
        if show:
            print(spoiled, flush=True)
        return _run(name, spoiled, random.Random(seed), seconds)

    return run_apart(run)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", default="0-99")
    parser.add_argument("--model", default="", help="a compiled model's gpu.mlir, in place of the shipped kernels")
    parser.add_argument("--text", action="store_true", help="print the spoiled kernel")
    parser.add_argument("--slow", type=float, default=5.0, help="print runs that take longer, in seconds")
    options = parser.parse_args()
    first, _, last = options.seeds.partition("-")
    counts: Counter[str] = Counter()
    for seed in range(int(first), int(last or first) + 1):
        end = try_seed(seed, options.text, options.model)
        counts[end.how if end.how != "report" or end.text else "nothing found"] += 1
        if not end.well or end.seconds > options.slow or end.memory > 2 << 30 or first == (last or first):
            what = f"seed {seed} {options.model or kernel_of(seed)}: {end.what}"
            print(f"{what}\n  {end.how}, {end.seconds:.1f} s, {end.memory >> 20} MB: {end.text}", flush=True)
    print(dict(counts))
    return 0


if __name__ == "__main__":
    sys.exit(main())
