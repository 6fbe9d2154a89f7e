"""Host inputs of a call: lists of ints that kernels take as host arguments, not as tensors."""

from collections.abc import Sequence

import torch

from ..errors import ArgumentError
from ..format.host_inputs import inputs_as_arguments, legal_range
from ..format.schema import EntryPoint, Program


class HostInputs:
    """What an entry point makes of the host inputs of a call: lists where instructions take them as such, and tensors
    on the device otherwise. Raises ArgumentError for what is neither a list of ints nor such a tensor, or is out of
    range."""

    def __init__(self, program: Program, entry: EntryPoint, device: torch.device):
        self.listed = inputs_as_arguments(program, entry)
        self._specs = entry.inputs
        self._where, self._device = entry.name, device
        self._tensors = tuple(i for i, spec in enumerate(entry.inputs) if spec.host and i not in self.listed)
        self._ranges = {i: legal_range(spec) for i, spec in enumerate(entry.inputs) if spec.host}
        self._legal: list[list[int]] = [[] for _ in self.listed]  # of each list input, one that was in range

    def __bool__(self) -> bool:
        return bool(self.listed or self._tensors)

    def take(self, given: Sequence[object]) -> tuple[list[torch.Tensor], list[list[int]]]:
        """The values with the host inputs as lists or tensors, and the lists alone."""
        values, lists, legal = list(given), [], self._legal
        for number, position in enumerate(self.listed):
            items = self._items(position, values[position])
            if items != legal[number]:
                self._check(position, items)
                legal[number] = items
            values[position] = items
            lists.append(items)
        for position in self._tensors:
            value = values[position]
            if not isinstance(value, torch.Tensor):
                items = self._items(position, value)
                self._check(position, items)
                values[position] = torch.tensor(items, dtype=torch.int64, device=self._device)
            elif value.device.type == "cpu":
                values[position] = value.to(self._device)
        return values, lists  # type: ignore[return-value]  # the entry checks the others, and leaves lists alone

    def _items(self, position: int, value: object) -> list[int]:
        """The value as a list that is nobody else's."""
        if type(value) is list or type(value) is tuple:
            return list(value)
        if isinstance(value, torch.Tensor):
            if value.dtype is torch.int64 and value.dim() == 1 and value.device.type == "cpu":
                found: list[int] = value.tolist()
                return found
            raise self._refused(position, f"a tensor {value.dtype} {list(value.shape)} on {value.device}")
        raise self._refused(position, f"a {type(value).__name__}")

    def _check(self, position: int, items: list[int]) -> None:
        if set(map(type, items)) - {int}:
            raise self._refused(position, f"a {next(type(item) for item in items if type(item) is not int).__name__}")
        low, high = self._ranges[position]
        if items and not (low <= min(items) and max(items) < high):
            raise self._refused(position, f"values from {min(items)} to {max(items)}")

    def _refused(self, position: int, got: str) -> ArgumentError:
        spec = self._specs[position]
        low, high = self._ranges[position]
        return ArgumentError(
            f"the host input {spec.name!r} does not fit",
            where=self._where,
            got=got,
            expected=f"a list, a tuple or an int64 tensor on the CPU, of one dimension, with ints from {low:g} to "
            f"{high - 1:g}",
        )
