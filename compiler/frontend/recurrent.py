"""PyTorch's recurrent layers (LSTM, GRU, RNN) as products over all time steps and one loop over what is left.

What does not depend on the state, the product with the input, is one product for all steps. The formulas are those of
torch.nn.LSTM, torch.nn.GRU and torch.nn.RNN.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch

from mlirc.errors import MlircError
from mlirc.frontend.diagnose import PACKED
from mlirc.frontend.scan import Step, scan

aten = torch.ops.aten
Tensor = torch.Tensor


def _lstm_step(carries: list[Tensor], slices: list[Tensor], closed: list[Tensor]) -> Any:
    """carries: h [B,P] and c [B,H]; slice: the input's part of the gates [B,4H]; closed: the weight of h [4H,P], and
    of the projection [P,H] where there is one."""
    (h, c), (gates,), (weight, *projection) = carries, slices, closed
    i, f, g, o = (gates + torch.mm(h, weight.t())).chunk(4, 1)
    c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
    h = torch.sigmoid(o) * torch.tanh(c)
    if projection:
        h = torch.mm(h, projection[0].t())
    return [h, c], [h]


def _gru_step(carries: list[Tensor], slices: list[Tensor], closed: list[Tensor]) -> Any:
    """carry: h [B,H]; slice: the input's part of the gates [B,3H]; closed: the weight of h [3H,H], and its bias."""
    (h,), (gates,), (weight, *bias) = carries, slices, closed
    hidden = torch.mm(h, weight.t())
    if bias:
        hidden = hidden + bias[0]
    reset, update, new = gates.chunk(3, 1)
    hidden_reset, hidden_update, hidden_new = hidden.chunk(3, 1)
    r = torch.sigmoid(reset + hidden_reset)
    z = torch.sigmoid(update + hidden_update)
    n = torch.tanh(new + r * hidden_new)
    h = n + z * (h - n)
    return [h], [h]


def _tanh_step(carries: list[Tensor], slices: list[Tensor], closed: list[Tensor]) -> Any:
    h = torch.tanh(slices[0] + torch.mm(carries[0], closed[0].t()))
    return [h], [h]


def _relu_step(carries: list[Tensor], slices: list[Tensor], closed: list[Tensor]) -> Any:
    h = torch.relu(slices[0] + torch.mm(carries[0], closed[0].t()))
    return [h], [h]


@functools.cache
def _while_running(step: Step) -> Step:
    """The step for sequences of which some have ended: one more slice, bool [B,1], says where one has not."""

    def run(carries: list[Tensor], slices: list[Tensor], closed: list[Tensor]) -> Any:
        *slices, running = slices
        new, outs = step(carries, slices, closed)
        return [torch.where(running, n, c) for n, c in zip(new, carries, strict=True)], outs

    return run


def layers_of(
    step: Step,
    x: Tensor,
    states: Sequence[Tensor],
    params: Sequence[Tensor],
    has_biases: bool,
    layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
    running: Tensor | None = None,
) -> tuple[Tensor, ...]:
    """The output and each state's last values. x [T,B,I] or, `batch_first`, [B,T,I]; without batches [T,I] and states
    of one dimension less. `running`: bool [T,B], where a sequence has not ended: from there
    on its states stay as they are, and its output may be anything."""
    batched = x.dim() == 3
    if not batched:
        x, states = x.unsqueeze(0 if batch_first else 1), [s.unsqueeze(1) for s in states]
    x = x.transpose(0, 1) if batch_first else x
    directions = 2 if bidirectional else 1
    count = len(params) // (layers * directions)  # per layer and direction
    last: list[list[Tensor]] = []
    for layer in range(layers):
        outs = []
        for direction in range(directions):
            number = layer * directions + direction
            own = params[number * count : (number + 1) * count]
            init = [s[number] for s in states]
            carries, out = _direction(step, x, init, own, has_biases, direction == 1, running)
            last.append(carries)
            outs.append(out)
        x = torch.cat(outs, 2) if bidirectional else outs[0]
        if layer + 1 < layers:
            x = aten.dropout.default(x, dropout, train)
    out = x.transpose(0, 1) if batch_first else x
    finals = [torch.stack(list(state)) for state in zip(*last, strict=True)]
    if not batched:
        out, finals = out.squeeze(0 if batch_first else 1), [f.squeeze(1) for f in finals]
    return (out, *finals)


def _direction(
    step: Step,
    x: Tensor,
    init: list[Tensor],
    params: Sequence[Tensor],
    has_biases: bool,
    reverse: bool,
    running: Tensor | None,
) -> tuple[list[Tensor], Tensor]:
    """One layer in one direction. `params`: the weights of x and of h, their biases, the projection's weight."""
    weight, recurrent, *rest = params
    biases, projection = (rest[:2], rest[2:]) if has_biases else ([], rest)
    closed = [recurrent, *projection]
    bias = None
    if biases and step is _gru_step:  # the reset gate multiplies what the state's bias was added to
        bias, closed = biases[0], [recurrent, biases[1]]
    elif biases:
        bias = biases[0] + biases[1]
    length, batch, width = x.shape
    gates = torch.nn.functional.linear(x.reshape(length * batch, width), weight, bias)
    xs = [gates.reshape(length, batch, weight.shape[0])]
    if running is not None:
        step, xs = _while_running(step), [*xs, running.unsqueeze(2)]
    carries, (out,) = scan(step, init, xs, closed, reverse=reverse)
    return carries, out


def _lstm(x: Tensor, states: Sequence[Tensor], *args: Any) -> tuple[Tensor, ...]:
    return layers_of(_lstm_step, x, states, *args)


def _one_state(step: Step) -> Callable:
    def layers(x: Tensor, state: Tensor, *args: Any) -> tuple[Tensor, ...]:
        return layers_of(step, x, [state], *args)

    return layers


def _packed(*args: Any, **kwargs: Any) -> Any:
    raise MlircError(PACKED)


STEPS: dict[str, Step] = {"lstm": _lstm_step, "gru": _gru_step, "rnn_tanh": _tanh_step, "rnn_relu": _relu_step}

RECURRENT: dict[Any, Callable] = {
    aten.lstm.input: _lstm,
    aten.gru.input: _one_state(_gru_step),
    aten.rnn_tanh.input: _one_state(_tanh_step),
    aten.rnn_relu.input: _one_state(_relu_step),
    aten.lstm.data: _packed,
    aten.gru.data: _packed,
    aten.rnn_tanh.data: _packed,
    aten.rnn_relu.data: _packed,
}
