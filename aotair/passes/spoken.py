"""Which composites does the code of a user's pass speak of? What its code does not say, nobody can read off it."""

import functools
import types
from collections.abc import Iterable, Iterator

import torch

from .composites import TAKEN_APART

_DEPTH = 4  # of functions that call functions


def ops_named(function: object) -> set[torch._ops.OpOverload]:
    """The composites whose names stand in the code of a pass, or of the functions of its own that it calls."""
    words, found = set(), set()
    for value in _values(function, _DEPTH, set()):
        if isinstance(value, str):
            words.add(value)
        else:
            found.add(value)
    spoken = {part for word in words for part in word.replace("::", ".").split(".")}
    return {op for op in TAKEN_APART if op in found or op.overloadpacket in found or op._schema.name[6:] in spoken}


def _values(value: object, depth: int, known: set[int]) -> Iterator[object]:
    """Names, texts and ops in the code of a function, and in what that code takes from around it."""
    if id(value) in known or depth < 0:
        return
    known.add(id(value))
    if isinstance(value, (torch._ops.OpOverload, torch._ops.OpOverloadPacket, str)):
        yield value
    elif isinstance(value, (list, tuple, set, frozenset, dict)):
        for item in value:
            yield from _values(item, depth, known)
        if isinstance(value, dict):
            yield from _values(list(value.values()), depth, known)
    elif isinstance(value, functools.partial):
        yield from _values([value.func, *value.args, *value.keywords.values()], depth, known)
    elif isinstance(value, types.MethodType):
        yield from _values([value.__func__, value.__self__], depth, known)
    elif isinstance(value, types.FunctionType):
        yield from _of_function(value, depth, known)
    elif _is_own(value):
        yield from _values([*vars(type(value)).values(), *getattr(value, "__dict__", {}).values()], depth - 1, known)


def _of_function(function: types.FunctionType, depth: int, known: set[int]) -> Iterator[object]:
    cells = [cell.cell_contents for cell in function.__closure__ or () if _is_filled(cell)]
    names = list(_names(function.__code__))
    around = [function.__globals__[name] for name in names if name in function.__globals__]
    yield from names
    for item in (*cells, *around, *(function.__defaults__ or ())):
        if not _is_library(item):
            yield from _values(item, depth - 1, known)


def _names(code: types.CodeType) -> Iterable[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, str) and (constant.isidentifier() or "." in constant or "::" in constant):
            yield constant
        elif isinstance(constant, types.CodeType):
            yield from _names(constant)


def _is_filled(cell: types.CellType) -> bool:
    try:
        cell.cell_contents  # noqa: B018 (an empty cell raises)
    except ValueError:
        return False
    return True


def _is_library(value: object) -> bool:
    if isinstance(value, (torch._ops.OpOverload, torch._ops.OpOverloadPacket)):
        return False
    module = getattr(value, "__module__", None)
    return isinstance(value, types.ModuleType) or (isinstance(module, str) and module.split(".")[0] == "torch")


def _is_own(value: object) -> bool:
    """Whether it is an object of somebody's own class."""
    kind = type(value)
    return kind is not type and kind.__module__ not in ("builtins", "types") and not _is_library(value)
