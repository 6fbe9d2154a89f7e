"""What do layers see, and how far does their quantised form move what they answer? On inputs of the recipe's choice."""

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from torch import Tensor, nn

from aotair_runtime.errors import AotairError
from aotair_runtime.format.torch_names import dtype

from ..errors import ModelError, RecipeError
from ..recipe.entry import EntryJob
from ..recipe.imports import import_callable
from ..recipe.job import Job
from .moved import Moved
from .reference import Original
from .samples import random_inputs, read_samples

Inputs = Mapping[str, Tensor]


@dataclass(frozen=True)
class Given:
    """The arguments of one call of a layer."""

    args: tuple[Tensor, ...]
    kwargs: Inputs

    @property
    def first(self) -> Tensor:
        return self.args[0] if self.args else next(iter(self.kwargs.values()))


@dataclass(frozen=True)
class Calibration:
    """Calls of one entry point after the other. `source`: where they are from, for people."""

    calls: tuple[tuple[EntryJob, tuple[Inputs, ...]], ...]
    source: str

    def answers(self, model: nn.Module) -> list[Tensor]:
        """The tensors of floats that the model returns, call by call; its buffers are as they were."""
        found = []
        for entry, inputs in self.calls:
            original = Original(model, entry)
            for one in inputs:
                answers = self._called(original, {name: tensor.clone() for name, tensor in one.items()}, entry)
                found += [answer.double() for answer in answers if answer.dtype.is_floating_point]
            original.reset()
        return found

    def _called(self, original: Original, inputs: Inputs, entry: EntryJob) -> list[Tensor]:
        try:
            return original(inputs)
        except AotairError:
            raise
        except Exception as error:  # whatever a model raises
            raise ModelError(
                f"quantize.calibration: the model fails on {self.source}: {type(error).__name__}: {error}",
                where=entry.where,
                expected="inputs that the model takes",
                got=", ".join(f"{name} {list(tensor.shape)}" for name, tensor in inputs.items()),
                fix="ids within its vocabulary, sizes within its limits",
            ) from error


def calibration_of(job: Job) -> Calibration:
    """Those of `quantize.calibration`: for the last entry point (of a language model, the step that is called most), or
    prompts for the first (which takes whole texts); or random inputs of the smallest and of the largest bucket for
    each."""
    assert job.quantize is not None
    name, last = job.quantize.calibration, job.entries[-1]
    if name is None:
        return Calibration(tuple((one, tuple(_random(one))) for one in job.entries), "random inputs")
    if name == "prompts":
        return _prompted(job)
    found = _called(name, last, job) if ":" in name else _read(name, last)
    given = tuple(found)
    return Calibration(((last, given),), f"{len(given)} of {name}")


def _random(entry: EntryJob) -> Iterator[Inputs]:
    sizes = entry.bucket_sizes()
    for bucket in dict.fromkeys((sizes[0], max(sizes, key=math.prod))):
        yield random_inputs(entry, dict(zip(entry.dims(), bucket)), 0)


def _prompted(job: Job) -> Calibration:
    first = job.entries[0]
    calls = tuple(first.prompts(first)) if first.prompts else ()
    if not calls:
        raise RecipeError(
            "quantize.calibration: prompts: there are none that the first entry point takes",
            where=job.where,
            expected="model.pretrained with a tokenizer, and texts in verify.prompts that its buckets hold",
            fix="name a file of inputs, or a function that gives them",
        )
    return Calibration(((first, calls),), f"{len(calls)} of verify.prompts")


def _read(name: str, entry: EntryJob) -> Iterator[Inputs]:
    return read_samples(replace(entry, samples=name), "quantize.calibration")


def _called(name: str, entry: EntryJob, job: Job) -> Iterator[Inputs]:
    function = import_callable(name, job.folder, job.where, "quantize.calibration")
    found = function()
    calls = list(found) if hasattr(found, "__iter__") else []
    if not calls:
        raise RecipeError(
            f"quantize.calibration: {name} gives no inputs",
            where=job.where,
            expected=f"dicts of {', '.join(entry.inputs)}, one at least",
            got="none" if hasattr(found, "__iter__") else type(found).__name__,
        )
    for number, inputs in enumerate(calls):
        if not isinstance(inputs, dict) or set(inputs) != set(entry.inputs):
            raise RecipeError(
                f"quantize.calibration: {name} gives other inputs than the recipe's, as number {number}",
                where=job.where,
                expected=f"dicts of {', '.join(entry.inputs)}",
                got=", ".join(sorted(map(str, inputs))) if isinstance(inputs, dict) else type(inputs).__name__,
            )
        _refuse_others(inputs, f"{name} gives as number {number}", entry, job)
        yield inputs


def _refuse_others(inputs: Mapping[str, object], what: str, entry: EntryJob, job: Job) -> None:
    """Raises RecipeError where a value is no tensor of its input's dtype and rank."""
    for name, value in inputs.items():
        item = entry.inputs[name]
        if item.host:
            continue
        if isinstance(value, Tensor) and value.dtype == dtype(item.dtype) and value.dim() == len(item.shape):
            continue
        got = f"{value.dtype} {list(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
        raise RecipeError(
            f"quantize.calibration: {what} another {name} than the recipe's",
            where=job.where,
            expected=f"a tensor of {item.dtype} with {len(item.shape)} dimensions",
            got=got,
        )


@contextlib.contextmanager
def watched(layers: Mapping[str, nn.Module], see: Callable[[str, "Given", Tensor], None]) -> Iterator[None]:
    """Within, each call of a layer is shown: its name, what it is given and what it answers."""

    def hook_of(name: str) -> Callable[..., None]:
        return lambda _, args, kwargs, answer: see(name, Given(args, kwargs), answer)

    handles = [one.register_forward_hook(hook_of(name), with_kwargs=True) for name, one in layers.items()]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


@dataclass
class Largest:
    """The largest absolute value of each layer's inputs."""

    found: dict[str, float] = field(default_factory=dict)

    def __call__(self, name: str, given: Given, _: Tensor) -> None:
        x = given.first
        if not x.numel():
            return
        largest = x.abs().max().item()
        if not math.isfinite(largest):
            raise ModelError(
                f"quantize.calibration: {name} is given NaN or infinities",
                expected="inputs for which the model computes finite numbers",
                got=f"a largest value of {largest}",
            )
        self.found[name] = max(self.found.get(name, 0.0), largest)


@dataclass
class Errors:
    """How far each layer's answers move: the norm of all differences over the norm of all answers."""

    forms: Mapping[str, nn.Module]
    moved: dict[str, Moved] = field(default_factory=dict)

    def __call__(self, name: str, given: Given, answer: Tensor) -> None:
        self.moved.setdefault(name, Moved()).see(answer, self.forms[name](*given.args, **given.kwargs))

    def relative(self) -> dict[str, float]:
        """By name."""
        return {name: one.relative for name, one in self.moved.items()}


def worst_first(errors: Mapping[str, float]) -> dict[str, float]:
    return dict(sorted(errors.items(), key=lambda item: (-item[1], item[0])))
