"""The levels that mlirc keeps beside a compiled model: read, and told from those of another model or compilation."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path

from mlirc import mlir
from mlirc.errors import MlircError
from mlirc.files.checksums import digest_of
from mlirc.files.opening import read_text
from mlirc.host.level_code import LevelCode, level_code
from mlirc.ir import levels
from mlirc.ir.text import judge_text, require_level
from mlirc.mlir import ir
from mlirc.runtime.plan import Plan, TensorSpec
from mlirc.runtime.plan_file import identity

_MARK = re.compile(r"^// mlirc: level (\w+) of ([0-9a-f]{64}) sum ([0-9a-f]{64})\n\Z", flags=re.MULTILINE)


def level_mark(level: str, text: str, ptx: str) -> str:
    """What the last line of a level's file says, behind `text`: which level it is, of which PTX file (its text), and a
    checksum."""
    end = text.removesuffix("\n")
    return f"level {level} of {identity(ptx)} sum {digest_of(end)}"


class Levels:
    """The levels of one compiled model. `read` gives a level's text, `name` what errors and reports call it; `owner` is
    the identity of the PTX file (`plan_file.identity`), "" where it is not known; `judge` raises MlircError for a text
    (given its name, too) that must not be parsed. With `verify` a text must be as `level_mark` says.

    A file may be edited, and still belongs to its model; what carries the mark of another one, or whose `@main` does
    not fit the plan, is refused."""

    def __init__(
        self,
        plan: Plan,
        read: Callable[[str], str],
        name: Callable[[str], str],
        owner: str = "",
        judge: Callable[[str, str], object] = lambda *_: None,
        verify: bool = False,
    ):
        self.plan, self._read, self.name, self._owner = plan, read, name, owner
        self._judge, self._verify = judge, verify

    @staticmethod
    def beside(path: Path, plan: Plan, verify: bool = True) -> Levels:
        """Those in the folder beside a PTX file, as mlirc wrote them (`verify`) or edited since."""
        folder = path.with_suffix(".levels")

        def read(level: str) -> str:
            require_level(folder / f"{level}.mlir")
            return read_text(folder / f"{level}.mlir")

        try:
            with path.open() as file:
                owner = identity(file.readline())
        except (OSError, UnicodeDecodeError):
            owner = ""
        return Levels(plan, read, lambda level: str(folder / f"{level}.mlir"), owner, judge_text, verify)

    @staticmethod
    def of(texts: Mapping[str, str], plan: Plan, owner: str = "") -> Levels:
        """Those of a compilation in memory, by name."""

        def read(level: str) -> str:
            if level not in texts:
                raise MlircError(f"{plan.model}: there is no level {level}: the compilation started below it")
            return texts[level]

        return Levels(plan, read, lambda level: f"{level}.mlir", owner)

    def text(self, level: str) -> str:
        """A level's text; raises MlircError where it is not there, not this model's, or must not be parsed."""
        text = self._own_text(level)
        self._judge(text, self.name(level))
        return text

    def code(self, level: str, source: str, starts: Callable[[], object] = object) -> LevelCode:
        """A level above `gpu` compiled for this processor, maybe earlier; else `starts` is called first. Errors call
        the text `source`. Raises MlircError as `module`."""
        text = _MARK.sub("", self._own_text(level)).rstrip()
        return level_code(text, lambda: self.module(level), source, self._owner, starts)

    def _own_text(self, level: str) -> str:
        text, name = self._read(level), self.name(level)
        mark = _MARK.search(text)
        if mark and self._owner and mark[2] != self._owner:
            raise MlircError(
                f"{name}: belongs to another compiled model, or to an earlier compilation of this one: "
                "compile the model again"
            )
        if mark and mark[1] != level:
            raise MlircError(f"{name}: holds level {mark[1]}: compile the model again")
        if self._verify and not (mark and mark[3] == digest_of(text[: mark.start()].removesuffix("\n"))):
            raise MlircError(
                f"{name}: is not as mlirc wrote it: compile the model again, or, if it was edited on purpose, leave "
                "out checksums (--no-verify, verify=False)"
            )
        return text

    def module(self, level: str) -> ir.Module:
        """A level above `gpu` as a module whose `@main` fits the plan; raises MlircError as `text` does."""
        module = mlir.parse(self.text(level), self.name(level))
        self.check(module, level)
        return module

    def check(self, module: ir.Module, level: str) -> None:
        """Raises MlircError unless the arguments and results of `@main` are those of the plan."""
        name = self.name(level)
        main = levels.functions(module).get("main")
        if main is None:
            raise MlircError(f"{name}: the level has no function @main")
        specs = {spec.name: spec for spec in (*self.plan.inputs, *self.plan.weights)}
        for argument, type_ in zip(levels.argument_names(main), main.type.inputs, strict=True):
            if argument not in specs:
                raise MlircError(f"{name}: argument '{argument}' is not in the model's plan: compile the model again")
            _check_type(type_, specs[argument], name)
        try:
            places = levels.main_results(main, self.plan)
        except MlircError as e:
            raise MlircError(f"{name}: {e}") from e
        results = self.plan.results
        for type_, place in zip(main.type.results, places, strict=True):
            _check_type(type_, results[place], name)


def without_bodies(module: ir.Module) -> bool:
    """Whether kernels are only declared, as at the levels above one that compilation started from."""
    return any(function.is_external for function in levels.kernels(module).values())


def _check_type(type_: ir.Type, spec: TensorSpec, where: str) -> None:
    element = re.sub(r"^u(\d+)$", r"i\1", spec.dtype)  # MLIR's integers have no sign
    fits = isinstance(type_, ir.RankedTensorType) and str(type_.element_type) == element
    if not fits or tuple(type_.shape) != spec.shape:
        raise MlircError(
            f"{where}: {spec.kind} '{spec.name}' is a {type_} there, but the model's plan says {spec}: these are the "
            "levels of another model: compile it again"
        )
