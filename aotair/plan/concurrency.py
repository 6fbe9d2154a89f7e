"""How long a buffer must be kept where steps run on several streams: until all that may run meanwhile is issued."""

from bisect import bisect_right
from collections.abc import Sequence

from torch.fx.node import Node

from ..graph.order import Clock, Order
from ..graph.streams import RECORD, WAIT, several_streams, stream_of


def prolonged(launches: Sequence[Node], accesses: Sequence[Sequence[int]], last: Sequence[int]) -> list[int]:
    """The last step of each buffer, moved behind every step that is not known to come after all of its uses.

    `launches` are the steps 1, 2, … in the order of issue, events among them; `accesses` the steps of each buffer.
    A later step on another stream may run before an earlier one, unless an event orders them: a buffer that it brings
    may not take the place of one that is still in use.
    """
    if not several_streams(launches):
        return list(last)
    order, before = _clocks(launches)
    result = []
    for steps, end in zip(accesses, last, strict=True):
        own = [step - 1 for step in steps if 0 < step <= len(launches)]
        kept = end
        for numbers, clocks in before.values():
            # Clocks of one stream only grow: find its first step that comes after all uses.
            first = _first_covering(order, clocks, own)
            if first:
                kept = max(kept, numbers[first - 1] + 1)
        result.append(max(kept, end))
    return result


def _first_covering(order: Order, clocks: Sequence[Clock], steps: Sequence[int]) -> int:
    return bisect_right(clocks, False, key=lambda clock: order.covers(clock, steps))


def _clocks(launches: Sequence[Node]) -> tuple[Order, dict[int, tuple[list[int], list[Clock]]]]:
    """The order of the steps, and by stream: the numbers of its steps, and what is done before each."""
    streams = 1 + max(map(stream_of, launches))
    order = Order(streams)
    recorded: dict[object, Clock] = {}
    before: dict[int, tuple[list[int], list[Clock]]] = {stream: ([], []) for stream in range(streams)}
    for number, node in enumerate(launches):
        stream = stream_of(node)
        if node.target is WAIT:
            order.wait(stream, recorded[node.args[0]])
        before[stream][0].append(number)
        before[stream][1].append(order.now(stream))
        order.step(stream)
        if node.target is RECORD:
            recorded[node.args[0]] = order.now(stream)
    return order, before
