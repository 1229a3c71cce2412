"""`open_model`: whatever the command line names, as a `SourceModel`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from mlirc.errors import MlircError
from mlirc.files.opening import exists, shorten
from mlirc.frontend.archives import load_factory, open_factory, open_file
from mlirc.frontend.huggingface import open_directory
from mlirc.frontend.inputs import dtype_of, parse_inputs, size_request
from mlirc.frontend.names import FACTORY, IN_FILE, is_kernel_file
from mlirc.frontend.noise import quiet
from mlirc.frontend.problem import open_problem
from mlirc.frontend.python_file import load_name, only_kernel
from mlirc.frontend.quantize import parse_scheme
from mlirc.frontend.quantize.apply import quantize_source
from mlirc.frontend.source import SourceModel
from mlirc.turns import export_turn


@export_turn
def open_model(
    spec: str,
    *,
    inputs: Sequence[str] = (),
    random_weights: int | None = None,
    allow_pickle: bool = False,
    dtype: str | None = None,
    quantize: str | None = None,
    shapes: Mapping[str, Any] | None = None,
) -> SourceModel:
    """Opens a model, and packs its weights as the scheme `quantize` says (`int4:group=128`), if it does; the rest as of
    `_open`. `shapes`: extents, dtypes and constants of a kernel in a Python file, by name. Raises MlircError, of one
    line, for everything that can be wrong."""
    if quantize is not None:
        parse_scheme(quantize)  # a wrong one is said before the model is opened
    kernel = kernel_in_file(spec)
    if kernel is None and shapes:
        raise MlircError(f"{spec}: --shapes are a kernel's (FILE.py:name): a model's inputs are given by --input")
    if kernel is not None:
        given = {"--input": inputs, "--random-weights": random_weights, "--dtype": dtype, "--quantize": quantize}
        if wrong := [name for name, value in given.items() if value not in (None, (), [])]:
            raise MlircError(f"{spec}: {wrong[0]} is for models: a kernel's inputs follow from --shapes")
        return kernel.source(shapes)
    source = _open(spec, inputs, random_weights, allow_pickle, dtype, quantize is not None)
    return source if quantize is None else packed_as(source, quantize)


def kernel_in_file(spec: str) -> Any:
    """The kernel that `FILE.py:name`, `package.module:name` or a FILE.py with one kernel names; None for a model."""
    found: Any = None
    if (named := IN_FILE.fullmatch(spec)) and exists(named["file"]) and not exists(spec):
        found = load_name(named["file"], named["name"])
    elif FACTORY.fullmatch(spec) and not exists(spec):
        found = load_factory(spec)
    elif exists(spec) and is_kernel_file(spec):
        found = only_kernel(spec)
    return found if getattr(found, "is_kernel", False) else None


def packed_as(source: SourceModel, scheme: str) -> SourceModel:
    """The model with its linear layers' weights packed as a scheme says (`int8`, `int4:group=64,asymmetric`). Raises
    MlircError."""
    with quiet():
        return quantize_source(source, parse_scheme(scheme))


def _open(
    spec: str,
    inputs: Sequence[str],
    random_weights: int | None,
    allow_pickle: bool,
    dtype: str | None,
    on_demand: bool = False,
) -> SourceModel:
    """Opens a model; its kind is found from the content.

    `spec`: a torch.export archive, a TorchScript file, a Hugging Face directory, a factory `package.module:function`,
    a problem file (`.py`), or, with `allow_pickle`, a pickled module. `inputs`: strings such as
    `input_ids=i64[1,128]`. `random_weights`: a seed, for a Hugging Face directory. `dtype`: the float type to run the
    model in (`f32`, `bf16`, ...), where the model is not fixed yet. Raises MlircError, of one line, for everything that
    can be wrong with these.
    """
    given = parse_inputs(inputs)
    path = Path(spec)
    with quiet():
        if exists(spec) and path.is_dir():
            if numbers := [name for name, about in given.items() if about.scalar]:
                raise MlircError(f"{spec}: --input '{numbers[0]}': a Hugging Face model's inputs have sizes")
            return open_directory(path, inputs=given, random_weights=random_weights, dtype=dtype, on_demand=on_demand)
        if random_weights is not None:
            raise MlircError(f"{spec}: --random-weights needs a Hugging Face directory")
        if exists(spec) and path.suffix == ".py":
            if given:
                raise MlircError(
                    f"{spec}: --input is not possible: the inputs are what the file's get_inputs() returns"
                )
            return open_problem(spec, dtype=_float_type(dtype) if dtype else torch.float32)
        if exists(spec):
            source = open_file(path, inputs=given, allow_pickle=allow_pickle)
            if source.kind == "torchscript" and any(about.symbols for about in given.values()):
                raise MlircError(
                    f"{spec}: TorchScript has fixed sizes: export it with torch.export.export and torch.export.save"
                )
        elif (named := IN_FILE.fullmatch(spec)) and exists(named["file"]):
            source = open_factory(spec, load_name(named["file"], named["name"]), given)
        elif FACTORY.fullmatch(spec):
            source = open_factory(spec, load_factory(spec), given)
        else:
            raise MlircError(
                f"{shorten(spec)}: no such file or directory, and no package.module:function or FILE.py:function"
            )
        source.sizes = source.sizes or size_request(given.values())
        source.scalars = source.scalars or [name for name, about in given.items() if about.scalar]
        return source if dtype is None else _cast(source, spec, dtype)


def _float_type(dtype: str) -> torch.dtype:
    to = dtype_of(dtype)
    if not to.is_floating_point:
        raise MlircError(f"--dtype {dtype}: a model computes in a float type: f32, bf16, f16 or f64")
    return to


def _cast(source: SourceModel, spec: str, dtype: str) -> SourceModel:
    to = _float_type(dtype)
    if source.module is None or source.kind != "module":
        raise MlircError(f"{spec}: --dtype {dtype} is not possible: the archive fixes the dtypes of its operations")
    module = source.module.to(to)
    tensors = [t.to(to) if t.is_floating_point() else t for t in source.example_inputs()]
    source.args, source.kwargs = source.bind(tensors)
    source.weights = dict(module.state_dict())
    assert all(isinstance(w, torch.Tensor) for w in source.weights.values())
    return source
