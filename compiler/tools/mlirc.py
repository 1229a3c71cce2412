"""`mlirc MODEL -o OUT.ptx`: compiles a PyTorch or Hugging Face model to one PTX file that carries its launch plan."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from mlirc.check import LEVELS as CHECKED
from mlirc.check import parse_levels
from mlirc.collecting import collecting_rarely
from mlirc.errors import MlircError
from mlirc.files.opening import exists, open_regular, shorten
from mlirc.files.outputs import check_model_output
from mlirc.frontend.shapes import parse_shapes
from mlirc.ir.ladder import LEVELS
from mlirc.precision import DEFAULT_FP32, FP32
from mlirc.targets import DEFAULT_TARGET, TARGETS, get_target
from mlirc.timing import Progress, Timer
from mlirc.tools.cli import Parser, check_scripts, run_main

_EPILOG = """MODEL is one of
  a torch.export archive (.pt2, or .pt so saved), or a TorchScript .pt
  a Hugging Face directory (config.json, with safetensors or with --random-weights)
  a factory package.module:function that returns a module and its example inputs
  a kernel FILE.py:name, made by @kernel (docs/own-kernels.md), or a factory FILE.py:function
  a problem FILE.py with Model, get_inputs() and get_init_inputs()
  a pickled nn.Module .pt, with --allow-pickle only, since opening it runs its code
  an .mlir file at level torch, linalg, kernels, tiles, async or gpu: compilation goes on from there

examples
  mlirc model.pt2 -o model.ptx -v
  mlirc llama/ -o llama.ptx --input 'input_ids=i64[1,512]' --dtype bf16 --weights none
  mlirc model.pt2 --emit schedule
  mlirc model.pt2 -o model.ptx --schedule 'matmul:block_m=64,stages=2' --schedule my_softmax.py"""


def _parser() -> argparse.ArgumentParser:
    parser = Parser("mlirc", description=__doc__, epilog=_EPILOG, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("model", nargs="?", metavar="MODEL", help="what to compile: see below")
    add("-o", dest="output", metavar="OUT.ptx", type=Path, help="the compiled model; weights go beside it")
    model = parser.add_argument_group("the model")
    add = model.add_argument
    add("--input", action="append", default=[], metavar="NAME=DTYPE[SHAPE]", help="an input, as input_ids=i64[1,128]")
    add("--shapes", metavar="M=128,...", default="", help="a kernel's extents, dtypes and constants, by name")
    add("--dtype", metavar="DTYPE", help="compute in this type: f32, bf16 or f16")
    add(
        "--quantize",
        metavar="SCHEME",
        help="pack the linear layers' weights: int8, int4:group=128, fp8, fp8:dynamic; int8:conv: and convolutions'",
    )
    add("--random-weights", type=int, metavar="SEED", help="make weights up, the same for the same seed")
    add("--allow-pickle", action="store_true", help="open a pickled module: this runs the code in it")
    add("--weights", choices=["file", "none"], default="file", help="write them (default), or constants only")
    how = parser.add_argument_group("how to compile")
    add = how.add_argument
    add("--target", default=DEFAULT_TARGET, help=f"{', '.join(TARGETS)} (default %(default)s)")
    add(
        "--schedule",
        action="append",
        default=[],
        metavar="S",
        help="FILE.py, FILE.mlir, or KIND_OR_KERNEL:knob=value,...",
    )
    add(
        "--fp32",
        choices=list(FP32),
        default=DEFAULT_FP32,
        help="FP32 products: %(choices)s (default %(default)s, as exact as ieee)",
    )
    add("--watch", action="store_true", help="stay, and do it again whenever a schedule's file changes; Ctrl-C ends")
    add("--no-cache", action="store_true", help="compile every kernel, even those compiled before")
    add("--cache-info", action="store_true", help="say where what was compiled is kept and what it takes, and exit")
    add("--cache-clear", action="store_true", help="remove what was compiled before, and exit")
    show = parser.add_argument_group("what to show")
    add = show.add_argument
    add("--emit", choices=LEVELS, metavar="LEVEL", help=f"print a level: {', '.join(LEVELS)}")
    add("--dump-dir", type=Path, metavar="DIR", help="write every level, and a runnable check of every kernel, to DIR")
    add(
        "-v",
        "--verbose",
        action="count",
        default=0,
        help="print a table of the kernels; -vv: with every knob, and the products and layouts that were chosen",
    )
    add("--timing", action="store_true", help="print the time spent on each level")
    add(
        "--check",
        nargs="*",
        metavar="LEVEL",
        help=f"compare levels with PyTorch on several inputs: {', '.join(CHECKED)} (default: all but ptx)",
    )
    return parser


def _check_named(options: argparse.Namespace) -> None:
    """Raises MlircError for files that are not there, before the seconds that importing PyTorch and MLIR takes."""
    from mlirc.frontend.names import FACTORY, IN_FILE

    spec = options.model
    named = IN_FILE.fullmatch(spec)
    if not exists(spec) and not (exists(named["file"]) if named else FACTORY.fullmatch(spec)):
        if spec.endswith(".mlir"):
            open_regular(spec).close()
        raise MlircError(f"{shorten(spec)}: no such file or directory, and no factory (package.module:function)")
    parse_shapes(options.shapes)
    check_scripts(options.schedule)


def _new_job(options: argparse.Namespace, timer: Timer) -> Any:
    """An empty compilation with the options that hold for all of it."""
    from mlirc.driver.compilation import Compilation, model_name
    from mlirc.driver.kernel_cache import KernelCache
    from mlirc.files.kept import cache_folder

    target = get_target(options.target)
    if options.output:
        check_model_output(options.output, (options.model, *options.schedule))
    cache = None if options.no_cache else KernelCache(cache_folder())
    return Compilation(model_name(options.model), target, tuple(options.schedule), cache, timer, fp32=options.fp32)


def _model_options(options: argparse.Namespace) -> dict[str, Any]:
    return dict(
        inputs=options.input,
        random_weights=options.random_weights,
        allow_pickle=options.allow_pickle,
        dtype=options.dtype,
        quantize=options.quantize,
        shapes=parse_shapes(options.shapes),
    )


def _last_level(options: argparse.Namespace) -> str | None:
    """The lowest level that is asked for; None if nothing but a check is."""
    everything = options.output or options.dump_dir or options.verbose
    return "ptx" if everything else options.emit or ("ptx" if options.check is None else None)


def _compile(options: argparse.Namespace, timer: Timer) -> Any:
    job = _new_job(options, timer)
    if options.dump_dir:
        from mlirc.repro.dump import Dump

        job.observe = Dump(options.dump_dir, job, (options.model, *options.schedule)).level
    job.check_schedules(options.model)
    job.open(options.model, **_model_options(options))
    last = _last_level(options)
    if last:
        job.lower(last)
    if options.check is not None:
        job.check(parse_levels(options.check))
    if options.output and (job.checked is None or job.checked.ok):
        job.write(options.output, weights=options.weights == "file")
    return job


def _cache(options: argparse.Namespace) -> int:
    """`--cache-info` and `--cache-clear`."""
    from mlirc.files.kept import KeptFolder, cache_folder

    if options.model:
        raise MlircError("--cache-info and --cache-clear stand alone: give no MODEL")
    cache = KeptFolder(cache_folder())
    if options.cache_clear:
        files, size = cache.prune(0)
        print(f"{cache.folder}: {files} files removed, {size / 2**20:.1f} MiB")
    if options.cache_info:
        print(cache.info())
    return 0


def _show(options: argparse.Namespace, job: Any) -> None:
    for note in job.imported.source.notes if job.imported else ():
        print(f"note: {note}", file=sys.stderr, flush=True)
    if options.emit:
        print(job.text(options.emit).rstrip(), flush=True)
    if options.verbose:
        from mlirc.tools.kernel_table import kernel_table

        print(kernel_table(job, full=options.verbose > 1), file=sys.stderr, flush=True)
        if job.imported and job.imported.source.quantized:
            from mlirc.frontend.quantize import report

            source = job.imported.source
            lines = [report.table(source.quantized)] if options.verbose > 1 else []
            lines.append(report.summary(source.quantized, source.scheme))
            print("\n".join(lines), file=sys.stderr, flush=True)
        unchecked = f"check: not checked (mlirc {options.model} --check)"
        print(job.checked.line() if job.checked else unchecked, file=sys.stderr, flush=True)
    if job.checked:
        print(job.checked.table(), flush=True)


def _watch(options: argparse.Namespace) -> int:
    for name, given in (("--dump-dir", options.dump_dir), ("--timing", options.timing)):
        if given:
            raise MlircError(f"--watch goes with -o, --emit, --check and -v, not with {name}")
    if options.emit in ("torch", "linalg"):
        raise MlircError(f"--watch --emit {options.emit}: no schedule changes that level: choose one below it")
    from mlirc.watch.command import watch
    from mlirc.watch.session import Wish

    wish = Wish(
        spec=options.model,
        schedules=tuple(options.schedule),
        level=_last_level(options) or "ptx",
        output=options.output,
        weights=options.weights == "file",
        options=_model_options(options),
        check=None if options.check is None else tuple(parse_levels(options.check)),
    )
    _new_job(options, Timer())  # what is wrong with the options is said before anything is loaded
    return watch(wish, lambda: _new_job(options, Timer()), lambda job: _show(options, job))


def _main(argv: list[str] | None) -> int:
    options = _parser().parse_args(argv)
    if options.cache_info or options.cache_clear:
        return _cache(options)
    parse_levels(options.check or ())
    if not options.model:
        raise MlircError("no MODEL: name what to compile (mlirc --help lists what it takes)")
    to_do = (options.output, options.emit, options.dump_dir, options.verbose, options.timing)
    if not any(to_do) and options.check is None:
        raise MlircError("nothing to do: give -o OUT.ptx, --emit LEVEL, --dump-dir DIR, --check or -v")
    _check_named(options)
    if options.watch:
        return _watch(options)
    progress = Progress()
    timer = Timer(progress)
    try:
        job = _compile(options, timer)
    finally:
        progress.close()
    _show(options, job)
    if options.timing:
        print(timer.report(), file=sys.stderr)
    if job.checked and not job.checked.ok:
        unwritten = f": {options.output} is not written" if options.output else ""
        raise MlircError(f"{job.checked.reason()}{unwritten}")
    return 0


def main(argv: list[str] | None = None) -> int:
    """The program; returns its exit status."""
    with collecting_rarely():
        return run_main(lambda: _main(argv))


if __name__ == "__main__":
    sys.exit(main())
