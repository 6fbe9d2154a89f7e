"""Which calls read a weight as the node packs it, and by which op."""

import pytest
import torch

from aotair.graph.derived import mark_constant
from aotair.lower.graph_builder import GraphBuilder
from aotair.lower.packed import packed_op
from aotair.lower.select import Kernel, Way, select
from aotair.target.target import Target

aten, air, BF16 = torch.ops.aten, torch.ops.air, torch.bfloat16
WEIGHT, BIAS = torch.randn(32, 64).to(BF16), torch.randn(32).to(BF16)
BYTES, FACTORS = torch.zeros(32, 32, dtype=torch.uint8), torch.ones(2, 32, 2).to(BF16)
HOST = Target("cpu")


def x_of(rows: int, dtype: torch.dtype = BF16) -> torch.Tensor:
    return torch.randn(rows, 64).to(dtype)


def found(op, arguments, target: Target = HOST, constant: bool = True, turned: bool = False):
    """The op of a call and its kernel; the tensors after the first are constants, or the second is a view of one."""
    build = GraphBuilder(target)
    nodes: list = []
    for number, item in enumerate(arguments):
        if isinstance(item, torch.Tensor):
            nodes.append(build.placeholder(f"p{number}", tuple(item.shape), item.stride(), item.dtype))
            if number and constant:
                mark_constant(nodes[-1])
        else:
            nodes.append(item)
    if turned:
        nodes[1] = build.call(aten.t.default, nodes[1])
    node = build.call(op, *nodes)
    return packed_op(target, op, node.args), select(build.graph, target)[node]


def linear(rows: int, dtype: torch.dtype = BF16) -> tuple:
    return aten.linear.default, (x_of(rows, dtype), WEIGHT.to(dtype), BIAS.to(dtype))


def four_bits(rows: int, dtype: torch.dtype = BF16) -> tuple:
    return air.linear_int4.default, (x_of(rows, dtype), BYTES, 32, FACTORS.to(dtype))


@pytest.mark.parametrize("rows", [1, 256])
def test_a_linear_layer_of_few_rows_reads_its_weight_packed(rows: int):
    op = aten.linear.default
    assert found(*linear(rows)) == (op, Kernel(op, Way.FRESH, packed=(1,)))


@pytest.mark.parametrize("rows", [1, 64])
def test_a_weight_of_four_bits_is_read_by_its_kernel(rows: int):
    op = aten._weight_int4pack_mm_for_cpu.default
    assert found(*four_bits(rows)) == (op, Kernel(op, Way.FRESH, packed=(1,)))


@pytest.mark.parametrize(
    ("call", "options"),
    [
        (linear(257), {}),
        (linear(2, torch.float32), {}),
        (linear(2), {"constant": False}),
        (linear(2), {"target": Target("cpu", packs=False)}),
        (linear(2), {"target": Target("cuda")}),
        (linear(0), {}),
        ((aten.linear.default, (x_of(64).t(), WEIGHT, BIAS)), {}),
        ((aten.linear.default, (x_of(2), WEIGHT.t().contiguous(), BIAS)), {"turned": True}),
        ((aten.linear.default, (x_of(2), WEIGHT, torch.zeros(1).to(BF16).expand(32))), {}),
        ((aten.linear.default, (x_of(2), WEIGHT, torch.zeros(32, 2).to(BF16)[:, 0])), {}),
        (four_bits(65), {}),
        (four_bits(2, torch.float32), {}),
        (four_bits(2), {"constant": False}),
        (four_bits(2), {"target": Target("cpu", packs=False)}),
    ],
)
def test_others_read_it_as_it_is(call: tuple, options: dict):
    op, kernel = found(*call, **options)
    assert op is None and not kernel.packed
