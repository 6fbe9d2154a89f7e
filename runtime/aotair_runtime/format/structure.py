"""The structure in which a call returns its tensors: as the original model did, from plain data."""

import functools
import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeAlias

import torch

from .schema import Tree

Packer: TypeAlias = Callable[[Sequence[torch.Tensor]], object]


class Record(dict[str, object]):
    """A named group of outputs (a dataclass or model output in the original): by key, by attribute, or by position.

    A field that is None is an attribute only, as in the model outputs of transformers.
    """

    _absent: frozenset[str] = frozenset()

    def __getattr__(self, name: str) -> Any:
        if name in self:
            return self[name]
        if name in self._absent:
            return None
        raise AttributeError(f"no output {name!r}; there are {', '.join(map(str, self))}")

    def __getitem__(self, key: str | int | slice) -> Any:
        return self.to_tuple()[key] if isinstance(key, (int, slice)) else super().__getitem__(key)

    def __missing__(self, key: str) -> None:
        if key in self._absent:
            return None
        raise KeyError(key)

    def to_tuple(self) -> tuple[Any, ...]:
        """The outputs without their names."""
        return tuple(dict.values(self))


class Named(tuple[Any, ...]):
    """A named tuple of the original: a tuple whose items are attributes too."""

    __slots__ = ()
    _fields: tuple[str, ...] = ()

    def __new__(cls, *values: object) -> "Named":
        if len(values) != len(cls._fields):
            raise TypeError(f"{cls.__name__} has {len(cls._fields)} fields, got {len(values)}")
        return tuple.__new__(cls, values)

    @classmethod
    def _make(cls, values: Iterable[object]) -> "Named":
        return cls(*values)

    def _asdict(self) -> dict[str, Any]:
        return dict(zip(self._fields, self))

    def _replace(self, **changes: object) -> "Named":
        if unknown := set(changes) - set(self._fields):
            raise ValueError(f"no fields {', '.join(sorted(unknown))} in {type(self).__name__}")
        return self._make((self._asdict() | changes).values())

    def __getnewargs__(self) -> tuple[Any, ...]:
        return tuple(self)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in zip(self._fields, self))})"


def packer(tree: Tree) -> Packer:
    """A function from the list of output tensors to the structure that `tree` (schema.Tree) describes."""
    if tree[0] == "tensor":
        number = tree[1]
        return lambda outputs: outputs[number]
    if tree[0] == "const":
        value = tree[1]
        return lambda outputs: value
    if tree[0] == "dict":
        keys, parts = tree[1], [packer(child) for child in tree[2:]]
        return lambda outputs: dict(zip(keys, [part(outputs) for part in parts]))
    if tree[0] == "record":
        return _record_packer(tree[2], tree[3:])
    if tree[0] == "named":
        parts = [packer(child) for child in tree[3:]]
        make = functools.partial(tuple.__new__, _named(tree[1], tree[2]))
        return lambda outputs: make([part(outputs) for part in parts])
    parts = [packer(child) for child in tree[1:]]
    kind = tuple if tree[0] == "tuple" else list
    return lambda outputs: kind([part(outputs) for part in parts])


def children(tree: Tree) -> tuple[Tree, ...]:
    """The structures right within one; none in a tensor or constant."""
    if tree[0] == "tensor" or tree[0] == "const":
        return ()
    if tree[0] == "dict":
        return tree[2:]
    return tree[3:] if tree[0] == "record" or tree[0] == "named" else tree[1:]


def leaf_names(tree: Tree, path: str = "") -> Iterator[str]:
    """A name for each tensor of a structure: `last_hidden_state`, `past[0]`, or `output` where it is one tensor."""
    if tree[0] == "tensor":
        yield path or "output"
    elif tree[0] == "tuple" or tree[0] == "list":
        for i, child in enumerate(tree[1:]):
            yield from leaf_names(child, f"{path}[{i}]")
    elif tree[0] != "const":
        for name, child in zip(tree[1] if tree[0] == "dict" else tree[2], children(tree), strict=True):
            yield from leaf_names(child, f"{path}.{name}" if path else str(name))


def _record_packer(keys: Sequence[str], children: Sequence[Tree]) -> Packer:
    absent = frozenset(key for key, child in zip(keys, children) if child == ("const", None))
    there = [(key, packer(child)) for key, child in zip(keys, children) if key not in absent]
    # A field that is called like a method of dict is the field, as in the original.
    shadowed = {key: property(_item(key)) for key, _ in there if hasattr(Record, key) and not key.startswith("_")}
    kind = type("Record", (Record,), {"_absent": absent, **shadowed})
    return lambda outputs: kind([(key, part(outputs)) for key, part in there])


def _item(key: str) -> Callable[[Record], object]:
    return lambda record: dict.__getitem__(record, key)


def _named(name: str, fields: tuple[str, ...]) -> type[Named]:
    """A class of named tuples. Nothing is executed or imported for it: a subclass with a property for each field."""
    places = {field: property(operator.itemgetter(place)) for place, field in enumerate(fields)}
    return type(name, (Named,), {"__slots__": (), "_fields": fields, **places})
