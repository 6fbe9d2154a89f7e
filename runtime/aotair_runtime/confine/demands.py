"""What the table demands of a call's tensors, beyond what the op says of them on the meta device."""

import functools
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from ..errors import MalformedError
from ..format.extents import turned
from ..format.packed import tensor_numbers
from ..format.schema import Arg, Instruction, Layout, TensorArg
from ..format.torch_names import dtype
from .op_table import Demands

Shape = tuple[int, ...]
Layouts = Callable[[int], Layout]  # of a tensor, by its number


@dataclass(frozen=True)
class Call:
    """An instruction with its arguments by name; `written`: the numbers of the tensors that it writes to; `results`:
    the arguments that are for results alone."""

    item: Instruction
    given: Mapping[str, Arg]
    written: tuple[int, ...]
    layouts: Layouts
    results: frozenset[str] = frozenset()

    def shape(self, name: str) -> Shape | None:
        """That of a tensor argument, if it is given."""
        arg = self.given.get(name)
        return self.layouts(arg.index).shape if isinstance(arg, TensorArg) else None

    def all(self) -> Iterator[Layout]:
        """Of every tensor that the instruction names."""
        yield from map(self.layouts, tensor_numbers(tuple(self.given.values())))
        yield from (self.layouts(number) for number in self.item.outs if number >= 0)


def check_demands(call: Call, wanted: Demands, what: str, where: str) -> None:
    """Raises MalformedError where a call is not what the table demands of `what`, its op."""
    for name in wanted.tensors:
        expected, holds = CHECKS[name]
        if not holds(call):
            raise MalformedError(f"{what} is called as the runtime does not allow", where=where, expected=expected)


def _dense(call: Call) -> bool:
    layouts = [call.layouts(number) for number in call.written]
    return all(
        _is_dense(one.shape, one.strides) or _is_dense(turned(one.shape), turned(one.strides)) for one in layouts
    )


def _is_dense(shape: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    step = 1
    for size, stride in zip(reversed(shape), reversed(strides)):
        if size != 1 and stride != step and 0 not in shape:
            return False
        step *= size
    return True


def _filled(call: Call) -> bool:
    return all(0 not in layout.shape for layout in call.all())


def _plain(call: Call) -> bool:
    return all(_is_dense(one.shape, one.strides) for one in call.all())


def _unrepeated(call: Call) -> bool:
    return all(stride or size < 2 for one in call.all() for size, stride in zip(one.shape, one.strides))


def _floating(call: Call) -> bool:
    return all(dtype(one.dtype).is_floating_point for one in call.all())


def _channels(call: Call) -> bool:
    x = call.shape("input")
    return x is not None and len(x) > 1 and _has_factors(call, x[1])


def _has_factors(call: Call, channels: int) -> bool:
    """Whether what is given for channels has a number for each, one after the other."""
    given = [call.given.get(name) for name in ("weight", "bias", "running_mean", "running_var")]
    layouts = [call.layouts(arg.index) for arg in given if isinstance(arg, TensorArg)]
    return all(one.shape == (channels,) and (one.strides == (1,) or channels == 1) for one in layouts)


def _groups(call: Call) -> bool:
    x, sizes = call.shape("input"), [call.given.get(name) for name in ("N", "C", "HxW", "group")]
    if x is None or not all(type(size) is int and size > 0 for size in sizes):
        return False
    rows, channels, pixels, groups = (size for size in sizes if isinstance(size, int))
    fits = len(x) > 1 and x[:2] == (rows, channels) and math.prod(x[2:]) == pixels and not channels % groups
    return fits and _has_factors(call, channels)


def _axes(call: Call) -> bool:
    x, axes = call.shape("self"), call.given.get("dim")
    if x is None or not isinstance(axes, tuple):
        return False
    return len(set(axes)) == len(axes) > 0 and all(type(axis) is int and 0 <= axis < len(x) for axis in axes)


def _recurrent(gates: int, call: Call) -> bool:
    """A recurrent network over (steps, rows, width) or (rows, steps, width), with weights in the order of torch.nn."""
    x, states, weights = call.shape("input"), call.given.get("hx"), call.given.get("params")
    layers, ways = call.given.get("num_layers"), 1 + (call.given.get("bidirectional") is True)
    states = states if isinstance(states, tuple) else (states,)
    if x is None or len(x) != 3 or type(layers) is not int or not isinstance(weights, tuple) or len(states) > 2:
        return False
    rows, biased = x[0 if call.given.get("batch_first") is True else 1], call.given.get("has_biases") is True
    sizes = [call.layouts(n).shape for n in tensor_numbers(states)]
    if not sizes or any(len(size) != 3 or size[:2] != (layers * ways, rows) for size in sizes):
        return False
    made, hidden = sizes[0][-1], sizes[-1][-1]  # which differ where h is a projection
    rows_of, projected = gates * hidden, [(made, hidden)] if made != hidden else []
    wanted = []
    for width in (x[-1], *(made * ways,) * (layers - 1 if 0 < layers <= _MOST_LAYERS else 0)):
        biases = ((rows_of,),) * 2 if biased else ()
        wanted += [(rows_of, width), (rows_of, made), *biases, *projected] * ways
    return 0 < layers <= _MOST_LAYERS and [call.layouts(n).shape for n in tensor_numbers(weights)] == wanted


def _four_bits(call: Call) -> bool:
    """Rows (rows, in), a weight of four bits (out, in / 2), and a scale and a summand for each group of it."""
    x, weight, factors = (call.shape(name) for name in ("self", "mat2", "qScaleAndZeros"))
    group = call.given.get("qGroupSize")
    if x is None or weight is None or type(group) is not int or group < 1 or (len(x), len(weight)) != (2, 2):
        return False
    width = x[1]
    return width == 2 * weight[1] and not width % group and factors == (width // group, weight[0], 2)


_MOST_LAYERS = 1024
CHECKS: Mapping[str, tuple[str, Callable[[Call], bool]]] = {
    "dense": ("results that lie without gaps, row by row or column by column", _dense),
    "plain": ("tensors that lie without gaps, row by row", _plain),
    "unrepeated": ("tensors of which no number stands for several", _unrepeated),
    "floating": ("floating-point numbers", _floating),
    "lstm": ("states and weights as the layers have them", functools.partial(_recurrent, 4)),
    "gru": ("states and weights as the layers have them", functools.partial(_recurrent, 3)),
    "rnn": ("states and weights as the layers have them", functools.partial(_recurrent, 1)),
    "filled": ("no empty tensor", _filled),
    "channels": ("a number for each channel", _channels),
    "four_bits": ("rows, a weight of four bits and its factors, in sizes that fit", _four_bits),
    "axes": ("distinct dimensions of the input, counted from the first", _axes),
    "groups": ("the input's own sizes, and a number for each channel", _groups),
}
