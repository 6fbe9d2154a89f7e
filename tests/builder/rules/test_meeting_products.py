"""`mm_all_reduce`, `mm_reduce_scatter` and `all_gather_mm`: every variant, and each reason to decline."""

import pytest
import torch
from fusing import declines, fires, fuse, half, known
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from aotair.fusion.alike import AlikeRanks
from aotair.passes import fuse as step
from aotair.passes.edits import Edits
from aotair.target.target import Target
from aotair_runtime.format.schema import Axis

aten, air = torch.ops.aten, torch.ops.air
ROWS, WEIGHT, MATRIX = half(128, 256), half(32, 256, seed=1) / 16, half(256, 32, seed=1) / 16
OPS = {
    "mm_all_reduce": "npu_mm_all_reduce_base",
    "mm_reduce_scatter": "npu_mm_reduce_scatter_base",
    "all_gather_mm": "npu_all_gather_base_mm",
}


def meeting(rule: str, product=aten.linear.default, axis: str = "tp", reduce: str = "sum", ranks: int = 2):
    """A product of two factors as the rule looks for it, along an axis of so many ranks."""

    def function(left, right):
        if rule == "all_gather_mm":
            return (product(air.all_gather.default(left, ranks, axis), right) * 1,)
        made = product(left, right)
        if rule == "mm_all_reduce":
            return (air.all_reduce.default(made, reduce, axis) * 1,)
        return (air.reduce_scatter.default(made, reduce, ranks, axis) * 1,)

    return function


@pytest.mark.parametrize("rule", OPS)
def test_linear_layers_and_products_of_matrices(rule: str):
    ops = fires(rule, OPS[rule], meeting(rule), ROWS, WEIGHT)
    assert not [op for op in ops if op.startswith("air.") or "linear" in op]
    ops = fires(rule, OPS[rule], meeting(rule, aten.mm.default), ROWS, MATRIX)
    assert not [op for op in ops if op.startswith("air.") or "aten.mm" in op]


def test_the_sum_of_layers_over_sequences():
    ops = fires("mm_all_reduce", OPS["mm_all_reduce"], meeting("mm_all_reduce"), half(2, 64, 256), WEIGHT)
    assert "air.all_reduce.default" not in ops


def test_gathered_rows_that_others_read_are_a_second_result():
    def function(left, right):
        every = air.all_gather.default(left, 2, "tp")
        return aten.linear.default(every, right) * 1, every * 3

    ops = fires("all_gather_mm", OPS["all_gather_mm"], function, ROWS, WEIGHT)
    assert "air.all_gather.default" not in ops


@pytest.mark.parametrize("rule", ["mm_all_reduce", "mm_reduce_scatter"])
def test_a_product_that_others_read_stays(rule: str):
    def function(left, right):
        made = aten.linear.default(left, right)
        return meeting(rule, lambda *_: made)(left, right)[0], made * 3

    declines(rule, "is also used by", function, ROWS, WEIGHT)


@pytest.mark.parametrize("rule", OPS)
@pytest.mark.parametrize(
    ("why", "inputs", "wished"),
    [
        ("the axis one has 1 ranks, the fused kernel takes 2, 4, 8", (ROWS, WEIGHT), {"axis": "one", "ranks": 1}),
        ("the axis many has 3 ranks, the fused", (half(129, 256), WEIGHT), {"axis": "many", "ranks": 3}),
        ("is float32, the fused kernel takes float16 and bfloat16", (ROWS.float(), WEIGHT.float()), {}),
        ("has gaps or is transposed", (half(256, 128).t(), WEIGHT), {}),
        ("no call has more than", (half(8, 256), WEIGHT), {}),
        ("the fused kernel takes", (half(128, 65536), half(2, 65536)), {}),
    ],
)  # fmt: skip
def test_what_the_kernels_do_not_take_is_left_alone(rule: str, why: str, inputs: tuple, wished: dict):
    declines(rule, why, meeting(rule, **wished), *inputs)


@pytest.mark.parametrize("rule", ["mm_reduce_scatter", "all_gather_mm"])
def test_narrow_factors_are_left_alone_where_rows_are_cut(rule: str):
    declines(rule, "has rows of 255, the fused kernel takes 256 to 65535", meeting(rule), half(128, 255), half(8, 255))


@pytest.mark.parametrize("rule", ["mm_all_reduce", "mm_reduce_scatter"])
def test_other_reductions_than_sums_are_left_alone(rule: str):
    declines(rule, "the ranks take the max", meeting(rule, reduce="max"), ROWS, WEIGHT)


@pytest.mark.parametrize("rule", OPS)
def test_factors_of_other_dimensions_are_left_alone(rule: str):
    shape = (2, 2, 32, 256) if rule == "mm_all_reduce" else (2, 64, 256)
    declines(rule, f"has {len(shape)} dimensions", meeting(rule), half(*shape), WEIGHT)


def test_a_bias_that_every_rank_would_add_is_left_alone():
    def function(left, right, bias):
        return (air.all_reduce.default(aten.linear.default(left, right, bias), "sum", "tp") * 1,)

    _, _, count = fuse("mm_all_reduce", function, ROWS, WEIGHT, half(32))
    assert count == 0


def test_kernels_of_one_program_meet_the_ranks_of_one_axis():
    edits = Edits("mm_all_reduce", Target("npu", mesh=(Axis("ep", 2), Axis("tp", 2))))
    with FakeTensorMode() as mode:
        module = make_fx(meeting("mm_all_reduce"))(mode.from_tensor(ROWS), mode.from_tensor(WEIGHT))
    step.run(module, edits, known("mm_all_reduce"))
    assert [one.text for one in edits.accounts] == [
        "the fused kernels of a program all meet the same ranks: those of ep"
    ]


@pytest.mark.parametrize("reduce", ["sum", "max", "min", "product"])
def test_ranks_that_are_alike(reduce: str):
    """What they give is what as many ranks with these numbers would."""
    three, x = AlikeRanks(3), torch.tensor([[1.5, -2], [3, 4], [5, 6]])
    want = {"sum": 3 * x, "product": x**3}.get(reduce, x)
    made = x.clone()
    three.all_reduce(made, reduce)
    part = torch.empty(1, 2)
    three.reduce_scatter(part, x, reduce)
    assert torch.equal(made, want) and torch.equal(part, want[:1])
    every, exchanged = torch.empty(9, 2), torch.empty(3, 2)
    three.all_gather(every, x)
    three.all_to_all(exchanged, x)
    three.broadcast(made, 2)
    assert torch.equal(every, torch.cat([x] * 3)) and torch.equal(exchanged, x[:1].expand(3, 2))
