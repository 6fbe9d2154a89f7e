"""Small ops as steps: the numbers of torch's ops, and torch's calls where the library takes none."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from small_steps import BF16, F16, F32, needs_kernels, numbers, run, same

from aotair_runtime.steps import library, table
from aotair_runtime.steps.join import Joined, Named
from aotair_runtime.steps.written import HEAD, Lies, Steps, written

pytestmark = [needs_kernels, pytest.mark.usefixtures("whatever_pays")]

aten, air = torch.ops.aten, torch.ops.air


def laid(tensor: torch.Tensor, how: str) -> torch.Tensor:
    """The same numbers, lying otherwise."""
    if how == "turned" and tensor.dim() > 1:
        return tensor.transpose(0, -1).contiguous().transpose(0, -1)
    if how == "gaps":
        wide = torch.zeros(*tensor.shape[:-1], tensor.shape[-1] * 2 + 1, dtype=tensor.dtype)
        place = wide[..., 1::2]
        return place.copy_(tensor)
    return tensor.clone()


LAYOUTS = st.sampled_from(["plain", "turned", "gaps"])
SHAPES = st.lists(st.integers(1, 7), min_size=1, max_size=5).map(tuple) | st.sampled_from([(3, 1500), (2, 3, 1024)])
FLOATS = st.sampled_from([F32, BF16, F16])
WHOLE = [torch.int64, torch.int32]

EXACT_OF_ONE = ["neg", "abs", "reciprocal", "square", "relu"]
OTHERS_OF_ONE = {"sqrt": 2e-7, "rsqrt": 3e-7, "exp": 1e-6, "tanh": 2e-6, "sigmoid": 1e-6, "silu": 2e-6, "gelu": 1e-5}
OF_TWO = ["add", "sub", "mul", "div", "maximum", "minimum"]


@given(st.sampled_from(EXACT_OF_ONE), SHAPES, FLOATS, LAYOUTS, LAYOUTS, st.integers(0, 99))
@settings(max_examples=150, deadline=None)
def test_numbers_of_one(name, shape, kind, how, out_how, seed):
    x = laid(numbers(shape, kind, seed), how)
    out = laid(torch.zeros(shape, dtype=kind), out_how)
    run(getattr(aten, name).out, x, out=out)
    same(out, getattr(torch, name)(x))
    want = x.clone()
    getattr(torch, name)(want, out=want) if name == "square" else getattr(want, f"{name}_")()
    run(getattr(aten, f"{name}_").default, x)
    same(x, want)


@given(st.sampled_from(sorted(OTHERS_OF_ONE)), SHAPES, FLOATS, LAYOUTS, LAYOUTS, st.integers(0, 99))
@settings(max_examples=150, deadline=None)
def test_numbers_of_one_beside_double(name, shape, kind, how, out_how, seed):
    x = laid(numbers(shape, kind, seed), how)
    if name == "gelu":
        x = x.nan_to_num(0.0, 30.0, -30.0)  # of infinity torch's own is NaN here and infinity there
    out = laid(torch.zeros(shape, dtype=kind), out_how)
    function = getattr(torch.nn.functional, name, None) or getattr(torch, name)
    run(getattr(aten, name).out, x, out=out)
    same(out, function(x.double()).to(kind), OTHERS_OF_ONE[name])
    if name == "gelu":
        run(aten.gelu.out, x, approximate="tanh", out=out)
        same(out, function(x.double(), approximate="tanh").to(kind), OTHERS_OF_ONE[name])


@given(
    st.sampled_from(OF_TWO), SHAPES, FLOATS, LAYOUTS, LAYOUTS, LAYOUTS,
    st.sampled_from(["alike", "row", "column", "one", "number"]), st.integers(0, 99),
)  # fmt: skip
@settings(max_examples=250, deadline=None)
def test_numbers_of_two(name, shape, kind, how, other_how, out_how, wide, seed):
    x = laid(numbers(shape, kind, seed), how)
    small = {"alike": shape, "row": shape[-1:], "column": (*shape[:-1], 1), "one": (1,), "number": ()}[wide]
    y = laid(numbers(small, kind, seed + 1), other_how) if small else 0.3
    if isinstance(y, float) and name in ("maximum", "minimum"):
        return
    out = laid(torch.zeros(shape, dtype=kind), out_how)
    want = torch.div(x, y) if name == "div" else getattr(torch, name)(x, y)
    run(getattr(aten, name).out, x, y, out=out)
    same(out, want)
    if name in ("add", "sub", "mul", "div"):
        run(getattr(aten, f"{name}_").Tensor, x, y)
        same(x, out)


@given(
    st.sampled_from([F32, BF16, F16, torch.bool, torch.int64, torch.int32, torch.int8]),
    FLOATS,
    SHAPES,
    LAYOUTS,
    LAYOUTS,
)
@settings(max_examples=100, deadline=None)
def test_copies_and_casts(kind, into, shape, how, out_how):
    x = laid(numbers(shape, F32, 3, special=kind.is_floating_point).to(kind), how)
    out = laid(torch.zeros(shape, dtype=into), out_how)
    run(aten.copy_.default, out, x)
    same(out, x.to(into))


@given(st.lists(st.integers(0, 5), min_size=1, max_size=4), st.integers(1, 4), st.integers(0, 2), FLOATS, LAYOUTS)
@settings(max_examples=60, deadline=None)
def test_parts_one_after_the_other(sizes, other, dim, kind, out_how):
    if not sum(sizes):
        return
    parts = [numbers([size if at == dim else other for at in range(3)], kind, size) for size in sizes]
    want = torch.cat(parts, dim)
    out = laid(torch.zeros_like(want), out_how)
    run(aten.cat.out, parts, dim, out=out)
    same(out, want)


@given(SHAPES, st.sampled_from([F32, BF16, torch.int64, torch.bool, torch.int8]), LAYOUTS, st.booleans())
@settings(max_examples=60, deadline=None)
def test_what_is_chosen_number_by_number(shape, kind, how, in_place):
    one, other = (laid(numbers(shape, F32, seed, special=False).to(kind), how) for seed in (1, 2))
    decides = numbers((*shape[:-1], 1), F32, 5, special=False) > 0
    want = torch.where(decides, one, other)
    out = one if in_place else torch.zeros_like(want)
    run(aten.where.self_out, decides, one, other, out=out)
    same(out, want)


@given(
    st.integers(1, 40),
    st.integers(1, 40),
    st.sampled_from([1, 3, 64]),
    FLOATS,
    st.sampled_from([torch.int64, torch.int32]),
)
@settings(max_examples=60, deadline=None)
def test_rows_by_number(rows, count, width, kind, whole):
    table_of, by = numbers((rows, width), kind, 1), torch.randint(rows, (count,)).to(whole)
    out = torch.zeros(count, width, dtype=kind)
    run(aten.index_select.out, table_of, 0, by, out=out)
    same(out, table_of[by.long()])
    into, new = numbers((rows, width), kind, 2), numbers((min(count, rows), width), kind, 3)
    places = torch.randperm(rows)[: len(new)]
    want = into.index_copy(0, places, new)
    run(aten.index_copy_.default, into, 0, places, new)
    same(into, want)


@pytest.mark.parametrize("wrong", [-1, 5, 1 << 40, -(1 << 62)])
def test_a_row_that_is_not_there_is_torchs_error_and_nothing_is_written(wrong: int):
    rows, by, out = torch.randn(5, 4), torch.tensor([0, wrong]), torch.zeros(2, 4)
    with pytest.raises(LookupError, match="was not made"):
        run(aten.index_select.out, rows, 0, by, out=out)
    before = rows.clone()
    with pytest.raises(LookupError, match="was not made"):
        run(aten.index_copy_.default, rows, 0, by, torch.ones(2, 4))
    assert not out.any() and torch.equal(rows, before)


@given(st.sampled_from(["mean", "sum"]), SHAPES, FLOATS, LAYOUTS, st.booleans(), st.integers(0, 50))
@settings(max_examples=80, deadline=None)
def test_sums_of_rows(name, shape, kind, how, keep, seed):
    x = laid(numbers(shape, kind, seed, special=False), how)
    want = getattr(x.double(), name)(-1, keepdim=keep)
    out = torch.zeros(want.shape, dtype=kind)
    run(aten.mean.out if name == "mean" else aten.sum.IntList_out, x, [-1], keep, out=out)
    same(out, want.to(kind), 1e-5)


def test_a_long_sum_loses_nothing_that_torch_keeps():
    x = torch.full((2, 8192), 0.1)
    out = torch.zeros(2)
    run(aten.sum.IntList_out, x, [-1], out=out)
    assert (out.double() - x.double().sum(-1)).abs().max() < 3.1e-5  # half the last place of 819


@given(SHAPES, FLOATS, LAYOUTS, st.integers(0, 50))
@settings(max_examples=80, deadline=None)
def test_softmax_of_rows(shape, kind, how, seed):
    x = laid(numbers(shape, kind, seed, special=False), how)
    x[..., 0] = -math.inf if shape[-1] > 1 else 0.0
    want = x.double().softmax(-1).to(kind)
    out = torch.zeros(shape, dtype=kind)
    run(aten._softmax.out, x, -1, False, out=out)
    same(out, want, 1e-6)
    run(aten._softmax.out, x, len(shape) - 1, False, out=x)
    same(x, out)
    same(x.double().sum(-1), torch.ones(shape[:-1], dtype=torch.double), 2e-2)


@given(SHAPES, FLOATS, st.booleans(), st.booleans(), st.integers(0, 50))
@settings(max_examples=80, deadline=None)
def test_layer_norms(shape, kind, has_bias, in_place, seed):
    x = numbers(shape, kind, seed, special=False)
    weight = numbers(shape[-1:], kind, seed + 1, special=False)
    bias = numbers(shape[-1:], kind, seed + 2, special=False) if has_bias else None
    wide = None if bias is None else bias.double()
    want = torch.nn.functional.layer_norm(x.double(), shape[-1:], weight.double(), wide, 1e-5).to(kind)
    out = x if in_place else torch.zeros_like(x)
    run(aten.layer_norm.default, x, [shape[-1]], weight, bias, 1e-5, targets=[out])
    same(out, want, 2e-4)


@pytest.mark.parametrize("width", [8, 384])
def test_a_norm_of_rows_far_from_zero_keeps_what_they_differ_by(width: int):
    x = torch.randn(20, width) - 3000.0
    out, one = torch.zeros_like(x), torch.ones(width)
    run(aten.layer_norm.default, x, [width], one, None, 1e-5, targets=[out])
    same(out, torch.nn.functional.layer_norm(x.double(), (width,)).float(), 1e-5)


def test_a_norm_beside_its_statistics_is_torchs():
    x, weight = torch.randn(3, 8), torch.ones(8)
    given = (x, [8], weight, None, 1e-5), {}
    out = torch.zeros(3, 8)
    assert table.steps(aten.native_layer_norm.default, *given, [out, None, None]) is not None
    assert table.steps(aten.native_layer_norm.default, *given, [out, torch.zeros(3, 1), None]) is None


@given(st.integers(1, 9), st.sampled_from([1, 7, 32, 384, 1000]), FLOATS, st.integers(0, 200))
@settings(max_examples=120, deadline=None)
def test_rows_of_int8_are_rounded_bit_for_bit(rows, width, kind, seed):
    x = numbers((rows, width), kind, seed, special=False) * 10.0 ** (seed % 7 - 4)
    x[0] = 0 if seed % 4 == 0 else x[0]
    tokens, scale = torch.zeros(rows, width, dtype=torch.int8), torch.zeros(rows, 1)
    run(air.dynamic_quant.out, x, tokens=tokens, scale=scale)
    want, factors = air.dynamic_quant(x)
    same(tokens, want)
    same(scale, factors)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_the_scale_of_a_row_that_is_not_finite_is_nan(value: float):
    x = torch.ones(2, 40)
    x[1, 33] = value
    tokens, scale = torch.zeros(2, 40, dtype=torch.int8), torch.zeros(2, 1)
    run(air.dynamic_quant.out, x, tokens=tokens, scale=scale)
    assert scale[1].isnan() and scale[0] == air.dynamic_quant(x)[1][0]


@pytest.mark.parametrize("op", [-1, 20, 31, 97, 127])
def test_a_step_that_the_library_does_not_know_is_not_made(op: int):
    out = torch.zeros(4)
    lies = [Lies(out.data_ptr(), (1,), 0)] * 2
    calls: list[int] = []
    unknown = Steps(written(op, 1, (4,), lies, 0.0, (0, 0)), 1)
    Joined([(Named(lambda: calls.append(op), "here"), unknown)], library.run())()
    assert calls == [op] and not out.any()


@pytest.mark.parametrize("shape", [(2, 8, 4, 4), (1, 8, 3, 5, 2), (6, 1, 4, 1)])
def test_numbers_that_lie_alike_without_gaps_are_one_row_in_whatever_order(shape: tuple[int, ...]):
    x, y = (torch.randn(shape).movedim(1, -1).contiguous().movedim(-1, 1) for _ in range(2))
    made = table.steps(aten.add_.Tensor, (x, y), {})
    _, dims, operands, *sizes = HEAD.unpack_from(made.data)
    assert (dims, operands, sizes[0]) == (1, 3, x.numel())
    want = x + y
    run(aten.add_.Tensor, x, y)
    same(x, want)


@pytest.mark.parametrize("kind", [F32, BF16])
def test_many_numbers_are_made_where_torch_is_slow(kind, monkeypatch: pytest.MonkeyPatch):
    x = torch.randn(3, 1 << 16).to(kind)
    out = torch.zeros_like(x)
    run(aten.tanh.out, x, out=out)
    same(out, x.double().tanh().to(kind), 2e-6)
    run(aten.gelu.out, x, approximate="tanh", out=out)
    same(out, torch.nn.functional.gelu(x.double(), approximate="tanh").to(kind), 1e-5)
    assert table.steps(aten.gelu.out, (x,), {"out": out}) is None
    monkeypatch.setattr(library, "is_wide", lambda: False)
    assert table.steps(aten.tanh.out, (x,), {"out": out}) is None


DECLINED = {
    "float64": lambda: (aten.add.out, (torch.ones(3, dtype=torch.double), 1.0), torch.ones(3, dtype=torch.double)),
    "whole numbers": lambda: (aten.add.out, (torch.ones(3, dtype=torch.int64), 1), torch.ones(3, dtype=torch.int64)),
    "a wider result": lambda: (aten.add.out, (torch.ones(3), torch.ones(1)), torch.ones(2, 3)),
    "a narrower result": lambda: (aten.add.out, (torch.ones(3), torch.ones(3)), torch.ones(3, dtype=BF16)),
    "two dtypes": lambda: (aten.mul.out, (torch.ones(3, dtype=BF16), torch.ones(())), torch.ones(3, dtype=BF16)),
    "a cube": lambda: (aten.pow.Tensor_Scalar_out, (torch.ones(3), 3), torch.ones(3)),
    "another dimension": lambda: (aten.mean.out, (torch.ones(3, 4), [0]), torch.ones(4)),
    "columns by number": lambda: (aten.index_select.out, (torch.ones(3, 4), 1, torch.tensor([0])), torch.ones(3, 1)),
    "a row too long": lambda: (aten.mean.out, (torch.ones(2, 9000), [1]), torch.ones(2)),
    "many numbers": lambda: (aten.mul.out, (torch.ones(1 << 17), 2.0), torch.ones(1 << 17)),
    "complex": lambda: (aten.mul.out, (torch.ones(3), 2j), torch.ones(3, dtype=torch.complex64)),
    "nothing": lambda: (aten.mul.out, (torch.ones(0), 2.0), torch.ones(0)),
    "six dimensions": lambda: (
        aten.neg.out, (torch.ones(4, 4, 4, 4, 4, 4)[::2, ::2, ::2, ::2, ::2, ::2],), torch.ones(2, 2, 2, 2, 2, 2),
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", sorted(DECLINED))
def test_what_is_no_small_op(what: str):
    op, args, out = DECLINED[what]()
    assert table.steps(op, args, {"out": out}) is None


def test_memory_that_is_read_after_it_is_written_is_torchs():
    memory = torch.arange(10.0)
    assert table.steps(aten.neg.out, (memory[:5],), {"out": memory[3:8]}) is None
    assert table.steps(aten.neg.out, (memory[:5],), {"out": memory[:5]}) is not None
    square = torch.ones(4, 4)
    assert table.steps(aten.add.out, (square, square.t()), {"out": square}) is None
    assert table.steps(aten.copy_.default, (torch.ones(1).expand(4), torch.ones(4)), {}) is None
    rows = torch.randn(4, 8)
    assert table.steps(aten.index_select.out, (rows, 0, torch.tensor([1, 0])), {"out": rows[:2]}) is None


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_any_number_of_threads_gives_the_same(threads: int):
    before = torch.get_num_threads()
    x, y, out = torch.randn(48, 1100), torch.randn(48, 1100), torch.zeros(48, 1100)
    torch.set_num_threads(threads)
    try:
        run(aten.mul.out, x, y, out=out)
        run(aten.layer_norm.default, out, [1100], torch.ones(1100), None, 1e-5, targets=[out])
    finally:
        torch.set_num_threads(before)
    same(out, torch.nn.functional.layer_norm(x * y, (1100,)), 1e-4)
