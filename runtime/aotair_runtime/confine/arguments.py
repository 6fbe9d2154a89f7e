"""Whether an instruction's arguments are what its op's schema says: torch itself takes an int for a dtype."""

import functools
from collections.abc import Callable

import torch

from ..errors import MalformedError
from ..format.limits import MOST_INT, MOST_ITEMS, MOST_LETTERS
from ..format.mesh import group_argument
from ..format.schema import (
    Arg,
    DeviceArg,
    DTypeArg,
    Form,
    GroupArg,
    HostArg,
    Instruction,
    LayoutArg,
    MemoryFormatArg,
    TensorArg,
    WorkspaceArg,
)
from .op_table import demands

_Fits = Callable[[Arg], bool]


def check_arguments(instruction: Instruction, op: torch._ops.OpOverload, where: str) -> None:
    """Raises MalformedError where an argument is unknown, given twice, missing, of another type, or out of range."""
    _known(instruction, op, where)
    given = arguments_by_name(instruction, op)
    results = {a.name for a in op._schema.arguments if a.is_out} if instruction.form == Form.OUT else set()
    group = group_argument(op.name())
    for argument in op._schema.arguments:
        if argument.name not in given:
            if not argument.has_default_value() and argument.name not in results and argument.name != "out":
                raise MalformedError(f"{op} lacks its argument {argument.name}", where=_place(instruction, where))
        elif isinstance(given[argument.name], GroupArg) != (argument.name == group):
            raise MalformedError(
                f"the argument {argument.name} of {op} names no ranks, or should",
                where=_place(instruction, where),
                expected="an axis of the mesh, where a collective has its group",
            )
        elif argument.name in results or not _fits(str(argument.real_type), _count(argument))(given[argument.name]):
            raise MalformedError(
                f"the argument {argument.name} of {op} is of another type",
                where=_place(instruction, where),
                expected="what the instruction writes" if argument.name in results else str(argument.real_type),
                got=repr(given[argument.name])[:80],
            )

    for name, (low, high) in demands(op.name()).ranges.items():
        value = given.get(name)
        if isinstance(value, (int, float)) and not low <= value <= high:
            raise MalformedError(
                f"the argument {name} of {op} is out of range",
                where=_place(instruction, where),
                expected=f"{low} to {high}",
                got=repr(value)[:80],
            )


def _count(argument: torch.Argument) -> int | None:
    """Of how many items a list is that may be written as one."""
    count: int | None = argument.N  # type: ignore[attr-defined]  # torch's stubs lack it
    return count


def arguments_by_name(instruction: Instruction, op: torch._ops.OpOverload) -> dict[str, Arg]:
    """What an instruction gives its op, by the names of the schema."""
    return dict(zip((argument.name for argument in op._schema.arguments), instruction.args)) | dict(instruction.kwargs)


def _known(instruction: Instruction, op: torch._ops.OpOverload, where: str) -> None:
    positional = [argument.name for argument in op._schema.arguments if not argument.kwarg_only]
    known = {argument.name for argument in op._schema.arguments}
    named = [name for name, _ in instruction.kwargs]
    first = set(positional[: len(instruction.args)])
    wrong = len(set(named)) != len(named) or not set(named) <= known - first
    if wrong or len(instruction.args) > len(positional):
        raise MalformedError(
            f"{op} has other arguments than the instruction",
            where=_place(instruction, where),
            expected=str(op._schema)[:200],
            got=f"{len(instruction.args)} by position, and {', '.join(named) or 'none'} by name"[:120],
        )


def _place(instruction: Instruction, where: str) -> str:
    return f"{where}: {instruction.node[:80]}"


@functools.cache
def _fits(kind: str, count: int | None) -> _Fits:
    """Whether a value is of a schema's type; a list with a `count` may be written as one item."""
    if kind.startswith("Optional["):
        inner = _fits(kind.removeprefix("Optional[").removesuffix("]"), count)
        return lambda value: value is None or inner(value)
    if kind.startswith("List["):
        item = _fits(kind.removeprefix("List[").removesuffix("]"), None)
        return lambda value: _is_list(value, item) or (count is not None and item(value))
    return _KINDS.get(kind, _never)


def _is_list(value: Arg, item: _Fits) -> bool:
    if isinstance(value, HostArg):
        return item is _is_int
    return isinstance(value, tuple) and len(value) <= MOST_ITEMS and all(map(item, value))


def _is_int(value: Arg) -> bool:
    return type(value) is int and (-MOST_INT <= value <= MOST_INT or value == _END)


def _is_number(value: Arg) -> bool:
    return type(value) in (bool, float) or (type(value) is int and -(1 << 63) <= value < 1 << 63)


def _is_float(value: Arg) -> bool:
    return type(value) is float or (type(value) is int and abs(value) <= MOST_INT)


def _of(*kinds: type) -> _Fits:
    return lambda value: isinstance(value, kinds)


def _never(value: Arg) -> bool:
    return False


_END = (1 << 63) - 1  # of a slice that goes on to the end
_KINDS: dict[str, _Fits] = {
    "Tensor": lambda value: isinstance(value, (TensorArg, WorkspaceArg)) or _is_number(value),  # which torch makes one
    "int": _is_int,
    "float": _is_float,
    "number": _is_number,
    "bool": lambda value: type(value) is bool,
    "str": lambda value: isinstance(value, GroupArg) or (type(value) is str and len(value) <= MOST_LETTERS),
    "ScalarType": _of(DTypeArg),
    "Layout": _of(LayoutArg),
    "MemoryFormat": _of(MemoryFormatArg),
    "Device": _of(DeviceArg),
}
