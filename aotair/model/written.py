"""What a call wrote into a state: the rows that it left otherwise, and nothing of the others.

A step of a language model writes a few rows of large caches: what holds and compares these whole spends its time there.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from aotair_runtime.weights.compared import row_length
from aotair_runtime.weights.golden import changed_rows

_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32}  # numbers that are equal where all bits are, by their bytes
_AT_ONCE = 1 << 14  # numbers that are looked at together


@dataclass(frozen=True)
class Written:
    """`before` is the state as the call found it, which is held by others and stays as it is; `at` the numbers of the
    rows that the call left otherwise, and `rows` what they are now. A row is what `difference` takes for one."""

    before: torch.Tensor
    at: torch.Tensor
    rows: torch.Tensor

    @staticmethod
    def between(before: torch.Tensor, after: torch.Tensor) -> "Written":
        """What turns `before` into `after`; all of it where these are not of one kind."""
        if before.shape != after.shape or before.dtype != after.dtype:
            whole = _in_rows(after).clone()
            return Written(after.clone(), torch.arange(len(whole)), whole)
        rows = _in_rows(after)
        at = _unlike(_in_rows(before), rows)
        return Written(before, at, rows[at])

    def whole(self) -> torch.Tensor:
        """The state as the call left it."""
        rows = _in_rows(self.before).clone()
        if len(self.at):
            rows.view(torch.uint8)[self.at] = self.rows.view(torch.uint8)
        return rows.view(self.before.shape)

    def on(self, at: torch.Tensor) -> torch.Tensor:
        """The rows of these numbers, among which are those that were written, as the call left them."""
        rows = _in_rows(self.before)[at]
        if len(self.at):
            rows.view(torch.uint8)[torch.searchsorted(at, self.at)] = self.rows.view(torch.uint8)
        return rows

    def golden(self, name: str) -> dict[str, torch.Tensor]:
        """The state as the call left it, as golden tensors."""
        before = _in_rows(self.before)
        return changed_rows(name, self.at, before[self.at], self.rows, before.numel(), self.whole)

    def changed(self) -> tuple[torch.Tensor, torch.Tensor]:
        """The rows that were written, before and after, with the state's own last dimension."""
        width = self.before.shape[-1] if self.before.dim() and self.before.numel() else 1
        return _in_rows(self.before)[self.at].view(-1, width), self.rows.view(-1, width)


def greatest(tensor: torch.Tensor) -> float:
    """The greatest finite number of a tensor; 0 of what is counted or has none."""
    if not tensor.numel() or not (tensor.dtype.is_floating_point or tensor.dtype.is_complex):
        return 0.0
    size = (tensor if tensor.element_size() > 1 else tensor.float()).abs()
    return float(torch.where(size.isfinite(), size, 0.0).max())


def side_by_side(*runs: Written) -> Sequence[torch.Tensor]:
    """The same state after several calls: the rows that any of them has written, in each; all of it where the calls did
    not begin with the same values."""
    first = runs[0].before
    if not all(one.before is first or _same(one.before, first) for one in runs):
        return [one.whole() for one in runs]
    at = torch.cat([one.at for one in runs]).unique()
    return [one.on(at) for one in runs]


def _same(one: torch.Tensor, other: torch.Tensor) -> bool:
    alike = one.shape == other.shape and one.dtype == other.dtype
    return alike and (one.data_ptr() == other.data_ptr() or not len(_unlike(_in_rows(one), _in_rows(other))))


def _in_rows(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.reshape(-1, max(1, row_length(tensor.shape)))


def _unlike(before: torch.Tensor, after: torch.Tensor) -> torch.Tensor:
    """The numbers of the rows whose bits differ. What is equal is passed over at once."""
    step = max(1, _AT_ONCE // before.shape[1])
    pairs = zip(_as_bits(before).split(step), _as_bits(after).split(step))
    found = [
        (mine != theirs).any(1).nonzero().flatten() + number * step
        for number, (mine, theirs) in enumerate(pairs)
        if not torch.equal(mine, theirs)
    ]
    return torch.cat(found) if found else torch.empty(0, dtype=torch.int64)


def _as_bits(rows: torch.Tensor) -> torch.Tensor:
    """Rows of numbers as rows of ints, as wide as there are."""
    wide = rows.shape[1] * rows.element_size() % 8 == 0
    rows = rows.contiguous()
    if wide and rows.storage_offset() * rows.element_size() % 8:
        rows = rows.clone()  # a part of another tensor, from a place where no wide int begins
    return rows.view(torch.int64 if wide else _BITS[rows.element_size()])
