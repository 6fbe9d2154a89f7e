"""All ranks of an artifact as one model: calls, states, and what a rank's error becomes."""

import threading
from pathlib import Path

import pytest
import torch
from cases import RECIPES

import aotair
from aotair.prove.prove import all_on_host
from aotair.prove.together import AllRanks
from aotair_runtime.artifact.open import open_artifact
from aotair_runtime.confine.op_table import Allowed
from aotair_runtime.errors import AotairError, CaptureError


class Kept(torch.nn.Module):
    """A cache whose columns ranks share out."""

    def __init__(self):
        super().__init__()
        self.up, self.down = torch.nn.Linear(4, 8), torch.nn.Linear(8, 4)
        self.register_buffer("rows", torch.arange(24.0).view(3, 8))

    def split_states(self, parts):
        return {"rows": parts["up.weight"].shard.__class__(0, 1, parts["up.weight"].shard.parts)}

    def forward(self, x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        self.rows.index_copy_(0, at, torch.tanh(self.up(x)))
        return self.down(self.rows)


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(4)
    inputs = {
        "x": {"shape": [2, 4], "dtype": "float32"},
        "at": {"shape": [2], "dtype": "int64", "range": [0, 3], "distinct": True, "pad": 2},
    }
    out = tmp_path_factory.mktemp("together") / "kept.aotair"
    parts = {"mesh": {"tp": 2}, "parallel": {"up": "colwise", "down": "rowwise"}}
    return aotair.build(model=Kept(), name="kept", out=out, inputs=inputs, **parts)


def test_states_are_whole_and_go_to_their_ranks(kept: Path):
    with all_on_host(open_artifact(kept), Allowed()) as ranks:
        assert isinstance(ranks, AllRanks)
        assert [model.state["rows"].shape for model in ranks.models] == [(3, 4), (3, 4)]
        assert torch.equal(ranks.state["rows"], torch.arange(24.0).view(3, 8))
        value = torch.randn(3, 8)
        ranks.put_states({"rows": value})
        assert torch.equal(ranks.state["rows"], value)
        assert torch.equal(ranks.models[1].state["rows"], value[:, 4:])
        ranks.reset_state()
        assert torch.equal(ranks.state["rows"], torch.arange(24.0).view(3, 8))


def test_calls_write_the_states_of_all_ranks(kept: Path):
    torch.manual_seed(4)
    model, x, at = Kept(), torch.randn(2, 4), torch.tensor([2, 0])
    with all_on_host(open_artifact(kept), Allowed()) as ranks:
        (got,) = ranks.entry_points["forward"].flat([x, at])
        torch.testing.assert_close(got, model(x, at))
        torch.testing.assert_close(ranks.state["rows"], model.rows)
        assert all(found.within for found in ranks.replay_golden())


def test_an_error_of_a_rank_is_that_of_the_call(kept: Path):
    with all_on_host(open_artifact(kept), Allowed()) as ranks, pytest.raises(AotairError, match="does not fit"):
        ranks.entry_points["forward"].flat([torch.randn(5, 4), torch.tensor([0, 1])])


def test_a_call_that_fails_on_a_rank_ends(kept: Path, monkeypatch: pytest.MonkeyPatch):
    """An error may be raised again from itself, or from one that came of it."""
    with all_on_host(open_artifact(kept), Allowed()) as ranks:
        error, other = CaptureError("a kernel failed"), CaptureError("another one")
        error.__cause__, other.__cause__ = other, error

        def fail(*given: object) -> None:
            raise error

        monkeypatch.setattr("aotair_runtime.call.entry.Entry._replay", fail)
        with pytest.raises(CaptureError, match="a kernel failed"):
            ranks.entry_points["forward"].flat([torch.zeros(2, 4), torch.tensor([0, 1])])


def test_what_is_given_for_one_rank_is_one_model(tmp_path: Path):
    path = aotair.build(RECIPES["linear"], tmp_path / "a.aotair")
    with all_on_host(open_artifact(path), Allowed()) as model:
        assert isinstance(model, aotair.Model)


def test_no_thread_of_a_rank_is_left_when_a_call_has_ended(kept: Path):
    """A copy of this process would have the locks that it holds while it ends."""

    def multiplied(_: int) -> int:
        torch.mm(torch.ones(4, 256), torch.ones(256, 512))
        return threading.get_native_id()

    with all_on_host(open_artifact(kept), Allowed()) as ranks:
        assert isinstance(ranks, AllRanks)
        for _ in range(100):
            assert not [thread for thread in ranks._on_all(multiplied) if Path(f"/proc/self/task/{thread}").exists()]
