"""A list of lengths while a model is exported: an object that stands for it and may only be handed on to ops."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NoReturn

import torch

from ..errors import UnsupportedError
from ..ops.host import LISTS, SUFFIX, with_tensors
from ..recipe.entry import EntryJob

_REFUSED = (
    "add radd sub rsub mul rmul getitem setitem iter len contains bool int index float eq ne lt le gt ge neg reversed"
)


class HostInput:
    """What the model gets at export for a host input: the traced tensor of its values."""

    def __init__(self, name: str, tensor: torch.Tensor):
        self._name, self._tensor = name, tensor

    @classmethod
    def __torch_function__(
        cls,
        func: object,
        types: Sequence[type],
        args: tuple[object, ...] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> object:
        """A call of an op that takes the list as a host argument becomes one of the op that takes a tensor."""
        name = _name(func)
        values = dict(zip(_argument_names(func), args)) | dict(kwargs or {}) if name else {}
        held = {key: value for key, value in values.items() if isinstance(value, HostInput)}
        if name is None or set(held) - set(LISTS[name]):
            raise _refusal(next(_lists((args, kwargs or {})))._name, f"an argument of {func}")
        count = len(args)
        rest = {key: value for key, value in list(values.items())[count:] if key not in held}
        tensors = {key + SUFFIX: value._tensor for key, value in held.items()}
        return with_tensors(name)(*args, **rest, **tensors)

    def __getattr__(self, attribute: str) -> NoReturn:
        if attribute.startswith("__"):
            raise AttributeError(attribute)
        raise _refusal(self._name, f".{attribute}")

    __hash__ = object.__hash__


def _refuses(method: str) -> Callable[..., NoReturn]:
    def refuse(self: HostInput, *_: object) -> NoReturn:
        raise _refusal(self._name, method)

    return refuse


for _method in _REFUSED.split():
    setattr(HostInput, f"__{_method}__", _refuses(f"__{_method}__"))


def with_host_inputs(values: Mapping[str, torch.Tensor], job: EntryJob) -> dict[str, object]:
    """Inputs by name, host inputs as the objects that stand for lists."""
    lists = [name for name, item in job.inputs.items() if item.host]
    return {**values, **{name: HostInput(name, values[name]) for name in lists}}


def _name(func: object) -> str | None:
    """The op's name, if it is one of torch_npu's that take lists."""
    packet = func.overloadpacket if isinstance(func, torch._ops.OpOverload) else func
    overload = func._overloadname if isinstance(func, torch._ops.OpOverload) else "default"
    names = (name for name in LISTS if packet is getattr(torch.ops.npu, name, None))
    return next(names, None) if overload == "default" else None


def _argument_names(func: object) -> list[str]:
    """Those of an op, or of its default overload."""
    op = func.default if isinstance(func, torch._ops.OpOverloadPacket) else func
    assert isinstance(op, torch._ops.OpOverload), "only ops have names here"
    return [argument.name for argument in op._schema.arguments]


def _lists(value: object) -> Iterator[HostInput]:
    if isinstance(value, HostInput):
        yield value
    elif isinstance(value, (tuple, list, dict)):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _lists(item)


def _refusal(name: str, use: str) -> UnsupportedError:
    return UnsupportedError(
        f"the model uses the host input {name!r} otherwise than as an argument",
        got=use,
        expected="it handed on, as it came, to " + " or ".join(f"torch.ops.npu.{op}" for op in LISTS),
        fix="compute the list before the call and pass it as another host input: what a graph computes from a list, a "
        "replay cannot replace",
    )
