"""Recurrent layers stay whole where the device has them, and become what they are made of elsewhere."""

import pytest
import torch
from marks import long

import aotair
from aotair.builder import plan
from aotair.errors import UnsupportedError
from aotair.model.in_float64 import called
from aotair.model.wider import Wider


class Recurrent(torch.nn.Module):
    def __init__(self, kind: str, **options: object):
        super().__init__()
        torch.manual_seed(0)
        self.layer = getattr(torch.nn, kind)(6, 8, batch_first=True, **options)

    def forward(self, x):
        made, state = self.layer(x)
        return made, state


class Drops(torch.nn.Module):
    def forward(self, x):
        return torch.nn.functional.dropout(x, 0.5, training=True)


def recipe(kind: str, device: str = "cpu", **options: object) -> dict:
    return {
        "name": "recurrent",
        "model": {"factory": f"{__file__}:Recurrent", "kwargs": {"kind": kind, **options}},
        "target": {"device": device},
        "inputs": {"x": {"shape": ["b", "t", 6], "dtype": "float32"}},
        "buckets": {"b": [1, 3], "t": [4, 7]},
    }


CASES = [
    ("LSTM", {}),
    long("LSTM", {"proj_size": 3, "num_layers": 2}),
    ("LSTM", {"bidirectional": True, "num_layers": 2}),
    ("GRU", {"bias": False}),
    long("RNN", {}),
]


@pytest.mark.parametrize(("kind", "options"), CASES)
def test_layers_along_time(kind, options, tmp_path):
    model = aotair.load(aotair.build(recipe(kind, **options), tmp_path / "a.aotair"))
    whole = {"LSTM": "aten::lstm.input", "GRU": "aten::gru.input", "RNN": "aten::rnn_tanh.input"}[kind]
    assert whole in [op.name for op in model.program.ops]
    original = Recurrent(kind, **options).eval()
    for batch, time in ((1, 4), (3, 7), (1, 7)):
        x = torch.randn(batch, time, 6)
        with torch.no_grad():
            torch.testing.assert_close(model(x), original(x), atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("device", ["npu", long("cuda")])
@pytest.mark.parametrize(("kind", "options"), CASES)
def test_layers_on_other_devices(kind, options, device, tmp_path):
    """Built, and proved on the host's kernels, whichever way they go."""
    asked = recipe(kind, device, **options) | {"buckets": {"b": [3], "t": [4, 7]}}
    path = aotair.build(asked, tmp_path / "a.aotair")
    x = torch.randn(3, 7, 6)
    with torch.no_grad():
        want = Recurrent(kind, **options).eval()(x)
    torch.testing.assert_close(aotair.load(path, device="cpu")(x), want, atol=1e-5, rtol=1e-4)


class Continued(torch.nn.Module):
    """Who calls keeps the states."""

    def __init__(self, hidden: int):
        super().__init__()
        torch.manual_seed(0)
        self.layer = torch.nn.LSTM(3, hidden, batch_first=True)

    def forward(self, x, h, c):
        return self.layer(x, (h, c))


@pytest.mark.parametrize("hidden", [1, 100])
def test_far_values_do_not_look_like_padding(hidden, tmp_path):
    """Where gates saturate, another order of sums is as far off as the original's own rounding."""
    states = {"shape": [1, "n", hidden], "dtype": "float32", "pad": "any"}
    inputs = {"x": {"shape": ["n", 20, 3], "dtype": "float32", "pad": "any"}, "h": states, "c": states}
    model = Continued(hidden).eval()
    with aotair.load(aotair.build(model=model, out=tmp_path / "a", inputs=inputs, buckets={"n": [1, 4, 9]})) as served:
        given = [torch.randn(5, 20, 3), torch.randn(1, 5, hidden), torch.randn(1, 5, hidden)]
        for got, want in zip(torch.utils._pytree.tree_leaves(served(*given)), model(*given)[:1]):
            torch.testing.assert_close(got, want, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("reverse", [False, True])
def test_onednns_layer_in_float64(reverse):
    given = [torch.randn(*shape) for shape in ((4, 2, 3), (20, 3), (20, 5), (20,), (20,), (2, 5), (2, 5))]
    more = (reverse, [], 2, 5, 1, True, False, False, False)
    op = torch.ops.aten.mkldnn_rnn_layer.default
    want = op(*given, *more)
    got = called(op, [*(one.double() for one in given), *more], {})
    for one, other in zip(got[:3], want[:3]):
        assert one.dtype == torch.float64
        torch.testing.assert_close(one.float(), other, atol=1e-6, rtol=1e-5)
    with pytest.raises(NotImplementedError):
        called(op, [*given, reverse, [], 3, *more[3:]], {})


def test_the_original_moves_where_its_layers_have_no_kernel_for_float64():
    model, x = Continued(100).eval(), torch.randn(3, 20, 3) * 100
    states = torch.randn(1, 3, 100), torch.randn(1, 3, 100)
    with torch.no_grad():
        want = model(x, *states)[0]
        with Wider():
            moved = model(x, *states)[0]
        exact = model.double()(x.double(), *(one.double() for one in states))[0]
    assert 0 < (moved - want).abs().max() < 1e-3 and (moved - exact).abs().max() < (want - exact).abs().max()


def test_what_draws_random_numbers_is_still_refused():
    drops = recipe("LSTM") | {"model": {"factory": f"{__file__}:Drops"}}
    with pytest.raises(UnsupportedError, match="draws random numbers"):
        plan(drops)
