"""Which plan serves a call: the last one's where nothing has changed, one of those kept by shapes, or a new one."""

import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch

from ..memory.overlap import Spans, is_plain, span
from .call_plan import CallPlan, Planner, shape_of
from .signature import Signature, Tensors

_PLANS = 1024  # shapes whose plans an entry point keeps
_address, _is_contiguous = torch.Tensor.data_ptr, torch.Tensor.is_contiguous


@dataclass(slots=True)
class LastCall:
    """A call's mutated inputs (identities and addresses), the shapes of its other inputs, and its plan: the same
    again needs no further look. Good while the tensors live, so that an identity means one object."""

    identities: list[int]
    addresses: list[int]
    shapes: list[torch.Size]
    plan: CallPlan
    watched: list[weakref.ref[torch.Tensor]]
    user_addresses: list[int] | None  # where the other inputs lie, if that matters: they may be used in place
    lengths: Sequence[int]  # of its lists
    written: Spans  # the bytes of its mutated inputs
    apart: list[int] | None  # addresses of other inputs, without gaps, known to lie where the call writes nothing


class PlanCache:
    """The plans of an entry point's calls. `last` is the latest call's, or None; `forgotten` hears of each plan that
    the cache lets go."""

    def __init__(
        self, signature: Signature, planner: Planner, clone_input: bool, forgotten: Callable[[CallPlan], None]
    ):
        self._signature, self._planner, self._clone_input = signature, planner, clone_input
        self._forgotten = forgotten
        # By shapes: the addresses of the first call's user inputs.
        self.static: dict[tuple[torch.Size, ...], tuple[int, ...]] = {}
        self.own: set[int] = set()  # addresses of the buffers that were handed out
        self._plans: OrderedDict[tuple[object, ...], CallPlan] = OrderedDict()
        self.last: LastCall | None = None
        self._bucket: int | None = None

    def use_bucket(self, number: int | None) -> None:
        """Let the next calls run in this bucket, which holds them, though a smaller one may; None: in the smallest."""
        if number != self._bucket:
            self._bucket, self.last = number, None

    def __len__(self) -> int:
        return len(self._plans)

    def __iter__(self) -> Iterator[CallPlan]:
        return iter(self._plans.values())

    def forget(self) -> None:
        """Let all plans go."""
        for plan in self._plans.values():
            self._forgotten(plan)
        self._plans.clear()
        self.last = None

    def find(self, tensors: Tensors, users: Tensors, lengths: Sequence[int]) -> tuple[LastCall, Tensors]:
        """The plan for these inputs, remembered as that of the last call, and the inputs: copies of those that a
        capture has overwritten meanwhile. Raises a subclass of CallError where they do not fit."""
        signature = self._signature
        if signature.mutated:
            signature.refuse(tensors)
        shapes = [shape_of(tensor) for tensor in tensors]
        mutated = [tensors[i] for i in signature.mutated]
        addresses = list(map(_address, mutated))
        static = not self._clone_input and self._is_static(shapes, users)
        plain = all(map(is_plain, mutated))
        written = Spans([span(tensor) for tensor in mutated])
        signature.refuse_shared(written, users)
        addressed = {i: _address(tensors[i]) for i in signature.users} if self.own else {}
        own = {i: (address, tensors[i].stride()) for i, address in addressed.items() if address in self.own}
        key = (self._bucket, static, *own.items(), plain, *addresses, *shapes)
        plan = self._plans.get(key)
        if plan is None:
            plan, tensors = self._planner.plan(tensors, signature.users if static else (), own, self._bucket)
            self._keep(key, plan)
        self.last = LastCall(
            identities=list(map(id, mutated)),
            addresses=addresses,
            shapes=[tensor.shape for tensor in users],
            plan=plan,
            watched=[self._watch(tensor) for tensor in mutated],
            user_addresses=None if self._clone_input and not self.own else list(map(_address, users)),
            lengths=lengths,
            written=written,
            apart=apart(plan, users),
        )
        return self.last, tensors

    def _keep(self, key: tuple[object, ...], plan: CallPlan) -> None:
        self._plans[key] = plan
        if len(self._plans) > _PLANS:
            self._forgotten(self._plans.popitem(last=False)[1])

    def _is_static(self, shapes: Sequence[torch.Size], users: Tensors) -> bool:
        """Whether the user inputs lie where those of the first call with these shapes lay (or this is the first)."""
        if not all(map(is_plain, users)):
            return False
        addresses = tuple(map(_address, users))
        return self.static.setdefault(tuple(shapes), addresses) == addresses

    def _watch(self, tensor: torch.Tensor) -> weakref.ref[torch.Tensor]:
        """Forget the last call when the tensor dies: its identity may then come again."""
        cache = weakref.ref(self)

        def gone(_: object) -> None:
            if (alive := cache()) is not None:
                alive.last = None

        return weakref.ref(tensor, gone)


def apart(plan: CallPlan, users: Tensors) -> list[int] | None:
    """Where inputs lie that share memory with no mutated one, if they also lie outside of what the replay writes, and
    each without gaps, so that the addresses say it all."""
    addresses = list(map(_address, users))
    low, high = plan.arena
    if any(low <= address < high for address in addresses) or not all(map(_is_contiguous, users)):
        return None
    return addresses
