"""Ops in float64 whose kernels take float32 alone: made of others."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload

_LSTM = 2  # the number of its mode


def called(func: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """What an op gives for wider operands. Raises RuntimeError where nothing takes those."""
    made = _MADE_OF_OTHERS.get(func)
    return func(*args, **kwargs) if made is None else made(*args, **kwargs)


def _rnn_layer(
    x: Tensor,
    weight_x: Tensor,
    weight_h: Tensor,
    bias_x: Tensor,
    bias_h: Tensor,
    h: Tensor,
    c: Tensor,
    reverse: bool,
    batch_sizes: Sequence[int],
    mode: int,
    *_: object,
) -> tuple[Tensor, Tensor, Tensor, None]:
    """`aten::mkldnn_rnn_layer`: one layer of an LSTM in one direction. x: (times, batch, width); h and c: (batch,
    hidden) or (1, batch, hidden); the biases are zeros where the layer has none."""
    if mode != _LSTM or batch_sizes:
        raise NotImplementedError("no layer of an LSTM over whole sequences")
    states = [one.view(1, *one.shape[-2:]) for one in (h, c)]
    given, weights = x.flip(0) if reverse else x, [weight_x, weight_h, bias_x, bias_h]
    out, last_h, last_c = torch.lstm(given, states, weights, True, 1, 0.0, False, False, False)
    return out.flip(0) if reverse else out, last_h.view_as(h), last_c.view_as(c), None


_MADE_OF_OTHERS: Mapping[OpOverload, Callable[..., Any]] = {torch.ops.aten.mkldnn_rnn_layer.default: _rnn_layer}
