"""Who belongs to a capture, what may happen in it, and what is left after it?"""

import ctypes
import gc
import threading

import pytest
import rawcann
import simnpu
import torch

DEPENDENCY, UNJOINED, STREAM_CAPTURED, EVENT_CAPTURED, UNMATCHED = 107024, 107025, 107027, 107028, 107036
INVALIDATED = 507903


def refused(code: int, call, *args) -> None:
    with pytest.raises(rawcann.Refused) as error:
        call(*args)
    assert error.value.code == code


@pytest.fixture
def pair():
    """Two streams and two events of the runtime."""
    streams, events = [rawcann.create_stream() for _ in range(2)], [rawcann.create_event() for _ in range(2)]
    yield *streams, *events
    rawcann.destroy(None, streams, events)


def fork(main, side, event):
    rawcann.record(event, main)
    rawcann.wait(side, event)


def test_a_stream_that_joined_has_left_when_the_capture_ends(pair):
    main, side, forked, joined = pair
    seen = []
    rawcann.begin(main)
    fork(main, side, forked)
    simnpu.launch(lambda: seen.append("side"), on=side)
    fork(side, main, joined)
    graph = rawcann.end(main)
    assert seen == []
    simnpu.launch(lambda: seen.append("eager"), on=side)
    assert seen == ["eager"]
    rawcann.begin(side)  # free for a capture of its own
    second = rawcann.end(side)
    rawcann.destroy(graph, [], [])
    rawcann.destroy(second, [], [])


@pytest.mark.parametrize("work", [True, False])
def test_a_side_stream_must_be_joined(pair, work):
    main, side, forked, _ = pair
    rawcann.begin(main)
    fork(main, side, forked)
    if work:
        simnpu.launch(lambda: None, on=side)
    refused(UNJOINED, rawcann.end, main)
    rawcann.synchronize(side)
    rawcann.begin(main)
    rawcann.destroy(rawcann.end(main), [], [])


def test_work_after_the_join_is_unjoined(pair):
    main, side, forked, joined = pair
    rawcann.begin(main)
    fork(main, side, forked)
    fork(side, main, joined)
    simnpu.launch(lambda: None, on=side)
    refused(UNJOINED, rawcann.end, main)
    assert simnpu.live_graphs() == 0


def test_a_capture_ends_where_it_began(pair):
    main, side, forked, joined = pair
    rawcann.begin(main)
    fork(main, side, forked)
    refused(UNMATCHED, rawcann.end, side)
    fork(side, main, joined)
    rawcann.destroy(rawcann.end(main), [], [])


def test_synchronising_a_captured_stream_spoils_the_capture(pair):
    main, *_ = pair
    rawcann.begin(main)
    refused(STREAM_CAPTURED, rawcann.synchronize, main)
    refused(INVALIDATED, rawcann.end, main)
    rawcann.synchronize(main)


def test_a_capture_cannot_wait_for_work_outside(pair):
    main, side, outside, _ = pair
    rawcann.record(outside, side)
    rawcann.begin(main)
    refused(DEPENDENCY, rawcann.wait, main, outside)
    refused(INVALIDATED, rawcann.end, main)


def test_work_outside_cannot_wait_for_a_captured_event(pair):
    main, side, inside, _ = pair
    rawcann.begin(main)
    rawcann.record(inside, main)
    graph = rawcann.end(main)
    refused(EVENT_CAPTURED, rawcann.wait, side, inside)
    rawcann.record(inside, main)  # recorded outside, it is an ordinary event again
    rawcann.wait(side, inside)
    rawcann.destroy(graph, [], [])


def test_capture_of_blocking_copies_is_an_error(capture):
    x = torch.ones(4).npu()
    with pytest.raises(RuntimeError):
        capture(lambda: x.cpu())
    torch.npu.set_stream(torch.npu.default_stream())
    with pytest.raises(RuntimeError):
        capture(lambda: torch.ones(4).npu())
    torch.npu.set_stream(torch.npu.default_stream())
    assert (x + 1).cpu().tolist() == [2.0] * 4
    assert simnpu.live_graphs() == 0


def test_pinned_copies_can_be_captured(capture):
    host, out = torch.ones(4).pin_memory(), torch.empty(4).pin_memory()

    def body():
        device = torch.empty(4, device="npu").copy_(host, non_blocking=True)
        out.copy_(device + 1, non_blocking=True)

    graph, _ = capture(body)
    host.fill_(5)
    graph.replay()
    torch.npu.synchronize()
    assert out.tolist() == [6.0] * 4


def test_an_op_that_falls_back_to_the_cpu_cannot_be_captured(capture):
    x, i = torch.ones(4).npu(), torch.zeros(4, dtype=torch.int64).npu()
    out = torch.empty(4, device="npu")
    assert torch.ops.aten.index.Tensor_out(x, [i], out=out).cpu().tolist() == [1.0] * 4
    with pytest.raises(RuntimeError, match="cannot record"):
        capture(lambda: torch.ops.aten.index.Tensor_out(x, [i], out=out))


@pytest.mark.parametrize(("mode", "spoiled"), [(0, True), (1, False), (2, False)])
def test_modes_say_whose_unsafe_calls_are_forbidden(pair, mode, spoiled):
    main, *_ = pair
    code = []
    memory = rawcann.malloc(64)
    rawcann.begin(main, mode)
    thread = threading.Thread(target=lambda: code.append(rawcann.cann.aclrtMemset(ctypes.c_void_p(memory), 64, 0, 64)))
    thread.start()
    thread.join()
    assert bool(code[0]) == spoiled
    if spoiled:
        refused(INVALIDATED, rawcann.end, main)
    else:
        rawcann.destroy(rawcann.end(main), [], [])
    rawcann.free(memory)


def test_nothing_leaks_over_a_thousand_captures():
    x, side = torch.ones(4).npu(), torch.npu.Stream()

    def once():
        graph = torch.npu.NPUGraph()
        stream = torch.npu.Stream()
        with torch.npu.stream(stream):
            graph.capture_begin()
            side.wait_stream(stream)
            with torch.npu.stream(side):
                y = x + 1
            stream.wait_stream(side)
            y.add_(1)
            graph.capture_end()
        graph.replay()

    def state():
        gc.collect()
        torch.npu.empty_cache()
        return (simnpu.live_graphs(), simnpu.live_streams(), simnpu.live_events(), simnpu.held_kernels(),
                simnpu.live_bytes())  # fmt: skip

    once()
    before = state()
    for _ in range(1000):
        if torch.npu.Stream() == side:  # the pool hands the same 32 streams out again and again
            torch.npu.Stream()
        once()
    assert state() == before


def test_a_graph_holds_its_streams_and_events(capture):
    x, side = torch.ones(4).npu(), torch.npu.Stream()
    before = simnpu.live_streams(), simnpu.live_events()

    def body():
        main = torch.npu.current_stream()
        side.wait_stream(main)
        with torch.npu.stream(side):
            x.add_(1)
        main.wait_stream(side)

    graph, _ = capture(body)
    assert (simnpu.live_streams() - before[0], simnpu.live_events() - before[1]) == (2, 2)
    graph.reset()
    assert (simnpu.live_streams(), simnpu.live_events()) == before


def test_kernel_that_fails_in_a_replay_shows_at_the_next_synchronisation(capture):
    def body():
        simnpu.launch(lambda: 1 / 0)

    graph, _ = capture(body)
    graph.replay()
    with pytest.raises(RuntimeError):
        torch.npu.synchronize()
    assert isinstance(simnpu.take_failure(), ZeroDivisionError)
    torch.npu.synchronize()
