"""Host inputs: lists of ints that a call brings and that kernels take as host arguments, not as tensors."""

from collections.abc import Callable, Sequence

import torch

from .errors import ArgumentError
from .schema import EntryPoint, HostArg, Instruction, Program


class HostCall:
    """An op's call, bound to everything but the lists among its keyword arguments; `node` names it for errors.

    `inputs` gives the number of the list for each such argument. `measure` makes the workspace, where it takes one.
    """

    __slots__ = ("_args", "_inputs", "_kwargs", "_op", "_positions", "measure", "node")

    def __init__(
        self, node: str, op: Callable, args: Sequence, kwargs: dict, inputs: dict[str, int], measure: Callable | None
    ):
        self.node, self._op, self._args, self._kwargs, self.measure = node, op, tuple(args), dict(kwargs), measure
        self._inputs = tuple(inputs.items())
        self._positions = tuple(sorted(set(inputs.values())))

    def takes(self, changed: Sequence[bool]) -> bool:
        """Whether any of its lists is among those that changed."""
        return True in [changed[position] for position in self._positions]

    def set(self, lists: Sequence[list[int]]) -> None:
        """Use these lists from now on."""
        for name, position in self._inputs:
            self._kwargs[name] = lists[position]

    def use_workspace(self, tensor: torch.Tensor) -> None:
        """Use this tensor as workspace from now on."""
        self._kwargs["workspace"] = tensor
        self.measure = None

    def __call__(self) -> object:
        if self.measure is not None:
            self.use_workspace(self.measure())
        return self._op(*self._args, **self._kwargs)


def list_inputs(program: Program, entry: EntryPoint) -> tuple[int, ...]:
    """The inputs that instructions of the entry point take as lists, by position."""
    found: set[int] = set()
    for bucket in entry.buckets:
        if bucket.updated:
            found.update(*(positions(program.instructions[number]) for number in bucket.code))
    return tuple(sorted(found))


def positions(item: Instruction) -> list[int]:
    """The inputs that an instruction takes as lists."""
    return [arg.input for _, arg in item.kwargs if isinstance(arg, HostArg)]


class HostInputs:
    """What an entry point makes of the host inputs of a call: lists where instructions take them as such, and tensors
    on the device otherwise. Raises ArgumentError for what is neither a list of ints nor such a tensor, or is out of
    range."""

    def __init__(self, program: Program, entry: EntryPoint, device: torch.device):
        self.listed = list_inputs(program, entry)
        self._specs = entry.inputs
        self._where, self._device = entry.name, device
        self._tensors = tuple(i for i, spec in enumerate(entry.inputs) if spec.host and i not in self.listed)
        self._legal: list[list[int]] = [[] for _ in self.listed]  # of each list input, one that was in range

    def __bool__(self) -> bool:
        return bool(self.listed or self._tensors)

    def take(self, values: Sequence) -> tuple[list, list[list[int]]]:
        """The values with the host inputs as lists or tensors, and the lists alone."""
        values, lists, legal = list(values), [], self._legal
        for number, position in enumerate(self.listed):
            items = self._items(position, values[position])
            if items != legal[number]:
                self._check(position, items)
                legal[number] = items
            values[position] = items
            lists.append(items)
        for position in self._tensors:
            if not isinstance(values[position], torch.Tensor):
                items = self._items(position, values[position])
                self._check(position, items)
                values[position] = torch.tensor(items, dtype=torch.int64, device=self._device)
            elif values[position].device.type == "cpu":
                values[position] = values[position].to(self._device)
        return values, lists

    def _items(self, position: int, value: object) -> list[int]:
        """The value as a list that is nobody else's."""
        kind = type(value)
        if kind is list or kind is tuple:
            return list(value)
        if isinstance(value, torch.Tensor):
            if value.dtype is torch.int64 and value.dim() == 1 and value.device.type == "cpu":
                return value.tolist()
            raise self._refused(position, f"a tensor {value.dtype} {list(value.shape)} on {value.device}")
        raise self._refused(position, f"a {kind.__name__}")

    def _check(self, position: int, items: list) -> None:
        if set(map(type, items)) - {int}:
            raise self._refused(position, f"a {next(type(item) for item in items if type(item) is not int).__name__}")
        low, high = self._specs[position].value_range
        if items and not (low <= min(items) and max(items) < high):
            raise self._refused(position, f"values from {min(items)} to {max(items)}")

    def _refused(self, position: int, got: str) -> ArgumentError:
        spec = self._specs[position]
        low, high = spec.value_range
        return ArgumentError(
            f"the host input {spec.name!r} does not fit", where=self._where, got=got,
            expected=f"a list, a tuple or an int64 tensor on the CPU, of one dimension, with ints from {low:g} to "
            f"{high - 1:g}",
        )  # fmt: skip


def legal_lists(program: Program, entry: EntryPoint, sizes: Sequence[int]) -> list[list[int]]:
    """Lists of the lowest legal value for a bucket, by the number of each list input."""
    found = []
    for position in list_inputs(program, entry):
        spec, size = entry.inputs[position], entry.inputs[position].shape[0]
        found.append([int(spec.value_range[0])] * (sizes[size[1]] if isinstance(size, tuple) else size))
    return found


def filling(spec, missing: int) -> list[int]:
    """What fills the padded part of a list."""
    value = spec.value_range[0] if spec.pad in (None, "any") else spec.pad
    return [int(value)] * missing
