"""Which call of one bucket is which of another? By what each computes, then by its surroundings, then by its place."""

import bisect
import difflib
from collections import defaultdict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

from .flow import Flow, Source, Step, meanings, shapeless, users


@dataclass(frozen=True)
class Matched:
    """`pairs`: the steps of the one, each with that of the other which does the same; `like`: those that call the same
    op with other arguments, or another between the same neighbours. `moved` are pairs that run in another order."""

    pairs: dict[int, int]
    like: dict[int, int]
    moved: tuple[int, ...]

    @property
    def both(self) -> dict[int, int]:
        """All that have one in the other."""
        return {**self.pairs, **self.like}


def match(one: Flow, other: Flow) -> Matched:
    """The calls of two flows, each with that of the other which it is."""
    pairs: dict[int, int] = {}
    _in_order(meanings(one), meanings(other), pairs)
    _aligned([_local(step) for step in one.steps], [_local(step) for step in other.steps], pairs)
    _settle(one, other, pairs)
    like: dict[int, int] = dict(pairs)
    _aligned([shapeless(step) for step in one.steps], [shapeless(step) for step in other.steps], like)
    _stand_ins(one, other, like)
    like = {mine: theirs for mine, theirs in like.items() if mine not in pairs}
    return Matched(pairs, like, _moved(pairs))


def differing(one: Flow, other: Flow, matched: Matched) -> list[int]:
    """Of the calls that are alike, those that read another's result though both are still there, by their number in the
    first flow. Where what they read is new or gone, that is the difference, and not they."""
    both, back = matched.both, {theirs: mine for mine, theirs in matched.both.items()}
    return [
        mine
        for mine, theirs in matched.pairs.items()
        if any(
            not _same_read(read, others, both, back)
            for read, others in zip(one.steps[mine].reads, other.steps[theirs].reads, strict=True)
        )
    ]


def _same_read(read: Sequence[Source], other: Sequence[Source], both: dict[int, int], back: dict[int, int]) -> bool:
    if any(source.origin not in both for source in read if isinstance(source.origin, int)):
        return True
    if any(source.origin not in back for source in other if isinstance(source.origin, int)):
        return True
    mine = [(both[s.origin] if isinstance(s.origin, int) else s.origin, s.slot, s.offset) for s in read]
    return sorted(mine, key=repr) == sorted([(s.origin, s.slot, s.offset) for s in other], key=repr)


def _local(step: Step) -> Hashable:
    """What a step does, whatever its producers are: for each read whether it is of a call, or of which constant."""
    reads = tuple(tuple("" if isinstance(s.origin, int) else s.origin for s in read) for read in step.reads)
    return (step.computes, step.said, reads, step.writes)


def _in_order(mine: Sequence[str], theirs: Sequence[str], pairs: dict[int, int]) -> None:
    """Pair what is equal, the first with the first."""
    places: dict[str, list[int]] = defaultdict(list)
    for number, key in enumerate(theirs):
        places[key].append(number)
    taken: dict[str, int] = defaultdict(int)
    for number, key in enumerate(mine):
        if taken[key] < len(places[key]):
            pairs[number] = places[key][taken[key]]
            taken[key] += 1


def _aligned(mine: Sequence[Hashable], theirs: Sequence[Hashable], pairs: dict[int, int]) -> None:
    """Pair what is left where it is equal and in the same order; then what is equal in any order."""
    left = [number for number in range(len(mine)) if number not in pairs]
    used = set(pairs.values())
    right = [number for number in range(len(theirs)) if number not in used]
    matcher = difflib.SequenceMatcher(None, [mine[n] for n in left], [theirs[n] for n in right], autojunk=False)
    for block in matcher.get_matching_blocks():
        pairs.update(zip(left[block.a : block.a + block.size], right[block.b : block.b + block.size]))
    used = set(pairs.values())
    rest: dict[Hashable, list[int]] = defaultdict(list)
    for number in right:
        if number not in used:
            rest[theirs[number]].append(number)
    for number in left:
        if number not in pairs and rest[mine[number]]:
            pairs[number] = rest[mine[number]].pop(0)


def _settle(one: Flow, other: Flow, pairs: dict[int, int]) -> None:
    """Where two calls that look alike were paired crosswise, pair those that read the same."""
    groups: dict[Hashable, list[int]] = defaultdict(list)
    for mine in pairs:
        groups[_local(one.steps[mine])].append(mine)
    for group in (sorted(group) for group in groups.values() if len(group) > 1):
        free = {pairs[mine] for mine in group}
        score = _agreement(one, other, pairs)
        if all(score(mine, pairs[mine]) for mine in group):
            continue
        found: dict[int, int] = {}
        for wants_all in (True, False):
            for mine in group:
                if mine not in found:
                    good = [n for n in (pairs[mine], *sorted(free)) if n in free and (score(mine, n) or not wants_all)]
                    if good:
                        found[mine] = good[0]
                        free.remove(good[0])
        pairs.update(found)


def _stand_ins(one: Flow, other: Flow, pairs: dict[int, int]) -> None:
    """Pair what is left where it reads the same, and is read by the same as far as that is paired."""
    read_by, taken = (users(one), users(other)), set(pairs.values())
    back = {theirs: mine for mine, theirs in pairs.items()}
    free = [number for number in range(len(other.steps)) if number not in taken]
    for mine in [number for number in range(len(one.steps)) if number not in pairs]:
        mapped = {(pairs[user], place) for user, place in read_by[0].get(mine, ()) if user in pairs}
        agree = _agreement(one, other, pairs)
        for theirs in free:
            same_module = one.steps[mine].made.module == other.steps[theirs].made.module
            its = {(user, place) for user, place in read_by[1].get(theirs, ()) if user in back}
            if same_module and its == mapped and _as_many(one, other, mine, theirs) and agree(mine, theirs):
                pairs[mine], back[theirs] = theirs, mine
                free.remove(theirs)
                break


def _as_many(one: Flow, other: Flow, mine: int, theirs: int) -> bool:
    """Whether both read as many tensors, some of which are a call's."""
    reads, others = one.steps[mine].reads, other.steps[theirs].reads
    return len(reads) == len(others) and any(isinstance(s.origin, int) for read in reads for s in read)


def _agreement(one: Flow, other: Flow, pairs: dict[int, int]) -> Callable[[int, int], bool]:
    """Whether two calls read what is paired."""

    def agree(mine: int, theirs: int) -> bool:
        for read, others in zip(one.steps[mine].reads, other.steps[theirs].reads):
            said = [pairs.get(s.origin, -1) if isinstance(s.origin, int) else s.origin for s in read]
            if said != [s.origin for s in others]:
                return False
        return True

    return agree


def _moved(pairs: dict[int, int]) -> tuple[int, ...]:
    """The fewest steps whose order is another: all but those of a longest rising sequence."""
    items = sorted(pairs.items())
    tails: list[int] = []  # the least last value of a rising sequence of each length
    ends: list[int] = []  # which item that is
    before: list[int] = []
    for number, (_, theirs) in enumerate(items):
        place = bisect.bisect_left(tails, theirs)
        before.append(ends[place - 1] if place else -1)
        tails[place : place + 1], ends[place : place + 1] = [theirs], [number]
    kept, at = set(), ends[-1] if ends else -1
    while at >= 0:
        kept.add(at)
        at = before[at]
    return tuple(mine for number, (mine, _) in enumerate(items) if number not in kept)
