"""Does each call fail on demand, and is torch_npu usable afterwards?"""

import contextlib
import gc

import pytest
import rawcann
import simnpu
import torch
import torch_npu


@pytest.fixture
def device_input():
    return torch.ones(4).npu()


def attempt(x, pool):
    graph = torch.npu.NPUGraph()
    try:
        with torch.npu.graph(graph, pool=pool):
            y = x + 1
    finally:
        torch.npu.set_stream(torch.npu.default_stream())  # a failed begin or end leaves the capture's stream current
    return graph, y


def works(x) -> bool:
    graph, y = attempt(x, torch.npu.graph_pool_handle())
    graph.replay()
    return y.cpu().tolist() == [2.0] * 4


def test_capture_begin_fails_once(device_input):
    pool = torch.npu.graph_pool_handle()
    with simnpu.fail_next("aclmdlRICaptureBegin"), pytest.raises(RuntimeError):
        attempt(device_input, pool)
    assert works(device_input)
    with pytest.raises(RuntimeError, match="already recording"):  # the pool is lost
        attempt(device_input, pool)


def test_capture_end_fails_once(device_input):
    gc.collect()
    torch.npu.empty_cache()
    pool, before = torch.npu.graph_pool_handle(), simnpu.live_bytes()
    with simnpu.fail_next("aclmdlRICaptureEnd"), pytest.raises(RuntimeError):
        attempt(device_input, pool)
    assert simnpu.live_graphs() == 0 and simnpu.held_kernels() == 0
    torch.npu.empty_cache()
    assert simnpu.live_bytes() > before  # nobody releases the pool of a graph that never was
    torch_npu._C._npu_releasePool(0, pool)
    torch.npu.empty_cache()
    assert simnpu.live_bytes() == before
    assert works(device_input)


def test_replay_fails_at_the_nth_call(device_input):
    graph, y = attempt(device_input, None)
    with simnpu.fail_next("aclmdlRIExecuteAsync", nth=2):
        graph.replay()
        with pytest.raises(RuntimeError):
            graph.replay()
        graph.replay()
    assert y.cpu().tolist() == [2.0] * 4


def test_launch_fails_in_and_out_of_capture(device_input):
    with simnpu.fail_next("sim_launch"), pytest.raises(RuntimeError, match="refused a launch"):
        device_input + 1
    with simnpu.fail_next("sim_launch"), pytest.raises(RuntimeError, match="refused a launch"):
        attempt(device_input, None)
    gc.collect()
    assert works(device_input)


def test_malloc_fails(device_input):
    with simnpu.fail_next("aclrtMalloc", times=10), pytest.raises(torch.OutOfMemoryError):
        torch.empty(64 << 20, device="npu")
    assert works(device_input)


def test_create_stream_and_event_fail():
    with simnpu.fail_next("aclrtCreateStream"), pytest.raises(rawcann.Refused):
        rawcann.create_stream()
    with simnpu.fail_next("aclrtCreateEvent"), pytest.raises(RuntimeError):
        torch.npu.Event().record()
    torch.npu.Event().record()


def test_unknown_calls_cannot_fail():
    with pytest.raises(ValueError, match="aclrtMalloc"), simnpu.fail_next("aclrtFoo"):
        pass


def test_streams_run_out_and_come_back():
    with simnpu.limits(streams=simnpu.live_streams() + 2):
        streams = [rawcann.create_stream() for _ in range(2)]
        with pytest.raises(rawcann.Refused) as error:
            rawcann.create_stream()
        assert error.value.code == 207008
        rawcann.destroy(None, [streams.pop()], [])
        streams.append(rawcann.create_stream())
    rawcann.destroy(None, streams, [])


def test_events_run_out_and_come_back():
    with simnpu.limits(events=simnpu.live_events() + 1):
        event = torch.npu.Event()
        event.record()
        with pytest.raises(RuntimeError):
            torch.npu.Event().record()
        del event
        torch.npu.Event().record()


def test_captures_run_out_of_streams(device_input):
    with contextlib.ExitStack() as stack:
        stack.enter_context(simnpu.limits(streams=simnpu.live_streams() + 2))
        graphs = [attempt(device_input, None) for _ in range(2)]
        with pytest.raises(RuntimeError):
            attempt(device_input, None)
        graphs.clear()
        gc.collect()
        assert works(device_input)
