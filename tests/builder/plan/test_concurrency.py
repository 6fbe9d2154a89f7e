"""How long buffers are kept where steps run on several streams: until nobody who may still run could overwrite them."""

import itertools
import random

import pytest
import torch
from torch.fx.node import Node

from aotair.graph.streams import RECORD, WAIT
from aotair.plan.concurrency import prolonged


def steps(*texts: str) -> list[Node]:
    """Launches from words: `0` and `1` are steps on these streams, `r1=a` records an event on stream 1, `w0=a` lets
    stream 0 wait for it."""
    graph, found, events = torch.fx.Graph(), [], {}
    x = graph.placeholder("x")
    for text in texts:
        if text[0] == "r":
            node = events[text[3:]] = graph.call_function(RECORD, (text[3:],))
        elif text[0] == "w":
            node = graph.call_function(WAIT, (events[text[3:]].args[0],))
        else:
            node = graph.call_function(torch.ops.aten.neg.default, (x,))
        node.meta["stream"] = int(text.lstrip("rw")[0])
        found.append(node)
    return found


def test_on_one_stream_nothing_lives_longer():
    launches = steps("0", "0", "0")
    last = [1, 2]
    kept = prolonged(launches, [[1], [1, 2]], last)
    assert kept == [1, 2] and kept is not last
    assert prolonged([], [[0]], [0]) == [0], "no step at all"
    assert prolonged(launches, [], []) == []


@pytest.mark.parametrize(
    ("words", "used", "until"),
    [
        # Nothing tells stream 1 that step 1 is over: it is kept behind all of stream 1.
        (("0", "1", "1"), [1], 3),
        # The other way round: stream 0 never waits for stream 1.
        (("1", "0", "0"), [1], 3),
        # Stream 1 waits for step 1 before its second step: the first may still run beside.
        (("0", "1", "r0=a", "w1=a", "1"), [1], 2),
        # It waits before all of its steps.
        (("0", "r0=a", "w1=a", "1"), [1], 1),
        # What is recorded too early says nothing of a later step.
        (("0", "r0=a", "0", "w1=a", "1"), [3], 5),
        # All uses have to be over, those on each stream: stream 1 never hears of step 1.
        (("0", "1", "r1=a", "w0=a", "0"), [2], 2),
        (("0", "1", "r1=a", "w0=a", "0"), [1, 2], 3),
    ],
)
def test_a_buffer_is_kept_until_all_streams_come_after_its_uses(words, used, until):
    assert prolonged(steps(*words), [used], [max(used)]) == [until]


def test_what_two_streams_use_is_kept_for_a_third():
    launches = steps("0", "r0=a", "w1=a", "1", "2", "r1=b", "w0=b", "0")
    assert prolonged(launches, [[1], [1, 4], [8]], [1, 4, 8]) == [5, 5, 8]


def test_results_that_are_handed_out_and_inputs_that_are_copied_in_are_no_steps():
    """Step 0 and the one after the last are the host's: no stream runs them."""
    launches = steps("0", "1")
    assert prolonged(launches, [[0], [0, 3], [3]], [0, 3, 3]) == [0, 3, 3]


def test_nobody_lives_shorter():
    launches = steps("0", "r0=a", "w1=a", "1", "0")
    assert prolonged(launches, [[1]], [5]) == [5]


def done_before(launches: list[Node]) -> list[set[int]]:
    """By step, all steps that are over when it begins, told by walking the edges one by one."""
    edges: dict[int, set[int]] = {}
    latest: dict[int, int] = {}
    recorded: dict[object, int] = {}
    for number, node in enumerate(launches):
        stream = node.meta["stream"]
        edges[number] = {latest[stream]} if stream in latest else set()
        if node.target is WAIT and node.args[0] in recorded:
            edges[number].add(recorded[node.args[0]])
        if node.target is RECORD:
            recorded[node.args[0]] = number
        latest[stream] = number
    found: list[set[int]] = []
    for number in range(len(launches)):
        found.append(set().union(*({before} | found[before] for before in edges[number])) if edges[number] else set())
    return found


def random_words(chooser: random.Random) -> list[str]:
    words, events = ["0"], []
    for number in range(chooser.randint(2, 14)):
        stream, kind = chooser.randrange(3), chooser.choice("ssrw")
        if kind == "r":
            events.append(str(number))
            words.append(f"r{stream}={number}")
        elif kind == "w" and events:
            words.append(f"w{stream}={chooser.choice(events)}")
        else:
            words.append(str(stream))
    return words


def test_whoever_may_run_beside_a_use_comes_before_the_end():
    """Random streams: a step that begins after the end of a buffer comes after all of its uses."""
    chooser = random.Random(0)
    for turn in range(200):
        launches = steps(*random_words(chooser))
        used = sorted(chooser.sample(range(1, len(launches) + 1), chooser.randint(1, 2)))
        (end,) = prolonged(launches, [used], [used[-1]])
        assert end >= used[-1]
        before = done_before(launches)
        runs = [number for number, node in enumerate(launches, 1) if node.target not in (RECORD, WAIT)]
        for later, use in itertools.product(runs, used):
            if later > end:
                assert use - 1 in before[later - 1], (turn, [str(n.target) for n in launches], used, end, later)
