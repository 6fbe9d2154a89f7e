"""What is different between the graphs of two artifacts? Changes with source lines, each once for all buckets."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from aotair_runtime.format.debug_data import DebugData
from aotair_runtime.format.schema import Bucket, EntryPoint, Program
from aotair_runtime.format.sizes import describe

from .flow import RETURN, Flow, Step, constant_names, flow_of, meanings, producers, users
from .match import Matched, differing, match

_MOST_TEXT = 300


@dataclass(frozen=True)
class Call:
    """A call on one side of a change, with where it comes from."""

    op: str
    computes: str
    said: str
    line: str
    module: str
    passes: str
    stream: int


@dataclass(frozen=True)
class GraphChange:
    """`kind`: added, removed, changed (other ops, or other arguments), fused (the same by other passes), rewired (it
    reads another's result), moved (it runs at another place), stream (on another one), waits. Calls `before` and
    `after`; `times`: how often it was found, in which `modules` of the model and which `buckets`."""

    kind: str
    before: tuple[Call, ...]
    after: tuple[Call, ...]
    times: int
    modules: tuple[str, ...]
    buckets: tuple[str, ...]


@dataclass(frozen=True)
class Side:
    """An artifact's program, where its instructions come from, and what its constants are called."""

    program: Program
    debug: DebugData
    names: Sequence[str]

    @classmethod
    def of(cls, program: Program, debug: DebugData) -> "Side":
        return cls(program, debug, constant_names(program))

    def flow(self, entry: EntryPoint, bucket: Bucket) -> Flow:
        return flow_of(self.program, entry, bucket, self.names, self.debug)


def common_buckets(one: Program, other: Program) -> Iterator[tuple[str, EntryPoint, Bucket, EntryPoint, Bucket]]:
    """The buckets that both have, by entry point and sizes, under one name."""
    for entry in one.entry_points:
        theirs = next((item for item in other.entry_points if item.name == entry.name), None)
        if theirs is None:
            continue
        sized = {describe(theirs, bucket.sizes): bucket for bucket in theirs.buckets}
        for bucket in entry.buckets:
            name = describe(entry, bucket.sizes)
            if name in sized:
                yield f"{entry.name}: {name}", entry, bucket, theirs, sized[name]


def graph_changes(one: Side, other: Side) -> tuple[GraphChange, ...]:
    """What is different in the buckets that both have, the same change in several of them once."""
    found: dict[object, list[tuple[str, GraphChange]]] = defaultdict(list)
    for name, entry, bucket, theirs, other_bucket in common_buckets(one.program, other.program):
        mine, its = one.flow(entry, bucket), other.flow(theirs, other_bucket)
        for change in flow_changes(mine, its):
            found[_key(change)].append((name, change))
    return tuple(_together(group) for group in found.values())


def flow_changes(mine: Flow, theirs: Flow) -> list[GraphChange]:
    """What is different between two flows."""
    if mine.waits == theirs.waits and _same(mine, theirs):
        return []
    matched = match(mine, theirs)
    changes = [_region(mine, theirs, left, right) for left, right in _regions(mine, theirs, matched)]
    for kind, numbers in (("rewired", differing(mine, theirs, matched)), ("moved", matched.moved)):
        changes += [_change(kind, [mine.steps[a]], [theirs.steps[matched.pairs[a]]]) for a in numbers]
    for a, b in matched.both.items():
        if mine.steps[a].stream != theirs.steps[b].stream:
            changes.append(_change("stream", [mine.steps[a]], [theirs.steps[b]]))
    return changes + list(_waits(mine, theirs, matched))


def _same(mine: Flow, theirs: Flow) -> bool:
    streams = [[step.stream for step in flow.steps] for flow in (mine, theirs)]
    return streams[0] == streams[1] and meanings(mine) == meanings(theirs)


# ---- what has no counterpart -------------------------------------------------------------------------------------


def _regions(mine: Flow, theirs: Flow, matched: Matched) -> Iterator[tuple[list[int], list[int]]]:
    """Calls that only one side has, those together that are of one place: they read one another, stand where the
    others stood, or are of one line; and what has other arguments, with what is new among its neighbours."""
    both, like = matched.both, {a: b for a, b in matched.like.items() if mine.steps[a].op != RETURN}
    alone = [(0, n) for n in range(len(mine.steps)) if n not in both]
    alone += [(1, n) for n in range(len(theirs.steps)) if n not in set(both.values())]
    altered = {item for a, b in like.items() for item in ((0, a), (1, b))}
    groups = _Groups((*alone, *altered))
    for a, b in like.items():
        groups.join((0, a), (1, b))
    back, read_by = {b: a for a, b in both.items()}, (users(mine), users(theirs))
    stands: dict[object, list[tuple[int, int]]] = defaultdict(list)
    for side, number in alone:
        step = (mine, theirs)[side].steps[number]
        for before in producers(step):
            if (side, before) not in altered:
                groups.join((side, number), (side, before))
        for user, place in read_by[side].get(number, ()):
            shared = user if side == 0 else back.get(user)
            stands[shared, place].append((side, number))
        stands[step.made.line or None, step.made.module].append((side, number))
    for side, number in altered:
        for before in producers((mine, theirs)[side].steps[number]):
            if (side, before) not in altered:
                groups.join((side, number), (side, before))
    for key, items in stands.items():
        if isinstance(key, tuple) and key[0] is not None:
            for item in items[1:]:
                groups.join(items[0], item)
    for group in sorted(groups.all(), key=lambda group: min(number for _, number in group)):
        yield sorted(n for side, n in group if side == 0), sorted(n for side, n in group if side == 1)


class _Groups:
    """Items that belong together, as far as they were joined."""

    def __init__(self, items: Iterable[tuple[int, int]]):
        self._leader = {item: item for item in items}

    def join(self, one: tuple[int, int], other: tuple[int, int]) -> None:
        if one in self._leader and other in self._leader:
            self._leader[self._find(one)] = self._find(other)

    def all(self) -> list[list[tuple[int, int]]]:
        found: dict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
        for item in self._leader:
            found[self._find(item)].append(item)
        return list(found.values())

    def _find(self, item: tuple[int, int]) -> tuple[int, int]:
        while self._leader[item] != item:
            self._leader[item] = self._leader[self._leader[item]]
            item = self._leader[item]
        return item


def _region(mine: Flow, theirs: Flow, left: list[int], right: list[int]) -> GraphChange:
    before, after = [mine.steps[n] for n in left], [theirs.steps[n] for n in right]
    if not before or not after:
        return _change("removed" if before else "added", before, after)
    lines = [{step.made.line for step in steps if step.made.line} for steps in (before, after)]
    passes = [{step.made.passes for step in steps} for steps in (before, after)]
    is_fused = passes[0] != passes[1] and bool(lines[0] & lines[1]) and len(before) != len(after)
    return _change("fused" if is_fused else "changed", before, after)


# ---- order -------------------------------------------------------------------------------------------------------


def _waits(mine: Flow, theirs: Flow, matched: Matched) -> Iterator[GraphChange]:
    """Waits of calls that both have, which only one has."""
    both = {-1: -1, **matched.both}
    ours = {(both[a], both[b]): (a, b) for a, b in mine.waits if a in both and b in both}
    known = set(both.values())
    its = {(a, b) for a, b in theirs.waits if a in known and b in known}
    for pair in sorted(set(ours) - its):
        yield _change("waits", [_step(mine, n) for n in ours[pair]], [])
    for a, b in sorted(its - set(ours)):
        yield _change("waits", [], [_step(theirs, a), _step(theirs, b)])


def _step(flow: Flow, number: int) -> Step:
    return flow.steps[number] if number >= 0 else Step("the beginning", "", (), (), -1, "")


# ---- texts -------------------------------------------------------------------------------------------------------


def _change(kind: str, before: Sequence[Step], after: Sequence[Step]) -> GraphChange:
    modules = dict.fromkeys(step.made.module for step in (*before, *after) if step.made.module)
    return GraphChange(kind, tuple(map(_call, before)), tuple(map(_call, after)), 1, tuple(modules), ())


def _call(step: Step) -> Call:
    said = step.said if len(step.said) <= _MOST_TEXT else f"{step.said[:_MOST_TEXT]}…"
    return Call(step.op, step.computes, said, step.line, step.made.module, step.made.passes, step.stream)


def _key(change: GraphChange) -> object:
    """What is the same change in each bucket, and in each layer."""
    sides: Mapping[str, object] = {
        name: tuple((call.computes, call.line, call.stream) for call in getattr(change, name))
        for name in ("before", "after")
    }
    return (change.kind, sides["before"], sides["after"])


def _together(group: Sequence[tuple[str, GraphChange]]) -> GraphChange:
    """One change of what was found in several places; its arguments are those of the first."""
    first = group[0][1]
    modules = dict.fromkeys(module for _, change in group for module in change.modules)
    buckets = dict.fromkeys(name for name, _ in group)
    return GraphChange(first.kind, first.before, first.after, len(group), tuple(modules), tuple(buckets))
