"""What a model holds beside its parameters and buffers, by path: tensors and plain values, however deep."""

import enum
import inspect
import itertools
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy
import torch

_DEPTH = 6  # attributes of attributes
_OWN = ("_parameters", "_buffers", "_modules")  # of a module, which go by other names
PLAIN = (
    int, float, complex, str, bytes, bytearray, type(None), enum.Enum, range, slice, itertools.count, torch.dtype,
    torch.device, torch.Size, numpy.ndarray, numpy.generic,
)  # fmt: skip


@dataclass(frozen=True)
class Held:
    """One tensor, plain value, or number of things in a container. Where it may be given another value, `holder[key]`
    is it."""

    path: str
    value: object
    holder: dict | list | None = None
    key: object = None


def held(model: torch.nn.Module) -> Iterator[Held]:
    """Each tensor once, and every plain value, in attributes, lists, dicts, sets and objects of a model, of its classes
    and of what it holds."""
    known = {id(tensor) for tensor in (*model.parameters(), *model.buffers())}
    stack = [(Held(name, module), 0) for name, module in model.named_modules()]
    turns = {id(item.value) for item, _ in stack}
    for kind in _classes(model):
        stack += [(Held(f"{kind.__name__}.{name}", value), 1) for name, value in vars(kind).items()]
    while stack:
        item, depth = stack.pop()
        value = item.value
        if isinstance(value, PLAIN):
            yield item
            continue
        if id(value) in known or depth > _DEPTH or _is_code(value) or (depth and id(value) in turns):
            continue
        known.add(id(value))
        if isinstance(value, torch.Tensor):
            yield item
            continue
        if isinstance(value, (dict, list, set, frozenset, deque)):
            yield Held(f"len({item.path})", len(value))
        stack += [(child, depth + 1) for child in _children(item)]


def _classes(model: torch.nn.Module) -> list[type]:
    """The classes of the model's modules that are not torch's own: their attributes outlive calls too."""
    found = {kind: None for module in model.modules() for kind in type(module).__mro__}
    return [kind for kind in found if kind.__module__.partition(".")[0] not in ("torch", "builtins", "typing", "abc")]


def _children(item: Held) -> Iterator[Held]:
    value, path = item.value, item.path
    if isinstance(value, Mapping):
        plain = type(value) is dict
        for key, child in list(value.items()):
            yield Held(f"{path}[{key!r}]", child, value if plain else None, key)
    elif isinstance(value, (list, tuple, deque)):
        for number, child in enumerate(value):
            yield Held(f"{path}[{number}]", child, value if isinstance(value, list) else None, number)
    elif isinstance(value, (set, frozenset)):
        yield Held(path, repr(sorted(map(repr, (v for v in value if isinstance(v, PLAIN))))))
    else:
        attributes = getattr(value, "__dict__", {})
        skipped = _OWN if isinstance(value, torch.nn.Module) else ()
        for name, child in list(attributes.items()):
            if name not in skipped:
                yield Held(f"{path}.{name}".lstrip("."), child, attributes, name)
        for name in _slots(type(value)):
            if hasattr(value, name):
                yield Held(f"{path}.{name}".lstrip("."), getattr(value, name))


def _slots(kind: type) -> Iterator[str]:
    for base in kind.__mro__:
        slots = base.__dict__.get("__slots__", ())
        yield from (slots,) if isinstance(slots, str) else slots


def _is_code(value: object) -> bool:
    code = inspect.isclass(value) or inspect.isroutine(value) or inspect.ismodule(value) or inspect.iscode(value)
    return code or isinstance(value, (property, classmethod, staticmethod))
