"""A generating model as a folder: `generation.json`, a PTX file per plan with its levels, weights, tokenizer."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from mlirc.errors import MlircError, one_line
from mlirc.files.checksums import Checksum, check_files, checksums, digest_of
from mlirc.files.marks import JSON_MARK, is_ours, marked_json, marked_text
from mlirc.files.opening import check_inside, open_regular, read_text
from mlirc.files.temporary import new_folder, replace_folder, turn
from mlirc.generate.sizes import Sizes, Source
from mlirc.generate.special_tokens import CONFIG, kind_of, read_object
from mlirc.generate.tokenizer import FILES as TOKENIZER_FILES
from mlirc.version import __version__

VERSION = 5
ABOUT, WEIGHTS = "generation.json", "model.safetensors"
_TOKENIZER_LIMIT = 256 << 20
_ABOUT_LIMIT = 16 << 20
_LIMIT = 1 << 24
# `decode-greedy` was a plan's name in version 2, in whose place a new one may be written.
_NAMES = re.compile(r"(decode|sample|decode-greedy|(prefill|encode)-[0-9]{1,8})\.(ptx|levels)")


@dataclass(frozen=True)
class About:
    """What an artifact says of itself: the model's name, its transformers class, the cache's dtype, the target, the
    engine's sizes, the tokens that end a text, notes for the user, checksums of the folder's other files, and texts in
    front of which a generation ends."""

    name: str
    architecture: str
    dtype: str
    target: str
    sizes: Sizes
    eos: tuple[int, ...] = ()
    notes: tuple[str, ...] = ()
    files: Mapping[str, Checksum] = field(default_factory=dict)
    stops: tuple[str, ...] = ()

    @property
    def plans(self) -> list[str]:
        """The plans' names."""
        return self.sizes.plans


def read_about(folder: Path) -> About:
    """What an artifact's folder says of itself; raises MlircError where it is none, and for links out of it."""
    path = folder / ABOUT
    if not path.is_file():
        what = "a compiled model, which does not generate" if folder.suffix == ".ptx" else "no generating model"
        raise MlircError(f"{folder}: {what}: it has no {ABOUT}: make one with compile_generation")
    try:
        found = json.loads(read_text(path, limit=_ABOUT_LIMIT))
        _is_a(dict, found)
        if found["version"] != VERSION:
            shown = one_line(str(found["version"])[:20])
            raise MlircError(f"{path}: version {shown}, but this mlirc reads {VERSION}: compile the model again")
        counts = {n: _count(found[n]) for n in ("slots", "context", "page_size", "pages", "vocabulary")}
        source = None if found.get("source") is None else _source(found["source"], counts["vocabulary"])
        paged = found.get("paged", True)
        if type(paged) is not bool or (source is not None and paged):
            raise ValueError("whether all lies in pages")
        chunks = tuple(_count(c) for c in _is_a(list, found["chunks"]))
        sizes = Sizes(chunks=chunks, source=source, paged=paged, **counts)
        words = {n: _word(found[n]) for n in ("name", "architecture", "dtype", "target")}
        eos = tuple(_count(t, 0, sizes.vocabulary - 1) for t in _is_a(list, found["eos"]))
        notes = tuple(_word(note) for note in _is_a(list, found["notes"]))
        files = {_word(k): Checksum.from_json(v) for k, v in _is_a(dict, found["files"]).items()}
        stops = tuple(_stop(text) for text in _is_a(list, found.get("stops", [])))
        about = About(sizes=sizes, eos=eos, notes=notes, files=files, stops=stops, **words)
    except (KeyError, TypeError, ValueError, RecursionError) as e:
        raise MlircError(
            f"{path}: damaged ({type(e).__name__}: {one_line(str(e)[:80])}): compile the model again"
        ) from e
    if chunks[:1] != (1,) or list(chunks) != sorted(set(chunks)) or chunks[-1] > sizes.context:
        raise MlircError(f"{path}: damaged (its chunks): compile the model again")
    if sizes.pages <= sizes.pages_each:
        raise MlircError(f"{path}: damaged (its pages): compile the model again")
    if found["sha256"] != _digest(found):
        raise MlircError(f"{path}: damaged (its checksum does not match): compile the model again")
    _check_links(folder, [ABOUT, WEIGHTS, *(f"{name}.{end}" for name in about.plans for end in ("ptx", "levels"))])
    return about


def check_model(folder: Path, about: About, levels: bool) -> None:
    """Raises MlircError where plans, weights, or (with `levels`) the plans' levels are damaged or another model's."""
    names = [WEIGHTS, *(f"{plan}.ptx" for plan in about.plans)]
    names += [name for name in about.files if levels and name.partition("/")[0].endswith(".levels")]
    check_files(folder, about.files, names, "compile the model again")


def check_tokenizer(folder: Path, about: About) -> None:
    """Raises MlircError where the folder's tokenizer is not the one that was written with it."""
    names = [n for n in TOKENIZER_FILES if n in about.files or os.path.lexists(folder / n)]
    check_files(folder, about.files, names, "for a tokenizer of your own, name its folder (--tokenizer)")


def _check_links(folder: Path, names: list[str]) -> None:
    """Raises MlircError for files that are links out of the folder, and for levels in a folder that is a link."""
    for path in (folder / name for name in names):
        if path.is_dir() and path.is_symlink():
            raise MlircError(f"{path}: a link to a folder: copy the folder there")
        for file in path.iterdir() if path.is_dir() else [path]:
            if file.is_symlink():
                check_inside(folder, file)


def _source(found: Any, vocabulary: int) -> Source:
    def token(value: Any) -> int:
        return _count(value, 0, vocabulary - 1)

    def named(name: str) -> tuple[tuple[str, int], ...]:
        return tuple((_word(k), token(v)) for k, v in _is_a(dict, found[name]).items())

    _is_a(dict, found)
    lengths = tuple(_count(n) for n in _is_a(list, found["lengths"]))
    if found["kind"] not in ("tokens", "features") or not lengths or list(lengths) != sorted(set(lengths)):
        raise ValueError("its source")
    start = tuple(None if t is None else token(t) for t in _is_a(list, found["start"]))
    if not start or start[0] is None or None in start[2:]:
        raise ValueError("what its decoder begins with")
    plain = None if found["plain"] is None else token(found["plain"])
    bins = _count(found["bins"]) if found["kind"] == "features" else _count(found["bins"], 0, 0)
    last = None if found.get("last") is None else token(found["last"])
    return Source(found["kind"], lengths, bins, start, named("languages"), named("tasks"), plain, last)


def _is_a(kind: type, value: Any) -> Any:
    if type(value) is not kind:
        raise ValueError(f"{str(value)[:20]} is no JSON {'object' if kind is dict else 'array'}")
    return value


def _count(value: Any, least: int = 1, most: int = _LIMIT) -> int:
    if type(value) is not int or not least <= value <= most:
        raise ValueError(f"{str(value)[:20]} is no number from {least} to {most}")
    return value


def _word(value: Any) -> str:
    if type(value) is not str or len(value) > 1000 or not value.isprintable():
        raise ValueError("a name is no printable text")
    return value


def _stop(value: Any) -> str:
    if type(value) is not str or not 0 < len(value) <= 1000:
        raise ValueError("a stop string is no text, or empty")
    return value


def check_output(folder: Path) -> None:
    """Raises MlircError where an artifact could not be written as `folder`: something else has the name."""
    if os.path.islink(folder) or (folder.exists() and not folder.is_dir()):
        raise MlircError(f"cannot write {folder}: it is there, and no folder: give another name")
    if not folder.parent.is_dir():
        raise MlircError(f"cannot write {folder}: folder {folder.parent} does not exist: create it first")
    names = os.listdir(folder) if folder.is_dir() else []
    ours = ABOUT in names and is_ours(folder / ABOUT)
    others = [n for n in names if not (n in (ABOUT, WEIGHTS, *TOKENIZER_FILES) or _NAMES.fullmatch(n))]
    if names and (others or not ours):
        raise MlircError(f"cannot write {folder}: it holds files that mlirc did not write: give another name")


def write_artifact(
    folder: Path,
    about: About,
    plans: Mapping[str, tuple[str, Mapping[str, str]]],
    tensors: Mapping[str, Any],
    source: Path | None,
) -> None:
    """Writes the folder, whole or not at all; one of an earlier compilation goes away. `plans`: the PTX file's text,
    and texts by level; `source`: the Hugging Face folder whose tokenizer is copied."""
    from mlirc.frontend.weights import weights_writer
    from mlirc.host.level_files import level_mark

    check_output(folder)
    try:
        held = new_folder(folder)
    except OSError as e:
        raise MlircError(f"cannot write {folder}: {e.strerror or e}") from e
    made = held.path
    try:
        for name, (ptx, levels) in plans.items():
            (made / f"{name}.ptx").write_text(ptx, encoding="utf-8")
            (made / f"{name}.levels").mkdir()
            for level, text in levels.items():
                path = made / f"{name}.levels" / f"{level}.mlir"
                path.write_text(marked_text(path, text, level_mark(level, text, ptx)), encoding="utf-8")
        weights_writer(tensors)(made / WEIGHTS)
        if source is not None:
            _copy_tokenizer(source, made)
        files = checksums(made, sorted(str(p.relative_to(made)) for p in made.rglob("*") if p.is_file()))
        (made / ABOUT).write_text(marked_json(as_json(replace(about, files=files))), encoding="utf-8")
        _permit(made)
        with turn(folder):
            replace_folder(made, folder)
    except OSError as e:
        raise MlircError(f"cannot write {folder}: {e.strerror or e}") from e
    finally:
        shutil.rmtree(made, ignore_errors=True)
        held.close()


def as_json(about: About) -> dict[str, Any]:
    """What `read_about` reads, as JSON."""
    sizes = about.sizes
    made = {
        "version": VERSION, "mlirc": __version__, "name": about.name, "architecture": about.architecture,
        "dtype": about.dtype, "target": about.target, "slots": sizes.slots, "context": sizes.context,
        "page_size": sizes.page_size, "pages": sizes.pages, "chunks": list(sizes.chunks),
        "vocabulary": sizes.vocabulary, "eos": list(about.eos), "notes": list(about.notes),
        "paged": sizes.paged, "source": None if sizes.source is None else _json_of_source(sizes.source),
        **({"stops": list(about.stops)} if about.stops else {}),
        "files": {name: checksum.as_json() for name, checksum in about.files.items()},
    }  # fmt: skip
    return {**made, "sha256": _digest(made)}


def _digest(found: Mapping[str, Any]) -> str:
    """A checksum of all entries but itself and the mark."""
    return digest_of(json.dumps({k: v for k, v in found.items() if k not in (*JSON_MARK, "sha256")}, sort_keys=True))


def _json_of_source(source: Source) -> dict[str, Any]:
    return {**vars(source), "languages": dict(source.languages), "tasks": dict(source.tasks)}


def _copy_tokenizer(source: Path, target: Path) -> None:
    """Copies the files that a tokenizer consists of; links that lead out of the folder are refused."""
    for name in TOKENIZER_FILES:
        path = source / name
        if not os.path.lexists(path):
            continue
        check_inside(source, path)
        with open_regular(path) as file:
            data = file.read(_TOKENIZER_LIMIT + 1)
        if len(data) > _TOKENIZER_LIMIT:
            raise MlircError(f"{path}: is larger than {_TOKENIZER_LIMIT >> 20} MiB, which is no tokenizer")
        (target / name).write_bytes(data)
    config = read_object(source, CONFIG)
    kind, chats = kind_of(source, config), "chat_template" in config or (target / "chat_template.jinja").exists()
    if kind is not None and chats and "tokenizer_class" not in config:  # whose template may write the class's tokens
        (target / CONFIG).write_text(json.dumps({**config, "model_type": kind}), encoding="utf-8")


def _permit(folder: Path) -> None:
    """What the umask leaves of the usual permissions: a temporary folder has none for others."""
    mask = os.umask(0)
    os.umask(mask)
    os.chmod(folder, 0o777 & ~mask)
