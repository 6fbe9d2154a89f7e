"""What the rules for products that meet other ranks ask alike: of the ranks, the factors and the rows."""

import pytest
import torch
from fusing import declines, fires, half, known
from meeting_products import MATRIX, OPS, ROWS, WEIGHT, air, aten, meeting
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from aotair.fusion.alike import AlikeRanks
from aotair.passes import fuse as step
from aotair.passes.edits import Edits
from aotair.target.target import Target
from aotair_runtime.format.schema import Axis


@pytest.mark.parametrize("rule", OPS)
def test_linear_layers_and_products_of_matrices(rule: str):
    ops = fires(rule, OPS[rule], meeting(rule), ROWS, WEIGHT)
    assert not [op for op in ops if op.startswith("air.") or "linear" in op]
    ops = fires(rule, OPS[rule], meeting(rule, aten.mm.default), ROWS, MATRIX)
    assert not [op for op in ops if op.startswith("air.") or "aten.mm" in op]


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


@pytest.mark.parametrize("rule", ["mm_all_reduce", "mm_reduce_scatter"])
@pytest.mark.parametrize("linear", [False, True])
def test_a_bias_that_every_rank_adds_is_named(rule: str, linear: bool):
    def function(left, right, bias):
        made = aten.linear.default(left, right, bias) if linear else aten.addmm.default(bias, left, right)
        return meeting(rule, lambda *_: made)(left, right)

    declines(rule, "each rank adds a bias before the sum", function, ROWS, WEIGHT if linear else MATRIX, half(32))


@pytest.mark.parametrize(
    ("axes", "fused"),
    [
        ({"ep": 2, "tp": 2}, ["tp"]),
        ({"tp": 2, "ep": 2}, ["ep"]),
        ({"one": 1, "tp": 2, "ep": 2}, ["ep"]),
        ({"tp": 2, "ep": 3}, ["tp"]),
        ({"tp": 2, "dp": 2}, ["tp"]),
        ({"dp": 2, "tp": 2}, ["tp"]),
        ({"tp": 2, "ep": 2, "more": 2}, ["tp", "tp"]),
    ],
)
def test_kernels_of_one_program_meet_the_ranks_of_one_axis(axes: dict[str, int], fused: list[str]):
    """Of those along which products meet that along which most do, and the last of these in the mesh."""
    met = [axis for axis in axes if axis in ("tp", "ep")] + (["tp"] if "more" in axes else [])

    def function(left, right):
        return tuple(air.all_reduce.default(aten.linear.default(left, right), "sum", axis) * 1 for axis in met)

    edits = Edits("mm_all_reduce", Target("npu", mesh=tuple(Axis(*one) for one in axes.items())))
    with FakeTensorMode() as mode:
        module = make_fx(function)(mode.from_tensor(ROWS), mode.from_tensor(WEIGHT))
    step.run(module, edits, known("mm_all_reduce"))
    ops = [node for node in module.graph.nodes if node.target is torch.ops.npu.npu_mm_all_reduce_base.default]
    assert [node.args[2] for node in ops] == fused
    left = [one.text for one in edits.accounts if not one.rewritten]
    assert all("all meet the same ranks: those of" in text or "has 3 ranks" in text for text in left)
    assert len(left) == len(met) - len(ops)


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
