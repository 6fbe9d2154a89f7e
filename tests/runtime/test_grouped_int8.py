"""`air::grouped_int_mm` on the CPU: each group's exact sums, whatever the ends say; and what it refuses."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from aotair_runtime.devices import grouped_int8

OP = torch.ops.air.grouped_int_mm


def whole(*shape: int) -> torch.Tensor:
    return torch.randint(-128, 128, shape, dtype=torch.int8)


@settings(max_examples=80, deadline=None)
@given(
    sizes=st.lists(st.integers(0, 5), min_size=1, max_size=6),
    beyond=st.integers(0, 2),
    k=st.sampled_from([1, 2, 7, 64]),
    n=st.sampled_from([1, 5, 16]),
    kind=st.sampled_from([torch.int32, torch.int64]),
    turned=st.booleans(),
)
def test_each_group_meets_its_own_matrix_and_sums_are_exact(sizes, beyond, k, n, kind, turned):
    rows, groups = sum(sizes) + beyond, len(sizes)
    x, weight = whole(rows, k), whole(groups, n, k).transpose(1, 2)
    weight = weight if turned else weight.contiguous()
    want, experts = torch.zeros(rows, n, dtype=torch.int64), torch.arange(groups).repeat_interleave(torch.tensor(sizes))
    for row, expert in enumerate(experts.tolist()):
        want[row] = x[row].long() @ weight[expert].long()
    ends = torch.tensor(sizes).cumsum(0).to(kind)
    got = OP(x, weight, ends)
    assert got.dtype == torch.int32 and torch.equal(got.long(), want), "and rows of no group are zero"
    out = torch.full_like(got, 7)
    assert OP.out(x, weight, ends, out=out) is out and torch.equal(out, got)


def test_results_that_lie_turned():
    x, weight, ends = whole(5, 3), whole(2, 3, 4), torch.tensor([2, 5])
    out = torch.full((4, 5), 7, dtype=torch.int32).t()
    OP.out(x, weight, ends, out=out)
    assert torch.equal(out, OP(x, weight, ends))


@pytest.mark.parametrize("ends", [[3, 1, 9], [-4, 2, 1], [2**62, 5, 5], [0, 0, 0], [-1, -1, -(2**62)]])
def test_ends_that_nobody_would_make_stay_within_the_rows(ends):
    x, weight = whole(4, 3), whole(3, 3, 2)
    memory = torch.full((6, 2), 7, dtype=torch.int32)
    OP.out(x, weight, torch.tensor(ends), out=memory[1:5])
    assert (memory[0] == 7).all() and (memory[5] == 7).all()
    start = 0
    for number, end in enumerate(ends):
        end = min(max(end, start), 4)
        assert torch.equal(memory[1 + start : 1 + end].long(), x[start:end].long() @ weight[number].long())
        start = end
    assert (memory[1 + start : 5] == 0).all()


@pytest.mark.parametrize("sizes", [(4, 0, 5), (4, 3, 0), (0, 3, 5)])
def test_what_has_no_numbers_is_zero_or_nothing(sizes):
    rows, k, n = sizes
    assert OP(whole(rows, k), whole(2, k, n), torch.tensor([1, rows])).tolist() == [[0] * n] * rows


X, WEIGHT, ENDS = whole(4, 3), whole(2, 3, 5), torch.tensor([1, 4])


@pytest.mark.parametrize(
    "args",
    [
        (X[0], WEIGHT, ENDS),
        (X, WEIGHT[0], ENDS),
        (X, WEIGHT, ENDS[:1]),
        (X, WEIGHT, ENDS[None]),
        (X[:, :2], WEIGHT, ENDS),
        (X.float(), WEIGHT, ENDS),
        (X, WEIGHT.int(), ENDS),
        (X, WEIGHT, ENDS.float()),
    ],
)
def test_arguments_that_do_not_fit_are_refused(args):
    for call in (OP, lambda *given: OP.out(*given, out=torch.zeros(4, 5, dtype=torch.int32))):
        with pytest.raises(ValueError, match=r"takes int8 x \(rows, k\), int8 weight \(groups, k, n\)"):
            call(*args)
    with pytest.raises(ValueError, match="takes int8 x"):
        OP(*(one.to("meta") for one in args))


@pytest.mark.parametrize("shape, kind", [((4, 4), torch.int32), ((3, 5), torch.int32), ((4, 5), torch.int64)])
def test_a_result_of_another_kind_is_refused_and_never_resized(shape, kind):
    with pytest.raises(ValueError, match=r"grouped_int_mm makes torch\.int32"):
        OP.out(X, WEIGHT, ENDS, out=torch.zeros(shape, dtype=kind))


def test_shapes_are_known_without_numbers():
    meta = [one.to("meta") for one in (X, WEIGHT, ENDS)]
    made = grouped_int8.OP(*meta)
    assert (made.shape, made.dtype) == ((4, 5), torch.int32)
    assert OP.out(*meta, out=torch.zeros(4, 5, dtype=torch.int32, device="meta")).shape == (4, 5)
