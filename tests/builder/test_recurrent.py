"""Recurrent layers stay whole where the device has them, and become what they are made of elsewhere."""

import pytest
import torch

import aotair
from aotair.builder import plan
from aotair.errors import UnsupportedError


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


CASES = [("LSTM", {}), ("LSTM", {"bidirectional": True, "num_layers": 2}), ("GRU", {"bias": False}), ("RNN", {})]


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


@pytest.mark.parametrize("device", ["npu", "cuda"])
@pytest.mark.parametrize(("kind", "options"), CASES)
def test_layers_on_other_devices(kind, options, device, tmp_path):
    """Built, and proved on the host's kernels, whichever way they go."""
    asked = recipe(kind, device, **options) | {"buckets": {"b": [3], "t": [4, 7]}}
    path = aotair.build(asked, tmp_path / "a.aotair")
    x = torch.randn(3, 7, 6)
    with torch.no_grad():
        want = Recurrent(kind, **options).eval()(x)
    torch.testing.assert_close(aotair.load(path, device="cpu")(x), want, atol=1e-5, rtol=1e-4)


def test_what_draws_random_numbers_is_still_refused():
    drops = recipe("LSTM") | {"model": {"factory": f"{__file__}:Drops"}}
    with pytest.raises(UnsupportedError, match="draws random numbers"):
        plan(drops)
