"""The folder that carries compiled cases to the machine with the GPU: a manifest, and one small archive per case.

No weights travel (but MiniLM's, trimmed, where a case wants them): the other machine makes them from the case's seed.
"""

from __future__ import annotations

import io
import json
import re
import zipfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mlirc.bench.cases import Case
from mlirc.errors import MlircError
from mlirc.files.marks import ZIP_COMMENT, marked_json
from mlirc.files.outputs import Outputs

FORMAT = 1
MANIFEST = "manifest.json"
MINILM = "minilm.safetensors"
_PTX, _CONSTANTS = "model.ptx", "constants.safetensors"


@dataclass
class Compiled:
    """A compiled case: the PTX file's text and the constants (plan constants and the module's buffers) by name. A model
    that generates has several plans: `others` are the texts of those but `decode` by name."""

    ptx: str
    constants: dict[str, Any]
    others: dict[str, str] = field(default_factory=dict)


def archive_name(case: Case) -> str:
    """The file that holds a case."""
    return re.sub(r"[^A-Za-z0-9._-]", "_", case.name) + ".zip"


def write_compiled(folder: Path, case: Case, compiled: Compiled) -> int:
    """Writes a case's archive; returns its size in bytes."""
    from safetensors.torch import save

    path = folder / archive_name(case)

    def write(temporary: Path) -> None:
        with zipfile.ZipFile(temporary, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
            archive.writestr(_PTX, compiled.ptx)
            for name, text in compiled.others.items():
                archive.writestr(f"{name}.ptx", text)
            archive.writestr(_CONSTANTS, save({k: v.contiguous().clone() for k, v in compiled.constants.items()}))
            archive.comment = ZIP_COMMENT

    with Outputs() as outputs:
        outputs.add(path, write)
    return path.stat().st_size


def read_compiled(folder: Path, case: Case) -> Compiled:
    """Reads a case's archive; raises MlircError when it is missing or damaged."""
    from safetensors.torch import load

    path = folder / archive_name(case)
    try:
        with zipfile.ZipFile(io.BytesIO(path.read_bytes())) as archive:
            names = [n for n in archive.namelist() if n not in (_PTX, _CONSTANTS)]
            others = {n.removesuffix(".ptx"): archive.read(n).decode() for n in names}
            return Compiled(archive.read(_PTX).decode(), load(archive.read(_CONSTANTS)), others)
    except OSError as e:
        raise MlircError(f"{path}: cannot read: {e.strerror}") from e
    except (zipfile.BadZipFile, KeyError, ValueError) as e:
        raise MlircError(f"{path}: damaged ({e}): compile the suite again") from e


@dataclass
class Entry:
    """A case in the manifest: `info` is what the compiling side found out (`compiling.compile_case`)."""

    case: Case
    info: dict[str, Any]


def write_manifest(folder: Path, entries: list[Entry], about: dict[str, Any]) -> None:
    """Writes the manifest; `about` is target, versions, commit and the like."""
    data = {"format": FORMAT, **about, "cases": [{"case": e.case.to_json(), "info": e.info} for e in entries]}
    with Outputs() as outputs:
        outputs.add(folder / MANIFEST, lambda temporary: temporary.write_text(marked_json(data)))


def read_manifest(folder: Path) -> tuple[list[Entry], dict[str, Any]]:
    """The manifest's entries, and what it says about the compilation; raises MlircError when it is not readable."""
    path = folder / MANIFEST
    try:
        data = json.loads(path.read_text())
    except OSError as e:
        raise MlircError(f"{path}: cannot read: {e.strerror}: compile with --compile-only {folder} first") from e
    except ValueError as e:
        raise MlircError(f"{path}: damaged ({e}): compile the suite again") from e
    if data.get("format") != FORMAT:
        raise MlircError(f"{path}: format {data.get('format')}, but this mlirc reads {FORMAT}: compile again")
    data.pop("made by", None)
    entries = [Entry(Case.from_json(c["case"]), c["info"]) for c in data.pop("cases")]
    return entries, data
