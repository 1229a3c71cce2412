"""Operations know the line of the schedule script that made them, down to the `gpu` level and its text."""

from __future__ import annotations

import re

from mlirc import mlir
from mlirc.driver.kernel_build import to_gpu
from mlirc.schedule.places import MARK, annotated, places_by_line, restore, short_place
from mlirc.schedule.registry import Schedules, script_registry
from mlirc.targets import get_target
from support.kernels.check import TARGET, function_name
from support.kernels.payloads import matmul


def gpu_level() -> mlir.ir.Module:
    module = mlir.parse(matmul(33, 40, 50, "f16"))
    tiles, _ = Schedules(["matmul:block_m=32,block_n=32,block_k=16,stages=3"]).schedule_kernel(
        module, get_target(TARGET)
    )
    with mlir.context(), mlir.ir.Location.unknown():
        to_gpu(tiles, function_name(tiles), get_target(TARGET))
    return tiles


def line_of(verb: str) -> str:
    """Where the matmul script calls a verb."""
    with open(script_registry()["matmul"].file) as f:
        numbers = [i for i, line in enumerate(f, 1) if f"{verb}(" in line and "def " not in line]
    return f"scripts/matmul.py:{numbers[-1]}"


def test_the_text_names_the_lines_of_the_script():
    text = annotated(gpu_level())
    places = dict(zip(text.split("\n"), places_by_line(text), strict=True))
    copies = {p for line, p in places.items() if "nvgpu.device_async_copy" in line}
    stores = {p for line, p in places.items() if "vector.store" in line or "memref.store" in line}
    assert copies == {line_of("tile_reduction")}
    assert stores == {line_of("tile_to_blocks")}


def test_a_parsed_text_gets_its_lines_back():
    text = annotated(gpu_level())
    assert MARK in text
    assert annotated(restore(mlir.parse(text), text)) == text
    assert re.sub(rf"\n *{MARK}.*", "", text) == str(mlir.parse(text)).rstrip("\n") + "\n"


def test_short_places():
    assert short_place("some/where/mlirc/scripts/matmul.py:12") == "scripts/matmul.py:12"
    assert short_place("some/where/mine.py:3") == "mine.py:3"


def test_without_lines_of_a_script_an_annotated_text_is_the_text():
    module = mlir.parse(
        """
        func.func @f(%a: i32 loc("a)b"("c(d\\"":3:4)), %b: i32) -> i32 attributes {note = "a loc(x"} {
          %c = "scf.if"(%t) ({
            scf.yield %a : i32
          }, {
            scf.yield %b : i32
          }) : (i1) -> i32 loc(fused["x", callsite("y" at "z":1:2)])
          return %c : i32
        }""".replace("%c =", "%t = arith.constant true\n          %c =")
    )
    assert annotated(module) == str(module)
