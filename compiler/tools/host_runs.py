"""`mlirc-run` without a GPU: a compiled model's levels on the CPU, and its kernels on the host device."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from mlirc.errors import MlircError
from mlirc.files.outputs import model_files
from mlirc.ir.text import require_level
from mlirc.runtime.arrays import check
from mlirc.runtime.fitting import cut
from mlirc.runtime.loading import check_unchanged, find_weights, read_model
from mlirc.runtime.padding import padded
from mlirc.runtime.plan import Plan
from mlirc.runtime.random_state import DEFAULT_SEED, RandomState
from mlirc.runtime.sized_copies import dims_of
from mlirc.timing import Progress, counted

SHOWN = 4  # findings printed beside the error


def run_level(
    model: Path,
    level: str,
    plan: Plan,
    inputs: list[np.ndarray],
    weights: Path | None,
    manual_seed: int = DEFAULT_SEED,
    verify: bool = True,
    **options: Any,
) -> list[np.ndarray]:
    """Runs a level that mlirc kept beside the model on the CPU, the gpu level on the host device with the options of
    `run_on_host_device`, with the random numbers of the first call after `manual_seed`, and says on standard error what
    was checked. `seconds`, one of them, is how long another level may take. `verify`: whether weights and levels are
    held against their checksums. Raises MlircError when the level is not there or not this model's, when an index is
    out of range, or when the host device finds something wrong."""
    # First what is not there: the imports take seconds.
    require_level(model_files(model)[1] / f"{level}.mlir")
    found = find_weights(model, plan, weights, verify)
    if level == "gpu":
        return run_on_host_device(model, plan, inputs, found, manual_seed, verify=verify, **options)
    from mlirc import host
    from mlirc.host.level_files import Levels, without_bodies
    from mlirc.ir.levels import argument_names, functions, kernels, main_results

    files = Levels.beside(model, plan, verify)
    module = files.module(level)
    if without_bodies(module):
        what = "only declares its kernels: the model was compiled from the async or gpu level"
        raise MlircError(f"{files.name(level)}: {what}")
    given: dict[str, np.ndarray] = dict(zip((spec.name for spec in plan.asked), inputs, strict=True))
    sizes: dict[str, int] = {}
    if plan.sizes:
        sizes = plan.sizes.solve(plan.sizes.shapes(list(given), list(given.values())))
        given = padded(plan.sizes, given, sizes)
    if plan.draws:
        given[plan.inputs[-1].name] = RandomState(plan.draws, manual_seed).state()
    for spec in plan.weights:
        if spec.name not in found:
            raise MlircError(f"{model}: {spec.kind} '{spec.name}' ({spec}) is missing from the given weights")
        seen = found[spec.name]
        check(seen, spec)
        given[spec.name] = seen.owner.array(spec.name)
    main = functions(module)["main"]
    arguments = [given[name] for name in argument_names(main)]
    made = host.run_module(module, arguments, source=files.name(level), seconds=options.get("seconds"))
    order = main_results(main, plan)
    results = [made[order.index(i)] for i in range(len(made))]
    for i, spec in enumerate(plan.outputs):
        results[i] = cut(results[i], dims_of(plan, spec), sizes)
    parts = [counted(len(kernels(module)), "kernel")] if level != "linalg" else []
    parts += [counted(len(inputs), "input"), "indices are in range, numbers compared with nothing"]
    print(f"level {level}: {', '.join(parts)}", file=sys.stderr)
    return results


def run_on_host_device(
    model: Path,
    plan: Plan,
    inputs: list[np.ndarray],
    found: Mapping[str, Any],
    manual_seed: int = DEFAULT_SEED,
    *,
    blocks: list[int] | None = None,
    seed: int = 0,
    seeds: int | None = None,
    counters: bool = False,
    seconds: float | None = None,
    no_compare: bool = False,
    execute_ptx: bool = False,
    match: bool = True,
    input_sets: str | None = None,
    verify: bool = True,
) -> list[np.ndarray]:
    """Runs a compiled model with its weights `found` on the host device: of every launch only `blocks` where they are
    given. With `seeds` runs that many orders, from `seed` on, and stops at the first finding or difference between
    them. Without `match` the `gpu` level need not be that of the PTX file, without `verify` be as it was written.
    Raises a finding as MlircError and prints some of the others; prints what was checked on standard error, and with
    `counters` counts."""
    from mlirc.device import HostModel
    from mlirc.device.counters import table
    from mlirc.device.input_sets import parse_input_sets
    from mlirc.device.seeds import run_seeds

    sets = parse_input_sets(input_sets or "quick")
    if input_sets and sets and no_compare:
        raise MlircError("--input-sets needs numbers to compare with: leave --no-compare out")
    text = read_model(model)[0]
    check_unchanged(model, text)
    loaded = HostModel(model, plan, found, ptx=text, count=counters, verify=verify)
    loaded.match, loaded.execute_ptx = match, execute_ptx
    loaded.input_sets = sets
    loaded.blocks, loaded.compare = blocks, not no_compare
    loaded.seconds = seconds or loaded.seconds
    loaded.manual_seed(manual_seed)
    loaded.bind(*inputs)
    progress = Progress()
    progress.describe("kernels")
    loaded.progress = progress.count
    try:
        run_seeds(loaded, range(seed, seed + (seeds or 1)))
    except MlircError:
        for finding in loaded.report.findings[1 : 1 + SHOWN]:
            print(f"finding: {finding}", file=sys.stderr)
        raise
    finally:
        progress.close()
        if counters:
            print(table(loaded.report))
    orders = f", {counted(seeds, 'seed')} with the same bits" if seeds else ""
    print(f"no findings: {loaded.summary()}{orders}", file=sys.stderr)
    return [*loaded.outputs, *loaded.written]
