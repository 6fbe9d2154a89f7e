"""Are the ops of aotair.ops.npu those of the real torch_npu: schemas, and shapes in many cases?"""

import npu_samples
import pytest
import torch
import torch_npu
from npu_variations import variations
from torch.utils._pytree import tree_map

from aotair.ops import npu


@pytest.mark.parametrize("mine", npu.OPS, ids=lambda o: o.name)
def test_the_schema_is_torch_npus(mine):
    assert str(torch._C.parse_schema("npu::" + mine.schema)) == str(npu_samples.op(mine.name)._schema)


def described(result) -> list[tuple]:
    values = result if isinstance(result, (tuple, list)) else (result,)
    return [(tuple(value.shape), value.dtype) for value in values]


def on(device: str, values):
    return tree_map(lambda v: v.to(device) if isinstance(v, torch.Tensor) else v, values)


def test_shapes_and_dtypes_are_torch_npus(monkeypatch):
    # The simulated CANN says no version; with those of this torch_npu, results that nobody asked for are empty.
    monkeypatch.setattr(torch_npu.npu.utils, "_is_gte_cann_version", lambda *version: True)
    kernels = {mine.name: mine.shape or mine.kernel for mine in npu.OPS}
    seen = set()
    for name, args, kwargs in npu_samples.samples():
        seen.add(name)
        if name.endswith((".out", "_get_max_workspace")):
            continue  # torch_npu has no Meta kernels, and those of its device ask CANN
        # There is none of infer_output either, but its device kernel is torch_npu's own code.
        theirs_on = "npu" if name.endswith("_infer_output") else "meta"
        theirs = described(npu_samples.op(name)(*on(theirs_on, args), **on(theirs_on, kwargs)))
        mine = described(kernels[name](*on("meta", args), **on("meta", kwargs)))
        assert mine == theirs, f"{name}{[tuple(a.shape) for a in args if isinstance(a, torch.Tensor)]} {kwargs}"
    assert seen == set(kernels), "every op has samples"


# What torch_npu refuses and the host kernels serve, by (op, argument): why that is right.
SERVED_HERE_ALONE = {
    ("npu_grouped_matmul.List", "output_dtype"): "its Meta compares this overload's dtype with numbers: none is one",
}


def test_what_a_changed_argument_makes_is_what_torch_npu_makes(monkeypatch):
    """Each argument of each op changed alone: refused here, or with the shapes and dtypes of torch_npu's Meta."""
    monkeypatch.setattr(torch_npu.npu.utils, "_is_gte_cann_version", lambda *version: True)
    kernels = {mine.name: mine.shape or mine.kernel for mine in npu.OPS}
    wrong, alone, compared = [], {}, 0
    for one in variations():
        if one.name.endswith((".out", "_get_max_workspace", "_infer_output")):
            continue
        try:
            npu_samples.op(one.name)(**on("cpu", one.after()))
            mine = described(kernels[one.name](**on("meta", one.after())))
        except Exception:
            continue  # refused, or shapes that do not fit: test_npu_arguments tells them apart
        try:
            theirs = described(npu_samples.op(one.name)(**on("meta", one.after())))
        except Exception as error:
            alone.setdefault((one.name, one.argument), f"{one}: {error}"[:300])
            continue
        compared += 1
        if mine != theirs:
            wrong.append(f"{one}: {mine}, torch_npu says {theirs}")
    assert not wrong
    assert {key: text for key, text in alone.items() if key not in SERVED_HERE_ALONE} == {}
    assert compared > 500
