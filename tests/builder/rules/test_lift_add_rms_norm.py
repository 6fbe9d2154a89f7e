"""`lift_add_rms_norm`: where it fires, and each reason to decline."""

import torch
from fusing import ROWS, declines, fires, half

aten, npu = torch.ops.aten, torch.ops.npu


def test_residual_sums():
    def function(x1, x2, gamma):
        added = x1 + x2
        return npu.npu_rms_norm.default(added, gamma, 1e-5)[0], added

    assert len(fires("lift_add_rms_norm", "npu_add_rms_norm", function, *ROWS)) == 1
    declines("lift_add_rms_norm", "have different shapes", function, ROWS[0], half(32), ROWS[2])
    twice = lambda a, b, g: (npu.npu_rms_norm.default(torch.add(a, b, alpha=2), g)[0],)  # noqa: E731
    declines("lift_add_rms_norm", "alpha=2, which the rule does not take", twice, *ROWS)
    number = lambda a, b, g: (npu.npu_rms_norm.default(a + 1.0, g)[0],)  # noqa: E731
    declines("lift_add_rms_norm", "1.0 is not a tensor", number, *ROWS)
