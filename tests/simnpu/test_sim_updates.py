"""Do captured host arguments stay as they were until an update, and is a replay ordered against it?"""

import ctypes

import pytest
import rawcann
import simnpu
import torch


@pytest.fixture(scope="module")
def sum_of_first():
    """An op with a host argument that a capture bakes in, in the out= form that updates need."""
    library = torch.library.Library("aotair_test", "FRAGMENT")
    library.define("sum_of_first(Tensor x, int[] lengths, *, Tensor(a!) out) -> Tensor(a!)")
    simnpu.register("aotair_test::sum_of_first", lambda x, lengths, *, out: out.copy_(x[: sum(lengths)].sum()))
    yield torch.ops.aotair_test.sum_of_first
    library._destroy()


@pytest.fixture
def updatable(sum_of_first, capture):
    """A captured call, and how to update it."""
    x, out = torch.ones(8).npu(), torch.zeros((), device="npu")
    event, stream, group = torch.npu.ExternalEvent(), torch.npu.Stream(), []

    def body():
        main = torch.npu.current_stream()
        event.wait(main)
        event.reset(main)
        torch.npu.graph_task_group_begin(main)
        sum_of_first(x, [1, 2], out=out)
        group.append(torch.npu.graph_task_group_end(main))
        out.mul_(10)

    def update(lengths, record=True):
        with torch.npu.stream(stream):
            torch.npu.graph_task_update_begin(stream, group[0])
            sum_of_first(x, lengths, out=out)
            torch.npu.graph_task_update_end(stream)
            if record:
                event.record(stream)

    graph, _ = capture(body)
    return graph, out, update, event, stream


def test_update_after_replay_gives_new_numbers(updatable):
    graph, out, update, *_ = updatable
    for lengths in ([2, 2], [1, 4], [8]):
        graph.replay()
        assert simnpu.pending()
        update(lengths)
        assert out.cpu() == 10 * sum(lengths)


def test_update_before_replay_gives_new_numbers(updatable):
    graph, out, update, *_ = updatable
    update([5])
    graph.replay()
    assert out.cpu() == 50


def test_without_an_update_the_numbers_are_stale(updatable):
    graph, out, _, event, stream = updatable
    for _ in range(2):
        graph.replay()
        event.record(stream)
        assert out.cpu() == 30


def test_the_event_must_come_after_the_update(updatable):
    graph, out, update, event, stream = updatable
    graph.replay()
    event.record(stream)
    update([7], record=False)
    assert out.cpu() == 30  # this replay had passed
    graph.replay()
    event.record(stream)
    assert out.cpu() == 70


def test_synchronising_before_the_update_is_a_deadlock(updatable):
    graph, out, update, *_ = updatable
    graph.replay()
    with pytest.raises(RuntimeError, match="507046"):
        torch.npu.synchronize()
    with pytest.raises(RuntimeError, match="507046"):
        out.cpu()
    update([4])
    torch.npu.synchronize()
    assert out.cpu() == 40


def test_a_replay_without_its_event_blocks_what_follows(updatable):
    graph, out, update, *_ = updatable
    graph.replay()
    later = out + 1
    with pytest.raises(RuntimeError):
        torch.npu.synchronize()
    side = torch.npu.Stream()
    side.wait_stream(torch.npu.current_stream())
    with torch.npu.stream(side):
        beside = later + 1
    assert simnpu.pending() >= 4
    update([1])
    assert (later.cpu(), beside.cpu()) == (11, 12)


def test_one_record_releases_one_replay(updatable):
    graph, out, update, *_ = updatable
    graph.replay()
    update([4])
    graph.replay()
    with pytest.raises(RuntimeError):
        torch.npu.synchronize()
    simnpu.abandon()
    assert out.cpu() == 40


def test_an_empty_update_is_refused(capture):
    x, stream, group = torch.ones(4).npu(), torch.npu.Stream(), []

    def body():
        main = torch.npu.current_stream()
        torch.npu.graph_task_group_begin(main)
        x.add_(1)
        group.append(torch.npu.graph_task_group_end(main))

    graph, _ = capture(body)
    torch.npu.graph_task_update_begin(stream, group[0])
    with pytest.raises(RuntimeError, match="107033"):
        torch.npu.graph_task_update_end(stream)
    graph.reset()
    with pytest.raises(RuntimeError, match="107033"):
        torch.npu.graph_task_update_begin(stream, group[0])  # its graph is gone


def test_a_group_must_be_closed_before_the_capture_ends():
    stream = rawcann.create_stream()
    rawcann.begin(stream)
    rawcann.check(rawcann.cann.aclmdlRICaptureTaskGrpBegin(ctypes.c_void_p(stream)))
    with pytest.raises(rawcann.Refused) as error:
        rawcann.end(stream)
    assert error.value.code == 107033
    rawcann.destroy(None, [stream], [])


def test_updates_leave_no_kernels_behind(updatable):
    graph, _, update, *_ = updatable
    held = simnpu.held_kernels()
    for length in range(20):
        update([length % 8])
        graph.replay()
    assert simnpu.held_kernels() == held


def test_external_events_take_memory_for_good():
    before = simnpu.live_bytes()
    event = torch.npu.ExternalEvent()
    assert simnpu.live_bytes() == before + 32
    del event
    assert simnpu.live_bytes() == before + 32


def test_an_external_event_is_waited_for_once_per_record():
    event, stream = torch.npu.ExternalEvent(), torch.npu.Stream()
    event.wait(stream)
    with pytest.raises(RuntimeError, match="multiple wait"):
        event.wait(stream)
    simnpu.abandon()
