"""Whether the streams of a bucket fork from the one it is captured on and join it again, as a capture demands."""

from collections.abc import Sequence

from ..errors import MalformedError
from .schema import Form, Instruction


def event(item: Instruction) -> int:
    """The event that an instruction records or waits for."""
    if len(item.args) != 1 or type(item.args[0]) is not int:
        raise MalformedError("an event has a number and nothing else", where=item.node, got=repr(item.args)[:80])
    return item.args[0]


def stream_fault(code: Sequence[Instruction], streams: int, events: int) -> str:
    """What is wrong with the use of streams and events in `code`, or nothing.

    Stream 0 begins the capture. Another stream may work only after it waited for an event of a stream that takes part,
    and the end of stream 0 must come after everything that any stream does.
    """
    # By stream: how many instructions of each stream are known to be done before its next one.
    clocks: dict[int, list[int]] = {0: [0] * streams}
    recorded: dict[int, list[int]] = {}
    issued = [0] * streams
    for item in code:
        if not 0 <= item.stream < streams:
            return f"{item.node}: stream {item.stream} of {streams}"
        if item.form == Form.WAIT:
            seen = recorded.get(event(item))
            if seen is None:
                return f"{item.node}: waits for event {event(item)} before it is recorded"
            mine = clocks.setdefault(item.stream, [0] * streams)
            clocks[item.stream] = [max(pair) for pair in zip(mine, seen)]
            continue
        if item.stream not in clocks:
            return f"{item.node}: stream {item.stream} works before it waited for a stream of the capture"
        if item.form == Form.RECORD:
            number = event(item)
            if not 0 <= number < events or number in recorded:
                return f"{item.node}: event {number} of {events}, or recorded twice"
            recorded[number] = clocks[item.stream]
            continue
        issued[item.stream] += 1
        clocks[item.stream] = list(clocks[item.stream])
        clocks[item.stream][item.stream] = issued[item.stream]
    late = [stream for stream in range(streams) if clocks[0][stream] < issued[stream]]
    return f"stream 0 ends before stream {late[0]} is done" if late else ""
