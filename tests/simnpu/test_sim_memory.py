"""Is device memory counted, limited and told apart from memory that nobody owns?"""

import ctypes
import gc

import pytest
import rawcann
import simnpu
import torch

MIB = 1 << 20


def contents(address: int, size: int) -> set[int]:
    return set((ctypes.c_ubyte * size).from_address(address))


def test_new_memory_and_freed_memory_show():
    address = rawcann.malloc(4096)
    assert contents(address, 4096) == {0xA5}
    rawcann.free(address)
    assert contents(address, 4096) == {0x5A}


def test_counters_agree_with_the_allocator():
    gc.collect()
    torch.npu.empty_cache()
    simnpu.reset_peak()
    before, events = simnpu.live_bytes(), simnpu.live_bytes() - torch.npu.memory_reserved()
    assert events % 32 == 0  # an external event takes 32 bytes for good, behind the allocator's back
    x = torch.empty(30 * MIB, dtype=torch.uint8, device="npu")
    assert simnpu.live_bytes() - events == torch.npu.memory_reserved() >= before - events + 30 * MIB
    del x
    torch.npu.empty_cache()
    assert simnpu.live_bytes() == torch.npu.memory_reserved() + events == before
    assert simnpu.peak_bytes() >= before + 30 * MIB
    free, total = torch.npu.mem_get_info()
    assert total - free == before


def test_out_of_memory_is_the_allocators_own():
    with simnpu.memory_limit(simnpu.live_bytes() + 8 * MIB):
        with pytest.raises(torch.OutOfMemoryError):
            torch.empty(64 * MIB, device="npu")
        assert torch.ones(4, device="npu").cpu().sum() == 4
    assert torch.empty(64 * MIB, dtype=torch.uint8, device="npu").numel() == 64 * MIB


def test_graphs_of_one_pool_and_stream_overlay_their_memory():
    gc.collect()
    torch.npu.empty_cache()
    pool, base, graphs, reserved = torch.npu.graph_pool_handle(), simnpu.live_bytes(), [], []
    for size in (16 * MIB, 8 * MIB, 4 * MIB):
        graphs.append(torch.npu.NPUGraph())
        with torch.npu.graph(graphs[-1], pool=pool):
            torch.empty(size, dtype=torch.uint8, device="npu").fill_(1)
        reserved.append(simnpu.live_bytes() - base)
    assert reserved[0] == reserved[1] == reserved[2]
    for graph in graphs:
        graph.reset()
    torch.npu.empty_cache()
    assert simnpu.live_bytes() == base


def test_replay_reads_memory_that_was_freed():
    """A graph does not keep memory alive that it was captured over."""
    address, out = rawcann.malloc(64), rawcann.malloc(64)
    stream = rawcann.create_stream()
    rawcann.begin(stream)
    simnpu.launch(lambda: ctypes.memmove(out, address, 64), on=stream)
    graph = rawcann.end(stream)
    rawcann.free(address)
    rawcann.execute(graph, stream)
    assert contents(out, 64) == {0x5A}
    rawcann.free(out)
    rawcann.destroy(graph, [stream], [])
