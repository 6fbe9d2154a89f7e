"""Which tensors of a checkpoint does transformers join or rename when it loads a model? Found by their values.

Its rules are code for each architecture. What they came to is seen in the model: an expert's matrix lies there among
those of its layer, number for number. What several tensors may be, all norms of ones, is told apart by layer and name.
"""

import re
from collections.abc import Mapping, Sequence

import torch

from aotair_runtime.artifact.checkpoint import Checkpoint
from aotair_runtime.artifact.renamed import Naming, renamed
from aotair_runtime.format.joined import piece_names
from aotair_runtime.format.schema import Joined

_NUMBER = re.compile(r"(?<![^.])\d+(?![^.])")  # a part of a dotted name
_SMALL = 1 << 16  # numbers of a tensor that is compared whole
_ROWS = 64  # of others, from the first to the last

Tensors = Mapping[str, torch.Tensor]


def held_in_pieces(model: torch.nn.Module, checkpoint: Checkpoint) -> tuple[Joined, ...]:
    """What the model has under names that its checkpoint has not, where each piece was found there; names are those of
    the model's state dict, and of the checkpoint with the prefix that a model of its kind gives them."""
    own = {name: tensor for name, tensor in model.state_dict().items() if isinstance(tensor, torch.Tensor)}
    named = renamed(checkpoint, own.keys(), Naming())
    there = {own[name].data_ptr() for name in own.keys() & named.tensors.keys()}
    left = [name for name in own if own[name].data_ptr() not in there and own[name].dim()]
    unknown = [name for name in named.tensors if name not in own]
    if not left or not unknown:
        return ()
    found, pieces = list[Joined](), _Pieces(_mapped(named, unknown))
    for name in left:
        if (item := pieces.make(name, own[name])) is not None:
            pieces.take(item)
            found.append(item)
    return tuple(found)


def _mapped(checkpoint: Checkpoint, names: Sequence[str]) -> dict[str, torch.Tensor]:
    """Those tensors of a checkpoint by the names that it has here, mapped."""
    by_own_name = {checkpoint.tensors[name].name: name for name in names}
    own = Checkpoint(checkpoint.path, {name: checkpoint.tensors[new] for name, new in by_own_name.items()})
    return {by_own_name[name]: tensor for shard in own.shards() for name, tensor in shard.items()}


class _Pieces:
    """The tensors of a checkpoint that nothing of the model was made of so far."""

    def __init__(self, tensors: Tensors):
        self._left = dict(tensors)
        self._numbered: dict[str, list[str]] = {}  # names with {} for one of their numbers, with those of all numbers
        by_template: dict[str, dict[int, str]] = {}
        for name in tensors:
            for place in _NUMBER.finditer(name):
                template = f"{name[: place.start()]}{{}}{name[place.end() :]}"
                by_template.setdefault(template, {})[int(place.group())] = name
        for template, names in by_template.items():
            if sorted(names) == list(range(len(names))):
                self._numbered[template] = [names[number] for number in range(len(names))]

    def make(self, name: str, whole: torch.Tensor) -> Joined | None:
        """How a tensor is made of pieces: as it is, or as a stack; None where no way was found, or several."""
        plain = {piece: [piece] for piece in self._left}
        ways = [(whole[None], plain, 0)]
        if whole.dim() > 1:
            stacks = {t: names for t, names in self._numbered.items() if len(names) == len(whole)}
            ways.append((whole, stacks, len(whole)))
        for rows, candidates, count in ways:
            if (pieces := self._one_behind_the_other(name, rows, candidates)) is not None:
                return Joined(name, pieces, count)
        return None

    def take(self, item: Joined) -> None:
        """Pieces of one tensor are no other's."""
        for piece in piece_names(item):
            del self._left[piece]

    def _one_behind_the_other(
        self, name: str, rows: torch.Tensor, candidates: Mapping[str, Sequence[str]]
    ) -> tuple[str, ...] | None:
        """Of which candidates, each with a tensor for every row, the rows are made from beginning to end."""
        found, begin = list[str](), 0
        while begin < rows.shape[1]:
            fits = [one for one, names in candidates.items() if one not in found and self._fits(rows, begin, names)]
            fits = fits if len(fits) < 2 else _likeliest(name, fits)
            if len(fits) != 1:
                return None
            found += fits
            begin += self._left[candidates[fits[0]][0]].shape[0]
        return tuple(found)

    def _fits(self, rows: torch.Tensor, begin: int, names: Sequence[str]) -> bool:
        """Whether these tensors lie in the rows, one in each, from `begin` on."""
        if not all(name in self._left for name in names):
            return False
        first = self._left[names[0]]
        if first.dim() != rows.dim() - 1 or first.shape[1:] != rows.shape[2:] or not first.numel():
            return False
        end = begin + first.shape[0]
        return end <= rows.shape[1] and all(
            self._left[name].shape == first.shape and _equal(row[begin:end], self._left[name])
            for row, name in zip(rows, names)
        )


def _equal(mine: torch.Tensor, theirs: torch.Tensor) -> bool:
    if mine.numel() > _SMALL and len(mine) > _ROWS:
        rows = torch.linspace(0, len(mine) - 1, _ROWS).long()
        mine, theirs = mine[rows], theirs[rows]
    return torch.equal(mine, theirs.to(mine.dtype))


def _likeliest(name: str, fits: Sequence[str]) -> list[str]:
    """Of several, those with the same numbers in their names, and of these, those that end alike."""
    numbers = _NUMBER.findall(name)
    same = [one for one in fits if _NUMBER.findall(one) == numbers]
    alike = [one for one in same if one.rpartition(".")[2] == name.rpartition(".")[2]]
    return alike if len(same) > 1 else same
