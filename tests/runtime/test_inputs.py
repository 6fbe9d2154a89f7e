"""Inputs without a copy: the buffers that a model hands out, and what a call makes of them."""

import pytest
import torch

import aotair
from aotair_runtime.errors import ClosedError


def ids_and_mask(batch: int, seq: int) -> tuple[torch.Tensor, torch.Tensor]:
    ids = (torch.arange(batch * seq).view(batch, seq) * 7) % 50
    return ids, torch.ones_like(ids)


def copies(model) -> tuple[int, ...]:
    return model.entry_points["forward"]._plans.last.plan.copied


def test_what_is_written_into_the_buffers_is_not_copied(node, original):
    model, reference = node.load("encoder", enable_output_clone=True), original("encoder")
    for batch, seq in ((4, 16), (1, 8), (4, 16)):
        given = ids_and_mask(batch, seq)
        want = reference(*given)
        torch.testing.assert_close(model(*given), want, atol=1e-5, rtol=1e-4)
        assert copies(model) == (0, 1)
        buffers = model.inputs[f"batch={batch}, seq={seq}"]
        for buffer, value in zip((buffers["ids"], buffers["mask"]), given):
            buffer.copy_(value)
        torch.testing.assert_close(model(**buffers), want, atol=1e-5, rtol=1e-4)
        assert copies(model) == ()
        buffers["mask"].copy_(given[1])
        torch.testing.assert_close(model(given[0], buffers["mask"]), want, atol=1e-5, rtol=1e-4)
        assert copies(model) == (0,)
        torch.testing.assert_close(model(*given), want, atol=1e-5, rtol=1e-4)
        assert copies(model) == (0, 1)


def test_part_of_a_buffer_is_padded_in_its_place(node, original):
    model = node.load("encoder", enable_output_clone=True)
    given = ids_and_mask(3, 16)
    buffers = model.inputs["batch=4, seq=16"]
    parts = [buffers[name][:3] for name in ("ids", "mask")]
    for part, value in zip(parts, given):
        part.copy_(value)
    torch.testing.assert_close(model(*parts), original("encoder")(*given), atol=1e-5, rtol=1e-4)
    assert copies(model) == ()


def test_a_tensor_at_the_buffers_address_with_other_strides_is_copied(node, original):
    model = node.load("encoder", enable_output_clone=True)
    whole = model.inputs["batch=4, seq=16"]["ids"]
    ids, mask = ids_and_mask(4, 8)
    narrow = whole[:, :8]
    narrow.copy_(ids)
    torch.testing.assert_close(model(narrow, mask), original("encoder")(ids, mask), atol=1e-5, rtol=1e-4)
    assert copies(model) == (0, 1)


def test_a_tensor_that_lies_in_the_buffer_by_chance_is_copied(node, original):
    """As an output of an earlier call may: the plan of its shapes serves other tensors afterwards."""
    model = node.load("encoder", enable_output_clone=True)
    given = ids_and_mask(4, 16)
    number = [bucket.sizes for bucket in model.program.entry_points[0].buckets].index((4, 16))
    found = model.entry_points["forward"].graphs.input_buffers(number)
    for buffer, value in zip(found.values(), given):
        buffer.copy_(value)
    want = original("encoder")(*given)
    torch.testing.assert_close(model(*found.values()), want, atol=1e-5, rtol=1e-4)
    assert copies(model) == (0, 1)
    other = (given[0].flip(0).contiguous(), given[1])
    torch.testing.assert_close(model(*other), original("encoder")(*other), atol=1e-5, rtol=1e-4)


def test_the_buffer_of_one_input_passed_for_another_is_copied(node, original):
    """Two addresses that were handed out, with equal shapes and strides."""
    model = node.load("encoder", enable_output_clone=True)
    buffers = model.inputs["batch=4, seq=16"]
    ids, mask = ids_and_mask(4, 16)
    for _ in range(2):
        buffers["ids"].copy_(ids)
        buffers["mask"].copy_(mask)
        torch.testing.assert_close(model(**buffers), original("encoder")(ids, mask), atol=1e-5, rtol=1e-4)
        assert copies(model) == ()
        buffers["mask"].copy_(mask)
        got = model(buffers["mask"], mask)
        assert copies(model) == (0, 1)
        torch.testing.assert_close(got, original("encoder")(mask, mask), atol=1e-5, rtol=1e-4)


def test_all_buckets_share_their_buffers_where_it_costs_nothing(node):
    model = node.load("encoder")
    addresses = {name: {b[name].data_ptr() for b in model.inputs.values()} for name in ("ids", "mask")}
    assert all(len(found) == 1 for found in addresses.values())
    report = model.memory()
    assert all(bucket.promised == bucket.lower_bound for bucket in report.buckets)


def test_buffers_of_a_pool_that_grew_are_plain_tensors(node, original):
    pool = aotair.graph_pool(node.kind)
    model = node.load("linear", pool=pool, enable_output_clone=True)
    old = model.inputs["n=4"]["x"]
    x = torch.randn(4, 4)
    old.copy_(x)
    node.load("encoder", pool=pool)
    torch.testing.assert_close(model(old), original("linear")(x))
    assert copies(model) == (0,)


def test_inputs_of_mutated_and_closed_models(node):
    model = node.load("cache")
    buffers = model.inputs["n=2"]
    assert "cache" not in buffers and set(buffers) == {"x", "position"}
    model.close()
    with pytest.raises(ClosedError):
        model.inputs  # noqa: B018
