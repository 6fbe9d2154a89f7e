"""The golden tensors: what the original model answered at build time, and whether the artifact still answers so."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

import torch

from ..artifact.open import read_golden
from ..errors import MalformedError
from ..format.mesh import part_number
from ..format.schema import EntryPoint, Program, Shard, Tolerance
from ..format.sizes import describe
from .compared import difference
from .loaded import Loaded

_BITS = {2: torch.int16, 4: torch.int32, 8: torch.int64}  # numbers that are equal where all bits are


@dataclass(frozen=True)
class Pair:
    """What came, what is golden, and how far the one may be from the other in any case."""

    got: torch.Tensor
    want: torch.Tensor
    slack: float = 0.0


@dataclass(frozen=True)
class Comparison:
    """The largest absolute error over the outputs of one bucket, whether every element is within tolerance, and the
    largest error in units in the last place of its row's greatest number."""

    entry: str
    bucket: str
    max_abs_error: float
    within: bool
    units: float = 0.0


def key(entry: str, bucket: int, side: str, name: object) -> str:
    """The name of a golden tensor. `side`: "in", "out", "after" (a mutated input afterwards) or "state" (likewise)."""
    return f"{entry}.{bucket}.{side}.{name}"


def state_shard(program: Program, name: str) -> Shard | None:
    """How ranks share out a state, if they do."""
    number = next(item.constant for item in program.state if item.name == name)
    return program.constants[number].shard


def state_part(name: str, number: int) -> str:
    """What a part of a state is called among the golden tensors."""
    return f"{name}:{number}"


def _own_name(model: Loaded, side: str, name: str) -> str:
    """Of a state that ranks share out, the part that the model has."""
    shard = state_shard(model.program, name) if side == "state" else None
    return name if shard is None else state_part(name, part_number(shard, model.program.mesh, model.artifact.rank))


def changes(name: str, before: torch.Tensor, after: torch.Tensor) -> dict[str, torch.Tensor]:
    """`after` as golden tensors: whole under `name`, or, where that is less, the flat positions where it differs from
    `before` (`NAME.at`) and what is there (`NAME.is`). A step of a language model writes a few rows of its caches."""
    after = after.contiguous()
    rows = before.reshape(1, -1), after.view(1, -1)
    return changed_rows(name, torch.zeros(1, dtype=torch.int64), *rows, after.numel(), lambda: after)


def changed_rows(
    name: str,
    at: torch.Tensor,
    before: torch.Tensor,
    after: torch.Tensor,
    count: int,
    whole: Callable[[], torch.Tensor],
) -> dict[str, torch.Tensor]:
    """The same of a tensor of `count` numbers, of which the rows with the numbers `at` alone may differ: `before` and
    `after` are these, and `whole` gives the tensor afterwards."""
    bits = _BITS.get(after.element_size(), torch.uint8)
    unlike = before.contiguous().view(bits) != after.view(bits)
    if bits.itemsize < after.element_size():
        unlike = unlike.view(*after.shape, after.element_size() // bits.itemsize).any(-1)
    rows, columns = unlike.nonzero(as_tuple=True)
    if not count or rows.numel() * (8 + after.element_size()) >= count * after.element_size():
        return {name: whole()}
    return {f"{name}.at": at[rows] * after.shape[1] + columns, f"{name}.is": after[rows, columns]}


def replay_golden(model: Loaded) -> Iterator[Comparison]:
    """Replay the golden inputs of every bucket, and compare."""
    golden = read_golden(model.artifact)
    for entry in model.program.entry_points:
        for number in range(len(entry.buckets)):
            # No name for the outputs: the next replay overwrites them, and would say that they are held.
            yield compare_bucket(replay_bucket(model, golden, entry, number), entry, number, model.program.tolerance)


def golden_inputs(
    golden: Mapping[str, torch.Tensor], entry: EntryPoint, number: int, device: torch.device
) -> list[torch.Tensor]:
    """Copies of the golden inputs of one bucket, in the order of the entry point's: those of the host there, the others
    on `device`. Raises MalformedError where one is missing."""
    given = [_take(golden, key(entry.name, number, "in", spec.name)) for spec in entry.inputs]
    homes = ["cpu" if spec.host else device for spec in entry.inputs]
    return [tensor.to(home, copy=True) for tensor, home in zip(given, homes)]


def replay_bucket(model: Loaded, golden: Mapping[str, torch.Tensor], entry: EntryPoint, number: int) -> list[Pair]:
    """Replay the golden inputs of one bucket; what came and what is golden, on the host: outputs, mutated inputs,
    states, which keep what the call left in them."""
    given = golden_inputs(golden, entry, number, model.device)
    model.reset_state()
    mutated = {spec.name: tensor for tensor, spec in zip(given, entry.inputs) if spec.kind == "mutated"}
    lasting = [("after", mutated), ("state", model.state)]
    wanted = []
    for side, tensors in lasting:
        for name, tensor in tensors.items():
            stored = key(entry.name, number, side, _own_name(model, side, name))
            wanted.append((tensor, take_changed(golden, stored, tensor), stored))
    outputs = model.entry_points[entry.name].flat(given)
    names = [key(entry.name, number, "out", i) for i in range(len(outputs))]
    pairs = [(out, _take(golden, name), name) for out, name in zip(outputs, names)]
    return [Pair(got.cpu(), want, _slack(golden, name)) for got, want, name in (*pairs, *wanted)]


def compare_bucket(pairs: Iterable[Pair], entry: EntryPoint, number: int, tolerance: Tolerance) -> Comparison:
    """What `replay_bucket` gave, within the tolerance or not."""
    results = [difference(pair.got, pair.want, tolerance, pair.slack) for pair in pairs]
    return Comparison(
        entry.name,
        describe(entry, entry.buckets[number].sizes),
        max((result.error for result in results), default=0.0),
        all(result.within for result in results),
        max((result.units for result in results), default=0.0),
    )


def take_changed(golden: Mapping[str, torch.Tensor], name: str, before: torch.Tensor) -> torch.Tensor:
    """What `changes` stored, of a tensor that is `before` now."""
    if name in golden:
        return golden[name]
    at, values = _take(golden, f"{name}.at"), _take(golden, f"{name}.is")
    fits = at.dtype == torch.int64 and at.dim() == 1 and values.shape == at.shape and values.dtype == before.dtype
    if not fits or (at.numel() and not 0 <= int(at.min()) <= int(at.max()) < before.numel()):
        raise MalformedError(f"the golden tensor {name!r} is changed at places that it does not have")
    after = before.detach().to("cpu", copy=True).contiguous()
    after.view(-1)[at] = values
    return after


def _take(golden: Mapping[str, torch.Tensor], name: str) -> torch.Tensor:
    if name not in golden:
        raise MalformedError(f"the golden tensor {name!r} is missing")
    return golden[name]


def _slack(golden: Mapping[str, torch.Tensor], name: str) -> float:
    """How far the original itself was seen to move, of a golden tensor; 0 where nothing is stored of that."""
    if (found := golden.get(f"{name}.slack")) is None:
        return 0.0
    if found.dtype != torch.float64 or found.shape != () or not 0 <= float(found) < math.inf:
        raise MalformedError(f"the golden tensor '{name}.slack' is no number of how far another may be off")
    return float(found)
