"""What a model changes from call to call although it is neither an input nor a registered buffer: found, and refused
by name.

torch.export takes such tensors and values for constants: what a call writes there is refused without its name, or lost.
"""

import copy
import logging
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy
import torch
from torch.utils import _pytree

from aotair_runtime.format.schema import Tolerance
from aotair_runtime.weights.compared import difference

from ..errors import ModelError, UnsupportedError, user_frame
from ..graph.resolve import resolved
from ..recipe.entry import EntryJob
from .aliases import overlap, shared_memory
from .held import PLAIN, HeldValue, Holder, Snapshot, held_values
from .reference import Original
from .samples import random_inputs
from .written import Written, side_by_side

log = logging.getLogger("aotair")

_EXACT = Tolerance(0.0, 0.0)

Results = list[object]  # the leaves of what a call returns, and what it leaves in the buffers


def refuse_hidden_state(model: torch.nn.Module, job: EntryJob) -> None:
    """Raises UnsupportedError where a call of the entry point leaves a tensor with another value, or a plain value on
    which its outputs depend, and ModelError where the call itself fails.

    Two calls are made: what the first one makes and the second one leaves alone is a constant made late.
    """
    snapshot = Snapshot(model)
    first = first_call(model, Calls(model, job))
    if snapshot.changed():  # a table that grows is as large as it will be
        first_call(model, Calls(model, job, bucket=-1))
    calls = Calls(model, job)
    tensors, values = _tensors(model), _values(model)
    second = calls.make()
    after, now = _tensors(model), _values(model)
    calls.reset()
    written = [name for name in after if after[name] != tensors.get(name)]
    replaced = {name for name in written if name in tensors and after[name][0] != tensors[name][0]}
    if set(written) != replaced or _depends_on(calls, model, replaced, first):
        _refuse_tensors(model, job, written)
    elif written:
        log.info("the model keeps %s of each call; no output was seen to depend on it", some_names(written))
    changed = [path for path in now | values if _text(now.get(path)) != _text(values.get(path))]
    third = calls.make()
    calls.reset()
    if changed:
        there = {path: now[path] for path in changed if path in now}
        _refuse_values(calls, job, there, changed, [first, second, third])
    if not equal_results(second, third, job.tolerance):
        raise ModelError(
            "the model answers otherwise when it is called again with the same inputs",
            where=job.where,
            expected="outputs that follow from the inputs and from registered buffers",
            fix="take out what it reads from elsewhere: the time, random numbers, global variables, iterators",
        )


def first_call(model: torch.nn.Module, calls: "Calls") -> Results:
    """What a call returns. Afterwards the buffers have their values from before, but for those that the call has
    replaced by others: constants made late."""
    before = registered_buffers(model)
    result = calls.make()
    late = {
        place: buffer for place, buffer in registered_buffers(model).items() if is_another(buffer, before.get(place))
    }
    calls.reset()
    for (module, name), buffer in late.items():
        module._buffers[name] = buffer
    return result


def registered_buffers(model: torch.nn.Module) -> dict[tuple[torch.nn.Module, str], torch.Tensor | None]:
    return {(module, name): buffer for module in model.modules() for name, buffer in module._buffers.items()}


def is_another(buffer: torch.Tensor | None, before: torch.Tensor | None) -> bool:
    """Whether a buffer has been replaced by one of another shape or dtype: as only a constant made late can be."""
    if buffer is None or before is None:
        return buffer is not before
    return buffer.shape != before.shape or buffer.dtype != before.dtype


class Calls:
    """Calls of one entry point with the same inputs, by default of the smallest bucket, from the buffers' first
    values; what they leave in `buffers` (None: in all) counts as a result."""

    def __init__(
        self,
        model: torch.nn.Module,
        job: EntryJob,
        bucket: int = 0,
        seed: int = 0,
        buffers: Collection[str] | None = None,
    ):
        self._original, self._job, self._buffers = Original(model, job), job, buffers
        self._inputs = random_inputs(job, dict(zip(job.dims(), job.bucket_sizes()[bucket])), seed)

    def make(self) -> Results:
        """The leaves of what a call returns, copied, and what it has written into the buffers."""
        job = self._job
        try:
            result = self._original.call({name: tensor.clone() for name, tensor in self._inputs.items()})
        except ModelError:  # of the recipe's arguments
            raise
        except UnsupportedError as error:  # of an op's host kernel
            raise UnsupportedError(
                error.what + user_frame(error),
                where=job.where,
                expected=error.expected,
                got=error.got,
                fix=error.fix,
            ) from error
        except Exception as error:
            raise ModelError(
                f"the original model failed on inputs within their ranges{user_frame(error)}: "
                f"{type(error).__name__}: {error}",
                where=job.where,
                expected=f"{job.method} to take random inputs of its buckets",
                fix="correct the shapes, dtypes and ranges of the recipe's inputs",
            ) from error
        leaves = [leaf.clone() if isinstance(leaf, torch.Tensor) else leaf for leaf in _pytree.tree_leaves(result)]
        before, buffers = self._original.first_values(), self._original.buffers()
        counted = [name for name in buffers if self._buffers is None or name in self._buffers]
        nothing = torch.empty(0)  # before a buffer that the call has registered
        return leaves + [Written.between(before.get(name, nothing), resolved(buffers[name])) for name in counted]

    def reset(self) -> None:
        self._original.reset()


# ---- tensors -------------------------------------------------------------------------------------------------------


def hidden_tensors(model: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors in attributes, lists and dicts of a model and of what it holds, by path, but for its parameters and
    buffers; each once."""
    yield from ((item.path, item.value) for item in held_values(model) if isinstance(item.value, torch.Tensor))


def _tensors(model: torch.nn.Module) -> dict[str, tuple[int, int]]:
    return {name: (id(tensor), tensor._version) for name, tensor in hidden_tensors(model)}


def _depends_on(calls: Calls, model: torch.nn.Module, names: set[str], outputs: Results) -> bool:
    """Whether a call answers otherwise where these tensors, which each call makes anew, hold NaN or far-off numbers
    before it."""
    places: list[tuple[Holder, Any, torch.Tensor]] = []
    for item in held_values(model):
        if item.path in names and isinstance(item.value, torch.Tensor):
            if item.holder is None:
                return True
            places.append((item.holder, item.key, item.value))
    for holder, key, tensor in places:
        floating = tensor.is_floating_point() or tensor.is_complex()
        holder[key] = torch.full_like(tensor, float("nan") if floating else 1)
    try:
        return not equal_results(outputs, calls.make())
    except ModelError:
        return True
    finally:
        for holder, key, tensor in places:
            holder[key] = tensor
        calls.reset()


def _refuse_tensors(model: torch.nn.Module, job: EntryJob, changed: list[str]) -> None:
    tensors = dict(hidden_tensors(model))
    for name in sorted(changed):
        for other, buffer in model.named_buffers():
            if overlap(tensors[name], buffer):
                raise shared_memory(other, name, job.where)
    if changed:
        raise UnsupportedError(
            f"the model changes {some_names(changed)}, which outlives the call",
            where=job.where,
            expected="registered buffers, which become state, and mutated inputs",
            fix=f"make it a buffer (self.register_buffer({min(changed).rpartition('.')[2]!r}, …)), or an input with "
            "mutated: true",
        )


# ---- plain values --------------------------------------------------------------------------------------------------


def _values(model: torch.nn.Module) -> dict[str, HeldValue]:
    return {item.path: _kept(item) for item in held_values(model) if not isinstance(item.value, torch.Tensor)}


def _kept(item: HeldValue) -> HeldValue:
    """With its value as it is now."""
    changes = isinstance(item.value, (numpy.ndarray, bytearray))
    return HeldValue(item.path, copy.copy(item.value) if changes else _count(item.value), item.holder, item.key)


def _count(value: object) -> object:
    return repr(value) if type(value).__name__ == "count" else value


def _text(item: HeldValue | None) -> str:
    """Equal for equal values: NaN is itself, and 1 is not True. Nothing where there is none."""
    if item is None:
        return ""
    value = item.value
    shown = (value.dtype, value.shape, value.tobytes()) if isinstance(value, numpy.ndarray) else repr(value)
    return f"{type(value).__name__} {shown}"


def _refuse_values(
    calls: Calls, job: EntryJob, values: Mapping[str, HeldValue], changed: list[str], made: Sequence[Results]
) -> None:
    """Raises UnsupportedError where an output depends on a value that the model changes, as far as other values can
    show: those of the next calls, and some that are far off."""
    outputs = [*made[1:], *_with_other_values(calls, values)]
    names = sorted(set(map(_short, changed)))
    if all(equal_results(made[0], other) for other in outputs):
        log.info("the model changes %s at each call; no output was seen to depend on it", some_names(names))
        return
    raise UnsupportedError(
        f"the model changes {some_names(names)} at each call, and its outputs depend on that",
        where=job.where,
        expected="Python values that stay as they are: a program holds them as constants",
        fix=f"make {names[0]} a buffer, a tensor that is changed in place (self.register_buffer("
        f"{names[0].rpartition('.')[2]!r}, …)), or an input of the model",
    )


def _with_other_values(calls: Calls, values: Mapping[str, HeldValue]) -> Iterator[Results | None]:
    """What calls return where the values are others; None where a call then fails."""
    for item in values.values():
        if (holder := item.holder) is None:
            continue
        for other in _others(item.value):
            before = holder[item.key]
            holder[item.key] = other
            try:
                calls.reset()
                yield calls.make()
            except ModelError:
                yield None
            finally:
                holder[item.key] = before
    calls.reset()
    yield calls.make()
    calls.reset()


def _others(value: object) -> tuple[object, ...]:
    if isinstance(value, bool):
        return (not value,)
    if isinstance(value, int):
        return (0, value + 1_000)
    if isinstance(value, float):
        return (0.0, 2 * value + 1_000)
    return ("",) if isinstance(value, str) else ()


def equal_results(a: Results, b: Results | None, tolerance: Tolerance = _EXACT) -> bool:
    """Whether two calls have returned the same; False for what is no result."""
    if b is None or len(a) != len(b):
        return False
    return all(_equal(x, y, tolerance) for x, y in zip(a, b))


def _equal(one: object, other: object, tolerance: Tolerance) -> bool:
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        return difference(one, other, tolerance).within
    if isinstance(one, Written) and isinstance(other, Written):
        mine, theirs = side_by_side(one, other)
        return difference(mine, theirs, tolerance).within
    return type(one) is type(other) and (not isinstance(one, PLAIN) or repr(one) == repr(other))


def some_names(names: list[str]) -> str:
    names = sorted(names)
    return ", ".join(names[:5]) + (" …" if names[5:] else "")


def _short(path: str) -> str:
    """The name of what holds a value: of `len(log)` and of `log[3]`, `log`."""
    path = path.removeprefix("len(").removesuffix(")")
    while path.endswith("]"):
        path = path.rpartition("[")[0]
    return path
