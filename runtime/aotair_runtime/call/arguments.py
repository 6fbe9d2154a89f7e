"""A call's arguments, however they were passed, as values in the order of the entry point's inputs.

Inputs may have dotted names: `batch.ids` is what lies under "ids" in the argument `batch`, be that a dict, a sequence
(`layers.0`) or an object with attributes. Such an argument is passed as the original model takes it, or flat.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence

import torch

from ..format.dotted_names import PLAIN, Branch, tree_of


class Misfit(Exception):
    """What came instead of the arguments that were expected."""


class Arguments:
    """The names of an entry point's inputs, and of what the model was built with as constants."""

    def __init__(self, names: Sequence[str], constants: Mapping[str, object]):
        self._names, self._constants = tuple(names), dict(constants)
        self._tree = tree_of([*names, *constants])
        self._nested = any("." in name for name in (*names, *constants))
        # A call with so many positional arguments, all tensors, needs no look at their names.
        self.plain = -1 if self._nested else len(self._names)

    def ordered(self, args: Sequence[object], kwargs: Mapping[str, object]) -> list[object]:
        """The inputs' values in order. By position, plain values are the constants in their order, and everything else
        is inputs in theirs. Raises Misfit."""
        if len(args) == 1 and not kwargs and not isinstance(args[0], torch.Tensor):
            args, kwargs = self._unpacked(args[0])
        if len(args) > len(self._names) + len(self._constants):
            raise Misfit(f"{len(args)} positional arguments")
        given: dict[str, object] = {}
        constants = iter(self._constants)
        for value in args:
            if isinstance(value, PLAIN) and (constant := next(constants, None)) is not None:
                self._take(constant, value, given)
                continue
            free = next((name for name in self._names if name not in given), None)
            if free is None:
                raise Misfit(f"{len(args)} positional arguments")
            self._take(free if isinstance(value, torch.Tensor) else free.partition(".")[0], value, given)
        for name, value in kwargs.items():
            if name not in self._tree and name not in self._names and name not in self._constants:
                raise Misfit(f"the unknown argument {name!r}")
            self._take(name, value, given)
        missing = [name for name in self._names if name not in given]
        if missing:
            raise Misfit("no " + ", ".join(repr(name) for name in missing))
        return [given[name] for name in self._names]

    def _unpacked(self, value: object) -> tuple[Sequence[object], Mapping[str, object]]:
        """What one argument that is no tensor stands for: all inputs in a dict or a sequence, or a structured one."""
        if isinstance(value, Mapping):
            fits = not self._nested or all(self._names_one(key, item) for key, item in value.items())
            return ((), value) if fits else ((value,), {})
        if not isinstance(value, (tuple, list)):
            return (value,), {}
        if self._nested and len(self._tree) == 1 and (_is_numbered(*self._tree.values()) or hasattr(value, "_fields")):
            return (value,), {}
        return tuple(value), {}

    def _names_one(self, key: object, value: object) -> bool:
        """Whether a packed value is for the argument of that name."""
        if key in self._names or key in self._constants:
            return True
        return key in self._tree and not isinstance(value, (torch.Tensor, *PLAIN))

    def _take(self, path: str, value: object, given: dict[str, object]) -> None:
        if path in self._constants:
            if not _same(value, self._constants[path]):
                raise Misfit(f"{value!r} for {path!r}, which the model was built with as {self._constants[path]!r}")
        elif path in self._names:
            if path in given:
                raise Misfit(f"the argument {path!r} twice")
            given[path] = value
        else:
            branch = self._tree
            for step in path.split("."):
                branch = branch[step]
            part = _parts(path, branch, value)
            for step in branch:
                inner = f"{path}.{step}"
                if (found := part(step)) is not _NOTHING:
                    self._take(inner, found, given)


_NOTHING = object()


def _parts(path: str, branch: Mapping[str, Branch], value: object) -> Callable[[str], object]:
    """What lies in a structured argument under each step. Raises Misfit where it holds other things too."""
    if isinstance(value, (torch.Tensor, *PLAIN)):
        raise Misfit(f"a {type(value).__name__} for {path!r}, which holds {', '.join(branch)}")
    if isinstance(value, Mapping):
        found = {str(key): item for key, item in value.items()}
        _refuse_others(path, [key for key in found if key not in branch])
        return lambda step: found.get(step, _NOTHING)
    if isinstance(value, (tuple, list)) and _is_numbered(branch):
        if len(value) != len(branch):
            raise Misfit(f"{len(value)} items for {path!r}, which holds {len(branch)}")
        return lambda step: value[int(step)]
    if isinstance(value, (tuple, list)) and not hasattr(value, "_fields"):
        raise Misfit(f"a {type(value).__name__} for {path!r}, which holds {', '.join(branch)}")
    _refuse_others(path, [name for name, usual in _fields(value) if name not in branch and not usual])
    return lambda step: getattr(value, step, _NOTHING)


def _fields(value: object) -> list[tuple[str, bool]]:
    """The fields of a named tuple or dataclass, and whether each is as it is where nobody gives it another value."""
    if dataclasses.is_dataclass(value):
        usual = {field.name: field.default for field in dataclasses.fields(value)}
    else:
        defaults = getattr(value, "_field_defaults", {})
        usual = {name: defaults.get(name, dataclasses.MISSING) for name in getattr(value, "_fields", ())}
    found = {name: getattr(value, name) for name in usual}
    return [(name, item is None or item is usual[name] or _same(item, usual[name])) for name, item in found.items()]


def _refuse_others(path: str, names: Sequence[str]) -> None:
    if names:
        raise Misfit(f"the unknown argument {f'{path}.{names[0]}'!r}")


def _is_numbered(branch: Mapping[str, Branch]) -> bool:
    return bool(branch) and all(step.isdigit() for step in branch)


def _same(value: object, constant: object) -> bool:
    """Whether a plain value is the constant: 1 is 1.0 and not True."""
    if not isinstance(value, PLAIN) or isinstance(value, bool) != isinstance(constant, bool):
        return False
    return value == constant or (value != value and constant != constant)
