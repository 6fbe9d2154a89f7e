"""Which tensors does one weights file hold for the programs of several meshes? Each once, whoever reads it, and however
its ranks cut it."""

import hashlib
import itertools
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from aotair_runtime.format.mesh import cuts_of, joined, part_of, parts_of
from aotair_runtime.format.schema import Beside, Constant, Cut, Pieces, Program, Shard, Stored

from .graph.resolve import resolved
from .program import Built

_BLOCKS = (1, 2, 3)  # in which parts may lie: none, gate and up, queries and keys and values
_SAMPLE = 1 << 16  # numbers by which two tensors are compared before all of them are
Key = tuple[torch.dtype, tuple[int, ...], bytes]


@dataclass(frozen=True)
class StoredOnce:
    """The programs, whose constants name tensors of one file, and these tensors by name."""

    programs: tuple[Program, ...]
    weights: Mapping[str, torch.Tensor]


def stored_once(built: Sequence[Built]) -> StoredOnce:
    """Of programs for several meshes of one model, in their order."""
    settled = _laid_alike(built)
    file, found = _File(), dict[int, Program]()
    # First those that hold layers whole, of which others may have several behind each other.
    for number in sorted(range(len(settled)), key=lambda n: len(_staged(settled[n].program))):
        found[number] = file.with_names(settled[number])
    stored = tuple(
        Stored(name, str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape))
        for name, tensor in file.weights.items()
    )
    meshes = tuple(one.program.mesh for one in built)
    programs = tuple(
        replace(found[n], beside=replace(found[n].beside, meshes=meshes, number=n, stored=stored))
        for n in range(len(built))
    )
    return StoredOnce(programs, file.weights)


def _staged(program: Program) -> dict[str, tuple[str, ...]]:
    """The tensors that stand for those of several stages, and the names of these."""
    return {item.name: item.pieces for item in program.joined if not item.count}


class _File:
    """The tensors that have been stored so far."""

    def __init__(self) -> None:
        self.weights: dict[str, torch.Tensor] = {}
        self._known: dict[Key, list[str]] = {}
        # With the tensors, so that nothing else comes to lie at their addresses.
        self._digests: dict[tuple[object, ...], tuple[torch.Tensor, bytes]] = {}

    def with_names(self, built: Built) -> Program:
        """The program, whose constants have the names of their tensors in the file; those that lack are added. No two
        constants of a program have one tensor: they may get other values apart."""
        program, used = built.program, set[str]()
        staged, pieces, constants = _staged(program), list[Pieces](), list[Constant]()
        for number, constant in enumerate(program.constants):
            whole = resolved(built.weights[constant.name].detach()).contiguous()
            said = next((staged[name] for group in constant.names for name in group if name in staged), ())
            name = self._there(whole, used)
            parts = () if name else self._in_pieces(constant, whole, said, used)
            if parts:
                pieces.append(Pieces(number, parts))
            elif not name:
                name = self._added(constant.name, whole)
            used.update(parts or (name,))
            constants.append(replace(constant, name=name or constant.name))
        return replace(program, constants=tuple(constants), beside=Beside(pieces=tuple(pieces)))

    def _there(self, tensor: torch.Tensor, used: set[str]) -> str:
        """The name of an equal tensor that is not used yet; empty where there is none."""
        return next((name for name in self._known.get(self._key(tensor), ()) if name not in used), "")

    def _in_pieces(
        self, constant: Constant, whole: torch.Tensor, said: Sequence[str], used: set[str]
    ) -> tuple[str, ...]:
        """The names of the parts of a constant that ranks cut along its first dimension, where these are stored, or are
        tensors of the model; none where they are neither."""
        shard = constant.shard
        if shard is None or (shard.dim, shard.blocks) != (0, 1) or shard.parts < 2:
            return ()
        parts = list(whole.chunk(shard.parts))
        mine = list(said) if len(said) == len(parts) else []
        found = list[str]()  # a rank has one of them, so that two may be one tensor
        for number, part in enumerate(parts):
            name = self._there(part, used)
            if not name and not mine:
                return ()
            found.append(name or self._added(mine[number], part))
        return tuple(found)

    def _added(self, name: str, tensor: torch.Tensor) -> str:
        """Store a tensor under that name, or one like it where another has it."""
        own, number = name, 1
        while own in self.weights:
            number += 1
            own = f"{name}#{number}"
        self.weights[own] = tensor
        self._known.setdefault(self._key(tensor), []).append(own)
        return own

    def _key(self, tensor: torch.Tensor) -> Key:
        place = (tensor.data_ptr(), tensor.dtype, tuple(tensor.shape))
        if place not in self._digests:
            self._digests[place] = tensor, _digest(tensor)
        return tensor.dtype, tuple(tensor.shape), self._digests[place][1]


def _digest(tensor: torch.Tensor) -> bytes:
    return hashlib.sha256(tensor.reshape(-1).view(torch.uint8).numpy().data).digest()


# ---- weights that are made of others ---------------------------------------------------------------------------------


def _laid_alike(built: Sequence[Built]) -> list[Built]:
    """The same, where the parts of derived constants lie in their wholes as most other programs have these: what is
    computed of a weight that is cut by columns is equal then to what one rank computes of the whole."""
    options = [
        {c.name: list(_options(c, one.weights[c.name])) for c in one.program.constants if c.kind == "derived"}
        for one in built
    ]
    votes: Counter[Key] = Counter()
    for mine in options:
        votes.update({key for found in mine.values() for _, keys in found for key in keys})
    return [_chosen(one, mine, votes) for one, mine in zip(built, options, strict=True)]


def _options(constant: Constant, whole: torch.Tensor) -> Iterator[tuple[Shard | None, list[Key]]]:
    """Ways in which the parts of a constant may lie in a whole, that which it has first, each with what tells the whole
    from others; and its pieces, where it is cut along the first dimension."""
    parts = _parts(constant, whole)
    for shard in [constant.shard, *_layouts(constant)]:
        one = whole if shard == constant.shard or shard is None else joined(parts, shard)
        keys = [_sampled(one)]
        if shard is not None and (shard.dim, shard.blocks) == (0, 1):
            keys += map(_sampled, one.chunk(shard.parts))
        yield shard, keys


def _parts(constant: Constant, whole: torch.Tensor) -> list[torch.Tensor]:
    shard = constant.shard
    return [] if shard is None else [part_of(whole, shard, number) for number in range(parts_of(shard))]


def _layouts(constant: Constant) -> Iterator[Shard]:
    """All ways to cut a whole into parts of the constant's shape, as many as there are."""
    if constant.shard is None or not constant.shape:
        return
    cuts = cuts_of(constant.shard)
    for dims in itertools.product(range(len(constant.shape)), repeat=len(cuts)):
        for blocks in itertools.product(_BLOCKS, repeat=len(cuts)):
            found = [_along(cut, dim, count) for cut, dim, count in zip(cuts, dims, blocks, strict=True)]
            if _fits(found, constant.shape):
                first, *rest = found
                yield Shard(first.axis, first.dim, first.parts, first.blocks, rest[0] if rest else None)


def _along(cut: Cut, dim: int, blocks: int) -> Cut:
    """The same ranks and parts, along another dimension."""
    return Cut(cut.axis, dim, cut.parts, blocks)


def _fits(cuts: Sequence[Cut], shape: Sequence[int]) -> bool:
    sizes = list(shape)
    for cut in reversed(cuts):
        if not sizes[cut.dim] or sizes[cut.dim] % cut.blocks:
            return False
        sizes[cut.dim] *= cut.parts
    return True


def _chosen(built: Built, options: Mapping[str, list[tuple[Shard | None, list[Key]]]], votes: Counter[Key]) -> Built:
    constants, weights = list[Constant](), dict(built.weights)
    for constant in built.program.constants:
        if constant.name in options:
            best, _ = max(options[constant.name], key=lambda option: max(votes[key] for key in option[1]))
            if best is not None and best != constant.shard:
                weights[constant.name] = joined(_parts(constant, weights[constant.name]), best)
                constant = replace(constant, shard=best)
        constants.append(constant)
    return replace(built, program=replace(built.program, constants=tuple(constants)), weights=weights)


def _sampled(tensor: torch.Tensor) -> Key:
    """Equal for equal tensors, and unlike for most others."""
    flat = resolved(tensor.detach()).contiguous().reshape(-1)
    step = max(1, flat.numel() // _SAMPLE)
    return tensor.dtype, tuple(tensor.shape), _digest(flat[::step].contiguous())
