"""torch.export archives, read without PyTorch's own loader, which unpickles some of their members.

Only what is needed is read, as data: the graph from JSON (`judge/program.py`), weights and constants as bytes of the
sizes that they should have, and example inputs as a pickle of tensors and plain containers. PyTorch then makes the
exported program of these. Formats: the archive that torch.export.save writes since PyTorch 2.8, and the older one,
whose members lie at the top.
"""

from __future__ import annotations

import importlib
import io
import math
import warnings
from collections.abc import Mapping
from typing import Any

import torch

from mlirc.errors import MlircError
from mlirc.files.opening import parse_json, shorten
from mlirc.frontend.judge.archive import Archive, damaged, not_judged
from mlirc.frontend.judge.pickles import check_extent, check_tensors, scan_pickle
from mlirc.frontend.judge.program import judge_program
from mlirc.frontend.judge.schema_types import wrong_type

_JSON_LIMIT = 512 << 20
_MODEL = "models/model.json"
_OLD_MODEL = "serialized_exported_program.json"


def is_exported(names: list[str]) -> bool:
    """Whether an archive with these members is one of torch.export."""
    return _OLD_MODEL in names or any(name.split("/", 1)[-1] == _MODEL for name in names)


def read_exported(archive: Archive) -> Any:
    """The exported program of an archive; nothing in the archive runs. Raises MlircError for one that is damaged, and
    NotJudged for one that holds what cannot be read without running it."""
    old = _OLD_MODEL in archive.names
    reader = _Reader(archive, "" if old else archive.names[0].split("/", 1)[0] + "/")
    text = reader.read(_OLD_MODEL if old else _MODEL, _JSON_LIMIT)
    if b"transformers.modeling_outputs" in text:  # registers the containers of its outputs with PyTorch
        importlib.import_module("transformers.modeling_outputs")
    program = judge_program(text, archive.what)
    if old:
        weights = reader.pickled("serialized_state_dict.pt", dict)
        constants = reader.pickled("serialized_constants.pt", dict)
        example = reader.pickled("serialized_example_inputs.pt", tuple)
    else:
        weights = reader.tensors("weights", "weight_")
        constants = reader.tensors("constants", "tensor_")
        example = reader.pickled("data/sample_inputs/model.pt", tuple)
    archive.check()
    return _deserialize(archive.what, program, weights or {}, constants or {}, example)


def _deserialize(what: str, program: Any, weights: dict, constants: dict, example: Any) -> Any:
    from torch._export.serde.serialize import ExportedProgramDeserializer

    _check_inputs(what, program, weights, constants)
    try:
        return ExportedProgramDeserializer().deserialize(program, weights, constants, example)
    except Exception as e:
        raise MlircError(f"{what}: the torch.export archive cannot be loaded: {_reason(e)}") from e


def _reason(error: Exception) -> str:
    """PyTorch puts a whole traceback into the message; its last line says why."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {shorten(lines[-1] if lines else 'no message', 300)}"


def _check_inputs(what: str, program: Any, weights: Mapping[str, Any], constants: Mapping[str, Any]) -> None:
    """Every weight that the graph takes is there, and has the type and shape that the graph was made for."""
    module = program.graph_module
    for spec in module.signature.input_specs:
        if spec.type not in ("parameter", "buffer", "tensor_constant"):
            continue
        name = getattr(spec.value, f"{spec.type}_name")
        is_stored = spec.type == "parameter" or (spec.type == "buffer" and spec.value.persistent)
        found = (weights if is_stored else constants).get(name)
        meta = module.graph.tensor_values.get(spec.value.arg.name)
        if not isinstance(found, torch.Tensor) or meta is None:
            raise damaged(what, f"it has no '{shorten(name)}'")
        sizes = [size.value if size.type == "as_int" else None for size in meta.sizes]
        fits = len(sizes) == found.dim() and all(s in (None, n) for s, n in zip(sizes, found.shape, strict=True))
        if not fits or _dtype(meta, what) != found.dtype:
            raise damaged(what, f"'{shorten(name)}' is {list(found.shape)} of {found.dtype}, the graph takes {sizes}")


def _dtype(meta: Any, what: str) -> torch.dtype:
    from torch._export.serde.serialize import _SERIALIZE_TO_TORCH_DTYPE

    if meta.dtype not in _SERIALIZE_TO_TORCH_DTYPE:
        raise damaged(what, f"a tensor has the unknown type {meta.dtype}")
    return _SERIALIZE_TO_TORCH_DTYPE[meta.dtype]


class _Reader:
    """The members of one archive, whose names start with `root`."""

    def __init__(self, archive: Archive, root: str):
        self.archive, self.root, self.what = archive, root, archive.what
        order = root + "byteorder"
        if order in archive.names and archive.read(order, 64) != b"little":
            raise MlircError(f"{self.what}: holds numbers of the other byte order: save it again on this machine")

    def read(self, name: str, limit: int) -> bytearray:
        return self.archive.read(self.root + name, limit)

    def pickled(self, name: str, wanted: type) -> Any:
        """What a pickle of tensors holds, or None for an empty or missing one; code in it is refused, not run."""
        data = self.read(name, 1 << 62) if self.root + name in self.archive.names else b""
        if not data:
            return None
        with Archive(io.BytesIO(data), f"{self.what}, in its {name}") as inner:
            root = inner.names[0].split("/", 1)[0] + "/" if inner.names else ""
            contents = scan_pickle(inner.read(root + "data.pkl"), inner.what)
            check_tensors(inner, contents, root + "data/")
            inner.check()
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                found = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
        except Exception as e:
            named = ", ".join(sorted(contents.globals)[:6])
            raise not_judged(self.what, f"its {name} is a pickle of more than tensors (it wants {named})") from e
        if not isinstance(found, wanted):
            raise damaged(self.what, f"its {name} holds a {type(found).__name__}")
        return found

    def tensors(self, folder: str, prefix: str) -> dict[str, Any] | None:
        """The tensors of `data/weights` or `data/constants`, by name; those that share data in the file share it."""
        config = f"data/{folder}/model_{folder}_config.json"
        if self.root + config not in self.archive.names:  # as PyTorch wrote it until 2.8
            return self.pickled(f"data/{folder}/model.pt", dict)
        from torch._export.serde import schema
        from torch._export.serde.serialize import _dict_to_dataclass

        listed = parse_json(self.read(config, _JSON_LIMIT), f"{self.what}: its {config}")
        try:
            read = _dict_to_dataclass(schema.PayloadConfig, listed)
            if wrong := wrong_type(read, schema.PayloadConfig):
                raise damaged(self.what, f"its {config}: {wrong}")
            payloads = read.config
            loaded: dict[str, torch.Tensor] = {}
            return {name: self._tensor(name, payload, folder, prefix, loaded) for name, payload in payloads.items()}
        except MlircError:
            raise
        except Exception as e:
            raise damaged(self.what, f"its {config} is damaged ({type(e).__name__}: {e})") from e

    def _tensor(self, name: str, payload: Any, folder: str, prefix: str, loaded: dict[str, torch.Tensor]) -> Any:
        path, meta = payload.path_name, payload.tensor_meta
        if payload.use_pickle or meta is None or not (path.startswith(prefix) and path[len(prefix) :].isdecimal()):
            raise not_judged(self.what, f"'{shorten(name)}' is a pickled object, not a tensor")
        dtype = _dtype(meta, self.what)
        sizes, strides = ([n.as_int for n in ns] for ns in (meta.sizes, meta.strides))
        offset = meta.storage_offset.as_int
        member = f"{self.root}data/{folder}/{path}"
        if member not in self.archive.names:
            raise damaged(self.what, f"it has no data of '{shorten(name)}'")
        count, rest = divmod(self.archive.size(member), dtype.itemsize)
        check_extent(f"{self.what}: '{shorten(name)}'", 0 if rest else count, offset, sizes, strides)
        if path not in loaded:
            data = self.archive.read(member)
            loaded[path] = torch.frombuffer(data, dtype=torch.uint8) if data else torch.empty(0, dtype=torch.uint8)
        empty = math.prod(sizes) == 0
        tensor = (
            torch.empty(sizes, dtype=dtype) if empty else loaded[path].view(dtype).as_strided(sizes, strides, offset)
        )
        return torch.nn.Parameter(tensor, requires_grad=meta.requires_grad) if payload.is_param else tensor
