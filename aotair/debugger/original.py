"""The calls that are compared on, and what the original model leaves behind of each."""

import functools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch

from aotair_runtime.format.structure import leaf_names
from aotair_runtime.format.torch_names import dtype

from ..errors import RecipeError
from ..export.exported import Exported
from ..graph.resolve import resolved
from ..model.reference import Original
from ..model.samples import poisoned, random_inputs
from ..model.wider import Wider
from ..prove.lived import Lived
from ..prove.runs import Run
from ..recipe.entry import EntryJob
from .replays import Call


@dataclass(frozen=True)
class Named:
    """A call, and what it is called: `random inputs, from random states`."""

    words: str
    call: Call


class Reference:
    """The original, called like the graph that was exported of it. Its buffers are as built now."""

    def __init__(self, model: torch.nn.Module, job: EntryJob, exported: Exported):
        self._original, self._job = Original(model, job), job
        self.states = {item.name: item.tensor.clone() for item in exported.states.values()}
        self.names = [
            *leaf_names(exported.structure),
            *(f"input {name}" for name in self.mutated),
            *(f"state {name}" for name in self.states),
        ]

    @property
    def mutated(self) -> list[str]:
        """The inputs that calls write into."""
        return [name for name, item in self._job.inputs.items() if item.mutated]

    def reset(self) -> None:
        """Put the original's buffers back as they were built: a build takes them from there."""
        self._original.reset()

    def run(self, call: Call) -> Run:
        """What the original leaves behind."""
        run = self._run(call)
        return Run(run.names, run.tensors, functools.cache(lambda: self._moved(call)))

    def _run(self, call: Call) -> Run:
        given = {name: tensor.clone() for name, tensor in call.inputs.items()}
        outputs, buffers = self._original(given, call.states), self._original.buffers()
        left = [resolved(buffers[name]).clone() for name in self.states]
        return Run(self.names, [*outputs, *(given[name] for name in self.mutated), *left])

    def _moved(self, call: Call) -> Run:
        with Wider():  # type: ignore[no-untyped-call]  # torch's own __init__
            return self._run(call)

    def calls(self, sizes: tuple[int, ...]) -> Iterator[Named]:
        """Calls of a bucket: with random inputs from the states as built, and from such as calls leave them."""
        inputs = random_inputs(self._job, dict(zip(self._job.dims(), sizes, strict=True)), 0)
        first = Call(inputs, {})
        yield Named("random inputs", first)
        lived, after = Lived(), self._run(first).tensors[len(self.names) - len(self.states) :]
        for (name, before), left in zip(self.states.items(), after):
            lived.saw(name, before, left)
        if states := lived.states(self.states, 0):
            yield Named("random inputs, from random states", Call(inputs, states))


def smallest_bucket(job: EntryJob, inputs: Mapping[str, torch.Tensor]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The smallest bucket that holds these inputs, and their own sizes. Raises RecipeError."""
    known: dict[str, int] = {}
    for name, item in job.inputs.items():
        got = tuple(inputs[name].shape) if name in inputs else ()
        fits = len(got) == len(item.shape) and all(
            known.setdefault(dim, size) == size if isinstance(dim, str) else dim == size
            for dim, size in zip(item.shape, got)
        )
        if not fits or inputs[name].dtype != dtype(item.dtype):
            said = f"{inputs[name].dtype} {list(got)}".removeprefix("torch.") if name in inputs else "nothing"
            expected = f"{item.dtype} [{', '.join(map(str, item.shape))}]"
            raise RecipeError(f"the input {name!r} does not fit", where=job.where, expected=expected, got=said)
    sizes = tuple(known[dim] for dim in job.dims())
    pads = [job.paddable(dim) for dim in job.dims()]
    fitting = [
        bucket
        for bucket in job.bucket_sizes()
        if all(size <= most if pad else size == most for size, most, pad in zip(sizes, bucket, pads))
    ]
    if not fitting:
        raise RecipeError("no bucket holds these inputs", where=job.where, got=str(dict(zip(job.dims(), sizes))))
    return min(fitting, key=math.prod), sizes


def padded(job: EntryJob, inputs: Mapping[str, torch.Tensor], bucket: tuple[int, ...]) -> dict[str, torch.Tensor]:
    """The inputs as a call pads them to a bucket."""
    by_dim = dict(zip(job.dims(), bucket, strict=True))
    found = {}
    for name, item in job.inputs_at(by_dim).items():
        shape = tuple(item.shape_at(by_dim))
        fill = 0 if item.fill is None or isinstance(item.fill, str) else item.fill
        found[name] = poisoned(item, inputs[name], shape, fill, 0)
    return found
