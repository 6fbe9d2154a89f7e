"""Attention over short sequences by two products: what torch's kernel gives, in its place, or torch's kernel itself."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import aotair
from aotair_runtime.capture import bind
from aotair_runtime.devices import short_attention
from aotair_runtime.devices.short_attention import ShortAttention, prepared
from aotair_runtime.steps import join

attention = torch.nn.functional.scaled_dot_product_attention
LEAST = torch.finfo(torch.float32).min


def drawn(batch: int, heads: int, rows: int, keys: int, width: int, out: int) -> list[torch.Tensor]:
    """Query, key and value as heads of one projection lie, and a place for the result that lies alike."""
    sizes = (rows, width), (keys, width), (keys, out), (rows, out)
    return [torch.randn(batch, length, heads, each).transpose(1, 2) for length, each in sizes]


MASKS = {
    "none": lambda size: None,
    "keys": lambda size: torch.rand(size[0], 1, 1, size[3]) < 0.7,
    "expanded": lambda size: (torch.rand(size[0], 1, 1, size[3]) < 0.7).expand(size[0], 1, size[2], size[3]),
    "rows": lambda size: torch.rand(size[2], size[3]) < 0.7,
    "all": lambda size: torch.rand(*size) < 0.7,
    "floats": lambda size: torch.randn(size[1], size[2], size[3]),
    "infinite": lambda size: torch.zeros(size[0], 1, size[2], size[3]).masked_fill(
        torch.rand(size[0], 1, size[2], size[3]) < 0.3, -float("inf")
    ),
    "least": lambda size: torch.zeros(size[2], size[3]).masked_fill(torch.rand(size[2], size[3]) < 0.3, LEAST),
}


@settings(max_examples=60, deadline=None)
@given(
    batch=st.integers(1, 5),
    heads=st.integers(1, 7),
    rows=st.integers(1, 140),
    keys=st.integers(60, 260),
    width=st.sampled_from([1, 8, 32, 33]),
    out=st.sampled_from([1, 8, 32]),
    mask=st.sampled_from(sorted(MASKS)),
    scale=st.sampled_from([None, 0.3]),
)
def test_it_gives_what_torch_gives(batch, heads, rows, keys, width, out, mask, scale):
    torch.manual_seed(batch * heads * rows * keys)
    query, key, value, place = drawn(batch, heads, rows, keys, width, out)
    said = MASKS[mask]((batch, heads, rows, keys))
    if said is not None and said.shape[-2] > 1:
        said[..., rows // 2, :] = False if said.dtype == torch.bool else -float("inf")  # a row that sees nothing
    call = prepared((query, key, value, said), {} if scale is None else {"scale": scale}, place)
    if call is None:
        assert not 1 << 13 <= rows * keys <= 1 << 17
        return
    call()
    want = attention(query, key, value, said, scale=scale)
    torch.testing.assert_close(place, want, atol=1e-5, rtol=1e-5)
    first = place.clone()
    call()
    assert torch.equal(place, first)


def test_it_takes_some_heads_at_a_time_and_writes_nothing_else(monkeypatch):
    monkeypatch.setattr(short_attention, "_AT_A_TIME", 3 * (128 * 128 + 256 * 16))
    for batch, heads, parts in ((2, 6, 4), (1, 7, 7), (6, 1, 2), (4, 3, 4)):
        query, key, value, _ = drawn(batch, heads, 128, 128, 8, 8)
        memory = torch.full((batch + 2, 128, heads, 8), 7.0)
        place = memory[1:-1].transpose(1, 2)
        call = prepared((query, key, value), {}, place)
        assert isinstance(call, ShortAttention) and len(call._parts) == parts
        call()
        torch.testing.assert_close(place, attention(query, key, value), atol=1e-5, rtol=1e-5)
        assert (memory[[0, -1]] == 7).all()


def test_a_nan_stays_seen_and_in_its_rows():
    query, key, value, place = drawn(2, 2, 100, 100, 8, 8)
    query[0, 1, 5, 3] = float("nan")
    prepared((query, key, value, torch.ones(100, 100, dtype=torch.bool)), {}, place)()
    assert place[0, 1, 5].isnan().all() and place.isnan().sum() == 8


def test_what_it_does_not_take_is_torchs():
    query, key, value, place = drawn(2, 4, 100, 100, 8, 8)
    mask = torch.ones(100, 100, dtype=torch.bool)
    whole = (query, key, value)
    assert prepared(whole, {}, place) is not None
    declined = [
        ((*whole, None, 0.1), {}, place),
        ((*whole, None, 0.0, True), {}, place),
        (whole, {"is_causal": True}, place),
        (whole, {"enable_gqa": True}, place),
        (tuple(one.double() for one in whole), {}, place.double()),
        (tuple(one.bfloat16() for one in whole), {}, place.bfloat16()),
        ((query[0], key[0], value[0]), {}, place[0]),
        ((query, key[:, :1], value[:, :1]), {}, place),
        ((query, key[:1], value[:1]), {}, place),
        ((query, key[..., :4], value), {}, place),
        (whole, {}, place[:, :, :50]),
        ((query[:, :, :8], key[:, :, :8], value[:, :, :8]), {}, place[:, :, :8]),
        ((*whole, mask[:, :1]), {}, place),
        ((*whole, mask[:50]), {}, place),
        ((*whole, mask.double()), {}, place),
        ((*whole, mask[None, None, None]), {}, place),
        (whole, {}, query),
        (whole, {}, value),
        ((query,), {"key": key, "value": value}, place),
    ]
    for args, kwargs, target in declined:
        assert prepared(args, kwargs, target) is None
    memory = torch.randn(3, 2, 100, 4, 8)
    over = [one.transpose(1, 2) for one in memory]
    assert prepared(tuple(over), {}, over[0].flip(0)) is not None, "a copy"
    assert prepared(tuple(over), {}, memory.view(-1)[100 : 100 + place.numel()].view(place.shape)) is None


class Attending(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.three, self.out = torch.nn.Linear(32, 96), torch.nn.Linear(32, 32)

    def forward(self, x, kept):
        query, key, value = (one.unflatten(2, (4, 8)).transpose(1, 2) for one in self.three(x).chunk(3, 2))
        mask = kept[:, None, None, :].bool()
        return self.out(attention(query, key, value, mask).transpose(1, 2).flatten(2))


def test_an_artifact_of_padded_sentences(tmp_path, monkeypatch):
    monkeypatch.setattr(join, "run", lambda: None)  # as without aotair-kernels, which make attention themselves
    seen = []
    real = bind.prepared_into

    def noted(*args):
        seen.append(real(*args))
        return seen[-1]

    monkeypatch.setattr(bind, "prepared_into", noted)
    inputs = {
        "x": {"shape": ["batch", "seq", 32], "dtype": "float32", "pad": 0},
        "kept": {"shape": ["batch", "seq"], "dtype": "int64", "pad": 0, "range": [0, 2]},
    }
    model = Attending().eval()
    out = aotair.build(
        model=model, out=tmp_path / "m.aotair", inputs=inputs, buckets={"batch": [1, 3], "seq": [16, 128]}
    )
    with aotair.load(out) as served:
        assert any(isinstance(one, ShortAttention) for one in seen)
        for batch, seq in ((1, 9), (1, 128), (3, 100), (2, 128)):
            x, kept = torch.randn(batch, seq, 32), torch.ones(batch, seq, dtype=torch.int64)
            kept[:, seq // 2 :] = torch.randint(0, 2, (batch, seq - seq // 2))
            with torch.no_grad():
                torch.testing.assert_close(served(x, kept), model(x, kept), atol=1e-5, rtol=1e-5)
