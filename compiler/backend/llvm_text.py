"""LLVM IR text of the bindings' LLVM (24) as the text that llvmlite's LLVM (22) reads.

The two spell floating-point constants differently: the newer prints the shortest decimal, `f0x` hexadecimal in the
type's own width, `+inf` and `+nan(0x..)`; the older takes only exact decimals and its own hexadecimal (LLVM language
reference, "Simple Constants"). Every constant is rewritten as the older one's hexadecimal, which is exact. Tensor
copies that reduce are one intrinsic with the kind as an argument in the newer, one per kind in the older.
"""

from __future__ import annotations

import re
import struct

import numpy as np

_TOKEN = re.compile(
    r"(?<![\w.%@$\"])(?:(?P<type>half|bfloat|float|double)\b"
    r"|(?P<number>f0x[0-9A-Fa-f]+|[+-]inf\b|[+-](?:qnan|s?nan\(0x[0-9A-Fa-f]+\))|[+-]?\d+\.\d+(?:e[+-]?\d+)?))"
)
_MAYBE = re.compile(r"\d\.\d|f0x|[+-]inf|nan")
_BITS = {"half": (16, 5), "bfloat": (16, 8), "float": (32, 8), "double": (64, 11)}  # width, exponent bits

_REDUCE = "@llvm.nvvm.cp.async.bulk.tensor.reduce."
_REDUCE_CALL = re.compile(re.escape(_REDUCE) + r"((?:tile|im2col)\.\dd)\((.*), /\* red_op=(\w+) \*/ i32 \d, (i1 \w+)\)")


def _special(text: str, kind: str) -> int | None:
    """The bits of an infinity, a NaN or a hexadecimal constant; None for a decimal."""
    width, exponent = _BITS[kind]
    mantissa = width - 1 - exponent
    if text.startswith("f0x"):
        return int(text[3:], 16)
    sign = (text[0] == "-") << (width - 1)
    infinity = sign | ((1 << exponent) - 1) << mantissa
    quiet = 1 << (mantissa - 1)
    if text.endswith("inf"):
        return infinity
    if text.endswith("qnan"):
        return infinity | quiet
    if "nan(" in text:
        payload = int(text[text.index("0x") : -1], 16)
        return infinity | payload | (0 if "snan" in text else quiet)
    return None


def _decimal(text: str, kind: str) -> int:
    if kind == "double":
        return struct.unpack("<Q", struct.pack("<d", float(text)))[0]
    if kind == "float":
        return int(np.float32(text).view(np.uint32))
    if kind == "half":
        return int(np.float16(text).view(np.uint16))
    bits = int(np.float32(text).view(np.uint32))
    return (bits + 0x7FFF + (bits >> 16 & 1)) >> 16  # to nearest even


def _widened(bits: int) -> int:
    """The bits of an f32 as those of the f64 with the same value (or the same NaN)."""
    sign, exponent, mantissa = bits >> 31, bits >> 23 & 0xFF, bits & 0x7FFFFF
    if exponent == 0xFF:
        return sign << 63 | 0x7FF << 52 | mantissa << 29
    value = struct.unpack("<f", struct.pack("<I", bits))[0]
    return struct.unpack("<Q", struct.pack("<d", value))[0]


def constant_text(text: str, kind: str) -> str:
    """One constant of the newer LLVM as the older one's hexadecimal; `kind` is half, bfloat, float or double."""
    bits = _special(text, kind)
    if bits is None:
        bits = _decimal(text, kind)
    if kind == "half":
        return f"0xH{bits:04X}"
    if kind == "bfloat":
        return f"0xR{bits:04X}"
    return f"0x{_widened(bits) if kind == 'float' else bits:016X}"


def for_older_llvm(text: str) -> str:
    """LLVM IR with every floating-point constant respelled, and intrinsics by their older names; a constant's type is
    the last one named before it in its line."""
    if _REDUCE in text:
        lines = [x for x in text.split("\n") if not (x.startswith("declare") and _REDUCE in x)]
        text = _REDUCE_CALL.sub(rf"{_REDUCE}\3.\1(\2, \4)", "\n".join(lines))
    lines = text.split("\n")
    for i, line in enumerate(lines):
        # Few lines have a constant, and most of the others are told apart without an expression.
        if ("." in line or "f0x" in line or "inf" in line or "nan" in line) and _MAYBE.search(line):
            lines[i] = _respelled(line)
    return "\n".join(lines)


def _respelled(line: str) -> str:
    kind = "double"

    def respell(match: re.Match) -> str:
        nonlocal kind
        if match["type"]:
            kind = match["type"]
            return match[0]
        return constant_text(match["number"], kind)

    return _TOKEN.sub(respell, line)
