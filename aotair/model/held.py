"""What a model holds beside its parameters and buffers, by path: tensors and plain values, however deep."""

import enum
import inspect
import itertools
import sys
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy
import torch

_DEPTH = 6  # attributes of attributes
_OWN = ("_parameters", "_buffers", "_modules")  # of a module, which go by other names
PLAIN = (
    int,
    float,
    complex,
    str,
    bytes,
    bytearray,
    type(None),
    enum.Enum,
    range,
    slice,
    itertools.count,
    torch.dtype,
    torch.device,
    torch.Size,
    numpy.ndarray,
    numpy.generic,
)

Holder = dict[Any, Any] | list[Any]
# What can be given other contents.
Container = dict[Any, Any] | list[Any] | set[Any] | deque[Any] | numpy.ndarray[Any, Any] | bytearray


@dataclass(frozen=True)
class HeldValue:
    """One tensor, plain value, or number of things in a container. Where it may be given another value, `holder[key]`
    is it."""

    path: str
    value: object
    holder: Holder | None = None
    key: Any = None  # whatever a dict may have, or a place in a list


def held_values(model: torch.nn.Module) -> Iterator[HeldValue]:
    """Each tensor once, and every plain value, in attributes, lists, dicts, sets and objects of a model, of its classes
    and of what it holds."""
    for item in _walk(model):
        if isinstance(item.value, (*PLAIN, torch.Tensor)):
            yield item
        elif isinstance(item.value, (dict, list, set, frozenset, deque)):
            yield HeldValue(f"len({item.path})", len(item.value))


class Snapshot:
    """What a model holds at one time, to be put back. Tensors are remembered, not their values. What lies in things of
    the standard library, as a logger's, is the process's and stays as it is."""

    def __init__(self, model: torch.nn.Module):
        kept = (pair for item in _walk(model, enters=_is_the_models) for pair in _containers(item))
        self._kept = [(path, thing, _content(thing)) for path, thing in kept]

    def restore(self) -> None:
        """Put back what is no longer as it was; what was not there is there no more."""
        for _, thing, content in self._kept:
            if not any(True for _ in _differences(content, thing)):
                continue
            if isinstance(thing, (numpy.ndarray, bytearray)):
                thing[:] = content
            else:
                thing.clear()
                (thing.update if isinstance(thing, (dict, set)) else thing.extend)(content)

    def changed(self) -> list[str]:
        """The paths of what is another than it was, sorted."""
        found = {path + key for path, thing, before in self._kept for key in _differences(before, thing)}
        return sorted(path.lstrip(".") for path in found)


def _containers(item: HeldValue) -> Iterator[tuple[str, Container]]:
    """What of a thing can be given other contents."""
    value = item.value
    if isinstance(value, (dict, list, set, deque, numpy.ndarray, bytearray)):
        yield item.path, value
    elif not isinstance(value, (*PLAIN, torch.Tensor)) and type(getattr(value, "__dict__", None)) is dict:
        yield item.path, value.__dict__
        if isinstance(value, torch.nn.Module):
            yield from ((item.path, value.__dict__[name]) for name in _OWN)


def _content(thing: Container) -> Any:
    """A copy of what a thing holds, of its own kind, or a list where that is a deque."""
    if isinstance(thing, (numpy.ndarray, bytearray)):
        return thing.copy()
    return dict(thing) if isinstance(thing, dict) else set(thing) if isinstance(thing, set) else list(thing)


def _differences(before: Any, thing: Container) -> Iterator[str]:
    """The keys whose values are others; "" for what has no keys."""
    now, nothing = _content(thing), object()
    if isinstance(before, dict):
        keys = dict.fromkeys([*before, *now])
        yield from (f".{key}" for key in keys if not _is_same(before.get(key, nothing), now.get(key, nothing)))
    elif isinstance(before, list):
        if len(before) != len(now) or not all(map(_is_same, before, now)):
            yield ""
    elif not (numpy.array_equal(before, now) if isinstance(before, numpy.ndarray) else before == now):
        yield ""


def _is_same(one: object, other: object) -> bool:
    return one is other or (isinstance(one, PLAIN) and type(one) is type(other) and repr(one) == repr(other))


def _is_the_models(value: object) -> bool:
    """Whether a thing is no object of the standard library but a container."""
    package = type(value).__module__.partition(".")[0]
    return package in ("builtins", "collections", "types") or package not in sys.stdlib_module_names


def _walk(model: torch.nn.Module, enters: Callable[[object], bool] = lambda value: True) -> Iterator[HeldValue]:
    """Everything that `held_values` looks at, and what holds it, but for things that `enters` says no to."""
    known = {id(tensor) for tensor in (*model.parameters(), *model.buffers())}
    stack = [(HeldValue(name, module), 0) for name, module in model.named_modules()]
    turns = {id(item.value) for item, _ in stack}
    for kind in _classes(model):
        stack += [(HeldValue(f"{kind.__name__}.{name}", value), 1) for name, value in vars(kind).items()]
    while stack:
        item, depth = stack.pop()
        value = item.value
        if isinstance(value, PLAIN):
            yield item
            continue
        if id(value) in known or depth > _DEPTH or _is_code(value) or (depth and id(value) in turns):
            continue
        if not enters(value):
            continue
        known.add(id(value))
        yield item
        if isinstance(value, torch.Tensor):
            continue
        stack += [(child, depth + 1) for child in _children(item)]


def _classes(model: torch.nn.Module) -> list[type]:
    """The classes of the model's modules that are not torch's own: their attributes outlive calls too."""
    found = {kind: None for module in model.modules() for kind in type(module).__mro__}
    return [kind for kind in found if kind.__module__.partition(".")[0] not in ("torch", "builtins", "typing", "abc")]


def _children(item: HeldValue) -> Iterator[HeldValue]:
    value, path = item.value, item.path
    if isinstance(value, Mapping):
        holder = value if type(value) is dict else None
        for key, child in list(value.items()):
            yield HeldValue(f"{path}[{key!r}]", child, holder, key)
    elif isinstance(value, (list, tuple, deque)):
        for number, child in enumerate(value):
            yield HeldValue(f"{path}[{number}]", child, value if isinstance(value, list) else None, number)
    elif isinstance(value, (set, frozenset)):
        yield HeldValue(path, repr(sorted(map(repr, (v for v in value if isinstance(v, PLAIN))))))
    else:
        attributes = getattr(value, "__dict__", {})
        skipped = _OWN if isinstance(value, torch.nn.Module) else ()
        for name, child in list(attributes.items()):
            if name not in skipped:
                yield HeldValue(f"{path}.{name}".lstrip("."), child, attributes, name)
        for name in _slots(type(value)):
            if hasattr(value, name):
                yield HeldValue(f"{path}.{name}".lstrip("."), getattr(value, name))


def _slots(kind: type) -> Iterator[str]:
    for base in kind.__mro__:
        slots = base.__dict__.get("__slots__", ())
        yield from (slots,) if isinstance(slots, str) else slots


def _is_code(value: object) -> bool:
    code = inspect.isclass(value) or inspect.isroutine(value) or inspect.ismodule(value) or inspect.iscode(value)
    return code or isinstance(value, (property, classmethod, staticmethod))
