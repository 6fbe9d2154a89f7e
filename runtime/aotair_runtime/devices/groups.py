"""Whom do the collectives of a loaded model meet? Groups of ranks by name."""

import contextlib
import importlib
import itertools
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Any, Protocol

from torch import Tensor
from torch.distributed import distributed_c10d as c10d
from torch.distributed.distributed_c10d import Store


class Group(Protocol):
    """Some ranks that meet in each call, all in the same order. Tensors lie without gaps."""

    @property
    def size(self) -> int: ...

    @property
    def number(self) -> int:
        """This rank's place among them."""

    def all_reduce(self, x: Tensor, reduce: str) -> None:
        """Every rank's `x` becomes the reduction of all."""

    def all_gather(self, out: Tensor, x: Tensor) -> None:
        """`out`: every rank's `x`, one behind the other in the first dimension."""

    def reduce_scatter(self, out: Tensor, x: Tensor, reduce: str) -> None:
        """`out`: this rank's part of the reduction of all `x`, cut along the first dimension."""

    def all_to_all(self, out: Tensor, x: Tensor) -> None:
        """The parts of each rank's `x` go to the ranks in order; `out` is what comes from them."""

    def broadcast(self, x: Tensor, root: int) -> None:
        """The `x` of the rank of that number becomes that of all."""


_groups: dict[str, Group] = {}
_numbers = itertools.count()


def register(made: Group, axis: str, name: str | None = None) -> str:
    """A name for the group, by which instructions find it until `forget`: `name`, where kernels of the device know it
    by that already."""
    name = name or f"{axis}#{next(_numbers)}"
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


def members(ranks: int, name: str) -> Group:
    """The group of that name, for a call that so many ranks make. Raises ValueError where it has others."""
    found = group(name)
    if found.size != ranks:
        raise ValueError(f"the group has {found.size} ranks, and the call is for {ranks}")
    return found


# ---- processes -------------------------------------------------------------------------------------------------------

_REDUCE_OPS = {
    "sum": c10d.ReduceOp.SUM,
    "max": c10d.ReduceOp.MAX,
    "min": c10d.ReduceOp.MIN,
    "product": c10d.ReduceOp.PRODUCT,
}


class PartedError(RuntimeError):
    """The other ranks did not do their part of a collective."""


@contextlib.contextmanager
def _met() -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:
        raise PartedError(str(error)) from error


class ProcessRanks:
    """Processes, each with one end of a connection: Gloo, NCCL or HCCL, as torch.distributed has them. They are not
    among its named groups: names are used again once a group is gone, and ranks may not agree on when that is.
    `known_as`: the name by which kernels of the device know the connection, where they do; `for_experts`: that of
    another one between the same ranks, for kernels that nothing else may share a connection with (`exchange`)."""

    for_experts: str = ""

    def __init__(self, end: Any, known_as: str | None = None):  # a c10d.Backend, of which torch's stubs know little
        self._end, self.size, self.number, self.known_as = end, int(end.size()), int(end.rank()), known_as

    def all_reduce(self, x: Tensor, reduce: str) -> None:
        options: Any = c10d.AllreduceOptions()
        options.reduceOp = _REDUCE_OPS[reduce]
        with _met():
            self._end.allreduce([x], options).wait()

    def all_gather(self, out: Tensor, x: Tensor) -> None:
        with _met():
            self._end._allgather_base(out, x).wait()

    def reduce_scatter(self, out: Tensor, x: Tensor, reduce: str) -> None:
        options: Any = c10d.ReduceScatterOptions()
        options.reduceOp = _REDUCE_OPS[reduce]
        with _met():
            self._end._reduce_scatter_base(out, x, options).wait()

    def all_to_all(self, out: Tensor, x: Tensor) -> None:
        with _met():
            self._end.alltoall_base(out, x, [], [], c10d.AllToAllOptions()).wait()

    def broadcast(self, x: Tensor, root: int = 0) -> None:
        options: Any = c10d.BroadcastOptions()
        options.rootRank = root
        with _met():
            self._end.broadcast([x], options).wait()

    def close(self) -> None:
        """Let go of the connection: whoever waits at another end fails."""
        with contextlib.suppress(RuntimeError):  # not every kind can end what is under way, or has to
            self._end.abort()
        del self._end


def connect(
    kind: str,
    store: Store,
    rank: int,
    size: int,
    timeout: timedelta,
    buffer: int | None = None,
    for_experts: bool = False,
) -> ProcessRanks:
    """Connect these processes for tensors on a kind of device; `store` is theirs alone. Of NPUs, `buffer`: MiB for what
    is sent, and as much for what comes; without it what the environment says. `for_experts`: as ProcessRanks has it."""
    if kind == "cpu":
        return ProcessRanks(c10d.ProcessGroupGloo(store, rank, size, timeout))
    module = importlib.import_module(f".{kind}", __package__)
    more = (buffer, for_experts) if kind == "npu" else ()
    return ProcessRanks(*module.connect(store, rank, size, timeout, *more))
