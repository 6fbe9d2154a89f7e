"""Are the ops of aotair.ops.npu those of the real torch_npu: schemas, and shapes in many cases?"""

import npu_samples
import pytest
import torch
from torch.utils._pytree import tree_map

from aotair.ops import npu


def op(name: str) -> torch._ops.OpOverload:
    base, _, overload = name.partition(".")
    return getattr(getattr(torch.ops.npu, base), overload or "default")


@pytest.mark.parametrize("mine", npu.OPS, ids=lambda o: o.name)
def test_the_schema_is_torch_npus(mine):
    assert str(torch._C.parse_schema("npu::" + mine.schema)) == str(op(mine.name)._schema)


def described(result) -> list[tuple]:
    values = result if isinstance(result, (tuple, list)) else (result,)
    return [(tuple(value.shape), value.dtype) for value in values]


def test_shapes_and_dtypes_are_torch_npus():
    kernels = {mine.name: mine.shape or mine.kernel for mine in npu.OPS}
    seen = set()
    for name, args, kwargs in npu_samples.samples():
        args, kwargs = tree_map(lambda v: v.to("meta") if isinstance(v, torch.Tensor) else v, (args, kwargs))
        theirs = described(op(name)(*args, **kwargs))
        mine = described(kernels[name](*args, **kwargs))
        assert mine == theirs, f"{name}{[tuple(a.shape) for a in args if isinstance(a, torch.Tensor)]} {kwargs}"
        seen.add(name)
    assert seen == set(kernels), "every op has samples"
