"""TorchScript archives: their code read as text and their pickles as data, before PyTorch compiles or loads either.

Loading runs `__setstate__` methods, and conversion runs operators. So the code may call only operators that are known
to be harmless. It is split into words by a lexer for just what PyTorch's printer writes, so that nothing can look like
a comment here and be code there.
"""

from __future__ import annotations

import ast
import re

from mlirc.errors import MlircError
from mlirc.files.opening import shorten
from mlirc.frontend.judge.archive import Archive, damaged, not_judged
from mlirc.frontend.judge.operators import NAMESPACES, PRIM, script_names
from mlirc.frontend.judge.pickles import Contents, check_tensors, scan_pickle

_CODE_LIMIT = 64 << 20
_TOKEN = re.compile(
    r"""(?P<space>[ \n]+)
    |(?P<number>(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?j?)
    |(?P<name>[A-Za-z_][A-Za-z0-9_]*)(?!["'])
    |(?P<string>"(?:[^"\\\n]|\\[^\n])*")(?!")
    |(?P<other>->|\*\*|//|<<|>>|[-+*/%&|^~<>=!]=?|[()\[\]{}.,:@])""",
    re.VERBOSE | re.ASCII,
)
_MEMBERS = re.compile(
    r"""(data|constants|attributes|traced_inputs)(\.pkl|/\d+) | code/[\w./<>$+-]+\.py(\.debug_pkl)?
    | version | byteorder | \.data/(version|serialization_id) | \.format_version | \.storage_alignment | extra/.*""",
    re.VERBOSE,
)
_GLOBALS = re.compile(
    r"""collections\.OrderedDict | torch\.(\w+Storage|device) | torch\._utils\._rebuild_(tensor|tensor_v2|parameter)
    | torch\.jit\._pickle\.(build_(int|double|bool|tensor)list|restore_type_tag)
    | __torch__\.(?!torch\.classes)[\w.]+""",
    re.VERBOSE | re.ASCII,
)


def is_torchscript(names: list[str]) -> bool:
    """Whether an archive with these members is a TorchScript one."""
    inner = [name.split("/", 1)[-1] for name in names]
    return "constants.pkl" in inner and any(name.startswith("code/") for name in inner)


def judge_torchscript(archive: Archive, trusted: bool) -> bool:
    """Raises MlircError for an archive that is damaged, and, unless it is `trusted`, for one that could do more than
    compute. Nothing in it runs. Returns whether the code has loops."""
    loops = False
    root = archive.names[0].split("/", 1)[0] + "/"
    for name in archive.names:
        if not name.startswith(root) or not _MEMBERS.fullmatch(name[len(root) :]):
            raise MlircError(f"{archive.what}: '{shorten(name)}' has no place in a TorchScript archive")
    for name in archive.names:
        if name.endswith(".pkl") and "/code/" not in name:
            contents = scan_pickle(archive.read(name, _CODE_LIMIT), f"{archive.what}, in its {shorten(name)}")
            if name != root + "traced_inputs.pkl":  # PyTorch writes their sizes without their data, and reads neither
                check_tensors(archive, contents, name.removesuffix(".pkl") + "/")
            if not trusted:
                _judge_globals(archive.what, contents)
        elif name.endswith(".debug_pkl"):
            scan_pickle(archive.read(name, _CODE_LIMIT), f"{archive.what}, in its {shorten(name)}")
        elif name.endswith(".py") and not trusted:
            loops |= _judge_code(archive.read(name, _CODE_LIMIT), archive.what, name)
    archive.check()
    return loops


def _judge_globals(what: str, contents: Contents) -> None:
    for name in sorted(contents.globals):
        if not _GLOBALS.fullmatch(name):
            raise not_judged(what, f"it makes an object of {ascii(shorten(name, 80))}")


def _judge_code(data: bytearray, what: str, member: str) -> bool:
    """Raises NotJudged for code that is not known to be harmless; returns whether it has loops."""
    words = _split(data, what, member)
    good, bad = script_names()
    for i, word in enumerate(words):
        before = words[i - 1] if i else ""
        after = words[i + 1 : i + 5]
        if word == "__setstate__" and before == "def":
            raise not_judged(what, "its code has a __setstate__ method, which loading runs")
        if word.startswith("rpc_") or (word == "classes" and before == "."):
            raise not_judged(what, f"its code uses {word}")
        if (before == "." and word in bad) or (word.startswith('"') and _text(word) in bad):
            raise not_judged(what, f"its code calls {word}")
        if word in ("torch", "ops") and before != "." and after[:1] != ["."]:
            raise not_judged(what, f"its code uses {word} as a value")
        if word == "torch" and before != "." and after[:1] == ["."] and after[1] not in good:
            raise not_judged(what, f"its code calls torch.{after[1]}")
        if word == "ops" and before != "." and after[:1] == ["."]:
            _judge_operator(after, good, what)
    return "while" in words or "for" in words


def _judge_operator(after: list[str], good: frozenset[str], what: str) -> None:
    """`after` are the words that follow `ops`: a namespace and an operator."""
    import torch

    from mlirc.frontend.judge.operators import harmless

    namespace, name = (after[1], after[3]) if len(after) == 4 and after[2] == "." else ("", "")
    known = name in (good if namespace == "aten" else PRIM if namespace == "prim" else ())
    if namespace in NAMESPACES - {"aten"}:
        schemas = [s for s in torch._C._jit_get_all_schemas() if s.name == f"{namespace}::{name}"]
        known = bool(schemas) and all(map(harmless, schemas))
    if not known:
        raise not_judged(what, f"its code calls {'.'.join(['ops', *after[1::2]])}")


def _split(data: bytearray, what: str, member: str) -> list[str]:
    """The words of a file of code; raises MlircError for what PyTorch's printer does not write."""
    try:
        text = data.decode()
    except UnicodeDecodeError as e:
        raise damaged(what, f"{shorten(member)} is not text") from e
    words, at = [], 0
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            line = text.count("\n", 0, at) + 1
            raise damaged(what, f"line {line} of {shorten(member)} is not as PyTorch writes it")
        if match.lastgroup != "space":
            words.append(match.group())
        at = match.end()
    return words


def _text(word: str) -> str:
    """What a string literal says: an operator can be named by one, for `getattr`."""
    try:
        return str(ast.literal_eval(word))
    except (ValueError, SyntaxError):
        return "save"  # no telling: as one that is refused
