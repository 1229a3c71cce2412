"""`mlirc-bench`: measures compiled operators and models against PyTorch, with speed-of-light bounds and FP64 errors."""

from __future__ import annotations

import argparse
import importlib.util
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from mlirc.bench.artifacts import MANIFEST, MINILM, Entry, read_manifest, write_manifest
from mlirc.bench.cases import Case, select
from mlirc.bench.generation.cases import BUILDER as GENERATION
from mlirc.bench.generation.cases import CONTEXT, DEFAULT_PEERS, folder_case
from mlirc.bench.generation.cases import PEERS as GENERATING_PEERS
from mlirc.bench.pool import Task, run_tasks
from mlirc.bench.suites import suite_cases, suites
from mlirc.errors import MlircError
from mlirc.files.marks import marked_json
from mlirc.files.outputs import Outputs, check_replaceable
from mlirc.frontend.shapes import parse_shapes
from mlirc.precision import DEFAULT_FP32, FP32
from mlirc.targets import DEFAULT_TARGET, get_target
from mlirc.tools.cli import Parser, run_main
from mlirc.tools.generating import count

_EPILOG = """examples
  mlirc-bench bf16-basics                        compile here, measure here
  mlirc-bench fp32 --filter rmsnorm --kernels    some cases, and each kernel's time
  mlirc-bench models --compile-only OUT          on a machine without a GPU ...
  mlirc-bench --run OUT --check-only -j 8        ... and on one with a GPU, without MLIR
  mlirc-bench llama/ --decode --context 4096     a step of a model that generates text
  mlirc-bench FILE.py:kernel --shapes M=4096,N=4096,K=512        a kernel of your own
  mlirc-bench KernelBench/level1 -j 8 -o r.json  a folder of problems (Model, get_inputs, get_init_inputs)
docs/benchmarking.md says how each figure is taken."""


PEERS = ("eager", "compile", "max-autotune")


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        "mlirc-bench", description=__doc__, epilog=_EPILOG, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add(
        "what",
        nargs="*",
        metavar="WHAT",
        help=f"a suite ({', '.join(suites())}), a model, a folder of problems, or an .mlir file",
    )
    add("--filter", metavar="REGEX", help="only the cases whose name matches")
    add("--list", action="store_true", help="print the cases and stop")
    where = parser.add_argument_group("two machines")
    where.add_argument("--compile-only", type=Path, metavar="DIR", help="compile into DIR; needs no GPU")
    where.add_argument("--run", type=Path, metavar="DIR", help="measure what was compiled into DIR; needs no MLIR")
    model = parser.add_argument_group("a model of your own, as in mlirc")
    model.add_argument("--input", action="append", default=[], metavar="NAME=DTYPE[SHAPE]")
    model.add_argument("--shapes", metavar="M=128,...", default="", help="of a kernel FILE.py:name, as in mlirc")
    model.add_argument("--dtype", metavar="DTYPE")
    model.add_argument("--random-weights", type=int, metavar="SEED")
    model.add_argument("--allow-pickle", action="store_true")
    text = parser.add_argument_group("a Hugging Face folder that generates text")
    text.add_argument("--decode", action="store_true", help="measure a step of decoding")
    text.add_argument("--prefill", type=count, metavar="N", help="measure the reading of a prompt of N tokens")
    text.add_argument("--verify", type=count, metavar="K", help="measure the judging of K tokens at once, 2 to 8")
    text.add_argument(
        "--context", type=count, metavar="N", help=f"--decode, --verify: so long sequences (default {CONTEXT})"
    )
    text.add_argument("--batch", type=count, metavar="N", help="--decode: so many of them (default 1)")
    text.add_argument("--quantize", metavar="SCHEME", help="pack the linear layers' weights, as in mlirc")
    how = parser.add_argument_group("compiling")
    how.add_argument("--target", default=DEFAULT_TARGET, help="the GPU to compile for (default %(default)s)")
    how.add_argument("--schedule", action="append", default=[], metavar="S", help="as in mlirc")
    how.add_argument("--fp32", choices=list(FP32), default=DEFAULT_FP32, help="as in mlirc; the gate follows it")
    how.add_argument("--ptxas", action="store_true", help="have ptxas assemble every case; a refusal is an error")
    how.add_argument("--compile-jobs", type=int, metavar="N", help="cases compiled side by side (default: cores)")
    measure = parser.add_argument_group("measuring")
    add = measure.add_argument
    add(
        "--peers",
        help="of eager, compile, max-autotune; '' for none (default eager,compile; for problems eager); for models that"
        f" generate also transformers, without a CUDA graph (default {DEFAULT_PEERS})",
    )
    add("--samples", type=int, default=100, help="samples per contender (default %(default)s)")
    add("--check-only", action="store_true", help="errors only, no times")
    add("--kernels", action="store_true", help="time each kernel alone, too")
    add("-j", "--jobs", type=int, default=1, help="cases checked, problems compiled (and their peers), side by side")
    add("--timeout", type=float, default=300, help="seconds for one case (default %(default)s)")
    add("--time-limit", type=float, metavar="S", help="start no case after S seconds; the rest counts as skipped")
    add("--resume", action="store_true", help="problems: go on with those that -o OUT.json does not have")
    add("--retry", action="store_true", help="with --resume: do those again that were not right")
    add("--memory", type=float, metavar="GIB", help="problems: host memory for each compiling process")
    add("-o", "--output", type=Path, metavar="OUT.json", help="write all results; a page goes to OUT.md beside it")
    return parser


GPU_MEMORY = 1.2e11  # what the cases of `-j` may take together, in bytes


def _cases(options: argparse.Namespace) -> list[Case]:
    if not options.what:
        raise MlircError(f"nothing to measure: name a suite ({', '.join(suites())}), or give --run DIR")
    found = [case for name in options.what for case in _named(name, options)]
    # Two suites may share a case.
    return select({c.name: c for c in found}.values(), options.filter)


def _generates(options: argparse.Namespace) -> bool:
    """Whether what is named are folders of models that generate text."""
    return bool(options.decode or options.prefill or options.verify)


def _named(what: str, options: argparse.Namespace) -> list[Case]:
    """The cases of one command-line argument."""
    if _generates(options):
        sizes = {"context": options.context, "batch": options.batch}
        given_sizes = {name: n for name, n in sizes.items() if n is not None}
        if given_sizes and not (options.decode or options.verify and "batch" not in given_sizes):
            raise MlircError(f"--{next(iter(given_sizes))} goes with --decode")
        case = folder_case(
            what, options.dtype, options.random_weights, decode=options.decode, prefill=options.prefill,
            verify=options.verify, quantize=options.quantize, **given_sizes,
        )  # fmt: skip
        return [case]
    for name in ("context", "batch", "quantize"):
        if getattr(options, name) is not None:
            raise MlircError(f"--{name} goes with --decode, --verify K or --prefill N, and a Hugging Face folder")
    if what in suites() or not (Path(what).exists() or ":" in what):
        return suite_cases(what)
    name = what.rpartition(":")[2] if ":" in what else Path(what).stem or what
    if what.endswith(".mlir"):
        return [Case(name, "file", "mlir", {"spec": what}, {}, "f32")]
    given = {"inputs": options.input, "dtype": options.dtype, "random_weights": options.random_weights}
    given["allow_pickle"] = options.allow_pickle
    given["shapes"] = parse_shapes(options.shapes)
    return [Case(name, "file", "file", {"spec": what, "open": given}, {}, options.dtype or "f32")]


def compile_cases(cases: list[Case], folder: Path, options: argparse.Namespace) -> list[Entry]:
    """Compiles every case into the folder, side by side, and writes the manifest; a case that fails keeps its error."""
    from mlirc.bench.report import commit

    target = get_target(options.target).name
    _made_folder(folder)
    how = {"target": target, "schedule": options.schedule, "fp32": options.fp32}
    settings = {"folder": str(folder), "ptxas": options.ptxas, **how}
    jobs = options.compile_jobs or len(os.sched_getaffinity(0))
    infos: dict[str, dict[str, Any]] = {}
    start = time.monotonic()
    tasks = [Task([{"name": case.name, "case": case.to_json()}]) for case in cases]
    for name, info in run_tasks(tasks, "compile", settings, jobs=jobs, timeout=options.timeout):
        infos[name] = info
        outcome = info.get("error") or f"{info['launches']} launches, {info['seconds']:.1f} s"
        if "ptxas" in info:
            outcome += f", at most {info['ptxas']['registers']} registers, {info['ptxas']['spilling']} kernels spill"
        print(f"[{len(infos)}/{len(cases)}] {name}: {outcome}"[:200], file=sys.stderr, flush=True)
    entries = [_entry(case, infos[case.name]) for case in cases]
    if any(case.options.get("weights") == "minilm" for case in cases):
        _carry_minilm(folder)
    about = {**how, "commit": commit()}
    write_manifest(folder, entries, {**about, "compile_s": round(time.monotonic() - start, 1)})
    return entries


def _made_folder(folder: Path) -> Path:
    check_replaceable(folder / MANIFEST)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as e:
        raise MlircError(f"--compile-only {folder}: cannot make the folder: {e.strerror}") from e
    return folder


def _entry(case: Case, info: dict[str, Any]) -> Entry:
    """A compiled case, with what only its compilation could tell put into the case."""
    known: dict[str, Any] = {k: info.pop(k) for k in ("source", "untranslatable") if k in info}
    inputs = info.pop("inputs", case.inputs)
    return Entry(replace(case, inputs=inputs, options=case.options | known), info)


def _carry_minilm(folder: Path) -> None:
    from mlirc.bench.build import find_minilm, trim_minilm

    source = find_minilm()
    if source is None:
        print("MiniLM's package is not installed: its cases need it on the other machine", file=sys.stderr)
    else:
        trim_minilm(source, folder / MINILM)


def run_cases(entries: list[Entry], folder: Path, options: argparse.Namespace) -> list[dict[str, Any]]:
    """Measures the compiled cases in worker processes; returns one record per case, in order.

    With several jobs, all cases are checked side by side first (which also fills the caches of the driver's and of
    torch.compile's compilers), and then timed one by one.
    """
    known = GENERATING_PEERS if any(e.case.builder == GENERATION for e in entries) else PEERS
    peers = [p for p in _peers(options, "eager,compile", known) if p != "transformers"]
    deadline = _deadline(options)
    settings = {"folder": str(folder), "peers": peers, "samples": options.samples, "kernels": options.kernels}
    settings |= {"check": True, "time": not options.check_only, "warm": False}
    settings["generating_peers"] = _peers(options, DEFAULT_PEERS, GENERATING_PEERS)
    results: dict[str, dict[str, Any]] = {}
    if options.jobs > 1:
        first = {**settings, "time": False, "warm": not options.check_only and peers not in ([], ["eager"])}
        _phase(entries, first, options, deadline, results)
        settings["check"] = False
    if options.jobs == 1 or not options.check_only:
        left = [e for e in entries if options.jobs == 1 or _to_time(e.case, results.get(e.case.name, {}))]
        _phase(left, settings, options, deadline, results)
    return _records(entries, results)


def _to_time(case: Case, result: dict[str, Any]) -> bool:
    """Whether a checked case is to be timed: one that generates only where it is right."""
    return "check" in result and (case.builder != GENERATION or result["check"]["verdict"] != "FAIL")


def _peers(options: argparse.Namespace, default: str, known: Sequence[str] = PEERS) -> list[str]:
    given = default if options.peers is None else options.peers
    peers = ["compile" if p == "inductor" else p for p in given.split(",") if p]
    unknown = [p for p in peers if p not in known]
    if unknown:
        raise MlircError(f"--peers: no peer '{unknown[0]}': there are {', '.join(known)}")
    return peers


def _deadline(options: argparse.Namespace) -> float:
    return time.monotonic() + options.time_limit if options.time_limit else float("inf")


def _phase(
    entries: list[Entry], settings: dict[str, Any], options: argparse.Namespace, deadline: float, results: dict
) -> None:
    """Runs the entries and merges what comes back into `results`."""
    from mlirc.bench.compiling import case_memory

    jobs = 1 if settings["time"] else options.jobs
    groups: dict[str, Task] = {}
    for e in entries:
        if "error" not in e.info:
            task = groups.setdefault(e.case.group, Task([]))
            task.cases.append({"name": e.case.name, "case": e.case.to_json(), "info": e.info})
            if jobs > 1 and not e.case.rotated:
                task.memory = max(task.memory, case_memory(e.info, e.case.dtype))
    tasks = sorted(groups.values(), key=lambda t: -t.memory)
    total, done = sum(len(t.cases) for t in tasks), 0
    for name, result in run_tasks(
        tasks, "run", settings, jobs=jobs, timeout=options.timeout, memory=GPU_MEMORY, deadline=deadline
    ):
        done += 1
        known = results.setdefault(name, {})
        known.update({f"time_{k}" if k in ("error", "skipped") and known else k: v for k, v in result.items()})
        print(f"[{done}/{total}] {name}: {_outcome(result)}"[:300], file=sys.stderr, flush=True)
        if options.output:
            _write(options.output, _records(entries, results), Path(settings["folder"]))


def _records(entries: list[Entry], results: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"case": e.case.to_json(), "info": e.info, "result": results.get(e.case.name, {})} for e in entries]


def _outcome(result: dict[str, Any]) -> str:
    if "error" in result or "skipped" in result:
        return str(result.get("error") or result.get("skipped"))
    check = result.get("check", {"verdict": "", "outputs": []})
    errors = ", ".join(f"{o['error']:.1e} (eager {o['eager_error']:.1e})" for o in check["outputs"])
    parts = {"": result, **{f"{name}: ": part for name, part in result.get("parts", {}).items()}}
    times = ", ".join(
        part + ", ".join(f"{n} {t['median_us']:.1f} us" for n, t in found["times"].items())
        for part, found in parts.items()
        if "times" in found
    )
    return " ".join(part for part in (check["verdict"], errors, times) if part)


def _write(path: Path, records: list[dict[str, Any]], folder: Path) -> dict[str, Any]:
    """Writes what is known so far, since a machine may be taken away at any time; returns the data."""
    from mlirc.bench import report

    _, about = read_manifest(folder)
    data = {"about": {**_environment(), **about}, "results": records}
    with Outputs() as outputs:
        outputs.add(path, lambda temporary: temporary.write_text(marked_json(data)))
        outputs.add_text(path.with_suffix(".md"), report.markdown(data), "page")
    return data


_ENVIRONMENT: dict[str, Any] = {}


def _environment() -> dict[str, Any]:
    from mlirc.bench import report

    if not _ENVIRONMENT:
        _ENVIRONMENT.update(report.environment())
    return _ENVIRONMENT


def _measure(entries: list[Entry], folder: Path, options: argparse.Namespace) -> int:
    from mlirc.bench import report

    records = run_cases(entries, folder, options)
    _, about = read_manifest(folder)
    if options.output:
        _write(options.output, records, folder)
    report.print_table({"about": {**_environment(), **about}, "results": records})
    return 0 if all(report.is_right(r) for r in records) else 1


def _problems(options: argparse.Namespace) -> list[Case] | None:
    """The problems that the command line names, or None where it names something else."""
    from mlirc.bench.problems.find import find_problems
    from mlirc.frontend.names import is_kernel_file

    if _generates(options):
        return None
    is_asked = options.what[:1] == ["problems"]
    named = options.what[1:] if is_asked else options.what
    if is_asked and not named:
        raise MlircError("problems: name the folder that holds them")
    folders = [n for n in named if os.path.isdir(n) and not os.path.exists(os.path.join(n, "config.json"))]
    files = [n for n in named if n.endswith(".py") and not is_kernel_file(n)]
    if not named or not is_asked and len(folders) + len(files) < len(named):
        return None
    return select(find_problems(named), options.filter)


def _run_problems(cases: list[Case], compiled: list[Entry], folder: Path, options: argparse.Namespace) -> int:
    """Compiles the cases that are not compiled yet, and measures all."""
    from mlirc.bench.problems import report
    from mlirc.bench.problems.session import Session, read_records
    from mlirc.bench.report import commit, is_right

    gpu = not options.compile_only
    about = {**_environment(), "target": get_target(options.target).name, "schedule": options.schedule}
    about |= {"fp32": options.fp32, "commit": commit()}
    if compiled:
        about |= {k: v for k, v in read_manifest(folder)[1].items() if k in about.keys() - _ENVIRONMENT.keys()}
    running = {"time": not options.check_only, "peers": _peers(options, "eager"), "samples": options.samples}
    running["kernels"] = options.kernels
    session = Session(cases, folder, about, about["target"], options.schedule, options.fp32)
    session.compile_jobs = options.compile_jobs or max(options.jobs, 1)
    session.compile_memory = (options.memory or 0) * 2**30
    session.timeout, session.deadline, session.gpu, session.running = options.timeout, _deadline(options), gpu, running
    session.output, session.warm_jobs = options.output, options.jobs
    if options.resume:
        if not options.output:
            raise MlircError("--resume needs -o OUT.json: the results to go on with")
        session.records = read_records(options.output, gpu=gpu, retry=options.retry)
    records = session.run(compiled)
    session.write()
    if options.compile_only:
        write_manifest(folder, [Entry(Case.from_json(r["case"]), r["info"]) for r in records], session.about)
    report.print_table(records)
    return 0 if all("launches" in r["info"] if options.compile_only else is_right(r) for r in records) else 1


def _require_gpu() -> None:
    import torch

    if not torch.cuda.is_available():
        raise MlircError("no GPU here: compile with --compile-only DIR, and measure with --run DIR where there is one")


def _main(argv: list[str] | None) -> int:
    options = _parser().parse_args(argv)
    if options.output:
        if options.output.suffix != ".json":
            raise MlircError(f"-o {options.output}: the name must end in .json: a page goes beside it, to .md")
        check_replaceable(options.output)
        check_replaceable(options.output.with_suffix(".md"))
    if options.run:
        if options.what or options.compile_only:
            raise MlircError("--run DIR measures what DIR holds: give no suite and no --compile-only with it")
        entries, _ = read_manifest(options.run)
        chosen = {c.name for c in select([e.case for e in entries], options.filter)}
        entries = [e for e in entries if e.case.name in chosen]
        if options.list:
            print("\n".join(e.case.name for e in entries))
            return 0
        _require_gpu()
        if entries and all(e.case.builder == "problem" for e in entries):
            return _run_problems([e.case for e in entries], entries, options.run, options)
        return _measure(entries, options.run, options)
    problems = _problems(options)
    cases = problems or _cases(options)
    if (
        not options.list and importlib.util.find_spec("torch_mlir") is None
    ):  # cases are compiled in processes of their own
        raise ModuleNotFoundError("No module named 'torch_mlir'", name="torch_mlir")
    if options.list:
        print("\n".join(c.name for c in cases))
        return 0
    if problems:
        if options.compile_only:
            return _run_problems(problems, [], _made_folder(options.compile_only), options)
        _require_gpu()
        with tempfile.TemporaryDirectory(prefix="mlirc-bench-") as folder:
            return _run_problems(problems, [], Path(folder), options)
    if options.compile_only:
        entries = compile_cases(cases, options.compile_only, options)
        failed = [e for e in entries if "error" in e.info]
        size = sum(f.stat().st_size for f in options.compile_only.iterdir())
        print(
            f"{len(entries) - len(failed)} of {len(entries)} compiled, {size / 2**20:.1f} MiB in {options.compile_only}"
        )
        return 1 if failed else 0
    _require_gpu()
    with tempfile.TemporaryDirectory(prefix="mlirc-bench-") as folder:
        return _measure(compile_cases(cases, Path(folder), options), Path(folder), options)


def main(argv: list[str] | None = None) -> int:
    """The program; returns its exit status."""
    return run_main(lambda: _main(argv))


if __name__ == "__main__":
    sys.exit(main())
