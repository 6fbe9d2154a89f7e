"""Attention as steps: the numbers of its definition, whatever is hidden, and torch's where that is faster."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from small_steps import BF16, F16, F32, needs_kernels, numbers, pays, run, same

from aotair_runtime.steps import library, table
from aotair_runtime.steps.join import Joined, Named

pytestmark = [needs_kernels, pytest.mark.usefixtures("whatever_pays")]

aten, air = torch.ops.aten, torch.ops.air
FLOATS = st.sampled_from([F32, BF16, F16])


def near(out: torch.Tensor, want: torch.Tensor, most: torch.Tensor) -> None:
    """Within what rounding does. `most`: the same of the values' sizes: powers are rounded to bfloat16, too, where
    there are instructions for products of these, as they are by torch's kernel."""
    if out.dtype != BF16:
        same(out, want.to(out.dtype), 1e-4)
        return
    rounded = torch.finfo(BF16).eps / 2
    assert ((out.double() - want).abs() <= 1e-4 + rounded * (most + want.abs())).all()


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
    powers = scores.softmax(-1).nan_to_num(0.0)  # a row that sees nothing is 0
    near(out, *(powers @ side.repeat_interleave(share, 1) for side in (wide[2], wide[2].abs())))


@pytest.mark.parametrize("rows", [2, 7, 70])
@pytest.mark.parametrize("kind", [F32, BF16])
def test_what_no_query_sees_may_be_anything_and_a_query_that_is_none_spoils_its_own_row(rows: int, kind):
    query, key, value = (torch.randn(1, 2, length, 33).to(kind) for length in (rows, 100, 100))
    seen = torch.rand(rows, 100) < 0.7
    seen[:, [3, 50, 99]], seen[1] = False, False
    given = query.double(), key.double()
    want, most = (
        torch.nn.functional.scaled_dot_product_attention(*given, side, seen)
        for side in (value.double(), value.double().abs())
    )
    key[:, :, [3, 50, 99]], value[:, :, [3, 50, 99]] = math.nan, math.inf
    query[:, :, 0, 5] = math.nan
    out = torch.zeros_like(query)
    run(aten.scaled_dot_product_attention.default, query, key, value, targets=[out], attn_mask=seen)
    assert out[:, :, 0].isnan().all() and not out[:, :, 1].any()
    near(*(one[:, :, 2:] for one in (out, want, most)))


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
    exact = [one.double() if torch.is_tensor(one) and one.is_floating_point() else one for one in given]
    want, most = (air.paged_attention(*exact[:2], side, *exact[3:]) for side in (exact[2], exact[2].abs()))
    unseen = torch.ones(blocks, block, dtype=torch.bool)
    for item in range(batch):  # what lies beyond a sequence may be anything
        unseen[places[item]] &= ~mask[item, 0, 0].view(columns, block)
    keys[unseen.view(-1)], values[unseen.view(-1)] = math.nan, math.inf
    out = torch.zeros_like(query)
    run(air.paged_attention.out, *given, out=out)
    near(out, want, most)


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
