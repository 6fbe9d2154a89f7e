"""The calls that are compared on, and what the original model leaves behind of each."""

import functools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch

from aotair_runtime.format.structure import leaf_names
from aotair_runtime.format.torch_names import dtype

from ..errors import ModelError, RecipeError
from ..export.exported import Exported
from ..graph.resolve import resolved
from ..model.exact import roundings
from ..model.reference import Original
from ..model.samples import Poison, poisoned, poisons, random_inputs
from ..model.wider import Wider
from ..prove.lived import Lived
from ..prove.runs import Run
from ..prove.tilts import tilted, tilts
from ..recipe.entry import EntryJob
from .replays import Call

_POISONS = 2  # ways of padding that are tried


@dataclass(frozen=True)
class Named:
    """A call, and what it is called: `random inputs, from random states`. `real`: what the original is called with,
    where the call has that in a padded form; its answers are then compared as far as they go."""

    words: str
    call: Call
    real: Call | None = None


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

    def run(self, one: Named) -> Run:
        """What the original leaves behind of a call. Raises ModelError where it fails."""
        call = one.real or one.call
        try:
            run = self._run(call)
        except Exception as error:
            raise ModelError(
                f"the original model fails with {one.words}: {type(error).__name__}: {error}", where=self._job.where
            ) from error
        moved = functools.cache(lambda: self._moved(call))
        rounded = functools.cache(lambda: self._rounded(call))
        return Run(run.names, run.tensors, moved, rounded=rounded)

    def _run(self, call: Call) -> Run:
        given = {name: tensor.clone() for name, tensor in call.inputs.items()}
        outputs, buffers = self._original(given, call.states), self._original.buffers()
        left = [resolved(buffers[name]).clone() for name in self.states]
        return Run(self.names, [*outputs, *(given[name] for name in self.mutated), *left])

    def _moved(self, call: Call) -> Run:
        with Wider():
            return self._run(call)

    def _rounded(self, call: Call) -> Mapping[str, float]:
        def left() -> Mapping[str, torch.Tensor]:
            run = self._run(call)
            return dict(zip(run.names, run.tensors, strict=True))

        return roundings(self._original.model, left)

    def calls(self, sizes: tuple[int, ...]) -> Iterator[Named]:
        """Calls of a bucket: with random inputs from the states as built, and from such as calls leave them; at the
        ends of the inputs' ranges; and padded, with what may lie there."""
        by_dim = dict(zip(self._job.dims(), sizes, strict=True))
        inputs = random_inputs(self._job, by_dim, 0)
        first = Named("random inputs", Call(inputs, {}))
        yield first
        lived, after = Lived(), self.run(first).tensors[len(self.names) - len(self.states) :]
        for (name, before), left in zip(self.states.items(), after):
            lived.saw(name, before, left)
        if states := lived.states(self.states, 0):
            yield Named("random inputs, from random states", Call(inputs, states))
        items = self._job.inputs_at(by_dim)
        for number in range(1, len(tilts(items))):
            ends, words = tilted(items, inputs, number)
            if words.endswith(("the least", "the greatest")):
                yield Named(words, Call(ends, states))
        yield from self._padded(sizes, states)

    def _padded(self, sizes: tuple[int, ...], states: Mapping[str, torch.Tensor]) -> Iterator[Named]:
        """Calls that are smaller than the bucket along each dimension that may be padded."""
        dims = self._job.dims()
        least = [max(self._job.least(dim), size - 1) for dim, size in zip(dims, sizes)]
        own = tuple(
            small if self._job.paddable(dim) else size for dim, size, small in zip(dims, sizes, least, strict=True)
        )
        if own == sizes:
            return
        real = random_inputs(self._job, dict(zip(dims, own)), 0)
        kinds = {name: poisons(item) for name, item in self._job.inputs.items() if item.pad == "any"}
        for turn in range(min(_POISONS, max(map(len, kinds.values()), default=1))):
            chosen = {name: kind[turn % len(kind)] for name, kind in kinds.items() if kind}
            whole = padded(self._job, real, sizes, chosen, turn)
            words = ", ".join(f"{name}={value}" for name, value in chosen.items())
            yield Named(
                f"padded inputs ({words})" if words else "padded inputs", Call(whole, states), Call(real, states)
            )


def smallest_bucket(job: EntryJob, inputs: Mapping[str, torch.Tensor]) -> tuple[int, ...]:
    """The smallest bucket that holds these inputs. Raises RecipeError."""
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
    return min(fitting, key=math.prod)


def padded(
    job: EntryJob,
    inputs: Mapping[str, torch.Tensor],
    bucket: tuple[int, ...],
    chosen: Mapping[str, Poison] | None = None,
    stream: int = 0,
) -> dict[str, torch.Tensor]:
    """The inputs as a call pads them to a bucket; with these `chosen` values where any may lie there, or zeros."""
    by_dim = dict(zip(job.dims(), bucket, strict=True))
    found = {}
    for name, item in job.inputs_at(by_dim).items():
        shape = tuple(item.shape_at(by_dim))
        fill: Poison = 0 if item.fill is None or isinstance(item.fill, str) else item.fill
        found[name] = poisoned(item, inputs[name], shape, (chosen or {}).get(name, fill), stream)
    return found
