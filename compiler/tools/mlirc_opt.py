"""`mlirc-opt`: runs our passes, upstream's pass pipelines and schedule scripts on an .mlir file, in the order given."""

from __future__ import annotations

import argparse
import inspect
import re
import sys
from pathlib import Path
from typing import Any

from mlirc.errors import MlircError
from mlirc.files.opening import TEXT_LIMIT, as_text, read_text
from mlirc.files.outputs import check_writable, write_atomically
from mlirc.precision import DEFAULT_FP32, FP32
from mlirc.targets import get_target
from mlirc.tools.cli import Parser, check_scripts, run_main

_USAGE = """steps run in the order given:
  --pass 'mlirc-loops{threads=128}'      one of our passes (--list names them), with options
  --pipeline 'canonicalize,cse'          upstream passes, on the builtin.module
  --script graph                         linalg to kernels, by the graph-level script
  --script matmul                        kernels to tiles, by this script
  --script 'matmul:block_m=64,stages=2'  kernels to tiles, with knobs for a script, a kind or a kernel
  --script FILE.py | FILE.mlir           kernels to tiles, by a script of your own (a FILE.py that has none, but
                                         passes, transform ops or instructions, makes these known to what follows)
  --script auto                          kernels to tiles, by the script that the registry picks

The file may hold several modules, divided by lines `// -----`."""


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        "mlirc-opt", description=__doc__, epilog=_USAGE, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("file", nargs="?", help="an .mlir file, or - for standard input")
    step: dict[str, Any] = {"action": "append", "dest": "steps"}
    parser.add_argument("--pass", metavar="NAME{options}", type=lambda s: ("pass", s), **step)
    parser.add_argument("--pipeline", metavar="PASSES", type=lambda s: ("pipeline", s), **step)
    parser.add_argument("--script", metavar="SCRIPT", type=lambda s: ("script", s), **step)
    parser.add_argument("--target", default="sm_90a", help="what scripts schedule for (default %(default)s)")
    parser.add_argument("--fp32", choices=list(FP32), default=DEFAULT_FP32, help="FP32 products, as in mlirc")
    parser.add_argument("-o", dest="output", metavar="FILE", help="write here instead of standard output")
    parser.add_argument("--loc", action="store_true", help="print locations")
    parser.add_argument(
        "--list", action="store_true", help="list our passes, the instructions for products and the scripts, and exit"
    )
    parser.add_argument(
        "--knobs", metavar="SCRIPT", help="list a script's knobs (or a FILE.py's): type, values, default, meaning; exit"
    )
    return parser


def parse_pass(text: str) -> tuple[str, dict[str, str]]:
    """Splits `name{a=1 b-c}` into the name and its options (`a`: "1", `b_c`: "true")."""
    match = re.fullmatch(r"([\w-]+)(?:\{(.*)\})?", text.strip())
    if not match:
        raise MlircError(f"--pass '{text}': write NAME or NAME{{option=value ...}}")
    options = {}
    for word in (match[2] or "").split():
        key, _, value = word.partition("=")
        options[key.replace("-", "_")] = value or "true"
    return match[1], options


def _run_step(module, kind: str, text: str, target, fp32: str):
    """Runs one step and returns the resulting module (the same one, or a new one)."""
    from mlirc.mlir import context, ir, run_passes

    with context(), ir.Location.unknown():
        if kind == "pipeline":
            run_passes(module, text)
        elif kind == "pass":
            from mlirc.passes import get_pass

            name, options = parse_pass(text)
            function = get_pass(name)
            if "target" in inspect.signature(function).parameters:
                options.setdefault("target", target.name)
            try:
                function(module, **options)
            except TypeError as e:
                if "unexpected keyword argument" in str(e):
                    raise MlircError(f"--pass '{text}': {name} has no option {str(e).split()[-1]}") from e
                raise
        else:
            return _run_script(module, text, target, fp32)
    return module


def _run_script(module, text: str, target, fp32: str):
    from mlirc.ir import levels

    if text == "graph" or text.startswith("graph:"):
        from mlirc.scripts.graph import to_kernels

        return to_kernels(module, target, **parse_knobs(text.partition(":")[2])) or module
    from mlirc.schedule.registry import Schedules

    if re.fullmatch(r"\w+", text):
        schedules = Schedules([] if text == "auto" else [f"*={text}"], fp32)
    else:
        schedules = Schedules([text], fp32)
        if text.endswith(".py") and not schedules.users_scripts():
            return module
    names = levels.kernels(module) or levels.functions(module)
    tiles = {name: schedules.schedule_kernel(levels.isolate(module, name), target)[0] for name in names}
    schedules.check_used(whole=False)
    return levels.replace(module, tiles)


def parse_knobs(text: str) -> dict[str, object]:
    """`a=1,b=true,c=x` as a dictionary of int, bool and str values."""
    knobs: dict[str, object] = {}
    for word in filter(None, (w.strip() for w in text.split(","))):
        key, eq, value = word.partition("=")
        if not eq:
            raise MlircError(f"knob '{word}': write NAME=VALUE")
        constants = {"true": True, "false": False, "none": None}
        number = re.fullmatch(r"-?\d+", value)
        knobs[key] = constants[value.lower()] if value.lower() in constants else int(value) if number else value
    return knobs


def _list() -> None:
    from mlirc import passes, scripts
    from mlirc.passes.distribute.instructions import all_instructions

    for name, function in passes.all_passes().items():
        doc = (sys.modules[function.__module__].__doc__ or "").strip().split("\n")[0]
        print(f"pass    {name:32} {doc}")
    for name, each in all_instructions().items():
        print(f"mma     {name:32} {each.meaning or 'no description'}; takes {each.takes}")
    for path in sorted(Path(scripts.__path__[0]).glob("[!_]*.py")):
        doc = path.read_text().split('"""')[1].strip().split("\n")[0]
        print(f"script  {path.stem:32} {doc}")


def _knobs(name: str) -> None:
    """Prints the knobs of a built-in script, or of the scripts that a FILE.py registers."""
    from mlirc.schedule.knob_help import knobs_of
    from mlirc.schedule.registry import Schedules, script_registry
    from mlirc.tools.kernel_table import table

    if name.endswith(".py"):
        schedules = Schedules([name])
        scripts = [schedules.script(n) for n in schedules.users_scripts()]
        if not scripts:
            raise MlircError(f"--knobs {name}: it registers no script")
    else:
        known = script_registry()
        if name not in known:
            raise MlircError(f"--knobs {name}: no script '{name}': choose one of {', '.join(known)}, or give a FILE.py")
        scripts = [known[name]]
    for script in scripts:
        print(f"{script.name} ({script.place}): {((script.build.__doc__ or '').strip().split(chr(10)) or [''])[0]}")
        rows = [(k.name, k.type, k.values, k.default, k.meaning) for k in knobs_of(script)]
        print(table(("knob", "type", "values", "default", "meaning"), rows) if rows else "it has no knobs")


def _standard_input() -> str:
    data = sys.stdin.buffer.read(TEXT_LIMIT + 1) if hasattr(sys.stdin, "buffer") else sys.stdin.read().encode()
    if len(data) > TEXT_LIMIT:
        raise MlircError(f"standard input: is larger than {TEXT_LIMIT >> 20} MiB, which is no MLIR")
    return as_text(data, "standard input")


def _main(argv: list[str] | None) -> int:
    options = _parser().parse_args(argv)
    if options.list:
        _list()
        return 0
    if options.knobs is not None:
        _knobs(options.knobs)
        return 0
    if not options.file:
        raise MlircError("no input: give an .mlir file, or - for standard input (see --help)")
    reads = [options.file, *(step for kind, step in options.steps or () if kind == "script")]
    if options.output:
        check_writable(Path(options.output), reads)
    target = get_target(options.target)
    check_scripts(reads[1:])
    text = _standard_input() if options.file == "-" else read_text(options.file)
    from mlirc import mlir  # here, because it takes seconds
    from mlirc.ir.text import SEPARATOR, judge_text

    judge_text(text, options.file)
    results = []
    for part in SEPARATOR.split(text):
        module = mlir.parse(part, options.file)
        for kind, step in options.steps or ():
            try:
                module = _run_step(module, kind, step, target, options.fp32)
            except mlir.ir.MLIRError as e:
                raise MlircError(f"--{kind} '{step}': {e}") from e
        results.append(module.operation.get_asm(enable_debug_info=options.loc).rstrip() + "\n")
    printed = "\n// -----\n\n".join(results)
    if options.output:
        write_atomically(Path(options.output), printed, "mlirc-opt", reads)
    else:
        sys.stdout.write(printed)
    return 0


def main(argv: list[str] | None = None) -> int:
    """The program; returns its exit status."""
    return run_main(lambda: _main(argv))


if __name__ == "__main__":
    sys.exit(main())
