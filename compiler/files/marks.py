"""Marks: how mlirc tells a file of its own, which it may replace, from any other, which it never touches.

Text carries a comment on its last line (so that lines keep their numbers), safetensors a line of metadata, .npy a
header padded further than NumPy pads one, .npz a comment of the zip archive, JSON a first entry. Other programs read
all of them as ever.
"""

from __future__ import annotations

import json
import os
import re
import stat
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

_COMMENTS = {".mlir": "//", ".ll": ";", ".py": "#", ".ptx": "//"}
_NPY_HEADER = 1024  # bytes; NumPy's own headers end at the next multiple of 64
JSON_MARK = {"made by": "mlirc"}  # the first entry of a JSON file
ZIP_COMMENT = b"mlirc"
METADATA = {"made by": "mlirc"}  # of a safetensors file, what it begins with
_PAGE = "<!-- made by mlirc -->\n"
_LAST_LINE = re.compile(
    rb"(?:^|\n)(?:(?:%s) mlirc: [^\n]*|%s)\n?\Z" % ("|".join({*_COMMENTS.values()}).encode(), _PAGE.strip().encode())
)


def marked_text(path: Path, text: str, what: str) -> str:
    """A text file's content with its mark: a last line that says `what` it is, by the comments of the file's kind."""
    if text.startswith("//mlirc: "):
        return text  # a PTX file: the plan is its mark
    text = text if not text or text.endswith("\n") else text + "\n"
    return text + (_PAGE if path.suffix == ".md" else f"{_COMMENTS.get(path.suffix, '//')} mlirc: {what}\n")


def marked_json(data: Mapping[str, Any]) -> str:
    """A JSON file's text, with its mark as the first entry."""
    return json.dumps({**JSON_MARK, **data}, indent=1) + "\n"


def write_npy(file: IO[bytes], array: np.ndarray) -> None:
    """Writes a .npy file's content, with its mark (in NumPy's format 1.0 a header is as long as one likes)."""
    import numpy as np  # here, because the programs that write text do without

    array = np.asarray(array, order="C")
    header = repr(np.lib.format.header_data_from_array_1_0(array)).encode().ljust(_NPY_HEADER - 11) + b"\n"
    file.write(b"\x93NUMPY\x01\0" + len(header).to_bytes(2, "little") + header)
    file.write(array.reshape(-1).view(np.uint8).data)


def write_npz(file: IO[bytes], arrays: Mapping[str, np.ndarray]) -> None:
    """Writes a .npz file's content, with its mark."""
    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                write_npy(member, array)
        archive.comment = ZIP_COMMENT


def is_ours(path: Path) -> bool:
    """Whether a regular file carries a mark, or is empty, so that nothing is lost with it."""
    try:
        with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            about = os.fstat(file.fileno())
            if not stat.S_ISREG(about.st_mode):
                return False
            head = file.read(_NPY_HEADER)
            file.seek(max(0, about.st_size - 256))
            tail = file.read()
    except OSError:
        return False
    is_text = head.startswith(b"//mlirc: ") or _LAST_LINE.search(tail)
    return not head or bool(is_text) or _is_marked_data(head, tail)


def _is_marked_data(head: bytes, tail: bytes) -> bool:
    if head.startswith(b"\x93NUMPY"):
        used = len(head.rstrip())
        return (
            len(head) == _NPY_HEADER and head.endswith(b"\n") and b"\n" not in head[10:-1] and _NPY_HEADER - used > 65
        )
    if head.startswith(b"PK"):
        return tail[-27:].startswith(b"PK\x05\x06") and tail.endswith(b"\x05\0mlirc")
    if head[8:9] == b"{":
        return head[8:].startswith(b'{"__metadata__":' + _compact(METADATA)[:-1])
    return "".join(head[:64].decode(errors="replace").split()).startswith('{"madeby":"mlirc"')


def _compact(data: Mapping[str, str]) -> bytes:
    return json.dumps(data, separators=(",", ":")).encode()
