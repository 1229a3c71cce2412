"""Recurrences that models loop over in Python, as loops over time steps or as scans: exported step by step they take
minutes."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F

from mlirc.frontend import prefix_scan  # noqa: F401  the op
from mlirc.frontend.scan import scan

Tensor = torch.Tensor


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


def selective_scan(
    hidden_states: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None = None,
    z: Tensor | None = None,
    delta_bias: Tensor | None = None,
    delta_softplus: bool = False,
    return_last_state: bool = False,
    **_: Any,
) -> Tensor | tuple[Tensor, Tensor]:
    """What transformers' `mamba_selective_scan` computes (Gu and Dao, 2023, "Mamba"): hidden_states, dt, z and result
    [B,D,T], A [D,N], B and C [B,N,T], D and delta_bias [D], the last state [B,D,N]."""
    dt = dt if delta_bias is None else dt + delta_bias.to(dt.dtype)[:, None]
    dt = F.softplus(dt) if delta_softplus else dt
    decay = torch.exp(A[None, :, None] * dt[..., None])
    term = dt[..., None] * B.transpose(1, 2)[:, None].float() * hidden_states[..., None].float()
    decay, term = (x.to(torch.promote_types(decay.dtype, term.dtype)).movedim(2, 0) for x in (decay, term))
    states = torch.ops.mlirc.linear_scan(decay, term, torch.zeros_like(term[0]), 0)
    outputs = states.to(hidden_states.dtype).float() * C.permute(2, 0, 1)[:, :, None].float()
    y = outputs.sum(-1).to(hidden_states.dtype).permute(1, 2, 0)
    y = y if D is None else y + hidden_states * D[:, None]
    y = y if z is None else y * F.silu(z)
    return (y, states[-1]) if return_last_state else y


def _random(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


def _rwkv_calls() -> list[tuple[tuple, dict[str, Any]]]:
    tensors = _random(3), _random(3), _random(2, 4, 3), _random(2, 4, 3)
    states = None, [_random(2, 3), _random(2, 3).abs(), _random(2, 3)]
    return [(tensors, {"state": state, "return_state": True}) for state in states]


def _selective_calls() -> list[tuple[tuple, dict[str, Any]]]:
    tensors = _random(2, 3, 5), _random(2, 3, 5) / 2, -_random(3, 4).abs(), _random(2, 4, 5), _random(2, 4, 5)
    more = {"D": _random(3), "z": _random(2, 3, 5), "delta_bias": _random(3), "delta_softplus": True}
    return [(tensors, {}), (tensors, {**more, "return_last_state": True})]


# Functions of transformers' modules, by name: what computes the same without Python's loop, and calls that show it.
FUNCTIONS: dict[str, tuple[Callable, Callable[[], list[tuple[tuple, dict[str, Any]]]]]] = {
    "rwkv_linear_attention_cpu": (rwkv_attention, _rwkv_calls),
    "mamba_selective_scan": (selective_scan, _selective_calls),
}


@contextlib.contextmanager
def looped_recurrences(module: torch.nn.Module) -> Iterator[None]:
    """Runs the body with the recurrences of `module` as loops, where that gives what the model's own code gives."""
    names = {type(child).__module__ for child in module.modules()}
    with contextlib.ExitStack() as stack:
        for home in (sys.modules[name] for name in names if name.startswith("transformers.") and name in sys.modules):
            for name, (ours, calls) in FUNCTIONS.items():
                own = getattr(home, name, None)
                if own is not None and agrees(own, ours, calls()):
                    setattr(home, name, ours)
                    stack.callback(setattr, home, name, own)
        yield


def agrees(own: Callable, ours: Callable, calls: list[tuple[tuple, dict[str, Any]]]) -> bool:
    """Whether this transformers' function computes the same as ours."""
    for tensors, options in calls:
        try:
            expected = own(*tensors, **options)
        except Exception:  # other arguments than those known here
            return False
        pairs = zip(_tensors(ours(*tensors, **options)), _tensors(expected), strict=True)
        if not all(torch.allclose(a, b, rtol=1e-4, atol=1e-5) for a, b in pairs):
            return False
    return True


def _tensors(result: Any) -> list[Tensor]:
    return [result] if isinstance(result, Tensor) else [x for part in result for x in _tensors(part)]
