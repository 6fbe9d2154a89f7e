"""`remove_cat_ops`: producers write into slices of the result, where that is right, and numbers stay what they were."""

import pytest
import torch
from cases import recipe
from graphs import assert_same_numbers, reasons, run_pass, targets, trace

import aotair
from aotair.passes import remove_cat_ops, streams

aten = torch.ops.aten
X, Y = torch.arange(12.0).view(3, 4) / 5, torch.arange(8.0).view(2, 4) / 3


def cats(module) -> int:
    return targets(module).count("aten.cat.default")


@pytest.mark.parametrize(
    ("function", "written"),
    [
        (lambda x, y: (torch.cat([x.tanh(), y.exp()]),), 2),
        (lambda x, y: (torch.cat([x.tanh(), y]),), 1),  # the input is copied
        (lambda x, y: (torch.cat([y.exp(), x.tanh(), y.exp()]).sum(0),), 3),
        (lambda x, y: (torch.cat([x.tanh().relu_(), y.exp()]) * 2,), 2),  # written again, before the cat
        (lambda x, y: (torch.cat([t := x.tanh(), t]),), 1),  # one of the two
        (lambda x, y: (torch.cat([x[:1].tanh(), y[:1].exp()], 1),), 2),  # along the second of [1, 4]
        (lambda x, y: (torch.cat([x.tanh(), y.exp()]).relu_(),), 2),
        (lambda x, y: (torch.cat([x.tanh().split(2)[0], y.exp()]),), 1),  # a part of a list of views is copied
        (lambda x, y: (torch.cat([torch.cat([x.tanh(), y.exp()]), y.sin()]),), 3),  # a cat of a cat
    ],
)
def test_parts_are_written_where_they_belong(function, written):
    module = assert_same_numbers(remove_cat_ops, function, X, Y)
    assert cats(module) == 0
    assert sum(name.endswith("out") for name in targets(module)) == written


def _used_after(x, y):
    t = x.tanh()
    return torch.cat([t, y.abs()]) * 2, t + 1


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (lambda x, y: (torch.cat([x, y]),), "it is an input"),
        (lambda x, y: (torch.cat([x.tanh()[:1], x.tanh()[1:]]),), "it is a view of another tensor"),
        (lambda x, y: (torch.cat([x.tanh(), x.exp()], 1),), "do not lie in one piece"),
        (lambda x, y: (torch.cat([x.tanh().double(), x.exp()]),), "other dtypes"),
        (lambda x, y: (torch.cat([x.tanh()]),), "it has one part"),
        (lambda x, y: (torch.cat([x.t().tanh(), x.t().exp()]),), "not contiguous"),
        (lambda x, y: (torch.cat([x.topk(1)[0], x.topk(1)[0]]),), "one of several results"),
    ],
)
def test_cats_that_stay(function, reason, caplog):
    module = trace(function, X, Y)
    before = targets(module)
    said = reasons(caplog, remove_cat_ops, module)
    assert any(part in said for part in reason.split("|")), said
    assert targets(module) == before
    assert_same_numbers(remove_cat_ops, function, X, Y)


def test_a_part_that_is_used_later_is_copied(caplog):
    module = assert_same_numbers(remove_cat_ops, _used_after, X, Y)
    assert cats(module) == 0
    assert "it is used after the cat too" in reasons(caplog, remove_cat_ops, trace(_used_after, X, Y))


def test_an_op_that_the_device_cannot_let_write_is_copied():
    function = lambda x, y: (torch.cat([x.scatter_add(0, torch.zeros(1, 4, dtype=torch.int64), y), y.exp()]),)  # noqa: E731
    for target, written in (("cpu", 2), ("npu", 1)):
        module = trace(function, X, Y)
        run_pass(remove_cat_ops, module, target=target)
        assert sum(name.endswith("out") for name in targets(module)) == written


def test_the_arena_is_smaller_and_the_answer_the_same(tmp_path):
    made = recipe("Joined", {"x": {"shape": ["n", 64], "dtype": "float32"}}, {"n": [4, 8]})
    with_it = aotair.load(aotair.build(made, tmp_path / "a.aotair"), enable_output_clone=True)
    off = made | {"config": {"debug": {"aclgraph": {"remove_cat_ops": False}}}}
    without = aotair.load(aotair.build(off, tmp_path / "b.aotair"), enable_output_clone=True)
    x = torch.randn(8, 64)
    torch.testing.assert_close(with_it(x), without(x))
    assert with_it.program.arena < without.program.arena
    assert not any("cat" in op.name for op in with_it.program.ops)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.int64])
@pytest.mark.parametrize("shape", [(1, 1), (3, 4), (0, 4)])
def test_dtypes_one_number_and_none(dtype, shape):
    x = torch.ones(shape).to(dtype)
    module = assert_same_numbers(remove_cat_ops, lambda x: (torch.cat([x.neg(), x.abs(), x]),), x)
    assert cats(module) == 0 or 0 in shape


@pytest.mark.parametrize("dim", [0, -2, 1, -1])
def test_the_dimension_may_be_counted_from_the_end(dim):
    function = lambda x: (torch.cat([x.tanh(), x.exp()], dim),)  # noqa: E731
    rows = assert_same_numbers(remove_cat_ops, function, X)
    assert cats(rows) == (dim in (1, -1)), "columns of several rows do not lie in one piece"
    row = assert_same_numbers(remove_cat_ops, function, X[:1])
    assert cats(row) == 0


def _not_in_one_piece(x, y):
    return (torch.cat([x.t().tanh().t(), y.exp()]) * 1,)


def _written_in_between(x, y):
    one = x.tanh()
    seen = one * 2
    one.add_(1)
    return torch.cat([one, y.exp()]), seen


def _written_after(x, y):
    whole = torch.cat([x.tanh(), y.exp()])
    whole[:1].mul_(3)
    return whole, whole.sum(0)


def _two_cats_of_one_part(x, y):
    part = x.tanh()
    return torch.cat([part, y]), torch.cat([y, part])


@pytest.mark.parametrize("function", [_not_in_one_piece, _written_in_between, _written_after, _two_cats_of_one_part])
def test_writes_shared_parts_and_other_strides_keep_their_numbers(function):
    assert_same_numbers(remove_cat_ops, function, X, Y)


def test_a_part_that_lies_otherwise_is_copied(caplog):
    function = lambda x: (torch.cat([x[:, :3].exp(), x.t().tanh()]),)  # noqa: E731
    assert cats(assert_same_numbers(remove_cat_ops, function, X)) == 0
    assert "it is not contiguous" in reasons(caplog, remove_cat_ops, trace(function, X))


def test_a_graph_of_several_streams_is_left_alone(caplog):
    def function(x, y):
        torch.ops.air.scope_enter(["_user_stream_label"], ["side"])
        one = x.tanh()
        torch.ops.air.scope_exit()
        return (torch.cat([one, y.exp()]),)

    module = trace(function, X, Y)
    run_pass(streams, module)
    with caplog.at_level("INFO", logger="aotair"):
        assert run_pass(remove_cat_ops, module).count == 0
    assert cats(module) == 1 and "skipped, because the graph has several streams" in caplog.text


def test_no_rewrites_are_made_where_none_may_be():
    module = trace(lambda x, y: (torch.cat([x.tanh(), y.exp()]),), X, Y)
    assert run_pass(remove_cat_ops, module, limit=0).count == 0 and cats(module) == 1
