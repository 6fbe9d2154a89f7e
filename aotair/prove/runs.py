"""One call of the original, and one of the artifact: what each leaves behind."""

import functools
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch

from aotair_runtime.format.schema import EntryPoint
from aotair_runtime.format.sizes import evaluate
from aotair_runtime.format.structure import leaf_names
from aotair_runtime.model import Model

from ..errors import ProofError
from ..graph.resolve import resolved
from ..model.exact import roundings
from ..model.reference import Original
from ..model.wider import Wider
from ..model.written import Written
from ..recipe.entry import EntryJob
from .together import AllRanks

log = logging.getLogger("aotair")

Tensors = Mapping[str, torch.Tensor]
AS_BUILT: Tensors = {}


@dataclass(frozen=True)
class Run:
    """What a call left behind: outputs, then mutated inputs, with a name for each; and what it wrote into `states`.
    `moved` makes the call again, with sums in float64, once; None where the model cannot. `rounded` makes it in wider
    numbers too, once: by name, how far rounding takes the original from that."""

    names: list[str]
    tensors: list[torch.Tensor]
    moved: Callable[[], "Run | None"] = lambda: None
    states: Mapping[str, Written] = field(default_factory=dict)
    rounded: Callable[[], Mapping[str, float]] = lambda: {}

    def cut(self, entry: EntryPoint, sizes: Sequence[int]) -> "Run":
        """With the part of the outputs that calls of these sizes have."""
        outputs = []
        for tensor, spec in zip(self.tensors, entry.outputs):
            shape = [evaluate(expr, sizes) for expr in spec.shape]
            outputs.append(tensor[tuple(slice(0, size) for size in shape)])
        return replace(self, tensors=outputs + self.tensors[len(outputs) :])

    def shared(self, other: "Run") -> "Run":
        """The same, and what is equal to the other's is that: what lasts longer than the next call holds nothing
        twice."""
        pairs = zip(self.tensors, other.tensors, strict=True)
        return replace(self, tensors=[theirs if same(mine, theirs) else mine.clone() for mine, theirs in pairs])


def put_states(model: Model | AllRanks, states: Tensors) -> None:
    """Give states of the model these values."""
    if isinstance(model, AllRanks):
        model.put_states(states)
        return
    own = model.state
    for name, value in states.items():
        own[name].copy_(value)


class Runner:
    """Calls of one entry point."""

    def __init__(self, job: EntryJob, entry: EntryPoint, model: Model | AllRanks, original: Original):
        self.job, self.entry, self.model, self.original = job, entry, model, original
        self.mutated = [name for name, item in job.inputs.items() if item.mutated]
        self.outputs = list(leaf_names(entry.structure))

    def reference(self, inputs: Tensors, states: Tensors = AS_BUILT) -> Run:
        """What the original leaves behind. Raises ProofError where it fails."""
        try:
            run = self._reference(inputs, states)
        except Exception as error:
            shapes = ", ".join(f"{name} {list(tensor.shape)}" for name, tensor in inputs.items())
            raise ProofError(
                f"the original model fails at sizes that a bucket would serve: {type(error).__name__}: {error}",
                where=self.job.where,
                expected="a model that takes all sizes up to its buckets'",
                got=shapes,
                fix="give every size that it takes its bucket and remove pad:, let the model take smaller ones, or say "
                "which is the smallest: dimensions: {NAME: {min: SIZE}}",
            ) from error
        return replace(
            run,
            moved=functools.cache(lambda: self._moved(inputs, states)),
            rounded=functools.cache(lambda: self._rounded(inputs, states)),
        )

    def replay(self, inputs: Tensors, states: Tensors = AS_BUILT) -> Run:
        """What the artifact leaves behind."""
        given = {name: tensor.clone() for name, tensor in inputs.items()}
        if states.keys() != {item.name for item in self.model.program.state}:
            self.model.reset_state()
        put_states(self.model, states)
        outputs = self.model.entry_points[self.entry.name].flat([given[spec.name] for spec in self.entry.inputs])
        return self._run(outputs, given, self.model.state, states)

    def _reference(self, inputs: Tensors, states: Tensors) -> Run:
        given = {name: tensor.clone() for name, tensor in inputs.items()}
        outputs, buffers = self.original(given, states), self.original.buffers()
        left = {item.name: resolved(buffers[item.name]) for item in self.model.program.state}
        return self._run(outputs, given, left, states)

    def _moved(self, inputs: Tensors, states: Tensors) -> Run | None:
        try:
            with Wider():
                return self._reference(inputs, states)
        except Exception as error:
            log.debug("%s: not with sums in float64: %s", self.job.where, error)
            return None

    def _rounded(self, inputs: Tensors, states: Tensors) -> Mapping[str, float]:
        return roundings(self.original.model, lambda: self._left_behind(inputs, states))

    def _left_behind(self, inputs: Tensors, states: Tensors) -> Tensors:
        """By name, what the original leaves behind, states whole."""
        given = {name: tensor.clone() for name, tensor in inputs.items()}
        outputs, buffers = self.original(given, states), self.original.buffers()
        found = dict(zip(self.names(), [*outputs, *(given[name] for name in self.mutated)], strict=True))
        return found | {f"state {item.name}": buffers[item.name].clone() for item in self.model.program.state}

    def names(self) -> list[str]:
        """Of outputs, then of mutated inputs."""
        return self.outputs + [f"input {name}" for name in self.mutated]

    def _run(self, outputs: Sequence[torch.Tensor], inputs: Tensors, left: Tensors, states: Tensors) -> Run:
        before = self.original.first_values() | dict(states)
        written = {name: Written.between(before[name], state) for name, state in left.items()}
        return Run(self.names(), [*outputs, *(inputs[name] for name in self.mutated)], states=written)


def same(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors hold the same; NaN is like no other."""
    return one.shape == other.shape and one.dtype == other.dtype and torch.equal(one, other)
