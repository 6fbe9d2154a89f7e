"""Small ops as steps: the numbers of torch's ops, and torch's calls where the library takes none."""

import dataclasses
import itertools
import math
from collections.abc import Sequence
from importlib.util import find_spec

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from aotair_runtime.devices import onednn_product
from aotair_runtime.devices.onednn_library import Blocks
from aotair_runtime.devices.onednn_product import LibraryWeight
from aotair_runtime.steps import attention, library, products, table
from aotair_runtime.steps.join import Joined, Named
from aotair_runtime.steps.written import Lies, Steps, written

pytestmark = pytest.mark.skipif(find_spec("aotair_kernels") is None, reason="aotair-kernels is not installed")

aten, air = torch.ops.aten, torch.ops.air
pays = attention._pays
BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32
SPECIAL = (0.0, -0.0, 1.0, math.inf, -math.inf, math.nan, 1e-40, -1e-40, 3e38, 88.7, -103.0, 0.49, -0.51, 1e4)


@pytest.fixture(autouse=True, scope="module")
def whatever_pays():
    """Kernels are right where torch's are faster, too."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(library, "is_wide", lambda: True)
        patch.setattr(attention, "_pays", lambda *_: True)
        yield


def run(op: torch._ops.OpOverload, *args: object, targets: Sequence[torch.Tensor] | None = None, **kwargs: object):
    """Make the call as steps, and nothing else."""
    made = table.steps(op, args, kwargs, targets)
    assert made is not None, "no small op"
    Joined([(Named(_refused, "here"), made)], library.run())()


def _refused() -> None:
    raise LookupError("the step was not made")


def numbers(shape: Sequence[int], kind: torch.dtype, seed: int, *, special: bool = True) -> torch.Tensor:
    made = torch.randn(tuple(shape), generator=torch.Generator().manual_seed(seed)) * 2
    flat = made.view(-1)
    if special:
        for place, value in zip(range(seed % 3, len(flat), 7), itertools.cycle(SPECIAL)):
            flat[place] = value
    return made.to(kind)


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


def same(got: torch.Tensor, want: torch.Tensor, away: float = 0.0) -> None:
    """Equal where `away` is 0, else near; in halves at most a rounding more."""
    if away == 0.0:
        torch.testing.assert_close(got, want, rtol=0, atol=0, equal_nan=True)
    else:
        step = torch.finfo(got.dtype).eps if got.dtype != F32 else 0.0
        torch.testing.assert_close(got, want, rtol=away + step, atol=away, equal_nan=True)


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


@given(
    st.integers(1, 3), st.integers(1, 3), st.sampled_from([1, 2, 4]), st.integers(1, 40) | st.just(130),
    st.integers(1, 90) | st.just(200), st.sampled_from([1, 8, 33, 64]), FLOATS,
    st.sampled_from(["none", "bool", "floats", "dead"]), st.integers(0, 50),
)  # fmt: skip
@settings(max_examples=150, deadline=None)
def test_attention(batch, groups, share, rows, tokens, width, kind, mask, seed):
    heads = groups * share
    query, key, value = (
        numbers((batch, length, many, width), kind, seed + at, special=False).transpose(1, 2)
        for at, (length, many) in enumerate([(rows, heads), (tokens, groups), (tokens, groups)])
    )
    said = None
    if mask == "bool" or mask == "dead":
        said = torch.rand(batch, 1, rows, tokens) < (0.6 if mask == "bool" else 0.2)
    elif mask == "floats":
        said = torch.randn(rows, tokens).to(kind)
    out = torch.zeros(batch, rows, heads, width, dtype=kind).transpose(1, 2)
    options = {"attn_mask": said, "scale": 0.2, "enable_gqa": share > 1}
    run(aten.scaled_dot_product_attention.default, query, key, value, targets=[out], **options)
    wide = [one.double() for one in (query, key, value)]
    other = said if said is None or said.dtype == torch.bool else said.double()
    scores = wide[0] @ wide[1].repeat_interleave(share, 1).transpose(2, 3) * 0.2
    if other is not None:
        scores = scores.masked_fill(~other, -math.inf) if other.dtype == torch.bool else scores + other
    want = scores.softmax(-1).nan_to_num(0.0) @ wide[2].repeat_interleave(share, 1)  # a row that sees nothing is 0
    same(out, want.to(kind), 1e-4)


@pytest.mark.parametrize("rows", [2, 7, 70])
@pytest.mark.parametrize("kind", [F32, BF16])
def test_what_no_query_sees_may_be_anything_and_a_query_that_is_none_spoils_its_own_row(rows: int, kind):
    query, key, value = (torch.randn(1, 2, length, 33).to(kind) for length in (rows, 100, 100))
    seen = torch.rand(rows, 100) < 0.7
    seen[:, [3, 50, 99]], seen[1] = False, False
    want = torch.nn.functional.scaled_dot_product_attention(query.double(), key.double(), value.double(), seen)
    key[:, :, [3, 50, 99]], value[:, :, [3, 50, 99]] = math.nan, math.inf
    query[:, :, 0, 5] = math.nan
    out = torch.zeros_like(query)
    run(aten.scaled_dot_product_attention.default, query, key, value, targets=[out], attn_mask=seen)
    assert out[:, :, 0].isnan().all() and not out[:, :, 1].any()
    same(out[:, :, 2:], want[:, :, 2:].to(kind), 1e-4)


@given(
    st.integers(1, 4), st.integers(1, 3), st.sampled_from([1, 3, 16]), st.sampled_from([4, 16, 100]), st.integers(1, 3),
    st.sampled_from([8, 64]), FLOATS, st.integers(0, 50),
)  # fmt: skip
@settings(max_examples=100, deadline=None)
def test_attention_over_a_cache(batch, groups, share, block, columns, width, kind, seed):
    blocks, heads = batch * columns + 2, groups * share
    draw = torch.Generator().manual_seed(seed)
    query = numbers((batch, heads, 1, width), kind, seed, special=False)
    keys, values = (numbers((blocks * block, groups * width), kind, seed + n, special=False) for n in (1, 2))
    places = torch.randperm(blocks, generator=draw)[: batch * columns].view(batch, columns)
    lengths = torch.randint(1, columns * block + 1, (batch,), generator=draw)
    mask = torch.arange(columns * block) < lengths.view(-1, 1, 1, 1)
    mask &= (torch.rand(batch, 1, 1, columns * block, generator=draw) < 0.8) | (torch.arange(columns * block) == 0)
    given = (query, keys, values, places, mask, lengths, 0.3)
    want = air.paged_attention(
        *(one.double() if torch.is_tensor(one) and one.is_floating_point() else one for one in given)
    )
    unseen = torch.ones(blocks, block, dtype=torch.bool)
    for item in range(batch):  # what lies beyond a sequence may be anything
        unseen[places[item]] &= ~mask[item, 0, 0].view(columns, block)
    keys[unseen.view(-1)], values[unseen.view(-1)] = math.nan, math.inf
    out = torch.zeros_like(query)
    run(air.paged_attention.out, *given, out=out)
    same(out, want.to(kind), 1e-4)


@pytest.mark.parametrize("wrong", [-1, 4, 1 << 40])
def test_a_block_that_is_not_there_is_the_ops_error(wrong: int):
    query, rows, out = torch.randn(2, 2, 1, 8), torch.randn(16, 8), torch.zeros(2, 2, 1, 8)
    places, mask = torch.tensor([[0, 1], [2, wrong]]), torch.ones(2, 1, 1, 8, dtype=torch.bool)
    given = (query, rows, rows.clone(), places, mask, torch.tensor([8, 8]), 1.0)
    made = table.steps(air.paged_attention.out, given, {"out": out})
    call = Joined([(Named(lambda: air.paged_attention.out(*given, out=out), "attention"), made)], library.run())
    with pytest.raises(LookupError, match="was not made"):
        run(air.paged_attention.out, *given, out=out)
    assert not out.any()
    with pytest.raises(IndexError, match="block"):
        call()
    assert call.failing == "attention"
    places[1, 1] = 3
    call()
    same(out, air.paged_attention(*given), 1e-5)


@given(st.integers(1, 16), st.integers(1, 70), st.integers(1, 140) | st.just(1536), FLOATS, st.integers(0, 50))
@settings(max_examples=120, deadline=None)
def test_products_of_few_rows_with_a_weight_of_int8(rows, n, width, kind, seed):
    x = numbers((rows, width), kind, seed, special=False)
    draw = torch.Generator().manual_seed(seed)
    weight = torch.randint(-128, 128, (n, width), generator=draw).to(torch.int8)
    scale = (torch.rand(n, generator=draw) / 127).to(kind)
    out = torch.zeros(rows, n, dtype=kind)
    run(air.linear_int8.out, x, weight, scale, out=out)
    want = (x.double() @ weight.double().t()) * scale.double()
    parts = (x.double().abs() @ weight.double().abs().t()) * scale.double()
    assert ((out.double() - want).abs() <= torch.finfo(kind).eps * want.abs() + 1e-6 * parts + 1e-7).all()
    many = torch.zeros(17, width, dtype=kind)
    assert table.steps(air.linear_int8.out, (many, weight, scale), {"out": torch.zeros(17, n, dtype=kind)}) is None
    wrong = {"out": torch.zeros(rows, n + 1, dtype=kind)}
    assert table.steps(air.linear_int8.out, (x, weight, scale), wrong) is None


# ---- products with weights in oneDNN's blocks ------------------------------------------------------------------------

BLOCKED = [kind for kind in (F32, BF16) if onednn_product.has_kernels(kind)]
needs_blocks = pytest.mark.skipif(not BLOCKED, reason="no library of oneDNN with fast kernels for this processor")


def blocked(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> Steps | None:
    """The product as steps, with its result in `blocked.out`."""
    packed = LibraryWeight(weight)
    out = torch.full((len(x), len(weight)), 7.0, dtype=x.dtype)
    op, args = (aten.mm.out, (x, weight.t())) if bias is None else (aten.addmm.out, (bias, x, weight.t()))
    made = products.linear_blocks(packed, op, args, {"out": out}, None)
    return None if made is None else dataclasses.replace(made, kept=(packed._packed, out))


def multiplied(made: Steps | None) -> torch.Tensor:
    assert made is not None, "no small op"
    Joined([(Named(_refused, "here"), made)], library.run())()
    return made.kept[1]


@needs_blocks
@given(
    st.integers(1, 8), st.integers(1, 200) | st.just(1000), st.integers(1, 150) | st.sampled_from([576, 1537]),
    st.booleans(), st.sampled_from(BLOCKED or [F32]), st.integers(0, 50),
)  # fmt: skip
@settings(max_examples=150, deadline=None)
def test_products_of_few_rows_with_a_weight_in_blocks(rows, n, width, has_bias, kind, seed):
    x, weight = numbers((rows, width), kind, seed, special=False), numbers((n, width), kind, seed + 1, special=False)
    bias = numbers((n,), kind, seed + 2, special=False) if has_bias else None
    taken = onednn_product.takes((n, width), kind)
    made = blocked(x, weight, bias) if taken else None
    assert (made is None) is (not taken or rows > (8 if kind == F32 else 4) or (kind == BF16 and width % 2 == 1))
    if made is None:
        return
    added = 0.0 if bias is None else bias.double()
    want, parts = x.double() @ weight.double().t() + added, x.double().abs() @ weight.double().abs().t()
    got = multiplied(made).double()
    assert ((got - want).abs() <= torch.finfo(kind).eps * want.abs() + 2e-6 * parts + 1e-7).all()


@needs_blocks
@pytest.mark.parametrize("kind", BLOCKED)
@pytest.mark.parametrize("place", [0, 63, 64, 191])
def test_what_is_no_number_spoils_its_own_row_and_column(place: int, kind: torch.dtype):
    x, weight = torch.randn(3, 192).to(kind), torch.randn(192, 192).to(kind)
    x[1, place], weight[place, 191 - place] = math.nan, math.inf
    got = multiplied(blocked(x, weight))
    same(got, (x.double() @ weight.double().t()).to(kind), 1e-2 if kind == BF16 else 1e-4)
    assert got[1].isnan().all() and got[0].isfinite().sum() == 191


@needs_blocks
@pytest.mark.parametrize("kind", BLOCKED)
def test_a_row_has_the_same_bits_whatever_rows_and_threads_there_are(kind: torch.dtype):
    before, x, weight = torch.get_num_threads(), torch.randn(4, 576).to(kind), torch.randn(200, 576).to(kind)
    whole = multiplied(blocked(x, weight))
    try:
        for threads in (1, 2, 5):
            torch.set_num_threads(threads)
            for row in range(4):
                assert torch.equal(multiplied(blocked(x[row : row + 1], weight))[0], whole[row])
            assert torch.equal(multiplied(blocked(x[:3], weight)), whole[:3])
    finally:
        torch.set_num_threads(before)


@needs_blocks
def test_products_with_blocks_that_are_not_taken(monkeypatch):
    packed, x, weight = LibraryWeight(torch.randn(64, 128)), torch.randn(2, 128), torch.randn(64, 128)
    given, out = (aten.mm.out, (x, weight.t())), torch.empty(2, 64)
    linear = (aten.linear.default, (x, weight), {})
    assert products.linear_blocks(packed, *linear, [out]) is not None
    assert products.linear_blocks(packed, *linear, [None]) is None, "nobody has the result"
    assert products.linear_blocks(packed, *linear, [out, out]) is None
    assert products.linear_blocks(packed, *linear, [torch.empty(3, 64)]) is None
    assert products.linear_blocks(packed, *given, {"out": x[:, :64]}, None) is None, "written over what is read"
    wide = torch.randn(8, 20000)
    assert blocked(wide, torch.randn(64, 20000)) is None, "more numbers than a thread holds"
    monkeypatch.setattr(packed, "block_bytes", 0)
    assert products.linear_blocks(packed, *given, {"out": out}, None) is None, "it lies otherwise"
    monkeypatch.undo()
    monkeypatch.setattr(library, "is_wide", lambda: False)
    assert products.linear_blocks(packed, *given, {"out": out}, None) is None


@pytest.mark.parametrize(
    ("blocks", "width", "kind", "nbytes"),
    [
        (Blocks((1024, 9216), (16, 64), (0, 1)), 140, F32, 144 * 64 * 4),
        (Blocks((2048, 10240), (16, 64, 2), (0, 1, 0)), 140, BF16, 160 * 64 * 2),
        (Blocks((1024, 9216), (16, 64), (0, 1)), 150, F32, 0),  # more than a block holds
        (Blocks((1024, 8192), (16, 64), (0, 1)), 140, F32, 0),  # with something between
        (Blocks((1024, 9216), (16, 64), (1, 0)), 140, F32, 0),  # the other way
        (Blocks((768, 9216), (16, 48), (0, 1)), 140, F32, 0),  # narrower
        (Blocks((2048, 10240), (16, 64, 2), (0, 1, 0)), 140, F32, 0),  # in pairs
        (Blocks((1024, 9216), (16, 64), (0, 1)), 140, BF16, 0),  # not in pairs
        (Blocks((4096, 10240), (16, 64, 4), (0, 1, 0)), 140, BF16, 0),  # in fours
        (Blocks((1, 140), (), ()), 140, F32, 0),  # in rows
    ],
)
def test_which_blocks_are_read(blocks: Blocks, width: int, kind: torch.dtype, nbytes: int):
    assert onednn_product._block_bytes(blocks, width, kind) == nbytes


@pytest.mark.parametrize("rows", [1, 4, 8])
def test_a_value_that_is_none_counts_where_it_may_be_seen_however_little(rows: int):
    query, key, value = torch.zeros(1, 2, rows, 16), torch.zeros(1, 2, 66, 16), torch.randn(1, 2, 66, 16)
    query[..., 0], key[..., 0], key[:, :, 7, 0] = 40.0, 10.0, -10.0  # its power is 0
    value[:, :, 7] = math.nan
    out = torch.zeros_like(query)
    run(aten.scaled_dot_product_attention.default, query, key, value, targets=[out])
    assert out.isnan().all()


@pytest.mark.parametrize(
    ("rows", "keys", "halves", "wide", "taken"),
    [
        (6, 8192, False, True, True),
        (6, 8193, False, True, False),
        (6, 6, False, False, False),
        (5, 25, False, False, True),
        (5, 26, False, True, False),
        (1, 1023, False, False, True),
        (1, 1024, False, True, False),
        (4, 1024, True, False, True),
    ],
)
def test_attention_that_torch_makes_faster_is_torchs(rows, keys, halves, wide, taken, monkeypatch):
    monkeypatch.setattr(library, "is_wide", lambda: wide)
    assert pays(rows, keys, halves) is taken


def test_products_with_int8_are_torchs_where_registers_are_narrow(monkeypatch):
    monkeypatch.setattr(library, "is_wide", lambda: False)
    given = torch.ones(1, 32), torch.ones(4, 32, dtype=torch.int8), torch.ones(4)
    assert table.steps(air.linear_int8.out, given, {"out": torch.zeros(1, 4)}) is None


@pytest.mark.parametrize("op", [-1, 20, 31, 97, 127])
def test_a_step_that_the_library_does_not_know_is_not_made(op: int):
    out = torch.zeros(4)
    lies = [Lies(out.data_ptr(), (1,), 0)] * 2
    calls: list[int] = []
    unknown = Steps(written(op, 1, (4,), lies, 0.0, (0, 0)), 1)
    Joined([(Named(lambda: calls.append(op), "here"), unknown)], library.run())()
    assert calls == [op] and not out.any()


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
