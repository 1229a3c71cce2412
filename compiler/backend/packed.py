"""Takes packed 16-bit integer instructions apart in PTX text.

ptxas 13.0, the driver's compiler too, computes a wrong half where it finds the other half of `add.s16x2` with a
constant unused: index arithmetic that LLVM had narrowed and packed lost its addend on an H200.
"""

from __future__ import annotations

import re

_PACKED = re.compile(
    r"^\t(?P<op>add|sub|min|max)\.(?P<type>[su]16)x2 \t(?P<out>%\w+), (?P<a>%\w+), (?P<b>[%\w-]+);$", re.MULTILINE
)
_HALVES = """\t{{
\t.reg .b16 %half<6>;
\tmov.b32 \t{{%half0, %half1}}, {a};
\tmov.b32 \t{{%half2, %half3}}, {b};
\t{op}.{type} \t%half4, %half0, %half2;
\t{op}.{type} \t%half5, %half1, %half3;
\tmov.b32 \t{out}, {{%half4, %half5}};
\t}}"""


def unpack_halves(ptx: str) -> str:
    """The same program with two 16-bit instructions for every packed one on integers."""
    return _PACKED.sub(lambda m: _HALVES.format(**m.groupdict()), ptx)
