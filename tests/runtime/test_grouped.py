"""`air::grouped_mm` on the CPU: each group's product, whatever the ends say; and what it refuses."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from aotair_runtime.devices import grouped

OP = torch.ops.air.grouped_mm


def row_by_row(x, weight, ends, bias):
    """Each row with the matrix of the first group that ends after it, in float64."""
    made = torch.zeros(x.shape[0], weight.shape[2], dtype=torch.float64)
    for row in range(x.shape[0]):
        group = next((number for number, end in enumerate(ends.tolist()) if row < end), None)
        if group is not None:
            made[row] = x[row].double() @ weight[group].double() + (0 if bias is None else bias[group].double())
    return made


@settings(max_examples=80, deadline=None)
@given(
    sizes=st.lists(st.integers(0, 5), min_size=1, max_size=6),
    beyond=st.integers(0, 2),
    dtype=st.sampled_from([torch.float32, torch.bfloat16, torch.float16]),
    whole=st.sampled_from([torch.int32, torch.int64]),
    turned=st.booleans(),
    biased=st.booleans(),
)
def test_each_group_meets_its_own_matrix(sizes, beyond, dtype, whole, turned, biased):
    rows, groups = sum(sizes) + beyond, len(sizes)
    x, weight = torch.randn(rows, 7).to(dtype), torch.randn(groups, 7, 5).to(dtype)
    weight = weight.transpose(1, 2).contiguous().transpose(1, 2) if turned else weight
    bias = torch.randn(groups, 5).to(dtype) if biased else None
    ends = torch.tensor(sizes).cumsum(0).to(whole)
    want = row_by_row(x, weight, ends, bias)
    got = OP(x, weight, ends, bias)
    assert got.dtype == dtype and got.shape == want.shape
    most = want.abs().max().item() if want.numel() else 0
    torch.testing.assert_close(got.double(), want, rtol=0, atol=4 * torch.finfo(dtype).eps * max(most, 1))
    out = torch.full_like(got, float("nan"))
    assert OP.out(x, weight, ends, bias, out=out) is out and torch.equal(out, got)


def test_the_matrix_of_a_group_without_rows_is_not_read():
    weight = torch.randn(3, 4, 2)
    weight[1] = float("nan")
    assert OP(torch.randn(5, 4), weight, torch.tensor([2, 2, 5])).isfinite().all()


@pytest.mark.parametrize("ends", [[3, 1, 9], [-4, 2, 1], [2**62, 5, 5], [0, 0, 0], [-1, -1, -(2**62)]])
def test_ends_that_nobody_would_make_stay_within_the_rows(ends):
    x, weight = torch.randn(4, 3), torch.randn(3, 3, 2)
    memory = torch.full((6, 2), 7.0)
    OP.out(x, weight, torch.tensor(ends), out=memory[1:5])
    assert (memory[0] == 7).all() and (memory[5] == 7).all()
    start = 0
    for number, end in enumerate(ends):
        end = min(max(end, start), 4)
        torch.testing.assert_close(memory[1 + start : 1 + end], x[start:end] @ weight[number])
        start = end
    assert (memory[1 + start : 5] == 0).all(), "rows of no group are zero"


X, WEIGHT, ENDS = torch.zeros(4, 3), torch.zeros(2, 3, 5), torch.tensor([1, 4])


@pytest.mark.parametrize(
    "args",
    [
        (X[0], WEIGHT, ENDS),
        (X, WEIGHT[0], ENDS),
        (X, WEIGHT, ENDS[:1]),
        (X, WEIGHT, ENDS[None]),
        (X[:, :2], WEIGHT, ENDS),
        (X.half(), WEIGHT, ENDS),
        (X, WEIGHT, ENDS.float()),
        (X, WEIGHT, ENDS, torch.zeros(2, 3)),
        (X, WEIGHT, ENDS, torch.zeros(5)),
        (X, WEIGHT, ENDS, torch.zeros(2, 5).half()),
    ],
)
def test_arguments_that_do_not_fit_are_refused(args):
    for call in (OP, lambda *given: OP.out(*given, out=torch.zeros(4, 5))):
        with pytest.raises(ValueError, match=r"takes x \(rows, k\), weight \(groups, k, n\)"):
            call(*args)
    with pytest.raises(ValueError, match="takes x"):
        OP(*(one.to("meta") for one in args))


@pytest.mark.parametrize("out", [torch.zeros(4, 4), torch.zeros(3, 5), torch.zeros(4, 5).half()])
def test_a_result_of_another_kind_is_refused_and_never_resized(out):
    with pytest.raises(ValueError, match=r"grouped_mm makes torch\.float32"):
        OP.out(X, WEIGHT, ENDS, out=out)


def test_shapes_are_known_without_numbers():
    meta = [one.to("meta") for one in (X, WEIGHT, ENDS)]
    assert grouped.OP(*meta).shape == (4, 5)
    assert OP.out(*meta, out=torch.zeros(4, 5, device="meta")).shape == (4, 5)
