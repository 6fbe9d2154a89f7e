"""`lift_swiglu`: every variant, and each reason to decline."""

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
    assert fuse("lift_swiglu", lambda a, b: (functional.gelu(a) * b,), gate, up)[1:] == ([], 0)


def test_halves_of_a_symbolic_size_decline():
    edits = symbolic("lift_swiglu", _gated, half(2, 3, 5, 16))
    assert edits.count == 0 and "is split by a symbolic size" in edits.accounts[0].text


def test_a_number_is_no_gate():
    declines("lift_swiglu", "2.0 is not a tensor", lambda x: (functional.silu(x) * 2.0,), half(2, 3, 4, 32))
