"""What `Model.profile()` gives: calls, and replays taken apart, as tables and as a trace for Perfetto."""

import json
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ..artifact.debug_data import read_debug_data
from ..artifact.open import Artifact
from ..call.entry import Entry
from ..capture.phases import Phase, Phases
from ..errors import ArgumentError
from ..format.html import html_text
from ..format.sizes import describe
from .live import live_bytes
from .machine import Machine, measure
from .schedule import Placed, schedule
from .stepped import Step, steps_of
from .tables import report
from .trace import events
from .watch import MOST_CALLS, Call, Watch


@dataclass(frozen=True)
class BucketProfile:
    """A bucket's replay. `whole`: the time of the replay as it is; `stepped`: the sum of its instructions' times,
    each alone; `critical`: what is left of that where streams run side by side as far as events let them. In seconds.
    `live`: by instruction, the bytes of the arena that hold something. `began` places it on the trace's clock."""

    entry: str
    bucket: str
    steps: tuple[Step, ...]
    placed: tuple[Placed, ...]
    live: tuple[int, ...]
    whole: float
    stepped: float
    critical: float
    calls: int
    began: float


class Profile:
    """Measures what is called within `with`; afterwards the tables and the trace. Made by `Model.profile()`."""

    def __init__(
        self,
        artifact: Artifact,
        entries: Mapping[str, Entry],
        phases: Phases,
        *,
        rounds: int = 20,
        seconds: float = 2.0,
    ):
        if type(rounds) is not int or not 1 <= rounds <= 10_000:
            raise ArgumentError("rounds= is wrong", expected="a number from 1 to 10000", got=repr(rounds)[:80])
        if type(seconds) not in (int, float) or not 0 <= seconds <= 3600:
            raise ArgumentError("seconds= is wrong", expected="seconds, at most 3600", got=repr(seconds)[:80])
        self._debug, self._phases = read_debug_data(artifact), phases
        self._name, self._entries = artifact.program.name, dict(entries)
        self._latest: deque[Call] = deque(maxlen=MOST_CALLS)
        self._watches = [Watch(entry, self._latest, rounds, seconds) for entry in entries.values()]
        self._machine: Machine | None = None

    def __enter__(self) -> "Profile":
        for watch in self._watches:
            watch.begin()
        return self

    def __exit__(self, *exception: object) -> None:
        for watch in self._watches:
            watch.end()

    @property
    def calls(self) -> tuple[Call, ...]:
        """The calls that were made, the latest 100,000 of them."""
        return tuple(self._latest)

    @property
    def phases(self) -> tuple[Phase, ...]:
        """The steps of the load, and captures, as far as they are over."""
        return tuple(self._phases.done)

    @property
    def buckets(self) -> tuple[BucketProfile, ...]:
        """The buckets that were called, each with its instructions."""
        found = []
        for watch, entry in zip(self._watches, self._entries.values(), strict=True):
            for number, times in watch.times.items():
                bucket, parts = entry.spec.buckets[number], entry.graphs.parts
                steps = steps_of(entry, bucket, times, self._debug)
                placed, critical = schedule(steps)
                found.append(
                    BucketProfile(
                        entry.spec.name,
                        describe(entry.spec, bucket.sizes),
                        steps,
                        placed,
                        tuple(live_bytes(parts.program, bucket, parts.ops)),
                        times.whole,
                        sum(step.seconds for step in steps),
                        critical,
                        sum(call.bucket == number and call.entry == entry.spec.name for call in self._latest),
                        watch.at[number],
                    )
                )
        return tuple(found)

    @property
    def machine(self) -> Machine:
        """How fast the device copies and multiplies; measured at the first look, which takes a second."""
        if self._machine is None:
            self._machine = measure(next(iter(self._entries.values())).graphs.parts.device)
        return self._machine

    def names(self, call: Call) -> str:
        """The bucket that served a call, as `Model.buckets` names it."""
        spec = self._entries[call.entry].spec
        return describe(spec, spec.buckets[call.bucket].sizes)

    def sizes(self, call: Call) -> dict[str, int]:
        """A call's own sizes by dimension."""
        return {dim.name: size for dim, size in zip(self._entries[call.entry].spec.dims, call.sizes)}

    def table(self, top: int = 20) -> str:
        """Where the time goes: by bucket, op, module, line, pass and stream, the `top` of each; padding by bucket."""
        return report(self, top)

    def _repr_html_(self) -> str:
        return html_text(self.table())

    def trace(self, path: str | Path) -> None:
        """Write a trace that https://ui.perfetto.dev and chrome://tracing open. Raises ArgumentError where it cannot be
        written there."""
        _write(path, json.dumps({"traceEvents": list(events(self, self._name)), "displayTimeUnit": "ms"}))

    def sent(self, path: str | Path, entry: str | None = None) -> None:
        """Write the sizes of the calls as JSON lines, as `aotair buckets` reads them. Raises ArgumentError where they
        cannot be written there."""
        wanted = entry or next(iter(self._entries))
        lines = [json.dumps(self.sizes(call)) + "\n" for call in self._latest if call.entry == wanted]
        _write(path, "".join(lines))


def _write(path: str | Path, text: str) -> None:
    try:
        Path(path).write_text(text, encoding="utf-8")
    except OSError as error:
        what = f"the file cannot be written: {error.strerror}"
        raise ArgumentError(what, got=str(path), expected="a path in a folder that is there") from error
