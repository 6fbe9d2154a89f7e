"""An entry point of a model of several ranks: all agree on a call before any of them runs it."""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from ..capture.graphs import Parts, Resident
from ..capture.pool import Pool
from ..devices.groups import PartedError
from ..errors import AotairError, CallError, RankError, ShapeError, causes
from ..format.schema import EntryPoint
from ..memory.overlap import Spans, span
from ..ranks.calls import REFUSED
from ..ranks.party import Party
from .buckets import choose, read_sizes
from .call_plan import shape_of
from .entry import Entry
from .signature import Tensors

_MOST_FITTING = 1024  # calls that differ in what their inputs look like


class RankedEntry(Entry):
    """`number`: which of the program's entry points it is."""

    def __init__(
        self,
        spec: EntryPoint,
        parts: Parts,
        resident: Resident,
        pools: Sequence[Pool],
        life: object,
        party: Party,
    ):
        super().__init__(spec, parts, resident, pools, life)
        self.number, self._party = [entry.name for entry in parts.program.entry_points].index(spec.name), party
        self._fitting: dict[object, tuple[int, ...]] = {}  # the sizes of calls that can be made, by their inputs' looks
        self._fixed = [axis for axis, dim in enumerate(spec.dims) if not dim.paddable]
        self._own_sizes = bool(parts.program.own_inputs)
        self._buckets: dict[tuple[int, ...], int] = {}  # by the sizes that all ranks' inputs come to

    def flat(self, tensors: Tensors) -> list[torch.Tensor]:
        with self._lock:
            with self._refusals_told():
                sizes = self._sizes_as_before(tensors)
            common = self._party.agree(self.number, sizes, self._fixed)
            # Other ranks' own inputs may be larger, and all of them run one bucket.
            return self.agreed(tensors, self._bucket_of_all(tuple(common)) if self._own_sizes else None)

    def _given(self, args: Sequence[object], kwargs: Mapping[str, object]) -> list[Any] | tuple[Any, ...]:
        with self._lock, self._refusals_told():
            return super()._given(args, kwargs)

    @contextlib.contextmanager
    def _refusals_told(self) -> Iterator[None]:
        """What this rank refuses within, the others hear of instead of the call that they wait for."""
        try:
            yield
        except AotairError:
            with contextlib.suppress(RankError):  # what the call is refused for is said by its own error
                self._party.agree(REFUSED, ())
            raise

    def _bucket_of_all(self, sizes: tuple[int, ...]) -> int:
        """The bucket that holds every rank's inputs. Raises ShapeError, on all of them, where there is none."""
        found = self._buckets.get(sizes)
        if found is None:
            try:
                found = choose(self.spec, sizes)
            except ShapeError as error:
                raise ShapeError(
                    f"{error.what}, which is what the inputs of all ranks come to",
                    where=error.where,
                    expected=error.expected,
                    fix="add a bucket that is as large along every dimension, and build again; or send smaller inputs",
                ) from error
            if len(self._buckets) < _MOST_FITTING:
                self._buckets[sizes] = found
        return found

    def _sizes_as_before(self, tensors: Tensors) -> tuple[int, ...]:
        """Those of a call with these inputs, which are looked at one by one where such have not come before."""
        if self._has_hosts:
            return self.sizes(tensors)
        try:
            if self._mutated and not self._lie_as_before(tensors):
                return self.sizes(tensors)
            looks = tuple([(one.shape, one.dtype, one.device, one.layout) for one in tensors])
            found = self._fitting.get(looks)
        except (AttributeError, RuntimeError, TypeError):  # of what is no tensor, or one of several shapes
            return self.sizes(tensors)
        if found is None:
            found = self.sizes(tensors)
            if len(self._fitting) < _MOST_FITTING:
                self._fitting[looks] = found
        return found

    def _lie_as_before(self, tensors: Tensors) -> bool:
        """Whether the mutated inputs are those of the last call, and the others have its shapes. Raises ArgumentError
        where one of the others then shares memory with them."""
        last, users = self._plans.last, self._take_users(tensors)
        if last is None or [x.shape for x in users] != last.shapes or not self._in_the_same_place(last, tensors):
            return False
        self._signature.refuse_shared(last.written, users)
        return True

    def sizes(self, tensors: Tensors) -> tuple[int, ...]:
        """Those of a call with these inputs. Raises a subclass of CallError where it cannot be made."""
        given = self._signature.hosts.take(tensors)[0] if self._has_hosts else tensors
        self._signature.refuse(given)
        self._signature.refuse_layouts(given)
        sizes = read_sizes(self.spec, [shape_of(value) for value in given])
        number = choose(self.spec, sizes)
        if self._mutated:
            self._planner.check_mutated(given, number)
            written = Spans([span(given[i]) for i in self._mutated])
            self._signature.refuse_shared(written, self._take_users(given))
        return sizes

    def agreed(self, tensors: Tensors, bucket: int | None = None) -> list[torch.Tensor]:
        """The call, which all ranks make, in the bucket of that number, or in the smallest. Raises RankError where one
        does not come through it."""
        if self._own_sizes:
            self._plans.use_bucket(bucket)
        try:
            return super().flat(tensors)
        except CallError:
            raise
        except RuntimeError as error:
            failure = self._party.failure(error, own=not _of_others(error))
            if failure is error:
                raise
            raise failure from error


def _of_others(error: BaseException) -> bool:
    """Whether a call failed because other ranks did not do their part."""
    return any(isinstance(one, PartedError) for one in causes(error))
