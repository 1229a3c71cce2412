"""A kernel of the user's own, as far as it is like a model from PyTorch: by its reference."""

from __future__ import annotations

from mlirc.frontend.importer import ImportedModel
from mlirc.frontend.inputs import dtype_name
from mlirc.frontend.source import SourceModel


def kernel_reference(source: SourceModel) -> ImportedModel:
    """A kernel's reference as what a model from PyTorch has: what results are compared with."""
    assert source.given is not None
    inputs = [(s.name, dtype_name(s.dtype), s.shape) for s in source.input_specs()] if source.args else []
    return ImportedModel(source.name, source.given.module, {}, {}, inputs, [], source.reference, source)
