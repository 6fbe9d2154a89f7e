"""What is captured and when: in-place inputs, kept graphs, pools that models share, budgets, and memory given back."""

import gc
import threading

import pytest
import torch
from cases import ROOT

import aotair
from aotair_runtime.devices import open_device
from aotair_runtime.errors import ArgumentError, BudgetError, DeviceError, ShapeError


def cache_call(model, cache: torch.Tensor, value: float, position: int) -> torch.Tensor:
    return model(torch.full((2, 1, 3), value), cache, torch.tensor([position]))


# ---- mutated inputs ------------------------------------------------------------------------------------------------


def test_two_caches_in_turn_are_captured_once_each(node):
    model = node.load("cache", enable_output_clone=True)
    caches = [torch.zeros(2, 8, 3), torch.zeros(2, 8, 3)]
    for position in range(4):
        for number, cache in enumerate(caches):
            got = cache_call(model, cache, number + 1.0, position)
            assert torch.equal(got, torch.full((2, 3), (number + 1.0) * (position + 1)))
    stats = model.stats()
    assert stats.captures == 2
    (again,) = stats.recaptures
    assert (again.bucket, again.reason, again.times) == ("n=2", "a new address of cache", 1)


def test_the_graph_used_longest_ago_is_let_go(node):
    model = node.load("cache", enable_output_clone=True, kept_graphs=2)
    caches = [torch.zeros(2, 8, 3) for _ in range(3)]
    for turn, number in enumerate((0, 1, 0, 2, 0, 1)):  # 2 takes the place of 1, which then takes that of 2
        cache = caches[number]
        cache_call(model, cache, 1.0, turn)
        assert cache[:, turn].eq(1).all()
    assert model.stats().captures == 4
    assert len(model.forward.graphs) == 2


def test_a_new_object_at_an_old_address_and_an_old_object_at_a_new_one(node):
    model = node.load("cache", enable_output_clone=True)
    cache = torch.zeros(2, 8, 3)
    cache_call(model, cache, 1.0, 0)
    cache_call(model, cache.view(2, 8, 3), 1.0, 1)  # another tensor over the same memory
    assert model.stats().captures == 1
    other = torch.zeros(2, 8, 3)
    cache.data = other  # the same tensor over other memory
    assert torch.equal(cache_call(model, cache, 5.0, 2), torch.full((2, 3), 5.0))
    assert other[:, 2].eq(5).all()
    assert model.stats().captures == 2


def test_a_tensor_that_is_transposed_in_place_is_noticed(node):
    model = node.load("cache")
    cache = torch.zeros(2, 8, 3)
    cache_call(model, cache, 1.0, 0)
    cache.transpose_(1, 2)
    with pytest.raises(ShapeError, match=r"got: shape \[2, 3, 8\]"):
        cache_call(model, cache, 1.0, 1)
    cache.resize_(2, 8, 3)
    cache_call(model, cache, 1.0, 1)
    square = torch.zeros(2, 3, 8).transpose(1, 2)
    with pytest.raises(ShapeError, match="used in place"):
        cache_call(model, square, 1.0, 1)


def test_a_capture_leaves_states_and_caches_alone(node):
    model = node.load("counter")
    assert model.state["count"].item() == 0
    assert model(torch.ones(2, 4))[0, 0] == 1
    model = node.load("cache")
    cache = torch.arange(48.0).view(2, 8, 3)
    want = cache.clone()
    cache_call(model, cache, 0.5, 3)
    want[:, 3] = 0.5
    assert torch.equal(cache, want)


# ---- clone_input ---------------------------------------------------------------------------------------------------


def test_inputs_in_place_are_used_where_they_lie_and_others_are_copied(node, original):
    model, reference = node.load("linear", clone_input=False, enable_output_clone=True), original("linear")
    first, second = torch.randn(4, 4), torch.randn(4, 4)
    kept = first.clone()
    assert torch.allclose(model(first), reference(first), atol=1e-6)
    (bucket,) = [b for b in model.stats().buckets if b.bucket == "n=4"]
    before = bucket.captures
    for x in (second, torch.randn(4, 4), torch.randn(3, 4)):
        assert torch.allclose(model(x), reference(x), atol=1e-6)
        assert torch.equal(first, kept), "the first caller's tensor was written"
    first.copy_(second)  # what lies at the first addresses now
    assert torch.allclose(model(first), reference(second), atol=1e-6)
    (bucket,) = [b for b in model.stats().buckets if b.bucket == "n=4"]
    assert bucket.captures == before


def test_inputs_in_place_are_not_copied(node, monkeypatch):
    model = node.load("linear", clone_input=False, enable_output_clone=True)
    x = torch.randn(4, 4)
    model(x)
    monkeypatch.setattr(torch, "_foreach_copy_", lambda *_: pytest.fail("copied"))
    model(x)
    with pytest.raises(pytest.fail.Exception):
        model(torch.randn(4, 4))


def test_first_addresses_and_others_in_turn(node, original):
    model, reference = node.load("linear", clone_input=False, enable_output_clone=True), original("linear")
    first, second, gaps = torch.randn(4, 4), torch.randn(4, 4), torch.randn(4, 4).t()
    for x in (first, second, first, gaps, first, second, second, gaps):
        torch.testing.assert_close(model(x), reference(x), atol=1e-6, rtol=1e-5)
    turned = first.t()  # the same addresses and shape, other strides
    torch.testing.assert_close(model(turned), reference(turned), atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(model(first), reference(first), atol=1e-6, rtol=1e-5)


def test_outputs_that_are_inputs_are_those_of_the_call(node, original):
    model = node.load("views", clone_input=False)
    x = torch.randn(3, 4)
    for _ in range(2):
        got = model(x)
        assert got[0].data_ptr() == x.data_ptr()
        for mine, theirs in zip(got, original("views")(x), strict=True):
            torch.testing.assert_close(mine, theirs)
    other = torch.randn(3, 4)
    torch.testing.assert_close(model(other)[2], other.t())


def test_inputs_with_gaps_are_copied_even_then(node, original):
    model = node.load("linear", clone_input=False)
    x = torch.randn(4, 4).t()
    torch.testing.assert_close(model(x), original("linear")(x))


def test_an_artifact_of_the_first_format_copies_its_inputs(node):
    path = ROOT / "tests" / "artifacts" / "format1" / "encoder"
    with torch.device("cpu"):
        model = aotair.load(path, device="cpu", clone_input=False, enable_output_clone=True)
        ids, mask = torch.ones(1, 4, dtype=torch.int64), torch.ones(1, 4, dtype=torch.int64)
        want = model(ids, mask)
        assert torch.equal(model(ids, mask), want)
        assert not torch.equal(model(ids * 2, mask), want)


# ---- pools ---------------------------------------------------------------------------------------------------------


def test_models_in_one_pool_share_its_memory(node, original):
    pool = aotair.graph_pool(node.kind)
    names = ("encoder", "linear", "structured")
    models = {name: node.load(name, pool=pool, enable_output_clone=True) for name in names}
    assert pool.arena.nbytes == max(model.program.arena for model in models.values())
    x, y = torch.randn(2, 4), torch.randn(2, 2, 3)
    ids = torch.ones(2, 5, dtype=torch.int64)
    for _ in range(2):
        torch.testing.assert_close(models["linear"](x), original("linear")(x))
        torch.testing.assert_close(models["structured"](y)["a"], y * 2)
        torch.testing.assert_close(models["encoder"](ids, ids), original("encoder")(ids, ids), atol=1e-5, rtol=1e-4)
    models["linear"].close()
    torch.testing.assert_close(models["structured"](y)["a"], y * 2)


def test_a_pool_grows_and_its_graphs_move(node, original):
    pool = aotair.graph_pool(node.kind)
    small = node.load("linear", pool=pool, enable_output_clone=True)
    cache_model = node.load("cache", pool=pool, enable_output_clone=True)
    x, cache = torch.randn(3, 4), torch.zeros(2, 8, 3)
    want = small(x)
    cache_call(cache_model, cache, 1.0, 0)
    before = pool.arena.nbytes
    large = node.load("encoder", pool=pool)
    assert pool.arena.nbytes == large.program.arena > before
    torch.testing.assert_close(small(x), want)
    assert cache_call(cache_model, cache, 2.0, 1)[0, 0] == 3
    reasons = {r.reason for model in (small, cache_model) for r in model.stats().recaptures}
    assert reasons == {"the pool grew"}
    assert small.stats().recaptures[0].times == 1


def test_a_pool_of_a_known_size_need_not_grow(node):
    with node.load("encoder", capture="lazy") as model:
        nbytes = model.program.arena
    pool = aotair.graph_pool(node.kind, nbytes)
    small = node.load("linear", pool=pool)
    node.load("encoder", pool=pool)
    assert not small.stats().recaptures


def test_outputs_in_a_shared_pool_are_overwritten_by_any_of_its_models(node):
    pool = aotair.graph_pool(node.kind)
    one, two = node.load("linear", pool=pool), node.load("linear", pool=pool)
    kept = one(torch.ones(4, 4))
    before = kept.clone()
    two(torch.zeros(4, 4))
    assert not torch.equal(kept, before)


def test_models_with_memory_apart_in_a_shared_pool_keep_their_outputs(node, original):
    """As in TorchAir, where a pool of one's own switches the reuse of memory off."""
    pool = aotair.graph_pool(node.kind)
    one = node.load("linear", pool=pool, disable_mempool_reuse_in_same_fx=True)
    two, three = node.load("linear", pool=pool), node.load("structured", pool=pool)
    x = torch.randn(4, 4)
    small, large = one(x[:1]), one(x)
    for _ in range(2):
        two(torch.zeros(4, 4))
        three(torch.zeros(2, 2, 3))
    torch.testing.assert_close(small, original("linear")(x[:1]))
    torch.testing.assert_close(large, original("linear")(x))
    before = pool.arena.nbytes
    assert len(one.memory().pools) == 3 and one.memory().arena_allocated == one.promise.items[2].nbytes
    one.close()
    assert pool.arena.nbytes == before
    torch.testing.assert_close(two(x), original("linear")(x))


def test_a_pool_on_another_device_is_refused(node):
    pool = aotair.graph_pool(node.kind)
    with pytest.raises(DeviceError, match=r"the pool is on another device|unknown device"):
        aotair.load(node.path("linear"), device="cpu" if node.has_graphs else "cpu:0", pool=pool)


def test_buckets_with_memory_of_their_own_keep_their_outputs(node):
    model = node.load("linear", disable_mempool_reuse_in_same_fx=True)
    assert len(model.memory().pools) == 3
    small, large = model(torch.ones(1, 4)), model(torch.ones(16, 4))
    before = small.clone()
    large2 = model(torch.zeros(16, 4))
    assert torch.equal(small, before) and torch.equal(large, large2)
    counter = node.load("counter", disable_mempool_reuse_in_same_fx=True, enable_output_clone=True)
    assert [counter(torch.ones(n, 4))[0, 0].item() for n in (2, 4, 2)] == [1, 2, 3]


# ---- budgets -------------------------------------------------------------------------------------------------------


def test_a_budget_is_checked_before_anything_is_captured(node):
    gc.collect()
    path, usage = node.path("encoder"), open_device(node.kind).usage
    for limits in (
        aotair.Limits(captures=usage.captures + 5),
        aotair.Limits(streams=usage.streams + 5),
    ):
        before = node.settle()
        with pytest.raises(BudgetError, match=r"[67] wanted") as caught:
            aotair.load(path, device=node.kind, limits=limits)
        assert "capture fewer buckets" in str(caught.value)
        assert node.settle() == before
    one = node.load("encoder", capture="lazy", limits=aotair.Limits(captures=usage.captures + 2))
    one(torch.ones(1, 4, dtype=torch.int64), torch.ones(1, 4, dtype=torch.int64))
    if not node.has_graphs:  # elsewhere the pool's own graph was the other one
        one(torch.ones(1, 8, dtype=torch.int64), torch.ones(1, 8, dtype=torch.int64))
    with pytest.raises(BudgetError, match="1 wanted"):
        one(torch.ones(4, 16, dtype=torch.int64), torch.ones(4, 16, dtype=torch.int64))
    one(torch.ones(1, 4, dtype=torch.int64), torch.ones(1, 4, dtype=torch.int64))


def test_kept_graphs_must_be_a_number_of_graphs(node):
    with pytest.raises(ArgumentError, match="kept_graphs"):
        node.load("cache", kept_graphs=0)


# ---- giving back ---------------------------------------------------------------------------------------------------


def test_loading_and_closing_fifty_times_leaves_the_allocator_where_it_was(node):
    ids = torch.ones(4, 16, dtype=torch.int64)

    def once() -> None:
        with node.load("encoder") as model:
            model(ids, ids)

    once()
    gc.collect()
    before, graphs = node.settle(), open_device(node.kind).usage
    for _ in range(50):
        once()
    assert node.settle() == before
    assert open_device(node.kind).usage == graphs


def test_the_garbage_collector_gives_all_back_too(node):
    gc.collect()
    node.load("encoder").close()
    node.trim()
    before, graphs = node.settle(), open_device(node.kind).usage
    for _ in range(3):
        model = node.load("encoder", clone_input=False)
        model(torch.ones(4, 16, dtype=torch.int64), torch.ones(4, 16, dtype=torch.int64))
        cache = torch.zeros(2, 8, 3)
        cache_call(node.load("cache"), cache, 1.0, 0)
        del model, cache
        gc.collect()
    node.trim()
    assert node.settle() == before
    assert open_device(node.kind).usage == graphs


# ---- threads -------------------------------------------------------------------------------------------------------


def test_threads_over_two_models_of_one_pool(node, original):
    pool = aotair.graph_pool(node.kind)
    linear = node.load("linear", pool=pool, enable_output_clone=True)
    structured = node.load("structured", pool=pool, enable_output_clone=True)
    xs = [torch.randn(n, 4) for n in (1, 3, 16)]
    wants = [original("linear")(x) for x in xs]
    ys = [torch.randn(n, 2, 3) for n in (1, 4)]
    wrong: list[object] = []

    def work(turn: int) -> None:
        with node.stream():
            for i in range(60):
                x, want, y = xs[(i + turn) % 3], wants[(i + turn) % 3], ys[i % 2]
                if not torch.allclose(linear(x), want, atol=1e-6):
                    wrong.append(x)
                if not torch.equal(structured(y)["a"], y * 2):
                    wrong.append(y)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert linear.stats().calls == structured.stats().calls == 240
