"""New values for the weights of a loaded model: all are checked, then all written, replayed, and kept or taken back."""

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch._ops import OpOverload

from ..artifact.asked import Among
from ..artifact.checkpoint import Checkpoint, dtype_fault, mark, open_checkpoint, same_bytes, some
from ..artifact.joined import joined
from ..artifact.listed import listed, listed_by_file
from ..artifact.open import Artifact, file_of, is_artifact, opened, read_golden, with_weights
from ..artifact.quantisation import quantisation_of
from ..artifact.renamed import Naming, renamed
from ..capture.graphs import Resident
from ..errors import MalformedError, WeightsError
from ..format.joined import piece_names
from ..format.mesh import of_rank, part_number, parts_of, whole_shape, within
from ..format.prologue import follows_from, tensors
from ..format.schema import WEIGHTS_FILE, Constant, EntryPoint, Program, Tolerance
from ..format.sizes import describe
from ..format.torch_names import dtype
from .compared import tolerance_text
from .golden import Pair, compare_bucket, replay_bucket
from .loaded import Loaded
from .prologue import made_by


@dataclass(frozen=True)
class Weights:
    """Checked values for constants: `values` gives each in turn, with its number, read or computed when it is asked
    for; `numbers` are those that it will give. `tolerance`: what the golden tensors that belong to them are compared
    within; None: there are none, and outputs have to be finite. `mark`: what tells them from others."""

    where: str
    numbers: Sequence[int]
    values: Callable[[], Iterator[tuple[int, torch.Tensor]]]
    golden: Mapping[str, torch.Tensor]
    tolerance: Tolerance | None
    mark: Callable[[], str] = lambda: ""


def read_weights(
    path: Path,
    artifact: Artifact,
    ops: Sequence[OpOverload],
    constants: Sequence[torch.Tensor],
    *,
    strict: bool,
    cast: bool,
    naming: Naming,
) -> Weights:
    """The weights at `path` for a model of `artifact`, checked whole; `ops` are those of its program, resolved, and
    `constants` the model's own. Raises WeightsError or an ArtifactError."""
    if is_artifact(path):
        return _of_artifact(path, artifact)
    if artifact.gate is not None:
        artifact.gate.refuse_unsigned(path)
    program, golden = artifact.program, read_golden(artifact)
    checkpoint = open_checkpoint(path)
    told = functools.partial(mark, checkpoint)
    _check_derived(program, str(path))
    _check_quantisation(program, checkpoint)
    checkpoint = as_the_model_names(checkpoint, program, naming)
    chosen = _chosen(program, checkpoint, strict)
    check_shapes(program, checkpoint, chosen, cast)
    numbers = [number for number in chosen if number < len(program.constants)]
    numbers += [number for part in program.prologue.parts for number in part.makes]
    values = functools.partial(_values, artifact, ops, constants, checkpoint, chosen)
    return Weights(str(path), numbers, values, golden, None, told)


def swap(model: Loaded, weights: Weights, resident: Resident) -> None:
    """Write the weights into the tensors of the model, which are `resident`, and replay; where anything fails, on any
    rank, put back what was there and raise. The caller holds the lock of the model's pools, and the device has nothing
    left to do."""
    constants = resident.constants
    kept = [(tensor, tensor.cpu().clone()) for tensor in (*(constants[n] for n in weights.numbers), *resident.states)]
    try:
        with model.on_all_ranks("writing the weights"):
            for number, value in weights.values():
                constants[number].copy_(value)
            _pack(resident, weights.numbers)
            model.synchronize()
        with model.on_all_ranks("replaying the golden tensors"):
            _replay(model, weights)
            model.reset_state()
            model.synchronize()
    except BaseException as error:
        _put_back(model, kept, resident, weights.numbers, error)
        raise


def _pack(resident: Resident, numbers: Sequence[int]) -> None:
    """Let what is packed follow the constants of these numbers."""
    changed = set(numbers)
    for number, packed in resident.by_number.items():
        if number in changed:
            packed.fill(resident.constants[number])


def _put_back(
    model: Loaded,
    kept: Sequence[tuple[torch.Tensor, torch.Tensor]],
    resident: Resident,
    numbers: Sequence[int],
    error: BaseException,
) -> None:
    try:
        for tensor, old in kept:
            tensor.copy_(old)
        _pack(resident, numbers)
        model.synchronize()
        whole = all(same_bytes(pair) for pair in kept)
    except RuntimeError as fault:
        model.close()
        raise WeightsError(f"the old weights could not be put back, and the model is closed: {fault}") from error
    if not whole:
        model.close()
        raise WeightsError("the old weights did not come back as they were, and the model is closed") from error


# ---- an artifact ---------------------------------------------------------------------------------------------------


def _of_artifact(path: Path, artifact: Artifact) -> Weights:
    folder, other = opened(path, artifact.gate, Among(artifact.program.mesh))
    _check_alike(artifact.program, other, str(path))
    found = with_weights(folder, other, rank=artifact.rank)
    numbers = range(len(found.constants))
    file = file_of(other, WEIGHTS_FILE)
    told = functools.partial(" ".join, (file.sha256, *file.parts))
    values = functools.partial(enumerate, found.constants)
    return Weights(str(path), numbers, values, read_golden(found), other.tolerance, told)


_TABLES = ("state", "ops", "layouts", "instructions", "arena", "alignment")
_ALIKE = (*_TABLES, "entry_points", "prologue", "quantisation", "mesh")


def _check_alike(mine: Program, other: Program, where: str) -> None:
    """Raises WeightsError where two artifacts differ in anything but names, weights, proofs and what is golden."""
    fix = "build it with: aotair build RECIPE --like ARTIFACT, the one that is loaded"
    here, there = ([f"{c.name} {c.dtype}{list(c.shape)}" for c in p.constants] for p in (mine, other))
    if here != there:
        names = [text for text in (*here, *there) if text not in here or text not in there]
        raise WeightsError("the artifact has other constants than the model", where=where, got=some(names), fix=fix)
    for field in _ALIKE:
        one, two = (
            [_unproved(entry) for entry in p.entry_points] if field == "entry_points" else getattr(p, field)
            for p in (mine, other)
        )
        if one != two:
            raise WeightsError(f"the artifact has other {field} than the model", where=where, fix=fix)


def _unproved(entry: EntryPoint) -> EntryPoint:
    return replace(entry, buckets=tuple(replace(bucket, proof=None) for bucket in entry.buckets))


# ---- a checkpoint --------------------------------------------------------------------------------------------------


def _check_derived(program: Program, where: str) -> None:
    """Raises WeightsError where the artifact does not say what its constants are, or how some were computed."""
    if program.constants and not any(constant.kind for constant in program.constants):
        raise WeightsError(
            "the artifact does not say which names its weights have in a checkpoint",
            where=where,
            fix="build it again with this version, or give an artifact of the new weights",
        )
    known = follows_from(program)
    derived = [item.name for item in program.constants if item.kind == "derived" and item.name not in known]
    if derived:
        raise WeightsError(
            "the model holds weights that its build computed, and the artifact does not say how",
            where=where,
            got=some(derived),
            fix="build it again with this version, or give an artifact of the new weights (aotair build --like)",
        )


def _check_quantisation(program: Program, checkpoint: Checkpoint) -> None:
    """Raises WeightsError where a checkpoint says of its tensors that they mean something else than the model's do."""
    if program.quantisation and quantisation_of(checkpoint) not in ("", program.quantisation):
        raise WeightsError(
            "the checkpoint is quantised otherwise than the one that the model was built from",
            where=str(checkpoint.path),
            expected="the same quantization_config, or description of the tensors",
            fix="build an artifact from this checkpoint",
        )


def as_the_model_names(checkpoint: Checkpoint, program: Program, naming: Naming) -> Checkpoint:
    """With the names that tensors have in the model, and whole what it holds in pieces. Raises WeightsError."""
    return joined(renamed(checkpoint, _names(program), naming), program.joined)


def _names(program: Program) -> set[str]:
    """All names that a checkpoint of the model may have."""
    whole = {name for item in tensors(program) for group in item.names for name in group}
    return whole | set(program.unread) | {name for item in program.joined for name in piece_names(item)}


def _chosen(program: Program, checkpoint: Checkpoint, strict: bool) -> dict[int, list[str]]:
    """For each tensor of the program that a checkpoint has, by number, the names of all its values there."""
    chosen: dict[int, list[str]] = {}
    missing: list[str] = []
    known = set(program.unread)
    for number, constant in enumerate(tensors(program)):
        if constant.kind != "weight":
            continue
        found = [[name for name in group if name in checkpoint.tensors] for group in constant.names]
        missing += [group[0] for group, names in zip(constant.names, found) if not names]
        known |= {name for group in constant.names for name in group}
        chosen[number] = [name for names in found for name in names]
    unknown = [name for name in checkpoint.tensors if name not in known]
    if missing or (strict and unknown):
        files = {name: checkpoint.tensors[name].file.name for name in unknown}
        raise WeightsError(
            "the names do not match the model's",
            where=str(checkpoint.path),
            expected=f"every weight of the model; missing: {listed(missing)}",
            got=f"names the model does not have: {listed_by_file(unknown if strict else [], files)}",
            fix="" if missing else "strict=False leaves them out",
        )
    return chosen


def check_shapes(program: Program, checkpoint: Checkpoint, chosen: Mapping[int, list[str]], cast: bool) -> None:
    """Raises WeightsError where a tensor has another shape or dtype, or where one constant would need two values."""
    wrong, castable, there = [], True, tensors(program)
    for number, names in chosen.items():
        constant = there[number]
        want = dtype(constant.dtype)
        for name in names:
            have = checkpoint.tensors[name]
            whole = whole_shape(constant)
            if have.shape != whole or dtype_fault(have.dtype, want, cast):
                text = f"{str(have.dtype).removeprefix('torch.')}{list(have.shape)} in {have.file.name}"
                wrong.append(f"{name} is {text}, not {constant.dtype}{list(whole)}")
                castable &= have.shape == whole and not dtype_fault(have.dtype, want, True)
    if wrong:
        fix = "cast=True converts them, or let a build do it (model.dtype)" if castable else ""
        raise WeightsError("tensors do not fit the model's", where=str(checkpoint.path), got=some(wrong), fix=fix)
    for number, names in chosen.items():
        _check_equal(checkpoint, there[number], names)


def _check_equal(checkpoint: Checkpoint, constant: Constant, names: Sequence[str]) -> None:
    kind = dtype(constant.dtype)
    for name in names[1:]:
        if same_bytes(checkpoint.tensor(one).to(kind) for one in (names[0], name)):
            continue
        tied = any(names[0] in group and name in group for group in constant.names)
        raise WeightsError(
            f"{names[0]} and {name} are one tensor in the artifact and differ here",
            where=str(checkpoint.path),
            expected="equal values: " + ("the model ties them" if tied else "they were equal when it was built"),
            fix="leave one of them out" if tied else "build the artifact with model.share_equal_weights: false",
        )


def _values(
    artifact: Artifact,
    ops: Sequence[OpOverload],
    constants: Sequence[torch.Tensor],
    checkpoint: Checkpoint,
    chosen: Mapping[int, Sequence[str]],
) -> Iterator[tuple[int, torch.Tensor]]:
    """The constants of a checkpoint, as they lie there, or this rank's parts of them, and then those that follow."""
    program = artifact.program
    there = tensors(program)

    def read(number: int) -> torch.Tensor:
        constant = there[number]
        if number not in chosen:
            return constants[number].cpu()  # no checkpoint has it, so it stays what it is
        own = _own_part(artifact, constant, checkpoint, chosen[number][0])
        return own.to(dtype(constant.dtype))

    for number in chosen:
        if number < len(program.constants):
            yield number, read(number)
    for part in program.prologue.parts:
        yield from made_by(program, part, ops, read).items()


def _own_part(artifact: Artifact, constant: Constant, checkpoint: Checkpoint, name: str) -> torch.Tensor:
    """What this rank has of a tensor. Where a checkpoint has what each stage has apart, that of others is not read."""
    mesh, shard = artifact.program.mesh, constant.shard
    if shard is not None and shard.dim == 0 and shard.blocks == 1:
        number = part_number(shard, mesh, artifact.rank) * shard.parts // parts_of(shard)
        piece = checkpoint.piece(name, number, shard.parts)
        if piece is not None:
            return of_rank(piece, replace(constant, shard=within(shard)), mesh, artifact.rank)
    return of_rank(checkpoint.tensor(name), constant, mesh, artifact.rank)


# ---- golden --------------------------------------------------------------------------------------------------------


def _replay(model: Loaded, weights: Weights) -> None:
    """Every bucket on its golden inputs. Raises WeightsError."""
    for entry in model.program.entry_points:
        for number in range(len(entry.buckets)):
            with model.entry_points[entry.name].aside():
                pairs = replay_bucket(model, weights.golden, entry, number)
            _check_answers(pairs, entry, number, weights)
            del pairs  # views of memory that the next replay overwrites


def _check_answers(pairs: Sequence[Pair], entry: EntryPoint, number: int, weights: Weights) -> None:
    where = f"{weights.where}: {entry.name}, bucket {describe(entry, entry.buckets[number].sizes)}"
    bound = weights.tolerance
    if bound is None:
        if not _finite_where_golden(pairs):
            raise WeightsError(
                "with these weights the golden inputs give NaN or infinities, and they were not taken",
                where=where,
                expected="finite outputs where the old weights gave finite ones",
                fix="look for NaN in the checkpoint",
            )
        return
    result = compare_bucket(pairs, entry, number, bound)
    if not result.within:
        raise WeightsError(
            "with these weights the model does not answer as their golden tensors say, and they were not taken",
            where=where,
            expected=f"within {tolerance_text(bound)}",
            got=f"an error of {result.max_abs_error:.3g}",
            fix="aotair verify says whether the artifact is good",
        )


def _finite_where_golden(pairs: Sequence[Pair]) -> bool:
    if any(pair.got.shape != pair.want.shape for pair in pairs):
        raise MalformedError("the golden tensors have other shapes than what the model answers")
    return all(bool((pair.got.isfinite() | ~pair.want.isfinite()).all()) for pair in pairs)
