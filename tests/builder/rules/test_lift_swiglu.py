"""`lift_swiglu`: every variant, and each reason to decline."""

import pytest
import torch
from fusing import ROWS, declines, fires, fuse, half, symbolic
from torch.nn import functional

aten, npu = torch.ops.aten, torch.ops.npu


def _gated(x):
    gate, up = x.split(x.shape[-1] // 2, -1)
    return (functional.silu(gate) * up,)


def test_gates():
    gate, up = ROWS[:2]
    separate = lambda a, b: (functional.silu(a) * b,)  # noqa: E731
    assert "aten.cat.default" in fires("lift_swiglu", "npu_swiglu", separate, gate, up)
    assert "aten.cat.default" not in fires("lift_swiglu", "npu_swiglu", lambda x: separate(*x.chunk(2, -1)), gate)
    declines("lift_swiglu", "have different shapes", separate, gate, half(32))
    declines("lift_swiglu", "is also used by", lambda a, b: ((s := functional.silu(a)) * b, s * 2), gate, up)
    assert fuse("lift_swiglu", lambda a, b: (functional.relu(a) * b,), gate, up)[1:] == ([], 0)


def test_halves_of_a_symbolic_size_decline():
    edits = symbolic("lift_swiglu", _gated, half(2, 3, 5, 16))
    assert edits.count == 0 and "is split by a symbolic size" in edits.accounts[0].text


def test_a_number_is_no_gate():
    declines("lift_swiglu", "2.0 is not a tensor", lambda x: (functional.silu(x) * 2.0,), half(2, 3, 4, 32))


SEPARATE = lambda a, b: (functional.silu(a) * b,)  # noqa: E731
TURNED = lambda a, b: (b * functional.silu(a),)  # noqa: E731


@pytest.mark.parametrize("function", [SEPARATE, TURNED])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("shape", [(2, 3, 32), (1, 1), (5,), (0, 4)])
def test_either_order_dtype_and_shape(function, dtype, shape):
    fires("lift_swiglu", "npu_swiglu", function, half(*shape).to(dtype), half(*shape, seed=1).to(dtype))
    if len(shape) > 1 and shape[-1] > 1:
        whole = lambda x: function(*x.chunk(2, -1))  # noqa: E731
        fires("lift_swiglu", "npu_swiglu", whole, half(*shape).to(dtype))


@pytest.mark.parametrize(
    ("why", "inputs"),
    [
        ("is float64", (half(2, 4).double(), half(2, 4).double())),
        ("a_1 is float16 and b_1 is float32", (half(2, 4), half(2, 4).float())),
        ("have different shapes: [2, 4] and [1, 4]", (half(2, 4), half(1, 4))),
        ("have different shapes: [] and []", (half(1)[0], half(1)[0])),
    ],
)
def test_gates_that_the_kernel_does_not_take_decline(why, inputs):
    declines("lift_swiglu", why, SEPARATE, *inputs)


@pytest.mark.parametrize(
    ("op", "size", "dim", "x"), [("npu_swiglu", 2, -1, half(2, 6)), ("npu_swiglu", 2, 0, half(4, 4))]
)
def test_parts_that_are_no_halves_are_two_tensors(op, size, dim, x):
    def function(x):
        gate, up = x.split(size, dim)[:2]
        return (functional.silu(gate) * up,)

    assert "aten.cat.default" in fires("lift_swiglu", op, function, x)


def test_halves_of_another_dtype_decline():
    whole = lambda x: SEPARATE(*x.chunk(2, -1))  # noqa: E731
    declines("lift_swiglu", "x_1 is float64", whole, half(2, 4).double())


@pytest.mark.parametrize("approximate", ["none", "tanh"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_gates_of_gelu(approximate, dtype):
    """Those of Gemma: by erf or by tanh, apart or as halves, in either order."""
    gate, up = (one.to(dtype) for one in ROWS[:2])
    for function in (
        lambda a, b: (functional.gelu(a, approximate=approximate) * b,),
        lambda a, b: (b * functional.gelu(a, approximate=approximate),),
    ):
        assert "aten.cat.default" in fires("lift_swiglu", "npu_geglu", function, gate, up)
        whole = fires("lift_swiglu", "npu_geglu", lambda x: function(*x.chunk(2, -1)), gate)  # noqa: B023
        assert "aten.cat.default" not in whole
    declines(
        "lift_swiglu",
        "have different shapes",
        lambda a, b: (functional.gelu(a, approximate=approximate) * b,),
        gate,
        half(32).to(dtype),
    )
