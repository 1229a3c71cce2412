"""`mlirc-run MODEL.ptx --input x.npy -o y.npy`: runs a compiled model on the GPU, or one of its levels on the CPU."""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from functools import partial
from pathlib import Path

import numpy as np

from mlirc.errors import MlircError
from mlirc.files.marks import write_npy, write_npz
from mlirc.files.opening import exists
from mlirc.files.outputs import Outputs, check_writable, model_files
from mlirc.runtime.arrays import NOT_NUMPYS, NUMPY_DTYPES, check, match, view
from mlirc.runtime.loading import read_model
from mlirc.runtime.plan import Plan, TensorSpec
from mlirc.runtime.random_state import DEFAULT_SEED
from mlirc.runtime.sized_copies import check_sized, dims_of
from mlirc.runtime.structure import as_complex, as_pairs
from mlirc.tools.cli import Parser, run_main
from mlirc.tools.compare import compare_files
from mlirc.tools.input_arrays import given_number, read_arrays
from mlirc.tools.plan_info import folder_of_generating, generating_info, info

HOST_LEVELS = ("linalg", "kernels", "tiles", "gpu")

_EPILOG = """NumPy has no bf16 and no 8-bit floats: such an input is read from float32 (rounded) or from data of its
width (as it is), and such an output is written as float32, which holds it exactly.

examples
  mlirc-run model.ptx --input ids.npy --input attention_mask=mask.npy -o y.npy
  mlirc-run model.ptx --input inputs.npz -o outputs.npz --time
  mlirc-run model.ptx --random-inputs 0 --level tiles
  mlirc-run model.ptx --info                      also for a folder that mlirc-generate -o wrote
  mlirc-run --compare y.npy reference.npy --gate 1e-4"""


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        "mlirc-run", description=__doc__, epilog=_EPILOG, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("model", nargs="?", metavar="MODEL.ptx", type=Path, help="what mlirc made")
    add(
        "--input",
        action="append",
        default=[],
        metavar="[NAME=]FILE",
        help=".npy (in order, or by name), .npz; NAME=NUMBER",
    )
    add(
        "-o",
        dest="output",
        action="append",
        default=[],
        metavar="[NAME=]FILE",
        help=".npy of one output, or .npz of all",
    )
    add("--weights", metavar="FILE", type=Path, help="safetensors (default: MODEL.safetensors)")
    add("--no-verify", action="store_true", help="do not hold weights and levels against their checksums")
    add("--random-inputs", type=_natural, metavar="SEED", help="normal floats; integers and booleans 0 or 1")
    add(
        "--manual-seed",
        type=_natural,
        default=DEFAULT_SEED,
        metavar="N",
        help="what a model that draws random numbers starts from, as torch.manual_seed(N) (default: PyTorch's own)",
    )
    add("--time", action="store_true", help="print the time of a run: median of graph replays with hot caches")
    add("--level", choices=HOST_LEVELS, metavar="LEVEL", help=f"run {', '.join(HOST_LEVELS)} on the CPU, without a GPU")
    add(
        "--device",
        type=_device,
        default=0,
        metavar="N|host",
        help="the GPU's number (default 0), or host: execute and check the GPU's kernels on the CPU (as --level gpu)",
    )
    add("--blocks", type=_numbers, metavar="LIST", help="with --device host: run only these blocks, as in 0,4-7")
    add("--seed", type=_natural, default=0, metavar="N", help="with --device host: the order of blocks, warps, atomics")
    add(
        "--seeds",
        type=partial(_natural, least=1),
        metavar="N",
        help="with --device host: run N seeds, until a finding or difference",
    )
    add(
        "--seconds",
        type=_seconds,
        metavar="S",
        help="with --device host: stop a launch that takes longer (default 120); with --level: the whole run",
    )
    add(
        "--no-compare",
        action="store_true",
        help="with --device host: run no level above gpu: neither numbers nor indices are checked",
    )
    add(
        "--input-sets",
        metavar="SETS",
        help="with --device host: made-up inputs to try each kernel on, too: all, quick (default), none, or names",
    )
    add("--execute-ptx", action="store_true", help="with --device host: execute the kernels' PTX, too: the same bits?")
    add("--counters", action="store_true", help="with --device host: print what each kernel does to memory")
    add("--no-graph", action="store_true", help="launch kernel by kernel, not as one CUDA graph")
    add("--compare", nargs=2, type=Path, metavar=("A", "B"), help="compare .npy or .npz files; B is the reference")
    add(
        "--gate",
        type=_error,
        metavar="E",
        help="with --compare: the relative error allowed (default 1e-5; 0: to the bit)",
    )
    add("--info", action="store_true", help="print inputs, outputs, memory and launches, and run nothing")
    return parser


def _device(text: str) -> int | str:
    if text != "host" and not text.isdecimal():
        raise argparse.ArgumentTypeError(f"'{text}' is neither a GPU's number nor host")
    return text if text == "host" else int(text)


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"'{text}' is no number of seconds above 0")
    return value


def _error(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1
    if not 0 <= value < float("inf"):
        raise argparse.ArgumentTypeError(f"'{text}' is no relative error such as 1e-5")
    return value


def _natural(text: str, least: int = 0) -> int:
    if not text.isdecimal() or int(text) < least:
        raise argparse.ArgumentTypeError(f"{text}: give {least} or more")
    return int(text)


def _numbers(text: str) -> list[int]:
    """Numbers and ranges: `0,4-7`."""
    found: set[int] = set()
    for part in text.split(","):
        first, _, last = part.partition("-")
        if not first.isdecimal() or not (last or first).isdecimal() or int(last or first) < int(first):
            raise argparse.ArgumentTypeError(f"'{part}' is no number or range of them, as in 0,4-7")
        if int(last or first) - int(first) >= 1 << 20:
            raise argparse.ArgumentTypeError(f"'{part}' is too many blocks to run here")
        found.update(range(int(first), int(last or first) + 1))
    return sorted(found)


# Files


def _named(text: str) -> tuple[str | None, Path]:
    """Splits NAME=FILE; a file whose own name has a `=` is taken as a file."""
    name, separator, file = text.partition("=")
    if not separator or exists(text):
        return None, Path(text)
    return name, Path(file)


def as_input(array: np.ndarray, spec: TensorSpec) -> np.ndarray:
    """What a file holds for an input: for types that NumPy lacks as ml_dtypes', anything else as it is."""
    dtype = NUMPY_DTYPES[spec.dtype]
    if spec.dtype not in NOT_NUMPYS or array.dtype == dtype:
        return array
    if array.dtype.itemsize == dtype.itemsize and (array.dtype.kind == "V" or array.dtype.kind == "u"):
        return array.view(dtype)
    return array.astype(dtype) if array.dtype == np.float32 else array


def _read_inputs(options: argparse.Namespace, plan: Plan) -> list[np.ndarray]:
    """The inputs in the plan's order, from files or made up (of the largest sizes); checked against the plan."""
    specs = plan.asked
    if options.random_inputs is not None:
        if options.input:
            raise MlircError("--input and --random-inputs exclude each other")
        return random_inputs(specs, options.random_inputs)
    by_position: list[np.ndarray] = []
    by_name: dict[str, np.ndarray] = {}
    for text in options.input:
        name, path = _named(text)
        number = given_number(str(path), next((s for s in specs if s.name == name), None))
        data = read_arrays(path) if number is None else number
        found = data if isinstance(data, dict) else {name: data} if name else {}
        if isinstance(data, dict) and name:
            raise MlircError(f"{path}: an .npz file names its own arrays: give it without '{name}='")
        if not isinstance(data, dict) and not name:
            by_position.append(data)
        for key, array in found.items():
            if key in by_name:
                raise MlircError(f"input '{key}' is given twice")
            by_name[key] = array
    given = match(specs, by_position, by_name)
    if plan.structure:
        leaves = plan.structure.inputs
        given = [as_pairs(a) if leaf.kind == "complex" else a for a, leaf in zip(given, leaves, strict=True)]
    arrays = [as_input(a, spec) for a, spec in zip(given, specs, strict=True)]
    for array, spec in zip(arrays, specs, strict=True):
        seen = view(array, spec.name)
        check_sized(seen, spec) if dims_of(plan, spec) else check(seen, spec)
    if plan.sizes:
        plan.sizes.solve(plan.sizes.shapes([s.name for s in specs], arrays))
    return arrays


def random_inputs(specs: list[TensorSpec], seed: int) -> list[np.ndarray]:
    """Normal floats; integers and booleans 0 or 1, which are right for masks and inside of any table of two rows."""
    rng = np.random.default_rng(seed)
    arrays = []
    for spec in specs:
        dtype = NUMPY_DTYPES[spec.dtype]
        if spec.dtype in ("f64", "f32", "f16", *NOT_NUMPYS):
            arrays.append(rng.standard_normal(spec.shape).astype(dtype))
        else:
            arrays.append(rng.integers(0, 2, spec.shape).astype(dtype))
    return arrays


def _reads(options: argparse.Namespace) -> list[Path]:
    """The files that a run reads, which no output may replace."""
    files = [options.model, *model_files(options.model), *(_named(text)[1] for text in options.input)]
    return [*files, options.weights] if options.weights else files


def _plan_writes(options: argparse.Namespace, specs: list[TensorSpec]) -> list[tuple[Path, int | None]]:
    """(file, number of the output, or None for all) per `-o`; complains before anything runs."""
    names = [spec.name for spec in specs]
    writes: list[tuple[Path, int | None]] = []
    for text in options.output:
        name, separator, file = text.partition("=")
        path = Path(file if separator else text)
        if path.suffix not in (".npy", ".npz"):
            raise MlircError(f"-o {text}: the file must end in .npy (one output) or .npz (all of them)")
        if separator and name not in names:
            raise MlircError(f"-o {text}: no output is called '{name}': the model gives {', '.join(names)}")
        if path.suffix == ".npy" and not separator and sum(spec.kind == "output" for spec in specs) != 1:
            raise MlircError(
                f"-o {text}: the model gives {len(names)} outputs ({', '.join(names)}): use NAME={text} or .npz"
            )
        check_writable(path, _reads(options))
        writes.append((path, (names.index(name) if separator else 0) if path.suffix == ".npy" else None))
    return writes


def _write(
    writes: list[tuple[Path, int | None]], specs: list[TensorSpec], results: list[np.ndarray], inputs: list[Path]
) -> None:
    arrays = [r.astype(np.float32) if r.dtype in [NUMPY_DTYPES[d] for d in NOT_NUMPYS] else r for r in results]

    def save(path: Path, number: int | None) -> None:
        with path.open("wb") as file:
            if number is None:
                write_npz(file, {spec.name: a for spec, a in zip(specs, arrays, strict=True)})
            else:
                write_npy(file, arrays[number])

    with Outputs(inputs) as outputs:
        for path, number in writes:
            outputs.add(path, partial(save, number=number))


# Running


def _run_on_gpu(options: argparse.Namespace, inputs: list[np.ndarray]) -> list[np.ndarray]:
    from mlirc.runtime.loading import load

    how = dict(graph=not options.no_graph, verify=not options.no_verify)
    with load(options.model, options.weights, options.device, **how) as model:
        model.manual_seed(options.manual_seed)
        results = model.flat(*inputs)
        named = dict(zip((spec.name for spec in model.plan.asked), inputs, strict=True))
        written = [
            np.array(model.state[s.name]) if s.kind == "state" else named[s.name].copy() for s in model.plan.written
        ]
        if options.time:
            times = time_model(model)
            print(f"time: {_microseconds(statistics.median(times))} median of {len(times)} samples, hot caches")
    return [*results, *written]


def time_model(model, samples: int = 100, replays: int = 20) -> list[float]:
    """Seconds per run of the inputs last bound, each sample the mean of back-to-back replays."""

    def sample() -> float:
        start = time.perf_counter()
        for _ in range(replays):
            model.launch()
        model.synchronize()
        return (time.perf_counter() - start) / replays

    sample()  # warms up
    return [sample() for _ in range(samples)]


def _microseconds(seconds: float) -> str:
    return f"{seconds * 1e6:,.1f} us"


def _describe(name: str, array: np.ndarray) -> str:
    text = f"{name}: {array.dtype}[{','.join(map(str, array.shape))}]"
    if array.size == 0:
        return text
    if array.dtype.kind == "c":
        array, text = np.abs(array), f"{text} magnitudes"
    wide = array.astype(np.float64)
    return f"{text} mean {wide.mean():.6g} std {wide.std():.6g} min {wide.min():.6g} max {wide.max():.6g}"


def _main(argv: list[str] | None) -> int:
    parser = _parser()
    options, unknown = parser.parse_known_args(argv)
    folder = None if options.model is None or options.compare else folder_of_generating(options.model)
    if folder is not None and not options.info:
        raise MlircError(
            f"{options.model}: generates text, which takes several plans and their cache: mlirc-generate "
            f"{folder} --prompt TEXT runs it (or --prompt-tokens 1,2,3); mlirc-run --info shows its plans"
        )
    if unknown:
        parser.error(f"unrecognized arguments: {' '.join(unknown)}")
    if folder is not None and folder == options.model:
        print(generating_info(folder))
        return 0
    if options.compare:
        if options.model:
            raise MlircError("--compare A B stands alone: give no MODEL.ptx with it")
        a, b = options.compare
        return compare_files(a, b, read_arrays(a, "--compare"), read_arrays(b, "--compare"), options.gate)
    if not options.model or options.gate is not None:
        raise MlircError("--gate goes with --compare A B" if options.model else "no MODEL.ptx: name what mlirc made")
    _text, plan = read_model(options.model)
    if options.info:
        print(info(plan))
        return 0
    writes = _plan_writes(options, plan.results)
    inputs = _read_inputs(options, plan)
    if options.device == "host" and options.level not in (None, "gpu"):
        raise MlircError(f"--device host runs level gpu: give it or --level {options.level}, not both")
    level = options.level or ("gpu" if options.device == "host" else None)
    on_host = dict(blocks=options.blocks, seed=options.seed, seeds=options.seeds, counters=options.counters,
                   seconds=options.seconds, no_compare=options.no_compare, execute_ptx=options.execute_ptx,
                   input_sets=options.input_sets)  # fmt: skip
    for option, value in on_host.items():
        if value and level != "gpu" and not (option == "seconds" and level):
            raise MlircError(f"--{option.replace('_', '-')} is for the host device: it goes with --device host")
    if level and options.no_graph:
        raise MlircError("--no-graph is for the GPU: leave it out on the CPU")
    if level:
        from mlirc.tools.host_runs import run_level

        start = time.perf_counter()
        results = run_level(options.model, level, plan, inputs, options.weights, options.manual_seed,
                            not options.no_verify, match=options.device == "host", **on_host)  # fmt: skip
        where = "the host device" if level == "gpu" else f"level {level} on the CPU"
        if options.time:
            print(f"time: {time.perf_counter() - start:.2f} s, compiling for the CPU included")
    else:
        results = _run_on_gpu(options, inputs)
        where = f"GPU {options.device}"
    if plan.structure:
        leaves = plan.structure.result.leaves
        results[: len(leaves)] = [as_complex(a) if leaf.kind == "complex" else a
                                  for a, leaf in zip(results, leaves, strict=False)]  # fmt: skip
    _write(writes, plan.results, results, _reads(options))
    if not writes:
        only = "" if options.blocks is None else ": only the given blocks, zeros in place of what others compute"
        print(f"ran on {where}{only}")
        for spec, array in zip(plan.results, results, strict=True):
            print(_describe(spec.name if spec.kind == "output" else f"{spec.kind} {spec.name}", array))
    return 0


def main(argv: list[str] | None = None) -> int:
    """The program; returns its exit status."""
    return run_main(lambda: _main(argv))


if __name__ == "__main__":
    sys.exit(main())
