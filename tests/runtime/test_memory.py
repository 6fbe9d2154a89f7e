"""What is promised is what is taken: the report, budgets checked before anything is allocated, and running out."""

import gc
import importlib.util

import pytest
import torch

import aotair
from aotair_runtime.devices.allocators import ALLOCATORS
from aotair_runtime.errors import ArgumentError, MemoryBudgetError, OutOfMemoryError
from aotair_runtime.memory.promise import Terms, promise, refuse_beyond, what_fits

MIB = 1 << 20


def cache_call(model, cache: torch.Tensor, value: float, position: int) -> torch.Tensor:
    return model(torch.full((2, 1, 3), value), cache, torch.tensor([position]))


def ids_and_mask(batch: int, seq: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.ones(batch, seq, dtype=torch.int64), torch.ones(batch, seq, dtype=torch.int64)


def test_arena_bytes_promised_allocated_and_addressed_are_one_number(node):
    for name in ("encoder", "linear", "counter"):
        model = node.load(name)
        report = model.memory()
        (pool,) = report.pools
        assert report.arena == report.arena_allocated == report.arena_addressed == pool.arena == pool.addressed
        assert report.arena == model.promise.items[2].nbytes
        for bucket in report.buckets:
            assert bucket.addressed <= bucket.promised < bucket.addressed + model.program.alignment


def test_the_rest_agrees_within_the_allocators_rounding(node):
    for name in ("encoder", "counter"):
        model = node.load(name)
        report, promised = model.memory(), {item.name: item for item in model.promise.items}
        for category in report.categories[:2]:
            item = promised[category.name]
            assert category.promised == item.nbytes
            assert item.nbytes <= category.used <= item.nbytes + (512 + 32 if node.has_graphs and item.nbytes else 0)
            assert category.reserved <= item.reserved or category.reserved == 20 * MIB  # a block that was there
        beside = report.categories[3]
        assert beside.used <= beside.promised
        assert "promised" in str(report) and report.rounding in str(report)


def test_the_pool_holds_what_was_promised_whatever_the_order_of_captures(node):
    """Results that instructions allocate find room in the pool: it is no larger with all buckets than with one."""
    node.trim()
    alone = node.load("encoder", capture=["batch=4, seq=16"])
    one = alone.memory().pools[0]
    alone.close()
    for capture in ("all", ["batch=1, seq=4", "batch=4, seq=16", "batch=1, seq=16"]):
        model = node.load("encoder", capture=capture)
        (pool,) = model.memory().pools
        assert (pool.arena, pool.reserved) == (one.arena, one.reserved)
        model.close()


def test_a_budget_refuses_before_anything_is_allocated(node):
    gc.collect()
    model = node.load("encoder")
    promised = model.promise
    model.close()
    node.trim()
    before = _left(node) if node.has_graphs else (0, 0)
    with pytest.raises(MemoryBudgetError) as caught:
        node.load("encoder", memory_budget=promised.peak - 1)
    text = str(caught.value)
    assert f"at most {promised.peak - 1:,} bytes (memory_budget=)" in text and "1 too many" in text
    assert "weights" in text and "arena" in text and "in all" in text
    assert node.settle() == before
    node.load("encoder", memory_budget=promised.peak).close()
    with pytest.raises(MemoryBudgetError, match=r"0% of [\d,]+ bytes"):
        node.load("encoder", memory_budget=1e-9)
    for wrong in (0, 1.5, 0.0):
        with pytest.raises(ArgumentError, match="memory_budget"):
            node.load("encoder", memory_budget=wrong)


def test_what_would_make_it_fit(node):
    """Leaving out the buckets that the refusal names makes the rest fit; making the largest smaller by what it says
    does too."""
    promised = promise(node.load("encoder", capture="lazy").program, Terms("cpu"))
    sizes = sorted({need.reserved + need.meanwhile for need in promised.needs})
    limit = promised.peak - sizes[-1] + sizes[1]
    with pytest.raises(MemoryBudgetError) as caught:
        refuse_beyond(promised, limit, "a test", "here")
    text = caught.value.fix
    named = [need for need in promised.needs if need.name in text]
    assert named and all(need.reserved + need.meanwhile > sizes[1] for need in named)
    assert f"it takes {limit:,} bytes then" in text and f"{sizes[-1] - sizes[1]:,} bytes smaller" in text
    assert "no set of these buckets fits" in what_fits(promised, promised.peak - sizes[-1] + sizes[0] - 1)


def test_what_the_allocator_reserves_is_known(node):
    """For blocks of all sizes in an empty cache."""
    if not node.has_graphs:
        assert ALLOCATORS["cpu"].reserved(5) == 5
        return
    api = getattr(torch, node.kind)
    for nbytes in (1, 512, MIB - 32, MIB, MIB + 1, 3 * MIB, 10 * MIB - 33, 10 * MIB, 11 * MIB + 1, 64 * MIB):
        gc.collect()
        node.trim()
        pool, graph = api.graph_pool_handle(), {"npu": "NPUGraph", "cuda": "CUDAGraph"}[node.kind]
        graph = getattr(api, graph)()
        before = api.memory_reserved()
        with api.graph(graph, pool=pool):
            kept = torch.empty(nbytes, dtype=torch.uint8, device=node.device)
            kept[:1].zero_()
        assert api.memory_reserved() - before == ALLOCATORS[node.kind].reserved(nbytes), nbytes
        graph.reset()
        del kept, graph


# ---- running out ---------------------------------------------------------------------------------------------------


def _left(node) -> tuple[int, int]:
    """What is allocated and reserved once the simulation holds no kernels of graphs that are gone."""
    gc.collect()
    if importlib.util.find_spec("simcann"):
        import simnpu

        simnpu.held_kernels()
    node.trim()
    return node.settle()


@pytest.fixture
def limited(node):
    """Leaves the device so many bytes beside what lives now; only the simulated one can be made small."""
    if importlib.util.find_spec("simcann") is None or node.kind != "npu":
        pytest.skip("only a simulated device can be made small")
    import simnpu

    gc.collect()
    node.trim()
    return lambda free: simnpu.memory_limit(simnpu.live_bytes() + free)


def test_what_the_device_has_left_is_looked_at_first(node, limited):
    before = _left(node) if node.has_graphs else (0, 0)
    with limited(4 * MIB), pytest.raises(MemoryBudgetError, match="what the npu has left"):
        node.load("encoder")
    assert node.settle() == before


def test_running_out_while_loading_gives_everything_back(node, limited, monkeypatch):
    """At each place where memory is asked for, as if somebody else had been quicker."""
    reserved = node.load("encoder").promise.reserved
    monkeypatch.setattr(type(aotair.graph_pool("npu").device), "free", lambda self: 1 << 40)
    before, kept = None, []
    for free in range(0, reserved + 2 * MIB, 2 * MIB):
        gc.collect()
        node.trim()
        before = _left(node)
        with limited(free):
            try:
                node.load("encoder").close()
            except OutOfMemoryError as error:
                kept.append(error)  # its traceback holds no memory
                assert "weights" in str(error) and "arena" in str(error)
        assert _left(node) == before
    assert len(kept) > 1
    assert node.load("encoder")(*ids_and_mask(2, 3)).shape[0] == 2


def test_running_out_while_capturing_later_leaves_the_model_as_it_was(node, limited):
    model = node.load("cache", kept_graphs=1)
    mine, other = torch.zeros(2, 8, 3), torch.zeros(2, 8, 3)
    cache_call(model, mine, 1.0, 0)
    graphs = model.entry_points["forward"].graphs
    bind, before = graphs._capture, _left(node)

    def quicker(*args):
        with limited(0):
            torch.empty(64 * MIB, dtype=torch.uint8, device=node.device)
        return bind(*args)

    graphs._capture = quicker
    with pytest.raises(OutOfMemoryError, match=r"cache\.forward, bucket[^|]*weights"):
        cache_call(model, other, 1.0, 0)
    graphs._capture = bind
    assert _left(node) == before
    assert cache_call(model, mine, 2.0, 1)[0, 0] == 3


def test_the_peak_of_a_load_is_no_higher_than_promised(node, limited):
    import simnpu

    for name in ("encoder", "cache", "counter"):
        gc.collect()
        node.trim()
        before = torch.npu.memory_reserved()
        torch.npu.reset_peak_memory_stats()
        model = node.load(name)
        assert torch.npu.max_memory_reserved() - before <= model.promise.peak
        model.close()
    assert simnpu.live_bytes() >= 0
