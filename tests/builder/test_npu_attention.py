"""The host kernel of attention against a naive one in float64, in every layout, over pages, and with masks."""

import npu_samples
import pytest
import torch
from npu_samples import CAUSAL, FLOATS, LAYOUTS, of_v2, tensor
from torch.nn import functional

import aotair.ops.npu  # noqa: F401
from aotair.ops.registry import Unserved

fia = torch.ops.npu.npu_fused_infer_attention_score
HEADS = {"num_heads": 4, "num_key_value_heads": 2}
BNSD = HEADS | {"input_layout": "BNSD"}


def naive(query, key, value, scale=1.0, hidden=None):
    """(heads, queries, size) with (kv heads, keys, size): attention and log-sum-exp, number by number in float64."""
    query, key, value = (x.double() for x in (query, key, value))
    out, lse = torch.zeros(*query.shape[:2], value.shape[-1]).double(), torch.full(query.shape[:2], torch.inf).double()
    for head in range(query.shape[0]):
        at = head // (query.shape[0] // key.shape[0])
        for row in range(query.shape[1]):
            seen = torch.ones(key.shape[1], dtype=torch.bool) if hidden is None else ~hidden[row]
            if seen.any():
                weights = (key[at, seen] @ query[head, row] * scale).exp()
                out[head, row] = weights @ value[at, seen] / weights.sum()
                lse[head, row] = weights.sum().log()
    return out, lse.unsqueeze(-1)


def inputs(dtype=torch.float32, queries=5, keys=7):
    return tensor((2, 4, queries, 8), dtype), tensor((2, 2, keys, 8), dtype), tensor((2, 2, keys, 8), dtype)


def close(got, want, dtype=torch.float32):
    tolerance = {torch.float32: 1e-5, torch.float16: 3e-3, torch.bfloat16: 3e-2}[dtype]
    torch.testing.assert_close(got.double(), want.double(), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("dtype", FLOATS)
def test_it_is_softmax_attention_and_has_the_bits_of_torchs(dtype):
    query, key, value = inputs(dtype)
    out, lse = fia(query, key, value, scale=0.3, softmax_lse_flag=True, **BNSD)
    for b in range(2):
        want, want_lse = naive(query[b], key[b], value[b], 0.3)
        close(out[b], want, dtype)
        close(lse[b], want_lse, torch.float32 if dtype == torch.float32 else torch.float16)
    torchs = functional.scaled_dot_product_attention
    assert torch.equal(out, torchs(query, key, value, scale=0.3, enable_gqa=True))
    hidden = torch.rand(2, 1, 5, 7) < 0.3
    hidden[..., 0] = False
    for mask in (hidden, hidden.to(torch.int8), hidden.to(torch.uint8)):
        out, _ = fia(query, key, value, atten_mask=mask, **BNSD)
        assert torch.equal(out, torchs(query, key, value, ~hidden, scale=1.0, enable_gqa=True))
    same = tensor((2, 4, 7, 8), dtype), *(tensor((2, 4, 7, 8), dtype) for _ in range(2))
    for mode in (2, 3):
        out, _ = fia(*same, num_heads=4, input_layout="BNSD", sparse_mode=mode, atten_mask=CAUSAL)
        assert torch.equal(out, torchs(*same, is_causal=True, scale=1.0))


@pytest.mark.parametrize("layout", [name for name in LAYOUTS if not name.startswith(("TND", "NTD", "NSD"))])
def test_the_layouts_agree(layout):
    query, key, value = inputs()
    want, lse = fia(query, key, value, softmax_lse_flag=True, **BNSD)
    first, _, second = layout.partition("_")
    lay = {
        "BNSD": lambda x: x,
        "BSND": lambda x: x.permute(0, 2, 1, 3).contiguous(),
        "BSH": lambda x: x.permute(0, 2, 1, 3).reshape(2, x.shape[2], -1),
        "NBSD": lambda x: x.permute(1, 0, 2, 3),
    }
    args = [lay[first](x) for x in (query, key, value)]
    got, got_lse = fia(*args, input_layout=layout, softmax_lse_flag=True, **HEADS)
    close(got, lay[second or first](want))
    close(got_lse, lse)
    assert got.is_contiguous()


@pytest.mark.parametrize("layout", ["TND", "NTD", "TND_NTD", "NTD_TND"])
def test_tokens_of_several_sequences_lie_one_after_the_other(layout):
    query, key, value = tensor((4, 6, 8), torch.float32), *(tensor((2, 9, 8), torch.float32) for _ in range(2))
    first, _, second = layout.partition("_")
    args = [x.transpose(0, 1).contiguous() if first == "TND" else x for x in (query, key, value)]
    ends = {"actual_seq_lengths": [1, 5], "actual_seq_lengths_kv": [3, 9]}
    masked = {"sparse_mode": 3, "atten_mask": CAUSAL}
    got, lse = fia(*args, input_layout=layout, softmax_lse_flag=True, **HEADS, **ends, **masked)
    got = got.transpose(0, 1) if (second or first) == "TND" else got
    for (start, stop), (kv_start, kv_stop) in (((0, 1), (0, 3)), ((1, 5), (3, 9))):
        rows, columns = stop - start, kv_stop - kv_start
        hidden = torch.ones(rows, columns, dtype=torch.bool).triu(columns - rows + 1)
        want, its_lse = naive(query[:, start:stop], key[:, kv_start:kv_stop], value[:, kv_start:kv_stop], 1.0, hidden)
        close(got[:, start:stop], want)
        close(lse[start:stop].transpose(0, 1), its_lse)
    assert not got[:, 5:].any(), "a token of no sequence"


@pytest.mark.parametrize(("queries", "keys"), [(5, 7), (7, 5), (6, 6)])
def test_the_causal_modes_start_at_the_first_key_and_end_at_the_last(queries, keys):
    query, key, value = inputs(queries=queries, keys=keys)
    for mode, offset in ((2, 0), (3, keys - queries)):
        hidden = torch.tensor([[column > row + offset for column in range(keys)] for row in range(queries)])
        out, lse = fia(query, key, value, sparse_mode=mode, atten_mask=CAUSAL, softmax_lse_flag=True, **BNSD)
        for b in range(2):
            want, its_lse = naive(query[b], key[b], value[b], 1.0, hidden)
            close(out[b], want)
            close(lse[b], its_lse)


def test_masks_of_every_shape():
    query, key, value = inputs()
    mask = torch.rand(2, 1, 5, 7) < 0.4
    mask[0, 0, 2] = True  # a query that sees nothing
    want = torch.stack([naive(query[b], key[b], value[b], 1.0, mask[b, 0])[0] for b in range(2)])
    for shaped in (mask, mask[:, 0]):
        out, lse = fia(query, key, value, atten_mask=shaped, softmax_lse_flag=True, **BNSD)
        close(out, want)
        assert not out[0, :, 2].any() and lse[0, :, 2].isinf().all()
    for shaped in (mask[1, 0], mask[1], mask[1:]):
        close(fia(query, key, value, atten_mask=shaped, **BNSD)[0][1], want[1])
    single, _ = fia(query[:, :, :1], key, value, atten_mask=mask[:, 0, 0], **BNSD)
    close(single, want[:, :, :1])
    lengths = {"actual_seq_lengths": [4, 2], "actual_seq_lengths_kv": [6, 3]}
    out, _ = fia(query, key, value, atten_mask=mask, **BNSD, **lengths)
    for b, (rows, columns) in enumerate(((4, 6), (2, 3))):
        kept = naive(query[b, :, :rows], key[b, :, :columns], value[b, :, :columns], 1.0, mask[b, 0, :rows, :columns])
        close(out[b, :, :rows], kept[0])
        assert not out[b, :, rows:].any()


def test_what_lies_beyond_the_lengths_does_not_matter():
    query, key, value = inputs(torch.float16)
    lengths = {"actual_seq_lengths": [5], "actual_seq_lengths_kv": [3, 6]}
    causal = {"sparse_mode": 3, "atten_mask": CAUSAL}
    for more in ({}, causal):
        want = fia(query, key, value, softmax_lse_flag=True, **BNSD, **lengths, **more)
        for stale in (torch.nan, torch.inf, 1e4):
            for cache in (key, value):
                cache[0, :, 3:], cache[1, :, 6:] = stale, stale
            for got, wanted in zip(fia(query, key, value, softmax_lse_flag=True, **BNSD, **lengths, **more), want):
                assert torch.equal(got, wanted)
    close(want[0][1], naive(query[1], key[1, :, :6], value[1, :, :6], 1.0, CAUSAL[1:6, :6])[0], torch.float16)


@pytest.mark.parametrize("layout", ["BNSD", "BSH", "TND"])
@pytest.mark.parametrize("flat", [True, False])
def test_pages_are_the_sequences_they_hold(layout, flat):
    query, key, value = inputs()
    table = torch.tensor([[3, 0, 5], [4, 1, 2]], dtype=torch.int32)
    lengths = [5, 7]
    want, _ = fia(query, key, value, actual_seq_lengths_kv=lengths, **BNSD)

    def paged(x):
        cache = torch.full((6, 3, 2, 8), torch.nan)
        for b, length in enumerate(lengths):
            for at in range(length):
                cache[table[b, at // 3], at % 3] = x[b, :, at]
        return cache.flatten(2) if flat else cache.transpose(1, 2).contiguous()

    pages = HEADS | {"block_table": table, "block_size": 3, "actual_seq_lengths_kv": lengths}
    if layout == "TND":
        pages["actual_seq_lengths"] = [5, 10]
    lay = {
        "BNSD": lambda x: x,
        "BSH": lambda x: x.transpose(1, 2).flatten(2),
        "TND": lambda x: x.transpose(1, 2).flatten(0, 1),
    }[layout]
    got, _ = fia(lay(query), paged(key), paged(value), input_layout=layout, **pages)
    close(got, lay(want))


def test_ropes_are_more_of_the_head_and_values_have_a_size_of_their_own():
    query, key, _ = inputs()
    value, query_rope, key_rope = torch.randn(2, 2, 7, 6), torch.randn(2, 4, 5, 4), torch.randn(2, 2, 7, 4)
    out, _ = fia(query, key, value, query_rope=query_rope, key_rope=key_rope, **BNSD)
    for b in range(2):
        want, _ = naive(torch.cat([query[b], query_rope[b]], -1), torch.cat([key[b], key_rope[b]], -1), value[b])
        close(out[b], want)


def test_the_other_names_and_the_overloads_say_the_same():
    ops = torch.ops.npu
    first = "npu_fused_infer_attention_score"
    for args, kwargs in npu_samples.attention_cases():
        want = fia(*args, **kwargs)
        for name, named in ((first, kwargs), (first + "_v2", of_v2(kwargs))):
            op = getattr(ops, name)
            out = [torch.full_like(result, -7) for result in want]
            workspace = getattr(ops, f"_{name}_get_max_workspace")(*args, **named)
            for got in (op(*args, **named), op.out(*args, **named, workspace=workspace, out=out), out):
                assert all(torch.equal(a, b) for a, b in zip(got, want, strict=True))
    with pytest.raises(ValueError, match="out"):
        fia.out(*args, **kwargs, out=[torch.zeros(1), torch.zeros(0)])


def test_what_is_not_served_is_refused_by_name():
    query, key, value = inputs(torch.float16)
    one = torch.ones(1)
    for name in ("pse_shift", "quant_scale2", "antiquant_scale", "query_padding_size", "key_shared_prefix"):
        with pytest.raises(Unserved, match=name):
            fia(query, key, value, **BNSD, **{name: one})
    mask = torch.zeros(5, 7, dtype=torch.bool)
    for wrong, said in (
        ({"sparse_mode": 4, "atten_mask": CAUSAL}, "sparse_mode=4"),
        ({"key_antiquant_mode": 1}, "key_antiquant_mode"),
        ({"atten_mask": mask, "next_tokens": 0}, "next_tokens=0"),
        ({"atten_mask": mask.half()}, "atten_mask"),
        ({"input_layout": "SBH"}, "input_layout"),
    ):
        with pytest.raises(Unserved, match=said):
            fia(query, key, value, **BNSD | wrong)
    with pytest.raises(Unserved, match="key of"):
        fia(query, key.to(torch.int8), value, **BNSD)
    with pytest.raises(Unserved, match="single query"):
        fia(query[:, :, :1], key, value, sparse_mode=2, atten_mask=CAUSAL, **BNSD)
    with pytest.raises(Unserved, match="learnable_sink"):
        torch.ops.npu.npu_fused_infer_attention_score_v2(query, key, value, learnable_sink=one, **of_v2(BNSD))


def test_what_makes_no_sense_is_refused():
    query, key, value = inputs(torch.float16)
    for wrong, said in (
        ({"sparse_mode": 3}, "2048 x 2048"),
        ({"sparse_mode": 3, "atten_mask": CAUSAL[:5, :7]}, "2048 x 2048"),
        ({"sparse_mode": 1}, "atten_mask"),
        ({"atten_mask": CAUSAL[:5, :1]}, "too small"),
        ({"num_heads": 2}, "2 heads and 2"),
        ({"actual_seq_lengths_kv": [3, 8]}, "its length says 8"),
        ({"actual_seq_lengths": [6, 5]}, "its length says 6"),
        ({"query_rope": query}, "come together"),
        ({"block_table": torch.zeros(2, 3, dtype=torch.int32)}, "lengths of the keys"),
    ):
        with pytest.raises(ValueError, match=said):
            fia(query, key, value, **BNSD | wrong)
    pages = {"block_table": torch.tensor([[0], [1]], dtype=torch.int32), "actual_seq_lengths_kv": [3, 3]}
    with pytest.raises(ValueError, match="block_size=4"):
        fia(query, key, value, block_size=4, **BNSD, **pages)
    with pytest.raises(ValueError, match="its length says 8"):
        fia(query, key, value, block_size=7, **BNSD, **pages | {"actual_seq_lengths_kv": [3, 8]})
