"""A checkpoint under the model's names, where its own differ by what stands before them, or as the caller says."""

import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace

from ..errors import WeightsError
from .checkpoint import Checkpoint, some

_MOST_PREFIXES = 16  # that are tried


@dataclass(frozen=True)
class Naming:
    """How the names of a checkpoint become the model's: each match of a pattern of `rename` is replaced, one pattern
    after the other, and `prefix` is put before all. Without a `prefix`, one that the names then have or lack is
    found."""

    prefix: str = ""
    rename: Mapping[str, str] = field(default_factory=dict)


def renamed(checkpoint: Checkpoint, wanted: Collection[str], naming: Naming) -> Checkpoint:
    """The checkpoint under names that are to be found among `wanted`. Raises WeightsError where two of its tensors
    get one name, or a pattern is none."""
    new = {name: naming.prefix + _replaced(name, naming.rename, checkpoint) for name in checkpoint.tensors}
    if not naming.prefix:
        places = moved(list(dict.fromkeys(new.values())), frozenset(wanted))
        new = {name: places[between] for name, between in new.items()}
    twice = [name for name, count in Counter(new.values()).items() if count > 1]
    if twice:
        raise WeightsError(
            "two tensors of the checkpoint get one name",
            where=str(checkpoint.path),
            got=f"{some(twice)}, of {some([name for name in new if new[name] == twice[0]])}",
            fix="correct the patterns of rename",
        )
    return replace(checkpoint, tensors={new[name]: stored for name, stored in checkpoint.tensors.items()})


def _replaced(name: str, patterns: Mapping[str, str], checkpoint: Checkpoint) -> str:
    for pattern, text in patterns.items():
        try:
            name = re.sub(pattern, text, name)
        except (re.error, TypeError, IndexError) as error:
            raise WeightsError(
                f"rename: {pattern!r} to {text!r} is no pattern and replacement: {error}", where=str(checkpoint.path)
            ) from error
    return name


def moved(names: list[str], wanted: frozenset[str]) -> dict[str, str]:
    """The names with a prefix added or taken away, where that is the one way by which any are wanted; else as they
    are."""
    same = {name: name for name in names}
    if not names or wanted & set(names):
        return same
    ways = [way for way in _ways(names, wanted) if any(new in wanted for new in way.values())]
    found = {tuple(sorted((name, new) for name, new in way.items() if new in wanted)): way for way in ways}
    most = max((len(hits) for hits in found), default=0)
    best = [way for hits, way in found.items() if len(hits) == most]
    return best[0] if len(best) == 1 else same


def _ways(names: list[str], wanted: frozenset[str]) -> Iterator[dict[str, str]]:
    """What the names would be with each prefix added that makes some of them wanted ones, or taken away; of very many
    prefixes those that most names have."""
    known = set(names)
    added = Counter(before for want in wanted for before, rest in _cut(want) if rest in known)
    taken = Counter(before for name in names for before, rest in _cut(name) if rest in wanted)
    for prefix, _ in added.most_common(_MOST_PREFIXES):
        yield {name: prefix + name for name in names}
    for prefix, _ in taken.most_common(_MOST_PREFIXES):
        yield {name: name.removeprefix(prefix) for name in names}


def _cut(name: str) -> Iterator[tuple[str, str]]:
    """A name at each of its dots: what stands up to there, and the rest."""
    return ((name[: place + 1], name[place + 1 :]) for place, letter in enumerate(name) if letter == ".")
