"""PyTorch's operators that are one kernel of attention each, with the log-sum-exp as a second result: what
`scaled_dot_product_attention` chooses among, and models call for the log-sum-exp."""

from __future__ import annotations

from typing import Any

import torch

from mlirc.errors import MlircError
from mlirc.frontend.attention import attention_of

aten = torch.ops.aten
ROWS = 32  # of the log-sum-exp of the efficient operator, whose padding is infinite


def _attention(
    name: str, q: Any, k: Any, v: Any, mask: Any, dropout: float, causal: bool, scale: float | None, from_last: bool
) -> tuple[Any, Any]:
    """Result and log-sum-exp. `from_last`: its causal mask counts from the last key, as `attention_of` does not."""
    if dropout:
        raise MlircError(f"{name}: dropout_p={dropout}: its random numbers are its own: use 0, or F.dropout")
    if causal and from_last and q.shape[-2] != k.shape[-2]:
        raise MlircError(
            f"{name}: is_causal with {q.shape[-2]} queries and {k.shape[-2]} keys: give "
            "scaled_dot_product_attention a mask"
        )
    grouped = q.shape[-3] != k.shape[-3]
    return attention_of(q, k, v, mask, 0.0, causal, scale, grouped, with_lse=True)


def _seed(q: Any) -> Any:
    return q.new_zeros((), dtype=torch.int64)


def _flash(
    q: Any, k: Any, v: Any, dropout_p: float = 0.0, is_causal: bool = False, return_debug_mask: bool = False, *,
    scale: float | None = None,
) -> tuple:  # fmt: skip
    name = "_scaled_dot_product_flash_attention"
    if return_debug_mask:
        raise MlircError(f"{name}: return_debug_mask: leave it out")
    out, lse = _attention(name, q, k, v, None, dropout_p, is_causal, scale, True)
    state = q.new_zeros((2,), dtype=torch.uint64), q.new_zeros((), dtype=torch.uint64)
    return out, lse, None, None, q.shape[2], k.shape[2], *state, q.new_empty((0,))


def _flash_for_cpu(
    q: Any, k: Any, v: Any, dropout_p: float = 0.0, is_causal: bool = False, *, attn_mask: Any = None,
    scale: float | None = None,
) -> tuple:  # fmt: skip
    return _attention(
        "_scaled_dot_product_flash_attention_for_cpu", q, k, v, attn_mask, dropout_p, is_causal, scale, False
    )


def _efficient(
    q: Any, k: Any, v: Any, attn_bias: Any, compute_log_sumexp: bool, dropout_p: float = 0.0, is_causal: bool = False,
    *, scale: float | None = None,
) -> tuple:  # fmt: skip
    name = "_scaled_dot_product_efficient_attention"
    out, lse = _attention(name, q, k, v, attn_bias, dropout_p, is_causal, scale, False)
    rows = lse.shape[-1]
    if not compute_log_sumexp:
        lse = lse.new_empty((*lse.shape[:2], 0))
    elif rows % ROWS:
        lse = torch.nn.functional.pad(lse, (0, -rows % ROWS), value=float("inf"))
    return out, lse, _seed(q), _seed(q)


def _cudnn(
    q: Any, k: Any, v: Any, attn_bias: Any, compute_log_sumexp: bool, dropout_p: float = 0.0, is_causal: bool = False,
    return_debug_mask: bool = False, *, scale: float | None = None,
) -> tuple:  # fmt: skip
    name = "_scaled_dot_product_cudnn_attention"
    out, lse = _attention(name, q, k, v, attn_bias, dropout_p, is_causal, scale, True)
    lse = lse.unsqueeze(-1) if compute_log_sumexp else lse.new_empty((*lse.shape[:2], 0))
    return out, lse, None, None, q.shape[2], k.shape[2], _seed(q), _seed(q), None


FUSED: dict[Any, Any] = {
    aten._scaled_dot_product_flash_attention.default: _flash,
    aten._scaled_dot_product_flash_attention_for_cpu.default: _flash_for_cpu,
    aten._scaled_dot_product_efficient_attention.default: _efficient,
    aten._scaled_dot_product_cudnn_attention.default: _cudnn,
}
