"""`air::channel_affine`: each channel times a factor and a term added, rounded once."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from aotair_runtime.devices import channel_affine

air = torch.ops.air
KINDS = st.sampled_from([torch.float32, torch.bfloat16, torch.float16])


@given(st.lists(st.integers(0, 5), min_size=2, max_size=4), KINDS, st.booleans())
@settings(max_examples=60, deadline=None)
def test_the_numbers_of_its_definition_in_the_layout_of_what_it_reads(sizes, kind, turned):
    x = torch.randn(sizes).to(kind)
    x = x.transpose(1, -1).contiguous().transpose(1, -1) if turned else x
    factor, term = torch.randn(sizes[1]), torch.randn(sizes[1])
    along = (-1, *[1] * (x.dim() - 2))
    want = (x.double() * factor.double().view(along) + term.double().view(along)).to(kind)
    got = air.channel_affine(x, factor, term)
    out, over = torch.empty_like(x), x.clone()
    assert air.channel_affine.out(x, factor, term, out=out) is out and air.channel_affine_(over, factor, term) is over
    for one in (got, out, over):
        torch.testing.assert_close(one, want, rtol=torch.finfo(kind).eps, atol=1e-6)
    shape = torch.ops.air.channel_affine(*(one.to("meta") for one in (x, factor, term)))
    assert shape.shape == got.shape and shape.dtype == got.dtype


@pytest.mark.parametrize(
    "arguments",
    [
        (torch.ones(3), torch.ones(3), torch.ones(3)),
        (torch.ones(2, 3), torch.ones(2), torch.ones(3)),
        (torch.ones(2, 3), torch.ones(3), torch.ones(1)),
        (torch.ones(2, 3), torch.ones(3).double(), torch.ones(3)),
        (torch.ones(2, 3).int(), torch.ones(3), torch.ones(3)),
        (torch.ones(2, 3), torch.ones(3, 1), torch.ones(3)),
    ],
)
@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_what_does_not_fit_is_refused(arguments, device):
    given = [one.to(device) for one in arguments]
    for call in (air.channel_affine, air.channel_affine_):
        with pytest.raises(ValueError, match="channel_affine takes floats"):
            call(*given)
    x, factor, term = (torch.ones(size, device=device) for size in ((2, 3), 3, 3))
    for out in (torch.ones(2, 2, device=device), torch.ones(2, 3, dtype=torch.float16, device=device)):
        with pytest.raises(ValueError, match="channel_affine makes"):
            air.channel_affine.out(x, factor, term, out=out)
    assert channel_affine.OP.name() == "air::channel_affine"
