"""Ops with several results of which some are new values of arguments: their in-place forms, and who uses what."""

import aotairtest
import pytest
import torch
from graphs import assert_same_numbers, reasons, targets, trace

from aotair.passes import reinplace_inplaceable_ops, reinplace_input_mutated_ops
from aotair.passes.multi_output import FORMS

ops = aotairtest.ops
forms = aotairtest.forms


def test_the_table_has_torchairs_three():
    assert {name.partition("::")[2]: form.mutated for name, form in FORMS.items() if name.startswith("npu::")} == {
        "npu_kv_rmsnorm_rope_cache_v2_functional": (5, 6),
        "npu_mla_prolog_v3_functional": (9, 10),
        "npu_add_rms_norm_v2_functional": (0, 1),
    }


X, K, V = torch.arange(6.0).view(2, 3), torch.ones(2, 3), torch.full((2, 3), 2.0)


def _caches(x, k, v):
    first, second, keys, values = ops.rope_functional(x, k, v)
    seen = keys.sum() + values.sum()
    torch.ops.aten.copy_.default(k, keys)
    torch.ops.aten.copy_.default(v, values)
    return first, second, seen


def test_caches_are_written_and_results_renumbered():
    module = assert_same_numbers(reinplace_input_mutated_ops, _caches, X, K, V)
    assert "aotairtest.rope.default" in targets(module)
    assert "aten.copy_.default" not in targets(module)


def _caches_in_another_shape(x, k, v):
    first, second, keys, values = ops.rope_functional(x, k.view(2, 3), v.unsqueeze(0))
    seen = keys.view(6).sum()
    torch.ops.aten.copy_.default(k, keys.view(6))
    torch.ops.aten.copy_.default(v, values.squeeze(0))
    return first, second, seen


def test_caches_that_the_op_sees_in_another_shape():
    module = assert_same_numbers(reinplace_input_mutated_ops, _caches_in_another_shape, X, K.reshape(6), V)
    assert "aotairtest.rope.default" in targets(module)
    assert "aten.copy_.default" not in targets(module)


def _single(x1, x2):
    rstd, first, second = ops.norm_functional(x1, x2, 0.5)
    twice = first * 2
    torch.ops.aten.copy_.default(x1, first)
    torch.ops.aten.copy_.default(x2, second)
    return rstd, twice


def test_an_inplace_form_with_a_single_result():
    module = assert_same_numbers(reinplace_input_mutated_ops, _single, X, K)
    assert "aotairtest.norm.default" in targets(module)
    assert "<built-in function getitem>" not in targets(module)


def test_intermediates_of_several_results():
    def function(x, y):
        rstd, first, second = ops.norm_functional(x + 1, y * 2, 0.5)
        return rstd, first.softmax(-1), second.sum(0)

    module = assert_same_numbers(reinplace_inplaceable_ops, function, X, K)
    assert "aotairtest.norm.default" in targets(module)


def _not_all_given_back(x, k, v):
    first, second, keys, values = ops.rope_functional(x, k, v)
    torch.ops.aten.copy_.default(k, keys)
    return first, second, values * 1


def _old_value_read(x, k, v):
    _, _, keys, values = ops.rope_functional(x, k, v)
    old = k.sum()
    torch.ops.aten.copy_.default(k, keys)
    torch.ops.aten.copy_.default(v, values)
    return (old,)


def _one_cache_for_both(x, k, v):
    _, _, keys, values = ops.rope_functional(x, k, k)
    torch.ops.aten.copy_.default(k, keys)
    return (values * 1,)


def _returned(x, k, v):
    _, _, keys, values = ops.rope_functional(x, k, v)
    torch.ops.aten.copy_.default(k, keys)
    torch.ops.aten.copy_.default(v, values)
    return (keys,)


def _square(turned):
    def function(x, k, v):
        first, second, keys, values = ops.rope_functional(x, k.t(), v)
        torch.ops.aten.copy_.default(k, keys.t() if turned else keys)
        torch.ops.aten.copy_.default(v, values)
        return first, second

    return function


@pytest.mark.parametrize("turned", [True, False])
def test_caches_that_the_op_sees_turned_are_turned_back_or_stay(turned: bool, caplog):
    square = torch.arange(9.0).view(3, 3), torch.arange(9.0, 18.0).view(3, 3), torch.ones(3, 3)
    assert_same_numbers(reinplace_input_mutated_ops, _square(turned), *square)
    module = trace(_square(turned), *square)
    said = reasons(caplog, reinplace_input_mutated_ops, module)
    assert ("is not copied back into an input" in said) is not turned


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (_not_all_given_back, "is not copied back into an input"),
        (_old_value_read, "uses the old value of"),
        (_one_cache_for_both, "is not copied back|shares the memory"),
        (_returned, "is returned too"),
    ],
    ids=lambda value: value.__name__.strip("_") if callable(value) else "",
)
def test_several_results_decline(function, reason, caplog):
    module = trace(function, X, K, V)
    before = targets(module)
    said = reasons(caplog, reinplace_input_mutated_ops, module)
    assert "reinplace failed" in said and any(part in said for part in reason.split("|")), said
    assert targets(module) == before
    assert_same_numbers(reinplace_input_mutated_ops, function, X, K, V)
