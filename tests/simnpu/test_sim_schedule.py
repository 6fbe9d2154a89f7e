"""Do replays run in every order that the events allow, and in no other?"""

import pytest
import rawcann
import simnpu
import torch


def wrong_orders(graph, write_input, result, expected, seeds=200) -> int:
    wrong = 0
    for seed in range(1, seeds + 1):
        with simnpu.schedule(seed):
            x = write_input()
            graph.replay()
            wrong += not torch.allclose(result.cpu(), expected(x))
    return wrong


@pytest.fixture
def two_streams(capture):
    """A graph of two streams: with `join` the main one waits for the side before it uses its result, else after."""
    device, side = torch.zeros(4, 4).npu(), torch.npu.Stream()

    def body(join):
        main = torch.npu.current_stream()
        side.wait_stream(main)
        with torch.npu.stream(side):
            a = torch.abs(device @ device)
        if join:
            main.wait_stream(side)
        b = a + device
        if not join:
            main.wait_stream(side)
        return b

    def write_input():
        x = torch.randn(4, 4)
        device.copy_(x)
        return x

    return lambda join: (*capture(lambda: body(join)), write_input)


def test_correct_program_is_right_in_every_order(two_streams):
    graph, result, write_input = two_streams(join=True)
    assert wrong_orders(graph, write_input, result, lambda x: (x @ x).abs() + x) == 0


def test_missing_wait_gives_wrong_numbers_in_some_orders(two_streams):
    graph, result, write_input = two_streams(join=False)
    wrong = wrong_orders(graph, write_input, result, lambda x: (x @ x).abs() + x)
    assert 20 < wrong < 200


def test_capture_order_hides_a_missing_wait(two_streams):
    graph, result, write_input = two_streams(join=False)
    x = write_input()
    graph.replay()
    assert torch.allclose(result.cpu(), (x @ x).abs() + x)


def test_one_event_recorded_and_waited_again(capture):
    """The second wait is for the second record: an event is no latch."""
    x, side, event = torch.zeros(4).npu(), torch.npu.Stream(), torch.npu.Event()
    steps = 5

    def body():
        main = torch.npu.current_stream()
        for _ in range(steps):
            event.record(main)
            event.wait(side)
            with torch.npu.stream(side):
                x.mul_(2)
            event.record(side)
            event.wait(main)
            x.add_(1)

    graph, _ = capture(body)
    for seed in range(1, 101):
        with simnpu.schedule(seed):
            x.fill_(1)
            graph.replay()
            assert x.cpu()[0] == 2**steps + (2**steps - 1), seed


def test_more_queues_than_256():
    """torch_npu has only 64 streams; the runtime itself has more."""
    count, order = 300, []
    main, sides = rawcann.create_stream(), [rawcann.create_stream() for _ in range(count)]
    fork, joins = rawcann.create_event(), [rawcann.create_event() for _ in range(count)]
    rawcann.begin(main)
    rawcann.record(fork, main)
    for i, side in enumerate(sides):
        rawcann.wait(side, fork)
        simnpu.launch(lambda i=i: order.append(i), on=side)
        rawcann.record(joins[i], side)
        rawcann.wait(main, joins[i])
    simnpu.launch(lambda: order.append("end"), on=main)
    graph = rawcann.end(main)
    with simnpu.schedule(7):
        rawcann.execute(graph, main)
    assert order[-1] == "end" and sorted(order[:-1]) == list(range(count)) and order[:-1] != list(range(count))
    rawcann.destroy(graph, [main, *sides], [fork, *joins])
