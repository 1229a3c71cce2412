"""`mlirc.compile`: a live torch module, compiled and loaded in one process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mlirc.driver.compilation import HOST_LEVELS, Compilation
from mlirc.driver.kernel_cache import KernelCache
from mlirc.errors import MlircError, require_type
from mlirc.files.kept import cache_folder
from mlirc.precision import DEFAULT_FP32, check_fp32
from mlirc.targets import DEFAULT_TARGET, TARGETS, get_target


def compile_torch(
    module: Any,
    args: tuple = (),
    kwargs: dict | None = None,
    *,
    target: str | None = None,
    schedule: Sequence[str] = (),
    cache: bool = True,
    train: bool = False,
    scalars: Sequence[str] = (),
    name: str = "model",
    fp32: str = DEFAULT_FP32,
    quantize: str | None = None,
    sizes: Mapping[str, Any] | None = None,
    dynamic_shapes: Any = None,
    **load_options: Any,
) -> Any:
    """Compiles a live torch module for its example inputs and returns the loaded `mlirc.runtime` model.

    The weights are the module's own: bound without a copy where they are on the GPU, and what is computed of them
    alone is computed in every call, unless they are `frozen`. The module is compiled in eval
    mode, or, with `train`, as it is: modules in training drop out at random. `scalars` names inputs that are numbers
    (or tensors of no dimension), which kernels take by value; all other numbers are constants. `fp32` says how FP32
    products may be made (`mlirc.precision`). `quantize` names a scheme (`int4:group=128`) by which the weights of
    linear layers are packed; those lie in the loaded model then, and the module stays as it is. `sizes` says which
    sizes a call decides, as `{"x": "b<=8, 7"}` or `{"x": ["b<=8", 7]}`; `dynamic_shapes` says so as torch.export has
    it, by `Dim`s with a `max`. `target` defaults to the GPU of this machine. `load_options` go to `mlirc.runtime.load`:
    with `device="host"` the model is a `mlirc.device.HostModel`, and no GPU is asked for.

    The model is called as the module is, and returns what the module returns: named tuples, dataclasses and
    transformers' outputs among others.
    """
    from mlirc.runtime.loading import check_device, load_text

    if not isinstance(args, (tuple, list)):
        args = (args,)
    require_type(kwargs, (Mapping, type(None)), "kwargs", "example inputs by name")
    for what, value in (("schedule", schedule), ("scalars", scalars)):
        require_type(value, (tuple, list, set, frozenset), what, "a list of texts")
        for each in value:
            require_type(each, str, f"{what}, one of it,", "a text")
    for what, value in (("name", name), ("target", target or ""), ("quantize", quantize or ""), ("fp32", fp32)):
        require_type(value, str, what, "a text")
    on_host = check_device(load_options.get("device", 0)) == "host"
    unknown = sorted(set(load_options) - {"device", "graph", "frozen", *(() if on_host else ("driver",))})
    if unknown:
        raise MlircError(f"compile: unknown option '{unknown[0]}'" + (" of device 'host'" if on_host else ""))
    folder = KernelCache(cache_folder()) if cache else None
    chosen = get_target(target or (DEFAULT_TARGET if on_host else this_gpu()))
    job = Compilation(name, chosen, tuple(schedule), folder, fp32=check_fp32(fp32))
    job.check_schedules()
    job.import_module(module, tuple(args), dict(kwargs or {}), train, scalars, quantize, sizes, dynamic_shapes)
    job.lower("ptx")
    made = host_model(job) if on_host else load_text(job.ptx, job.tensors(), **load_options)
    made.rebuild = job.imported.rebuild if made.plan.structure else None
    return made


def host_model(job: Compilation) -> Any:
    """A finished compilation on the host device: a `mlirc.device.HostModel`."""
    from mlirc.device import HostModel
    from mlirc.host.level_files import Levels

    texts = {level: job.text(level) for level in HOST_LEVELS if level in job.modules or level == "gpu"}
    return HostModel(Path(job.name), job.plan, job.tensors(), levels=Levels.of(texts, job.plan))


def this_gpu() -> str:
    """The best target for the GPU that torch uses; the default where there is none."""
    import torch

    if not torch.cuda.is_available():
        return DEFAULT_TARGET
    major, minor = torch.cuda.get_device_capability()
    found = [t for t in TARGETS.values() if t.cc == major * 10 + minor]
    older = [t for t in TARGETS.values() if t.cc <= major * 10 + minor and not t.name.endswith("a")]
    if not found and not older:
        raise MlircError(
            f"the GPU's compute capability {major}.{minor} is older than every target: {', '.join(TARGETS)}"
        )
    return (found or older)[-1].name
