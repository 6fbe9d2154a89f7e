"""What becomes of a module whose weights are shared out: how each is cut, and where the ranks meet.

The Megatron scheme (Shoeybi et al. 2019, section 3): a layer cut by its outputs (`colwise`) feeds one cut by its inputs
(`rowwise`), whose partial sums all ranks add up. Everything a rank needs to know of its place is a buffer, cut like a
weight, so that all ranks run one program.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from aotair_runtime.devices import collectives as _collectives  # noqa: F401 (defines the ops)
from aotair_runtime.format.schema import Shard

from ..errors import ModelError
from ..ops import rows

DISPATCH = "expert_dispatch"


@dataclass(frozen=True)
class Place:
    """An axis of the mesh, by number and name, and how many ranks it has."""

    number: int
    name: str
    size: int

    def shard(self, dim: int, parts: int | None = None, blocks: int = 1) -> Shard:
        return Shard(self.number, dim, parts or self.size, blocks)


class CannotCut(Exception):
    """Why a module stays whole on every rank."""


@dataclass(frozen=True)
class Cut:
    """One tensor of a module: its name there, and how it is cut. `values`: of a buffer that is added, whole."""

    name: str
    shard: Shard
    values: Tensor | None = None


# (module, axis, how many equal units its outputs have, or 0) to the cuts of its tensors.
Plan = Callable[[nn.Module, Place, int], Iterator[Cut]]


@dataclass(frozen=True)
class Style:
    """`cuts` says how a module's tensors are cut, and raises CannotCut; `mixed`: what its class gets in front;
    `divided`: the module's attribute that counts what ranks share out; `own_inputs`: whether its ranks are called with
    inputs of their own."""

    cuts: Plan
    mixed: type | None = None
    divided: str = ""
    own_inputs: bool = False


def _all_reduce(x: Tensor, axis: str) -> Tensor:
    made: Tensor = torch.ops.air.all_reduce(x, "sum", axis)
    return made


def _all_gather_last(x: Tensor, place: Place) -> Tensor:
    """Every rank's `x` behind each other in the last dimension."""
    gathered = torch.ops.air.all_gather(x.movedim(-1, 0).contiguous(), place.size, place.name)
    made: Tensor = gathered.movedim(0, -1)
    return made


class Shared:
    """What stands in front of the class of a module that is shared out."""

    place: Place


# ---- linear layers ---------------------------------------------------------------------------------------------------


def _outputs(module: nn.Module, place: Place, units: int) -> Iterator[Cut]:
    """Rows of the weight, in units that stay whole; fewer units than ranks go to neighbours twice."""
    weight = _linear(module).weight
    parts = _parts(weight.shape[0], units, place.size)
    yield Cut("weight", place.shard(0, parts))
    if module.bias is not None:
        yield Cut("bias", place.shard(0, parts))


def _parts(size: int, units: int, ranks: int) -> int:
    if units and units < ranks and not ranks % units:
        return units
    if (units or size) % ranks:
        raise CannotCut(f"{units} heads" if units else f"{size} outputs", ranks)
    return ranks


def _gathered(module: nn.Module, place: Place, units: int) -> Iterator[Cut]:
    """Rows of the weight; what the ranks make of them is put together again."""
    yield from _outputs(module, place, 0)


class Gathered(Shared):
    """Outputs are those of all ranks."""

    def forward(self, x: Tensor) -> Tensor:
        return _all_gather_last(super().forward(x), self.place)  # type: ignore[misc]  # of the class behind


def _inputs(module: nn.Module, place: Place, units: int) -> Iterator[Cut]:
    """Columns of the weight; the bias is added once, to the sum."""
    size = _linear(module).weight.shape[1]
    if (units or size) % place.size:
        raise CannotCut(f"{units} heads" if units else f"{size} inputs", place.size)
    yield Cut("weight", place.shard(1))


class Summed(Shared):
    """A linear layer over a part of its inputs; the sum over the ranks is the layer's output."""

    weight: Tensor
    bias: Tensor | None

    def forward(self, x: Tensor) -> Tensor:
        made = _all_reduce(nn.functional.linear(x, self.weight), self.place.name)
        return made if self.bias is None else made + self.bias


def _inputs_of_all(module: nn.Module, place: Place, units: int) -> Iterator[Cut]:
    yield from _inputs(module, place, 0)
    yield _number(place)


class SummedOfAll(Summed):
    """The same, given all inputs."""

    rank_number: Tensor

    def forward(self, x: Tensor) -> Tensor:
        own = x.unflatten(-1, (self.place.size, -1)).index_select(-2, self.rank_number).squeeze(-2)
        return super().forward(own)


def _number(place: Place) -> Cut:
    """A buffer with the rank's number along the axis."""
    return Cut("rank_number", place.shard(0), torch.arange(place.size))


def _linear(module: nn.Module) -> nn.Linear:
    if not isinstance(module, nn.Linear) or type(module).forward is not nn.Linear.forward:
        raise CannotCut(f"{type(module).__name__} is no plain linear layer", 0)
    return module


# ---- embeddings ------------------------------------------------------------------------------------------------------


def _rows(module: nn.Module, place: Place, units: int) -> Iterator[Cut]:
    """Rows of the table; each rank looks up what it has, and the sum is what all have."""
    if not isinstance(module, nn.Embedding) or module.max_norm is not None:
        raise CannotCut(f"{type(module).__name__} is no plain embedding", 0)
    size = module.weight.shape[0]
    if size % place.size:
        raise CannotCut(f"{size} rows", place.size)
    yield Cut("weight", place.shard(0))
    yield Cut("first_row", place.shard(0), torch.arange(0, size, size // place.size))


class LookedUp(Shared):
    """An embedding with some of its rows."""

    weight: Tensor
    first_row: Tensor

    def forward(self, ids: Tensor) -> Tensor:
        own = ids - self.first_row
        other = (own < 0) | (own >= self.weight.shape[0])
        found = super().forward(own.masked_fill(other, 0))  # type: ignore[misc]  # of the class behind
        return _all_reduce(found.masked_fill(other.unsqueeze(-1), 0), self.place.name)


# ---- experts ---------------------------------------------------------------------------------------------------------


class ExpertsSummed(Shared):
    """Experts that all ranks have a part of, or each rank some of: the sum over the ranks is their output."""

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        return _all_reduce(super().forward(*args, **kwargs), self.place.name)  # type: ignore[misc]  # of the class behind


class ExpertsDispatched(Shared):
    """Experts of which each rank has some, for ranks with tokens of their own: all of these go to every rank, and each
    rank's come back, summed. Nothing is dropped, so that shapes are fixed though routing is not."""

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        given = [_gathered_first(x, self) for x in args]
        made = super().forward(*given, **{key: _gathered_first(x, self) for key, x in kwargs.items()})  # type: ignore[misc]  # of the class behind
        if not _has_tokens(made):
            raise _not_of_tokens(self, "gives", made)
        own: Tensor = torch.ops.air.reduce_scatter(made.contiguous(), "sum", self.place.size, self.place.name)
        return own


def _gathered_first(x: Any, experts: Shared) -> Any:
    """Every rank's tokens behind each other; what is no tensor is the same on all ranks."""
    if x is None or isinstance(x, (bool, int, float, str)):
        return x
    if not _has_tokens(x):
        raise _not_of_tokens(experts, "is given", x)
    return torch.ops.air.all_gather(x.contiguous(), experts.place.size, experts.place.name)


def _has_tokens(x: Any) -> bool:
    return isinstance(x, Tensor) and x.dim() > 0


def _not_of_tokens(experts: Shared, what: str, x: Any) -> ModelError:
    return ModelError(
        f"parallel: {DISPATCH} is for experts whose tensors have the tokens in the first dimension",
        expected="such tensors as arguments, beside plain numbers, and one as result",
        got=f"{type(experts).__name__} {what} {list(x.shape) if isinstance(x, Tensor) else type(x).__name__}",
        fix="let the module that is named compute experts alone, or share it out otherwise",
    )


def _experts_width(module: nn.Module, place: Place, units: int) -> Iterator[Cut]:
    """The inner width of every expert: gate and up by their outputs, down by its inputs."""
    names = dict(module.named_parameters(recurse=False))
    if any(name.endswith("bias") for name in names):
        raise CannotCut("experts with a bias, which is added once", 0)
    if not hasattr(module, "is_transposed"):
        raise CannotCut(f"{type(module).__name__} does not say how its matrices lie", 0)
    out, into = (2, 1) if module.is_transposed else (1, 2)
    for name, weight in names.items():
        dim, blocks = (into, 1) if name.startswith("down") else (out, 2 if name.startswith("gate_up") else 1)
        blocks = 1 if not getattr(module, "is_concatenated", True) else blocks
        if weight.dim() != 3 or weight.shape[dim] % (blocks * place.size):
            raise CannotCut(f"{name} {list(weight.shape)}", place.size)
        yield Cut(name, place.shard(dim, blocks=blocks))


def _experts_number(module: nn.Module, place: Place, units: int) -> Iterator[Cut]:
    """Some of the experts, whole."""
    number = getattr(module, "num_experts", None)
    if not isinstance(number, int) or not number:
        raise CannotCut(f"{type(module).__name__} has no experts, of which num_experts is the number", 0)
    if not (hasattr(module, "is_transposed") or "first_expert" in module._buffers):  # transformers' own, or who knows
        raise CannotCut(f"{type(module).__name__} knows of no ranks: it has no buffer first_expert", 0)
    if number % place.size:
        raise CannotCut(f"{number} experts", place.size)
    for name, weight in module.named_parameters(recurse=False):
        if weight.shape[0] != number:
            raise CannotCut(f"{name} {list(weight.shape)} has no row for each expert", 0)
        yield Cut(name, place.shard(0))
    yield Cut("first_expert", place.shard(0), torch.arange(0, number, number // place.size))


# ---- what is made row by row ----------------------------------------------------------------------------------------


def _own_rows(module: nn.Module, place: Place, units: int) -> Iterator[Cut]:
    """No weight; each rank computes with all of them."""
    for name in ("rank_number", "place"):
        if hasattr(module, name):
            raise CannotCut(f"{type(module).__name__} has something of its own that is called {name}", 0)
    yield _number(place)


class ByRows(Shared):
    """A module that makes each row, along the last dimension, of the same row of its input: each rank makes some, given
    as two dimensions, and all ranks' are put together."""

    rank_number: Tensor

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        given = [one for one in (*args, *kwargs.values()) if isinstance(one, Tensor)]
        if len(given) != 1 or not _has_rows(given[0]):
            raise _not_by_rows(self, "is given other things")
        (x,), place = given, self.place
        own: Tensor = rows.OWN(x, self.rank_number, place.size, place.name)
        made = super().forward(  # type: ignore[misc]  # of the class behind
            *(own if one is x else one for one in args),
            **{key: own if one is x else one for key, one in kwargs.items()},
        )
        if not _has_rows(made) or made.shape[:-1] != own.shape[:-1]:
            raise _not_by_rows(self, "gives other things")
        gathered: Tensor = rows.ALL(made, x.shape[:-1], place.size, place.name)
        return gathered


def _has_rows(x: Any) -> bool:
    return isinstance(x, Tensor) and x.dim() > 1


def _not_by_rows(module: Shared, what: str) -> ModelError:
    return ModelError(
        "parallel: sequence is for modules that make each row of a tensor of the same row of another, as norms do",
        expected="one tensor of two dimensions or more as argument, and one with as many rows as result",
        got=f"{type(module).__name__} {what}",
        fix="let the module that is named compute nothing else, or share it out otherwise",
    )


def _whole(module: nn.Module, place: Place, units: int) -> Iterator[Cut]:
    yield from ()


STYLES: dict[str, Style] = {
    "colwise": Style(_outputs),
    "rowwise": Style(_inputs, Summed),
    "gathered": Style(_gathered, Gathered),
    "rowwise_of_all": Style(_inputs_of_all, SummedOfAll),
    "vocabulary": Style(_rows, LookedUp),
    "expert_width": Style(_experts_width, ExpertsSummed),
    "expert": Style(_experts_number, ExpertsSummed, "num_experts"),
    DISPATCH: Style(_experts_number, ExpertsDispatched, "num_experts", own_inputs=True),
    "sequence": Style(_own_rows, ByRows),
    "replicate": Style(_whole),
}


def share_out(module: nn.Module, style: Style, place: Place) -> None:
    """Let a module, whose tensors are cut already, compute its part and meet the others."""
    if style.mixed is not None:
        put_in_front(module, style.mixed, place)


def put_in_front(module: nn.Module, mixed: type, place: Place) -> None:
    """Give a module a class of its own, in which `mixed` stands in front of the one it had."""
    kind = type(module)
    module.__class__ = type(f"{mixed.__name__.lstrip('_')}{kind.__name__}", (mixed, kind), {"place": place})
