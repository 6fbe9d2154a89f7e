"""A checkpoint with the tensors that the model has, where it holds some of them in pieces: each expert apart."""

from collections.abc import Sequence
from dataclasses import replace

import torch

from ..errors import WeightsError
from ..format.joined import piece_names, tensors_of_pieces
from ..format.schema import Joined
from .checkpoint import Checkpoint, Stored, some


def joined(checkpoint: Checkpoint, items: Sequence[Joined]) -> Checkpoint:
    """With those whole that it has in pieces, which then stand for nothing else; each is put together when it is read.
    Raises WeightsError where some pieces are missing, or do not fit each other."""
    tensors = dict(checkpoint.tensors)
    for item in items:
        names = list(piece_names(item))
        there = [name for name in names if name in tensors]
        if item.name in tensors or not there:
            continue
        if len(there) < len(names):
            absent = [name for name in names if name not in tensors]
            raise WeightsError(
                f"the checkpoint lacks pieces of {item.name}",
                where=str(checkpoint.path),
                expected=f"{len(names)} pieces; missing: {some(absent)}",
                got=f"{len(there)}",
            )
        whole = tensors[names[0]] if names == [item.pieces[0]] else _whole(item, tensors, checkpoint)
        for name in names:
            del tensors[name]
        tensors[item.name] = whole
    return replace(checkpoint, tensors=tensors)


def _whole(item: Joined, tensors: dict[str, Stored], checkpoint: Checkpoint) -> Stored:
    rows = tuple(tuple(tensors[name] for name in names) for names in tensors_of_pieces(item))
    first = rows[0][0]
    shapes = {(sum(piece.shape[0] for piece in pieces if piece.shape), *pieces[0].shape[1:]) for pieces in rows}
    kinds: set[tuple[torch.dtype, tuple[int, ...]]] = {(p.dtype, p.shape[1:]) for pieces in rows for p in pieces}
    if len(shapes) > 1 or len(kinds) > 1 or not all(piece.shape for pieces in rows for piece in pieces):
        raise WeightsError(
            f"the pieces of {item.name} do not fit each other",
            where=str(checkpoint.path),
            expected="one dtype, and shapes that differ in the first dimension alone, and that in all alike",
            got=some([f"{p.name} {p.dtype}{list(p.shape)}".replace("torch.", "") for pieces in rows for p in pieces]),
        )
    (shape,) = shapes
    stacked = (item.count, *shape) if item.count else shape
    return Stored(item.name, first.file, first.dtype, stacked, first.version, rows, bool(item.count))
