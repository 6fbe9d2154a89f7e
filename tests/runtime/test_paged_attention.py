"""Attention over blocks of a cache: the numbers of torch's own, and nothing read or written where it should not be."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from aotair_runtime.devices.attention import OP, Step, prepared

OUT = torch.ops.air.paged_attention.out


def arguments(batch=2, heads=4, groups=2, tokens=3, width=8, columns=3, block=4, spare=2, kind=torch.float32, seed=0):
    """Arguments that fit each other, with random lengths and blocks."""
    generator = torch.Generator().manual_seed(seed)
    blocks, length = batch * columns + spare, columns * block
    query = torch.randn(batch, heads, tokens, width, generator=generator).to(kind)
    keys, values = (torch.randn(blocks * block, groups * width, generator=generator).to(kind) for _ in range(2))
    table = torch.randperm(blocks, generator=generator)[: batch * columns].view(batch, columns)
    lengths = torch.randint(tokens, length + 1, (batch,), generator=generator) if tokens <= length else None
    last = lengths[:, None] - tokens + torch.arange(tokens)
    mask = (torch.arange(length) <= last[:, :, None])[:, None]
    return query, keys, values, table, mask, lengths, 0.3


def gathered(query, keys, values, table, mask, lengths, scale):
    """The same, with the blocks copied out and heads repeated, in float64."""
    heads, width = query.shape[1], query.shape[3]
    groups, block = keys.shape[1] // width, mask.shape[3] // table.shape[1]
    both = []
    for cache in (keys, values):
        rows = cache.view(-1, block, groups, width)[table].flatten(1, 2)
        both.append(rows.transpose(1, 2).repeat_interleave(heads // groups, 1).double())
    scores = (query.double() @ both[0].transpose(-1, -2) * scale).masked_fill(~mask, -torch.inf)
    return scores.softmax(-1) @ both[1]


@given(
    st.integers(1, 3), st.sampled_from([(1, 1), (4, 1), (4, 2), (6, 2), (3, 3)]), st.integers(1, 4),
    st.sampled_from([1, 8, 16]), st.integers(1, 4), st.sampled_from([4, 5, 16]), st.integers(0, 1000),
)  # fmt: skip
@settings(max_examples=150, deadline=None)
def test_the_numbers_are_those_of_plain_attention(batch, sizes, tokens, width, columns, block, seed):
    given = arguments(batch, *sizes, tokens, width, columns, block, seed=seed)
    torch.testing.assert_close(OP(*given).double(), gathered(*given), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("kind, error", [(torch.bfloat16, 2e-2), (torch.float16, 3e-3)])
def test_narrow_dtypes(kind: torch.dtype, error: float):
    given = arguments(kind=kind)
    torch.testing.assert_close(OP(*given).double(), gathered(*given), atol=error, rtol=error)


def test_caches_that_lie_turned():
    query, keys, values, *rest = arguments()
    turned = [part.t().contiguous().t() for part in (keys, values)]
    torch.testing.assert_close(OP(query, *turned, *rest), OP(query, keys, values, *rest))


def test_a_mask_with_a_window_is_heeded():
    query, keys, values, table, mask, lengths, scale = arguments()
    mask = mask & (torch.arange(12) > lengths[:, None, None, None] - 6)
    given = (query, keys, values, table, mask, lengths, scale)
    torch.testing.assert_close(OP(*given).double(), gathered(*given), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("kind, error", [(torch.float32, 1e-5), (torch.bfloat16, 2e-2)])
def test_whole_numbers_are_times_their_scales(kind: torch.dtype, error: float):
    query, keys, values, *rest = arguments()
    query, numbers = query.to(kind), [(one * 30).to(torch.int8) for one in (keys, values)]
    scales = [torch.rand(32, 2) / 20, torch.rand(32, 2) / 20]
    given = (query, *numbers, *rest, *scales)
    found = OP(*given)
    assert found.dtype == kind and torch.equal(OUT(*given, out=torch.empty_like(found)), found)
    wide = [(one.view(32, 2, -1) * scale[..., None]).flatten(1) for one, scale in zip(numbers, scales, strict=True)]
    torch.testing.assert_close(found.double(), gathered(query, *wide, *rest), atol=error, rtol=error)


@pytest.mark.parametrize("wrong", ["one", "shape", "dtype", "floats", "none"])
def test_scales_that_do_not_fit(wrong: str):
    query, keys, values, *rest = arguments()
    numbers, scales = [one.to(torch.int8) for one in (keys, values)], [torch.ones(32, 2), torch.ones(32, 2)]
    if wrong == "one":
        scales = scales[:1]
    elif wrong == "none":
        scales = []
    elif wrong == "floats":
        numbers = [keys, values]
    else:
        scales[1] = torch.ones(32, 3) if wrong == "shape" else torch.ones(32, 2, dtype=torch.float64)
    for call in (OP, lambda *given: OUT(*given, out=torch.empty_like(query))):
        with pytest.raises(ValueError, match="paged_attention takes"):
            call(query, *numbers, *rest, *scales)


def test_what_lies_behind_a_sequence_is_not_read():
    query, keys, values, table, mask, _, scale = arguments()
    lengths = torch.tensor([5, 3])
    mask = mask & (torch.arange(12) < lengths[:, None, None, None]) | (torch.arange(12) == 0)
    clean = OP(query, keys, values, table, mask, lengths, scale)
    for row, length in enumerate(lengths.tolist()):
        for place in range(length, 12):
            where = int(table[row, place // 4]) * 4 + place % 4
            keys[where], values[where] = torch.nan, torch.inf
    assert torch.equal(OP(query, keys, values, table, mask, lengths, scale), clean)


def test_into_a_place():
    given = arguments()
    out = torch.full((2, 4, 3, 8), torch.nan)
    assert OUT(*given, out=out) is out and torch.equal(out, OP(*given))
    wide = torch.full((2, 4, 3, 16), torch.nan)
    OUT(*given, out=wide[..., ::2])
    assert torch.equal(wide[..., ::2], out) and wide[..., 1::2].isnan().all()
    for wrong in (torch.empty(2, 4, 3, 9), torch.empty(1), torch.empty(2, 4, 3, 8, dtype=torch.float64)):
        with pytest.raises(ValueError, match="out is"):
            OUT(*given, out=wrong)


@pytest.mark.parametrize("lengths", [[-5, 0], [1 << 60, -(1 << 60)]])
def test_lengths_beyond_the_cache_stay_within_it(lengths):
    query, keys, values, table, mask, _, scale = arguments()
    found = OP(query, keys, values, table, torch.ones_like(mask), torch.tensor(lengths), scale)
    assert found.isfinite().all()


@pytest.mark.parametrize("block", [-1, 8, 1 << 40, -(1 << 62)])
def test_a_block_that_is_not_there(block: int):
    query, keys, values, table, mask, lengths, scale = arguments()
    table[1, 0] = block
    with pytest.raises(IndexError, match=f"block {block} of 8"):
        OP(query, keys, values, table, mask, lengths, scale)


WRONG = {
    "query": lambda a: a[0][0],
    "keys": lambda a: a[1][:, :9],
    "values": lambda a: a[2][:-1],
    "table": lambda a: a[3].float(),
    "mask": lambda a: a[4].float(),
    "lengths": lambda a: a[5][:1],
}


@pytest.mark.parametrize("place, kind", [(0, torch.int8), (3, torch.bool), (3, torch.complex64), (5, torch.complex64)])
def test_dtypes_that_no_call_has(place: int, kind: torch.dtype):
    given = list(arguments())
    for number in (0, 1, 2) if place == 0 else (place,):
        given[number] = given[number].to(kind)
    with pytest.raises(ValueError, match="paged_attention takes"):
        OP(*given)


@pytest.mark.parametrize("place, name", [*enumerate(WRONG)])
def test_arguments_that_do_not_fit_each_other(place: int, name: str):
    given = list(arguments())
    given[place] = WRONG[name](given)
    with pytest.raises(ValueError, match="paged_attention takes"):
        OP(*given)


def test_empty_sizes_are_errors_or_empty():
    query, keys, values, table, mask, lengths, scale = arguments()
    with pytest.raises(ValueError):
        OP(query, keys, values, table[:, :0], mask[..., :0], lengths, scale)
    with pytest.raises(ValueError):
        OP(query[..., :0], keys[:, :0], values, table, mask, lengths, scale)
    assert OP(query[:0], keys, values, table[:0], mask[:0], lengths[:0], scale).shape == (0, 4, 3, 8)


# ---- calls whose memory stays ----------------------------------------------------------------------------------------


@given(
    st.integers(1, 3), st.sampled_from([(1, 1), (4, 1), (4, 2), (3, 3)]), st.integers(1, 3),
    st.sampled_from([4, 5, 16]), st.sampled_from([torch.float32, torch.bfloat16]), st.integers(0, 1000),
)  # fmt: skip
@settings(max_examples=100, deadline=None)
def test_a_step_of_one_token_gives_the_bits_of_the_op(batch, sizes, columns, block, kind, seed):
    given = arguments(batch, *sizes, 1, 8, columns, block, kind=kind, seed=seed)
    out = torch.full_like(given[0], torch.nan)
    step = prepared(given, {"out": out})
    assert isinstance(step, Step)
    for _ in range(3):  # other numbers at the same addresses
        step()
        assert torch.equal(out, OP(*given))
        for tensor in given[:3]:
            tensor.copy_(torch.randn(tensor.shape))
        given[3].copy_(given[3].flatten()[torch.randperm(given[3].numel())].view(given[3].shape))
        given[5].copy_(torch.randint(1, columns * block + 1, given[5].shape))
        given[4].copy_((torch.arange(columns * block) < given[5][:, None])[:, None, None])


@pytest.mark.parametrize("what", ["tokens", "turned caches", "turned query", "int8"])
def test_what_is_no_plain_step_is_the_ops_own_call(what: str):
    given = list(arguments(tokens=2 if what == "tokens" else 1))
    if what == "turned caches":
        given[1:3] = [part.t().contiguous().t() for part in given[1:3]]
    elif what == "turned query":
        given[0] = given[0].transpose(0, 1).contiguous().transpose(0, 1)
    elif what == "int8":
        given[1:3] = [(one * 30).to(torch.int8) for one in given[1:3]]
        given += [torch.rand(32, 2) / 20, torch.rand(32, 2) / 20]
    out = torch.full(given[0].shape, torch.nan)
    call = prepared(given, {"out": out})
    assert call is not None and not isinstance(call, Step)
    call()
    assert torch.equal(out, OP(*given))


@pytest.mark.parametrize("block", [-1, 8, 2**40])
def test_a_step_refuses_a_block_that_does_not_exist(block: int):
    given = arguments(tokens=1, columns=1)
    given[3][1, 0] = block
    step = prepared(given, {"out": torch.empty_like(given[0])})
    with pytest.raises(IndexError, match=f"block {block} of 4"):
        step()
