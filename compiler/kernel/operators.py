"""Python's operators on tensors of a kernel, element by element."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mlirc.kernel.places import error


class Operators:
    """What has operators, by `_each`, which computes a function of an element of each operand."""

    __hash__ = None  # type: ignore[assignment]

    def _each(self, function: Callable[..., Any], *operands: Any) -> Any:
        raise NotImplementedError

    def __add__(self, other: Any) -> Any:
        return self._each(lambda a, b: a + b, self, other)

    def __radd__(self, other: Any) -> Any:
        return self._each(lambda a, b: a + b, other, self)

    def __sub__(self, other: Any) -> Any:
        return self._each(lambda a, b: a - b, self, other)

    def __rsub__(self, other: Any) -> Any:
        return self._each(lambda a, b: a - b, other, self)

    def __mul__(self, other: Any) -> Any:
        return self._each(lambda a, b: a * b, self, other)

    def __rmul__(self, other: Any) -> Any:
        return self._each(lambda a, b: a * b, other, self)

    def __truediv__(self, other: Any) -> Any:
        return self._each(lambda a, b: a / b, self, other)

    def __rtruediv__(self, other: Any) -> Any:
        return self._each(lambda a, b: a / b, other, self)

    def __floordiv__(self, other: int) -> Any:
        return self._each(lambda a: a // other, self)

    def __mod__(self, other: int) -> Any:
        return self._each(lambda a: a % other, self)

    def __pow__(self, other: Any) -> Any:
        return (
            self._each((lambda a, b: a**b), self, other)
            if isinstance(other, Operators)
            else self._each(lambda a: a**other, self)
        )

    def __neg__(self) -> Any:
        return self._each(lambda a: -a, self)

    def __abs__(self) -> Any:
        return self._each(abs, self)

    def __lt__(self, other: Any) -> Any:
        return self._each(lambda a, b: a < b, self, other)

    def __le__(self, other: Any) -> Any:
        return self._each(lambda a, b: a <= b, self, other)

    def __gt__(self, other: Any) -> Any:
        return self._each(lambda a, b: a > b, self, other)

    def __ge__(self, other: Any) -> Any:
        return self._each(lambda a, b: a >= b, self, other)

    def __eq__(self, other: Any) -> Any:  # type: ignore[override]
        return self._each(lambda a, b: a == b, self, other)

    def __ne__(self, other: Any) -> Any:  # type: ignore[override]
        return self._each(lambda a, b: a != b, self, other)

    def __and__(self, other: Any) -> Any:
        return self._each(lambda a, b: a & b, self, other)

    def __or__(self, other: Any) -> Any:
        return self._each(lambda a, b: a | b, self, other)

    def __invert__(self) -> Any:
        return self._each(lambda a: ~a, self)

    def __bool__(self) -> bool:
        raise error("a tensor has no value while the kernel is built: choose with ops.where, and not by if, and, or")
