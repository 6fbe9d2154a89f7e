"""What a call does: buckets, padding, structures, state, mutated inputs, and the semantics of static memory."""

import gc
import math
import threading
import warnings
import weakref

import pytest
import torch

import aotair
from aotair_runtime.errors import (
    AotairError,
    ArgumentError,
    CaptureError,
    ClosedError,
    DeviceError,
    DTypeError,
    OutputHeldWarning,
    ShapeError,
)


def ids_and_mask(batch: int, seq: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator("cpu").manual_seed(batch * 100 + seq)
    ids = torch.randint(0, 50, (batch, seq), generator=generator, device="cpu")
    mask = torch.arange(seq) < 1 + torch.arange(batch)[:, None] % seq
    return ids.to(mask.device), mask.long()


@pytest.mark.parametrize("batch", [1, 2, 3, 4])
@pytest.mark.parametrize("seq", [1, 3, 4, 5, 8, 9, 16])
def test_every_size_up_to_the_largest_bucket_answers_like_the_original(node, original, batch: int, seq: int):
    ids, mask = ids_and_mask(batch, seq)
    got = node.load("encoder")(ids, mask)
    assert got.shape == (batch, seq, 16)
    torch.testing.assert_close(got, original("encoder")(ids, mask), atol=1e-5, rtol=1e-4)


def test_sizes_in_any_order_do_not_disturb_one_another(node, original):
    """Pad regions and pool memory hold what other calls left there."""
    model, reference = node.load("encoder", enable_output_clone=True), original("encoder")
    sizes = [(b, s) for b in (4, 1, 3, 2) for s in (16, 2, 9, 4, 7)]
    for _ in range(3):
        for batch, seq in sizes:
            ids, mask = ids_and_mask(batch, seq)
            torch.testing.assert_close(model(ids, mask), reference(ids, mask), atol=1e-5, rtol=1e-4)


def test_arguments_by_position_by_name_and_packed(node):
    model = node.load("encoder", enable_output_clone=True)
    ids, mask = ids_and_mask(2, 5)
    want = model(ids, mask)
    for got in (
        model(ids, mask=mask),
        model(mask=mask, ids=ids),
        model((ids, mask)),
        model([ids, mask]),
        model({"mask": mask, "ids": ids}),
        model.forward(ids, mask),
    ):
        assert torch.equal(got, want)


def test_other_strides_and_gradients_of_inputs_do_not_matter(node, original):
    model = node.load("linear")
    x = torch.randn(4, 4).t().requires_grad_()
    got = model(x)
    torch.testing.assert_close(got, original("linear")(x))
    assert not got.requires_grad


@pytest.mark.parametrize(
    ("arguments", "error", "says"),
    [
        ((torch.zeros(1, 4),), DTypeError, "expected: torch.int64"),
        ((torch.zeros(5, 4, dtype=torch.int64),), ShapeError, "no bucket holds batch=5, seq=4"),
        ((torch.zeros(1, 17, dtype=torch.int64),), ShapeError, "batch=4, seq=16"),
        ((torch.zeros(4, dtype=torch.int64),), ShapeError, "expected: shape [batch, seq]"),
        ((torch.zeros(1, 4, dtype=torch.int64, device="meta"),), DeviceError, "lies on another device"),
        (([1, 2],), ArgumentError, "a list for 'ids'"),
    ],
)
def test_bad_inputs_are_refused_and_change_nothing(node, arguments, error, says):
    model = node.load("encoder")
    arguments = [a.to(node.device) if error is ShapeError else a for a in arguments]
    good = ids_and_mask(1, 4)
    kept = model(*good)
    before, calls = kept.clone(), model.stats().calls
    with pytest.raises(error) as caught:
        model(arguments[0], good[1] if error is not ShapeError else arguments[0].clone())
    assert says in str(caught.value)
    assert torch.equal(kept, before)
    assert model.stats().calls == calls


def test_bad_arguments_are_refused(node):
    model = node.load("encoder")
    ids, mask = ids_and_mask(1, 4)
    for call, says in [
        (lambda: model(ids), "got: no 'mask'"),
        (lambda: model(), "got: no 'ids', 'mask'"),
        (lambda: model(ids, mask, ids), "3 positional arguments"),
        (lambda: model(ids, mask, extra=ids), "unknown argument 'extra'"),
        (lambda: model(ids, mask, ids=ids), "the argument 'ids' twice"),
        (lambda: model({"ids": ids}), "no 'mask'"),
        (lambda: model(ids, None), "a NoneType for 'mask'"),
        (lambda: model(ids, mask[:, :2]), "the inputs disagree about the dimension 'seq'"),
    ]:
        with pytest.raises((ArgumentError, ShapeError)) as caught:
            call()
        assert says in str(caught.value)


@pytest.mark.parametrize("clone_input", [True, False])
def test_a_sparse_input_is_refused_whenever_it_comes(node, clone_input):
    model, x = node.load("linear", clone_input=clone_input, enable_output_clone=True), torch.ones(4, 4)
    for _ in range(2):
        with torch.device("cpu"):
            sparse = x.cpu().to_sparse()
        with pytest.raises(ArgumentError if not node.has_graphs else AotairError, match=r"torch\.sparse_coo|lies on"):
            model(sparse)
        want = model(x)
    assert torch.equal(model(x), want)


def test_a_negative_view_is_what_it_stands_for(node, original):
    for clone_input in (True, False):
        model = node.load("linear", clone_input=clone_input, enable_output_clone=True)
        x = torch.ones(4, 4)
        given = [x, torch._neg_view(x), x, torch._neg_view(model.inputs["n=4"]["x"].copy_(x))]
        for tensor in given:
            want = original("linear")(tensor.resolve_neg().clone())
            torch.testing.assert_close(model(tensor), want)


def test_outputs_are_overwritten_by_the_next_replay_and_that_is_said_once(node):
    model = node.load("linear")
    first = model(torch.ones(1, 4))
    before = first.clone()
    second = model(torch.zeros(1, 4))
    assert torch.equal(first, second) and not torch.equal(first, before)
    with pytest.warns(OutputHeldWarning, match="enable_output_clone") as caught:
        model(torch.ones(1, 4))
    assert caught[0].filename == __file__, "the warning points at the caller's line"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model(torch.ones(1, 4))


def test_no_warning_where_a_hold_does_no_harm(node):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = node.load("linear")
        for _ in range(3):
            model(torch.ones(1, 4)).sum()
        for _ in range(4):
            got = model(torch.ones(1, 4))
        assert got.shape == (1, 3)
        cloned = node.load("linear", enable_output_clone=True)
        held = [cloned(torch.full((1, 4), float(i))) for i in range(3)]
        assert not torch.equal(held[0], held[1])


def test_structures_come_back(node, original):
    model = node.load("structured")
    x = torch.randn(3, 2, 3)
    got, want = model(x), original("structured")(x)
    assert list(got) == list(want) == ["a", "rest", "none", "again"]
    assert isinstance(got["rest"], tuple) and isinstance(got["rest"][1], list) and got["none"] is None
    torch.testing.assert_close(got["a"], want["a"])
    torch.testing.assert_close(got["again"], want["again"])
    torch.testing.assert_close(got["rest"][1][0], want["rest"][1][0])


def test_views_constants_and_many_dtypes(node, original):
    x = torch.randn(3, 4)
    got, want = node.load("views")(x), original("views")(x)
    for mine, theirs in zip(got, want, strict=True):
        assert mine.dtype == theirs.dtype
        torch.testing.assert_close(mine, theirs)


def test_no_caller_gets_hold_of_a_weight(node):
    model = node.load("views")
    x = torch.randn(3, 4)
    table = model(x)[1]
    before = table.clone()
    table.zero_()
    assert torch.equal(model(x)[1], before)


def test_a_dimension_that_is_an_expression_is_cut(node, original):
    model = node.load("halves")
    for size in (3, 9, 12, 16):
        x = torch.randn(2, 2, size)
        torch.testing.assert_close(model(x), original("halves")(x))


def test_state_belongs_to_the_model_and_all_buckets_share_it(node):
    model = node.load("counter", enable_output_clone=True)
    x = torch.ones(2, 4)
    assert model(x)[0, 0] == 1
    assert model(torch.ones(4, 4))[0, 0] == 2
    assert model.state["count"] == 2
    model.state["count"].fill_(10)
    assert model(x)[0, 0] == 11
    model.reset_state()
    assert model(x)[0, 0] == 1
    assert node.load("counter")(x)[0, 0] == 1


def test_states_that_exchange_their_values(node, original):
    model, reference = node.load("swap", enable_output_clone=True), original("swap")
    for _ in range(3):
        x = torch.randn(2)
        torch.testing.assert_close(model(x), reference(x))
    torch.testing.assert_close(model.state["left"], reference.left)


def test_a_mutated_input_is_used_in_place_wherever_it_lies(node):
    model = node.load("cache", enable_output_clone=True)
    caches = [torch.zeros(2, 8, 3), torch.zeros(2, 8, 3)]
    x = torch.ones(2, 1, 3)
    for position in range(4):
        for number, cache in enumerate(caches):
            got = model(x * (number + 1), cache, torch.tensor([position]))
            assert torch.equal(got, cache.sum(1))
            assert cache[:, : position + 1].eq(number + 1).all() and cache[:, position + 1 :].eq(0).all()


def test_a_mutated_input_that_lies_otherwise_is_refused(node):
    model = node.load("cache")
    cache = torch.zeros(2, 3, 8).transpose(1, 2)
    with pytest.raises(ShapeError, match="used in place"):
        model(torch.ones(2, 1, 3), cache, torch.tensor([0]))
    assert not cache.any()
    with pytest.raises(ShapeError, match="no bucket holds n=3"):
        model(torch.ones(3, 1, 3), torch.zeros(3, 8, 3), torch.tensor([0]))


def test_an_index_out_of_range_names_the_instruction_and_the_model_goes_on(built):
    """On the CPU: other devices do not say what an index out of range does."""
    model = aotair.load(built("linear"), enable_output_clone=True)
    encoder = aotair.load(built("encoder"), enable_output_clone=True)
    ids, mask = ids_and_mask(1, 4)
    want = encoder(ids, mask)
    with pytest.raises(CaptureError, match=r"encoder\.forward, bucket batch=1, seq=4: instruction 0 \(index_select"):
        encoder(ids + 1000, mask)
    assert torch.equal(encoder(ids, mask), want)
    model(torch.ones(1, 4))


def test_capture_now_later_or_some(node):
    assert node.load("encoder").stats().captures == 6
    assert node.load("encoder", capture="lazy").stats().captures == 0
    some = node.load("encoder", capture=["batch=1, seq=4", "batch=4, seq=8"])
    assert some.stats().captures == 2
    some(*ids_and_mask(4, 16))
    assert some.stats().captures == 3
    with pytest.raises(ArgumentError, match="unknown buckets"):
        node.load("encoder", capture=["batch=2, seq=4"])


def test_closing(node):
    with node.load("linear") as model:
        kept = model(torch.ones(1, 4))
    value = kept.clone()
    with pytest.raises(ClosedError):
        model(torch.ones(1, 4))
    assert torch.equal(kept, value)


def test_loading_and_closing_gives_the_memory_back(node):
    model = node.load("encoder")
    model(*ids_and_mask(1, 4))
    arena = weakref.ref(model._pools[0].arena)
    del model
    gc.collect()
    assert arena() is None


def test_an_entry_point_keeps_what_it_needs_of_its_model_and_gives_it_back(node, original):
    step = node.load("encoder").forward
    given = ids_and_mask(1, 4)
    assert torch.allclose(step(*given), original("encoder")(*given), atol=1e-5)
    arena = weakref.ref(step.graphs.pools[0].arena)
    gc.disable()  # at once, not when cycles are looked for
    try:
        del step
        assert arena() is None
    finally:
        gc.enable()


def test_closing_a_model_closes_the_entry_points_that_somebody_holds(node):
    model = node.load("encoder")
    step = model.forward
    model.close()
    with pytest.raises(ClosedError):
        step(*ids_and_mask(1, 4))


def test_many_threads_never_mix_results(node, original):
    model, reference = node.load("encoder", enable_output_clone=True), original("encoder")
    cases = [ids_and_mask(b, s) for b in (1, 2, 4) for s in (3, 4, 8, 13, 16)]
    wants = [reference(*case) for case in cases]
    wrong: list[int] = []

    def work(offset: int) -> None:
        for turn in range(100):
            number = (turn * 7 + offset) % len(cases)
            if not torch.allclose(model(*cases[number]), wants[number], atol=1e-5, rtol=1e-4):
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert model.stats().calls == 400


def test_what_a_model_tells_about_itself(node):
    model = node.load("encoder")
    assert model.buckets == {
        "forward": tuple(f"batch={b}, seq={s}" for b in (1, 4) for s in (4, 8, 16)),
    }
    model(*ids_and_mask(3, 4))
    stats = model.stats()
    assert stats.calls == 1
    (used,) = [b for b in stats.buckets if b.calls]
    assert used.bucket == "batch=4, seq=4" and used.padding == pytest.approx(1 / 4)
    memory = model.memory()
    assert memory.arena == memory.arena_allocated == max(b.promised for b in memory.buckets)
    weights = sum(math.prod(c.shape) * getattr(torch, c.dtype).itemsize for c in model.program.constants)
    assert memory.weights == weights
    assert "arena" in str(memory) and "lower bound" in str(memory)
    assert "encoder" in repr(model)
    with pytest.raises(AttributeError, match="prefill"):
        model.prefill  # noqa: B018
