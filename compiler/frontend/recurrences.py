"""Recurrences that models loop over in Python, as loops over time steps: exported step by step they take minutes."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Iterator
from typing import Any

import torch

from mlirc.frontend.scan import scan

Tensor = torch.Tensor
_RWKV = "transformers.models.rwkv.modeling_rwkv"
_RWKV_FUNCTION = "rwkv_linear_attention_cpu"


def _rwkv_step(carries: list[Tensor], slices: list[Tensor], closed: list[Tensor]) -> Any:
    """One token of RWKV's attention. carries: numerator and denominator [B,H] and the exponent that both are scaled by;
    slices: key and value [B,H]; closed: the decay and the bonus of the current token [H]. All in f32."""
    (numerator, denominator, largest), (key, value), (decay, first) = carries, slices, closed
    bound = torch.maximum(largest, key + first)
    old, new = torch.exp(largest - bound), torch.exp(key + first - bound)
    out = (old * numerator + new * value) / (old * denominator + new)
    bound = torch.maximum(largest + decay, key)
    old, new = torch.exp(largest + decay - bound), torch.exp(key - bound)
    return [old * numerator + new * value, old * denominator + new, bound], [out]


def rwkv_attention(
    time_decay: Tensor,
    time_first: Tensor,
    key: Tensor,
    value: Tensor,
    state: list[Tensor] | None = None,
    return_state: bool = False,
) -> tuple[Tensor, list[Tensor] | None]:
    """What transformers' `rwkv_linear_attention_cpu` computes: key, value and result [B,T,H], `state` three [B,H]."""
    zeros = torch.zeros_like(key[:, 0], dtype=torch.float32)
    init = [zeros, zeros.clone(), zeros - 1e38] if state is None else list(state)
    xs = [x.transpose(0, 1).float() for x in (key, value)]
    carries, (out,) = scan(_rwkv_step, init, xs, [-torch.exp(time_decay.float()), time_first.float()])
    return out.transpose(0, 1).to(key.dtype), carries if return_state or state is not None else state


@contextlib.contextmanager
def looped_recurrences(module: torch.nn.Module) -> Iterator[None]:
    """Runs the body with the recurrences of `module` as loops, where that gives what the model's own code gives."""
    with contextlib.ExitStack() as stack:
        if any(type(child).__module__ == _RWKV for child in module.modules()):
            home = importlib.import_module(_RWKV)
            own = getattr(home, _RWKV_FUNCTION, None)
            if own is not None and _agrees(own):
                setattr(home, _RWKV_FUNCTION, rwkv_attention)
                stack.callback(setattr, home, _RWKV_FUNCTION, own)
        yield


def _agrees(own: Any) -> bool:
    """Whether this transformers' function computes the same, with a state and without."""
    generator = torch.Generator().manual_seed(0)

    def random(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator)

    decay, first, key, value = random(3), random(3), random(2, 4, 3), random(2, 4, 3)
    for state in (None, [random(2, 3), random(2, 3).abs(), random(2, 3)]):
        try:
            wanted, after = own(decay, first, key, value, state=state, return_state=True)
        except Exception:  # other arguments than those known here
            return False
        got, carries = rwkv_attention(decay, first, key, value, state=state, return_state=True)
        assert carries is not None
        if not all(
            torch.allclose(a, b, rtol=1e-4, atol=1e-5) for a, b in zip((got, *carries), (wanted, *after), strict=True)
        ):
            return False
    return True
