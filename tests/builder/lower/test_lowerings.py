"""Composites as the calls of their own kernels: which, with which numbers, and where they stay whole."""

import math

import pytest
import torch
from exports import exported
from graphs import targets

from aotair.lower.graph_builder import GraphBuilder
from aotair.lower.lowerings import COPIES, FILLS, LOWERINGS, UNINITIALISED
from aotair.lower.specialise import specialise


def test_lowering_makes_the_composites_own_calls():
    _, result = exported("linear")
    concrete = specialise(result.module, {"x": (4, 4)}, "test")
    assert targets(concrete) == ["aten.t.default", "aten.addmm.default"]


aten = torch.ops.aten


def lowered(op, *args, **kwargs) -> list[str] | None:
    """The ops that stand for a call, after checking that they compute the same; None where it stays whole."""
    build, tensors, places = GraphBuilder(), [], []
    for place, arg in enumerate(args):
        if isinstance(arg, torch.Tensor):
            tensors.append(arg)
            places.append(build.placeholder(f"arg{place}", tuple(arg.shape), arg.stride(), arg.dtype))
        else:
            places.append(arg)
    node = LOWERINGS[op](build, *places, **kwargs)
    if node is None:
        return None
    build.graph.output((node,))
    module, want = torch.fx.GraphModule({}, build.graph), op(*args, **kwargs)
    kept = [tensor.clone() for tensor in tensors]
    (got,) = module(*tensors)
    assert torch.equal(got, want) and got.dtype == want.dtype, targets(module)
    assert all(map(torch.equal, tensors, kept)), "what is given stays as it is"
    return [name.removeprefix("aten.") for name in targets(module)]


def numbers(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0)).to(dtype)


LINEAR = aten.linear.default


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize(
    ("shape", "ops"),
    [
        ((3, 4), ["t.default", "addmm.default"]),
        ((1, 4), ["t.default", "addmm.default"]),
        ((2, 3, 4), ["view.default", "t.default", "addmm.default", "view.default"]),
        ((2, 1, 3, 4), ["view.default", "t.default", "addmm.default", "view.default"]),
    ],
)
def test_a_linear_layer_is_one_product_of_flattened_rows(shape, ops, dtype):
    given = numbers(*shape, dtype=dtype), numbers(5, 4, dtype=dtype), numbers(5, dtype=dtype)
    assert lowered(LINEAR, *given) == ops
    plain = [op.replace("addmm", "mm") for op in ops]
    assert lowered(LINEAR, *given[:2]) == plain


@pytest.mark.parametrize("x", [numbers(4), torch.empty(0, 4), torch.empty(2, 0, 4)])
def test_a_linear_layer_of_a_vector_or_of_nothing_stays_whole(x):
    assert lowered(LINEAR, x, numbers(5, 4)) is None


def test_a_linear_layer_of_what_is_not_in_order_stays_whole():
    assert lowered(LINEAR, numbers(4, 3).t(), numbers(5, 4)) is None


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize(
    ("shape", "ops"),
    [
        ((5,), ["index_select.default"]),
        ((2, 3), ["view.default", "index_select.default", "view.default"]),
        ((), ["view.default", "index_select.default", "view.default"]),
        ((0,), ["index_select.default"]),
        ((2, 0), ["view.default", "index_select.default", "view.default"]),
    ],
)
def test_an_embedding_selects_rows(shape, ops, dtype):
    indices = torch.arange(math.prod(shape)).view(shape).to(dtype) % 7
    assert lowered(aten.embedding.default, numbers(7, 4), indices, 3, True) == ops


def test_indices_that_are_not_in_order_are_put_in_order_first():
    ops = lowered(aten.embedding.default, numbers(7, 4), torch.arange(6).view(2, 3).t())
    assert ops == ["clone.default", "view.default", "index_select.default", "view.default"]


def test_indices_of_other_dtypes_leave_an_embedding_whole():
    build = GraphBuilder()
    weight = build.placeholder("w", (7, 4), (4, 1), torch.float32)
    indices = build.placeholder("i", (3,), (1,), torch.uint8)
    assert LOWERINGS[aten.embedding.default](build, weight, indices) is None


@pytest.mark.parametrize(
    ("op", "bounds", "options"),
    [
        (aten.arange.default, (5,), {}),
        (aten.arange.default, (5,), {"dtype": torch.float64}),
        (aten.arange.start, (2, 7), {}),
        (aten.arange.start, (2.5, 7), {"dtype": torch.float32}),
        (aten.arange.default, (0,), {}),
    ],
)
def test_each_spelling_of_arange_is_the_one_with_an_out_variant(op, bounds, options):
    assert lowered(op, *bounds, **options) == ["arange.start_step"]


def test_arange_takes_one_bound_or_two_or_three():
    build = GraphBuilder()
    made = [LOWERINGS[aten.arange.default](build, *bounds) for bounds in ((4,), (1, 4), (1, 9, 3))]
    assert [node.args for node in made] == [(0, 4, 1), (1, 4, 1), (1, 9, 3)]


WHERE = {
    "slice": (aten.slice_scatter.default, (3, 3), (1, 1, 6, 2), {}),
    "slice to the end": (aten.slice_scatter.default, (3, 3), (1, 3), {}),
    "slice of nothing": (aten.slice_scatter.default, (3, 0), (1, 3, 3), {}),
    "select": (aten.select_scatter.default, (3,), (1, -1), {}),
    "diagonal": (aten.diagonal_scatter.default, (3,), (1,), {}),
    "diagonal by name": (aten.diagonal_scatter.default, (3,), (), {"offset": 1, "dim1": 0, "dim2": 1}),
    "as strided": (aten.as_strided_scatter.default, (3, 3), ([3, 3], [6, 2], 1), {}),
}


@pytest.mark.parametrize("name", WHERE)
@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.bool])
def test_a_scatter_into_a_view_copies_the_whole_and_then_into_the_view(name, dtype):
    op, shape, where, options = WHERE[name]
    whole, source = torch.arange(18).view(3, 6).to(dtype), torch.full(shape, 7).to(dtype)
    ops = lowered(op, whole, source, *where, **options)
    assert len(ops) == 3 and ops[0] == "clone.default" and ops[2] == "copy_.default"


@pytest.mark.parametrize("name", [name for name in WHERE if name != "as strided"])
def test_a_scatter_into_what_is_not_in_order_does_so_too(name):
    op, shape, where, options = WHERE[name]
    assert lowered(op, torch.arange(18.0).view(6, 3).t(), -torch.ones(shape), *where, **options) is not None


def test_a_strided_scatter_into_what_is_a_part_or_not_in_order_stays_whole():
    """Its places are those of the storage, which a copy does not have."""
    where = [2, 2], [1, 2], 0
    assert lowered(aten.as_strided_scatter.default, numbers(3, 3).t(), numbers(2, 2), *where) is None
    build = GraphBuilder()
    whole, source = (build.placeholder(name, (3, 3), (3, 1), torch.float32) for name in "xs")
    part = build.call(aten.slice.Tensor, whole, 0, 1)
    assert LOWERINGS[aten.as_strided_scatter.default](build, part, source, *where) is None


# ---- the tables ------------------------------------------------------------------------------------------------------


def test_every_filling_op_names_its_value_or_an_argument_that_it_has():
    for op, value in FILLS.items():
        assert not isinstance(value, str) or value in [argument.name for argument in op._schema.arguments]


def test_what_is_copied_is_a_tensor_of_the_op():
    for op, place in COPIES.items():
        assert str(op._schema.arguments[place].type) == "Tensor"


def test_no_op_is_in_two_tables():
    tables = [set(LOWERINGS), set(COPIES), set(FILLS), set(UNINITIALISED)]
    assert sum(map(len, tables)) == len(set().union(*tables))


@pytest.mark.parametrize("op", LOWERINGS, ids=str)
def test_every_composite_that_is_lowered_is_one_that_a_graph_may_hold(op):
    assert not op._schema.is_mutable and len(op._schema.returns) == 1
