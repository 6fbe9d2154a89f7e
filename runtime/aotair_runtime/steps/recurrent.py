"""Which recurrent layers are steps? Those of an LSTM, one after the other."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from . import library
from .written import TYPES, Lies, Steps, are_apart, written

_LSTM = 96
_NOWHERE = Lies(0, (), 0)
_MOST = 1 << 28  # numbers that are made on the way


@dataclass(frozen=True)
class _Call:
    """A call of `aten::lstm`, with its tensors along time first: x (times, batch, width); h and c (layers and their
    directions, batch, hidden), before and after; for each direction of each layer its weights, and biases or none."""

    x: Tensor
    before: tuple[Tensor, Tensor]
    weights: Sequence[Sequence[Tensor]]
    layers: int
    ways: int
    out: Tensor
    after: tuple[Tensor | None, Tensor | None]


def lstm(args: Sequence[Any], kwargs: Mapping[str, Any], targets: Sequence[Tensor | None]) -> Steps | None:
    """`aten::lstm` over a batch of float32, or of bfloat16 where pairs of it are multiplied: a step for each layer, all
    directions of it. `targets`: where its results are copied to."""
    call = _call(args, targets) if not kwargs and len(args) == 9 and len(targets) == 3 else None
    if call is None or not library.is_wide() or not _fits(call):
        return None
    made, x = Steps(b"", 0, (call.out,)), call.x
    for layer in range(call.layers):
        made += _layer(call, layer, x)
        x = call.out  # of which all is read before any is written
    return made


def _call(args: Sequence[Any], targets: Sequence[Tensor | None]) -> _Call | None:
    x, states, weights, biased, layers, dropout, train, both, batch_first = args
    if not isinstance(x, Tensor) or x.dim() != 3 or len(states) != 2 or layers < 1 or (train and dropout):
        return None
    each, ways = 4 if biased else 2, 2 if both else 1
    if len(weights) != layers * ways * each or not all(isinstance(one, Tensor) for one in (*states, *weights)):
        return None
    out, *after = targets
    if out is None:
        out = x.new_empty(*x.shape[:2], ways * states[0].shape[-1])
    if out.dim() != 3:
        return None
    along = [one.transpose(0, 1) if batch_first else one for one in (x, out)]
    split = [weights[start : start + each] for start in range(0, len(weights), each)]
    return _Call(along[0], (states[0], states[1]), split, layers, ways, along[1], (after[0], after[1]))


def _fits(call: _Call) -> bool:
    """Whether everything has the sizes that the layers take for granted, in rows without gaps, and nothing is written
    that is read, or twice."""
    (times, batch, width), hidden = call.x.shape, call.before[0].shape[-1]
    wanted: list[tuple[Tensor, tuple[int, ...]]] = [(call.x, (times, batch, width))]
    for number, group in enumerate(call.weights):
        columns = width if number < call.ways else call.ways * hidden
        wanted += zip(group, [(4 * hidden, columns), (4 * hidden, hidden), (4 * hidden,), (4 * hidden,)])
    after, of_state = [one for one in call.after if one is not None], (call.layers * call.ways, batch, hidden)
    read, written = [*call.before, *(one for one, _ in wanted)], [call.out, *after]
    wanted.append((call.out, (times, batch, call.ways * hidden)))
    fits = all(one.shape == shape and one.stride(-1) == 1 for one, shape in wanted)
    fits = fits and all(one.shape == of_state and one.is_contiguous() for one in (*call.before, *after))
    fits = fits and _is_known(call.x.dtype, width, hidden)
    fits = fits and all(one.dtype == call.x.dtype and one.numel() for one in (*read, *written))
    apart = all(are_apart(one, [*read, *written[:place]]) for place, one in enumerate(written))
    return fits and apart and _numbers(call) <= _MOST


def _is_known(kind: torch.dtype, width: int, hidden: int) -> bool:
    """Whether there is a kernel for numbers of a dtype, in rows of so many: pairs do not go over their end."""
    if kind == torch.bfloat16:
        return library.multiplies_pairs() and not width % 2 and not hidden % 2
    return kind == torch.float32


def _numbers(call: _Call) -> int:
    """About as many numbers as a layer makes on the way, at the most."""
    (times, batch, width), hidden = call.x.shape, call.before[0].shape[-1]
    read = max(width, call.ways * hidden)
    return times * batch * (read + 4 * call.ways * (hidden + 16)) + 4 * call.ways * (hidden + 16) * (read + hidden)


def _layer(call: _Call, layer: int, x: Tensor) -> Steps:
    (times, batch, width), hidden, kind = x.shape, call.before[0].shape[-1], TYPES[x.dtype]
    start = layer * call.ways * batch * hidden * x.itemsize
    after, before = (
        [_NOWHERE if one is None else Lies(one.data_ptr() + start, (), kind) for one in states]
        for states in (call.after, call.before)
    )
    operands = [*(Lies(one.data_ptr(), one.stride()[:2], kind) for one in (call.out, x)), *after, *before]
    for group in call.weights[layer * call.ways : (layer + 1) * call.ways]:
        operands += [Lies(one.data_ptr(), one.stride()[:1], kind) for one in group] + [_NOWHERE] * (4 - len(group))
    sizes = (times, batch, width, hidden, call.ways)
    return Steps(written(_LSTM, 1, sizes, operands, 0.0, (0, 0)), 1)
