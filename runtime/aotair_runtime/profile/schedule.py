"""When would each instruction begin, if streams ran side by side as far as events let them?"""

from collections.abc import Sequence
from dataclasses import dataclass

from ..format.schema import Form
from .stepped import Step


@dataclass(frozen=True)
class Placed:
    """When an instruction begins, in seconds from the begin of the replay. `flow` numbers what joins an event that is
    recorded with one wait for it (-1: none); a recorded event has one for each of its waits."""

    began: float
    flows: tuple[int, ...] = ()


def schedule(steps: Sequence[Step]) -> tuple[tuple[Placed, ...], float]:
    """Where the instructions lie, each as early as its stream and the events that it waits for let it, and when the
    last one ends: the longest chain of instructions that wait for one another."""
    ready: dict[int, float] = {}  # by stream: when what came last on it is done
    recorded: dict[int, tuple[float, int]] = {}  # by event: when it is reached, and which step records it
    flows: dict[int, list[int]] = {}
    began, count = [], 0
    for number, step in enumerate(steps):
        start = ready.get(step.stream, 0.0)
        if step.form == Form.RECORD:
            recorded[step.event] = (start, number)
        elif step.form == Form.WAIT and step.event in recorded:
            reached, recorder = recorded[step.event]
            start = max(start, reached)
            flows.setdefault(recorder, []).append(count)
            flows.setdefault(number, []).append(count)
            count += 1
        began.append(start)
        ready[step.stream] = start + step.seconds
    placed = tuple(Placed(start, tuple(flows.get(number, ()))) for number, start in enumerate(began))
    return placed, max(ready.values(), default=0.0)
