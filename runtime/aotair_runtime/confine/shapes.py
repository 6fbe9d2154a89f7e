"""The shapes of what common ops return, as functions of their arguments: torch's own take milliseconds, and import
packages that a load does without."""

import math
from collections.abc import Callable, Mapping, Sequence

from ..format.packed import tensor_numbers
from ..format.schema import Arg, TensorArg
from . import windows
from .demands import Call, Shape

# Of all results, or of each; None: the op does not take these arguments.
Rule = Callable[[Call], Shape | None]
RuleOfEach = Callable[[Call], tuple[Shape, ...] | None]


def result_shapes(call: Call, rule: str, count: int) -> tuple[Shape, ...] | None:
    """The shapes of the `count` results of a call of an op with that rule; None: the op would refuse it."""
    if rule in RULES_OF_EACH:
        return RULES_OF_EACH[rule](call)
    shape = RULES[rule](call)
    return None if shape is None else (shape,) * count


def _shapes(call: Call, *names: str) -> list[Shape]:
    """Those of the tensors among the arguments of these names, or among all but what is only written."""
    given = call.given if not names else {name: call.given[name] for name in names if name in call.given}
    values = tuple(value for name, value in given.items() if name not in call.results)
    return [call.layouts(number).shape for number in tensor_numbers(values)]


def _broadcast(call: Call) -> Shape | None:
    return broadcast(_shapes(call))


def broadcast(shapes: Sequence[Shape]) -> Shape | None:
    """The shape that tensors of these shapes come to together; None where they do not fit."""
    found: list[int] = []
    for shape in shapes:
        found = [1] * (len(shape) - len(found)) + found
        for at, size in enumerate(shape, len(found) - len(shape)):
            if size != found[at] and 1 not in (size, found[at]):
                return None
            found[at] = size if found[at] == 1 else found[at]
    return tuple(found)


def _same(call: Call) -> Shape | None:
    first = next(iter(call.given.values()), None)
    return call.layouts(first.index).shape if isinstance(first, TensorArg) else None


def _along(call: Call) -> Shape | None:
    """As `_same`, where a dimension is named that the first argument has."""
    shape = _same(call)
    return shape if shape is not None and _places(call.given.get("dim"), shape) is not None else None


def _reduced(call: Call) -> Shape | None:
    shape = _same(call)
    places = None if shape is None else _places(call.given.get("dim"), shape)
    if shape is None or places is None:
        return None
    kept = call.given.get("keepdim") is True
    return tuple(1 if at in places else size for at, size in enumerate(shape) if kept or at not in places)


def _places(dims: Arg, shape: Shape) -> set[int] | None:
    """The dimensions that an argument names, of which there must be some; all where it names none."""
    if dims is None or dims == ():
        return set(range(len(shape)))
    named = dims if isinstance(dims, tuple) else (dims,)
    count = max(len(shape), 1)
    places = {dim % count for dim in named if type(dim) is int and -count <= dim < count}
    return places if len(places) == len(named) else None


def _product(call: Call) -> Shape | None:
    """Of two matrices, or of as many of the one as of the other, with what is added to them."""
    names = next(pair for pair in (("mat1", "mat2"), ("batch1", "batch2"), ("self", "mat2")) if pair[0] in call.given)
    left, right = (call.shape(name) for name in names)
    if not left or not right or len(left) != len(right) or len(left) not in (2, 3):
        return None
    if left[-1] != right[-2] or left[:-2] != right[:-2]:
        return None
    result = (*left[:-1], right[-1])
    added = call.shape("self") if names[0] != "self" else None
    return result if added is None or _expands(added, result) else None


def _expands(shape: Shape, result: Shape) -> bool:
    padded = (1,) * (len(result) - len(shape)) + shape
    return len(shape) <= len(result) and all(size in (1, other) for size, other in zip(padded, result))


def _linear(call: Call) -> Shape | None:
    x, weight, bias = call.shape("input"), call.shape("weight"), call.shape("bias")
    if not x or weight is None or len(weight) != 2 or x[-1] != weight[1] or bias not in (None, weight[:1]):
        return None
    return (*x[:-1], weight[0])


def _normed(call: Call) -> Shape | None:
    """A norm over the last dimensions, which its weight and bias have."""
    x, sizes = call.shape("input"), call.given.get("normalized_shape")
    if not x or not isinstance(sizes, tuple) or not sizes or x[-len(sizes) :] != sizes:
        return None
    return x if all(call.shape(name) in (None, sizes) for name in ("weight", "bias")) else None


def _attention(call: Call) -> Shape | None:
    query, key, value = (call.shape(name) for name in ("query", "key", "value"))
    if not query or not key or not value or not len(query) == len(key) == len(value) >= 2:
        return None
    lead = broadcast([query[:-2], key[:-2], value[:-2]])
    if call.given.get("enable_gqa") is True and len(query) > 2:  # some heads of queries share one of keys and values
        whole = key[:-2] == value[:-2] and query[:-3] == key[:-3] and key[-3] and not query[-3] % key[-3]
        lead = query[:-2] if whole else None
    if lead is None or query[-1] != key[-1] or key[-2] != value[-2]:
        return None
    mask, scores = call.shape("attn_mask"), (*lead, query[-2], key[-2])
    return (*lead, query[-2], value[-1]) if mask is None or _expands(mask, scores) else None


def _selected(call: Call) -> Shape | None:
    """Rows of the first argument along a dimension, by their numbers."""
    shape, index = _same(call), call.shape("index")
    places = None if shape is None else _places(call.given.get("dim"), shape)
    if not shape or index is None or len(index) > 1 or places is None or len(places) != 1:
        return None
    return tuple(math.prod(index) if at in places else size for at, size in enumerate(shape))


def _embedded(call: Call) -> Shape | None:
    weight, indices = call.shape("weight"), call.shape("indices")
    return None if weight is None or indices is None or len(weight) != 2 else (*indices, weight[1])


def _joined(call: Call) -> Shape | None:
    shapes = _shapes(call, "tensors")
    kept: Sequence[Shape] = [shape for shape in shapes if shape != (0,)] or shapes[:1]
    places = _places(call.given.get("dim", 0), kept[0]) if kept and kept[0] else None
    if places is None or len(places) != 1:
        return None
    (at,) = places
    if any(
        len(one) != len(kept[0]) or (*one[:at], *one[at + 1 :]) != (*kept[0][:at], *kept[0][at + 1 :]) for one in kept
    ):
        return None
    return (*kept[0][:at], sum(shape[at] for shape in kept), *kept[0][at + 1 :])


def _first(call: Call) -> Shape | None:
    """The k greatest along a dimension."""
    shape, k = _same(call), call.given.get("k")
    places = None if shape is None else _places(call.given.get("dim", -1), shape)
    if not shape or type(k) is not int or places is None or len(places) != 1:
        return None
    (at,) = places
    return (*shape[:at], k, *shape[at + 1 :]) if 0 <= k <= shape[at] else None


def _native_norm(call: Call) -> tuple[Shape, ...] | None:
    """A norm with its means and deviations."""
    x, sizes = _normed(call), call.given.get("normalized_shape")
    if x is None or not isinstance(sizes, tuple):
        return None
    stats = (*x[: -len(sizes)], *(1,) * len(sizes))
    return (x, stats, stats)


def _group_norm(call: Call) -> tuple[Shape, ...] | None:
    x, rows, groups = call.shape("input"), call.given.get("N"), call.given.get("group")
    if x is None or type(rows) is not int or type(groups) is not int:
        return None
    return (x, (rows, groups), (rows, groups))


def _batch_norm(call: Call) -> tuple[Shape, ...] | None:
    """With running statistics, of which it returns none, or with those of the batch, which it returns."""
    x = call.shape("input")
    if x is None or len(x) < 2:
        return None
    stats = (0,) if "running_mean" in call.given else x[1:2]
    return (x, stats, stats)


def _arange(call: Call) -> Shape | None:
    start, end, step = (call.given.get(name, default) for name, default in (("start", 0), ("end", 0), ("step", 1)))
    if not all(isinstance(value, (int, float)) and math.isfinite(value) for value in (start, end, step)):
        return None
    first, last, by = (value for value in (start, end, step) if isinstance(value, (int, float)))
    return None if not by or (last - first) / by < 0 else (math.ceil((last - first) / by),)


def _indexed(call: Call) -> Shape | None:
    """Advanced indexing by integers; masks give sizes that follow from values."""
    shape, indices = _same(call), call.given.get("indices")
    if shape is None or not isinstance(indices, tuple) or not 0 < len(indices) <= len(shape):
        return None
    at = [place for place, index in enumerate(indices) if isinstance(index, TensorArg)]
    layouts = [call.layouts(number) for number in tensor_numbers(indices)]
    common = broadcast([layout.shape for layout in layouts])
    if not at or common is None or any(layout.dtype not in ("int64", "int32") for layout in layouts):
        return None
    lead = at[0] if at == list(range(at[0], at[-1] + 1)) else 0
    rest = [size for place, size in enumerate(shape) if place not in at]
    return (*rest[:lead], *common, *rest[lead:])


def _gathered(call: Call) -> Shape | None:
    shape, index = _along(call), call.shape("index")
    return index if shape is not None and index is not None and len(index) == len(shape) else None


def _repeated(call: Call) -> Shape | None:
    shape, times = _same(call), call.given.get("repeats")
    if shape is None or not isinstance(times, tuple) or len(times) < len(shape):
        return None
    whole = (*(1,) * (len(times) - len(shape)), *shape)
    counts = [number for number in times if type(number) is int and number >= 0]
    return tuple(size * number for size, number in zip(whole, counts)) if len(counts) == len(times) else None


def _stacked(call: Call) -> Shape | None:
    shapes, dim = _shapes(call, "tensors"), call.given.get("dim", 0)
    if not shapes or len(set(shapes)) > 1 or type(dim) is not int:
        return None
    count = len(shapes[0]) + 1
    at = dim % count
    return (*shapes[0][:at], len(shapes), *shapes[0][at:]) if -count <= dim < count else None


def _searched(call: Call) -> Shape | None:
    order, values = call.shape("sorted_sequence"), call.shape("self") or ()  # a number has no sizes
    fits = order is not None and (len(order) == 1 or order[:-1] == values[:-1])
    return values if fits else None


def _recurrent(call: Call) -> tuple[Shape, ...] | None:
    """What a network returns for each step, and its last states; `demands` has looked at the sizes."""
    x, states = call.shape("input"), call.given.get("hx")
    shapes = [call.layouts(n).shape for n in tensor_numbers(states if isinstance(states, tuple) else (states,))]
    if x is None or not shapes:
        return None
    ways = 1 + (call.given.get("bidirectional") is True)
    return ((*x[:2], shapes[0][-1] * ways), *shapes)


RULES: Mapping[str, Rule] = {
    "broadcast": _broadcast,
    "same": _same,
    "along": _along,
    "reduced": _reduced,
    "product": _product,
    "linear": _linear,
    "normed": _normed,
    "attention": _attention,
    "selected": _selected,
    "embedded": _embedded,
    "joined": _joined,
    "first": _first,
    "arange": _arange,
    "indexed": _indexed,
    "gathered": _gathered,
    "repeated": _repeated,
    "stacked": _stacked,
    "searched": _searched,
    "convolution": windows.convolution,
    "pooled": windows.pooled,
    "padded": windows.padded,
    "resized": windows.resized,
}
RULES_OF_EACH: Mapping[str, RuleOfEach] = {
    "native_norm": _native_norm,
    "group_norm": _group_norm,
    "batch_norm": _batch_norm,
    "recurrent": _recurrent,
}
