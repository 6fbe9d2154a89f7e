"""The shapes of what slides over images and signals: convolutions, pooling, pads and new sizes."""

import math
from collections.abc import Sequence

from ..format.schema import Arg
from .demands import Call, Shape


def convolution(call: Call) -> Shape | None:
    """As `torch.nn.ConvNd` and `ConvTransposeNd` say; `weight` is (out, in / groups, …), or (in, out / groups, …)."""
    x, weight, bias = call.shape("input"), call.shape("weight"), call.shape("bias")
    if x is None or weight is None or len(x) != len(weight) or not 3 <= len(x) <= 5:
        return None
    names = ("stride", "padding", "dilation", "output_padding")
    lists = [_per_dimension(call.given.get(name), len(x) - 2, name in ("stride", "dilation")) for name in names]
    groups, turned = call.given.get("groups"), call.given.get("transposed") is True
    if type(groups) is not int or groups < 1 or 0 in (*x[1:], *weight) or any(one is None for one in lists):
        return None
    steps, pads, gaps, more = ([] if one is None else one for one in lists)
    channels = weight[1] * groups if turned else weight[0]
    fits = (
        x[1] == (weight[0] if turned else weight[1] * groups) and not weight[0] % groups and bias in (None, (channels,))
    )
    sizes = []
    for size, kernel, step, pad, gap, extra in zip(x[2:], weight[2:], steps, pads, gaps, more):
        reach = gap * (kernel - 1) + 1
        fits = fits and (extra < max(step, gap) if turned else size + 2 * pad >= reach)
        sizes.append((size - 1) * step - 2 * pad + reach + extra if turned else (size + 2 * pad - reach) // step + 1)
    return (x[0], channels, *sizes) if fits and min(sizes) > 0 else None


def pooled(call: Call) -> Shape | None:
    """As `torch.nn.MaxPool2d` says."""
    x, windows = call.shape("self"), _per_dimension(call.given.get("kernel_size"), 2, True)
    if x is None or windows is None or len(x) not in (3, 4) or 0 in x[-3:]:
        return None
    stride = call.given.get("stride", ())
    steps = windows if stride == () else _per_dimension(stride, 2, True)
    pads = _per_dimension(call.given.get("padding", 0), 2, False)
    gaps = _per_dimension(call.given.get("dilation", 1), 2, True)
    if steps is None or pads is None or gaps is None:
        return None
    sizes, up = [], call.given.get("ceil_mode") is True
    for size, kernel, step, pad, gap in zip(x[-2:], windows, steps, pads, gaps):
        room = size + 2 * pad - gap * (kernel - 1) - 1
        count = (room + (step - 1 if up else 0)) // step + 1
        if up and (count - 1) * step >= size + pad:
            count -= 1
        if pad > (gap * (kernel - 1) + 1) // 2 or count < 1:
            return None
        sizes.append(count)
    return (*x[:-2], *sizes)


def padded(call: Call) -> Shape | None:
    """Pairs of pads, those of the last dimension first; negative ones cut."""
    x, pads = call.shape("self"), call.given.get("pad")
    if x is None or not isinstance(pads, tuple) or len(pads) % 2 or len(pads) > 2 * len(x):
        return None
    sizes = list(x)
    for at in range(len(pads) // 2):
        before, after = pads[2 * at], pads[2 * at + 1]
        if type(before) is not int or type(after) is not int or min(before, 0) + min(after, 0) + sizes[-1 - at] < 0:
            return None
        sizes[-1 - at] += before + after
    return tuple(sizes)


def resized(call: Call) -> Shape | None:
    """As `torch.nn.functional.interpolate` says: a size, or factors of the input's."""
    x = call.shape("input" if "input" in call.given else "self")
    size, factors = call.given.get("output_size"), call.given.get("scale_factors")
    # Of nothing at all the kernels still make tables as long as the result is wide.
    if x is None or len(x) < 3 or 0 in x or (size is None) == (factors is None):
        return None
    given = size if isinstance(size, tuple) else factors if isinstance(factors, tuple) else ()
    if len(given) != len(x) - 2:
        return None
    if given is size:
        sizes = [number for number in given if type(number) is int]
    else:
        times = [number for number in given if isinstance(number, (int, float)) and 0 < number < _MOST_TIMES]
        sizes = [math.floor(at * number) for at, number in zip(x[2:], times)]
    return (*x[:2], *sizes) if len(sizes) == len(given) and min(sizes) > 0 else None


def _per_dimension(value: Arg, count: int, positive: bool) -> Sequence[int] | None:
    """A number for each dimension, of which one may stand for all."""
    listed = value if isinstance(value, tuple) else (value,)
    numbers = [one for one in listed if type(one) is int and (1 if positive else 0) <= one < _MOST_TIMES]
    if len(numbers) != len(listed) or len(numbers) not in (1, count):
        return None
    return numbers * count if len(numbers) == 1 else numbers


_MOST_TIMES = 1 << 31
