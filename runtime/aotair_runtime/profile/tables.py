"""A profile as tables of plain text."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..errors import in_line
from ..format.text import table
from .machine import Machine
from .stepped import Step

if TYPE_CHECKING:
    from .profile import BucketProfile, Profile

_UNKNOWN = "not known"
_LONGEST = 60  # letters of a name in a table


@dataclass
class Group:
    """Instructions that have something in common: their time in seconds over all calls, how often they ran, what they
    moved and computed."""

    name: str
    seconds: float = 0.0
    runs: int = 0
    nbytes: int = 0
    flops: int = 0

    def add(self, step: Step, calls: int) -> None:
        self.seconds += step.seconds * calls
        self.runs += calls
        self.nbytes += step.cost.nbytes * calls
        self.flops += step.cost.flops * calls


_BY: dict[str, Callable[[Step], str]] = {
    "op": lambda step: step.op,
    "module": lambda step: step.made.module,
    "line": lambda step: step.made.line,
    "made by": lambda step: step.made.passes,
    "stream": lambda step: str(step.stream),
}


def report(profile: "Profile", top: int) -> str:
    """All tables; `top` rows of each."""
    buckets = profile.buckets
    if not buckets:
        return "nothing was called"
    parts = [_load(profile), replays(buckets)]
    for what, key in _BY.items():
        groups = grouped(buckets, key)
        if what != "stream" or len(groups) > 1:
            parts.append(_times(what, groups, top))
    parts += [_roofline(grouped(buckets, _BY["op"]), profile.machine, top), _padding(profile)]
    return "\n\n".join(parts)


def grouped(buckets: Sequence["BucketProfile"], key: Callable[[Step], str]) -> list[Group]:
    """The instructions of all calls by what `key` says of them, those that took longest first."""
    found: dict[str, Group] = {}
    for bucket in buckets:
        for step in bucket.steps:
            if step.op:
                name = key(step) or _UNKNOWN
                found.setdefault(name, Group(name)).add(step, max(1, bucket.calls))
    return sorted(found.values(), key=lambda group: (-group.seconds, group.name))


def replays(buckets: Sequence["BucketProfile"]) -> str:
    """By bucket: the replay as it is, beside the sum of its instructions, each alone."""
    rows = []
    for one in buckets:
        known = sum(bool(s.made.line and s.made.module and s.made.passes) for s in one.steps)
        rows.append(
            [
                _short(f"{one.entry}: {one.bucket}"),
                one.calls,
                len(one.steps),
                f"{one.whole * 1e3:.3f}",
                f"{one.stepped * 1e3:.3f}",
                f"{(one.stepped - one.whole) * 1e3:+.3f}",
                _share(one.stepped - one.whole, one.whole, sign="+"),
                f"{one.critical * 1e3:.3f}",
                _share(known, len(one.steps)),
            ]
        )
    head = [
        "bucket",
        "calls",
        "instructions",
        "whole ms",
        "stepped ms",
        "difference",
        "of whole",
        "critical ms",
        "origin known",
    ]
    return table(head, rows)


def _load(profile: "Profile") -> str:
    sums: dict[str, float] = {}
    for phase in profile.phases:
        kind = phase.name.split(" ")[0] if phase.name.startswith(("capture ", "warm up ")) else phase.name
        sums[kind] = sums.get(kind, 0.0) + phase.seconds
    return table(["load", "ms"], [[name, f"{seconds * 1e3:.3f}"] for name, seconds in sums.items()])


def _times(what: str, groups: Sequence[Group], top: int) -> str:
    total = sum(group.seconds for group in groups)
    rows = [[_short(g.name), f"{g.seconds * 1e3:.3f}", _share(g.seconds, total), g.runs] for g in groups[:top]]
    if rest := groups[top:]:
        seconds = sum(group.seconds for group in rest)
        rows.append([f"{len(rest)} more", f"{seconds * 1e3:.3f}", _share(seconds, total), sum(g.runs for g in rest)])
    return table([what, "ms", "share", "runs"], rows)


def _roofline(groups: Sequence[Group], machine: Machine, top: int) -> str:
    """What each op reaches of what the machine reached, by whichever of the two bounds it more."""
    head = ["op", "GB/s", "GFLOP/s", "bound by", "reached"]
    rows = []
    for group in groups[:top]:
        memory = _part(group.nbytes, group.seconds, machine.bandwidth)
        compute = _part(group.flops, group.seconds, machine.peak)
        name = "memory" if memory >= compute else "arithmetic"
        speed = [_rate(amount, group.seconds) for amount in (group.nbytes, group.flops)]
        rows.append([_short(group.name), *speed, name, f"{max(memory, compute):.0%}"])
    says = f"measured here: {machine.bandwidth / 1e9:.1f} GB/s copied, {machine.peak / 1e9:.1f} GFLOP/s in float32"
    return f"{table(head, rows)}\n{says}; more than 100% was in caches"


def _padding(profile: "Profile") -> str:
    sums: dict[str, list[int]] = {}
    for call in profile.calls:
        one = sums.setdefault(f"{call.entry}: {profile.names(call)}", [0, 0, 0])
        for position, amount in enumerate((1, call.sent, call.ran)):
            one[position] += amount
    sums["in all"] = [sum(column) for column in zip(*sums.values())]
    rows = [
        [_short(name), n, f"{sent:,}", f"{ran:,}", _share(ran - sent, ran)] for name, (n, sent, ran) in sums.items()
    ]
    _, sent, ran = sums["in all"]
    return "\n".join([table(["bucket", "calls", "sent", "ran", "padding"], rows), *_advice(ran - sent, ran)])


def _advice(padding: int, ran: int) -> Iterator[str]:
    if ran and padding / ran > 0.1:
        yield "what would fit better: aotair buckets SIZES --recipe RECIPE, of what --sizes SIZES (p.sent) writes"


def _part(amount: float, seconds: float, most: float) -> float:
    return amount / seconds / most if seconds > 0 and most > 0 else 0.0


def _rate(amount: float, seconds: float) -> str:
    return f"{amount / seconds / 1e9:.1f}" if seconds > 0 else "-"


def _share(part: float, whole: float, sign: str = "") -> str:
    return f"{part / whole:{sign}.1%}" if whole else "-"


def _short(name: str) -> str:
    found = in_line(name)
    return found if len(found) <= _LONGEST else f"…{found[1 - _LONGEST :]}"
