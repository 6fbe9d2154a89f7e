"""A profile as the events of Chrome's trace format, which Perfetto reads: JSON, times in microseconds."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from ..capture.phases import Phase
from ..errors import in_line
from ..format.schema import Form
from .stepped import Step

if TYPE_CHECKING:
    from .profile import BucketProfile, Profile
    from .watch import Call

Event = dict[str, object]
_LONGEST = 200  # letters of a name
_LOAD, _CALLS, _BUCKETS = 1, 2, 10  # numbers of processes; that of the first bucket
_MARK = 100  # nanoseconds that an event is drawn with: an arrow needs something to end at
_FLOWS = 1 << 20  # numbers of arrows of each bucket


def events(profile: "Profile", name: str) -> Iterator[Event]:
    """Processes: the load and captures; calls, with a row for each thread; each bucket's replay, with a row for each
    stream, its events as arrows, and the arena's live bytes as a counter."""
    calls, phases, buckets = profile.calls, profile.phases, profile.buckets
    zero = min([phase.began for phase in phases] + [call.began for call in calls] + [b.began for b in buckets] + [1e18])
    yield from _names(_LOAD, f"{name}: load and captures", {1: "host"})
    yield from (_phase(phase, zero) for phase in phases)
    threads = {thread: 1 + number for number, thread in enumerate(dict.fromkeys(call.thread for call in calls))}
    yield from _names(_CALLS, f"{name}: calls", {tid: f"thread {tid}" for tid in threads.values()})
    for call in calls:
        yield from _call(profile, call, threads[call.thread], zero)
    for number, bucket in enumerate(buckets):
        yield from _bucket(bucket, _BUCKETS + number, zero, number * _FLOWS)


def text(name: str) -> str:
    """A name as viewers may show it, whoever wrote it."""
    found = in_line(name)
    return found if len(found) <= _LONGEST else found[: _LONGEST - 1] + "…"


def _names(pid: int, process: str, rows: dict[int, str]) -> Iterator[Event]:
    yield {"ph": "M", "name": "process_name", "pid": pid, "args": {"name": text(process)}}
    yield {"ph": "M", "name": "process_sort_index", "pid": pid, "args": {"sort_index": pid}}
    for tid, row in rows.items():
        yield {"ph": "M", "name": "thread_name", "pid": pid, "tid": tid, "args": {"name": text(row)}}
        yield {"ph": "M", "name": "thread_sort_index", "pid": pid, "tid": tid, "args": {"sort_index": tid}}


def _slice(name: str, pid: int, tid: int, start: int, end: int, **args: object) -> Event:
    """`start` and `end` in nanoseconds: whole ones, so that what lies within another stays there."""
    found: Event = {"ph": "X", "name": text(name), "pid": pid, "tid": tid}
    return found | {"ts": start / 1e3, "dur": max(0, end - start) / 1e3, "args": args}


def _nanoseconds(seconds: float) -> int:
    return round(seconds * 1e9)


def _phase(phase: Phase, zero: float) -> Event:
    start = _nanoseconds(phase.began - zero)
    return _slice(phase.name, _LOAD, 1, start, start + _nanoseconds(phase.seconds))


def _call(profile: "Profile", call: "Call", tid: int, zero: float) -> Iterator[Event]:
    start = _nanoseconds(call.began - zero)
    parts = {
        "find the bucket": call.found,
        "copy in and fill": call.copied,
        "launch": call.launched,
        "wait": call.waited,
        "hand out": call.handed,
    }
    ends = [start]
    for seconds in parts.values():
        ends.append(ends[-1] + _nanoseconds(seconds))
    bucket = profile.names(call)
    args = {"bucket": text(bucket), "sent": call.sent, "ran": call.ran, "padding": _padding(call)}
    args |= {text(dim): size for dim, size in profile.sizes(call).items()}
    yield _slice(f"{call.entry} {bucket}", _CALLS, tid, ends[0], ends[-1], **args)
    for name, begin, end in zip(parts, ends, ends[1:]):
        yield _slice(name, _CALLS, tid, begin, end)


def _padding(call: "Call") -> float:
    return round(1 - call.sent / call.ran, 4) if call.ran else 0.0


def _bucket(bucket: "BucketProfile", pid: int, zero: float, flow: int) -> Iterator[Event]:
    start = _nanoseconds(bucket.began - zero)
    streams = sorted({step.stream for step in bucket.steps})
    rows = {1: "the whole replay"} | {2 + stream: f"stream {stream}, stepped" for stream in streams}
    yield from _names(pid, f"{bucket.entry} {bucket.bucket}: a replay", rows)
    sums = {"stepped ms": bucket.stepped * 1e3, "whole ms": bucket.whole * 1e3, "critical ms": bucket.critical * 1e3}
    yield _slice("replay", pid, 1, start, start + _nanoseconds(bucket.whole), **sums)
    counts: list[Event] = []
    for step, placed, live in zip(bucket.steps, bucket.placed, bucket.live, strict=True):
        at = start + _nanoseconds(placed.began)
        yield _step(step, pid, at)
        counts.append(_live(pid, at, live))
        yield from _arrows(step, pid, at, [flow + one for one in placed.flows])
    yield from sorted(counts, key=lambda event: event["ts"])  # type: ignore[arg-type, return-value]  # all are floats
    yield _live(pid, start + _nanoseconds(bucket.critical), 0)


def _step(step: Step, pid: int, at: int) -> Event:
    tid = 2 + step.stream
    where = {"line": text(step.made.line), "module": text(step.made.module), "passes": text(step.made.passes)}
    if step.form in (Form.RECORD, Form.WAIT):
        what = "record" if step.form == Form.RECORD else "wait for"
        return _slice(f"{what} event {step.event}", pid, tid, at, at + _MARK, **where)
    args: Event = {"node": text(step.node), "bytes": step.cost.nbytes, "flops": step.cost.flops}
    return _slice(step.op, pid, tid, at, at + _nanoseconds(step.seconds), **args, **where)


def _arrows(step: Step, pid: int, at: int, flows: Sequence[int]) -> Iterator[Event]:
    for number in flows:
        arrow: Event = {"name": "event", "cat": "event", "id": number, "pid": pid, "tid": 2 + step.stream}
        if step.form == Form.RECORD:
            yield arrow | {"ph": "s", "ts": at / 1e3}
        else:
            yield arrow | {"ph": "f", "bp": "e", "ts": at / 1e3}


def _live(pid: int, at: int, nbytes: int) -> Event:
    return {"ph": "C", "name": "live bytes of the arena", "pid": pid, "ts": at / 1e3, "args": {"bytes": nbytes}}
