"""Attention over latents of a cache: the numbers of plain attention, and nothing read where it should not be."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from aotair_runtime.devices.latent_attention import OP

OUT = torch.ops.air.latent_attention.out
RANK, ROPE = 8, 4


def arguments(batch=2, heads=4, tokens=3, columns=3, block=4, spare=2, kind=torch.float32, seed=0):
    """Arguments that fit each other, with random lengths and blocks."""
    generator = torch.Generator().manual_seed(seed)
    blocks, length = batch * columns + spare, columns * block

    def some(*shape):
        return torch.randn(*shape, generator=generator).to(kind)

    queries = some(batch, heads, tokens, RANK), some(batch, heads, tokens, ROPE)
    caches = some(blocks * block, RANK), some(blocks * block, ROPE)
    table = torch.randperm(blocks, generator=generator)[: batch * columns].view(batch, columns)
    lengths = torch.randint(min(tokens, length), length + 1, (batch,), generator=generator)
    last = lengths[:, None] - tokens + torch.arange(tokens)
    mask = (torch.arange(length) <= last[:, :, None].clamp(min=0))[:, None]
    return *queries, *caches, table, mask, lengths, 0.3


def plain(query, query_rope, latents, ropes, table, mask, lengths, scale):
    """The same as attention over keys of both parts, in float64, with the blocks copied out."""
    block = mask.shape[3] // table.shape[1]
    keys, angles = (cache.unflatten(0, (-1, block))[table].flatten(1, 2).double() for cache in (latents, ropes))
    asked, both = torch.cat((query, query_rope), -1).double(), torch.cat((keys, angles), -1)
    scores = asked @ both[:, None].transpose(-1, -2) * scale
    return scores.masked_fill(~mask, -torch.inf).softmax(-1) @ keys[:, None]


@given(st.integers(1, 3), st.integers(1, 6), st.integers(1, 4), st.integers(1, 4), st.sampled_from([4, 5, 16]),
       st.integers(0, 1000))  # fmt: skip
@settings(max_examples=100, deadline=None)
def test_the_numbers_are_those_of_plain_attention(batch, heads, tokens, columns, block, seed):
    some = arguments(batch, heads, tokens, columns, block, seed=seed)
    torch.testing.assert_close(OP(*some).double(), plain(*some), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("kind, error", [(torch.bfloat16, 2e-2), (torch.float16, 3e-3), (torch.float64, 1e-12)])
def test_other_dtypes(kind: torch.dtype, error: float):
    some = arguments(kind=kind)
    found = OP(*some)
    assert found.dtype == kind
    torch.testing.assert_close(found.double(), plain(*some), atol=error, rtol=error)


def test_keys_without_a_rotated_part():
    query, rope, latents, ropes, *rest = arguments()
    some = (query, rope[..., :0], latents, ropes[:, :0], *rest)
    torch.testing.assert_close(OP(*some).double(), plain(*some), atol=1e-5, rtol=1e-5)


def test_caches_that_lie_turned():
    query, rope, latents, ropes, *rest = arguments()
    turned = [part.t().contiguous().t() for part in (latents, ropes)]
    assert torch.equal(OP(query, rope, *turned, *rest), OP(query, rope, latents, ropes, *rest))


def test_queries_that_lie_turned():
    query, rope, *rest = arguments()
    turned = [part.transpose(1, 2).contiguous().transpose(1, 2) for part in (query, rope)]
    assert torch.equal(OP(*turned, *rest), OP(query, rope, *rest))


def test_what_lies_behind_a_sequence_is_not_read():
    query, rope, latents, ropes, table, mask, _, scale = arguments()
    lengths = torch.tensor([5, 3])
    mask = mask & (torch.arange(12) < lengths[:, None, None, None]) | (torch.arange(12) == 0)
    clean = OP(query, rope, latents, ropes, table, mask, lengths, scale)
    for row, length in enumerate(lengths.tolist()):
        for place in range(length, 12):
            where = int(table[row, place // 4]) * 4 + place % 4
            latents[where], ropes[where] = torch.nan, torch.inf
    assert torch.equal(OP(query, rope, latents, ropes, table, mask, lengths, scale), clean)


def test_into_a_place():
    some = arguments()
    wide = torch.full((2, 4, 3, 2 * RANK), torch.nan)
    out = wide[..., ::2]
    assert OUT(*some, out=out) is out and torch.equal(out, OP(*some)) and wide[..., 1::2].isnan().all()
    for wrong in (torch.empty(2, 4, 3, 9), torch.empty(1), torch.empty(2, 4, 3, RANK, dtype=torch.float64)):
        with pytest.raises(ValueError, match="out is"):
            OUT(*some, out=wrong)


@pytest.mark.parametrize("block", [-1, 8, 1 << 40, -(1 << 62)])
def test_a_block_that_is_not_there(block: int):
    some = list(arguments())
    some[4][1, 0] = block
    with pytest.raises(IndexError, match=f"block {block} of 8"):
        OP(*some)


WRONG = (
    lambda a: a[0][0],
    lambda a: a[1][:, :3],
    lambda a: a[2][:, :7],
    lambda a: a[3][:-1],
    lambda a: a[4].float(),
    lambda a: a[5].float(),
    lambda a: a[6][:1],
)


@pytest.mark.parametrize("place", range(len(WRONG)))
def test_arguments_that_do_not_fit_each_other(place: int):
    some = list(arguments())
    some[place] = WRONG[place](some)
    with pytest.raises(ValueError, match="latent_attention takes"):
        OP(*some)


def test_empty_sizes_are_errors_or_empty():
    query, rope, latents, ropes, table, mask, lengths, scale = arguments()
    with pytest.raises(ValueError):
        OP(query, rope, latents, ropes, table[:, :0], mask[..., :0], lengths, scale)
    with pytest.raises(ValueError):
        OP(query[..., :0], rope, latents[:, :0], ropes, table, mask, lengths, scale)
    assert OP(query[:0], rope[:0], latents, ropes, table[:0], mask[:0], lengths[:0], scale).shape == (0, 4, 3, RANK)
