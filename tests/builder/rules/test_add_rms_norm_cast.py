"""`add_rms_norm_cast`: every variant, and each reason to decline."""

import pytest
import torch
from fusing import ROWS, declines, fires, norm

aten, npu = torch.ops.aten, torch.ops.npu


@pytest.mark.parametrize("by_npu", [True, False])
@pytest.mark.parametrize("rows", [True, False])
@pytest.mark.parametrize("keeps", [(), ("x",), ("y",), ("x", "y", "rows")])
def test_cast_in_all_variants(by_npu, rows, keeps):
    def function(x1, x2, gamma):
        y, _, x = norm(x1, x2, gamma, 1e-5)
        flat = y.view(-1, 32) if rows else y
        wide = npu._npu_dtype_cast.default(flat, torch.float32) if by_npu else flat.float()
        return (wide, *({"x": x, "y": y, "rows": flat * 2}[name] for name in keeps))

    fires("add_rms_norm_cast", "npu_add_rms_norm_cast", function, *ROWS)


def test_cast_declines():
    def to(dtype, view):
        return lambda x1, x2, gamma: (view(norm(x1, x2, gamma)[0]).to(dtype),)

    declines("add_rms_norm_cast", "needs torch.float32", to(torch.float64, lambda y: y), *ROWS)
    declines(
        "add_rms_norm_cast", "does not keep the last dimension 32", to(torch.float32, lambda y: y.view(-1, 16)), *ROWS
    )
    declines("add_rms_norm_cast", "does not keep the last", to(torch.float32, lambda y: y.view(2, 1, 3, 32)), *ROWS)
