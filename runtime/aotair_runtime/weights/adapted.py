"""Weights under an adapter: which constants change, to what, and what they were before."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch._ops import OpOverload

from ..artifact.checkpoint import Checkpoint, open_checkpoint, some
from ..artifact.open import Artifact, read_golden
from ..artifact.renamed import Naming
from ..errors import WeightsError
from ..format.prologue import tensors
from ..format.schema import Part, Program
from ..format.torch_names import dtype
from .adapter import Adapter
from .prologue import made_by
from .swap import Weights, as_the_model_names, check_shapes

# How far, of its norm, what the base makes may lie from what the model has: kernels of nodes differ in the last bits.
_SAME = {torch.float32: 1e-5, torch.float64: 1e-12}
_SAME_ROUNDED = 1e-3  # of halves and of integers, which few of these bits change


@dataclass(frozen=True)
class Base:
    """The weights that adapters are added to: host copies of those that they change, by number, and the checkpoint
    that is said to hold them, if any."""

    values: Mapping[int, torch.Tensor]
    checkpoint: Checkpoint | None = None

    def with_copies(
        self, numbers: Iterable[int], constants: Sequence[torch.Tensor], checkpoint: Checkpoint | None
    ) -> "Base":
        """With copies of these constants too, where no adapter has changed them yet."""
        more = {number: constants[number].cpu().clone() for number in numbers if number not in self.values}
        return Base({**self.values, **more}, checkpoint)


def read_base(path: Path | None, artifact: Artifact, adapter: Adapter) -> Checkpoint | None:
    """The checkpoint at `path`, which holds what the artifact does not store and the adapter needs. Raises WeightsError
    where it does not, or is missing."""
    program = artifact.program
    there = tensors(program)
    needed = [n for part in adapter.parts(program) for n in part.reads if n >= len(program.constants)]
    if path is None:
        if needed:
            raise WeightsError(
                "the adapter changes weights of which the artifact stores only what is made of them",
                where=str(artifact.path),
                got=some([there[number].name for number in needed]),
                fix="say where the checkpoint lies: load_adapter(…, base=PATH)",
            )
        return None
    checkpoint = as_the_model_names(open_checkpoint(path), program, Naming())
    chosen = {n: [name for group in there[n].names for name in group if name in checkpoint.tensors] for n in needed}
    if missing := [there[number].name for number, names in chosen.items() if not names]:
        raise WeightsError("the base checkpoint lacks weights", where=str(path), got=f"missing: {some(missing)}")
    check_shapes(program, checkpoint, chosen, cast=True)
    return checkpoint


def adapted(
    artifact: Artifact, ops: Sequence[OpOverload], adapter: Adapter, base: Base, constants: Sequence[torch.Tensor]
) -> Weights:
    """The constants that an adapter changes, with what it adds, and those that the one before it changed, as they were;
    `constants` are the model's, and what of them `base` holds is taken from there."""
    found = _Adapted(artifact.program, ops, adapter, base, constants)
    return Weights(str(adapter.file.path), found.numbers, found.values, read_golden(artifact), None)


class _Adapted:
    """The values of constants under an adapter."""

    def __init__(
        self,
        program: Program,
        ops: Sequence[OpOverload],
        adapter: Adapter,
        base: Base,
        constants: Sequence[torch.Tensor],
    ):
        self._program, self._ops, self._adapter, self._base, self._constants = program, ops, adapter, base, constants
        self._parts = adapter.parts(program)
        self._direct = adapter.direct(program)
        changed = adapter.changes(program)
        self._restored = [number for number in base.values if number not in changed]
        self.numbers = [*self._restored, *changed]

    def values(self) -> Iterator[tuple[int, torch.Tensor]]:
        for number in self._restored:
            yield number, self._base.values[number]
        for part in self._parts:
            self._check_base(part)
        for number in self._direct:
            yield number, self._read(number)
        for part in self._parts:
            yield from made_by(self._program, part, self._ops, self._read).items()

    def _read(self, number: int) -> torch.Tensor:
        return self._adapter.applied(number, self._plain(number))

    def _plain(self, number: int) -> torch.Tensor:
        """A weight without any adapter."""
        if number < len(self._program.constants):
            return self._base.values[number] if number in self._base.values else self._constants[number].cpu()
        constant, checkpoint = tensors(self._program)[number], self._base.checkpoint
        assert checkpoint is not None  # `read_base` found that it holds this
        name = next(name for group in constant.names for name in group if name in checkpoint.tensors)
        return checkpoint.tensor(name).to(dtype(constant.dtype))

    def _check_base(self, part: Part) -> None:
        """Raises WeightsError where the base checkpoint does not make what the model has."""
        for number, made in made_by(self._program, part, self._ops, self._plain).items():
            mine, bound = self._plain(number).double(), _SAME.get(made.dtype, _SAME_ROUNDED)
            if not (made.double() - mine).norm() <= bound * mine.norm():
                raise WeightsError(
                    "the base checkpoint holds other weights than the model",
                    where="" if self._base.checkpoint is None else str(self._base.checkpoint.path),
                    got=f"another {tensors(self._program)[number].name}",
                    fix="give the checkpoint that the artifact was built of, or that load_weights read last",
                )


def without_adapter(artifact: Artifact, base: Base) -> Weights:
    """The weights as they were before any adapter."""
    values = base.values
    return Weights(str(artifact.path), list(values), lambda: iter(values.items()), read_golden(artifact), None)
