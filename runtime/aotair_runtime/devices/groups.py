"""Whom do the collectives of a loaded model meet? Groups of ranks by name."""

import contextlib
import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol

from torch import Tensor
from torch import distributed as dist


class Group(Protocol):
    """Some ranks that meet in each call, all in the same order. Tensors lie without gaps."""

    @property
    def size(self) -> int: ...

    def all_reduce(self, x: Tensor, reduce: str) -> None:
        """Every rank's `x` becomes the reduction of all."""

    def all_gather(self, out: Tensor, x: Tensor) -> None:
        """`out`: every rank's `x`, one behind the other in the first dimension."""

    def reduce_scatter(self, out: Tensor, x: Tensor, reduce: str) -> None:
        """`out`: this rank's part of the reduction of all `x`, cut along the first dimension."""

    def all_to_all(self, out: Tensor, x: Tensor) -> None:
        """The parts of each rank's `x` go to the ranks in order; `out` is what comes from them."""


_groups: dict[str, Group] = {}
_numbers = itertools.count()


def register(made: Group, axis: str) -> str:
    """A name for the group, by which instructions find it until `forget`."""
    name = f"{axis}#{next(_numbers)}"
    _groups[name] = made
    return name


def forget(names: Sequence[str]) -> None:
    for name in names:
        _groups.pop(name, None)


@contextlib.contextmanager
def named(made: Mapping[str, Group]) -> Iterator[None]:
    """Within, groups have these names."""
    _groups.update(made)
    try:
        yield
    finally:
        forget(list(made))


def group(name: str) -> Group:
    """The group of that name. Raises LookupError where there is none."""
    found = _groups.get(name)
    if found is None:
        raise LookupError(
            f"no group of ranks is called {name!r:.40}: an artifact for several ranks joins them at a load"
        )
    return found


# ---- processes -------------------------------------------------------------------------------------------------------

_REDUCE_OPS = {
    "sum": dist.ReduceOp.SUM,
    "max": dist.ReduceOp.MAX,
    "min": dist.ReduceOp.MIN,
    "product": dist.ReduceOp.PRODUCT,
}


# torch 2.13 has other names for the same.
all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_reduce_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


class PartedError(RuntimeError):
    """The other ranks did not do their part of a collective."""


@contextlib.contextmanager
def _met() -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:
        raise PartedError(str(error)) from error


class ProcessRanks:
    """A process group of torch.distributed: Gloo, NCCL or HCCL."""

    def __init__(self, made: dist.ProcessGroup):
        self._group, self.size = made, made.size()

    def all_reduce(self, x: Tensor, reduce: str) -> None:
        with _met():
            dist.all_reduce(x, _REDUCE_OPS[reduce], group=self._group)

    def all_gather(self, out: Tensor, x: Tensor) -> None:
        with _met():
            all_gather(out, x, group=self._group)

    def reduce_scatter(self, out: Tensor, x: Tensor, reduce: str) -> None:
        with _met():
            _reduce_scatter(out, x, _REDUCE_OPS[reduce], group=self._group)

    def all_to_all(self, out: Tensor, x: Tensor) -> None:
        with _met():
            dist.all_to_all_single(out, x, group=self._group)
