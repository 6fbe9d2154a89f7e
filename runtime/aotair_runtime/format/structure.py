"""The structure in which a call returns its tensors: as the original model did, from plain data."""

import functools
import operator
from collections.abc import Callable, Iterator, Sequence

import torch


class Record(dict):
    """A named group of outputs (a dataclass or model output in the original): by key, by attribute, or by position.

    A field that is None is an attribute only, as in the model outputs of transformers.
    """

    _absent: frozenset = frozenset()

    def __getattr__(self, name: str):
        if name in self:
            return self[name]
        if name in self._absent:
            return None
        raise AttributeError(f"no output {name!r}; there are {', '.join(map(str, self))}")

    def __getitem__(self, key):
        return self.to_tuple()[key] if isinstance(key, (int, slice)) else super().__getitem__(key)

    def __missing__(self, key: str):
        if key in self._absent:
            return None
        raise KeyError(key)

    def to_tuple(self) -> tuple:
        """The outputs without their names."""
        return tuple(dict.values(self))


class Named(tuple):
    """A named tuple of the original: a tuple whose items are attributes too."""

    __slots__ = ()
    _fields: tuple[str, ...] = ()

    def __new__(cls, *values: object):
        if len(values) != len(cls._fields):
            raise TypeError(f"{cls.__name__} has {len(cls._fields)} fields, got {len(values)}")
        return tuple.__new__(cls, values)

    @classmethod
    def _make(cls, values):
        return cls(*values)

    def _asdict(self) -> dict:
        return dict(zip(self._fields, self))

    def _replace(self, **changes: object) -> "Named":
        if unknown := set(changes) - set(self._fields):
            raise ValueError(f"no fields {', '.join(sorted(unknown))} in {type(self).__name__}")
        return self._make((self._asdict() | changes).values())

    def __getnewargs__(self) -> tuple:
        return tuple(self)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in zip(self._fields, self))})"


def packer(tree: tuple) -> Callable[[Sequence[torch.Tensor]], object]:
    """A function from the list of output tensors to the structure that `tree` (schema.Tree) describes."""
    tag, *rest = tree
    if tag == "tensor":
        number = rest[0]
        return lambda outputs: outputs[number]
    if tag == "const":
        value = rest[0]
        return lambda outputs: value
    if tag == "dict":
        keys, parts = rest[0], [packer(child) for child in rest[1:]]
        return lambda outputs: dict(zip(keys, [part(outputs) for part in parts]))
    if tag == "record":
        return _record_packer(rest[1], rest[2:])
    if tag == "named":
        parts = [packer(child) for child in rest[2:]]
        make = functools.partial(tuple.__new__, _named(rest[0], rest[1]))
        return lambda outputs: make([part(outputs) for part in parts])
    parts = [packer(child) for child in rest]
    kind = tuple if tag == "tuple" else list
    return lambda outputs: kind([part(outputs) for part in parts])


def leaf_names(tree: tuple, path: str = "") -> Iterator[str]:
    """A name for each tensor of a structure: `last_hidden_state`, `past[0]`, or `output` where it is one tensor."""
    tag, *rest = tree
    if tag == "tensor":
        yield path or "output"
    elif tag in ("tuple", "list"):
        for i, child in enumerate(rest):
            yield from leaf_names(child, f"{path}[{i}]")
    elif tag in ("dict", "record", "named"):
        keys, children = (rest[0], rest[1:]) if tag == "dict" else (rest[1], rest[2:])
        for name, child in zip(keys, children, strict=True):
            yield from leaf_names(child, f"{path}.{name}" if path else str(name))


def _record_packer(keys: Sequence[str], children: Sequence[tuple]) -> Callable[[Sequence[torch.Tensor]], Record]:
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
